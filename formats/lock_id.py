"""The 32-bit id of an optimistic lock, by which clients and servers of Waltz name it.

A lock has a name and a 64-bit number.  Its id is the Java hash of the name (``h = 31 h + code unit``, over UTF-16, modulo 2^32)
XOR the upper and the lower word of the number.  Different locks may have one id, which makes them conflict and nothing worse.

Source: release 0.13.2.
"""

from __future__ import annotations

from functools import lru_cache

_WORD = 0xFFFFFFFF


@lru_cache(maxsize=1 << 12)
def _name_hash(name: str) -> int:
    """Unsigned.  Few names stand for all the locks of a program, and this is most of the way."""
    units = name.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for at in range(0, len(units), 2):
        hashed = (31 * hashed + (units[at] << 8 | units[at + 1])) & _WORD
    return hashed


def lock_id(name: str, number: int) -> int:
    """The id of a lock, as the signed integer that travels.  `number` counts modulo 2^64."""
    found = _name_hash(name) ^ (number >> 32 & _WORD) ^ (number & _WORD)
    return found - (1 << 32) if found >> 31 else found
