r"""ndjson: one object a line, in ASCII, so that it does not depend on the locale.

In a file name that is no UTF-8, undecodable bytes are lone surrogates (``\\udcff`` for 0xff), which Python reads back.
"""

from __future__ import annotations

from typing import TextIO

from waltzctl import lossless_json
from waltzctl.engine.columns.column import Object


def encode(shown: Object) -> str:
    """One object as one line of JSON, without the line's end."""
    return lossless_json.encode(shown)


class NdjsonWriter:
    """Objects, one a line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, shown: Object) -> None:
        """Show one object."""
        lossless_json.write(shown, self._stream.write, behind="\n")

    def close(self) -> None:
        """Nothing to do: nothing is buffered."""
