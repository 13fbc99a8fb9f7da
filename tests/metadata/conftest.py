"""Each test of a store runs over all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metadata.stores import KINDS, Stores


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """Connections to an empty store."""
    server = request.getfixturevalue("zookeeper") if request.param == "zookeeper" else None
    return Stores(tmp_path / "metadata", server)
