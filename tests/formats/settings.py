"""How property tests of this directory run: no deadline, because a slow machine is no failure."""

from __future__ import annotations

from hypothesis import settings

properties = settings(deadline=None, max_examples=200)
