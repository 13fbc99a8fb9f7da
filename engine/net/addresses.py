"""Addresses of nodes and servers: ``host:port``, ``[IPv6]:port``, and the URL of a node, ``waltz://host:port``.

The release splits at every colon and so knows no IPv6 (release 0.13.2, its tools); here an IPv6 address stands in brackets.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.net.loopback import can_be_host, is_loopback_address

SCHEME = "waltz://"
"""The scheme of a node's URL, whose port is the admin port."""

_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_HOST = re.compile(r"[^\s\[\]/?#@\x00-\x1f]+")


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host (a name, an IPv4 or an IPv6 address, without brackets) and a port from 1 to 65535."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """As ``waltz://host:port``."""
        return f"{SCHEME}{self}"

    @property
    def is_loopback(self) -> bool:
        """Whether the address is loopback.  A name is not resolved: only ``localhost`` counts."""
        try:
            return is_loopback_address(self.host)
        except ValueError:
            return self.host.rstrip(".").lower() == "localhost"

    def with_port(self, port: int) -> Address:
        """Another port of the same host.  Raises InvalidRequestError for a port outside 1 to 65535."""
        if not 0 < port < 65536:
            raise InvalidRequestError(f"{self.host}: port {port} does not exist; ports are 1 to 65535")
        return Address(self.host, port)


def names_node(text: str) -> bool:
    """Whether `text` is the URL of a node rather than a path."""
    return text.strip().lower().startswith(SCHEME)


def parse_address(text: str) -> Address:
    """An address from ``host:port`` or ``[IPv6]:port``.  Raises InvalidRequestError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host:
        raise InvalidRequestError(f"{text!r} is no address; write host:port, for instance 127.0.0.1:55281")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise InvalidRequestError(f"{text!r}: what stands in brackets is no IPv6 address") from None
    elif ":" in host:
        raise InvalidRequestError(f"{text!r}: an IPv6 address stands in brackets, for instance [::1]:55281")
    if not _HOST.fullmatch(host) or not can_be_host(host):
        raise InvalidRequestError(f"{text!r}: {host!r} is no name of a host")
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise InvalidRequestError(f"{text!r}: {port!r} is no port; ports are 1 to 65535")
    return Address(host, int(port))


def parse_url(text: str) -> Address:
    """The address in ``waltz://host:port``; surrounding blanks and a trailing slash are ignored.

    Raises InvalidRequestError.
    """
    if not names_node(text):
        raise InvalidRequestError(f"{text!r} is no URL of a node; write {SCHEME}host:port")
    return parse_address(text.strip()[len(SCHEME) :].removesuffix("/"))
