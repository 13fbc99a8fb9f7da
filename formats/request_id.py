"""Request id: the 16 bytes with which a client identifies each of its transactions and requests.

Four signed big-endian 32-bit integers: client id, generation of the partition's assignment, partition, sequence.  The
release carries them as two 64-bit words, most significant first; the bytes are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from construct import Int32sb, Struct

from waltzctl.formats.schema import compile_schema

REQUEST_ID_SCHEMA = Struct("client" / Int32sb, "generation" / Int32sb, "partition" / Int32sb, "sequence" / Int32sb)
REQUEST_ID = compile_schema(REQUEST_ID_SCHEMA)
NO_CLIENT = NO_PARTITION = -1
"""Client id of requests of no mounted client, and partition of requests about no partition."""
LAST_SEQUENCE = (1 << 31) - 1
"""The highest sequence number; in the release the lowest one follows it."""


def _signed32(value: int) -> int:
    return value - (1 << 32) if value & 0x80000000 else value


def _signed64(value: int) -> int:
    return value - (1 << 64) if value & (1 << 63) else value


@dataclass(frozen=True, slots=True)
class RequestId:
    """Four signed 32-bit integers."""

    client: int
    generation: int
    partition: int
    sequence: int

    def by_name(self) -> dict[str, int]:
        """The four numbers by their names, in the order of the layout."""
        return {
            "client": self.client,
            "generation": self.generation,
            "partition": self.partition,
            "sequence": self.sequence,
        }

    @classmethod
    def from_words(cls, high: int, low: int) -> RequestId:
        """From two 64-bit words, signed or unsigned, as the release holds them in memory."""
        high &= (1 << 64) - 1
        low &= (1 << 64) - 1
        return cls(
            _signed32(high >> 32), _signed32(high & 0xFFFFFFFF), _signed32(low >> 32), _signed32(low & 0xFFFFFFFF)
        )

    @property
    def words(self) -> tuple[int, int]:
        """The two signed 64-bit words, most significant first."""
        high = ((self.client & 0xFFFFFFFF) << 32) | (self.generation & 0xFFFFFFFF)
        low = ((self.partition & 0xFFFFFFFF) << 32) | (self.sequence & 0xFFFFFFFF)
        return _signed64(high), _signed64(low)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> RequestId:
        """From 16 bytes.  Raises struct.error when there are not exactly 16."""
        return cls(*REQUEST_ID.struct.unpack(data))

    def encode(self) -> bytes:
        """16 bytes.  Raises struct.error when a part does not fit 32 bits."""
        return REQUEST_ID.struct.pack(self.client, self.generation, self.partition, self.sequence)

    def __str__(self) -> str:
        return f"{self.client}.{self.generation}.{self.partition}.{self.sequence}"
