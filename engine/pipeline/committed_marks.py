"""The committed mark of a partition: the last transaction that a quorum of replicas holds in the open session.

A low-water mark is the last transaction before a session began.  A transaction written in the session is committed once a quorum
of the session's replicas holds it, and no recovery removes it then.

=========================================  ==============================
needed                                     source
=========================================  ==============================
the open session, its number of replicas   the cluster's metadata
a storage's session, its last transaction  the storage
=========================================  ==============================

A storage counts only if it is in the open session both before and after its last transaction was read: session ids only rise, so
the transaction was then written in that session or before it.  A storage in an older session may hold transactions above its
low-water mark that a recovery has replaced elsewhere.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.metadata.cluster_state import ClusterState, read_cluster_state
from waltzctl.engine.metadata.metadata_location import MetadataLocation
from waltzctl.engine.pipeline.replica_stream import check_one_cluster
from waltzctl.engine.quorum.vote import quorum_of
from waltzctl.engine.spark.offsets import Anchor
from waltzctl.engine.spark.stream_reader import History


@dataclass(frozen=True, slots=True)
class OpenSession:
    """The open session of a partition, and its number of replicas."""

    session_id: int
    replicas: int


def open_sessions(state: ClusterState) -> dict[int, OpenSession]:
    """The open sessions by partition.

    A partition whose latest session has only begun is left out: the metadata has no replicas of that session yet.
    """
    return {
        one.partition: OpenSession(one.session_id, len(one.replicas))
        for one in state.partitions
        if one.members and one.latest_session == one.session_id
    }


def held_by_quorums(sessions: Mapping[int, OpenSession], ends: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """The last transaction of each partition that a quorum holds.

    `ends`: for each replica its last transaction, by partition, where the replica is in the open session.  Raises
    InvalidRequestError where a partition has more ends than its session has replicas: one replica was counted twice.
    """
    held: dict[int, list[int]] = {}
    for one in ends:
        for number, last in one.items():
            held.setdefault(number, []).append(last)
    marks = {}
    for number, found in held.items():
        replicas = sessions[number].replicas
        if len(found) > replicas:
            raise InvalidRequestError(
                f"partition {number}: {len(found)} sources are in session {sessions[number].session_id}, which has {replicas}"
                " replicas: a replica is named twice",
                advice="name each replica once, by its directory, its backup or its node",
            )
        quorum = quorum_of(replicas)
        if len(found) >= quorum:
            marks[number] = sorted(found, reverse=True)[quorum - 1]
    return marks


def committed_marks(
    metadata: str,
    histories: Mapping[str, History],
    partitions: Collection[int] | None,
    known: Mapping[str, Mapping[int, Anchor]],
) -> dict[int, int]:
    """Look at every replica; return the committed marks of the partitions in whose open session a quorum of replicas is.

    `metadata`: as ``--metadata`` takes it; `known`: for each replica, records that it is known to hold, by partition.

    Raises MismatchError where a replica is of another cluster, and what looking at the metadata and at a replica raises.
    """
    key, sessions = read_sessions(metadata)
    ends = []
    for place, history in histories.items():
        check_one_cluster({metadata: str(key), place: _text(history.refresh())})
        before = history.standings(partitions, known.get(place, {}))
        history.refresh()
        after = history.standings(partitions, known.get(place, {}))
        ends.append(
            {
                number: one.last_transaction_id
                for number, one in before.items()
                if number in sessions
                and number in after
                and one.session_id == after[number].session_id == sessions[number].session_id
            }
        )
    return held_by_quorums(sessions, ends)


def read_sessions(metadata: str) -> tuple[uuid.UUID, dict[int, OpenSession]]:
    """The cluster's key, and the sessions that are open now.

    Raises InvalidRequestError, NotWaltzError where there is no cluster, PeerError, MismatchError, DamageError.
    """

    async def read() -> ClusterState:
        async with MetadataLocation.parse(metadata).open() as store:
            return await read_cluster_state(store)

    state = asyncio.run(read())
    return state.cluster_key, open_sessions(state)


def _text(key: uuid.UUID | None) -> str | None:
    return None if key is None else str(key)
