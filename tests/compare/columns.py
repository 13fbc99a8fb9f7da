"""Replicas of a few transactions as texts: a letter is a version of the record, ``!`` a damaged place, ``.`` nothing."""

from __future__ import annotations

from waltzctl.engine.quorum.vote import ABSENT, DAMAGED, Run


def versions_at(number: int, columns: tuple[str, ...]) -> tuple[int, ...]:
    """What stands under an id in each replica."""
    first: dict[str, int] = {}
    marks = [one[number] if number < len(one) else "." for one in columns]
    return tuple(
        ABSENT if mark == "." else DAMAGED if mark == "!" else first.setdefault(mark, replica)
        for replica, mark in enumerate(marks)
    )


def runs_of(*columns: str) -> list[Run]:
    """The runs of such replicas; ids in a row that are alike are one."""
    found: list[Run] = []
    for number in range(max(map(len, columns))):
        versions = versions_at(number, columns)
        if found and found[-1].versions == versions:
            found[-1] = Run(found[-1].first, number + 1, versions)
        else:
            found.append(Run(number, number + 1, versions))
    return found
