"""Storages behind URLs: an S3-compatible server on the loopback, read in ranges, with the findings of the same files on disk."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tests.backup.vaults import backup, restored, vault
from tests.builders import build_directory, digest
from tests.cli.running import invoke
from waltzctl.engine.errors import InvalidRequestError, NotWaltzError, UnavailableError
from waltzctl.engine.inspect.dump import dump_records, dump_segments
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.verify import VerifySummary, verify
from waltzctl.engine.log import places
from waltzctl.engine.log.access import PlaceKind
from waltzctl.engine.log.local_access import FILES
from waltzctl.engine.log.places import (
    access,
    exists,
    file_numbers,
    is_directory,
    kinds,
    listing,
    local,
    names,
    on_this_machine,
    open_source,
    place,
    read_range,
)
from waltzctl.engine.log.url_access import LARGE, URLS, UrlSource, file_system
from waltzctl.engine.log.url_path import UrlPath
from waltzctl.engine.log.view import read_header_of, read_segment_header, view_storage
from waltzctl.engine.vault.vault_path import VaultPath

fsspec = pytest.importorskip("fsspec", reason="the extra 'spark' is not installed")
CORPUS = sorted(Path("fixtures").resolve().glob("*/storage"))
FEW = {"flipped-bit", "lost-segment"}
"""Those of them that are gone through by default."""


def test_each_kind_of_place_is_read_in_its_own_way() -> None:
    from waltzctl.engine.vault.vault_access import VAULTS

    ways = [
        access(one)
        for one in (Path("d"), PurePosixPath("d"), place("s3://bucket/d"), VaultPath.of(Path("v"), "latest"))
    ]
    assert ways == [FILES, FILES, URLS, VAULTS]


@pytest.mark.parametrize(
    ("scheme", "advice"), [("hdfs", "hdfs needs a Hadoop client"), ("s3", "does the file system answer")]
)
def test_what_reads_a_kind_of_url_is_advised_where_it_fails(
    scheme: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no library\nand a trace")

    monkeypatch.setattr("fsspec.core.url_to_fs", fails)
    with pytest.raises(UnavailableError, match=f"{scheme} URLs cannot be read here: no library; {advice}"):
        file_system(UrlPath(f"{scheme}://made-up-{scheme}/d"))


def test_when_names_of_a_directory_changed_is_told_where_the_system_tells(tmp_path: Path) -> None:
    os.utime(tmp_path, ns=(5, 7_000_000_001))
    assert places.directory_modified_ns(tmp_path) == 7_000_000_001
    assert places.directory_modified_ns(place("s3://made-up-order/d")) is None


def test_names_come_in_their_order_whatever_the_system_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", lambda _: ["b", "c", "a"])
    assert list(names(tmp_path)) == ["a", "b", "c"]


@dataclass(frozen=True)
class Bucket:
    """A bucket of a server, and what the server was asked for."""

    options: dict[str, str]
    log: list[str]

    def put(self, name: str, path: Path) -> Path:
        """Copy a tree there."""
        self.file_system.put(str(path), f"bucket/{name}", recursive=True)
        self.log.clear()
        return place(f"s3://bucket/{name}", self.options)

    @property
    def file_system(self):  # type: ignore[no-untyped-def]
        return fsspec.filesystem("s3", use_listings_cache=False, **self.options)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    logger, lines = logging.getLogger("werkzeug"), []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers[:] = [Keep()]
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"endpoint_url": f"http://{host}:{port}", "key": "a", "secret": "b"}
    found = Bucket(options, lines)
    found.file_system.mkdir("bucket")
    yield found
    server.stop()


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.parent.name, marks=() if path.parent.name in FEW else pytest.mark.long)
        for path in CORPUS[::7]
    ],
)
def test_objects_are_verified_and_dumped_as_files_are(bucket: Bucket, path: Path) -> None:
    url = bucket.put(path.parent.name, path)

    def seen(where: Path) -> list[object]:
        return [
            replace(one, elapsed_seconds=0)
            if isinstance(one, VerifySummary)
            else (one.code, one.severity, one.partition, one.segment, one.offset, one.message.replace(str(where), ""))
            for one in verify([where])
        ]

    empty = [one for one in path.rglob("*") if one.is_dir() and not any(one.iterdir())]
    if empty:
        pytest.skip("an object store has no empty directories")
    assert seen(url) == seen(path)
    assert len(list(dump_records(url))) == len(list(dump_records(path)))
    assert len(list(dump_segments(url))) == len(list(dump_segments(path)))
    here, there = storage_status(path), storage_status(url)
    assert [one.health for one in there.partitions] == [one.health for one in here.partitions]
    assert there.locked_by is None


@pytest.mark.turns(8)
def test_a_bucket_is_backed_up_as_files_are(bucket: Bucket, tmp_path: Path) -> None:
    source, kept = build_directory(tmp_path / "source", {0: 230, 2: 40}), vault(tmp_path)
    url = bucket.put("backed-up", source)
    later = int(time.time() * 1000) + 60_000  # nothing changed within the last tick of the clock
    first = backup(kept, url, now_ms=lambda: later)
    assert (first.source, first.damaged, first.new_pages) == (str(url), 0, first.pages)
    bucket.log.clear()
    assert backup(kept, url).new_pages == 0
    unchanged = [line for line in bucket.log if f"GET /bucket/backed-up/0/{50:019}" in line]
    assert unchanged == [], "what did not change is not read again"
    assert backup(kept, source).new_pages == 0, "the same transactions are the same pages"
    assert restored(kept, first.name, tmp_path / "back") == digest(source)


@pytest.mark.turns(10)
def test_a_large_object_is_read_in_ranges_and_never_as_a_whole(bucket: Bucket, tmp_path: Path) -> None:
    size = 3 * LARGE + 777
    (tmp_path / "large").mkdir()
    data = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "large" / "object").write_bytes(data[:size])
    url = bucket.put("large", tmp_path / "large") / "object"
    with open_source(url) as source:
        assert source.size() == size
        for offset, length in ((0, 10), (size - 5, 100), (LARGE - 3, 7), (size, 1), (size + 9, 1)):
            buffer = bytearray(length)
            count = source.read_into(offset, memoryview(buffer))
            assert bytes(buffer[:count]) == data[offset : min(offset + length, size)]
        whole, at = bytearray(), 0
        while count := source.read_into(at, memoryview(buffer := bytearray(500_000))):
            whole += buffer[:count]
            at += count
    assert whole == data[:size]
    answers = [line.rsplit('" ', 1)[1].split()[0] for line in bucket.log if "GET /bucket/large/object" in line]
    assert answers
    assert set(answers) == {"206"}, bucket.log


def test_names_sizes_and_kinds(bucket: Bucket) -> None:
    url = bucket.put("kinds", Path("fixtures/clean-released/storage"))
    assert names(url) == ["0", "1", "waltz-storage.ctl"]
    assert {name: numbers is None for name, numbers in listing(url).items()} == {
        "0": True,
        "1": True,
        "waltz-storage.ctl": False,
    }
    control = url / "waltz-storage.ctl"
    here = Path("fixtures/clean-released/storage/waltz-storage.ctl")
    numbers = file_numbers(control)
    assert numbers is not None
    assert numbers[0] == here.stat().st_size
    assert numbers == listing(url)["waltz-storage.ctl"]
    content = here.read_bytes()
    for offset, length in ((3, 9), (0, len(content) + 1), (len(content) - 1, 5), (len(content), 5), (7, 0)):
        assert read_range(control, offset, length) == content[offset : offset + length]
    with pytest.raises(FileNotFoundError):
        read_range(url / "none", 0, 1)
    assert kinds(url) == {
        "0": PlaceKind.DIRECTORY,
        "1": PlaceKind.DIRECTORY,
        "waltz-storage.ctl": PlaceKind.FILE,
    }
    assert [access(one).kind(one) for one in (url, control, url / "none")] == [
        PlaceKind.DIRECTORY,
        PlaceKind.FILE,
        None,
    ]
    assert (is_directory(url), is_directory(control), exists(control), exists(url / "none")) == (
        True,
        False,
        True,
        False,
    )
    assert (access(url).link(control), access(url).special(control), access(url).identity(control)) == (
        False,
        None,
        str(control),
    )
    with pytest.raises(NotADirectoryError):
        listing(control)
    with pytest.raises(FileNotFoundError):
        UrlSource(url / "none")  # type: ignore[arg-type]


def test_kinds_of_what_stands_under_a_local_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "dangling").symlink_to("nowhere")
    here = access(tmp_path)
    kinds = {name: here.kind(tmp_path / name) for name in ("file", "pipe", "link", "loop", "dangling", "free")}
    assert kinds == {
        "file": PlaceKind.FILE, "pipe": PlaceKind.SPECIAL, "link": PlaceKind.FILE, "loop": PlaceKind.DIRECTORY,
        "dangling": None, "free": None
    }  # fmt: skip
    assert [name for name in kinds if here.named(tmp_path / name)] == ["file", "pipe", "link", "loop", "dangling"]
    assert [name for name in kinds if here.link(tmp_path / name)] == ["link", "loop", "dangling"]


def test_only_a_path_of_this_machine_can_be_written_to(tmp_path: Path) -> None:
    url = place("memory://somewhere/node")
    assert local(tmp_path) == tmp_path
    assert (on_this_machine(tmp_path), on_this_machine(url)) == (True, False)
    assert not hasattr(url, "exists"), "a URL is a name: nothing that asks a disk can be asked of it"
    with pytest.raises(InvalidRequestError, match="memory://somewhere/node: what lies behind a URL is read and never"):
        local(url)
    kept = place("vault:/backups::latest/0")
    assert not on_this_machine(kept)
    with pytest.raises(InvalidRequestError, match="a backup is read and never written") as caught:
        local(kept)
    assert caught.value.advice == "restore it first: waltzctl backup restore"


def test_repairs_of_a_directory_that_was_uploaded_are_no_concern_of_whoever_reads_it() -> None:
    """They are taken back where the directory is."""
    files = fsspec.filesystem("memory")
    source = Path("fixtures/clean-released/storage")
    for path in source.rglob("*"):
        if path.is_file():
            files.pipe_file(f"/uploaded/{path.relative_to(source)}", path.read_bytes())
    files.pipe_file("/uploaded/.waltzctl/quarantine/20260101T000000Z-recover/manifest.json", b"{}")
    *found, summary = verify([place("memory://uploaded")])
    assert (found, summary.status) == ([], "clean")  # type: ignore[union-attr]


def test_a_file_system_that_takes_more_than_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def demanding(host: str) -> None: ...

    monkeypatch.setattr("fsspec.core.url_to_fs", lambda *_, **__: demanding())  # type: ignore[call-arg]
    with pytest.raises(UnavailableError, match=r"^demanding://x/y: demanding URLs cannot be read here: .*'host'"):
        list(verify([place("demanding://x/y")]))


def test_a_file_system_is_that_of_the_host_in_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Hadoop's, which without one reads the cluster of the configuration, whatever the URL says."""

    class OfHost(fsspec.get_filesystem_class("memory")):  # type: ignore[misc]
        protocol = "ofhost"

        def __init__(self, host: str = "default", port: int = 0, **options: Any) -> None:
            super().__init__(**options)
            self.opened_with = host, port

        @staticmethod
        def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
            found = fsspec.utils.infer_storage_options(path)
            return {name: found[name] for name in ("host", "port") if name in found}

    fsspec.register_implementation("ofhost", OfHost, clobber=True)
    for url, expected in (
        ("ofhost://one:9/a", ("one", 9)),
        ("ofhost://two/a", ("two", 0)),
        ("ofhost://default/a", ("default", 0)),
    ):
        path = place(url)
        assert isinstance(path, UrlPath)
        assert file_system(path).opened_with == expected


def test_what_cannot_be_read_is_told() -> None:
    with pytest.raises(InvalidRequestError, match=r"ftp://\.\.\.@host: the URL carries a password") as caught:
        place("ftp://user:secret@host/x")
    assert "secret" not in str(caught.value)
    with pytest.raises(UnavailableError, match="nothing that is installed reads nosuch URLs"):
        list(verify([place("nosuch://bucket/x")]))
    with pytest.raises(NotWaltzError):
        list(verify([place("memory://nothing/at/all")]))
    for command in (
        ["truncate", "--partition", "0", "--after", "1"],
        ["recover"],
        ["rebuild-index"],
        ["convert", "--layout", "released"],
        ["append", "--partition", "0"],
    ):
        answer = invoke(command[0], "s3://bucket/node", *command[1:])
        assert answer.status == 2
        assert "works on files of this machine" in answer.err


@pytest.mark.turns(8)
def test_how_often_an_object_store_is_asked(bucket: Bucket) -> None:
    """A look at a storage is a listing for each directory, and one request for the control file and its size."""
    url = bucket.put("asked", Path("fixtures/clean-released/storage"))
    bucket.log.clear()
    view = view_storage(url)
    asked = [re.search(r'"(?:\x1b\[[0-9;]*m)*(\w+) /bucket[^ ?]*(\?[^ ]*)? HTTP', line) for line in bucket.log]
    kinds_of = [(one[1], bool(one[2])) for one in asked if one]
    assert sorted(kinds_of) == [("GET", False)] + [("GET", True)] * 3 + [("HEAD", False)], bucket.log
    segment = view.partitions[0].segments[0]
    assert segment.data is not None
    bucket.log.clear()
    with open_source(segment.data.path, segment.data.size) as source:
        assert read_header_of(source, segment.data.size) == read_segment_header(segment.data)
        assert source.size() == segment.data.size
        source.read_into(128, memoryview(bytearray(64)))
    assert len(bucket.log) == 2, "the header is a part of what is read first, and no size is asked for"
