"""In which layouts of the control file a workload is tried."""

from __future__ import annotations

from typing import TypeVar

import pytest

from waltzctl.formats.control import Layout

_Test = TypeVar("_Test")
LAYOUTS = pytest.mark.parametrize("layout", list(Layout))


def EACH_DAY(test: _Test) -> _Test:  # noqa: N802  stands where LAYOUTS stands
    """In both, one on each day: for what is to be tried on each."""
    return pytest.mark.turns(len(Layout))(LAYOUTS(test))
