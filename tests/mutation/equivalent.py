"""Mutants that do what the code does, or nothing that a promise is about; each with the reason.  The measure leaves them out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Equivalent:
    """A mutant as `Mutant.key` names it, and why no test could notice it, or none should."""

    file: str
    function: str
    old: str
    new: str
    reason: str
    nth: int = 1

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """The key of its mutant."""
        return self.file, self.function, self.old, self.new, self.nth


EQUIVALENT: tuple[Equivalent, ...] = ()
