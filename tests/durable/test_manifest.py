"""A manifest is read as if somebody hostile had written it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.repair.trees import contents
from waltzctl.engine.durable.edits import Cut, Remove, Replace
from waltzctl.engine.durable.manifest import MANIFEST, QuarantineEntry, decode_entry, encode_entry
from waltzctl.engine.errors import DamageError, WaltzError
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.store import STATE_FILES, apply_edits, list_entries, roll_back_interrupted


@pytest.fixture
def entry(tmp_path: Path) -> QuarantineEntry:
    root = tmp_path / "storage"
    (root / "0").mkdir(parents=True)
    (root / "waltz-storage.ctl").write_bytes(b"c" * 280)
    for name in "abc":
        (root / "0" / name).write_bytes(name.encode() * 100)
    edits = [Cut(root / "0" / "a", 5), Remove(root / "0" / "b"), Replace(root / "0" / "c", lambda: [b"new"])]
    return apply_edits(root, edits, command="truncate", arguments=["truncate", "é"], plan_hash="ab")


def sealed(body: dict[str, Any]) -> bytes:
    rest = {key: value for key, value in body.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return json.dumps({**rest, "sha256": digest}).encode()


def test_an_entry_reads_back_as_it_was_written(entry: QuarantineEntry) -> None:
    assert decode_entry(encode_entry(entry), entry.path, STATE_FILES) == entry
    assert list_entries(entry.storage) == (entry,)


def test_every_flipped_byte_of_a_manifest_is_noticed(entry: QuarantineEntry) -> None:
    data = encode_entry(entry)
    for place in range(len(data)):
        flipped = data[:place] + bytes([data[place] ^ 0x04]) + data[place + 1 :]
        with contextlib.suppress(ValueError):
            assert decode_entry(flipped, entry.path, STATE_FILES) == entry, "only white space may change unseen"


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_torn_manifest_is_a_clear_error_and_nothing_is_touched(entry: QuarantineEntry, size: int) -> None:
    path = entry.path / MANIFEST
    path.write_bytes(path.read_bytes()[:size])
    before = contents(entry.storage)
    for action in (list_entries, roll_back_interrupted, lambda root: undo(root, None)):
        with pytest.raises(DamageError, match="manifest"):
            action(entry.storage)
    assert contents(entry.storage) == before


def test_a_missing_manifest_never_lets_kept_bytes_be_cleared_away(entry: QuarantineEntry) -> None:
    (entry.path / MANIFEST).unlink()
    with pytest.raises(DamageError, match="missing"):
        roll_back_interrupted(entry.storage)
    assert sorted(path.name for path in entry.path.iterdir()) == ["old-1", "old-2", "range-0"]


def test_a_manifest_that_claims_to_be_unused_does_not_clear_moved_files_away(entry: QuarantineEntry) -> None:
    body = json.loads(encode_entry(entry))
    (entry.path / MANIFEST).write_bytes(sealed({**body, "state": "preparing"}))
    with pytest.raises(DamageError):
        roll_back_interrupted(entry.storage)
    assert (entry.path / "old-1").exists()


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/passwd", "0/../../x", ".waltzctl/lock", "", "0//a", "./a", "0/\0", "..", "0/a/..", "0\\..\\x"],
)
def test_no_path_of_a_manifest_leaves_the_storage_directory(entry: QuarantineEntry, path: str) -> None:
    body = json.loads(encode_entry(entry))
    for hostile in (
        {**body, "files": [{**body["files"][0], "path": path}]},
        {**body, "directories": [path]},
    ):
        with pytest.raises(ValueError, match="path"):
            decode_entry(sealed(hostile), entry.path, STATE_FILES)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("state", "done"),
        ("id", "20200101T000000Z-other"),
        ("number", -1),
        ("number", True),
        ("number", 10**30),
        ("files", {}),
        ("files", [1]),
        ("arguments", [1]),
        ("command", "../x"),
        ("schema", "other/1"),
        ("plan_hash", None),
    ],
)
def test_a_field_of_another_kind_is_refused(entry: QuarantineEntry, change: str, value: object) -> None:
    body = json.loads(encode_entry(entry))
    with pytest.raises(ValueError):  # noqa: PT011  # which one is the parameter
        decode_entry(sealed({**body, change: value}), entry.path, STATE_FILES)
    with pytest.raises(ValueError, match="missing"):
        decode_entry(sealed({key: one for key, one in body.items() if key != change}), entry.path, STATE_FILES)
    with pytest.raises(ValueError, match="not known"):
        decode_entry(sealed({**body, "more": 1}), entry.path, STATE_FILES)


@pytest.mark.parametrize(
    "change",
    [
        {"kept": "../../0/a"},
        {"kept": None},
        {"built": "old-1/../x"},
        {"before": None},
        {"after": {"size": -1, "sha256": "0" * 64, "modified_ns": None}},
        {"after": {"size": 1, "sha256": "xyz", "modified_ns": None}},
        {"ranges": [{"offset": 0, "length": 9, "written": 0}]},
    ],
)
def test_contradictory_files_are_refused(entry: QuarantineEntry, change: dict[str, object]) -> None:
    body = json.loads(encode_entry(entry))
    body["files"][2].update(change)
    with pytest.raises(ValueError):  # noqa: PT011  # which one is the parameter
        decode_entry(sealed(body), entry.path, STATE_FILES)


def test_a_kept_copy_that_was_changed_is_not_put_back(entry: QuarantineEntry) -> None:
    before = contents(entry.storage)
    for name in ("range-0", "old-1"):
        kept = (entry.path / name).read_bytes()
        (entry.path / name).write_bytes(b"X" + kept[1:])
        with pytest.raises(WaltzError):
            undo(entry.storage, None)
        assert contents(entry.storage) == before
        (entry.path / name).write_bytes(kept)
    undo(entry.storage, None)


LEAVES = st.none() | st.booleans() | st.integers() | st.text()
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@pytest.mark.turns(12)
@given(JSON | st.binary())
@settings(max_examples=200)
def test_any_json_and_any_bytes_give_one_kind_of_error(value: object) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    with pytest.raises(ValueError):  # noqa: PT011  # the rule is that there is no other kind
        decode_entry(data, Path("/x/20200101T000000Z-recover"), STATE_FILES)


def test_deep_nesting_is_no_crash() -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # as above
        decode_entry(b"[" * 200_000, Path("/x/20200101T000000Z-recover"), STATE_FILES)


def test_a_checksum_begins_inside_its_file(entry: QuarantineEntry) -> None:
    (cut,) = [file for file in entry.files if file.path == "0/a"]
    assert cut.after is not None
    stamp = replace(cut.after, start=cut.after.size + 1)
    changed = replace(entry, files=tuple(replace(file, after=stamp) if file is cut else file for file in entry.files))
    with pytest.raises(ValueError, match="begins behind the end"):
        decode_entry(encode_entry(changed), entry.path, STATE_FILES)
