"""Which addresses only this machine reaches, and what is said of a store that does not open."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from waltzctl.engine.errors import RefusedError
from waltzctl.engine.net.keystore import _pkcs12_error
from waltzctl.engine.net.loopback import check_host, is_loopback, refuse_beyond_loopback


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.255.255.255", True),
        ("126.255.255.255", False),
        ("128.0.0.0", False),
        ("0.0.0.0", False),
        ("::1", True),
        ("::1%lo", True),
        ("::2", False),
        ("::", False),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("::ffff:0.0.0.0", False),
        ("fe80::1%eth0", False),
    ],
)
def test_addresses_of_this_machine_alone(host: str, here: bool) -> None:
    assert is_loopback(host) == here
    if here:
        refuse_beyond_loopback(host)
        return
    with pytest.raises(RefusedError, match="without TLS everybody on the way can read"):
        refuse_beyond_loopback(host)


@pytest.mark.parametrize(
    ("addresses", "here"),
    [
        (["127.0.0.1"], True),
        (["127.0.0.1", "::1"], True),
        (["127.0.0.1", "10.0.0.1"], False),
        (["10.0.0.1"], False),
        ([], False),
        (None, False),
    ],
)
def test_a_name_is_of_this_machine_where_all_its_addresses_are(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str] | None, here: bool
) -> None:
    def found(host: str, port: None, **_: Any) -> list[Any]:
        assert (host, port) == ("some.name", None)
        if addresses is None:
            raise OSError("no such name")
        return [(0, 0, 0, "", (one, 0)) for one in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert is_loopback("some.name") == here


@pytest.mark.parametrize("host", [".", "10.0.0..7", ".example.com", "x" * 64, "\u00e9" * 63, "a\0b"])
def test_what_can_be_no_host_is_none(host: str) -> None:
    """Looking it up is no OSError."""
    assert not is_loopback(host)
    with pytest.raises(ValueError, match="must be an address or a host name"):
        check_host(host)


@pytest.mark.parametrize(
    "host", ["", "127.0.0.1", "::1", "fe80::1%eth0", "localhost.", "x" * 63, "b\u00fccher.example"]
)
def test_what_can_be_a_host(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("Invalid password or PKCS12 data", "the store's password is wrong, or the store was changed"),
        ("MAC verification failure", "the store's password is wrong, or the store was changed"),
        ("could not be parsed", "a damaged or unknown PKCS12 store"),
    ],
)
def test_what_a_library_says_of_a_store_is_a_wrong_password_or_damage(error: str, said: str) -> None:
    assert str(_pkcs12_error(Path("/a"), ValueError(error))) == f"/a: {said}"
