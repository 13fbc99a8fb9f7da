"""What a released node answered, ours answers, byte for byte, except for what `DIFFERENCES` lists with its reason."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.golden import needs_golden
from tests.interop.conversations import (
    CLUSTER_KEY,
    PARTITIONS,
    Step,
    decoded,
    encoded,
    read_frame,
    recorded_steps,
)
from waltzctl.engine.node.node import Node
from waltzctl.engine.node.node_settings import NodeOptions
from waltzctl.engine.storage.directory import create_cluster
from waltzctl.formats.control import Layout
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.failure import Failure
from waltzctl.formats.wire.hello import ADMIN_SERVER, Hello

LOG = logging.getLogger("waltzctl.test")
PATIENCE = 60.0
"""Seconds after which an answer counts as missing; none takes nearly as long."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back to a request: whole frames, and whether the connection ended after them."""

    answers: tuple[bytes, ...]
    closed: bool


# ---- what legitimately differs ------------------------------------------------------------------------------------------

STACK_TRACES = "a stack trace is a place in the program that made it; ours carries our stable code there (S7)"
TIMES = frozenset({"fifteenMinuteRate", "fiveMinuteRate", "oneMinuteRate", "meanRate", "snapshot"})
"""Members of the metrics' JSON that are times or made of them."""
APPEND_LATENCY = "waltz-storage.partition-0.append-latency"
NODE_GAUGES = frozenset(
    {
        "waltz-storage.cluster-key",
        "waltz-storage.cluster-partitions",
        "waltz-storage.waltz-storage-num-partitions",
        "waltz-storage.waltz-storage-partition-ids",
        "waltz-storage.waltz-version-id",
    }
)

Ours = Callable[[Outcome], Outcome]


def answers(*messages: Any, closed: bool = False) -> Ours:
    """Ours answers exactly this."""
    return lambda recorded: Outcome(tuple(encoded(message) for message in messages), closed)


def first_headers(count: int) -> Ours:
    """Ours answers the first of the recorded record headers."""

    def ours(recorded: Outcome) -> Outcome:
        message = decoded(recorded.answers[0])
        return Outcome((encoded(replace(message, headers=message.headers[:count])),), recorded.closed)

    return ours


def refused(sequence: int, exception: str, code: str) -> Ours:
    """Ours answers an admin request with this failure and keeps the connection."""
    return answers(admin.FailureResponse(sequence, Failure.with_code(exception, code)))


_TWO_VERSIONS = (
    "our admin port also speaks version 1, which has the documents' separate switches for reads and writes",
    answers(Hello((0, 1), ADMIN_SERVER)),
)
_STORAGE_EXCEPTION = "com.wepay.waltz.storage.exception.StorageException"
_BEYOND = f"{_STORAGE_EXCEPTION}: partition 77: the control file has partitions 0 to 3"
_HALF = "an append whose second record is out of order is not half applied: transaction 3 is not there"
_HENCE = "hence transaction 4, which the released node takes with its wrong data checksum (S12), "
_NO_CLOSE = (
    "the released node closes the connection without a word (S9); ours answers, and nothing of the list was done"
)

DIFFERENCES: dict[tuple[str, str], tuple[str, Ours]] = {
    **{
        (label, "Hello"): _TWO_VERSIONS
        for label in ("admin-wrong-key", "admin", "admin-out-of-range", "admin-noopen", "admin-delete")
    },
    ("storage", "MaxTransactionId after partial failure"): (
        _HALF,
        answers(storage.MaxTransactionIdResponse(100, 9, 0, 2)),
    ),
    ("storage", "Append bad data checksum (accepted)"): (
        _HENCE + "is out of order already",
        answers(
            storage.FailureResponse(
                100, 10, 0, Failure.with_code(f"{_STORAGE_EXCEPTION}: transaction out of order", "out-of-order")
            )
        ),
    ),
    ("storage", "Record 4 bad checksum returned"): (
        _HENCE + "is not there to be read",
        answers(storage.RecordResponse(100, 11, 0, None)),
    ),
    ("storage", "RecordHeaderList 0,10"): (_HENCE + "is not in the list; nor is 3", first_headers(3)),
    ("storage", "RecordList 3,10 (to the end)"): (
        _HENCE + "is not in the list; nor is 3",
        answers(storage.RecordListResponse(100, 22, 0, ())),
    ),
    ("storage", "Truncate 99 (beyond max: nothing)"): (
        _HENCE + "is not the last",
        answers(storage.MaxTransactionIdResponse(100, 26, 0, 2)),
    ),
    ("admin", "PartitionAssignment [1] false again: server closes"): (
        _NO_CLOSE,
        refused(28, "java.lang.Exception: Partition:1 is not assigned.", "not-assigned"),
    ),
    ("admin-out-of-range", "PartitionAssignment [77] true: server closes"): (
        _NO_CLOSE,
        refused(1, _BEYOND, "invalid-request"),
    ),
    ("admin-noopen", "PartitionAvailable [77]: server closes"): (_NO_CLOSE, refused(2, _BEYOND, "invalid-request")),
}
METRICS = ("admin", "Metrics")
METRICS_DIFFER = (
    "times are those of the machine; our append latencies are those of appends that were taken, where the release's include"
    " those that it refused; the recorded node ran without its main program, which registers three more gauges"
)


# ---- the replayer -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Conversation:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Replayer:
    """Plays the clients' side of all conversations against a node, in the recorded order across connections."""

    def __init__(self, node: Node, *, piece: int | None) -> None:
        """`piece`: requests are written in pieces of so many bytes; whole if None."""
        self._node = node
        self._piece = piece
        self._open: dict[int, _Conversation] = {}
        self.surplus: dict[str, bytes] = {}

    async def play(self, step: Step) -> Outcome:
        """Make one step, and read what comes back: as many frames as were recorded, or one where the node closed instead."""
        if step.opens:
            self._open[step.connection] = await self._connect(step.admin)
        conversation = self._open[step.connection]
        await self._send(conversation.writer, step.request)
        found: list[bytes] = []
        closed = False
        for _ in range(len(step.answers) + step.closed):
            frame = await read_frame(conversation.reader)
            if frame is None:
                closed = True
                break
            found.append(frame)
        if step.last:
            await self._end(step.label, conversation)
        return Outcome(tuple(found), closed)

    async def _connect(self, to_admin: bool) -> _Conversation:
        at = self._node.addresses
        reader, writer = await asyncio.open_connection(at.host, at.admin_port if to_admin else at.port)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _Conversation(reader, writer)

    async def _send(self, writer: asyncio.StreamWriter, request: bytes) -> None:
        size = self._piece or len(request)
        for position in range(0, len(request), size):
            writer.write(request[position : position + size])
            await writer.drain()

    async def _end(self, label: str, conversation: _Conversation) -> None:
        if conversation.writer.can_write_eof():
            conversation.writer.write_eof()
        self.surplus[label] = await conversation.reader.read()
        conversation.writer.close()
        await conversation.writer.wait_closed()


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of it: by step, and by connection what came that nobody had asked for."""

    outcomes: dict[tuple[str, str], Outcome]
    surplus: dict[str, bytes]


async def _replay(directory: Path, piece: int | None) -> Replay:
    options = NodeOptions(directory=directory, port=0, http_port=None, plaintext=True)
    node = await Node.start(options, log=LOG)
    try:
        replayer = Replayer(node, piece=piece)
        outcomes = {}
        for step in recorded_steps():
            async with asyncio.timeout(PATIENCE):
                outcomes[step.key] = await replayer.play(step)
        return Replay(outcomes, replayer.surplus)
    finally:
        await node.stop(1.0)


@pytest.fixture(scope="module", params=[None, 1, 7], ids=["whole", "single-bytes", "sevens"])
def replay(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Replay:
    """All conversations once, against a node that begins as the recorded one did."""
    directory = tmp_path_factory.mktemp("replay") / "storage"
    create_cluster([directory], num_partitions=PARTITIONS, cluster_key=CLUSTER_KEY, layout=Layout.RELEASED, assign=())
    return asyncio.run(_replay(directory, request.param))


COMPARED = [step for step in recorded_steps() if step.key != METRICS]


# ---- the tests ----------------------------------------------------------------------------------------------------------


def _is_failure(message: Any) -> bool:
    return isinstance(message, (storage.FailureResponse, admin.FailureResponse))


def _with_recorded_trace(found: bytes, recorded: bytes) -> bytes:
    """A failure of ours with the recorded stack trace in place of its own; see STACK_TRACES."""
    ours, theirs = decoded(found), decoded(recorded)
    assert _is_failure(ours), f"not a failure: {ours}"
    assert ours.failure.code is not None, "every failure of ours has a stable code"
    assert ours.failure.stack != theirs.failure.stack, f"this no longer differs: {STACK_TRACES}"
    return encoded(replace(ours, failure=Failure(ours.failure.message, theirs.failure.stack)))


@needs_golden
@pytest.mark.parametrize(
    "step",
    [step for step in recorded_steps() if step.key != METRICS],
    ids=lambda step: "-".join(step.key).replace(" ", "_"),
)
def test_every_answer_is_the_recorded_one(step: Step, replay: Replay) -> None:
    recorded, found = Outcome(step.answers, step.closed), replay.outcomes[step.key]
    if step.key in DIFFERENCES:
        reason, ours = DIFFERENCES[step.key]
        expected = ours(recorded)
        assert expected != recorded, f"this no longer differs: {reason}"
        assert [decoded(answer) for answer in found.answers] == [decoded(answer) for answer in expected.answers]
        assert found == expected
        return
    assert found.closed == recorded.closed
    assert len(found.answers) == len(recorded.answers)
    for answer, theirs in zip(found.answers, recorded.answers, strict=True):
        same = _with_recorded_trace(answer, theirs) if _is_failure(decoded(theirs)) else answer
        assert decoded(same) == decoded(theirs)
        assert same == theirs


@needs_golden
def test_metrics_have_the_recorded_names_shapes_and_counts(replay: Replay) -> None:
    """Everything in them that is no time."""
    theirs = next(step for step in recorded_steps() if step.key == METRICS)
    messages = decoded(replay.outcomes[METRICS].answers[0]), decoded(theirs.answers[0])
    assert messages[0].sequence == messages[1].sequence
    found, recorded = (json.loads(message.json) for message in messages)
    assert found != recorded, f"this no longer differs: {METRICS_DIFFER}"
    assert list(found) == list(recorded)
    names = {one["fullName"] for one in found["ids"]}
    assert names - {one["fullName"] for one in recorded["ids"]} == NODE_GAUGES
    for group in set(found) - {"ids"}:
        assert set(found[group]) - NODE_GAUGES == set(recorded[group])
        for name, theirs_value in recorded[group].items():
            ours_value = found[group][name]
            assert list(ours_value) == list(theirs_value), name
            if "snapshot" in theirs_value:
                assert list(ours_value["snapshot"]) == list(theirs_value["snapshot"])
            if name == APPEND_LATENCY:
                assert (ours_value["count"], theirs_value["count"]) == (3, 7), METRICS_DIFFER
            else:
                assert _timeless(ours_value) == _timeless(theirs_value), name


def _timeless(value: dict[str, Any]) -> dict[str, Any]:
    return {name: member for name, member in value.items() if name not in TIMES}


@needs_golden
def test_nothing_comes_that_was_not_asked_for(replay: Replay) -> None:
    """Neither a second answer, nor one to the keep-alive; and a client that ends its side is let go."""
    assert replay.surplus == {step.label: b"" for step in recorded_steps()}


@needs_golden
def test_the_table_of_differences_speaks_of_recorded_steps_only() -> None:
    keys = [step.key for step in recorded_steps()]
    assert len(set(keys)) == len(keys)
    assert {*DIFFERENCES, METRICS} <= set(keys)
    assert len({step.connection for step in recorded_steps()}) == 9
