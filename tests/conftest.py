"""What every test shares: the flag for long variants."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the thorough variants that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    skip = pytest.mark.skip(reason="thorough variant; run with --long")
    for item in items:
        if "long" in item.keywords:
            item.add_marker(skip)
