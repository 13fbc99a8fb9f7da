"""What a look at a node reads off each partition, on values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from waltzctl.engine.errors import NotAssignedError
from waltzctl.engine.node.node_metrics import NodeMetrics
from waltzctl.engine.node.readings import read_node
from waltzctl.formats.control import FLAG_ASSIGNED, FLAG_AVAILABLE, PartitionStruct


class Storage:
    """A directory with these current structs; a partition of which there is no struct at all was taken away."""

    def __init__(self, structs: dict[int, PartitionStruct | None]) -> None:
        self._structs = structs
        self.partitions = [-1, *structs, 99]

    def partition(self, number: int) -> Any:
        if number not in self._structs:
            raise NotAssignedError(number)
        return SimpleNamespace(max_transaction_id=100 + number)

    def info(self, number: int) -> Any:
        return SimpleNamespace(current_struct=self._structs[number])


class Hosted:
    """Partition 1 is switched on; 2 has a queue, and 3 is out of service."""

    def assigned_status(self) -> list[tuple[int, bool]]:
        return [(1, True), (2, False)]

    def service(self, number: int) -> Any:
        out = SimpleNamespace(code=SimpleNamespace(value="segment-gap"))
        return {
            2: SimpleNamespace(queue_size=7, access=SimpleNamespace(outage=None)),
            3: SimpleNamespace(queue_size=0, access=SimpleNamespace(outage=out)),
        }.get(number)


def test_the_gauges_of_a_partition_are_those_of_its_struct() -> None:
    structs: dict[int, PartitionStruct | None] = {
        3: PartitionStruct(5, 40, 30, flags=6, sequence=8),
        1: PartitionStruct(4, 20, 10),
        2: PartitionStruct(2, 12, 11, flags=0, sequence=0),
        0: None,
    }
    found = read_node(Storage(structs), Hosted(), NodeMetrics(), version="9")  # type: ignore[arg-type]
    assert (found.version, found.assigned) == ("9", (0, 1, 2, 3))
    told = {
        one.partition: (
            one.gauges.flags,
            one.gauges.session_id,
            one.gauges.low_water_mark,
            one.gauges.local_low_water_mark,
            one.gauges.sequence_number,
            one.gauges.max_transaction_id,
            one.gauges.process_queue_size,
            one.out_of_service,
        )
        for one in found.partitions
    }
    nothing = PartitionStruct()
    assert told == {
        0: (FLAG_ASSIGNED, nothing.session_id, nothing.low_water_mark, nothing.local_low_water_mark, 0, 100, 0, None),
        1: (FLAG_ASSIGNED | FLAG_AVAILABLE, 4, 20, 10, 0, 101, 0, None),
        2: (0, 2, 12, 11, 0, 102, 7, None),
        3: (6, 5, 40, 30, 8, 103, 0, "segment-gap"),
    }
    assert {type(number) for one in told.values() for number in one[:-1]} == {int}
    names = {one.name for one in found.metrics()}
    assert {"waltz-storage-num-partitions", "sequence-number", "append", "append-latency"} <= names


@pytest.mark.parametrize("available", [True, False])
def test_without_flags_a_partition_is_told_as_the_released_layout_would(available: bool) -> None:
    hosted = SimpleNamespace(assigned_status=lambda: [(0, available)], service=lambda _: None)
    found = read_node(Storage({0: PartitionStruct(1, 2, 3)}), hosted, NodeMetrics(), version="9")  # type: ignore[arg-type]
    assert found.partitions[0].gauges.flags == FLAG_ASSIGNED | (FLAG_AVAILABLE if available else 0)
