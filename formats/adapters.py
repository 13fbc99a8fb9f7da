"""Value adapters that several layouts share: they convert between raw bytes and a Python type."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from construct import Adapter, Bytes


class _UuidAdapter(Adapter):  # type: ignore[misc]  # construct carries no types
    """16 bytes: most significant 64 bits, then least significant 64 bits, each big-endian."""

    def _decode(self, obj: bytes, context: Any, path: Any) -> uuid.UUID:
        return uuid.UUID(bytes=bytes(obj))

    def _encode(self, obj: uuid.UUID, context: Any, path: Any) -> bytes:
        return obj.bytes


Uuid = _UuidAdapter(Bytes(16))


def format_time(milliseconds: int) -> str | None:
    """Milliseconds since 1970-01-01 UTC as RFC 3339 with milliseconds; None outside of the calendar (a damaged header)."""
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC).replace(tzinfo=None)
    except (OverflowError, ValueError, OSError):
        return None
    return f"{moment.isoformat(timespec='seconds')}.{milliseconds % 1000:03d}Z"
