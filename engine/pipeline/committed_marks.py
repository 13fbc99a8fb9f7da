"""Up to which transaction a partition is known as committed, by what its replicas hold in the session that is open.

A low-water mark is where a session began.  What was written since is committed once a quorum of the session's replicas holds
it; so the mark is the last transaction that a quorum of them has, and no recovery takes back what is at or below it.  Which
session is open, and how many replicas it has, the metadata tells; in which session a storage is, and how far it goes, it tells
itself.

A storage counts where it was in the open session before its end was looked at and afterwards: sessions only rise, so the end is
one of that session.  What a storage that was left behind holds above its low-water mark may be of no session that counts.
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
    """A partition's session that is open, and how many replicas it has."""

    session_id: int
    replicas: int


def open_sessions(state: ClusterState) -> dict[int, OpenSession]:
    """Of the partitions that have one: a session that has only begun has no replicas in the metadata as yet."""
    return {
        one.partition: OpenSession(one.session_id, len(one.replicas))
        for one in state.partitions
        if one.members and one.latest_session == one.session_id
    }


def held_by_quorums(sessions: Mapping[int, OpenSession], ends: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """The last transaction of each partition that a quorum holds; `ends`: of each replica in the session how far it goes.

    Raises InvalidRequestError where there are more of them than the session has replicas: one was counted twice.
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
    """Look at every replica; the marks of those partitions of which it can be told.

    `metadata`: as ``--metadata`` takes it; `known`: of each replica records that it is known to hold.

    Raises MismatchError where a replica is of another cluster, and what looking at the metadata and at a replica raises.
    """
    key, sessions = read_sessions(metadata)
    ends = []
    for place, history in histories.items():
        check_one_cluster({metadata: str(key), place: _text(history.look())})
        before = history.standings(partitions, known.get(place, {}))
        history.look()
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
