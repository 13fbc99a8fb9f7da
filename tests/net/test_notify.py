"""Notifications to systemd, over a real datagram socket."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from waltzctl.engine.net.notify import Notifier


class Manager:
    """What a service manager listens at."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(60)
        self.environment = {"NOTIFY_SOCKET": address}

    def hears(self) -> dict[str, str]:
        lines = self.socket.recv(65536).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = (
        str(tmp_path / "notify") if request.param == "path" else f"@waltzctl-test-{os.getpid()}-{time.monotonic_ns()}"
    )
    found = Manager(address)
    yield found
    found.socket.close()


def test_every_state_reaches_the_manager(manager: Manager) -> None:
    notifier = Notifier.from_environment(manager.environment)
    assert notifier.ready("serving\n/data")
    assert manager.hears() == {"READY": "1", "STATUS": "serving /data"}
    assert notifier.status("fine")
    assert manager.hears() == {"STATUS": "fine"}
    before = time.monotonic_ns() // 1000
    assert notifier.reloading()
    heard = manager.hears()
    assert heard["RELOADING"] == "1"
    assert before <= int(heard["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    assert notifier.stopping("draining", 30.0)
    assert manager.hears() == {"STOPPING": "1", "STATUS": "draining", "EXTEND_TIMEOUT_USEC": "35000000"}
    assert notifier.alive()
    assert manager.hears() == {"WATCHDOG": "1"}


@pytest.mark.parametrize(
    "environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "relative"}, {"NOTIFY_SOCKET": "@"}]
)
def test_without_a_manager_nothing_happens(environment: dict[str, str]) -> None:
    notifier = Notifier.from_environment(environment)
    assert notifier == Notifier()
    assert not notifier.ready("x")


def test_a_manager_that_is_gone_or_does_not_read_is_no_error(tmp_path: Path) -> None:
    gone = Notifier.from_environment({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    assert not gone.ready("x")
    manager = Manager(str(tmp_path / "notify"))
    deaf = Notifier.from_environment(manager.environment)
    assert deaf.alive()
    assert any(not deaf.alive() for _ in range(100_000)), "it returns, though nobody reads"
    manager.socket.close()


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
        ({"WATCHDOG_USEC": "²"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_heeded_when_it_is_this_process_that_it_watches(
    more: dict[str, str], seconds: float | None
) -> None:
    assert Notifier.from_environment({"NOTIFY_SOCKET": "/x", **more}).watchdog_seconds == seconds
