"""In which layouts of the control file a workload is tried."""

from __future__ import annotations

import pytest

from tests.turns import by_turns
from waltzctl.formats.control import Layout

LAYOUTS = pytest.mark.parametrize("layout", list(Layout))
ONE_LAYOUT = pytest.mark.parametrize("layout", by_turns(Layout, 2))
"""Where the layouts take the same way through the engine the default run tries one on each day."""
