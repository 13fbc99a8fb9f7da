"""The executor of Spark's workers: the order of results, errors, an interrupt, and how tasks are packed."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzctl.engine.errors import ClusterError, DiskReadError
from waltzctl.engine.spark.spark_errors import first_line
from waltzctl.engine.spark.spark_executor import PACKET, SparkExecutor, pack
from waltzctl.engine.task_executor import LocalExecutor

if TYPE_CHECKING:
    from waltzctl.engine.spark.spark_session import Session

pytestmark = pytest.mark.xdist_group("spark")


def _square(task: int) -> int:
    return task * task


def _fail(task: int) -> int:
    if task == 5:
        raise DiskReadError("/data/waltz/3/x.seg", 77, OSError(5, "Input/output error"))
    return task


def _crash(task: int) -> int:
    return 1 // task


def _sleep(task: int) -> int:
    time.sleep(60)
    return task


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.began: list[tuple[str, int]] = []
        self.done = 0

    def start(self, what: str, total: int) -> None:
        self.began.append((what, total))

    def advance(self, amount: int) -> None:
        self.done += amount


def test_results_come_in_the_order_of_the_tasks_and_progress_ends_at_the_total(spark_session: Session) -> None:
    heard = Heard()
    weights = [(number * 7919) % 1000 << 20 for number in range(50)]
    found = list(SparkExecutor(spark_session, heard).map(_square, range(50), weights=weights, what="square"))
    assert found == [number * number for number in range(50)]
    assert heard.began == [("square", sum(weights))]
    assert heard.done == sum(weights)


def test_no_tasks_are_no_job(spark_session: Session) -> None:
    assert list(SparkExecutor(spark_session).map(_square, [], weights=[], what="nothing")) == []


def test_an_error_of_ours_arrives_as_it_was_raised(spark_session: Session) -> None:
    with pytest.raises(DiskReadError, match=r"x\.seg: cannot read at offset 77: Input/output error") as caught:
        list(SparkExecutor(spark_session).map(_fail, range(10), weights=[1] * 10, what="fail"))
    assert caught.value.offset == 77


def test_any_other_error_ends_the_job_and_names_its_cause(spark_session: Session) -> None:
    with pytest.raises(ClusterError, match="ZeroDivisionError"):
        list(SparkExecutor(spark_session).map(_crash, [0], weights=[1], what="crash"))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("called o1.save.\n: java.lang.Error: no catalog\n\tat org.apache.X", "java.lang.Error: no catalog"),
        (
            "called o1.save.\n: a.B: job aborted\n\tat x\nCaused by: c.D: disk full\n\tat y",
            "Caused by: c.D: disk full",
        ),
        ("An exception was thrown from the Python worker:\nKeyError: 'x'\n", "KeyError: 'x'"),
        ("[TABLE_OR_VIEW_NOT_FOUND] no table\nVerify the spelling", "[TABLE_OR_VIEW_NOT_FOUND] no table"),
        ("", "RuntimeError"),
    ],
)
def test_of_a_long_trace_the_line_that_names_the_reason_is_shown(said: str, shown: str) -> None:
    assert first_line(RuntimeError(said)) == shown


@pytest.mark.turns(12)
def test_an_interrupt_cancels_the_job(spark_session: Session) -> None:
    def press() -> None:
        while not tracker.getActiveStageIds():
            pause.wait(0.01)
        signal.raise_signal(signal.SIGINT)

    tracker, pause = spark_session.spark.sparkContext.statusTracker(), threading.Event()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(SparkExecutor(spark_session).map(_sleep, [1, 2], weights=[1, 1], what="sleep"))
    finally:
        presser.join()
        signal.signal(signal.SIGINT, before)
    while tracker.getActiveStageIds():  # the job is being taken down; its tasks would take a minute
        pause.wait(0.01)
    assert list(SparkExecutor(spark_session).map(_square, [3], weights=[1], what="square")) == [9]


@given(weights=st.lists(st.integers(0, 8 << 30), max_size=60), parallelism=st.integers(1, 16))
def test_packets_hold_every_task_once_in_order_and_are_few(weights: list[int], parallelism: int) -> None:
    packets = pack(weights, parallelism)
    assert [number for packet in packets for number in packet] == list(range(len(weights)))
    assert all(len(packet) for packet in packets)
    whole = sum(weights) + len(weights) * (256 << 10)
    assert len(packets) <= (parallelism if whole <= PACKET * parallelism else max(3 * parallelism, whole // PACKET + 1))


@given(count=st.integers(1, 500), parallelism=st.integers(1, 16))
def test_equal_tasks_are_shared_evenly(count: int, parallelism: int) -> None:
    sizes = [len(packet) for packet in pack([1 << 20] * count, parallelism)]
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == min(parallelism, count)


def test_threads_here_keep_the_order_and_raise_what_a_task_raises() -> None:
    heard = Heard()
    assert list(LocalExecutor(3, heard).map(_square, range(100), weights=[2] * 100, what="square"))[99] == 9801
    assert heard.done == 200
    with pytest.raises(DiskReadError):
        list(LocalExecutor(2).map(_fail, range(10), weights=[1] * 10, what="fail"))


@pytest.mark.turns(10)
def test_work_stands_where_the_user_stood(
    spark_session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").write_text("seen")
    monkeypatch.chdir(tmp_path)
    assert list(SparkExecutor(spark_session).map(_read, [Path("here")], weights=[1], what="read")) == ["seen"]


def _read(task: Path) -> str:
    return task.read_text()
