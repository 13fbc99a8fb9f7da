"""Client ids that feeds used, for feeds that come later.

Each feed needs a client id that no other client has at that time.  To issue one is a write to the metadata, and a cluster has
2^31 of them, for all of its clients and for good: a stream that reads hundreds of partitions anew in each of its batches would
use them up within months.  So a feed takes the id of one that has ended.

A client id that appends is never used again: its request ids are in the log.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import deque

REST = 5.0
"""Seconds for which an id is not used again: servers are to have seen the end of its connections before."""


class ReaderIds:
    """The ids of one cluster that no feed of this process uses at present.  Thread-safe."""

    def __init__(self) -> None:
        self._free: deque[tuple[float, int]] = deque()  # with the time at which each was given back
        self._lock = threading.Lock()

    def take(self, now: float) -> int | None:
        """An id that was given back at least `REST` seconds before `now`, on a monotonic clock; None: there is none."""
        with self._lock:
            if not self._free or now - self._free[0][0] < REST:
                return None
            return self._free.popleft()[1]

    def give_back(self, client_id: int, now: float) -> None:
        """No connection of this id is left."""
        with self._lock:
            self._free.append((now, client_id))


class ReaderIdsOfProcess:
    """The ids of this process, shared by its clients of the same cluster.  Thread-safe."""

    def __init__(self) -> None:
        # a forked process must not use its parent's
        self._by_cluster: dict[tuple[int, str, uuid.UUID], ReaderIds] = {}

    def of(self, where: str, cluster_key: uuid.UUID) -> ReaderIds:
        """Those of the cluster with this key whose metadata is there: made again elsewhere, it issues the same ids anew."""
        return self._by_cluster.setdefault((os.getpid(), where, cluster_key), ReaderIds())
