"""A directory is backed up while a node writes to it: what the backup holds was there at one moment, and is clean."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path, PurePath
from typing import Any

import pytest

from tests.backup.vaults import PIECE, backup, findings, vault
from tests.builders import build_directory, digest, make_records, write_segment
from waltzctl.engine.backup import backup_creation, section_plan, section_planner, source_files
from waltzctl.engine.backup.backup_restore import restore_backup
from waltzctl.engine.backup.section_plan import SourceChangedError
from waltzctl.engine.backup.source_files import Lack, SourceDirectory
from waltzctl.engine.durable.disk import STATE_DIRECTORY, TEMPORARY_SUFFIX
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.log.access import PlaceKind
from waltzctl.engine.log.view import StorageView
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.storage.store import list_entries
from waltzctl.engine.vault.backed_control import with_infos
from waltzctl.formats.control import decode_control
from waltzctl.formats.segment import HEADER_SIZE

WRITER = Path(__file__).resolve().parents[1] / "inspect" / "live_writer.py"


@pytest.mark.turns(12)
@pytest.mark.parametrize("manner", ["hold", "engine"])
def test_under_a_process_that_appends_and_truncates(
    tmp_path: Path, manner: str, request: pytest.FixtureRequest
) -> None:
    source = build_directory(tmp_path / "source", {0: 30, 1: 30}, per_segment=20, size=40)
    place = vault(tmp_path)
    with subprocess.Popen(
        [sys.executable, str(WRITER), str(source), "2", manner],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as writer:  # fmt: skip
        assert writer.stdout is not None
        assert writer.stdout.readline()
        heads = [backup(place, source) for _ in range(60 if request.config.getoption("--long") else 8)]
        assert writer.poll() is None
        writer.kill()
    assert all(one.live for one in heads)
    assert findings(place) == []
    ends = set()
    for number, head in enumerate(heads):
        target = tmp_path / f"back-{number}"
        restore_backup(place, head.name, target)
        found = [one for one in verify([target]) if isinstance(one, Finding) and one.severity != "note"]
        assert found == [], "what was there at a moment is a clean directory"
        ends.add(tuple(one.last_transaction_id for one in head.partitions))
    assert len(ends) > 1, "it was written to meanwhile"


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that counts as held by a process."""
    monkeypatch.setattr(source_files.places, "lock_holder", lambda *_: 77)
    return build_directory(tmp_path / "source", {0: 100}, size=40)


def test_half_a_record_at_the_end_is_none(tmp_path: Path, held: Path) -> None:
    place = vault(tmp_path)
    last = sorted((held / "0").glob("*.seg"))[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:-1])
    head = backup(place, held)
    assert (head.partitions[0].last_transaction_id, head.damaged) == (98, 0)
    last.write_bytes(whole)
    assert backup(place, held).partitions[0].last_transaction_id == 99


def test_a_segment_that_is_just_begun_is_left_out(tmp_path: Path, held: Path) -> None:
    place = vault(tmp_path)
    (held / "0" / f"{100:019}.idx").write_bytes(b"")
    (held / "0" / f"{100:019}.seg").write_bytes(bytes(HEADER_SIZE - 1))
    restore_backup(place, backup(place, held).name, tmp_path / "back")
    assert not (tmp_path / "back" / "0" / f"{100:019}.seg").exists()
    assert not (tmp_path / "back" / "0" / f"{100:019}.idx").exists()
    write_segment(held / "0", [], first=100)
    restore_backup(place, backup(place, held).name, tmp_path / "again")
    assert (tmp_path / "again" / "0" / f"{100:019}.seg").stat().st_size == HEADER_SIZE


@pytest.mark.parametrize("segment", [0, 50])
def test_other_records_in_the_place_of_those_that_were_read(
    tmp_path: Path, held: Path, monkeypatch: pytest.MonkeyPatch, segment: int
) -> None:
    """A truncation between two readings, and appends that fill the gap exactly: each record is right, the whole never was."""
    place = vault(tmp_path)
    original = backup_creation.check_unchanged
    times = []

    def rewritten_before(*given: object) -> object:
        times.append(1)
        if len(times) == 1:
            kept = make_records(100, size=40)[segment + 32 : segment + 50]  # a piece ends in front of these
            other = [*make_records(32, first=segment, size=40, seed=9), *kept]
            path = write_segment(held / "0", other)
            assert path.stat().st_size == HEADER_SIZE + 50 * 80
        return original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(backup_creation, "check_unchanged", rewritten_before)
    head = backup(place, held)
    assert len(times) == 2, "it was read again"
    restore_backup(place, head.name, tmp_path / "back")
    for path in (held / "0").iterdir():
        assert (tmp_path / "back" / "0" / path.name).read_bytes() == path.read_bytes()
    assert findings(place) == []


def test_a_cut_between_the_listing_and_the_look(tmp_path: Path, held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last segment is shorter when it is scanned, and as long as before when it is read."""
    place = vault(tmp_path)
    last = sorted((held / "0").glob("*.seg"))[-1]
    whole, original = last.read_bytes(), section_planner.summarise_records
    times = []

    def cut_meanwhile(source: object, **given: object) -> object:
        if getattr(source, "name", "") == str(last) and not times:
            times.append(1)
            last.write_bytes(whole[: HEADER_SIZE + 80 * 7])
            yield from original(source, **given)  # type: ignore[arg-type]
            last.write_bytes(whole)
        else:
            yield from original(source, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(section_planner, "summarise_records", cut_meanwhile)
    head = backup(place, held)
    assert times
    assert head.partitions[0].last_transaction_id == 99
    restore_backup(place, head.name, tmp_path / "back")
    assert [one for one in verify([tmp_path / "back"]) if isinstance(one, Finding)] == []


@pytest.mark.turns(8)
def test_what_never_stands_still_is_told(tmp_path: Path, held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = vault(tmp_path)
    seeds = iter(range(100))

    def rewritten_before(*_: object) -> Path:
        return write_segment(held / "0", make_records(50, first=50, size=40, seed=next(seeds)))

    monkeypatch.setattr(backup_creation, "check_unchanged", rewritten_before)
    with pytest.raises(SourceChangedError, match="changed while it was read"):
        backup(place, held)
    assert findings(place) == []
    monkeypatch.undo()
    assert backup(place, held).pages
    assert findings(place) == []


def below_mark(held: Path, *, less: int = 0) -> None:
    """Shorten the log, and by `less` bytes more: it ends below its mark, 49, and did a minute ago."""
    for path in (held / "0").glob(f"{50:019}.*"):
        path.unlink()
    first = held / "0" / f"{0:019}.seg"
    first.write_bytes(first.read_bytes()[: HEADER_SIZE + 80 * 49 - less])
    for path in (*(held / "0").iterdir(), held / "0"):
        os.utime(path, (time.time() - 60,) * 2)


@pytest.mark.turns(8)
@pytest.mark.parametrize("seen_first", [False, True])
def test_a_mark_above_the_end_is_no_moment(
    tmp_path: Path, held: Path, monkeypatch: pytest.MonkeyPatch, seen_first: bool
) -> None:
    """It is so at one reading only: the mark or the log is that of another moment."""
    place, original, first = vault(tmp_path), backup_creation.lacks, held / "0" / f"{0:019}.seg"
    whole, seen = first.read_bytes(), []

    def changing(source: SourceDirectory, partitions: Collection[int]) -> frozenset[Lack]:
        if seen_first and seen:
            first.write_bytes(whole)
        if seen_first and not seen:
            below_mark(held)
        seen.append(original(source, partitions))
        if not seen_first and len(seen) == 1:
            below_mark(held)
        return seen[-1]

    monkeypatch.setattr(backup_creation, "lacks", changing)
    with pytest.raises(SourceChangedError, match="below its mark" if seen_first else "its mark was 49"):
        backup(place, held)
    assert [bool(one) for one in seen] == ([True, False] if seen_first else [False])


def test_an_end_below_the_mark_that_stays_is_damage(tmp_path: Path, held: Path) -> None:
    """Not something to be tried again for ever, while the node serves its other partitions."""
    place = vault(tmp_path)
    below_mark(held)
    head = backup(place, held)
    assert (head.partitions[0].last_transaction_id, head.damaged) == (48, 1)
    assert findings(place) == [], "the vault itself is whole"
    restore_backup(place, head.name, tmp_path / "back")
    found = [one for one in verify([tmp_path / "back"]) if isinstance(one, Finding) and one.severity == "damage"]
    assert [one.code for one in found] == ["acknowledged-missing"]


@pytest.mark.parametrize("left", [0, 50, None])
def test_a_lost_segment_that_was_taken_for_one_in_creation_is_told_later(
    tmp_path: Path, held: Path, left: int | None
) -> None:
    """Nothing changes any more, and yet it is no segment in creation any more."""
    place, segment = vault(tmp_path), held / "0" / f"{50:019}.seg"
    for path in (*(held / "0").iterdir(), held / "0"):
        os.utime(path, (time.time() - 60,) * 2)
    segment.unlink() if left is None else os.truncate(segment, left)
    assert backup(place, held).damaged == 0, "it may be in creation"
    for path in [held / "0", *([] if left is None else [segment])]:
        os.utime(path, (time.time() - 60,) * 2)
    assert [backup(place, held).damaged for _ in range(2)] == [1, 1]


def test_half_a_record_below_the_mark_is_damage(tmp_path: Path, held: Path) -> None:
    place = vault(tmp_path)
    below_mark(held, less=1)
    head = backup(place, held)
    assert (head.partitions[0].last_transaction_id, head.damaged > 0) == (47, True)


@pytest.mark.parametrize("partitions", [11, 12, 60])
def test_marks_that_rise_while_partitions_are_read_are_not_in_the_backup(
    tmp_path: Path, held: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """Whether the control file stands in the section itself, is a piece, or some."""
    assert held.is_dir()
    place, root = vault(tmp_path), build_directory(tmp_path / "many", {0: 30}, num_partitions=partitions)
    control = root / "waltz-storage.ctl"
    before, original = control.read_bytes(), backup_creation.check_unchanged
    assert (len(before) <= section_plan.SMALL, len(before) <= PIECE) == (partitions < 12, partitions < 60)
    raised = with_infos(
        before,
        decode_control(before),
        [one.rewritten(local_low_water_mark=99) for one in decode_control(before).partitions],
    )

    def raised_behind(*given: object) -> object:
        try:
            return original(*given)  # type: ignore[arg-type]
        finally:
            control.write_bytes(raised)

    monkeypatch.setattr(backup_creation, "check_unchanged", raised_behind)
    head = backup(place, root)
    assert control.read_bytes() == raised
    restore_backup(place, head.name, tmp_path / "back")
    assert (tmp_path / "back" / control.name).read_bytes() == before
    monkeypatch.undo()
    assert findings(place) == []


def test_what_lies_beside_the_partitions_is_read_again_when_it_changes(
    tmp_path: Path, held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node writes its own files anew, one beside the other; between the look and the reading all of them may have changed."""
    place, own = vault(tmp_path), held / STATE_DIRECTORY
    (own / "quarantine").mkdir(parents=True)
    (own / "quarantine" / "kept").write_bytes(b"k" * 3000)
    (own / f"marks{TEMPORARY_SUFFIX}").write_bytes(b"half")
    (own / "grows").write_bytes(b"x" * 2000)
    (own / "shrinks").write_bytes(b"x" * 2000)
    original, changes = backup_creation.plan_storage, []

    def changed_behind(*given: object, **named: object) -> object:
        plan = original(*given, **named)  # type: ignore[arg-type]
        changes.append(plan)
        if len(changes) == 1:
            os.replace(own / f"marks{TEMPORARY_SUFFIX}", own / "marks")
            shutil.rmtree(own / "quarantine")
            (own / "shrinks").write_bytes(b"x" * 1500)
            (own / "grows").write_bytes(b"x" * 2500)
            (own / f"fences{TEMPORARY_SUFFIX}").write_bytes(b"half")
        return plan

    monkeypatch.setattr(backup_creation, "plan_storage", changed_behind)
    head = backup(place, held)
    assert len(changes) == 2
    restore_backup(place, head.name, tmp_path / "back")
    expected = digest(held)
    del expected[f"{STATE_DIRECTORY}/fences{TEMPORARY_SUFFIX}"]
    assert digest(tmp_path / "back") == expected
    assert findings(place) == []


@pytest.mark.parametrize(
    ("old", "new", "reading", "in_place"),
    [
        (b"a" * 60, b"b" * 90, 1, False),
        (b"a" * 90, b"b" * 60, 1, False),
        (b"a" * 60, b"b" * 60, 1, False),
        (b"a" * 2000, b"b" * 2400, 1, False),
        (b"a" * 2 * PIECE, b"b" * 2 * PIECE, 2, False),
        (b"a" * 2 * PIECE, b"b" * 3 * PIECE, 2, False),
        (b"a" * 2 * PIECE, b"b" * 2 * PIECE, 2, True),
    ],
    ids=["longer", "shorter", "the same length", "a piece", "two pieces", "two pieces, longer", "rewritten"],
)
def test_a_file_that_is_replaced_while_it_is_read_is_whole(
    tmp_path: Path, held: Path, monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes, reading: int, *, in_place: bool
) -> None:
    """In front of the first, or of a later reading of it."""
    place, file = vault(tmp_path), held / "state"
    file.write_bytes(old)
    os.utime(file, (0, 0))
    original, readings = source_files.places.read_range, []

    def replaced_before(path: Path, offset: int, length: int) -> bytes:
        if path == file:
            readings.append(offset)
            if len(readings) == reading:
                written = file if in_place else tmp_path / "state"
                written.write_bytes(new)
                os.replace(written, file)
        return original(path, offset, length)

    monkeypatch.setattr(source_files.places, "read_range", replaced_before)
    monkeypatch.setattr(backup_creation, "WORKERS", 1)
    head = backup(place, held)
    restore_backup(place, head.name, tmp_path / "back")
    assert (tmp_path / "back" / "state").read_bytes() == new


@pytest.mark.parametrize(
    ("old", "new", "reading"),
    [
        (b"a" * 60, b"b" * 90, 1),
        (b"a" * 90, b"b" * 60, 1),
        (b"a" * 2000, b"b" * 2400, 1),
        (b"a" * 2 * PIECE, b"b" * 2 * PIECE, 2),
    ],
    ids=["longer", "shorter", "a piece", "two pieces"],
)
def test_a_file_that_is_replaced_where_nobody_held_the_directory_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes, reading: int
) -> None:
    """By a node that begins: the backup had the first bytes of the file that it wrote."""
    source, place = build_directory(tmp_path / "source", {0: 30}), vault(tmp_path)
    file = source / ".waltzctl" / "state"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(old)
    original, readings = source_files.places.read_range, []

    def replaced_before(path: Path, offset: int, length: int) -> bytes:
        if path == file:
            readings.append(offset)
            if len(readings) == reading:
                (tmp_path / "state").write_bytes(new)
                os.replace(tmp_path / "state", file)
        return original(path, offset, length)

    monkeypatch.setattr(source_files.places, "read_range", replaced_before)
    monkeypatch.setattr(backup_creation, "WORKERS", 1)
    with pytest.raises(SourceChangedError, match="state: it is another one now"):
        backup(place, source)
    restore_backup(place, backup(place, source).name, tmp_path / "back")
    assert (tmp_path / "back" / ".waltzctl" / "state").read_bytes() == new


def test_a_file_that_is_only_appended_to_is_as_it_was_planned(
    tmp_path: Path, held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that never stands still, as a node's log, is no reason to give up."""
    place, file = vault(tmp_path), held / "log"
    file.write_bytes(b"a" * 2 * PIECE)
    original = source_files.places.read_range

    def appended_before(path: Path, offset: int, length: int) -> bytes:
        if path == file:
            with file.open("ab") as more:
                more.write(b"b")
        return original(path, offset, length)

    monkeypatch.setattr(source_files.places, "read_range", appended_before)
    restore_backup(place, backup(place, held).name, tmp_path / "back")
    assert (tmp_path / "back" / "log").read_bytes() == b"a" * 2 * PIECE


def test_a_node_that_begins_while_its_directory_is_read_is_noticed(tmp_path: Path) -> None:
    """Its recovery puts other records in the place of those that were planned, which would be cut where those were."""
    source, place = build_directory(tmp_path / "source", {0: 100}, size=40), vault(tmp_path)

    class Beginning:
        """A progress with which a node begins when everything is planned."""

        def start(self, what: str, total: int) -> None:
            write_segment(source / "0", make_records(60, first=50, size=70, seed=9), first=50)

        def advance(self, amount: int) -> None:
            """Nothing."""

    with pytest.raises(SourceChangedError, match="it is another one now, and nobody held the directory"):
        backup(place, source, progress=Beginning())
    assert findings(place) == []
    head = backup(place, source)
    restore_backup(place, head.name, tmp_path / "back")
    assert digest(tmp_path / "back") == digest(source)


def test_a_repair_behind_the_reading_of_the_control_file_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup had the marks of before, and not the records that were given up: damaged, and told as whole."""
    source, place = build_directory(tmp_path / "source", {0: 30}, local_low_water_mark=25), vault(tmp_path)
    original = backup_creation.plan_storage

    def truncated_before(*given: object, **named: object) -> object:
        if not list_entries(source):
            apply(plan_truncate(source, partition=0, after=9, allow_data_loss=True), arguments=[])
        return original(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(backup_creation, "plan_storage", truncated_before)
    with pytest.raises(SourceChangedError, match=r"waltz-storage\.ctl: it is another one now"):
        backup(place, source)
    restore_backup(place, backup(place, source).name, tmp_path / "back")
    assert [one for one in verify((tmp_path / "back",)) if isinstance(one, Finding)] == []


def test_a_repair_as_soon_as_the_control_file_was_read_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compared in the end is the file as it was before it was read, and not as it is behind that."""
    source, place = build_directory(tmp_path / "source", {0: 30}, local_low_water_mark=25), vault(tmp_path)
    read = source_files._read_stable

    def read_and_truncated(path: Path) -> bytes:
        content = read(path)
        if not list_entries(source):
            apply(plan_truncate(source, partition=0, after=9, allow_data_loss=True), arguments=[])
        return content

    monkeypatch.setattr(source_files, "_read_stable", read_and_truncated)
    with pytest.raises(SourceChangedError, match=r"waltz-storage\.ctl: it is another one now"):
        backup(place, source)


@pytest.mark.parametrize("live", [True, False])
def test_a_file_that_is_gone_when_its_turn_comes_is_told(
    tmp_path: Path, held: Path, monkeypatch: pytest.MonkeyPatch, *, live: bool
) -> None:
    place, file = vault(tmp_path), held / "notes"
    original = backup_creation.plan_storage

    def gone_behind(*given: object, **named: object) -> object:
        file.write_bytes(b"x" * 2000)
        plan = original(*given, **named)  # type: ignore[arg-type]
        file.unlink()
        return plan

    monkeypatch.setattr(backup_creation, "plan_storage", gone_behind)
    monkeypatch.setattr(backup_creation, "_TRIES", 3)
    if not live:
        monkeypatch.setattr(source_files.places, "lock_holder", lambda *_: None)
    with pytest.raises(SourceChangedError, match=f"{held}: changed while it was read"):
        backup(place, held)
    assert findings(place) == []


def test_a_partition_that_is_made_while_the_source_is_looked_at_is_on_no_disk_that_is_not_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was, as it stood in the second of two listings alone: its link, it was said, leads nowhere."""
    source = build_directory(tmp_path / "s", {0: 5}, num_partitions=3)
    (source / "2").symlink_to(tmp_path / "nowhere")
    listed = source_files.entry_kinds

    def listed_before(path: PurePath) -> dict[str, PlaceKind | None]:
        found = listed(path)
        (source / "1").mkdir(exist_ok=True)
        return found

    monkeypatch.setattr(source_files, "entry_kinds", listed_before)
    assert source_files.look_at(source).unmounted == (2,)


@pytest.mark.parametrize("comes", [False, True], ids=["goes", "comes"])
def test_a_disk_that_goes_or_comes_while_the_source_is_looked_at_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    """Its partition was neither among those that are there nor among those whose links lead nowhere."""
    source = build_directory(tmp_path / "s", {0: 5, 1: 5})
    disk, away = tmp_path / "disk", tmp_path / "away"
    (source / "1").rename(away if comes else disk)
    (source / "1").symlink_to(disk)
    viewed = source_files.view_storage

    def viewed_before(path: PurePath, *given: Any, **named: Any) -> StorageView:
        found = viewed(path, *given, **named)
        away.rename(disk) if comes else disk.rename(away)
        return found

    monkeypatch.setattr(source_files, "view_storage", viewed_before)
    seen = source_files.look_at(source)
    assert (seen.partitions, seen.unmounted) == (((0, 1), ()) if comes else ((0,), (1,)))
