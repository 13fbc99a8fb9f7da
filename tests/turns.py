"""Which of many cases the default run tries: on each day the next part of them, with ``--long`` all.

What is so large that all of it would take minutes is still tried whole, by runs of as many days as there are parts.  Where one
fails its name says which it was: ``--long -k NAME`` tries it on any day.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Any

import pytest

TODAY = datetime.datetime.now(datetime.UTC).toordinal()


def is_todays(place: int, parts: int) -> bool:
    """Whether the case at `place` belongs to today's part."""
    return (place + TODAY) % parts == 0


def by_turns(cases: Iterable[Any], parts: int) -> list[Any]:
    """The cases as parameters; a tuple is several.  Those that are not of today's part are marked as long."""
    return [
        pytest.param(
            *(one if isinstance(one, tuple) else (one,)), marks=() if is_todays(place, parts) else pytest.mark.long
        )
        for place, one in enumerate(cases)
    ]


def one_of(parts: int, place: int) -> Callable[[Any], Any]:
    """A test that is a case by itself, at `place` among its neighbours."""
    return (lambda test: test) if is_todays(place, parts) else pytest.mark.long
