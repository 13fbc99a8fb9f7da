"""What inspection says of a directory with a commit journal in force: one finding, and nothing is changed by looking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, digest
from tests.cli.running import invoke
from tests.inspect.helpers import age, run
from tests.journals import COUNT, JOURNALED, Marked, crashed, journaling
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.control_checks import inspect_control
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.spark.record_plan import record_parts
from waltzctl.engine.spark.selection import Selection
from waltzctl.engine.spark.splits import Notice, survey
from waltzctl.formats.control import ControlHeader, Layout

NOTE, DAMAGE, REPAIRABLE = "note", "damage", "repairable"


def pending(findings: list[Finding]) -> list[str]:
    return [str(one.severity) for one in findings if one.code == "journal-pending"]


@pytest.mark.parametrize("layout", list(Layout))
def test_a_crashed_node_leaves_a_note_and_nothing_is_changed_by_looking(tmp_path: Path, layout: Layout) -> None:
    here = crashed(tmp_path, layout)
    age(here.root)
    before = digest(tmp_path)
    findings, summary = run(here.root)
    assert [(one.code, one.severity, one.path) for one in findings] == [("journal-pending", NOTE, here.control)]
    assert (findings[0].offset, findings[0].length, findings[0].partition, findings[0].remedy) == (28, 4, None, None)
    assert str(here.journal) in findings[0].message
    assert summary.exit_status_name == "clean"
    assert digest(tmp_path) == before


def test_a_running_node_is_clean(tmp_path: Path) -> None:
    root = build_directory(tmp_path / "s", {0: 10})
    with journaling(root, tmp_path / "journal"):
        findings, summary = run(root)
        assert (pending(findings), len(findings), summary.exit_status_name) == ([NOTE], 1, "clean")
    assert run(root)[0] == [], "it was closed, and the journal is gone"


def test_a_journal_in_the_directory_itself_is_no_stranger(tmp_path: Path) -> None:
    root = build_directory(tmp_path / "s", {0: 10})
    with journaling(root, root / "journal"):
        (root / "notes").write_text("x")
        assert [one.code for one in run(root)[0]] == ["journal-pending", "unknown-file"]


def state_gone(here: Marked) -> None:
    here.state.unlink()


def state_is_nonsense(here: Marked) -> None:
    here.state.write_text("{")


def of_a_later_version(here: Marked) -> None:
    here.state.write_text(here.state.read_text().replace('"version": 1', '"version": 2'))


def journal_gone(here: Marked) -> None:
    here.journal.unlink()


def its_directory_gone(here: Marked) -> None:
    here.journal.unlink()
    here.journal.parent.rmdir()
    here.journal.parent.write_text("a file now")


def one_kept_for_a_partition(here: Marked) -> None:
    here.state.write_text(here.state.read_text().replace("null", "[0, 1]"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (state_gone, "which names it, is missing"),
        (state_is_nonsense, "cannot be understood"),
        (of_a_later_version, "it is of version 2, and only version 1 is known; use the waltzctl that wrote it"),
        (journal_gone, "that file is not there"),
        (its_directory_gone, "that file is not there"),
        (one_kept_for_a_partition, "those of partitions 0, 1 could not be written back"),
    ],
)
def test_a_journal_that_cannot_be_had_is_damage(tmp_path: Path, change: Callable[[Marked], None], says: str) -> None:
    here = crashed(tmp_path)
    change(here)
    age(here.root)
    (finding,), summary = run(here.root)
    assert (finding.code, finding.severity, summary.exit_status_name) == ("journal-pending", DAMAGE, "damaged")
    assert says in finding.message
    assert "--forget-journal" in finding.message
    status = storage_status(here.root)
    assert [(one.code, one.severity) for one in status.findings] == [("journal-pending", DAMAGE)]


def test_status_dump_and_compare_tell_it_too(tmp_path: Path) -> None:
    here = crashed(tmp_path)
    other = build_directory(tmp_path / "other", {0: COUNT, 1: COUNT}, per_segment=COUNT, size=20)
    assert pending(list(storage_status(here.root).findings)) == [NOTE]
    assert invoke("status", here.root).status == 0
    dumped = invoke("dump", here.root, "--what", "control", "--format", "ndjson")
    assert (dumped.status, [one["code"] for one in dumped.only("finding")]) == (0, ["journal-pending"])
    assert dumped.only("control")[0]["num_partitions"] == 2
    plain = build_directory(tmp_path / "plain", {0: COUNT, 1: COUNT}, per_segment=COUNT, size=20)
    compared = invoke("compare", here.root, other, "--format", "ndjson")
    assert [(one["code"], one["severity"]) for one in compared.only("finding")] == [("journal-pending", NOTE)]
    assert invoke("compare", plain, other).status == 0


READINGS = [("dump",), ("dump", "--what", "segments"), ("dump", "--partition", "1"), ("dump", "--reverse"), ("stats",)]


@pytest.mark.parametrize("reading", READINGS, ids=" ".join)
def test_whoever_reads_records_is_told_that_some_may_be_missing(tmp_path: Path, reading: tuple[str, ...]) -> None:
    """Nobody can say which, so there is no other row that would tell it."""
    here = crashed(tmp_path)

    def told() -> list[str]:
        said = invoke(reading[0], here.root, *reading[1:], "--format", "ndjson").only("finding")
        return [one["severity"] for one in said if one["code"] == "journal-pending"]

    assert told() == [NOTE]
    journal_gone(here)
    assert told() == [DAMAGE]


def planned(root: Path) -> list[str]:
    """What the plan of Spark's records says of the directory as a whole."""
    parts = [part for one in survey([root], Selection()) for part in record_parts(one, Selection(), 1 << 20)]
    return pending([finding for part in parts if isinstance(part, Notice) for finding in part.findings])


def test_so_is_whoever_reads_them_with_spark(tmp_path: Path) -> None:
    here = crashed(tmp_path)
    assert planned(here.root) == [NOTE]
    journal_gone(here)
    assert planned(here.root) == [DAMAGE]


def test_behind_a_running_node_nothing_is_missing_for_readers(tmp_path: Path) -> None:
    root = build_directory(tmp_path / "s", {0: 10})
    with journaling(root, tmp_path / "journal"):
        dumped = invoke("dump", root, "--format", "ndjson")
        assert (dumped.only("finding"), planned(root)) == ([], [])
        (tmp_path / "journal").unlink()
        assert planned(root) == [DAMAGE]


def test_a_control_file_alone_says_no_more_than_its_mark(tmp_path: Path) -> None:
    here = crashed(tmp_path)
    alone = tmp_path / "alone.ctl"
    alone.write_bytes(here.control.read_bytes())
    (finding,) = inspect_control(alone, None).findings
    assert (finding.code, finding.severity) == ("journal-pending", NOTE)


@pytest.mark.parametrize("stored", [-1, -2, -3, -4, 0])
def test_only_a_number_that_is_turned_is_a_mark(tmp_path: Path, stored: int) -> None:
    """-1 would be no partition; the others are marks of 1, 2 and 3 partitions, of which the file has two."""
    here = crashed(tmp_path)
    raw = bytearray(here.control.read_bytes())
    raw[28:32] = stored.to_bytes(4, "big", signed=True)
    here.control.write_bytes(raw)
    age(here.root)
    codes = [str(one.code) for one in run(here.root)[0] if one.path == here.control]
    expected = ["control-file-size"] if stored != -3 else []
    assert codes == expected + (["journal-pending"] if stored in (-2, -3, -4) else [])


@pytest.mark.parametrize(
    ("layout", "gone", "severities"),
    [
        (Layout.RELEASED, False, [REPAIRABLE]),
        (Layout.RELEASED, True, [DAMAGE]),
        (Layout.DOCUMENTED, False, [REPAIRABLE, REPAIRABLE]),
    ],
)
def test_the_release_does_not_open_it(tmp_path: Path, layout: Layout, gone: bool, severities: list[str]) -> None:
    here = crashed(tmp_path, layout)
    if gone:
        here.journal.unlink()
    findings, summary = run(age(here.root), for_released=True)
    refusals = [one for one in findings if one.code.startswith("released-")]
    assert [(one.code, one.severity) for one in refusals] == [("released-refuses", one) for one in severities]
    assert summary.released_starts is False
    assert "commit journal" in refusals[0].message
    assert refusals[0].remedy is None
    if not gone:
        assert here.ids() == list(range(COUNT + JOURNALED))
        if layout is Layout.RELEASED:
            assert run(age(here.root), for_released=True)[1].released_starts is True


def test_a_manifest_holds_across_the_mark(tmp_path: Path) -> None:
    """What was made before a node ran, or of what its crash left, is not contradicted by the mark alone."""
    root = build_directory(tmp_path / "s", {0: 10})
    manifest = tmp_path / "manifest"
    assert invoke("verify", root, "--manifest", manifest).status == 0
    with journaling(root, tmp_path / "journal"):
        seen = invoke("verify", root, "--manifest", manifest)
        assert seen.status == 0
        assert "a commit journal came into force" in seen.out
    assert "manifest-" not in invoke("verify", root, "--manifest", manifest).out
    here, manifest = crashed(tmp_path / "crashed"), tmp_path / "of-a-crash"
    assert invoke("verify", age(here.root), "--manifest", manifest).status == 0
    assert len(here.ids()) == COUNT + JOURNALED
    seen = invoke("verify", here.root, "--manifest", manifest)
    assert seen.status == 0
    assert "the commit journal was written back" in seen.out


def test_the_header_keeps_the_mark_apart_from_the_number() -> None:
    header = ControlHeader(0, 1, KEY, 7)
    turned = replace(header, journaled=True)
    assert ControlHeader.decode(turned.encode()) == turned != header
    assert ControlHeader.decode(turned.encode()).num_partitions == 7
