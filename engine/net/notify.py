"""Notifications of the service's state to systemd: the datagrams of ``sd_notify(3)``.

systemd passes the socket in ``NOTIFY_SOCKET``: a path, or ``@`` and a name in the abstract namespace.  A datagram holds lines
``NAME=value``.  With ``WatchdogSec=``, ``WATCHDOG_USEC`` is the time in microseconds within which ``WATCHDOG=1`` is expected.
Without systemd every call does nothing; errors of the socket are ignored.
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
    """`address`: the socket; None: there is none.  `watchdog_seconds`: the longest time between two calls of `alive`, or None."""

    address: str | None = None
    watchdog_seconds: float | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Notifier:
        """From the variables that systemd sets.  Invalid values count as absent."""
        named = environment.get(SOCKET_VARIABLE, "")
        address = named if named.startswith(("/", "@")) and len(named) > 1 else None
        microseconds = environment.get(WATCHDOG_VARIABLE, "")
        for_this_process = environment.get(WATCHDOG_PID_VARIABLE, str(os.getpid())) == str(os.getpid())
        wanted = address is not None and for_this_process and microseconds.isascii() and microseconds.isdigit()
        seconds = int(microseconds) / 1e6 if wanted else 0.0
        return cls(address, seconds or None)

    def ready(self, status: str) -> bool:
        """The service has started, or has finished a reload; `status`: text that ``systemctl status`` shows."""
        return self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> bool:
        """Set the text that ``systemctl status`` shows."""
        return self._send(f"STATUS={status}")

    def reloading(self) -> bool:
        """The configuration is being read again; `ready` must follow."""
        return self._send(
            "RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reading its configuration"
        )

    def stopping(self, status: str, seconds: float) -> bool:
        """The service is about to stop, which may take `seconds`."""
        return self._send("STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={int((seconds + 5) * 1e6)}")

    def alive(self) -> bool:
        """Reset systemd's watchdog timer."""
        return self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> bool:
        """Send a datagram; returns whether systemd took it."""
        if self.address is None:
            return False
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        text = "\n".join(line.replace("\n", " ") for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)  # a manager that does not read must not block the service
                sender.sendto(text.encode("utf-8", "backslashreplace"), address)
        except OSError:
            return False
        return True
