"""How long there is left until a moment that another process was told."""

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from waltzctl.engine import shared_deadline
from waltzctl.engine.shared_deadline import SharedDeadline


class Clocks:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monotonic, self.time = 50.0, 1e9
        monkeypatch.setattr(time, "monotonic", lambda: self.monotonic)
        monkeypatch.setattr(time, "time", lambda: self.time)


def test_on_the_same_machine_nobody_sets_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    moment = SharedDeadline.after(10)
    assert moment.left() == 10
    clocks.monotonic, clocks.time = 57.0, 0.0
    assert moment.left() == 3
    clocks.monotonic = 61.0
    assert moment.left() == 0


def test_on_another_machine_the_time_of_day_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    moment = replace(SharedDeadline.after(10), booted="elsewhere")
    clocks.monotonic, clocks.time = 3.0, 1e9 + 7
    assert moment.left() == 3
    clocks.time = 1e9 - 3600
    assert moment.left() == 10, "no more than there was"
    clocks.time = 1e9 + 11
    assert moment.left() == 0


def test_on_a_machine_whose_clock_is_behind_the_tasks_of_a_process_share_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of a thousand tasks had all of it, until that clock had come to where the other one was."""
    clocks = Clocks(monkeypatch)
    moment = replace(SharedDeadline.after(10), booted="behind")
    clocks.time -= 7200
    assert moment.left() == 10
    for passed, left in ((4, 6), (5, 1), (2, 0)):
        clocks.monotonic += passed
        clocks.time += passed
        assert replace(moment).left() == left


def test_where_it_is_not_known_which_machine_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)

    def unknown() -> str:
        raise FileNotFoundError(Path("/proc"))

    monkeypatch.setattr(shared_deadline, "boot", unknown)
    moment = SharedDeadline.after(10)
    assert moment.booted is None
    clocks.time += 4
    assert moment.left() == 6


@pytest.mark.parametrize("ahead", [-1, 86_400])
def test_a_container_with_a_clock_of_its_own_is_on_the_same_machine(ahead: int) -> None:
    """A time namespace: its monotonic clock is another one, and the start of the machine the same."""
    apart = ["unshare", "--time", f"--monotonic={ahead}"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("this user may make no time namespace")
    program = (
        "from waltzctl.engine.shared_deadline import SharedDeadline as S; import time;"
        " one = S.after(1000); print(repr(one.booted), one.at, time.monotonic())"
    )
    run = subprocess.run([*apart, sys.executable, "-c", program], capture_output=True, text=True, check=True)
    booted, at, its_own = run.stdout.split()
    assert abs(float(its_own) - time.monotonic() - ahead) < 60
    moment = SharedDeadline(1000, booted.strip("'"), float(at), 0.0)
    assert 900 < moment.left() <= 1000


@pytest.mark.parametrize(
    ("offsets", "ahead"),
    [
        ("monotonic           0         0\nboottime            0         0\n", 0.0),
        ("monotonic      -86400 500000000\nboottime            7         0\n", -86399.5),
        ("", 0.0),
        (None, 0.0),
    ],
)
def test_by_how_much_a_container_s_clock_is_ahead(
    monkeypatch: pytest.MonkeyPatch, offsets: str | None, ahead: float
) -> None:
    def read(path: Path) -> str:
        assert str(path) == "/proc/self/timens_offsets"
        if offsets is None:
            raise FileNotFoundError(path)
        return offsets

    monkeypatch.setattr(Path, "read_text", read)
    assert shared_deadline._ahead_of_machine.__wrapped__() == ahead
