"""Room for answers: how long an answer may become, with regard to all that wait for peers to take them.

A list of records is made by a worker and sent by the event loop, so many workers could find the same room empty.  Whoever is
about to make a long answer is therefore promised its room beforehand; once the answer is made only its own size counts, until
the system has taken it.  When everything is promised a moderate answer may be made all the same, as long as it is promises
and not answers that fill the room: most promises are kept with much less.
"""

from __future__ import annotations

import threading

_MODERATE = 512 << 10


class AnswerRoom:
    """`capacity` bytes for the answers of all connections of a port, `longest` for one of them.  Thread-safe."""

    def __init__(self, capacity: int, longest: int) -> None:
        self.capacity, self.longest = capacity, longest
        self.queued = 0
        """Bytes of answers in the connections' write buffers."""
        self.made = 0
        """Bytes of long answers on their way there."""
        self.promised = 0
        """Bytes for long answers that are being made."""
        self.lock = threading.Lock()


class Share:
    """What one connection has of the room."""

    def __init__(self, room: AnswerRoom) -> None:
        self._room = room
        self._made = 0
        self.queued = 0
        """Bytes of answers in the connection's write buffer."""

    def queue(self, queued: int) -> None:
        """So many bytes are in the write buffer now."""
        with self._room.lock:
            self._room.queued += queued - self.queued
            self.queued = queued

    def promise(self) -> int:
        """Bytes that one answer may have; followed by `make`."""
        room = self._room
        with room.lock:
            here = room.longest - self.queued - self._made
            everywhere = room.capacity - room.queued - room.made
            promised = max(0, min(here, everywhere, max(everywhere - room.promised, _MODERATE)))
            room.promised += promised
            return promised

    def make(self, promised: int, size: int) -> None:
        """The answer is made, it has `size` bytes; followed by `send`."""
        with self._room.lock:
            self._room.promised -= promised
            self._room.made += size
            self._made += size

    def send(self, size: int) -> None:
        """The answer is in the write buffer, or will not be sent."""
        with self._room.lock:
            self._room.made -= size
            self._made -= size
