"""The metrics of a node with thousands of partitions, which are one string."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.node.running import run, running
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.net.metrics_json import indented
from waltzctl.engine.node.node import Node


@pytest.mark.turns(8)
def test_they_are_read_whatever_their_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as those of 3,000 busy partitions."""
    length = 75 << 20
    monkeypatch.setattr(Node, "_registry", lambda _: "x" * length)
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path) as node:
            where = node.addresses
            async with await AdminClient.connect(where.host, where.admin_port, ssl_context=None) as client:
                assert len(await client.metrics()) == length

    run(work())


def test_a_list_of_numbers_is_laid_out_as_any_other() -> None:
    assert indented([1, -2, 3]) == "[ 1, -2, 3 ]"
    assert indented((7,)) == "[ 7 ]"
    assert indented([1, True, 2.5, None, "a"]) == '[ 1, true, 2.5, null, "a" ]'
