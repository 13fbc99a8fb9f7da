"""The programs of docs/client.md, over a cluster that really runs."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import ClusterOfProcesses

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text()


def programs() -> dict[str, Any]:
    """What each program of the page is called, and the program: its last function."""
    found = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        names: dict[str, Any] = {}
        exec(code, names)  # our own page
        name = re.findall(r"^async def (\w+)", code, re.M)[-1]
        found[name] = names[name]
    return found


@pytest.fixture(scope="module", name="program")
def _program() -> dict[str, Any]:
    return programs()


def test_these_are_the_programs(program: dict[str, Any]) -> None:
    assert [*program] == ["append_and_read", "append_a_thousand", "count_to_ten", "follow"]


@pytest.mark.turns(10)
def test_append_and_read(made: ClusterOfProcesses, program: dict[str, Any]) -> None:
    assert asyncio.run(program["append_and_read"](made.metadata)) == [b"hello", b"world"]


def test_append_a_thousand(made: ClusterOfProcesses, program: dict[str, Any]) -> None:
    ids = asyncio.run(program["append_a_thousand"](made.metadata))
    first = ids[0]
    assert ids == {place: first + place for place in range(1000)}


def test_count_to_ten(made: ClusterOfProcesses, program: dict[str, Any]) -> None:
    assert asyncio.run(program["count_to_ten"](made.metadata)) == [*range(10)]


def test_follow(made: ClusterOfProcesses, program: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "db"
    asyncio.run(program["follow"](made.metadata, path))  # what other tests wrote
    for words, new in (("one\ntwo\none\n", 3), ("", 0), ("two\n", 1)):
        if words:
            assert made.log("append", "--partition", 2, given=words).status == 0
        assert asyncio.run(program["follow"](made.metadata, path)) == new
    connection = sqlite3.connect(path)
    assert dict(connection.execute("SELECT * FROM words WHERE word IN ('one', 'two')")) == {"one": 2, "two": 2}
    connection.close()
