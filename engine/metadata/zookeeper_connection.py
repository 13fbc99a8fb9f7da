"""Connections to ZooKeeper through kazoo, with a deadline for connecting, and without waiting on close.

Authentication: ``USER:PASSWORD`` in the environment variable `AUTH_VARIABLE`, or in the file that `AUTH_FILE_VARIABLE` names, for
every program of this package, since all connect here.  Znodes they create are then accessible to that user alone (weakness Z7);
without it they are open to anybody, as programs of release 0.13.2 need them.

Kazoo is imported where it is used, because importing it takes as long as a short command.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from waltzctl.engine.errors import InvalidRequestError, PeerUnreachableError
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.net.small_file import read_first_line

AUTH_VARIABLE = "WALTZCTL_ZOOKEEPER_AUTH"
AUTH_FILE_VARIABLE = "WALTZCTL_ZOOKEEPER_AUTH_FILE"
UNREADABLE = (struct.error, ValueError, LookupError, TypeError)
"""What kazoo raises for an answer that is none of ZooKeeper's."""
_CLOSE_SECONDS = 1.0
"""Seconds to wait for a connection to close; then it is left to a daemon thread."""
_LEAST_SHARE = 0.5
"""Seconds for one address to answer, however many there are: a new session is written to the disks of a quorum first."""


class _LastWarning(logging.Handler):
    """A handler that keeps kazoo's last warning, for the message when connecting fails."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def zookeeper_auth(environment: Mapping[str, str] | None = None) -> str | None:
    """The credentials for ZooKeeper, ``USER:PASSWORD``; None: no authentication.

    Raises InvalidRequestError, which never shows a password, and DiskReadError.
    """
    given = os.environ if environment is None else environment
    text, file, source = given.get(AUTH_VARIABLE), given.get(AUTH_FILE_VARIABLE), AUTH_VARIABLE
    if text and file:
        raise InvalidRequestError(f"{AUTH_VARIABLE} and {AUTH_FILE_VARIABLE} are both set", advice="unset one of them")
    if file:
        source = f"{file}, which {AUTH_FILE_VARIABLE} names"
        text = read_first_line(Path(file), AUTH_FILE_VARIABLE)
    elif not text:
        return None
    user, colon, password = (text or "").partition(":")
    if not (user and colon and password):
        raise InvalidRequestError(f"{source}: is not USER:PASSWORD")
    return text


class Contact:
    """What kazoo knows of a session without publishing it.  Written in kazoo's threads; may be read in any thread.

    `granted`: the session timeout in seconds as the ensemble set it, which may be less than requested; None before the first
    answer.  `heard`: the time of the last message from ZooKeeper, by ``time.monotonic``.
    """

    def __init__(self, client: Any) -> None:
        self.granted: float | None = None
        self.heard = time.monotonic()
        connection = client._connection
        invoke, read = connection._invoke, connection._read_socket

        def heard_invoke(*given: Any, **more: Any) -> Any:
            result = invoke(*given, **more)
            if isinstance(result, tuple) and result[0].time_out > 0:  # handshake of a session that is in force
                self.granted = result[0].time_out / 1000
                self.heard = time.monotonic()
            return result

        def heard_read(*given: Any) -> Any:
            result = read(*given)
            self.heard = time.monotonic()
            return result

        connection._invoke, connection._read_socket = heard_invoke, heard_read


@contextlib.contextmanager
def connected(options: ZooKeeperOptions) -> Iterator[tuple[Any, Contact]]:
    """A connected kazoo client, and its `Contact`.

    Raises PeerUnreachableError, and InvalidRequestError for an invalid connect string.
    """
    from kazoo.client import KazooClient
    from kazoo.security import CREATOR_ALL_ACL

    auth = zookeeper_auth()
    library = logging.Logger("zookeeper", logging.WARNING)  # not a child of our loggers: it logs several lines a second
    last_warning = _LastWarning()
    library.addHandler(last_warning)
    try:
        client = KazooClient(
            hosts=options.connect_string,
            timeout=options.session_timeout,
            logger=library,
            auth_data=[("digest", auth)] if auth else None,
            default_acl=CREATOR_ALL_ACL if auth else None,
        )
    except ValueError as error:
        raise InvalidRequestError(
            f"zookeeper.connectString {options.connect_string!r} is not understood: {error}",
            advice="write for instance zk1:2181,zk2:2181",
        ) from None
    _bound_attempts(client, options.connect_timeout)
    contact = Contact(client)
    try:
        client.start_async().wait(options.connect_timeout)
        if not client.connected:
            why = f": {last_warning.text}" if last_warning.text else ""
            raise PeerUnreachableError(
                f"ZooKeeper at {options.connect_string}",
                f"no connection within {options.connect_timeout:g} s{why}",
                advice="check the connect string and that the ensemble runs",
            )
        yield client, contact
    finally:
        _close(client)


def drop_wakes(client: Any) -> None:
    """Remove the bytes that wake kazoo's thread for calls which it does not have any more: they were lost with a connection.

    To be called in that thread, before it sends a call.  Each call that it has keeps one: they are removed first and then written
    again, as another thread may add a call, and behind it its byte, at any moment.
    """
    connection = client._connection
    with contextlib.suppress(BlockingIOError):
        while connection._read_sock.recv(4096, socket.MSG_DONTWAIT):
            pass
    if calls := len(client._queue):
        connection._write_sock.send(bytes(calls))


def _bound_attempts(client: Any, seconds: float) -> None:
    """Divide `seconds` among the addresses of the ensemble's hosts, as the timeout of an attempt to connect to each.

    Kazoo would wait for a host that hangs as long as the session timeout, and the session would be over then.  None gets less
    than `_LEAST_SHARE`, so that a healthy one among many is not given up.  A host that cannot be looked up, for whatever reason,
    is left out until the next attempt: most reasons would end kazoo's thread, and nobody would connect again.
    """
    share = seconds
    handler, connection = client.handler, client._connection
    connect, invoke = handler.create_connection, connection._invoke

    def looked_up() -> list[tuple[str, str, int]]:
        nonlocal share
        found: list[tuple[str, str, int]] = []
        for host, port in client.hosts:
            try:
                places = socket.getaddrinfo(host.strip(), port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:  # UnicodeError: no possible name
                client.logger.warning("Cannot resolve %s: %s", host, error)
            else:
                found += ((host, str(where[0]), int(where[1])) for *_, where in places)
        share = max(seconds / max(1, len(found)), min(seconds, _LEAST_SHARE))
        random.shuffle(found)
        return found

    def bounded_connect(*given: Any, timeout: float, **more: Any) -> Any:
        return connect(*given, timeout=min(timeout, share), **more)

    def bounded_invoke(timeout: float, *given: Any, **more: Any) -> Any:
        return invoke(min(timeout, share), *given, **more)

    connection._expand_client_hosts = looked_up
    handler.create_connection, connection._invoke = bounded_connect, bounded_invoke


def _close(client: Any) -> None:
    """Close a client without waiting for an attempt to connect: kazoo would wait for it up to ten seconds."""

    def close() -> None:
        from kazoo.exceptions import KazooException

        with contextlib.suppress(KazooException, OSError):
            client.stop()
            client.close()

    closing = threading.Thread(target=close, name="zookeeper-close", daemon=True)
    closing.start()
    closing.join(_CLOSE_SECONDS)
