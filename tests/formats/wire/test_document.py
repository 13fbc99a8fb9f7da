"""``docs/wire.md`` holds what the schemas say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.formats.wire import admin, storage

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wire_tables", DOCS / "wire_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_schemas(tables: ModuleType) -> None:
    text = (DOCS / "wire.md").read_text()
    assert tables.rendered(text) == text, "run python docs/wire_tables.py"


def test_every_table_is_in_the_document(tables: ModuleType) -> None:
    text = (DOCS / "wire.md").read_text()
    assert [name for name in tables.TABLES if f"<!-- table: {name} -->" not in text] == []


def test_every_request_has_its_answer(tables: ModuleType) -> None:
    for port in (storage, admin):
        requests = {kind for kind in tables.ANSWERS if kind.__module__ == port.__name__}
        assert {kind.TYPE for kind in requests} == port.REQUEST_TYPES


def test_the_patience_of_a_node_is_what_the_document_says() -> None:
    limits = PortLimits()
    assert (limits.idle_seconds, limits.stall_seconds, limits.unread_seconds) == (25 * 60, 60, 60)
