"""Ports for programs that have to be told theirs: of a configuration file, started again where they were, not ours.

A port that was found free, by binding port 0 and closing, is anybody's until it is bound again: others look for one as well,
and the system gives one to every outgoing connection.  So these lie outside of what the system gives, and a process that has
one keeps it to its own end.  What can bind port 0 and tell its port (``--ready-file``) needs none of this.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Sequence
from pathlib import Path

HOST = "127.0.0.1"
_LOWEST, _HIGHEST = 10_000, 65_535
"""Below them are the ports of well-known services, which a machine may start at any time."""
_GIVEN_BY_SYSTEM = Path("/proc/sys/net/ipv4/ip_local_port_range")
_kept: list[contextlib.ExitStack] = []
"""What keeps this process's ports."""


def candidates() -> Sequence[int]:
    """All ports that may be told: those that the system gives to no outgoing connection, where it leaves any."""
    first, last = 49_152, 65_535  # by RFC 6335
    with contextlib.suppress(OSError):
        first, last = map(int, _GIVEN_BY_SYSTEM.read_text().split())
    every = range(_LOWEST, _HIGHEST + 1)
    return [port for port in every if not first <= port <= last] or every


def reserved_ports(count: int) -> list[int]:
    """So many in a row of which nobody has one; nobody else who asks here gets them as long as this process lives."""
    among = candidates()
    allowed = frozenset(among)
    begun = random.SystemRandom().randrange(len(among))  # a test may have seeded the other
    for first in (*among[begun:], *among[:begun]):
        row = [*range(first, first + count)]
        if not allowed.issuperset(row):
            continue
        with contextlib.ExitStack() as reservations:
            if all(_reserve(port, reservations) for port in row):
                _kept.append(reservations.pop_all())
                return row
    raise AssertionError(f"no {count} ports in a row are free, of {len(among)} between {among[0]} and {among[-1]}")


def _reserve(port: int, reservations: contextlib.ExitStack) -> bool:
    """Whether it was free.  What keeps it is the datagram port of the same number: taken once on a machine, and nobody's use.

    The port itself is looked at only behind that: to bind it for a moment is in the way of whoever was given it.
    """
    try:
        reservations.enter_context(socket.socket(type=socket.SOCK_DGRAM)).bind((HOST, port))
        with socket.socket() as probe:
            probe.bind((HOST, port))  # without SO_REUSEADDR: no connection of before lingers there either
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
