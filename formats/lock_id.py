"""The 32-bit id of an optimistic lock in the protocol between clients and servers.

A lock has a name and a 64-bit number.  Its id is the Java hash of the name (``h = 31 h + code unit``, over UTF-16, modulo 2^32)
XOR the upper and the lower word of the number.  Two locks with the same id conflict with each other, which is harmless: an append
is refused needlessly and sent again.

Source: release 0.13.2.
"""

from __future__ import annotations

from functools import lru_cache

_WORD = 0xFFFFFFFF


@lru_cache(maxsize=1 << 12)
def _name_hash(name: str) -> int:
    """The hash of a name, unsigned.  Cached, because a program uses few names and the hash is most of the cost of an id."""
    units = name.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for at in range(0, len(units), 2):
        hashed = (31 * hashed + (units[at] << 8 | units[at + 1])) & _WORD
    return hashed


def lock_id(name: str, number: int) -> int:
    """The id of a lock, as the signed integer that is sent.  `number` is taken modulo 2^64."""
    found = _name_hash(name) ^ (number >> 32 & _WORD) ^ (number & _WORD)
    return found - (1 << 32) if found >> 31 else found
