"""json: one document.

For a command with exactly one object the document is that object; for others it is an array of the objects that ndjson would
show, in the same order.  Each object is on a line of its own.
"""

from __future__ import annotations

from typing import TextIO

from waltzctl import lossless_json
from waltzctl.engine.columns.column import Object


class JsonWriter:
    """A single object, or an array that is complete once the writer is closed."""

    def __init__(self, stream: TextIO, *, single: bool) -> None:
        self._stream = stream
        self._single = single
        self._count = 0
        self._closed = False

    def write(self, shown: Object) -> None:
        """Show one object."""
        front, behind = ("", "\n") if self._single else (",\n" if self._count else "[\n", "")
        lossless_json.write(shown, self._stream.write, front=front, behind=behind)
        self._count += 1

    def close(self) -> None:
        """End the array."""
        if not self._closed and not self._single:
            self._stream.write("\n]\n" if self._count else "[]\n")
        self._closed = True
