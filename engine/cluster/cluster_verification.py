"""Verification of a cluster: its metadata against the answers of every storage node and log server.

======================  =================================================================================================
checked                 what must hold
======================  =================================================================================================
the metadata            every node is in all three maps; every partition has replicas, and exactly one live server
every storage node      it answers at its admin port, has the cluster's key, and holds the partitions assigned to it
the assignment          it was made for the log servers that are registered now
every log server        it answers, serves its assigned partitions, reaches the storage nodes, and has sessions
every partition         a quorum of its replicas is in service, and all are in its last session
every replica           nothing excludes it from sessions, and it holds what is committed, or is catching up
======================  =================================================================================================

All are asked at the same time, each with the deadline of its connection; nothing is changed.

Release 0.13.2 counts a quorum over all nodes of the cluster instead of those of the partition, stops at the first partition
without a replica, and exits with 0 whatever it finds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from waltzctl.engine.amounts import chosen_partitions
from waltzctl.engine.catalogue import CATALOGUE, Code
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.cluster.cluster_answers import NodeAnswer, ServerAnswer, ask_nodes, ask_servers
from waltzctl.engine.errors import MismatchError, RemoteError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verification import Tally, VerifySummary
from waltzctl.engine.metadata.cluster_state import ClusterState
from waltzctl.engine.quorum.vote import quorum_of
from waltzctl.engine.shell_words import shell_join, shell_quote

_PAUSES = (0.1, 0.4, 1.5)
"""Seconds before each repeated query of replicas that were behind: while clients append, some replica always is."""


class ClusterVerification:
    """One verification.  Call `findings` or `connectivity`, then read `summary`."""

    def __init__(
        self,
        state: ClusterState,
        where: str,
        reach: ConnectionFactory,
        partitions: Collection[int] | None = None,
        *,
        connecting: Sequence[str] = (),
    ) -> None:
        """`where`: the metadata, as for ``--metadata``; `partitions`: only these.  Raises InvalidRequestError for unknown ones.

        `connecting`: command-line options that correspond to `reach`, so that the remedies in findings can be run as printed.
        """
        self._state, self._where, self._reach, self._connecting = state, where, reach, connecting
        self._wanted = chosen_partitions(partitions, state.num_partitions)
        self._begun = time.monotonic()
        self._tally = Tally()

    @property
    def summary(self) -> VerifySummary:
        """Counts of the findings, in the form that verify has for directories."""
        tally = self._tally
        elapsed = time.monotonic() - self._begun
        return VerifySummary(
            tally.status, tally.exit_status_name, len(self._wanted), 0, 0, 0,
            tally.damage, tally.repairable, tally.notes, elapsed, True,
        )  # fmt: skip

    async def findings(self) -> tuple[Finding, ...]:
        """Ask all nodes and servers, and check the answers; returns what is wrong."""
        nodes, servers = await self._ask(None, {*self._wanted})
        found = (
            *self._check_maps(),
            *self._check_assignment(),
            *(finding for answer in nodes for finding in self._check_node(answer)),
            *(finding for answer in servers for finding in self._check_server(answer)),
            *self._check_partitions(nodes),
            *await self._left_behind(nodes, {number: mark for answer in servers for number, mark in answer.marks}),
        )
        for one in found:
            self._tally.add(one)
        return found

    async def connectivity(self) -> tuple[Finding, ...]:
        """Check only that all nodes and servers answer, and that the servers reach the storage nodes."""
        nodes, servers = await self._ask((), ())
        failed = [finding for answer in nodes if answer.error is not None for finding in self._check_node(answer)]
        unreached = [finding for answer in servers for finding in self._check_reached(answer)]
        for one in (*failed, *unreached):
            self._tally.add(one)
        return (*failed, *unreached)

    async def _ask(
        self, readings_of: Collection[int] | None, marks_of: Collection[int]
    ) -> tuple[list[NodeAnswer], list[ServerAnswer]]:
        return await asyncio.gather(
            ask_nodes(self._state, self._state.nodes, self._reach, readings_of),
            ask_servers(self._state, self._reach, marks_of, connectivity=True),
        )

    def _finding(self, code: Code, path: str, message: str, partition: int | None = None, remedy: str = "") -> Finding:
        options = shell_join(("--metadata", self._where, *self._connecting))
        command = f"waltzctl {remedy} {options}" if remedy else None
        return Finding(code, CATALOGUE[code].severity, path, message, partition, remedy=command)

    # ---- checks --------------------------------------------------------------------------------------------------------

    def _check_maps(self) -> Iterator[Finding]:
        if (stored := self._state.stored_partitions) is not None:
            text = (
                f"the metadata says in its root that there are {self._state.num_partitions} partitions, and in node store"
                f" {stored}: clients go by the first, log servers by the second"
            )
            yield self._finding(Code.CLUSTER_MAPS, self._where, text)
        for node in self._state.nodes:
            missing = [
                name for name, value in (("group", node.group), ("admin port", node.admin_port)) if value is None
            ]
            if missing:
                text = f"storage node {node.node} has no {' and no '.join(missing)}: the maps of the metadata disagree"
                yield self._finding(Code.CLUSTER_MAPS, node.node, text)
            beyond = [number for number in node.partitions if not 0 <= number < self._state.num_partitions]
            if beyond:
                text = f"storage node {node.node} is given partition {beyond[0]} of {self._state.num_partitions}"
                yield self._finding(Code.CLUSTER_MAPS, node.node, text)

    def _check_assignment(self) -> Iterator[Finding]:
        servers = self._state.servers
        at: dict[str, list[str]] = {}
        for one in servers:
            at.setdefault(one.endpoint, []).append(str(one.server_id))
        for endpoint, ids in at.items():
            if len(ids) > 1:
                text = (
                    f"servers {', '.join(ids)} have this address, and clients reach only one of them: if the others run,"
                    " start each with an --advertised-host of its own"
                )
                yield self._finding(Code.SERVER_DIFFERS, endpoint, text)
        if servers and not self._state.assignment_is_current:
            numbers = ", ".join(str(one.server_id) for one in servers)
            text = (
                f"servers {numbers} live, and the assignment was made for others: server {servers[0].server_id}, which has the"
                " smallest id, is to write a new one"
            )
            yield self._finding(Code.SERVER_DIFFERS, servers[0].endpoint, text)

    def _check_node(self, answer: NodeAnswer) -> Iterator[Finding]:
        name = answer.node.node
        if answer.error is not None:
            other = isinstance(answer.error, MismatchError) or (
                isinstance(answer.error, RemoteError) and answer.error.status == "mismatch"
            )
            yield self._finding(Code.NODE_KEY if other else Code.NODE_UNREACHABLE, name, str(answer.error))
            return
        held = {one.partition for one in answer.partitions}
        wanted = {*answer.node.partitions}
        remedy = f"cluster sync --node {shell_quote(name)}"
        for number in sorted((wanted - held) & {*self._wanted}):
            text = f"the metadata gives it partition {number}, and the node does not hold it"
            yield self._finding(Code.NODE_DIFFERS, name, text, number, remedy)
        for number in sorted((held - wanted) & {*self._wanted}):
            text = f"the node holds partition {number}, and the metadata does not give it to the node"
            yield self._finding(Code.NODE_DIFFERS, name, text, number, remedy)

        given = wanted & {*self._wanted}
        for one in answer.partitions:
            if one.partition in given and one.why_absent is not None:
                code = Code.REPLICA_NOT_IN_SESSION if one.out_of_service is None else Code.REPLICA_OUT_OF_SERVICE
                yield self._finding(code, name, f"this replica takes no part: {one.why_absent}", one.partition)

    def _check_reached(self, answer: ServerAnswer) -> Iterator[Finding]:
        name = answer.server.endpoint
        if answer.error is not None:
            yield self._finding(Code.SERVER_UNREACHABLE, name, str(answer.error))
        for node, reached in answer.connectivity:
            if not reached:
                text = f"server {answer.server.server_id} does not reach storage node {node}"
                yield self._finding(Code.NODE_UNREACHABLE, node, text)

    def _check_server(self, answer: ServerAnswer) -> Iterator[Finding]:
        yield from self._check_reached(answer)
        if answer.error is not None:
            return
        name, number = answer.server.endpoint, answer.server.server_id
        given = {one.partition for one in answer.server.partitions}
        for partition in sorted((given ^ {*answer.partitions}) & {*self._wanted}):
            said = "and it does not serve it" if partition in given else "and it serves it all the same"
            which = "gives" if partition in given else "does not give"
            text = f"the assignment {which} partition {partition} to server {number}, {said}"
            yield self._finding(Code.SERVER_DIFFERS, name, text, partition)
        wanted = {*self._wanted}
        for partition, healthy in answer.health or ():
            if not healthy and partition in wanted:
                text = f"server {number} has no session for it: nothing can be appended; its /health says whom it waits for"
                yield self._finding(Code.PARTITION_UNHEALTHY, name, text, partition)

    def _check_partitions(self, answers: Collection[NodeAnswer]) -> Iterator[Finding]:
        at_work: dict[int, set[str]] = {}
        for answer in answers:
            for one in answer.partitions:
                if one.why_absent is None:
                    at_work.setdefault(one.partition, set()).add(answer.node.node)
        owners: dict[int, list[int]] = {}
        for server in self._state.servers:
            for given in server.partitions:
                owners.setdefault(given.partition, []).append(server.server_id)
        for number in self._wanted:
            serving = owners.get(number, [])
            if len(serving) != 1:
                text = "no live server has it" if not serving else f"servers {', '.join(map(str, serving))} have it"
                yield self._finding(Code.PARTITION_WITHOUT_SERVER, self._where, text, number)
            yield from self._check_replicas(number, at_work.get(number, set()))

    def _check_replicas(self, number: int, at_work: set[str]) -> Iterator[Finding]:
        assigned = {node.node for node in self._state.nodes_of(number)}
        if not assigned:
            text = "no storage node is to hold it"
            yield self._finding(Code.PARTITION_WITHOUT_REPLICA, self._where, text, number)
            return
        wanted, there = quorum_of(len(assigned)), len(at_work & assigned)
        if there < wanted:
            absent = ", ".join(sorted(assigned - at_work))
            text = f"{there} of its {len(assigned)} replicas are at work, and a quorum is {wanted}; missing: {absent}"
            yield self._finding(Code.QUORUM_MISSING, self._where, text, number)
        metadata = self._state.metadata_of(number)
        current = {
            one.node
            for one in metadata.replicas
            if one.session_id == metadata.session_id and one.closing_high_water_mark is None
        }
        if metadata.session_id >= 0 and current != assigned:
            behind = ", ".join(sorted(assigned - current)) or "none"
            gone = ", ".join(sorted({one.node for one in metadata.replicas} - assigned))
            text = f"session {metadata.session_id} is without {behind}" + (f", and still names {gone}" if gone else "")
            yield self._finding(Code.REPLICA_NOT_IN_SESSION, self._where, text, number)

    async def _left_behind(self, nodes: Collection[NodeAnswer], marks: Mapping[int, int]) -> tuple[Finding, ...]:
        """Findings for replicas below the high-water marks as first read; repeats the query in case they are catching up."""
        first = behind = self._behind(nodes, marks)
        failed: list[Finding] = []
        for pause in _PAUSES:
            if not behind:
                break
            await asyncio.sleep(pause)
            names = {node for node, _ in behind}
            asked = [node for node in self._state.nodes if node.node in names]
            again = await ask_nodes(self._state, asked, self._reach, sorted({number for _, number in behind}))
            failed += [finding for answer in again if answer.error is not None for finding in self._check_node(answer)]
            behind = {key: last for key, last in self._behind(again, marks).items() if key in behind}
        return (
            *failed,
            *(self._behind_finding(*key, first[key], last, marks[key[1]]) for key, last in sorted(behind.items())),
        )

    def _behind(self, nodes: Collection[NodeAnswer], marks: Mapping[int, int]) -> dict[tuple[str, int], int]:
        """The last transaction of each replica in service that is below the mark, by (node, partition)."""
        found = {}
        for answer in nodes:
            given = {*answer.node.partitions}
            for one in answer.partitions:
                last, mark = one.last_transaction_id, marks.get(one.partition)
                if mark is None or last is None or one.why_absent is not None or one.partition not in given:
                    continue
                if last < mark:
                    found[answer.node.node, one.partition] = last
        return found

    def _behind_finding(self, node: str, partition: int, first: int, last: int, mark: int) -> Finding:
        if last > first:
            text = f"this replica catches up: {mark - last} transactions behind {mark}"
            return self._finding(Code.REPLICA_NOT_IN_SESSION, node, text, partition)
        text = (
            f"this replica ends at transaction {last}, {mark} is committed, and it came no nearer in {sum(_PAUSES):g} s"
        )
        return self._finding(Code.REPLICA_BEHIND, node, text, partition)
