"""What is known as committed in a session that is open, by what its replicas hold."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql.pandas.types import from_arrow_schema

from tests.builders import KEY, build_directory, make_records
from tests.spark.nodes import served
from waltzctl.engine.errors import InvalidRequestError, MismatchError, NotWaltzError
from waltzctl.engine.metadata.cluster_changes import add_node, assign
from waltzctl.engine.metadata.cluster_creation import create_cluster
from waltzctl.engine.metadata.cluster_state import ClusterState, PartitionState, ReplicaInSession
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.engine.metadata.metadata_store import MetadataStore
from waltzctl.engine.pipeline.agreement_stream import agreement_stream
from waltzctl.engine.pipeline.committed_marks import (
    OpenSession,
    committed_marks,
    held_by_quorums,
    open_sessions,
    read_sessions,
)
from waltzctl.engine.pipeline.pipeline_data_source import ReplicasReader
from waltzctl.engine.pipeline.project_creation import replicas_of
from waltzctl.engine.pipeline.schemas import COPY
from waltzctl.engine.spark.offsets import Anchor
from waltzctl.engine.spark.stream_reader import Standing
from waltzctl.formats.znodes import PARTITION_PATH, UNRESOLVED, PartitionMetadata, ReplicaState

SESSION = 3
"""That of `tests.builders.build_directory`."""


def metadata(
    path: Path,
    replicas: Sequence[tuple[int, int]],
    *,
    session: int = SESSION,
    key: uuid.UUID = KEY,
    partitions: int = 1,
) -> str:
    """A cluster; `replicas`: session and closing mark of each of every partition, on nodes ``n0:1``, ``n1:1``, ..."""

    async def write(store: MetadataStore) -> None:
        await create_cluster(store, name="demo", num_partitions=partitions, cluster_key=key)
        for number in range(len(replicas)):
            await add_node(store, f"n{number}:1", admin_port=2 + number, group=number)
            await assign(store, f"n{number}:1", range(partitions))
        for partition in range(partitions):
            states = tuple(ReplicaState(partition, f"n{number}:1", *one) for number, one in enumerate(replicas))
            await store.create(f"{PARTITION_PATH}/{partition}", PartitionMetadata(1, session, states).encode())

    async def whole() -> None:
        store = await EmbeddedStore.open(path, create=True, session_timeout=5.0)
        try:
            await write(store)
        finally:
            await store.close()

    asyncio.run(whole())
    return str(path)


OPEN = (SESSION, UNRESOLVED)


# --- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "ends", "mark"),
    [
        (1, [9], 9),
        (2, [9], None),
        (2, [9, 4], 4),
        (3, [9], None),
        (3, [9, 4], 4),
        (3, [4, 9, 7], 7),
        (4, [9, 7], None),
        (4, [9, 7, 5], 5),
        (5, [9, 8], None),
        (5, [9, 8, 7], 7),
        (5, [1, 9, 8, 7, 2], 7),
    ],
)
def test_the_last_transaction_that_a_quorum_of_the_session_holds(
    replicas: int, ends: Sequence[int], mark: int | None
) -> None:
    found = held_by_quorums({0: OpenSession(SESSION, replicas)}, [{0: end} for end in ends])
    assert found == ({} if mark is None else {0: mark})


def test_more_sources_than_replicas_are_one_twice() -> None:
    session = {0: OpenSession(SESSION, 3)}
    assert held_by_quorums(session, [{0: 1}, {0: 2}, {0: 3}]) == {0: 2}
    with pytest.raises(InvalidRequestError, match="partition 0: 4 sources are in session 3, which has 3 replicas"):
        held_by_quorums(session, [{0: 1}, {0: 2}, {0: 3}, {0: 3}])


def state(*partitions: PartitionState) -> ClusterState:
    return ClusterState("demo", KEY, len(partitions), (), (), True, partitions)


def test_a_session_is_open_when_its_replicas_are_written() -> None:
    replicas = tuple(ReplicaInSession(name, 7, None) for name in "abc")
    opened = PartitionState(0, 1, 7, replicas)
    assert open_sessions(state(opened)) == {0: OpenSession(7, 3)}
    assert open_sessions(state(replace(opened, session_id=8))) == {}  # the next one has begun
    behind = replace(replicas[0], session_id=6)
    assert open_sessions(state(replace(opened, replicas=(behind, *replicas[1:])))) == {0: OpenSession(7, 3)}
    closed = tuple(replace(one, closing_high_water_mark=4) for one in replicas)
    assert open_sessions(state(replace(opened, replicas=closed))) == {}
    assert open_sessions(state(PartitionState(0, -1, -1, ()))) == {}


# --- replicas --------------------------------------------------------------------------------------------------------


class Told:
    """A replica of one partition: its session and its last transaction, look by look; the last one for ever."""

    def __init__(self, *looks: tuple[int, int], key: uuid.UUID | None = KEY) -> None:
        self._looks, self._key, self._at = looks, key, -1

    def refresh(self) -> uuid.UUID | None:
        self._at = min(self._at + 1, len(self._looks) - 1)
        return self._key

    def standings(self, partitions: object, known: Mapping[int, Anchor]) -> dict[int, Standing]:
        return {0: Standing(*self._looks[self._at])}


def marks(where: str, *told: Told) -> dict[int, int]:
    histories: Any = {f"r{number}": one for number, one in enumerate(told)}
    return committed_marks(where, histories, None, {})


def still(session: int, last: int, **more: Any) -> Told:
    return Told((session, last), **more)


def test_who_is_in_the_open_session_counts(tmp_path: Path) -> None:
    where = metadata(tmp_path / "m", [OPEN] * 3)
    assert marks(where, still(SESSION, 9), still(SESSION, 5), still(SESSION, 7)) == {0: 7}
    assert marks(where, still(SESSION, 9), still(SESSION - 1, 12)) == {}
    assert marks(where, still(SESSION, 9), still(SESSION - 1, 12), still(SESSION, 6)) == {0: 6}
    assert marks(where, still(SESSION, 9), still(SESSION + 1, 12)) == {}
    assert marks(where, still(SESSION, 9), still(SESSION, -1)) == {0: -1}


def test_whose_session_changes_while_it_is_looked_at_does_not_count(tmp_path: Path) -> None:
    where = metadata(tmp_path / "m", [OPEN] * 3)
    whole = still(SESSION, 9)
    assert marks(where, whole, Told((SESSION, 12), (SESSION + 1, 5))) == {}
    assert marks(where, whole, Told((SESSION - 1, 12), (SESSION, 5))) == {}
    assert marks(where, whole, Told((SESSION, 8), (SESSION, 20))) == {0: 8}


def test_a_session_that_has_only_begun_tells_nothing(tmp_path: Path) -> None:
    where = metadata(tmp_path / "m", [OPEN] * 3, session=SESSION + 1)
    assert marks(where, still(SESSION, 9), still(SESSION, 9), still(SESSION, 9)) == {}


def test_replicas_of_another_cluster_are_refused(tmp_path: Path) -> None:
    where = metadata(tmp_path / "m", [OPEN] * 3, key=uuid.UUID(int=9))
    with pytest.raises(MismatchError, match="r0 is of cluster"):
        marks(where, still(SESSION, 9))
    assert marks(where, still(SESSION, 9, key=None), still(SESSION, 8, key=None)) == {0: 8}


def test_metadata_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotWaltzError, match="there is no metadata"):
        read_sessions(str(tmp_path / "none"))


# --- the stream ------------------------------------------------------------------------------------------------------


def replica(path: Path, count: int, *, session: int = SESSION, seed: int = 0) -> Path:
    """The first 20 records, up to its marks, are those of every other."""
    records = [*make_records(20), *make_records(count, seed=seed)[20:]]
    segments = [records[at : at + 50] for at in range(0, count, 50)]
    return build_directory(path, {0: segments}, num_partitions=2, local_low_water_mark=19, session=session)


def agreed(
    where: str | None, *sources: object, differences: bool = False, partitions: str | None = None
) -> list[dict[str, Any]]:
    """A batch, as a run of a pipeline makes it."""
    given = {"plaintext": "true"} | ({} if partitions is None else {"partitions": partitions})
    reader = agreement_stream(
        [str(one) for one in sources], given, from_arrow_schema(COPY), differences=differences, metadata=where
    )
    try:
        begun = reader.initialOffset()
        end = json.loads(json.dumps(reader.latestOffset(begun, reader.getDefaultReadLimit())))
        tasks = reader.partitions(begun, end)
        return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    finally:
        reader.stop()


def test_transactions_are_taken_as_soon_as_a_quorum_holds_them(tmp_path: Path) -> None:
    where = metadata(tmp_path / "m", [OPEN] * 3)
    one, two, three = (replica(tmp_path / f"{count}", count) for count in (120, 90, 60))
    assert len(agreed(None, one, two, three)) == 20
    rows = agreed(where, one, two, three)
    assert [row["transaction_id"] for row in rows] == [*range(90)]
    assert [row["replicas"] for row in rows] == [3] * 60 + [2] * 30
    assert len(agreed(where, one, three)) == 60
    assert len(agreed(where, one)) == 20
    with served(three) as node:
        assert len(agreed(where, one, node.url)) == 60
        for sources in ((one, two), (one, node.url)):
            assert agreed(where, *sources, partitions="1") == []


def test_an_end_of_no_session_that_counts_is_no_vote_against_what_is_committed(tmp_path: Path) -> None:
    """A replica that was left behind, with records of an earlier session that nobody else has."""
    where = metadata(tmp_path / "m", [OPEN, OPEN, (SESSION - 1, UNRESOLVED)])
    one, two = replica(tmp_path / "1", 120), replica(tmp_path / "2", 90)
    stray = replica(tmp_path / "3", 120, session=SESSION - 1, seed=7)
    assert len(agreed(where, one, stray)) == 20
    rows = agreed(where, one, two, stray)
    assert [(row["transaction_id"], row["replicas"]) for row in rows] == [
        *((number, 3) for number in range(20)),
        *((number, 2) for number in range(20, 90)),
    ]
    differing = agreed(where, one, two, stray, differences=True)
    assert {row["node"] for row in differing} == {str(stray)}
    assert [row["transaction_id"] for row in differing] == [*range(20, 90)]


def test_what_is_told_of_replicas_has_the_mark(tmp_path: Path) -> None:
    where = metadata(tmp_path / "m", [OPEN] * 3)
    sources = tuple(str(replica(tmp_path / f"{count}", count)) for count in (120, 90))
    for told, mark in ((where, 89), (None, 19)):
        reader = ReplicasReader(sources, {}, told)
        there = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
        assert [(row["last_transaction_id"], row["mark"]) for row in there] == [(119, mark), (89, mark)]


def test_the_replicas_of_a_cluster_are_its_nodes(tmp_path: Path) -> None:
    assert replicas_of(metadata(tmp_path / "m", [OPEN] * 2)) == ("waltz://n0:2", "waltz://n1:3")
