"""What a stream makes of a node's answers, over a node that answers from a table; `test_stream_node` has a node that runs."""

from __future__ import annotations

import pickle
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import make_records
from tests.spark.nodes import sent
from waltzctl.engine.client.inspect import NodeRecord, below_mark
from waltzctl.engine.client.partition_readings import PartitionReading
from waltzctl.engine.errors import (
    DamageError,
    InvalidRequestError,
    PeerError,
    ProtocolError,
    RefusedError,
    RemoteError,
    StalePlanError,
)
from waltzctl.engine.findings import Code, Finding, make_finding
from waltzctl.engine.net.addresses import parse_url
from waltzctl.engine.spark import stream_node
from waltzctl.engine.spark.data_loss import Losses
from waltzctl.engine.spark.offsets import BEGINNING, Anchor, behind_loss
from waltzctl.engine.spark.stream_losses import LostRange
from waltzctl.engine.spark.stream_node import (
    NodeAccess,
    NodeHistory,
    NodeRange,
    PeerAccess,
    access_of,
    anchor_of,
    node_access,
)
from waltzctl.engine.spark.stream_rows import RowMaker
from waltzctl.engine.spark.view_schemas import pick, spark_schema
from waltzctl.formats.wire.failure import FailureCode
from waltzctl.formats.wire.records import WireRecord

URL = "waltz://h:7"
ACCESS = NodeAccess(parse_url(URL))
SCHEMA = spark_schema(pick("records", ("transaction_id", "finding")))
RECORDS = sent(make_records(20, size=10))


@dataclass
class Node:
    """Gives out `records` but those that are `damaged`.  `lost`: connections that break before they answer."""

    records: list[WireRecord] = field(default_factory=lambda: list(RECORDS))
    damaged: set[int] = field(default_factory=set)
    code: FailureCode = FailureCode.CORRUPT_RECORD
    lost: int = 0
    opened: int = 0
    open_now: int = 0
    asked: list[int] = field(default_factory=list)

    def reach(self) -> Any:
        return SimpleNamespace(admin=self._admin)

    async def _admin(self, address: Any) -> Any:
        assert address == ACCESS.address
        self.opened += 1
        self.open_now += 1
        return Client(self)


@dataclass
class Client:
    node: Node
    closed: bool = False

    async def records(self, partition: int, first: int, count: int) -> list[WireRecord]:
        assert not self.closed
        if self.node.lost:
            self.node.lost -= 1
            raise PeerError("h:7", "the connection was lost")
        self.node.asked.append(first)
        assert count == 1
        if first in self.node.damaged:
            raise RemoteError("h:7", "no", code=self.node.code)
        return self.node.records[first : first + 1]

    async def close(self) -> None:
        self.node.open_now -= 1


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node()
    monkeypatch.setattr(NodeAccess, "reach", lambda _: made.reach())
    return made


def reading(partition: int, last: int | None, low: int | None = None, local: int | None = None) -> PartitionReading:
    return PartitionReading(partition, True, None, None, None, None, low, local, last, None)


def history(*readings: PartitionReading) -> NodeHistory:
    made: NodeHistory = pickle.loads(pickle.dumps(NodeHistory(ACCESS, RowMaker(SCHEMA))))
    made._readings = {one.partition: one for one in readings}
    return made


# ---- places --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "low", "local", "intact", "marked"),
    [
        (9, None, None, 9, -1),
        (9, 5, 7, 9, 5),
        (9, 7, 5, 9, 5),
        (9, 9, 9, 9, 9),
        (9, 12, 12, "12", "12"),
        (9, 10, 12, "12", "10"),
        (9, 12, 9, 9, 9),
        (-1, None, None, -1, -1),
        (-1, 0, 0, "0", "0"),
        (0, None, 0, 0, -1),
    ],
)
def test_the_last_transaction_is_a_record_or_what_the_mark_proves_lost(
    node: Node, last: int, low: int | None, local: int | None, intact: int | str, marked: int | str
) -> None:
    """A text stands for an anchor without a record."""
    for up_to, expected in (("intact", intact), ("low-water-mark", marked)):
        if isinstance(expected, str):
            wanted = behind_loss(int(expected))
        else:
            wanted = BEGINNING if expected < 0 else anchor_of(RECORDS[expected])
        reader = history(reading(0, last, low, local), reading(1, 3))
        assert reader.latest({0}, {}, up_to) == {0: wanted}
        assert list(reader.latest({1}, {}, up_to)) == [1]
        reader.close()


def test_a_node_must_tell_how_far_a_partition_is(node: Node) -> None:
    reader = history(reading(0, 3), reading(2, None))
    assert reader.latest({0, 5}, {}, "intact").keys() == {0}
    with pytest.raises(ProtocolError, match="it does not tell the last transaction of partition 2"):
        reader.latest(None, {}, "intact")
    reader.close()


@pytest.mark.parametrize("mark", [-1, 7])
def test_what_a_node_cannot_read_is_not_passed_over_as_lost(node: Node, mark: int) -> None:
    """A new query had all up to the mark as lost, and went on behind it when the node could read it again."""
    unread = replace(reading(0, -1, mark, mark), out_of_service="sync-failed")
    reader = history(unread, reading(1, 3))
    for up_to in ("intact", "low-water-mark"):
        with pytest.raises(RefusedError, match="no transaction of partition 0, which is out of service: sync-failed"):
            reader.latest(None, {}, up_to)
    assert list(reader.latest({1}, {}, "intact")) == [1]
    reader.close()


def test_a_last_record_is_asked_for_once(node: Node) -> None:
    reader = history(reading(0, 3))
    assert reader.latest(None, {}, "intact") == reader.latest(None, {}, "intact")
    assert node.asked == [3]
    reader._readings[0] = reading(0, 4)
    assert reader.latest(None, {}, "intact") == {0: anchor_of(RECORDS[4])}
    assert node.asked == [3, 4]
    reader.close()


def test_damaged_records_are_passed_over_up_to_a_bound(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = history(reading(0, 9))
    node.damaged = {7, 8, 9}
    assert reader.at_or_before(0, 9, BEGINNING) == anchor_of(RECORDS[6])
    monkeypatch.setattr(stream_node, "_SEARCH_BACK", 4)
    assert reader.at_or_before(0, 9, BEGINNING) == anchor_of(RECORDS[6])
    monkeypatch.setattr(stream_node, "_SEARCH_BACK", 3)
    assert reader.at_or_before(0, 9, BEGINNING) == BEGINNING
    node.damaged = {0, 1}
    node.asked.clear()
    assert reader.at_or_before(0, 1, BEGINNING) == BEGINNING
    assert node.asked == [1, 0]
    for code in (FailureCode.DAMAGED, FailureCode.DATA_CHECKSUM):
        node.code = code
        assert reader.record_now(0, Anchor(1)) is None
    node.code = FailureCode.NOT_ASSIGNED
    with pytest.raises(RemoteError):
        reader.record_now(0, Anchor(1))
    reader.close()


def test_a_record_is_the_same_or_another_one_or_none(node: Node) -> None:
    reader = history(reading(0, 9))
    known = replace(anchor_of(RECORDS[4]), segment=3, offset=5)
    assert reader.record_now(0, known) is known
    assert reader.record_now(0, replace(known, record_checksum=1)) == anchor_of(RECORDS[4])
    assert reader.record_now(0, Anchor(20)) is None
    assert reader.record_now(1, known) is None
    node.records[4] = RECORDS[5]
    assert reader.record_now(0, known) is None
    reader.close()


# ---- the connection ------------------------------------------------------------------------------------------------------


def test_a_connection_is_kept_and_made_again_where_it_was_lost(node: Node) -> None:
    reader = history(reading(0, 9))
    assert reader.place == URL
    assert reader.record_now(0, Anchor(1)) == reader.record_now(0, Anchor(1))
    assert (node.opened, node.open_now) == (1, 1)
    node.lost = 1
    assert reader.record_now(0, Anchor(1)) == anchor_of(RECORDS[1])
    assert (node.opened, node.open_now) == (2, 1)
    client: Any = reader._connection._client
    client.closed = True  # as the connection is once the node has ended it
    assert reader.record_now(0, Anchor(1)) == anchor_of(RECORDS[1])
    assert node.opened == 3
    node.open_now -= 1
    node.lost = 2
    with pytest.raises(PeerError):
        reader.record_now(0, Anchor(1))
    reader.close()
    assert node.open_now == 0
    reader.close()
    node.lost = 1
    fresh = history(reading(0, 9))
    with pytest.raises(PeerError):
        fresh.record_now(0, Anchor(1))
    assert node.lost == 0
    fresh.close()
    assert node.open_now == 0


# ---- what is read --------------------------------------------------------------------------------------------------------


def test_parts_are_ranges_of_ids_and_what_is_lost_behind_them(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_node, "RANGE_RECORDS", 4)
    reader = history(reading(0, 9, local=14))
    last = anchor_of(RECORDS[9])
    assert list(reader.parts(0, Anchor(1), last)) == [NodeRange(0, 2, 5), NodeRange(0, 6, 9, last)]
    assert list(reader.parts(0, last, last)) == []
    lost = Anchor(14)
    assert list(reader.parts(0, Anchor(7), lost)) == [NodeRange(0, 8, 9), LostRange(below_mark(URL, 0, 10, 14))]
    assert list(reader.parts(0, Anchor(11), lost)) == [LostRange(below_mark(URL, 0, 12, 14))]
    assert list(reader.parts(0, Anchor(7), Anchor(9))) == [NodeRange(0, 8, 9, Anchor(9))]
    assert list(reader.parts(1, Anchor(7), Anchor(9))) == [NodeRange(1, 8, 9, Anchor(9))]
    assert list(reader.parts(0, Anchor(8), Anchor(10))) == [NodeRange(0, 9, 9), LostRange(below_mark(URL, 0, 10, 10))]
    assert NodeRange(0, 8, 9).bytes == 2 * 512


@pytest.mark.parametrize("told", [5, None])
def test_what_was_a_record_is_read_up_to_there_however_far_the_node_says_that_it_is(
    node: Node, told: int | None
) -> None:
    """It was cut since, which reading will tell; or it does not say."""
    reader, last = history(reading(0, told)), anchor_of(RECORDS[9])
    assert list(reader.parts(0, Anchor(1), last)) == [NodeRange(0, 2, 9, last)]
    if told is None:
        assert list(reader.parts(0, Anchor(1), Anchor(9))) == [NodeRange(0, 2, 9, Anchor(9))]


def damage(number: int, code: Code = Code.RECORD_CHECKSUM) -> Finding:
    return make_finding(code, None, f"said of {number}", partition=0, transaction_id=number, missing=1)


Item = int | Finding
Read = Callable[..., list[list[Any]]]


@pytest.fixture
def read(node: Node, monkeypatch: pytest.MonkeyPatch) -> Read:
    """The rows of each batch, of a range in which a walk finds these items."""

    def work(part: NodeRange | LostRange, *items: Item, losses: Losses | None = None) -> list[list[Any]]:
        async def walk(
            client: Client, partition: int, first: int, last: int, most: int | None
        ) -> AsyncGenerator[Any, None]:
            assert isinstance(part, NodeRange)
            assert most is None
            assert (partition, first, last) == (part.partition, part.first, part.last)
            try:
                for one in items:
                    yield one if isinstance(one, Finding) else NodeRecord(0, RECORDS[one])
            finally:
                ended.append(node.open_now)

        ended: list[int] = []
        monkeypatch.setattr(stream_node, "walk", walk)
        try:
            return [
                [row["finding"] or row["transaction_id"] for row in batch.to_pylist()]
                for batch in history().read(part, losses or Losses())
            ]
        finally:
            assert node.open_now == 0, "a connection stayed open"
            assert ended in ([], [1]), "the walk goes on without its connection"

    return work


def test_records_and_damage_are_rows_in_their_order(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    part = NodeRange(0, 3, 7, anchor_of(RECORDS[7]))
    assert read(part, 3, 4, 5, 6, 7) == [[3, 4, 5, 6, 7]]
    assert read(part, 3, damage(4), damage(5), 6, 7) == [[3], ["record-checksum"], ["record-checksum"], [6, 7]]
    assert read(part, 3, damage(4, Code.DATA_CHECKSUM), 4, 5, 6, 7) == [[3, 4, 5, 6, 7]]
    assert read(NodeRange(0, 3, 4), 3, 4, damage(4, Code.DATA_CHECKSUM)) == [[3, 4]]
    assert read(NodeRange(0, 3, 4), 3, damage(4)) == [[3], ["record-checksum"]]
    assert read(NodeRange(0, 3, 4, Anchor(4)), 3, damage(4)) == [[3], ["record-checksum"]]
    monkeypatch.setattr(stream_node, "_BATCH_ROWS", 2)
    assert read(part, 3, 4, 5, 6, 7) == [[3, 4], [5, 6], [7]]
    monkeypatch.setattr(stream_node, "_BATCH_ROWS", 100)
    monkeypatch.setattr(stream_node, "_BATCH_BYTES", 100)
    assert read(part, 3, 4, 5, 6, 7) == [[3, 4], [5, 6], [7]]
    monkeypatch.setattr(stream_node, "_BATCH_BYTES", 101)
    assert read(part, 3, 4, 5, 6, 7) == [[3, 4, 5], [6, 7]]
    assert read(LostRange(damage(8, Code.ACKNOWLEDGED_MISSING))) == [["acknowledged-missing"]]


@pytest.mark.parametrize(
    ("part", "items", "said"),
    [
        (NodeRange(0, 3, 5), (3, 4), "transaction 5 is not there"),
        (NodeRange(0, 3, 5), (), "transaction 3 is not there"),
        (NodeRange(0, 3, 4, anchor_of(RECORDS[5])), (3, 4), "transaction 4 is another one"),
        (NodeRange(0, 3, 4, replace(anchor_of(RECORDS[4]), record_checksum=1)), (3, 4), "transaction 4 is another one"),
        (NodeRange(0, 3, 3, anchor_of(RECORDS[3])), (damage(3),), "transaction 3 is another one"),
        (NodeRange(0, 3, 5), (3, damage(5), 5), "said of 5"),
        (NodeRange(0, 3, 5), (3, damage(4, Code.RECORD_ORDER)), "said of 4"),
    ],
)
def test_a_range_that_is_not_what_was_planned_ends_the_task(
    read: Read, part: NodeRange, items: tuple[Item, ...], said: str
) -> None:
    whole = f"{URL}, partition 0: transactions {part.first} to {part.last} were to be read, and {said}"
    with pytest.raises(StalePlanError, match=f"^{re.escape(whole)}"):
        read(part, *items)


def test_losses_are_noted_where_the_query_is_to_fail(read: Read) -> None:
    for part, items in ((NodeRange(0, 3, 4), (3, damage(4))), (LostRange(damage(8, Code.ACKNOWLEDGED_MISSING)), ())):
        losses = Losses(wanted=True)
        read(part, *items, losses=losses)
        with pytest.raises(DamageError, match="transactions are lost in 1 place"):
            losses.check()


# ---- options -------------------------------------------------------------------------------------------------------------


def test_how_a_node_is_reached_is_as_said() -> None:
    assert access_of({}) == PeerAccess(False, False, stream_node.DEFAULT_TIMEOUT, {})
    assert access_of({"plaintext": " True ", "timeout": "7s"}) == PeerAccess(True, False, 7.0, {})
    assert access_of({"insecure": "true", "plaintext": "false"}) == PeerAccess(insecure=True)
    assert access_of({"truststore": "/t", "other": "x"}) == PeerAccess(files={"trustStore": "/t"})
    assert node_access(URL, {"insecure": "true"}) == NodeAccess(parse_url(URL), PeerAccess(insecure=True))
    with pytest.raises(InvalidRequestError, match="a certificate and a key store are both given"):
        access_of({"certificate": "/c", "keystore": "/k"}).reach()
    factory = PeerAccess(True, True, 7.0).reach()
    assert factory.timeout == 7.0
    for options, said in (
        ({"plaintext": "true", "keystore": "/k"}, "keyStore: there are no certificates with plaintext"),
        ({"insecure": "1"}, "insecure '1': must be true or false"),
        ({"timeout": "soon"}, "timeout: "),
    ):
        with pytest.raises(InvalidRequestError, match=f"^{re.escape(said)}"):
            access_of(options)
