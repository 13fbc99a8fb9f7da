"""A partition against a list: random appends, roll-overs, reads, truncations, sessions, torn tails and re-openings."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.blocks import encoded_block, wire_record
from tests.storage.support import entries
from waltzctl.engine.errors import BelowLowWaterMarkError
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions, create_cluster
from waltzctl.engine.storage.partition import Partition
from waltzctl.formats.control import Layout
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_records
from waltzctl.formats.wire.records import pack_record_headers, pack_records


class PartitionMachine(RuleBasedStateMachine):
    """The model: the records as a list, the marks as a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="waltzctl-test-"))
        self.path = self.root / "s"
        self.records: list[Record] = []
        self.marks = (-1, -1, -1)
        self.counter = 0
        self.storage: StorageDirectory | None = None

    @initialize(layout=st.sampled_from(list(Layout)), threshold=st.sampled_from([1, 300, 1000, 10**5, 10**6]))
    def create(self, layout: Layout, threshold: int) -> None:
        self.options = StorageOptions(threshold, cached_segments=2)
        create_cluster([self.path], num_partitions=2, layout=layout, assign=[1])
        self.open()

    def open(self) -> None:
        self.storage = StorageDirectory.open(self.path, options=self.options)

    @property
    def partition(self) -> Partition:
        assert self.storage is not None
        return self.storage.partition(1)

    @rule(sizes=st.lists(st.integers(0, 200), max_size=12))
    def append(self, sizes: list[int]) -> None:
        batch = []
        for size in sizes:
            self.counter += 1
            number = len(self.records) + len(batch)
            data = self.counter.to_bytes(4, "big") * (size // 4 + 1)
            batch.append(Record.make(number, RequestId(1, 2, 1, self.counter), size, data[:size]))
        self.partition.append(batch)
        self.records += batch

    @rule(shape=st.lists(st.tuples(st.lists(st.integers(0, 200), max_size=6), st.integers(1, 3)), max_size=4))
    def append_group(self, shape: list[tuple[list[int], int]]) -> None:
        """Blocks as a node's encoder makes them."""
        group, blocks = [], []
        for sizes, frames in shape:
            block = []
            for size in sizes:
                self.counter += 1
                number = len(self.records) + len(group) + len(block)
                block.append(Record.make(number, RequestId(1, 2, 1, self.counter), size, bytes(size)))
            blocks.append(encoded_block(block, frames))
            group += block
        self.partition.append_blocks(blocks)
        self.records += group

    @precondition(lambda self: self.storage is not None and self.options.segment_size_threshold > 1000)
    @rule(many=st.integers(990, 1010))
    def append_a_group_over_a_checkpoint(self, many: int) -> None:
        if len(self.records) > 3000:
            return
        first = len(self.records)
        batch = [Record.make(n, RequestId(0, 0, 1, n), 0, b"") for n in range(first, first + many)]
        self.partition.append_blocks([encoded_block(batch, 40)])
        self.records += batch

    @precondition(lambda self: self.storage is not None and self.options.segment_size_threshold > 1000)
    @rule(many=st.integers(990, 1010))
    def append_over_a_checkpoint(self, many: int) -> None:
        if len(self.records) > 3000:
            return
        first = len(self.records)
        batch = [Record.make(n, RequestId(0, 0, 1, n), 0, b"") for n in range(first, first + many)]
        self.partition.append(batch)
        self.records += batch

    @rule(back=st.integers(0, 40))
    def truncate(self, back: int) -> None:
        after = max(len(self.records) - 1 - back, -1)
        if after < self.marks[2] and after < len(self.records) - 1:
            try:
                self.partition.truncate(after)
            except BelowLowWaterMarkError:
                return
            raise AssertionError("cut below the local low-water mark")
        assert self.partition.truncate(after) == after
        del self.records[after + 1 :]

    @rule()
    def truncate_with_loss(self) -> None:
        after = len(self.records) // 2 - 1
        self.partition.truncate(after, allow_data_loss=True)
        del self.records[after + 1 :]
        self.marks = (*self.marks[:2], min(self.marks[2], after))

    @rule(session=st.integers(0, 2), ahead=st.integers(0, 5))
    def start_session(self, session: int, ahead: int) -> None:
        last = len(self.records) - 1
        self.marks = (self.marks[0] + session, max(self.marks[1], last) + ahead, last)
        self.partition.set_low_water_mark(*self.marks[:2])

    @rule(first=st.integers(0, 3000), count=st.integers(0, 50))
    def read(self, first: int, count: int) -> None:
        assert self.partition.read_range(first, count) == self.records[first : first + count]
        assert self.partition.read(first) == (self.records[first] if first < len(self.records) else None)

    @rule(first=st.integers(-2, 3000), count=st.integers(0, 50), room=st.sampled_from([None, 0, 41, 300, 5000]))
    def read_in_wire_form(self, first: int, count: int, room: int | None) -> None:
        wanted = self.partition.read_range(first, count, room)
        found = self.partition.read_wire(first, count, room)
        assert (found.count, found.data) == (len(wanted), pack_records(map(wire_record, wanted)))
        assert wanted == self.records[max(first, 0) : max(first, 0) + len(wanted)]
        headers = self.partition.read_wire_headers(first, count)
        assert (headers.count, headers.data) == (
            len(self.partition.read_headers(first, count)),
            pack_record_headers(self.partition.read_headers(first, count)),
        )

    @rule()
    def reopen(self) -> None:
        assert self.storage is not None
        self.storage.close()
        self.open()
        assert self.storage.findings == ()

    @rule(torn=st.integers(1, 60))
    def tear(self, torn: int) -> None:
        """A crash while a record was being written that nobody was told of: its beginning is on the disk."""
        assert self.storage is not None
        data = self.partition.segments[-1].data_path
        self.storage.close()
        following = Record.make(len(self.records), RequestId(1, 1, 1, 1), 1, bytes(range(60)))
        with data.open("ab") as file:
            file.write(following.encode()[:torn])
        self.open()
        assert [str(f.code) for f in self.storage.findings] == ["torn-tail"]

    @rule(entries_lost=st.integers(1, 5))
    def lose_index_entries(self, entries_lost: int) -> None:
        """A crash before the index was synced."""
        assert self.storage is not None
        index = self.partition.segments[-1].index_path
        self.storage.close()
        os.truncate(index, max(HEADER_SIZE, index.stat().st_size - 8 * entries_lost))
        self.open()

    @invariant()
    def agrees(self) -> None:
        if self.storage is None:
            return
        partition = self.partition
        assert not partition.quarantined
        assert partition.next_transaction_id == len(self.records)
        assert (partition.session_id, partition.low_water_mark, partition.local_low_water_mark) == self.marks

    def teardown(self) -> None:
        if self.storage is not None:
            segments = self.partition.segments
            self.storage.close()
            for place, segment in enumerate(segments):
                stop = segments[place + 1].first_transaction_id if place + 1 < len(segments) else len(self.records)
                data, offsets = encode_records(self.records[segment.first_transaction_id : stop])
                assert segment.data_path.read_bytes()[HEADER_SIZE:] == data
                assert entries(segment.index_path) == [HEADER_SIZE + offset for offset in offsets]
        shutil.rmtree(self.root)


PartitionMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=25)
TestPartitionMachine = pytest.mark.turns(10)(PartitionMachine.TestCase)
