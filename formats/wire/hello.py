"""Hello: the first frame in either direction, and the choice of a version.

Both ends send one as soon as they are connected; neither waits for the other.  The body has no message type.  Afterwards both
speak the highest version that both named; without one the connection is closed.  The text is only logged.

Source: release 0.13.2 (its networking library, 2.5.2).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from construct import ConstructError, Int16sb, Struct

from waltzctl.formats.checksums import Buffer
from waltzctl.formats.wire.frame import Magic, frame
from waltzctl.formats.wire.primitives import DEFAULT_LIMITS, Limits, ListOf, MessageError, NullableText

HELLO_VERSION = 0
"""Version in the header of a Hello frame."""
HELLO_SCHEMA = Struct("versions" / ListOf("versions", Int16sb, 2), "text" / NullableText)

STORAGE_SERVER = "Waltz Storage Server"
STORAGE_CLIENT = "Waltz Storage Client"
ADMIN_SERVER = "Waltz Storage Admin Server"
ADMIN_CLIENT = "Waltz Storage Admin Client"
WALTZ_SERVER = "Waltz Server"
WALTZ_CLIENT = "Waltz Client"


@dataclass(frozen=True, slots=True)
class Hello:
    """What one end speaks.  `versions` in the order in which they stand; the release writes them ascending."""

    versions: tuple[int, ...]
    text: str

    def encode(self) -> bytes:
        """The whole frame.  Raises ValueError for a version that does not fit 16 bits."""
        try:
            body = HELLO_SCHEMA.build({"versions": self.versions, "text": self.text})
        except (ConstructError, struct.error) as error:
            raise ValueError(f"{self}: {error}") from error
        return frame(Magic.HELLO, HELLO_VERSION, body)

    @classmethod
    def decode(cls, body: Buffer, *, limits: Limits = DEFAULT_LIMITS) -> Hello:
        """From the body of a frame with the magic H.  A missing text is an empty one.  Raises MessageError."""
        stream = io.BytesIO(body)
        try:
            found = HELLO_SCHEMA.parse_stream(stream, limits=limits)
        except ConstructError as error:
            raise MessageError(f"Hello: a field goes beyond the body of {len(body)} bytes") from error
        except MessageError as error:
            raise MessageError(f"Hello: {error}") from None
        if stream.tell() != len(body):
            raise MessageError(f"Hello: {len(body) - stream.tell()} bytes are left over")
        return cls(found.versions, found.text or "")


def choose_version(ours: Iterable[int], theirs: Iterable[int]) -> int | None:
    """The highest version that both speak; None when there is none."""
    return max(set(ours) & set(theirs), default=None)
