"""The addresses in the name of a Spark master: where it is looked for, and which way this machine is reached from there."""

from __future__ import annotations

_PORTS = {"spark": 7077, "sc": 15002}
"""The ports of a standalone cluster's master and of Spark Connect, where the name has none."""


def master_addresses(master: str) -> list[tuple[str, int]]:
    """Host and port of each master of a standalone cluster (``spark://``), or of Spark Connect (``sc://``); of no other kind."""
    scheme, found, rest = master.partition("://")
    if not found or scheme not in _PORTS:
        return []
    return [_address(one, _PORTS[scheme]) for one in rest.partition("/")[0].split(",")]


def _address(text: str, usual: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    named = colon and port.isascii() and port.isdigit()
    return (host.strip("[]"), int(port)) if named else (text.strip("[]"), usual)
