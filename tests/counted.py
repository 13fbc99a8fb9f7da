"""Rows that count how often they are read, for tests of work that must grow with their number and not with its square."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class Counted(tuple[T, ...]):
    """A tuple; `handed`: how many of its items were handed out by iteration, in all."""

    handed: int

    def __new__(cls, items: Iterable[T] = ()) -> Counted[T]:
        """With nothing handed out."""
        made = super().__new__(cls, items)
        made.handed = 0
        return made

    def __iter__(self) -> Iterator[T]:
        for item in super().__iter__():
            self.handed += 1
            yield item


class CountedName(str):
    """A name; `compared`: how often names of this class were compared with a prefix, in all."""

    __slots__ = ()
    compared = 0

    def startswith(self, *arguments: object) -> bool:  # type: ignore[override]
        """As of every string."""
        CountedName.compared += 1
        return super().startswith(*arguments)  # type: ignore[arg-type]
