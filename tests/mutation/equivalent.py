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


_COMPARE = (
    Equivalent(
        "engine/compare/directories.py",
        "Directories._member",
        "known = mark is not None or proven > 0",
        "known = mark is not None or proven >= 0",
        "held up to -1 is held up to nothing: no run lies below it, and no border comes of it",
    ),
    Equivalent(
        "engine/compare/reading.py",
        "Reading.damage",
        "return scanned.size, 0",
        "return scanned.size, (-1)",
        "whoever is sent to the end of the file reads nothing more, under whatever id",
    ),
    Equivalent(
        "engine/compare/reading.py",
        "Reading.damage",
        "return scanned.size, 0",
        "return scanned.size, 1",
        "whoever is sent to the end of the file reads nothing more, under whatever id",
    ),
)

_BOTH = "both structs of a pair are of one layout, so that both have a sequence number or none"
_LINE = "if first.sequence is not None and second.sequence is not None:"
_FORMATS = tuple(
    Equivalent("formats/control.py", "choose_current", _LINE, new, _BOTH)
    for new in (
        "if True and second.sequence is not None:",
        "if first.sequence is not None and True:",
        "if first.sequence is not None or second.sequence is not None:",
    )
)

EQUIVALENT: tuple[Equivalent, ...] = (*_COMPARE, *_FORMATS)
