"""Which files of some directories are opened, by whatever process: the system's own record of it (inotify)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

_OPEN = 0x20
_NONBLOCK = 0o4000
_EVENT = struct.Struct("iIII")


class Opened:
    """A context manager; `names` are the files below the directories that were opened since."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._directories = list(directories)
        self._descriptor = -1
        self._watches: dict[int, Path] = {}

    def __enter__(self) -> Self:
        self._descriptor = self._library.inotify_init1(_NONBLOCK)
        assert self._descriptor >= 0, os.strerror(ctypes.get_errno())
        for directory in self._directories:
            watch = self._library.inotify_add_watch(self._descriptor, os.fsencode(directory), _OPEN)
            assert watch >= 0, os.strerror(ctypes.get_errno())
            self._watches[watch] = directory
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def names(self) -> set[Path]:
        """Files opened since the beginning or the last call; directories that are listed do not count."""
        found: set[Path] = set()
        while True:
            try:
                events = os.read(self._descriptor, 1 << 20)
            except BlockingIOError:
                return found
            at = 0
            while at < len(events):
                watch, mask, _, length = _EVENT.unpack_from(events, at)
                at += _EVENT.size
                name = events[at : at + length].rstrip(b"\0").decode()
                at += length
                assert watch >= 0, "more events than the system keeps"
                if name and not mask & 0x40000000:
                    found.add(self._watches[watch] / name)
