"""An S3 server on the loopback (moto's), and what it was asked for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Store:
    """The server, and every read of an object: its key, and how many bytes were answered."""

    endpoint: str
    gets: list[tuple[str, str | None, int]] = field(default_factory=list)

    @property
    def options(self) -> dict[str, str]:
        return {
            "storage.endpoint_url": self.endpoint,
            "storage.key": "tester",
            "storage.secret": "geheim",
            "storage.client_kwargs": '{"region_name": "us-east-1"}',
        }

    def upload(self, directory: Path, url: str) -> str:
        import s3fs

        files = s3fs.S3FileSystem(
            endpoint_url=self.endpoint,
            key="tester",
            secret="geheim",
            skip_instance_cache=True,
        )
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not files.exists(bucket):
            files.mkdir(bucket)
        for file in sorted(directory.rglob("*")):
            if file.is_file():
                files.pipe_file(f"{bucket}/{prefix}/{file.relative_to(directory)}", file.read_bytes())
        self.gets.clear()
        return url


@contextlib.contextmanager
def running_store() -> Iterator[Store]:
    """A server of this process on a free port, until the block ends."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    running = Store(f"http://{host}:{port}")
    application = server._server.app

    def watched(environ: dict[str, Any], start: Any) -> Any:
        path, asked = environ.get("PATH_INFO", ""), environ.get("HTTP_RANGE")

        def started(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
            if environ["REQUEST_METHOD"] == "GET" and re.search(r"\.(seg|idx|ctl)$", path):
                running.gets.append((path, asked, length))
            return start(status, headers, *rest)

        return application(environ, started)

    server._server.app = watched
    try:
        yield running
    finally:
        server.stop()
