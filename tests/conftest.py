"""What every test shares: the flag for long variants, and the counts of crash states at the end of the run."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol  # as pytest-rerunfailures takes it
from hypothesis import settings

from tests.descriptors import open_descriptors
from tests.turns import waiting
from tests.zookeeper import zookeeper

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""NumPy's linear algebra starts a thread for each processor in each process that imports it, and nothing here multiplies
matrices; each of them is busy for longer than the import takes.  What the tests start inherits this."""

for _name in [one for one in os.environ if one.startswith("WALTZCTL_")]:
    del os.environ[_name]
"""What a shell says to the program is not meant for its tests: they would change the cluster of ``WALTZCTL_METADATA``."""

settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
"""No example has a time limit: what else a machine does at the moment is not the matter of a test."""

__all__ = ["zookeeper"]

COUNTS = "crash states"
"""Property of a test's report: what the crash harness counted.  It is summed up here, because only this file is loaded by the
process that prints the summary when tests run in several."""


SHARED_MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""Bytes that must be free in shared memory for the tests' files to go there; a run leaves a small part of it."""


def _into_memory() -> None:
    """Let `tmp_path` lie in shared memory, where thousands of syncs wait for no disk.

    Unless somebody chose a place, or there is little room.  Durability is the simulated disk's matter (tests/crash); kills of
    real processes need a system that goes on, not a disk.  Its name is short, as those of sockets have to be.
    """
    with contextlib.suppress(OSError):
        free = os.statvfs(SHARED_MEMORY)
        if free.f_bavail * free.f_frsize >= ROOM:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHARED_MEMORY))


def _in_memory(path: str) -> bool:
    """Whether a directory lies on a file system without a disk, by the table of mounts; the longest mount point counts."""
    kinds = {"/": ""}
    with contextlib.suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
        kinds |= {fields[1]: fields[2] for fields in (line.split() for line in mounts) if len(fields) > 2}
    real = Path(path).resolve()
    return kinds[max((one for one in kinds if real.is_relative_to(one)), key=len)] in ("tmpfs", "ramfs")


_FAILED = pytest.StashKey[bool]()
_COUNTER = itertools.count()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember of a test whether a phase of it failed."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


_VARIABLES = pytest.StashKey[dict[str, str]]()
_OF_THE_RUN = ("PYTEST_", "SPARK_", "PYSPARK_", "JAVA_", "PYTHONPATH")
"""How the names of variables begin that stay set: what pytest says, and what a session of Spark starts its processes with."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember the environment as it was in front of a test."""
    item.stash[_VARIABLES] = dict(os.environ)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """A test that leaves the environment changed fails: a cache that was nowhere had half a run compile anew, unseen."""
    ended = yield
    before, now = item.stash[_VARIABLES], dict(os.environ)
    changed = {name for name, _ in before.items() ^ now.items() if not name.startswith(_OF_THE_RUN)}
    assert not changed, f"{item.nodeid} left these variables of the environment changed: {', '.join(sorted(changed))}"
    return ended


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """In one of several processes tell of a test only what is counted, and what went wrong.

    That a test begins, is set up, is torn down and ends are four messages more to the process that prints: half a millisecond
    of each of the two.
    """
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


_LETTING_GO_SECONDS = 10.0
"""How long a thread that ends may still hold the error that it handed on, and with it what the error's frames refer to."""


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """As pytest's own: a directory of the test alone, which stays only where it failed.

    pytest finds a number for each by looking at all names so far, among them a link for each function that had one; with
    thousands of tests that is a millisecond of every one.
    """
    name = re.sub(r"\W", "_", request.node.name)[:30]
    place = tmp_path_factory.getbasetemp() / f"{name}{next(_COUNTER)}"
    place.mkdir(0o700)
    yield place
    if not request.node.stash.get(_FAILED, False):
        shutil.rmtree(place, ignore_errors=True)
        left, deadline = _open_below(place), time.monotonic() + _LETTING_GO_SECONDS
        generations = itertools.chain((0, 1), itertools.repeat(2))  # the last one is half a second's work
        while (
            left and time.monotonic() < deadline
        ):  # held by a traceback, which refers to itself, or by a thread that ends
            gc.collect(next(generations))
            time.sleep(0.01)
            left = _open_below(place)
        assert not left, f"{request.node.nodeid} left files open: {', '.join(sorted(left))}"


def _open_below(place: Path) -> list[str]:
    """The files below a directory that this process has open."""
    return [one for one in open_descriptors().values() if one.startswith(f"{place}/")]


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A directory that does not lie in memory, for what is about the system's cache or the pace of a disk."""
    above = next((one for one in (tempfile.gettempdir(), "/var/tmp") if not _in_memory(one)), None)
    if above is None:
        pytest.skip("the directories for temporary files lie in memory, and this is about a disk")
    with tempfile.TemporaryDirectory(prefix="waltzctl-", dir=above) as place:
        yield Path(place)


def pytest_configure(config: pytest.Config) -> None:
    """A shell that starts a job in the background lets it ignore Ctrl-C and Ctrl-\\.

    Every process that the tests start inherits that.
    """
    if threading.current_thread() is threading.main_thread():
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, usual)
    _into_memory()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Without the garbage collector: what is collected stays to the end, and to look at it took a sixth of the time."""
    gc.disable()
    try:
        _begin_with_modules_of_its_own(session)
        return (yield)
    finally:
        gc.enable()


def _begin_with_modules_of_its_own(session: pytest.Session) -> None:
    """Let each of several processes begin elsewhere.

    All of them collect all tests.  Where nothing is compiled yet, each would rewrite the assertions of every module at the same
    time as the others do; so each finds what the others have done already.
    """
    told = getattr(session.config, "workerinput", None)
    if told is None or session.config.args != session.config.getini("testpaths"):
        return
    number, count = int(told["workerid"].removeprefix("gw")), told["workercount"]
    root = Path(__file__).parents[1]
    modules = sorted(root.glob("tests/**/test_*.py"))
    for path in modules[number * len(modules) // count : (number + 1) * len(modules) // count]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # which the collection meets again, and tells
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Tests are handed out in portions (`tests.portions`) where groups stay together, as `make test` wants it."""
    if config.getoption("dist") != "loadgroup":
        return None
    from tests.portions import Portions  # only where pytest-xdist is there

    return Portions(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the thorough variants that take minutes")
    parser.addoption(
        "--every-turn", action="store_true", help="also run what comes on other days, without those variants"
    )
    parser.addoption(
        "--crash-seed", type=int, help="the seed that a crash test named when it failed; otherwise the day's"
    )


LONGEST_VALUE = 80
"""Characters or bytes of a value that a test's name has in full; some values are files of megabytes."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A name with the length of a long value: names travel between processes and into the environment of commands."""
    if isinstance(val, str | bytes) and len(val) > LONGEST_VALUE:
        return f"{argname} of {len(val)}"
    return None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the garbage collector pass over what was collected, and see that groups stay together.

    The tests, and the modules they stand in, remain to the end: walked again and again they cost a twelfth of the run.
    Tests that share a Spark session or a cluster run in one process; otherwise each process would start its own.
    """
    gc.collect()
    gc.freeze()
    if not getattr(session.config.option, "loadgroup", False):
        return
    for item in session.items:
        mark = item.get_closest_marker("xdist_group")
        if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
            raise pytest.UsageError(f"{item.nodeid} does not stay in its group: pytest-xdist does not know this pytest")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without ``--long`` the thorough variants are no part of the run, nor what comes on another day unless it was named.

    To skip thousands one by one takes its time as well.
    """
    if config.getoption("--long"):
        return
    everything = config.getoption("--every-turn") or any("::" in one for one in config.args)
    left = {item for item in items if item.get_closest_marker("long")} | (set() if everything else waiting(items))
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows: dict[str, list[int]] = {}
    for reports in terminalreporter.stats.values():
        for one in reports:
            for name, value in getattr(one, "user_properties", []) if getattr(one, "when", "") == "call" else []:
                if name == COUNTS:
                    workload, *numbers = value
                    total = rows.setdefault(workload, [0] * len(numbers))
                    rows[workload] = [a + b for a, b in zip(total, numbers, strict=True)]
    if not rows:
        return
    terminalreporter.section("crash states")
    rows = dict(sorted(rows.items()))
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    terminalreporter.line(f"{'workload':44} {'moments':>8} {'generated':>10} {'distinct':>9} {'judged':>8}")
    for workload, (moments, generated, states, judged) in rows.items():
        terminalreporter.line(f"{workload:44} {moments:8,} {generated:10,} {states:9,} {judged:8,}")
