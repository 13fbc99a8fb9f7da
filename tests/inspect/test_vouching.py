"""The manifest of a directory: a copy proves itself, whatever else has another byte does not."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.builders import build_directory, digest, make_records, write_segment
from tests.inspect.helpers import age, codes, cut, flip, idx, run, seg
from tests.storage.support import put_aside_behind_a_link, unexaminable
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, RefusedError, WaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect import split_segments, verify, vouching
from waltzctl.engine.inspect.directory_manifest import (
    DamagedManifestError,
    Manifest,
    NoManifestError,
    decode_manifest,
)
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.verification import ManifestRequest, VerifyOptions, VerifySummary
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.formats.control import CONTROL_FILE_NAME, CONTROL_HEADER, Layout

LAYOUTS = pytest.mark.parametrize("layout", list(Layout))


@pytest.fixture(params=list(Layout))
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = build_directory(
        tmp_path / "node",
        {0: 30, 2: 12},
        layout=request.param,
        per_segment=10,
        local_low_water_mark=5,
        num_partitions=4,
    )
    return age(path)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return tmp_path / "node.manifest"


def check(
    path: Path, manifest: Path, key: Path | None = None, **options: object
) -> tuple[list[Finding], VerifySummary]:
    return run(path, manifest=ManifestRequest(manifest, key), **options)


def written(path: Path, manifest: Path, key: Path | None = None) -> Manifest:
    findings, summary = check(path, manifest, key)
    assert (findings, summary.manifest, summary.complete) == ([], "written", True)
    return decode_manifest(manifest.read_bytes())


def copied(path: Path, target: Path) -> Path:
    shutil.copytree(path, target, copy_function=shutil.copy2)
    return target


def test_every_file_is_named_with_its_hash_and_nothing_of_the_directory_is_changed(
    storage: Path, manifest: Path
) -> None:
    before = digest(storage)
    made = written(storage, manifest)
    assert {one.name: one.sha256 for one in made.files} == before == digest(storage)
    assert {one.name: one.size for one in made.files} == {name: (storage / name).stat().st_size for name in before}
    assert [(one.first_transaction_id, one.last_transaction_id, one.marks) for one in made.partitions] == [
        (0, 29, (3, 5, 5)), (None, None, (-1, -1, -1)), (0, 11, (3, 5, 5)), (None, None, (-1, -1, -1)),
    ]  # fmt: skip
    assert str(storage).encode() not in manifest.read_bytes()
    assert manifest.stat().st_mode & 0o111 == 0


def test_a_copy_proves_itself_wherever_it_lies(storage: Path, manifest: Path, tmp_path: Path) -> None:
    written(storage, manifest)
    there = tmp_path / "other" / "place"
    there.parent.mkdir()
    storage.rename(there)
    text = manifest.read_bytes()
    findings, summary = check(there, manifest)
    assert (findings, summary.manifest, summary.exit_status_name) == ([], "matches", "clean")
    assert manifest.read_bytes() == text


def test_a_partition_that_lies_on_another_disk_is_named(storage: Path, manifest: Path, tmp_path: Path) -> None:
    before = digest(storage)
    (storage / "0").rename(tmp_path / "disk")
    (storage / "0").symlink_to(tmp_path / "disk")
    assert {one.name: one.sha256 for one in written(storage, manifest).files} == before


def test_our_own_state_is_left_out_but_for_partitions_that_were_put_aside(tmp_path: Path, manifest: Path) -> None:
    path = build_directory(tmp_path / "s", {0: 30, 1: 10}, layout=Layout.DOCUMENTED, local_low_water_mark=5)
    with StorageDirectory.open(path) as opened:
        opened.unassign(1, delete_files=False)
    names = {one.name for one in written(age(path), manifest).files}
    assert {name for name in names if name.startswith(disk.STATE_DIRECTORY)} == {
        f".waltzctl/unassigned/1/0000000000000000000.{suffix}" for suffix in ("seg", "idx")
    }
    flip(path / ".waltzctl/unassigned/1/0000000000000000000.seg", 200)
    findings, _ = check(path, manifest)
    assert codes(findings) == ["manifest-differs"]


def test_a_partition_that_was_put_aside_on_another_disk_is_named(tmp_path: Path, manifest: Path) -> None:
    """It was left out, and the manifest matched when it was gone."""
    path = build_directory(tmp_path / "s", {0: 30, 1: 10}, layout=Layout.DOCUMENTED, local_low_water_mark=5)
    put_aside_behind_a_link(path, tmp_path / "disk", 1)
    names = {one.name for one in written(path, manifest).files}
    aside = {f".waltzctl/unassigned/1/0000000000000000000.{suffix}" for suffix in ("seg", "idx")}
    assert {name for name in names if name.startswith(disk.STATE_DIRECTORY)} == aside
    (tmp_path / "disk").rename(tmp_path / "away")
    findings, summary = check(path, manifest)
    assert codes(findings) == ["manifest-missing-file"] * 2
    assert summary.manifest == "differs"


def test_no_manifest_leaves_out_what_is_put_aside_on_a_disk_that_is_not_mounted(tmp_path: Path, manifest: Path) -> None:
    """It was written without the files, and everything was well; with the disk back, the directory differed."""
    path = build_directory(tmp_path / "s", {0: 30, 1: 10}, layout=Layout.DOCUMENTED, local_low_water_mark=5)
    put_aside_behind_a_link(path, tmp_path / "disk", 1)
    data = tmp_path / "disk" / "1" / seg(path, 1, 0).name
    data.rename(tmp_path / "data")
    data.symlink_to(tmp_path / "data")
    for gone in (tmp_path / "data", tmp_path / "disk"):
        gone.rename(tmp_path / "away")
        with pytest.raises(RefusedError, match="leads nowhere"):
            check(path, manifest)
        assert not manifest.exists()
        (tmp_path / "away").rename(gone)
    assert f".waltzctl/unassigned/1/{data.name}" in {one.name for one in written(path, manifest).files}


def test_what_is_put_aside_on_a_disk_that_is_gone_for_good_is_given_up_as_the_advice_says(
    tmp_path: Path, manifest: Path
) -> None:
    """Without the link to its directory a partition that has marks is one that belongs to this node, and is lost."""
    path = build_directory(tmp_path / "s", {0: 30, 1: 10}, layout=Layout.DOCUMENTED, local_low_water_mark=5)
    put_aside_behind_a_link(path, tmp_path / "disk", 1)
    aside, data = path / ".waltzctl" / "unassigned" / "1", tmp_path / "disk" / "1" / seg(path, 1, 0).name
    data.unlink()
    data.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RefusedError, match="leads nowhere") as refused:
        check(path, manifest)
    assert "or remove the link, if" in (refused.value.advice or "")
    (tmp_path / "disk").rename(tmp_path / "away")
    with pytest.raises(RefusedError, match="leads nowhere") as refused:
        check(path, manifest)
    assert "or put an empty directory in the link's place, if" in (refused.value.advice or "")
    aside.unlink()
    aside.mkdir()
    written(path, manifest)
    findings, summary = check(path, manifest)
    assert (codes(findings), summary.manifest) == ([], "matches")


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO])
def test_what_is_put_aside_and_cannot_be_examined_is_not_told_as_gone(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """The advice was to remove the link if what it led to is meant to be gone: it is there."""
    path = build_directory(tmp_path / "s", {0: 30, 1: 10}, layout=Layout.DOCUMENTED, local_low_water_mark=5)
    with StorageDirectory.open(path) as opened:
        opened.unassign(1, delete_files=False)
    data = path / ".waltzctl" / "unassigned" / "1" / seg(path, 1, 0).name
    data.rename(tmp_path / "data")
    data.symlink_to(tmp_path / "data")
    examine = os.stat

    def failing(place: Any, **named: Any) -> os.stat_result:
        if not isinstance(place, int) and os.fspath(place) == str(data) and named.get("follow_symlinks", True):
            raise OSError(error, os.strerror(error), str(data))
        return examine(place, **named)

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(DiskReadError, match=f"{data}: cannot examine: {os.strerror(error)}"):
        check(path, manifest)
    assert not manifest.exists()


def lose(storage: Path) -> None:
    seg(storage, 0, 10).unlink()


def lose_index(storage: Path) -> None:
    idx(storage, 2, 10).unlink()


def lose_control(storage: Path) -> None:
    (storage / CONTROL_FILE_NAME).unlink()


def lose_partition(storage: Path) -> None:
    shutil.rmtree(storage / "2")


def other_records(storage: Path) -> None:
    """Right in themselves, and others than before: verify alone has nothing to say."""
    write_segment(storage / "0", make_records(10, first=10, seed=1))


def one_bit_of_data(storage: Path) -> None:
    flip(seg(storage, 0, 0), 180)


def one_bit_of_an_index(storage: Path) -> None:
    flip(idx(storage, 0, 10), 140)


def reserved_byte(storage: Path) -> None:
    """Nothing but the manifest tells that it is not as it was; verify calls it a note."""
    flip(seg(storage, 2, 0), 100)


def shorter(storage: Path) -> None:
    cut(seg(storage, 2, 10), seg(storage, 2, 10).stat().st_size - 1)


def longer_in_the_middle(storage: Path) -> None:
    with seg(storage, 0, 10).open("ab") as file:
        file.write(make_records(1, first=20)[0].encode())


def extra(storage: Path) -> None:
    (storage / "0" / "notes.txt").write_text("mine")


def extra_in_front(storage: Path) -> None:
    shutil.copy(idx(storage, 2, 10), idx(storage, 2, 5))


def lower_mark(storage: Path) -> None:
    control = build_directory(
        storage.parent / "lower", {0: 30, 2: 12}, per_segment=10, local_low_water_mark=4, num_partitions=4,
        layout=Layout.RELEASED if (storage / CONTROL_FILE_NAME).stat().st_size == 128 + 4 * 76 else Layout.DOCUMENTED,
    )  # fmt: skip
    shutil.copy(control / CONTROL_FILE_NAME, storage)


def other_file(storage: Path) -> None:
    """A control file with another time of creation: another node's, though its marks are these."""
    flip(storage / CONTROL_FILE_NAME, CONTROL_HEADER.offset_of("created") + 7)


def other_cluster(storage: Path) -> None:
    flip(storage / CONTROL_FILE_NAME, 20)


EXPECTED = [
    (lose, "manifest-missing-file", "0/0000000000000000010.seg"),
    (lose_index, "manifest-missing-file", "2/0000000000000000010.idx"),
    (lose_control, "manifest-missing-file", CONTROL_FILE_NAME),
    (lose_partition, "manifest-missing-file", "2/0000000000000000000.seg"),
    (other_records, "manifest-differs", "0/0000000000000000010.seg"),
    (one_bit_of_data, "manifest-differs", "0/0000000000000000000.seg"),
    (one_bit_of_an_index, "manifest-differs", "0/0000000000000000010.idx"),
    (reserved_byte, "manifest-differs", "2/0000000000000000000.seg"),
    (shorter, "manifest-differs", "2/0000000000000000010.seg"),
    (longer_in_the_middle, "manifest-differs", "0/0000000000000000010.seg"),
    (extra, "manifest-extra-file", "0/notes.txt"),
    (extra_in_front, "manifest-extra-file", "2/0000000000000000005.idx"),
    (lower_mark, "manifest-differs", CONTROL_FILE_NAME),
    (other_cluster, "manifest-differs", CONTROL_FILE_NAME),
    (other_file, "manifest-differs", CONTROL_FILE_NAME),
]
HARMS = [harm for harm, _, _ in EXPECTED]


@pytest.mark.parametrize(
    ("harm", "code", "name"),
    EXPECTED,
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_whatever_is_not_as_it_was_is_damage(
    storage: Path, manifest: Path, tmp_path: Path, harm: Callable[[Path], None], code: str, name: str
) -> None:
    written(storage, manifest)
    copy = copied(storage, tmp_path / "copy")
    harm(copy)
    findings, summary = check(age(copy), manifest)
    assert (summary.manifest, summary.exit_status_name) == ("differs", "damaged")
    named = {
        (one.code.value, Path(one.path).relative_to(copy).as_posix()) for one in findings if "manifest" in one.code
    }
    assert (code, name) in named


# --- a directory that went on ------------------------------------------------------------------------------------------


def go_on(storage: Path, count: int, *, threshold: int = 1 << 30) -> None:
    with StorageDirectory.open(storage, options=StorageOptions(segment_size_threshold=threshold)) as opened:
        for number in (0, 2):
            partition = opened.partition(number)
            first = partition.max_transaction_id + 1
            for record in make_records(count, first=first, partition=number):
                partition.append([record])
            partition.set_low_water_mark(4, partition.max_transaction_id)
    age(storage)


@pytest.mark.parametrize(("count", "threshold"), [(1, 1 << 30), (9, 400)])
def test_what_went_on_being_written_matches_and_says_so(
    storage: Path, manifest: Path, count: int, threshold: int
) -> None:
    written(storage, manifest)
    go_on(storage, count, threshold=threshold)
    findings, summary = check(storage, manifest)
    assert (summary.manifest, summary.exit_status_name) == ("matches", "clean")
    assert [(one.code.value, one.severity.value, one.partition, one.transaction_id) for one in findings] == [
        ("manifest-grown", "note", None, None), ("manifest-grown", "note", 0, 30), ("manifest-grown", "note", 2, 12)
    ]  # fmt: skip


def test_what_was_there_before_is_still_proven_when_it_has_grown(storage: Path, manifest: Path) -> None:
    written(storage, manifest)
    go_on(storage, 3)
    flip(seg(storage, 2, 10), 20)  # the time in the header, which nothing else vouches for
    findings, summary = check(storage, manifest)
    assert summary.manifest == "differs"
    assert [one.path for one in findings if one.code == "manifest-differs"] == [seg(storage, 2, 10)]


def test_a_partition_that_came_since_is_growth(storage: Path, manifest: Path) -> None:
    written(storage, manifest)
    with StorageDirectory.open(storage) as opened:
        opened.assign(1)
    findings, summary = check(age(storage), manifest)
    assert summary.manifest == "matches"
    assert {(one.code.value, one.partition) for one in findings} >= {("manifest-grown", 1)}


# --- when it is written, and when not ------------------------------------------------------------------------------------


def test_a_directory_that_is_not_clean_gets_no_manifest(storage: Path, manifest: Path) -> None:
    idx(storage, 0, 10).unlink()
    findings, summary = check(age(storage), manifest)
    assert (codes(findings), summary.manifest, summary.exit_status_name) == (
        ["index-missing"],
        "not-written",
        "repairable",
    )
    assert not manifest.exists()


def test_a_directory_that_a_process_holds_gets_none_and_can_be_compared(storage: Path, manifest: Path) -> None:
    with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):
        with pytest.raises(RefusedError, match="at rest"):
            check(storage, manifest)
        assert not manifest.exists()
    written(age(storage), manifest)
    with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):
        assert check(storage, manifest)[1].manifest == "matches"


def comes(storage: Path) -> None:
    (storage / "3").mkdir()
    (storage / "3" / "note").write_text("came while it was read")


def touched(storage: Path) -> None:
    """As after a record that was replaced by another one of the same length."""
    os.utime(seg(storage, 0, 10))


@pytest.mark.parametrize("change", [comes, touched])
def test_a_directory_that_changes_meanwhile_gets_none(
    storage: Path, manifest: Path, change: Callable[[Path], None]
) -> None:
    stream = verify.verify([storage], VerifyOptions(manifest=ManifestRequest(manifest)))
    change(storage)
    *_, summary = [next(stream)]
    with pytest.raises(RefusedError, match="changed while it was read"):
        next(stream)
    assert isinstance(summary, VerifySummary)
    assert (summary.manifest, manifest.exists()) == ("not-written", False)


def test_a_directory_that_goes_at_the_end_gets_none(
    storage: Path, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = vouching.Vouching.write

    def moved_and_written(one: vouching.Vouching, limits: ReadLimits) -> None:
        storage.rename(tmp_path / "moved")
        write(one, limits)

    monkeypatch.setattr(vouching.Vouching, "write", moved_and_written)
    with pytest.raises(RefusedError, match="changed while it was read"):
        list(verify.verify([storage], VerifyOptions(manifest=ManifestRequest(manifest))))
    assert not manifest.exists()


def test_an_interrupt_leaves_no_file(storage: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path, parts: bytes) -> None:
        with disk.replacing(path) as file:
            file.write_at(0, parts[:100])
            raise KeyboardInterrupt

    monkeypatch.setattr(disk, "write_whole", interrupted)
    _, summary = check(storage, manifest)
    assert (summary.exit_status_name, summary.manifest) == ("interrupted", "not-written")
    assert list(manifest.parent.iterdir()) == [storage]


def test_time_that_is_over_leaves_no_file_and_compares_nothing(storage: Path, manifest: Path) -> None:
    _, summary = check(storage, manifest, max_duration=0)
    assert (summary.complete, summary.manifest, manifest.exists()) == (False, "not-written", False)
    written(storage, manifest)
    _, summary = check(storage, manifest, max_duration=0)
    assert (summary.complete, summary.manifest) == (False, "not-compared")


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
def test_a_manifest_that_cannot_be_examined_is_not_replaced_by_one_of_what_is_there_now(
    storage: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Not either where it can be examined again before the verification ends."""
    written(storage, manifest)
    before = manifest.read_bytes()
    with StorageDirectory.open(storage) as opened:
        opened.partition(0).append(make_records(1, first=30))
    for times in (*range(1, 8), 1 << 30):
        with monkeypatch.context() as patch:
            unexaminable(patch, manifest, error=error, times=times)
            with contextlib.suppress(DiskReadError):
                assert check(storage, manifest)[1].manifest == "matches"
        assert manifest.read_bytes() == before


def test_it_never_lies_inside_and_never_replaces_another_file(storage: Path, manifest: Path) -> None:
    with pytest.raises(InvalidRequestError, match="lies inside"):
        check(storage, storage / "manifest")
    manifest.write_text('{"mine": true}')
    with pytest.raises(InvalidRequestError, match="not a manifest"):
        check(storage, manifest)
    assert manifest.read_text() == '{"mine": true}'
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(InvalidRequestError, match="not a file"):
        check(storage, manifest)
    with pytest.raises(InvalidRequestError, match="no directory"):
        check(storage, manifest.parent / "nowhere" / "m")


@pytest.mark.parametrize(
    "options",
    [{"quick": True}, {"sample": 0.5}, {"partitions": [0]}, {"resume": Path("state")}],
    ids=lambda one: next(iter(one)),
)
def test_what_leaves_something_unread_is_refused(storage: Path, manifest: Path, options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="hash of every file"):
        check(storage, manifest, **options)


def test_it_takes_exactly_one_storage_directory(storage: Path, manifest: Path, tmp_path: Path) -> None:
    other = copied(storage, tmp_path / "other")
    for paths in ([storage, other], [storage / "0"], [storage / CONTROL_FILE_NAME], [seg(storage, 0, 0)]):
        with pytest.raises(InvalidRequestError, match="one whole storage directory"):
            run(*paths, manifest=ManifestRequest(manifest))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_hashes_do_not_depend_on_how_it_was_read(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Segments large enough for threads, and for the parts of one that several threads read."""
    monkeypatch.setattr(verify, "_WORTH_THREADS", 1000)
    monkeypatch.setattr(verify, "PART", 2000)
    monkeypatch.setattr(split_segments, "PART", 2000)
    storage = age(build_directory(tmp_path / "s", {0: 300, 1: 50}, per_segment=100, size=100))
    before = digest(storage)
    findings, summary = check(storage, manifest, threads=threads)
    assert (findings, summary.manifest) == ([], "written")
    assert {one.name: one.sha256 for one in decode_manifest(manifest.read_bytes()).files} == before


# --- the manifest itself -------------------------------------------------------------------------------------------------


def test_every_bit_of_a_manifest_counts(storage: Path, manifest: Path) -> None:
    made = written(storage, manifest)
    data = manifest.read_bytes()
    assert made.encode() == data
    for place in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 1
        try:
            assert decode_manifest(bytes(damaged)) == made, "only white space may differ"
        except (DamagedManifestError, NoManifestError):
            continue
    for size in range(0, len(data) - 2, 97):
        with pytest.raises((DamagedManifestError, NoManifestError)):
            decode_manifest(data[:size])


def test_a_damaged_manifest_is_damage_and_compares_nothing(storage: Path, manifest: Path) -> None:
    written(storage, manifest)
    text = manifest.read_text()
    manifest.write_text(text.replace('"size": 528', '"size": 529', 1) if '"size": 528' in text else text[:-30])
    findings, summary = check(storage, manifest)
    assert [(one.code.value, one.severity.value) for one in findings] == [("manifest-signature", "damage")]
    assert (summary.manifest, summary.exit_status_name) == ("not-believed", "damaged")


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return make_keys(tmp_path / "key")


def make_keys(stem: Path) -> tuple[Path, Path]:
    private = Ed25519PrivateKey.generate()
    pem, public = stem.with_suffix(".pem"), stem.with_suffix(".pub")
    pem.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    public.write_bytes(
        private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return pem, public


def test_who_has_the_public_key_believes_what_was_signed(
    storage: Path, manifest: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    written(storage, manifest, keys[0])
    for key in keys:
        findings, summary = check(storage, manifest, key)
        assert (findings, summary.manifest) == ([], "matches")
    findings, summary = check(storage, manifest)
    assert [(one.code.value, one.severity.value) for one in findings] == [("manifest-signature", "note")]
    assert summary.manifest == "matches"
    _, other = make_keys(tmp_path / "other")
    findings, summary = check(storage, manifest, other)
    assert [(one.code.value, one.severity.value) for one in findings] == [("manifest-signature", "damage")]
    assert (summary.manifest, summary.exit_status_name) == ("not-believed", "damaged")
    assert "another key" in findings[0].message


def test_a_manifest_that_was_made_anew_by_somebody_else_is_found_out(
    storage: Path, manifest: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    """Every checksum right, the signature taken from the true one."""
    private, public = keys
    true = written(storage, manifest, private)
    flip(seg(storage, 2, 0), 100)
    forged = tmp_path / "forged"
    check(storage, forged)
    made = decode_manifest(forged.read_bytes())
    taken = Manifest(made.created, made.tool, made.header, made.layout, made.partitions, made.files, true.signature)
    for bad, why in ((made, "not signed"), (taken, "not that of its contents")):
        forged.write_bytes(bad.encode())
        assert check(storage, forged)[1].manifest == "matches"
        findings, summary = check(storage, forged, public)
        assert (summary.manifest, summary.exit_status_name) == ("not-believed", "damaged")
        assert why in next(one.message for one in findings if one.code == "manifest-signature")


def test_keys_that_cannot_be_used_are_told_apart(
    storage: Path, manifest: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = keys
    with pytest.raises(InvalidRequestError, match="public key, which cannot sign"):
        check(storage, manifest, public)
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    pkcs8 = serialization.PrivateFormat.PKCS8
    odd = tmp_path / "odd"
    locked = Ed25519PrivateKey.generate().private_bytes(encoding, pkcs8, serialization.BestAvailableEncryption(b"x"))
    for data, why in (
        (b"hello", "no key in PEM form"),
        (private.read_bytes()[:60], "no key in PEM form"),
        (ec.generate_private_key(ec.SECP256R1()).private_bytes(encoding, pkcs8, plain), "not an Ed25519 key"),
        (locked, "has a password"),
    ):
        odd.write_bytes(data)
        with pytest.raises(InvalidRequestError, match=why):
            check(storage, manifest, odd)
    with pytest.raises(InvalidRequestError, match="no such file"):
        check(storage, manifest, tmp_path / "nothing")
    assert not manifest.exists()


def test_the_signature_can_be_checked_without_this_program(
    storage: Path, manifest: Path, keys: tuple[Path, Path]
) -> None:
    """As docs/schemas describes it."""
    written(storage, manifest, keys[0])
    document = json.loads(manifest.read_text())
    seal = document.pop("signature")
    del document["sha256"]
    signed = b"waltzctl.manifest/1 signature\n" + json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    key = serialization.load_pem_public_key(keys[1].read_bytes())
    key.verify(bytes.fromhex(seal["signature"]), signed)  # type: ignore[union-attr, call-arg]


def test_a_repair_is_seen(storage: Path, manifest: Path) -> None:
    """What a repair changed on purpose is no longer what the manifest vouched for."""
    from waltzctl.engine.repair.apply import apply
    from waltzctl.engine.repair.truncate import plan_truncate

    written(storage, manifest)
    apply(plan_truncate(storage, partition=0, after=17), arguments=[])
    findings, summary = check(age(storage), manifest)
    assert summary.manifest == "differs"
    assert {"manifest-missing-file", "manifest-differs"} <= set(codes(findings))
    assert not plan_recover(storage).plan.steps


def test_a_file_that_cannot_be_read_is_named(storage: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(storage, manifest)
    original = os.open

    def failing(path: str | Path, flags: int, *more: int) -> int:
        if Path(path) == idx(storage, 0, 10):
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, flags, *more)

    monkeypatch.setattr(os, "open", failing)
    findings, summary = check(storage, manifest)
    assert set(codes(findings)) == {"read-error"}
    assert summary.manifest == "differs"


def test_errors_of_writing_come_behind_the_summary(
    storage: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, parts: bytes) -> None:
        raise RefusedError("no room")

    monkeypatch.setattr(disk, "write_whole", full)
    stream = verify.verify([storage], VerifyOptions(manifest=ManifestRequest(manifest)))
    assert isinstance(next(stream), VerifySummary)
    with pytest.raises(WaltzError, match="no room"):
        next(stream)
