"""Telling systemd how a service is: the datagrams of ``sd_notify(3)``.

The manager names a socket in ``NOTIFY_SOCKET``: a path, or after an ``@`` a name that is in no directory.  A datagram holds
lines ``NAME=value``.  With ``WatchdogSec=`` it also names the microseconds within which it wants to hear ``WATCHDOG=1``.
Without a manager every call does nothing, and a manager that cannot be reached is no reason to stop.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

SOCKET_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE = "WATCHDOG_PID"


@dataclass(frozen=True, slots=True)
class Notifier:
    """Where to notify; `address` None: nobody.  `watchdog_seconds`: the time within which a sign of life is wanted, or None."""

    address: str | None = None
    watchdog_seconds: float | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Notifier:
        """The manager that started this process, if it wants to hear anything.  Values that make no sense count as none."""
        named = environment.get(SOCKET_VARIABLE, "")
        address = named if named.startswith(("/", "@")) and len(named) > 1 else None
        microseconds = environment.get(WATCHDOG_VARIABLE, "")
        of_us = environment.get(WATCHDOG_PID_VARIABLE, str(os.getpid())) == str(os.getpid())
        wanted = address is not None and of_us and microseconds.isascii() and microseconds.isdigit()
        seconds = int(microseconds) / 1e6 if wanted else 0.0
        return cls(address, seconds or None)

    def ready(self, status: str) -> bool:
        """The service is up, or up again after a reload; `status` is what an operator reads."""
        return self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> bool:
        """What an operator reads."""
        return self._send(f"STATUS={status}")

    def reloading(self) -> bool:
        """The configuration is being read anew; `ready` must follow."""
        return self._send(
            "RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reading its configuration"
        )

    def stopping(self, status: str, seconds: float) -> bool:
        """The service is about to end, which may take so many seconds."""
        return self._send("STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={int((seconds + 5) * 1e6)}")

    def alive(self) -> bool:
        """A sign of life for the watchdog."""
        return self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> bool:
        """Whether a manager took it."""
        if self.address is None:
            return False
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        text = "\n".join(line.replace("\n", " ") for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)  # a manager that does not read must not hold a node up
                sender.sendto(text.encode("utf-8", "backslashreplace"), address)
        except OSError:
            return False
        return True
