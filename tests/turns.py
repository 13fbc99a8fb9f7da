"""Which tests the default run tries: of those that take turns the day's part, with ``--long`` all.

``@pytest.mark.turns(PARTS)``, at a test or for a whole module (``pytestmark``), says that the cases of a test take turns: each of
them comes on one of PARTS days in a row, a test of a single case too.  What would take minutes as a whole is tried whole by the
runs of as many days as there are parts.  Where one fails its name says which it was: naming it (``pytest FILE::NAME``) tries it
on any day, and ``--every-turn`` all of them.
"""

from __future__ import annotations

import datetime
import zlib
from collections import Counter
from collections.abc import Iterable

import pytest

TODAY = datetime.datetime.now(datetime.UTC).toordinal()


def is_todays(place: int, parts: int) -> bool:
    """Whether the case at `place` belongs to today's part."""
    return (place + TODAY) % parts == 0


def waiting(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Those that come on another day, of all that were collected.

    The cases of a test go round in their order, so that each day has as many of them; with which day a test begins follows from
    its name, so that the tests of a module do not all come on one.  The mark of tests that share what is costly says it itself:
    ``turns(3, place=1)``.
    """
    seen: Counter[str] = Counter()
    found = set()
    for item in items:
        mark = item.get_closest_marker("turns")
        if mark is None:
            continue
        test = item.nodeid.partition("[")[0].partition("@")[0]
        place = mark.kwargs.get("place", zlib.crc32(test.encode())) + seen[test]
        seen[test] += 1
        if not is_todays(place, *mark.args):
            found.add(item)
    return found
