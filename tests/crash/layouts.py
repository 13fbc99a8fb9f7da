"""In which layouts of the control file a workload is tried."""

from __future__ import annotations

import pytest

from waltzctl.formats.control import Layout

LAYOUTS = pytest.mark.parametrize("layout", list(Layout))
ONE_LAYOUT = pytest.mark.parametrize(
    "layout", [Layout.RELEASED, pytest.param(Layout.DOCUMENTED, marks=pytest.mark.long)]
)
"""Where the layouts take the same way through the engine the default run tries one."""
