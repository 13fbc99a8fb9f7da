"""A comparison with a manifest on files of a few bytes: what counts as growth, as another file, as damage."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.builders import KEY, with_marks
from tests.counted import Counted
from tests.inspect.helpers import codes
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, RefusedError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect import digests
from waltzctl.engine.inspect import vouching as vouching_module
from waltzctl.engine.inspect.digests import Digest
from waltzctl.engine.inspect.directory_manifest import Manifest, ManifestFile, ManifestPartition, Signature
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.targets import Scope
from waltzctl.engine.inspect.verification import ManifestRequest
from waltzctl.engine.inspect.vouching import Vouching, listing
from waltzctl.engine.log.view import FileState
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout, initial_control
from waltzctl.formats.segment import index_name, segment_name

CONTROL = replace(
    made := initial_control(Layout.RELEASED, KEY, 3, 1),
    partitions=tuple(
        with_marks(one, session_id=3, low_water_mark=5, local_low_water_mark=5) for one in made.partitions
    ),
)
Files = dict[str, bytes]


def pair(number: int, first: int, data: bytes = b"data") -> Files:
    return {f"{number}/{segment_name(first)}": data, f"{number}/{index_name(first)}": b"index"}


BEFORE: Files = {CONTROL_FILE_NAME: CONTROL.encode(), **pair(0, 0), **pair(0, 10), **pair(1, 0), "notes.txt": b"mine"}


def lay(storage: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (storage / name).parent.mkdir(parents=True, exist_ok=True)
        (storage / name).write_bytes(data)


def manifest_of(files: Mapping[str, bytes], signature: Signature | None = None) -> Manifest:
    named = tuple(
        ManifestFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in sorted(files.items())
    )
    parts = (
        ManifestPartition(0, 0, 19, 3, 5, 5),
        ManifestPartition(1, 0, 9, 3, 5, 5),
        ManifestPartition(2, None, None, 3, 5, 5),
    )
    return Manifest("2026-11-21T08:51:18.000Z", "t", CONTROL.header, CONTROL.layout, parts, named, signature)


def vouching(tmp_path: Path, files: Mapping[str, bytes], key: Path | None = None) -> Vouching:
    """Of a directory `s` with these files; the manifest beside it is that of BEFORE."""
    lay(tmp_path / "s", files)
    (tmp_path / "manifest").write_bytes(manifest_of(BEFORE).encode())
    return opened(tmp_path, key)


def opened(tmp_path: Path, key: Path | None = None) -> Vouching:
    storage = tmp_path / "s"
    scope = Scope(storage, storage / CONTROL_FILE_NAME, whole=True)
    return Vouching(ManifestRequest(tmp_path / "manifest", key, "t"), [scope])


def said(one: Finding, storage: Path) -> tuple[str, str, str, int | None, int | None, int | None]:
    name = Path(one.path).relative_to(storage).as_posix()
    return (
        one.code.value.removeprefix("manifest-"),
        one.severity.value,
        name,
        one.partition,
        one.segment,
        one.transaction_id,
    )


def changed(**changes: bytes | None) -> Files:
    """BEFORE with other files; None: without."""
    return {name: data for name, data in {**BEFORE, **changes}.items() if data is not None}


def control(partition: int, **changes: int) -> bytes:
    infos = tuple(with_marks(one, **changes) if one.partition == partition else one for one in CONTROL.partitions)
    return replace(CONTROL, partitions=infos).encode()


BROKEN = CONTROL.encode()[: Layout.RELEASED.info_offset(1)].ljust(len(CONTROL.encode()), b"\0")
DOCUMENTED = replace(
    other := initial_control(Layout.DOCUMENTED, KEY, 3, 1),
    header=CONTROL.header,
    partitions=tuple(
        with_marks(one, session_id=3, low_water_mark=5, local_low_water_mark=5) for one in other.partitions
    ),
)
LAST, FIRST = f"0/{segment_name(10)}", f"0/{segment_name(0)}"
OTHER_CONTROL = ("differs", "damage", CONTROL_FILE_NAME, None, None, None)
GROWN = ("grown", "note", "0", 0, None, 20)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (BEFORE, []),
        (changed(**{FIRST: None}), [("missing-file", "damage", FIRST, 0, 0, None)]),
        (changed(**{"notes.txt": None}), [("missing-file", "damage", "notes.txt", None, None, None)]),
        (changed(**{FIRST: b"dat"}), [("differs", "damage", FIRST, 0, 0, None)]),
        (changed(**{FIRST: b"datb"}), [("differs", "damage", FIRST, 0, 0, None)]),
        (changed(**{FIRST: b"data!"}), [("differs", "damage", FIRST, 0, 0, None)]),
        (changed(**{LAST: b"dat"}), [("differs", "damage", LAST, 0, 10, None)]),
        (changed(**{LAST: b"datb"}), [("differs", "damage", LAST, 0, 10, None)]),
        (changed(**{LAST: b"data!"}), [GROWN]),
        (changed(**{LAST: b"datb!"}), [("differs", "damage", LAST, 0, 10, None)]),
        (changed(**{f"0/{index_name(10)}": b"index!"}), [GROWN]),
        (changed(**{"notes.txt": b"mine!"}), [("differs", "damage", "notes.txt", None, None, None)]),
        (changed(**{"other.txt": b""}), [("extra-file", "damage", "other.txt", None, None, None)]),
        (changed(**pair(0, 11)), [GROWN]),
        (changed(**{f"1/{segment_name(0)}": b"data!"}), [("grown", "note", "1", 1, None, 10)]),
        (changed(**{f"0/{segment_name(9)}": b""}), [("extra-file", "damage", f"0/{segment_name(9)}", 0, 9, None)]),
        (changed(**{"0/11.seg.tmp": b""}), [("extra-file", "damage", "0/11.seg.tmp", None, None, None)]),
        (changed(**pair(2, 0)), [("grown", "note", "2", 2, None, None)]),
        (changed(**{f"3/{segment_name(0)}": b""}), [("extra-file", "damage", f"3/{segment_name(0)}", 3, 0, None)]),
        (changed(**{f"01/{segment_name(50)}": b""}), [("extra-file", "damage", f"01/{segment_name(50)}", None, None, None)]),
        (changed(**{f"x/{segment_name(50)}": b""}), [("extra-file", "damage", f"x/{segment_name(50)}", None, None, None)]),
        (changed(**{f"\N{SUPERSCRIPT TWO}/{segment_name(50)}": b""}),
            [("extra-file", "damage", f"\N{SUPERSCRIPT TWO}/{segment_name(50)}", None, None, None)]),
        (changed(**{CONTROL_FILE_NAME: control(0, low_water_mark=6)}), [("grown", "note", CONTROL_FILE_NAME, None, None, None)]),
        (changed(**{CONTROL_FILE_NAME: control(2, session_id=4)}), [("grown", "note", CONTROL_FILE_NAME, None, None, None)]),
        (changed(**{CONTROL_FILE_NAME: control(1, low_water_mark=4)}), [OTHER_CONTROL]),
        (changed(**{CONTROL_FILE_NAME: control(1, local_low_water_mark=4)}),
            [OTHER_CONTROL]),
        (changed(**{CONTROL_FILE_NAME: control(1, session_id=2)}), [OTHER_CONTROL]),
        (changed(**{CONTROL_FILE_NAME: control(1, session_id=9, local_low_water_mark=4)}),
            [OTHER_CONTROL]),
        (changed(**{CONTROL_FILE_NAME: CONTROL.encode()[:-1]}), [OTHER_CONTROL]),
        (changed(**{CONTROL_FILE_NAME: BROKEN}), [OTHER_CONTROL]),
        (changed(**{CONTROL_FILE_NAME: replace(CONTROL, header=replace(CONTROL.header, cluster_key=UUID(int=9))).encode()}),
            [OTHER_CONTROL]),
        (changed(**{CONTROL_FILE_NAME: DOCUMENTED.encode().ljust(len(CONTROL.encode()), b"\0")}), [OTHER_CONTROL]),
        (changed(**{CONTROL_FILE_NAME: CONTROL.encode() + b"\0"}), [OTHER_CONTROL]),
        (changed(**{f"{disk.STATE_DIRECTORY}/anything": b""}), []),
        (changed(**{f"0/half{disk.TEMPORARY_SUFFIX}": b""}), []),
        (changed(**{"0/deep/er": b""}), [("extra-file", "damage", "0/deep/er", None, None, None)]),
        (changed(**{f"{disk.STATE_DIRECTORY}/unassigned/1/x": b""}),
            [("extra-file", "damage", f"{disk.STATE_DIRECTORY}/unassigned/1/x", None, None, None)]),
        (changed(**{LAST: b"data!", FIRST: b"", "a": b""}),
            [("differs", "damage", FIRST, 0, 0, None), ("extra-file", "damage", "a", None, None, None), GROWN]),
    ],
)  # fmt: skip
def test_what_is_not_as_the_manifest_says(
    tmp_path: Path, files: Files, told: list[tuple[str, str, str, int | None, int | None, int | None]]
) -> None:
    one = vouching(tmp_path, files)
    assert (one.writing, one.outcome) == (False, "not-compared")
    assert [said(found, tmp_path / "s") for found in one.findings(ReadLimits())] == told
    assert one.outcome == ("differs" if any(severity == "damage" for _, severity, *_ in told) else "matches")


@pytest.mark.parametrize("name", [CONTROL_FILE_NAME, FIRST, LAST, "notes.txt"])
def test_what_goes_away_while_it_is_compared_is_not_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def seen(storage: Path) -> dict[str, FileState]:
        found = listing(storage)
        (storage / name).unlink()
        return found

    one = vouching(tmp_path, BEFORE)
    monkeypatch.setattr(vouching_module, "listing", seen)
    (found,) = one.findings(ReadLimits())
    assert (found.code.value, Path(found.path)) == ("manifest-differs", tmp_path / "s" / name)
    assert "SHA-256 none" in found.message


@pytest.mark.parametrize(("first", "told"), [(9, "extra-file"), (10, "extra-file"), (11, "grown")])
def test_only_what_begins_behind_the_last_segment_is_growth(tmp_path: Path, first: int, told: str) -> None:
    """A file of the last segment itself that the manifest does not name came in its place."""
    known = {name: data for name, data in BEFORE.items() if name != f"0/{index_name(10)}"}
    lay(tmp_path / "s", {**known, f"0/{index_name(first)}": b"index"})
    (tmp_path / "manifest").write_bytes(manifest_of(known).encode())
    (found,) = opened(tmp_path).findings(ReadLimits())
    assert found.code.value == f"manifest-{told}"


def test_links_are_followed_to_a_partition_and_no_deeper(tmp_path: Path) -> None:
    """A partition may lie on another disk; deeper ones could go in a circle."""
    lay(tmp_path / "s", {"0/a": b"1", "b": b"22", "0.x": b""})
    lay(tmp_path / "there", {"c": b"333"})
    (tmp_path / "s" / "1").symlink_to(tmp_path / "there")
    (tmp_path / "s" / "0" / "deep").symlink_to(tmp_path / "there")
    os.mkfifo(tmp_path / "s" / "0" / "pipe")
    os.mkfifo(tmp_path / "s" / "pipe")
    (tmp_path / "s" / "nowhere").symlink_to(tmp_path / "none")
    assert [(name, one.size) for name, one in listing(tmp_path / "s").items()] == [
        ("0.x", 0), ("0/a", 1), ("1/c", 3), ("b", 2)
    ]  # fmt: skip


def test_a_directory_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", closed)
    with pytest.raises(DiskReadError, match=r"list.*Permission denied"):
        listing(tmp_path)


@pytest.mark.parametrize(
    ("name", "size", "hashed"),
    [(segment_name(0), 4, 4), (segment_name(0), 5, 4), (segment_name(0), 3, None), (segment_name(20), 4, None)],
)
def test_as_much_of_a_segment_is_hashed_as_the_manifest_names(
    tmp_path: Path, name: str, size: int, hashed: int | None
) -> None:
    one = vouching(tmp_path, BEFORE)
    job = SegmentJob(tmp_path / "s" / "0", int(name[:-4]), 0, bytes=size)
    assert one.hash_to(job) == hashed
    assert one.other_bytes() == len(CONTROL.encode()) + 3 * len(b"index") + len(b"mine")
    (tmp_path / "manifest").unlink()
    writing = opened(tmp_path)
    assert (writing.writing, writing.outcome, writing.hash_to(job)) == (True, "not-written", size)
    assert list(writing.findings(ReadLimits())) == []
    assert writing.outcome == "not-written"


@pytest.mark.parametrize(("hashed", "again"), [(4, False), (3, True)])
def test_what_was_hashed_while_it_was_checked_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: int, again: bool
) -> None:
    read: list[str] = []

    def digest_file(path: Path, size: int, limits: ReadLimits) -> Digest | None:
        read.append(path.relative_to(tmp_path / "s").as_posix())
        return digests.digest_file(path, size, limits)

    one = vouching(tmp_path, BEFORE)
    digest = Digest(hashed, hashlib.sha256(b"data"[:hashed]).hexdigest())
    one.remember(SegmentReport(SegmentJob(tmp_path / "s" / "0", 0, 0), 0, digest=digest))
    monkeypatch.setattr(vouching_module, "digest_file", digest_file)
    assert list(one.findings(ReadLimits())) == []
    assert read == [name for name in sorted(BEFORE) if again or name != FIRST]


def test_only_the_control_file_may_have_gone_on(tmp_path: Path) -> None:
    """Not a copy of it; what the manifest does not know of a partition is no reason to doubt it."""
    copied = {**BEFORE, "copy": CONTROL.encode()}
    made = manifest_of(copied)
    unmarked = ManifestPartition(2, None, None, None, None, None)
    lay(tmp_path / "s", {**copied, "copy": control(0, low_water_mark=6), CONTROL_FILE_NAME: control(0, session_id=4)})
    (tmp_path / "manifest").write_bytes(replace(made, partitions=(*made.partitions[:2], unmarked)).encode())
    differs, grown = opened(tmp_path).findings(ReadLimits())
    assert (differs.code.value, Path(differs.path).name) == ("manifest-differs", "copy")
    assert (grown.code.value, Path(grown.path).name) == ("manifest-grown", CONTROL_FILE_NAME)
    assert "partition 0, 2 have risen" in grown.message


def test_a_partition_of_which_the_manifest_knows_nothing_may_come(tmp_path: Path) -> None:
    lay(tmp_path / "s", changed(**pair(2, 0)))
    made = manifest_of(BEFORE)
    (tmp_path / "manifest").write_bytes(replace(made, partitions=made.partitions[:2]).encode())
    (found,) = opened(tmp_path).findings(ReadLimits())
    assert (found.code.value, found.partition, found.transaction_id) == ("manifest-grown", 2, None)
    assert "does not vouch for its records" in found.message


def test_nothing_is_hashed_for_a_manifest_that_is_not_believed(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate().public_key()
    (tmp_path / "key").write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    one = vouching(tmp_path, BEFORE, tmp_path / "key")
    assert one.hash_to(SegmentJob(tmp_path / "s" / "0", 0, 0, bytes=4)) is None
    assert codes(one.findings(ReadLimits())) == ["manifest-signature"]


def test_what_is_written_is_what_is_there(tmp_path: Path) -> None:
    lay(tmp_path / "s", BEFORE)
    one = opened(tmp_path)
    for number, first, last in ((0, 0, 9), (0, 10, 19), (1, 0, 9)):
        job = SegmentJob(tmp_path / "s" / str(number), first, number)
        one.remember(SegmentReport(job, first, last_id=last))
    one.remember(SegmentReport(SegmentJob(tmp_path / "s" / "0", 20, 0), 20))
    one.write(ReadLimits())
    assert one.outcome == "written"
    text = (tmp_path / "manifest").read_text()
    expected = manifest_of(BEFORE)
    created = text.partition('"created": "')[2].partition('"')[0]
    assert text == replace(expected, created=created).encode().decode()
    assert text.startswith('{\n "schema": "waltzctl.manifest/1",\n "type": "manifest",\n')
    with pytest.raises(RefusedError, match="somebody made it meanwhile"):
        one.write(ReadLimits())
    (tmp_path / "manifest").unlink()
    (tmp_path / "s" / "b").write_bytes(b"")
    with pytest.raises(RefusedError, match="changed while it was read"):
        one.write(ReadLimits())
    (tmp_path / "s" / "b").rename(tmp_path / "s" / LAST)
    (tmp_path / "s" / FIRST).unlink()
    with pytest.raises(RefusedError, match="changed while it was read"):
        one.write(ReadLimits())


@pytest.mark.parametrize(
    ("harm", "error", "why"),
    [
        (lambda path: None, None, ""),
        (lambda path: (path / "manifest").write_text("{}"), InvalidRequestError, "not a manifest"),
        (lambda path: (path / "manifest").mkdir(), InvalidRequestError, "not a file that can be read"),
    ],
)
def test_where_a_manifest_may_stand(
    tmp_path: Path, harm: Callable[[Path], object], error: type[Exception] | None, why: str
) -> None:
    lay(tmp_path / "s", BEFORE)
    harm(tmp_path)
    if error is None:
        assert opened(tmp_path).writing
        with (
            DirectoryLock.acquire(tmp_path / "s", tmp_path / "s" / CONTROL_FILE_NAME),
            pytest.raises(RefusedError, match="at rest"),
        ):
            opened(tmp_path)
    else:
        with pytest.raises(error, match=why):
            opened(tmp_path)


def test_one_whole_directory_is_asked_for(tmp_path: Path) -> None:
    lay(tmp_path / "s", BEFORE)
    storage, request = tmp_path / "s", ManifestRequest(tmp_path / "manifest")
    whole = Scope(storage, storage / CONTROL_FILE_NAME, whole=True)
    part = Scope(storage, storage / CONTROL_FILE_NAME)
    for scopes in ([], [part], [whole, whole], [whole, part], [part, whole]):
        with pytest.raises(InvalidRequestError, match="one whole storage directory"):
            Vouching(request, scopes)
    assert Vouching(request, [whole]).writing


def test_a_damaged_or_signed_manifest_is_told(tmp_path: Path) -> None:
    text = manifest_of(BEFORE).encode()
    one = vouching(tmp_path, BEFORE)
    (tmp_path / "manifest").write_bytes(text.replace(b'"tool": "t"', b'"tool": "u"'))
    damaged = opened(tmp_path)
    (found,) = damaged.findings(ReadLimits())
    assert (found.code, found.severity, damaged.outcome) == ("manifest-signature", "damage", "not-believed")
    assert (
        found.message
        == "the manifest is damaged: its SHA-256 is not that of its contents; nothing was compared with it"
    )
    (tmp_path / "manifest").write_bytes(manifest_of(BEFORE, Signature("1" * 64, "2" * 128)).encode())
    signed = opened(tmp_path)
    (found,) = signed.findings(ReadLimits())
    assert (found.code, found.severity, signed.outcome) == ("manifest-signature", "note", "matches")
    assert list(one.findings(ReadLimits())) == []


@pytest.mark.parametrize("backwards", [False, True])
def test_the_order_of_names_in_a_manifest_does_not_matter(tmp_path: Path, backwards: bool) -> None:
    lay(tmp_path / "s", changed(**{LAST: b"data!"}))
    made = manifest_of(BEFORE)
    files = made.files[::-1] if backwards else made.files
    (tmp_path / "manifest").write_bytes(replace(made, files=files).encode())
    assert [said(found, tmp_path / "s") for found in opened(tmp_path).findings(ReadLimits())] == [GROWN]


class CountedReports(dict[str, SegmentReport]):
    """Reports that count how often they are looked through."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_many_partitions_are_looked_through_once_and_not_for_each(tmp_path: Path) -> None:
    """When a manifest is written, and when it is compared with a directory in which all of them went on."""
    number = 300
    control = initial_control(Layout.RELEASED, KEY, number, 1)
    files = {CONTROL_FILE_NAME: control.encode()}
    for one in range(number):
        files |= pair(one, 0)
    lay(tmp_path / "s", files)
    writing = opened(tmp_path)
    assert writing.writing
    reports = CountedReports()
    for one in range(number):
        job = SegmentJob(tmp_path / "s" / str(one), 0, one, storage=tmp_path / "s")
        reports[str(one)] = SegmentReport(job, 0, last_id=one)
    writing._reports = reports
    made = writing._make(ReadLimits())
    assert [one.last_transaction_id for one in made.partitions] == list(range(number))
    assert reports.looks <= 3
    (tmp_path / "manifest").write_bytes(made.encode())
    lay(tmp_path / "s", {f"{one}/{segment_name(0)}": b"data and more" for one in range(number)})
    comparing = opened(tmp_path)
    assert comparing._manifest is not None
    counted = Counted(comparing._manifest.partitions)
    comparing._manifest = replace(comparing._manifest, partitions=counted)
    found = [(one.code.value, one.partition, one.transaction_id) for one in comparing.findings(ReadLimits())]
    assert found == [("manifest-grown", one, one + 1) for one in range(number)]
    assert counted.handed <= 3 * number
