"""Checks of host names and addresses: validity, and whether they are loopback."""

from __future__ import annotations

from waltzctl.engine.errors import RefusedError


def check_host(text: str) -> None:
    """Raise ValueError for a text that is no possible address or host name, such as with an empty or too long label."""
    try:
        text.encode("idna")
        if "\0" not in text:
            return
    except UnicodeError:
        pass
    raise ValueError("must be an address or a host name")


def can_be_host(text: str) -> bool:
    """Whether a text is a possible address or host name (`check_host`)."""
    try:
        check_host(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a host (address or name) can be reached from this machine only.

    A name is resolved: all its addresses must be loopback, and it must have one.  An empty text means all interfaces: False.
    """
    if not host:
        return False
    import socket  # here: not needed for --help

    try:
        return is_loopback_address(host)
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # ValueError: no possible name
        return False
    addresses = {str(entry[4][0]) for entry in found}
    return bool(addresses) and all(map(is_loopback_address, addresses))


def is_loopback_address(text: str) -> bool:
    """Whether an address, IPv4 also in its form for IPv6, is loopback.  Raises ValueError if `text` is none."""
    import ipaddress

    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def refuse_beyond_loopback(host: str) -> None:
    """Raise RefusedError if `host`, at which a port is to listen without TLS, can be reached from other machines."""
    if not is_loopback(host):
        raise RefusedError(
            f"{host}: without TLS everybody on the way can read and change what is sent",
            advice="leave --plaintext out, bind to 127.0.0.1, or say --insecure if the network is trusted",
        )
