"""What a manifest may say, field by field, one step to each side; and what is written reads back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from waltzctl.engine.durable import disk, manifest
from waltzctl.engine.durable.manifest import (
    MANIFEST,
    KeptFile,
    KeptMove,
    KeptRange,
    PartitionLeft,
    QuarantineEntry,
    RepairState,
    Stamp,
    check_move,
    check_name,
    decode_entry,
    encode_entry,
    entry_name_valid,
    locate,
    partitions_of,
    read_entry,
    write_entry,
)
from waltzctl.engine.errors import DamageError, DiskReadError, RefusedError
from waltzctl.engine.findings import Code
from waltzctl.engine.storage.store import STATE_FILES

ONE, OTHER = "1" * 64, "2" * 64
NAME = "20260101T000000Z-recover"
MOVE = KeptMove("3", ".waltzctl/unassigned/3")
IN_PLACE = KeptFile(
    "0/a.seg",
    Stamp(100, ONE, 5, 10),
    Stamp(60, OTHER, None, 10),
    (
        KeptRange(10, 5, 5, "range-0", ONE, "new-1", OTHER),
        KeptRange(60, 40, 0, "range-2", ONE, None, None),
        KeptRange(50, 0, 10, None, None, "new-3", OTHER),
    ),
)
REPLACED = KeptFile("1/b.seg", Stamp(3, ONE, -5), Stamp(4, OTHER, 6), (), "old-4", "new-4")
REMOVED = KeptFile("waltz-storage.ctl", Stamp(3, ONE, 5), None, (), "old-5", None)
MADE = KeptFile("2/c.seg", None, Stamp(0, ONE, 5), (), None, "new-6")
ENTRY = QuarantineEntry(
    NAME,
    7,
    "recover",
    ("recover", "é"),
    "2026-01-01T00:00:00.000Z",
    "ff",
    RepairState.APPLIED,
    Path("/s/.waltzctl/quarantine") / NAME,
    (IN_PLACE, REPLACED, REMOVED, MADE),
    ("2",),
    (MOVE,),
    (PartitionLeft(0, (3, 5, -1), (("a.seg", 60), ("b.idx", 0))), PartitionLeft(2, None, ())),
)


def body_of(entry: QuarantineEntry = ENTRY) -> dict[str, Any]:
    found = json.loads(encode_entry(entry))
    assert isinstance(found, dict)
    return found


def sealed(body: dict[str, Any]) -> bytes:
    rest = {key: value for key, value in body.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return json.dumps({**rest, "sha256": digest}).encode()


def decoded(entry: QuarantineEntry) -> QuarantineEntry:
    return decode_entry(encode_entry(entry), entry.path, STATE_FILES)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"moves": ()},
        {"partitions": None},
        {"partitions": ()},
        {"files": ()},
        {"directories": (), "arguments": ()},
        *({"state": state} for state in RepairState),
        {"number": 0},
        {"number": 2**63 - 1},
        {"plan_hash": "x" * 200},
        {"created": "x" * 40},
    ],
)
def test_an_entry_reads_back(changes: dict[str, Any]) -> None:
    entry = replace(ENTRY, **changes)
    assert decoded(entry) == entry
    body = body_of(entry)
    assert ("moves" in body) == bool(entry.moves)
    assert ("partitions" in body) == (entry.partitions is not None)
    assert entry.storage == Path("/s")


def test_how_it_is_written() -> None:
    data = encode_entry(ENTRY)
    body = body_of()
    assert data == json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"
    assert body["files"][0]["before"] == {"size": 100, "sha256": ONE, "modified_ns": 5, "start": 10}
    assert body["files"][1]["before"] == {"size": 3, "sha256": ONE, "modified_ns": -5}
    assert body["files"][0]["ranges"][2] == {
        "offset": 50, "length": 0, "written": 10, "kept": None, "kept_sha256": None, "built": "new-3", "built_sha256": OTHER,
    }  # fmt: skip
    assert body["moves"] == [{"path": "3", "target": ".waltzctl/unassigned/3"}]
    assert body["partitions"] == [
        {"partition": 0, "marks": [3, 5, -1], "files": {"a.seg": 60, "b.idx": 0}},
        {"partition": 2, "marks": None, "files": {}},
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"plan_hash": "x" * 201}, "plan_hash is not valid"),
        ({"created": "x" * 41}, "created is not valid"),
        ({"number": 2**63}, "number is not a valid number"),
        ({"number": -1}, "number is not a valid number"),
        ({"type": "other"}, "type is not valid"),
        ({"schema": "other"}, "schema is not valid"),
        ({"arguments": ["a", 1]}, "arguments and directories must be texts"),
        ({"directories": ["a", None]}, "arguments and directories must be texts"),
        ({"directories": ["a", "../b"]}, "does not stay inside"),
        ({"more": 1}, "more is not known"),
        ({"state": "done"}, "done"),
        ({"moves": [{"path": "3", "target": ".waltzctl/unassigned/4"}]}, "never moves"),
        ({"moves": [{"path": "3", "target": ".waltzctl/unassigned/3", "more": 1}]}, "more is not known"),
        ({"partitions": [{"partition": 0, "marks": [3, 5], "files": {}}]}, "files or marks are not valid"),
        ({"partitions": [{"partition": 0, "marks": [3, 5, 1, 1], "files": {}}]}, "files or marks are not valid"),
        ({"partitions": [{"partition": 0, "marks": [3, 5, True], "files": {}}]}, "files or marks are not valid"),
        ({"partitions": [{"partition": 0, "marks": [3, "5", 1], "files": {}}]}, "files or marks are not valid"),
        ({"partitions": [{"partition": 0, "marks": [3, 5, 1], "files": None}]}, "files or marks are not valid"),
        ({"partitions": [{"partition": 0, "marks": None, "files": {"../x": 1}}]}, "does not stay inside"),
        ({"partitions": [{"partition": 0, "marks": None, "files": {"x": -1}}]}, "is not a valid number"),
        ({"partitions": [{"partition": 0, "marks": None, "files": {}, "more": 1}]}, "more is not known"),
    ],
)
def test_what_an_entry_may_not_say(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode_entry(sealed({**body_of(), **changes}), ENTRY.path, STATE_FILES)


def with_file(*files: KeptFile) -> QuarantineEntry:
    return replace(ENTRY, files=files)


def ranges(*found: KeptRange, start: int = 10, size: int = 100) -> KeptFile:
    """A file of which these ranges change; their copies have names of their own."""
    named = tuple(
        replace(one, kept=one.kept and f"range-{at}", built=one.built and f"new-{at}") for at, one in enumerate(found)
    )
    return replace(IN_PLACE, before=Stamp(size, ONE, 5, start), after=Stamp(60, OTHER, None, start), ranges=named)


def cut(offset: int, length: int) -> KeptRange:
    return KeptRange(offset, length, 0, "range-0", ONE, None, None)


def new(offset: int, written: int) -> KeptRange:
    return KeptRange(offset, 0, written, None, None, "new-0", ONE)


@pytest.mark.parametrize(
    "file",
    [
        ranges(cut(10, 5), cut(15, 5)),
        ranges(cut(15, 5), cut(10, 5)),
        ranges(cut(10, 90)),
        ranges(cut(99, 1)),
        ranges(new(100, 50)),
        ranges(new(10, 5), new(15, 5)),
        ranges(cut(0, 100), start=0),
        replace(IN_PLACE, before=Stamp(100, ONE, None, 10)),
        replace(MADE, after=Stamp(5, ONE, 5, 5)),
        REMOVED,
        replace(REMOVED, path=sorted(STATE_FILES)[0]),
    ],
)
def test_files_that_agree_with_themselves(file: KeptFile) -> None:
    assert decoded(with_file(file)).files == (file,)


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (ranges(cut(10, 6), cut(15, 5)), "ranges overlap"),
        (ranges(cut(15, 5), cut(10, 6)), "ranges overlap"),
        (ranges(new(10, 6), cut(15, 5)), "ranges overlap"),
        (ranges(cut(9, 5)), "the checksums do not cover what was changed"),
        (ranges(cut(20, 5), cut(9, 5)), "the checksums do not cover what was changed"),
        (ranges(cut(10, 91)), "a range lies beyond the file"),
        (ranges(cut(20, 5), cut(100, 1)), "a range lies beyond the file"),
        (replace(IN_PLACE, after=Stamp(60, OTHER, None, 9)), "the checksums do not cover what was changed"),
        (replace(IN_PLACE, after=Stamp(60, OTHER, None, 11)), "the checksums do not cover what was changed"),
        (replace(IN_PLACE, before=None), "an edit in place needs a file before and after"),
        (replace(IN_PLACE, after=None), "an edit in place needs a file before and after"),
        (replace(IN_PLACE, kept="old-9"), "an edit in place needs a file before and after"),
        (replace(IN_PLACE, built="new-9"), "an edit in place needs a file before and after"),
        (replace(REPLACED, before=None), "states and copies do not agree"),
        (replace(REPLACED, after=None), "states and copies do not agree"),
        (replace(REPLACED, kept=None), "states and copies do not agree"),
        (replace(REPLACED, built=None), "states and copies do not agree"),
        (replace(REPLACED, before=None, after=None, kept=None, built=None), "states and copies do not agree"),
        (replace(REPLACED, kept="range-4x"), "kept is not valid"),
        (replace(REPLACED, built="../x"), "built is not valid"),
        (replace(MADE, after=Stamp(5, ONE, 5, 6)), "a checksum begins behind the end of its file"),
        (replace(MADE, after=Stamp(5, ONE[1:], 5)), "sha256 is not valid"),
        (replace(REMOVED, path=".waltzctl/lock"), "which no repair touches"),
        (replace(IN_PLACE, ranges=(KeptRange(60, 0, 0, "range-0", ONE, None, None),)), "lengths and copies"),
        (replace(IN_PLACE, ranges=(KeptRange(60, 4, 0, None, None, None, None),)), "lengths and copies"),
        (replace(IN_PLACE, ranges=(KeptRange(60, 0, 4, None, None, None, None),)), "lengths and copies"),
        (replace(IN_PLACE, ranges=(KeptRange(60, 4, 0, "range-0", ONE, "new-0", ONE),)), "lengths and copies"),
        (replace(IN_PLACE, ranges=(KeptRange(60, 4, 0, "range-0", None, None, None),)), "copies and checksums"),
        (replace(IN_PLACE, ranges=(KeptRange(60, 0, 4, None, ONE, "new-0", ONE),)), "copies and checksums"),
        (replace(IN_PLACE, ranges=(KeptRange(60, 0, 4, None, None, "new-0", None),)), "copies and checksums"),
        (replace(IN_PLACE, ranges=(KeptRange(60, 4, 0, "range-0", ONE, None, ONE),)), "copies and checksums"),
    ],
)
def test_files_that_contradict_themselves(file: KeptFile, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decoded(with_file(file))


@pytest.mark.parametrize(
    "files",
    [
        (REMOVED, replace(REMOVED, kept="old-9")),
        (REMOVED, replace(REMOVED, path="0/x")),
        (MADE, replace(REPLACED, built="new-6")),
        (MADE, ranges(KeptRange(60, 0, 4, None, None, "new-0", ONE)), replace(MADE, path="0/y", built="new-0")),
    ],
)
def test_no_file_and_no_copy_is_named_twice(files: tuple[KeptFile, ...]) -> None:
    with pytest.raises(ValueError, match="a file or a copy is named twice"):
        decoded(with_file(*files))


def test_further_keys_of_files_and_ranges_are_not_known() -> None:
    for change in (
        lambda body: body["files"][0].update(more=1),
        lambda body: body["files"][0]["ranges"][0].update(more=1),
        lambda body: body["files"][0]["before"].update(more=1),
    ):  # type: Callable[[dict[str, Any]], None]
        body = body_of()
        change(body)
        with pytest.raises(ValueError, match="more is not known"):
            decode_entry(sealed(body), ENTRY.path, STATE_FILES)


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "target", "allowed"),
    [
        ("3", ".waltzctl/unassigned/3", True),
        (".waltzctl/unassigned/3", "3", True),
        ("0", ".waltzctl/unassigned/0", True),
        ("03", ".waltzctl/unassigned/03", False),
        ("3", ".waltzctl/unassigned/4", False),
        ("3", ".waltzctl/deleting/3", False),
        ("3", "3", False),
        ("x", ".waltzctl/unassigned/x", False),
        (".waltzctl/unassigned/3", ".waltzctl/unassigned/3", False),
        ("12345678901", ".waltzctl/unassigned/12345678901", False),
    ],
)
def test_where_directories_move(path: str, target: str, allowed: bool) -> None:
    if allowed:
        assert check_move(path, target) == KeptMove(path, target)
        assert KeptMove(path, target).partition == int(path.rpartition("/")[2])
    else:
        with pytest.raises(ValueError, match="a directory never moves from"):
            check_move(path, target)


def test_names_of_our_own_state() -> None:
    for name in (*STATE_FILES, "waltz-storage.ctl", "0/a.seg", "a..b/.c", "0/.waltzctl"):
        assert check_name(name, STATE_FILES) == name
    with pytest.raises(ValueError, match=r"lies in \.waltzctl"):
        check_name(sorted(STATE_FILES)[0], ())
    with pytest.raises(ValueError, match=r"lies in \.waltzctl"):
        check_name(".waltzctl", STATE_FILES)


def test_no_link_is_followed(tmp_path: Path) -> None:
    storage = tmp_path / "s"
    (storage / "0").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (storage / "out").symlink_to(tmp_path / "other")
    (storage / "inside").symlink_to(storage / "0")
    (storage / "0" / "link").symlink_to(storage / "0" / "file")
    assert locate(storage, "0/file") == storage / "0" / "file"
    assert locate(storage, "7/file") == storage / "7" / "file"
    assert locate(storage, "inside/file") == storage / "inside" / "file"
    (storage / "circle").symlink_to("circle")
    assert locate(storage, "circle/file") == storage / "circle" / "file"
    for name in ("out/file", "0/link", "out"):
        with pytest.raises(RefusedError, match="a symbolic link leads out of"):
            locate(storage, name)


def test_partitions_by_the_places_of_files() -> None:
    def named(*names: str, directories: tuple[str, ...] = (), moves: tuple[KeptMove, ...] = ()) -> frozenset[int]:
        files = tuple(replace(REMOVED, path=name) for name in names)
        return partitions_of(replace(ENTRY, files=files, directories=directories, moves=moves))

    assert named("0/a", "7/b", "7/c", "waltz-storage.ctl", "5", ".waltzctl/x", "x/y", "²/z") == {0, 7}
    assert named(directories=("4", "x")) == {4}
    assert named("1/a", moves=(MOVE, KeptMove(".waltzctl/unassigned/9", "9"))) == {1, 3, 9}
    assert named() == frozenset()


def test_names_of_entries() -> None:
    for name in (NAME, f"{NAME}-2", f"{NAME}-123456"):
        assert entry_name_valid(name)
    for name in ("", NAME[:-8], f"x{NAME}", f"{NAME}-1234567", f"{NAME}.tmp"):
        assert not entry_name_valid(name)


def test_why_a_repair_cannot_be_taken_back() -> None:
    assert RepairState.PRUNED.why_final == "what this repair kept was pruned, so it cannot be taken back any more"
    assert RepairState.UNDONE.why_final == "this repair was taken back already (undone)"


# --- times, which are whatever somebody gave a file -------------------------------------------------------------------

END_OF_TIME = 2**63 * 10**9
"""Nanoseconds; the seconds that 64 bits hold."""


@pytest.mark.parametrize("which", ["before", "after"])
@pytest.mark.parametrize(
    ("modified_ns", "accepted"),
    [
        (2**63 - 1, True),
        (2**63, True),  # on 2262-04-11
        (-(2**63) - 1, True),
        (END_OF_TIME - 1, True),
        (END_OF_TIME, False),
        (-END_OF_TIME, True),
        (-END_OF_TIME - 1, False),
    ],
)
def test_every_time_that_the_system_knows_is_one(which: str, modified_ns: int, accepted: bool) -> None:
    before, after = REPLACED.before, REPLACED.after
    assert before is not None
    assert after is not None
    changed = {"before": before, "after": after}
    changed[which] = replace(changed[which], modified_ns=modified_ns)
    entry = with_file(replace(REPLACED, **changed))
    if accepted:
        assert decoded(entry) == entry
    else:
        with pytest.raises(ValueError, match="modified_ns is not a valid number"):
            decoded(entry)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"number": 2**63}, "number is not a valid number"),
        ({"files": (replace(REPLACED, before=Stamp(3, ONE, END_OF_TIME)),)}, "modified_ns is not a valid number"),
        ({"files": (REPLACED, REPLACED)}, "named twice"),
    ],
)
def test_a_manifest_that_would_not_be_read_is_not_written(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    """And the one that is there stays."""
    entry = replace(ENTRY, path=tmp_path / NAME, files=(MADE,))
    entry.path.mkdir()
    write_entry(entry)
    with pytest.raises(RefusedError, match=f"not written, as it could not be read again: .*{why}"):
        write_entry(replace(entry, **changes))
    assert read_entry(entry.path, STATE_FILES) == entry
    assert [one.name for one in entry.path.iterdir()] == [MANIFEST]


def test_a_manifest_that_is_too_long_to_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = replace(ENTRY, path=tmp_path / NAME)
    entry.path.mkdir()
    size = len(encode_entry(entry))
    monkeypatch.setattr(manifest, "_LIMIT", size - 2)  # a line's end closes it, which may be missing
    with pytest.raises(RefusedError, match="could not be read again"):
        write_entry(entry)
    assert not (entry.path / MANIFEST).exists()
    monkeypatch.setattr(manifest, "_LIMIT", size - 1)
    write_entry(entry)
    assert read_entry(entry.path, STATE_FILES) == entry


@pytest.mark.parametrize("name", sorted(STATE_FILES))
def test_a_manifest_may_name_what_a_store_lets_a_repair_change_of_our_state(tmp_path: Path, name: str) -> None:
    entry = replace(ENTRY, path=tmp_path / NAME, files=(replace(MADE, path=name),))
    entry.path.mkdir()
    write_entry(entry)
    assert read_entry(entry.path, STATE_FILES) == entry


# --- a directory without a usable manifest ------------------------------------------------------------------------


def test_an_entry_that_was_just_begun_is_none(tmp_path: Path) -> None:
    place = tmp_path / NAME
    place.mkdir()
    assert read_entry(place, STATE_FILES) is None
    (place / f"{MANIFEST}{disk.TEMPORARY_SUFFIX}").write_bytes(b"{")
    assert read_entry(place, STATE_FILES) is None
    (place / "range-0").write_bytes(b"")
    with pytest.raises(DamageError, match="not a usable manifest: the manifest is missing") as caught:
        read_entry(place, STATE_FILES)
    (found,) = caught.value.findings
    assert (found.code, found.path, found.remedy) == (Code.REPAIR_INTERRUPTED, place, None)
    (place / MANIFEST).write_bytes(encode_entry(replace(ENTRY, path=place)))
    assert read_entry(place, STATE_FILES) == replace(ENTRY, path=place)
    (place / MANIFEST).unlink()
    (place / MANIFEST).mkdir()
    with pytest.raises(DiskReadError):
        read_entry(place, STATE_FILES)
    with pytest.raises(ValueError, match="nested too deeply"):
        decode_entry(b"[" * 200_000, place, STATE_FILES)
    with pytest.raises(ValueError, match="its SHA-256 is not that of its contents"):
        decode_entry(json.dumps({**body_of(), "number": 8}).encode(), ENTRY.path, STATE_FILES)
