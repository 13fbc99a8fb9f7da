"""An address is read the way it is written, and whatever cannot be one is refused with a sentence."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import properties
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.net.addresses import Address, names_node, parse_address, parse_url

names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?){0,2}", fullmatch=True)
hosts = names | st.ip_addresses().map(str)
ports = st.integers(1, 65535)


@pytest.mark.turns(10)
@properties
@given(hosts, ports)
def test_an_address_and_its_url_are_read_back_as_they_are_written(host: str, port: int) -> None:
    address = Address(host, port)
    assert parse_address(str(address)) == address
    assert parse_url(address.url) == address
    assert parse_url(address.url + "/") == address
    assert parse_url(address.url.upper()).port == port


@properties
@given(st.text(max_size=40))
def test_any_text_is_an_address_or_is_refused(text: str) -> None:
    address = None
    with contextlib.suppress(InvalidRequestError):
        address = parse_address(text)
    assert address is None or parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "host:port"),
        ("localhost", "host:port"),
        (":55281", "host:port"),
        ("localhost:", "no port"),
        ("localhost:0", "no port"),
        ("localhost:65536", "no port"),
        ("localhost:+1", "no port"),
        ("localhost:١", "no port"),
        ("::1:55281", "brackets"),
        ("[::1:55281", "brackets"),
        ("[localhost]:55281", "no IPv6"),
        ("a b:1", "no name"),
        ("10.0.0..7:1", "no name"),
        (".example.com:1", "no name"),
        ("x" * 64 + ":1", "no name"),
        ("a/b:1", "no name"),
        ("user@host:1", "no name"),
    ],
)
def test_what_is_no_address_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::1%lo", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("localhost", True),
        ("LocalHost.", True),
        ("localhost.example.org", False),
        ("10.0.0.1", False),
        ("::", False),
        ("0.0.0.0", False),
    ],
)
def test_only_what_must_be_this_machine_is_loopback(host: str, loopback: bool) -> None:
    assert Address(host, 1).is_loopback is loopback


def test_a_url_is_told_from_a_path() -> None:
    assert names_node("waltz://h:1")
    assert names_node("WALTZ://h:1")
    assert not names_node("waltz:/h:1")
    assert not names_node("/data/waltz")
    with pytest.raises(InvalidRequestError, match="no URL"):
        parse_url("http://h:1")


@pytest.mark.parametrize("text", ["waltz://h:1", " waltz://h:1", "waltz://h:1/ ", "\tWALTZ://h:1\n"])
def test_what_is_meant_as_a_url_is_read_as_one(text: str) -> None:
    assert names_node(text)
    assert parse_url(text) == Address("h", 1)
