"""The fixture that runs a recorded workload into every crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.conftest import COUNTS
from tests.crash.harness import LONG, Checker, Effort, Report, effort_of, try_crashes
from tests.crash.recorder import Recording
from tests.turns import TODAY
from waltzctl.engine.durable import disk


class CrashTest(Protocol):
    """See `survive`."""

    def __call__(
        self, workload: str, recording: Recording[Any], checker: Checker[Any, Any], effort: Effort | None = None, /
    ) -> Report: ...


@pytest.fixture(autouse=True)
def _the_same_in_every_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times stand in headers and in names of the quarantine; with a clock that stands still, a failure comes again."""
    monkeypatch.setattr(disk, "now_ms", lambda: 1_700_000_500_000)
    yield
    disk.observer = None


@pytest.fixture
def survive(
    record_property: Callable[[str, object], None], request: pytest.FixtureRequest, tmp_path: Path
) -> CrashTest:
    """``survive(workload, recording, checker)`` fails unless every crash of the workload leaves what was promised.

    With an `effort` that one is made instead of the run's.

    The states in which it did not are left below the test's temporary directory, for somebody to look at.
    """

    def run(
        workload: str, recording: Recording[Any], checker: Checker[Any, Any], effort: Effort | None = None, /
    ) -> Report:
        given = request.config.getoption("--crash-seed")
        effort = effort or (
            LONG if request.config.getoption("--long") else effort_of(TODAY if given is None else given)
        )
        report = try_crashes(workload, recording, checker, effort)
        record_property(COUNTS, [report.workload, report.moments, report.generated, report.states, report.judged])
        lines = []
        for number, failure in enumerate(report.failures):
            place = tmp_path / f"crash-state-{number}"
            place.mkdir()
            failure.state.write(place)
            lines.append(f"{place.name}: {failure}")
        assert not lines, f"{workload}: a promise was broken; again with --crash-seed {effort.seed}\n" + "\n".join(
            lines
        )
        return report

    return run
