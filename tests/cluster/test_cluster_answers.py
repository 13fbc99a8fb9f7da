"""What servers say of themselves, where one says nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.virtual_time import simulate
from waltzctl.engine.cluster.cluster_answers import _marks


class Moving:
    """A server from which partition 1 goes while it is asked."""

    async def high_water_mark(self, partition: int) -> int:
        if partition == 1:
            await asyncio.sleep(3600.0)
        return 10 * partition


def test_a_mark_of_a_partition_that_went_is_not_waited_for_as_long_as_an_answer_may_take() -> None:
    async def work() -> float:
        client: Any = Moving()
        began = asyncio.get_running_loop().time()
        assert await _marks(client, [0, 1, 2]) == ((0, 0), (2, 20))
        return asyncio.get_running_loop().time() - began

    assert 0 < simulate(work()) < 10
