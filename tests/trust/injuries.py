"""The register of injuries: what can be done to a directory, what verify calls it, and whether a replica makes up for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.trust.scene import Scene


@dataclass(frozen=True)
class Injury:
    """One kind of damage.

    `strike` does it to a scene and says where; it raises NotHereError where it has no place.  `shows`: what verify may call it
    where nothing else is damaged; empty for what depends on where it strikes.  `mends`: a sound replica brings back all that it
    destroys.  `last`: nothing may be done to the directory afterwards.
    """

    name: str
    strike: Callable[[Scene], str]
    shows: frozenset[str] = frozenset()
    mends: bool = False
    weight: float = 1.0
    last: bool = False


REGISTER: dict[str, Injury] = {}


def injury(
    name: str, *shows: str, mends: bool = False, weight: float = 1.0, last: bool = False
) -> Callable[[Callable[[Scene], str]], Callable[[Scene], str]]:
    """Register a function of a scene under a name."""

    def register(strike: Callable[[Scene], str]) -> Callable[[Scene], str]:
        assert name not in REGISTER, name
        REGISTER[name] = Injury(name, strike, frozenset(shows), mends, weight, last)
        return strike

    return register
