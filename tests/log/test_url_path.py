"""Names of objects behind URLs: what is a URL, what is refused, what paths do."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.log import url_path
from waltzctl.engine.log.places import place
from waltzctl.engine.log.url_path import UrlPath, is_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a/b", Path("/a/b")),
        ("a:b", Path("a:b")),
        ("file:///a/b", Path("/a/b")),
        ("LOCAL:///a/b", Path("/a/b")),
        ("s3://bucket/a/", UrlPath("s3://bucket/a")),
        ("s3://user@host/a", UrlPath("s3://user@host/a")),
        ("s3://host:9/a", UrlPath("s3://host:9/a")),
        ("s3://bucket", UrlPath("s3://bucket")),
        ("memory:///a/b", UrlPath("memory://a/b")),
        ("hdfs://host:9/a", UrlPath("hdfs://host:9/a")),
        ("hdfs:///a/b", UrlPath("hdfs://default/a/b")),
    ],
)
def test_paths_and_urls(text: str, expected: Path) -> None:
    found = place(text)
    assert (type(found), str(found)) == (type(expected), str(expected))
    assert is_url(text) == ("://" in text)


@pytest.mark.parametrize("text", ["s3://", "s3:///", "s3:///bucket/a", "memory://", "x:////"])
def test_a_url_names_a_host_or_a_bucket(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{text}: the URL names no host or bucket"):
        place(text)


def test_above_a_bucket_there_is_nothing() -> None:
    bucket = UrlPath("s3://bucket")
    assert (bucket / "a").parent == bucket.parent == bucket
    assert str(bucket.parent / "b") == "s3://bucket/b"


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidRequestError, match=r"^s3://\.\.\.@host:9: the URL carries a password") as refused:
        place("s3://user:secret@host:9/a")
    assert "secret" not in str(refused.value)


def test_a_path_of_a_url_does_what_paths_do() -> None:
    url = place("s3://bucket/node/3/0000000000000000008.seg")
    assert isinstance(url, UrlPath)
    assert str(url) == "s3://bucket/node/3/0000000000000000008.seg"
    assert (url.name, url.stem, url.suffix) == ("0000000000000000008.seg", "0000000000000000008", ".seg")
    assert str(url.parent.parent / "4") == "s3://bucket/node/4"
    assert str(url.with_suffix(".idx")) == "s3://bucket/node/3/0000000000000000008.idx"
    assert url.is_absolute()
    assert isinstance(url.parent, UrlPath)
    assert {url: 1}[place("s3://bucket/node/3/0000000000000000008.seg/")] == 1
    assert str(place("file:///data/waltz")) == "/data/waltz"
    assert str(place("file:/data/waltz")) == "/data/waltz"
    assert str(place("file:data")) == "file:data"  # a name may have a colon
    assert not isinstance(place("/data/waltz"), UrlPath)


def test_options_are_the_same_in_any_order() -> None:
    for options in ({"anon": True, "key": "k"}, {"key": "k", "anon": True}):
        path = place("s3://made-up-order/d", options)
        assert isinstance(path, UrlPath)
        assert path.options == (("anon", True), ("key", "k"))


def test_a_pickled_path_brings_what_opens_its_file_system() -> None:
    url = place("memory://here/node", {"skip_instance_cache": True})
    copy = pickle.dumps(url)
    url_path._options.clear()
    assert pickle.loads(copy) == url
    assert dict(url_path._options["memory://here"]) == {"skip_instance_cache": True}
