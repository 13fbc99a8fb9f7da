"""The fixture that runs a recorded workload into every crash, and the counts at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import disk
from tests.crash.harness import DEFAULT, LONG, Checker, Report, try_crashes
from tests.crash.recorder import Recording

COUNTS = "crash states"

CrashTest = Callable[[str, Recording[Any], "Checker[Any, Any]"], Report]


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

    The states in which it did not are left below the test's temporary directory, for somebody to look at.
    """

    def run(workload: str, recording: Recording[Any], checker: Checker[Any, Any]) -> Report:
        effort = LONG if request.config.getoption("--long") else DEFAULT
        report = try_crashes(workload, recording, checker, effort)
        record_property(COUNTS, [report.workload, report.moments, report.generated, report.states, report.judged])
        lines = []
        for number, failure in enumerate(report.failures):
            place = tmp_path / f"crash-state-{number}"
            place.mkdir()
            failure.state.write(place)
            lines.append(f"{place.name}: {failure}")
        assert not lines, f"{workload}: a promise was broken\n" + "\n".join(lines)
        return report

    return run


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
