"""``waltzctl serve`` as a process of its own, for tests."""

from __future__ import annotations

import json
import select
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import warm_start
from tests.cli.running import command_line, environment

PATIENCE = 120.0
"""Seconds after which a process that shows no sign of life is given up; nothing is measured by it."""


@dataclass
class Served:
    """A process of ``serve`` that was started with ``--format ndjson``.  `log` holds what it wrote to stderr so far."""

    process: subprocess.Popen[bytes]
    log: list[str] = field(default_factory=list)
    ready: dict[str, Any] = field(default_factory=dict)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _reader: threading.Thread | None = None

    @classmethod
    def start(cls, *arguments: object, **changes: str) -> Served:
        process = warm_start.Popen(
            command_line("serve", *arguments, "--format", "ndjson"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**changes),
        )  # fmt: skip
        served = cls(process)
        served._reader = threading.Thread(target=served._read_log, daemon=True)
        served._reader.start()
        return served

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.log.append(line.decode().rstrip("\n"))
                self._news.notify_all()

    def wait_ready(self) -> Served:
        """Until all ports answer."""
        self.ready = self.next_object()
        assert self.ready["type"] == "ready"
        return self

    def next_object(self) -> dict[str, Any]:
        """The next object on stdout."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else b""
        assert line, f"nothing on stdout; status {self.process.poll()}\n" + "\n".join(self.log)
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def wait_log(self, text: str, count: int = 1) -> str:
        """Until `count` lines of the log hold a text; the last of them."""
        deadline = time.monotonic() + PATIENCE
        with self._news:
            while len(found := [line for line in self.log if text in line]) < count:
                assert self._news.wait(deadline - time.monotonic()), f"no {text!r} in the log\n" + "\n".join(self.log)
        return found[-1]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Its exit status, once it has ended and its log is read."""
        status = self.process.wait(PATIENCE)
        assert self._reader is not None
        self._reader.join(PATIENCE)
        return status

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ended()

    # --- talking to it -----------------------------------------------------------------------------------------------

    def http(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ready['http_port']}{path}", timeout=PATIENCE) as answer:
            body: bytes = answer.read()
        return body.decode()

    def connect(self, port: str = "port") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.ready[port]), PATIENCE)
        connection.settimeout(PATIENCE)
        return connection

    def certificate(self, port: str = "port") -> bytes:
        """What the port shows, in DER."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with self.connect(port) as plain, context.wrap_socket(plain) as wrapped:
            return wrapped.getpeercert(binary_form=True) or b""


@contextmanager
def serving(*arguments: object, **changes: str) -> Iterator[Served]:
    """A node that is ready; killed at the end unless it has ended by then."""
    with starting(*arguments, **changes) as served:
        yield served.wait_ready()


@contextmanager
def starting(*arguments: object, **changes: str) -> Iterator[Served]:
    """A node that may still be starting."""
    served = Served.start(*arguments, **changes)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.process.kill()
        served.ended()
        assert served.process.stdout is not None
        assert served.process.stderr is not None
        served.process.stdout.close()
        served.process.stderr.close()


def write_config(path: Path, storage: Path, ports: list[int], *more: str) -> Path:
    """A configuration file as a released node has it."""
    lines = [
        f"storage.port: {ports[0]}",
        f"storage.admin.port: {ports[1]}",
        f"storage.jetty.port: {ports[2]}",
        f"storage.directory: {json.dumps(str(storage))}",
        *more,
    ]
    path.write_text("\n".join(lines) + "\n")
    return path
