"""A connection to ZooKeeper that ends: connecting has a deadline, and closing waits for nothing that is still being attempted.

The library is imported where it is used: it takes as long as a short command.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from waltzctl.engine.errors import InvalidRequestError, PeerUnreachableError
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions

_PATIENCE = 1.0
"""Seconds that closing a connection which never was one may take before the program goes on without it."""


class _LastWords(logging.Handler):
    """Keeps the last thing the ZooKeeper library complained of; it says why a connection did not come about."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


@contextlib.contextmanager
def connected(options: ZooKeeperOptions) -> Iterator[Any]:
    """A connected client.  Raises PeerUnreachableError, InvalidRequestError for a connect string that is none."""
    from kazoo.client import KazooClient

    library = logging.Logger("zookeeper", logging.WARNING)  # its lines would be ours otherwise, several a second
    last_words = _LastWords()
    library.addHandler(last_words)
    try:
        # the library waits this long within one attempt, whatever it was told about all of them
        patience = min(options.session_timeout, options.connect_timeout)
        client = KazooClient(hosts=options.connect_string, timeout=patience, logger=library)
    except ValueError as error:
        raise InvalidRequestError(
            f"zookeeper.connectString {options.connect_string!r} is not understood: {error}",
            advice="write for instance zk1:2181,zk2:2181",
        ) from None
    try:
        client.start_async().wait(options.connect_timeout)
        if not client.connected:
            why = f": {last_words.text}" if last_words.text else ""
            raise PeerUnreachableError(
                f"ZooKeeper at {options.connect_string}",
                f"no connection within {options.connect_timeout:g} s{why}",
                advice="check the connect string and that the ensemble runs",
            )
        yield client
    finally:
        _close(client)


def _close(client: Any) -> None:
    """End a connection without waiting for one that is still being attempted: the library would, for up to ten seconds."""

    def close() -> None:
        from kazoo.exceptions import KazooException

        with contextlib.suppress(KazooException, OSError):
            client.stop()
            client.close()

    closing = threading.Thread(target=close, name="zookeeper-close", daemon=True)
    closing.start()
    closing.join(_PATIENCE)
