"""verify --for released against the real release: the same answer whether it starts, and what it dropped had been named."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.golden import GOLDEN
from tests.inspect.helpers import age, run
from tests.interop import storage_variants
from tests.interop.processes import PATIENCE
from tests.interop.released import Java, needs_released
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.inspect.dump import DumpedRecord, dump_records
from waltzctl.engine.inspect.verification import VerifySummary

pytestmark = needs_released

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
WITHOUT_CONTROL_FILE = "lost-control-file"
"""The driver takes cluster key and number of partitions from it."""


def records(storage: Path) -> set[tuple[int | None, int, bytes | None]]:
    """Every record that stands in a segment, whatever its name."""
    every: set[tuple[int | None, int, bytes | None]] = set()
    for path in sorted(storage.glob("*/*.seg")):
        if path.is_file() and path.stat().st_size >= 128:
            found = (one for one in dump_records(path) if isinstance(one, DumpedRecord))
            every |= {(one.partition, one.transaction_id, one.data) for one in found}
    return every


def start(java: Java, tmp_path: Path, directories: Sequence[Path]) -> list[str]:
    """What the release says of each, in order.  It changes them."""
    command = java.command("StartStorage", *directories, log=tmp_path / "log4j")
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=PATIENCE * 10)
    answers = done.stdout.splitlines()
    assert len(answers) == len(directories), done.stderr
    return answers


def judged(storage: Path) -> tuple[VerifySummary, list[Finding]]:
    """The summary of verify, and what it says about the release."""
    findings, summary = run(age(storage), for_released=True, quick=True)
    return summary, [one for one in findings if one.code.startswith("released-")]


def compare(java: Java, tmp_path: Path, directories: Sequence[Path]) -> None:
    ours = [judged(storage) for storage in directories]
    before = [records(storage) for storage in directories]
    wrong = []
    for storage, (summary, findings), held, answer in zip(
        directories, ours, before, start(java, tmp_path, directories), strict=True
    ):
        starts = answer == "starts"
        refusals = [one for one in findings if one.code is Code.RELEASED_REFUSES]
        losses = [
            one for one in findings if one.code is Code.RELEASED_LOSES and "are good and would be gone" in one.message
        ]
        if summary.released_starts is not starts or bool(refusals) is starts:
            wrong.append(f"{storage.name}: {answer}; ours: {[one.message for one in refusals]}")
        elif starts and bool(held - records(storage)) is not bool(losses):
            gone = sorted(number for _, number, _ in held - records(storage))
            wrong.append(f"{storage.name}: gone {gone[:5]}; ours: {[one.message for one in losses]}")
    assert not wrong, "\n".join(wrong)


def test_the_example_directories(java: Java, tmp_path: Path) -> None:
    """And what crashes of the release left, where that is here."""
    sources = [path for path in sorted(FIXTURES.glob("*/storage")) if path.parent.name != WITHOUT_CONTROL_FILE]
    crashed = [] if GOLDEN is None else [path for path in sorted((GOLDEN / "crashed").iterdir()) if path.is_dir()]
    copies = []
    for source in [*sources, *crashed]:
        copy = tmp_path / f"{source.parent.name} {source.name}"
        shutil.copytree(source, copy)
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        copies.append(copy)
    compare(java, tmp_path, copies)


def test_generated_directories(java: Java, tmp_path: Path) -> None:
    """Names, special files, headers, records around every place where a scan may begin, control files, both layouts."""
    compare(java, tmp_path, list(storage_variants.write_all(tmp_path)))


@pytest.mark.parametrize("refused", [True, False])
def test_what_a_command_mends_is_repairable(java: Java, tmp_path: Path, *, refused: bool) -> None:
    """The command that the finding names makes a directory on which the release starts."""
    from tests.cli.running import invoke

    storage = storage_variants.small(tmp_path / "s")
    if refused:
        storage_variants.idx(storage, 0, 10).unlink()
        _, (finding,) = judged(storage)
        assert finding.severity == "repairable"
        assert finding.remedy is not None
        assert invoke(*finding.remedy.split()[1:], "--yes").status == 0
    assert judged(storage)[0].released_starts is True
    assert start(java, tmp_path, [storage]) == ["starts"]
