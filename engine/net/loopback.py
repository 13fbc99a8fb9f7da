"""Hosts: what can be one at all, and whether one to listen at can be reached from this machine only."""

from __future__ import annotations

from waltzctl.engine.errors import RefusedError


def check_host(text: str) -> None:
    """Raise ValueError for what is neither an address nor a name that could be looked up: an empty part, one of 64 letters."""
    try:
        text.encode("idna")
        if "\0" not in text:
            return
    except UnicodeError:
        pass
    raise ValueError("must be an address or a host name")


def is_loopback(host: str) -> bool:
    """Whether a host, by address or by name, is reached from this machine only.

    A name counts when every address it has is a loopback one; one that has none does not count.  Empty: all interfaces.
    """
    if not host:
        return False
    import socket  # here, because --help asks for no host

    try:
        return _is_loopback_address(host)
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # the latter for what can be no name
        return False
    addresses = {str(entry[4][0]) for entry in found}
    return bool(addresses) and all(map(_is_loopback_address, addresses))


def _is_loopback_address(text: str) -> bool:
    """Raises ValueError for what is no address."""
    import ipaddress

    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def refuse_beyond_loopback(host: str) -> None:
    """Raise RefusedError where other machines reach a port at `host`, which is to speak without TLS."""
    if not is_loopback(host):
        raise RefusedError(
            f"{host}: without TLS everybody on the way can read and change what is sent",
            advice="leave --plaintext out, bind to 127.0.0.1, or say --insecure if the network is trusted",
        )
