"""How many examples property tests of this directory try."""

from __future__ import annotations

from hypothesis import settings

properties = settings(max_examples=100)
few = settings(max_examples=25)
"""For what is asked of each of many kinds."""
many = settings(max_examples=400)
