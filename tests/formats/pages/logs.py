"""Logs of a page store, made of the records that a test names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from waltzctl.formats.pages.blocks import cut_record


@dataclass(frozen=True)
class Log:
    """A file, and where each record stands in it: from its first fragment to behind its last one."""

    data: bytes
    spans: list[tuple[int, int]]


def log_of(payloads: Iterable[bytes], number: int = 7) -> Log:
    """As they are written one behind another."""
    data, spans = bytearray(), []
    for payload in payloads:
        written = cut_record(payload, len(data), number)
        start = len(data) + next((place for place, byte in enumerate(written) if byte), 0)
        if len(data) % 32_768 <= 32_768 - 15:
            start = len(data)
        data += written
        spans.append((start, len(data)))
    return Log(bytes(data), spans)
