"""Objects behind URLs without a server: which ranges are asked for, what an entry says, what is no object."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from waltzctl.engine.errors import DiskReadError, UnavailableError
from waltzctl.engine.inspect.targets import plan
from waltzctl.engine.log import places, url_access, url_path
from waltzctl.engine.log.access import PlaceKind
from waltzctl.engine.log.places import access, place
from waltzctl.engine.log.url_access import LARGE, SMALL, UrlSource, file_system
from waltzctl.engine.log.url_path import UrlPath

URL = UrlPath("fake://bucket/name")


class FakeFiles:
    """A file system of one object, and what it was asked for."""

    def __init__(self, data: bytes, **info: Any) -> None:
        self.data, self.asked = data, []  # type: tuple[bytes, list[tuple[int, int]]]
        self.entry: dict[str, Any] = {"type": "file", "size": len(data), **info}
        self.listed: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def info(self, url: str) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return self.entry

    def ls(self, url: str, *, detail: bool) -> list[dict[str, Any]]:
        assert detail
        if self.error is not None:
            raise self.error
        return self.listed

    def cat_file(self, url: str, *, start: int, end: int) -> bytes:
        assert url == "fake://bucket/name"
        if self.error is not None:
            raise self.error
        self.asked.append((start, end))
        assert len(self.asked) < 1000, "a read that never ends"
        return self.data[start:end]

    @staticmethod
    def _strip_protocol(url: str) -> str:
        return "/" + url.partition("://")[2]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> FakeFiles:
    made = FakeFiles(bytes(n % 251 for n in range(40 << 10)) * 16)  # 640 KiB
    monkeypatch.setattr(url_access, "file_system", lambda path: made)
    return made


def read(source: UrlSource, offset: int, length: int) -> bytes:
    data = bytearray(length)
    return bytes(data[: source.read_into(offset, memoryview(data))])


def test_the_sizes_of_requests() -> None:
    assert (SMALL, LARGE) == (64 << 10, 8 << 20)


def test_reading_on_grows_and_a_jump_begins_small_again(files: FakeFiles) -> None:
    source, end = UrlSource(URL), len(files.data)
    assert source.size() == end
    assert read(source, 100, 10) == files.data[100:110]
    assert files.asked == [(100, 100 + SMALL)]
    assert read(source, 110, 20) == files.data[110:130], "it is held"
    assert read(source, 100, SMALL) == files.data[100 : 100 + SMALL]
    assert len(files.asked) == 1
    at = 100 + SMALL
    assert read(source, at, 1) == files.data[at : at + 1]
    assert files.asked[1:] == [(at, at + 4 * SMALL)]
    assert read(source, 99, 1) == files.data[99:100]
    assert files.asked[2:] == [(99, 99 + SMALL)]
    assert read(source, 99 + SMALL - 1, 3) == files.data[99 + SMALL - 1 : 99 + SMALL + 2]
    assert files.asked[3:] == [(99 + SMALL, 99 + 5 * SMALL)]
    source.close()
    assert read(source, 99 + SMALL + 2, 1) == files.data[99 + SMALL + 2 :][:1]
    assert files.asked[4:] == [(99 + SMALL + 2, end)], "it goes on where it ended, and not beyond the end"


def test_reading_on_grows_up_to_a_bound(files: FakeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_access, "LARGE", 2 * SMALL)
    source = UrlSource(URL)
    for at in range(0, len(files.data), 1000):
        assert read(source, at, 1000) == files.data[at : at + 1000]
    assert max(end - start for start, end in files.asked) == 2 * SMALL


def test_one_request_for_a_long_range(files: FakeFiles) -> None:
    source, end = UrlSource(URL), len(files.data)
    assert read(source, 5, 3 * SMALL) == files.data[5 : 5 + 3 * SMALL]
    assert files.asked == [(5, 5 + 3 * SMALL)]
    assert read(source, end - 4, 10) == files.data[-4:]
    assert files.asked[1:] == [(end - 4, end)]
    for offset in (end, end + 1):
        assert read(source, offset, 10) == b""
    assert read(source, 0, 0) == b""
    assert len(files.asked) == 2


def test_requests_grow_up_to_the_largest(files: FakeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_access, "LARGE", 6 * SMALL)
    source, at = UrlSource(URL), 0
    for size in (SMALL, 4 * SMALL, 5 * SMALL):  # the last one ends with the object
        read(source, at, 1)
        at = files.asked[-1][1]
        assert files.asked[-1][1] - files.asked[-1][0] == size
    assert at == len(files.data)


def test_an_object_that_shrank_ends_a_read(files: FakeFiles) -> None:
    source = UrlSource(URL)
    files.data = files.data[:7]
    assert read(source, 5, 10) == files.data[5:7]


@pytest.mark.parametrize("offset", [0, 100])
def test_a_server_without_ranges_gives_an_error_and_not_other_bytes(
    files: FakeFiles, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """fsspec's HTTP takes the whole object, with which such a server answers, for the range that was asked for."""
    monkeypatch.setattr(files, "cat_file", lambda url, *, start, end: files.data)
    source = UrlSource(URL)
    for ask in (lambda: read(source, offset, 10), lambda: places.read_range(URL, offset, 10)):
        with pytest.raises(DiskReadError, match="answered with 655360 bytes, where"):
            ask()


def test_an_object_whose_size_nobody_tells_is_not_taken_for_an_empty_one(files: FakeFiles) -> None:
    files.entry["size"] = None
    for ask in (lambda: UrlSource(URL), lambda: access(URL).open(URL)):
        with pytest.raises(DiskReadError, match="does not tell its size"):
            ask()
    assert read(UrlSource(URL, 9), 0, 20) == files.data[:9], "it is known"


@pytest.mark.parametrize("answer", [FileNotFoundError(), []])
def test_a_segment_that_is_named_and_that_no_listing_has_is_told(
    files: FakeFiles, monkeypatch: pytest.MonkeyPatch, answer: Exception | list[dict[str, Any]]
) -> None:
    """A web server without listings: nothing was read of it, and all was well."""
    segment = UrlPath("fake://bucket/node/0/0000000000000000000.seg")

    def info(url: str) -> dict[str, Any]:
        if url != segment.url:
            raise FileNotFoundError
        return files.entry

    def ls(url: str, *, detail: bool) -> list[dict[str, Any]]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(files, "info", info)
    monkeypatch.setattr(files, "ls", ls)
    (scope,) = plan([segment], None)
    (partition,) = scope.partitions.values()
    assert partition.view is None
    assert "the listing does not have 0000000000000000000.seg, which is there" in str(partition.error)


def test_ranges_of_an_object(files: FakeFiles) -> None:
    end = len(files.data)
    for offset, length in ((0, 5), (end - 3, 3), (end - 3, 4), (end, 1), (end + 5, 1), (7, 0), (7, -1)):
        assert places.read_range(URL, offset, length) == (files.data[offset : offset + length] if length > 0 else b"")
    with access(URL).open(URL) as source:
        assert source.size() == end


@pytest.mark.parametrize(
    ("entry", "numbers"),
    [
        ({}, (0, 0)),
        ({"mtime": 1.5}, (1_500_000_000, 0)),
        ({"LastModified": datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), "mtime": 1}, (2_000_000_000, 0)),
        ({"last_modified": None, "created": 3}, (3_000_000_000, 0)),
        ({"mtime": "yesterday"}, (0, 0)),
        ({"ETag": "abc"}, (0, 0x352441C2)),
        ({"etag": "", "md5Hash": "abc"}, (0, 0x352441C2)),
    ],
)
def test_what_an_entry_says(files: FakeFiles, entry: dict[str, Any], numbers: tuple[int, int]) -> None:
    files.entry = {"type": "file", "size": 9, **entry}
    assert places.file_numbers(URL) == (9, *numbers)
    files.entry["size"] = None
    assert places.file_numbers(URL) == (0, *numbers)
    assert access(URL).kind(URL) is PlaceKind.FILE
    files.entry["type"] = "directory"
    assert access(URL).kind(URL) is PlaceKind.DIRECTORY
    assert places.file_numbers(URL) is None
    with pytest.raises(FileNotFoundError):
        UrlSource(URL)


def test_what_is_not_there_and_what_cannot_be_asked(files: FakeFiles) -> None:
    reach = access(URL)
    assert reach.named(URL)
    files.error = FileNotFoundError()
    assert (reach.kind(URL), reach.named(URL), reach.numbers(URL)) == (None, False, None)
    with pytest.raises(FileNotFoundError):
        reach.names(URL)
    files.error = RuntimeError("the server is on fire")
    assert reach.numbers(URL) is None
    for call in (reach.kind, reach.names, reach.open):
        with pytest.raises(DiskReadError, match="the server is on fire"):
            call(URL)
    files.error = None
    source = UrlSource(URL)
    files.error = RuntimeError("the server is on fire")
    with pytest.raises(DiskReadError, match=r"fake://bucket/name.*(offset|at) 5.*the server is on fire"):
        read(source, 5, 1)


def test_what_lies_below_a_name(files: FakeFiles) -> None:
    def entry(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "type": "file", "size": 3, **more}

    files.listed = [entry("bucket/name/b"), entry("/bucket/name/a/", type="directory"), entry("bucket/name", size=0)]
    assert places.names(URL) == ["a", "b"]
    assert places.listing(URL) == {"a": None, "b": (3, 0, 0)}
    files.listed = [entry("bucket/name")]
    with pytest.raises(NotADirectoryError):
        places.names(URL)
    files.listed = [entry("bucket/name", size=0)]
    assert places.names(URL) == []
    files.listed = [entry("bucket/name"), entry("bucket/name/b")]
    assert places.names(URL) == ["b"], "an object of this very name beside what lies below it"


def test_what_no_object_store_has() -> None:
    reach = access(URL)
    assert (reach.modified_ns(URL), reach.link(URL), reach.special(URL), reach.lock_holder(URL, URL)) == (
        None,
        False,
        None,
        None,
    )
    assert (reach.identity(URL), reach.absolute(URL)) == ("fake://bucket/name", URL)
    assert URL.is_absolute()


@pytest.mark.parametrize(
    ("url", "identity"),
    [
        ("s3a://b/x", "s3://b/x"),
        ("S3://b/x/", "s3://b/x"),
        ("gcs://b/x", "gs://b/x"),
        ("abfss://c@a/x", "abfs://c@a/x"),
        ("http://h/x", "http://h/x"),
        ("https://h/x", "https://h/x"),
    ],
)
def test_an_object_has_one_identity_whatever_its_scheme_is_called(url: str, identity: str) -> None:
    """A replica that is named in two ways would have two votes."""
    assert url_access.URLS.identity(UrlPath.of(url)) == identity


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What file systems were opened with."""
    core = pytest.importorskip("fsspec.core", reason="the extra 'spark' is not installed")
    calls: list[tuple[str, dict[str, Any]]] = []

    def url_to_fs(url: str, **options: Any) -> tuple[object, str]:
        calls.append((url, options))
        if url.startswith("unknown"):
            raise ValueError("Protocol not known")
        return object(), url

    monkeypatch.setattr(core, "url_to_fs", url_to_fs)
    monkeypatch.setattr(url_path, "_options", {})
    monkeypatch.setattr(url_access, "_file_systems", {})
    return calls


def test_a_file_system_is_opened_once_for_its_options(opened: list[tuple[str, dict[str, Any]]]) -> None:
    path = place("fake://bucket/a")
    assert isinstance(path, UrlPath)
    first = file_system(path)
    assert file_system(place("fake://bucket/b", None)) is first  # type: ignore[arg-type]
    assert opened == [("fake://bucket", {"use_listings_cache": False})]
    place("fake://bucket/a", {"key": "x"})
    second = file_system(path)
    place("fake://bucket/a", {"key": "x"})
    assert file_system(path) is second is not first
    assert opened[1:] == [("fake://bucket", {"use_listings_cache": False, "key": "x"})]
    assert file_system(UrlPath("fake://other/a")) is not second
    unknown = UrlPath("unknown://bucket/a")
    with pytest.raises(
        UnavailableError, match="unknown://bucket/a: nothing that is installed reads unknown URLs: Protocol"
    ):
        file_system(unknown)


def test_where_nothing_is_listed_there_is_nothing(files: FakeFiles) -> None:
    files.listed = []
    assert access(URL).names(URL) == []
    assert access(URL).listing(URL) == {}
