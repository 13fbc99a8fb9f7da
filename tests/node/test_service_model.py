"""The service against a simple model of the released node's rules: every request is answered once, in order, as the model says.

The model executes one request after another and keeps everything in lists; the service executes whatever stands in its queue at
once, in random groups, from several peers, over several partitions, with restarts, changes of availability, and partitions
that are taken away and brought back in between.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.node.service_support import LOG, Peer, created, record, request_of, run_of
from waltzctl.engine.node.hosted_storage import HostedStorage, ServiceOptions
from waltzctl.engine.node.node_metrics import NodeMetrics
from waltzctl.engine.node.partition_service import Admission
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.formats.control import Layout
from waltzctl.formats.wire.storage import (
    AppendRequest,
    FailureResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    RecordHeader,
    RecordHeaderListRequest,
    RecordHeaderListResponse,
    RecordListRequest,
    RecordListResponse,
    RecordRequest,
    RecordResponse,
    SessionInfo,
    SetLowWaterMarkRequest,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
    WireRecord,
    encode,
)

PARTITIONS = 3
PEERS = 3
LONGEST = 64
STORAGE = StorageOptions(segment_size_threshold=600, cached_segments=1, max_data_length=LONGEST)

Expected = StorageMessage | tuple[str, int]
"""The whole response, or a failure's code and sequence number."""


@dataclass
class Model:
    """One partition as the rules have it."""

    records: list[WireRecord] = field(default_factory=list)
    persisted: tuple[int, int, int] = (-1, -1, -1)
    session: int = -1
    readable: bool = True
    writable: bool = True
    assigned: bool = True

    def denied(self, message: StorageMessage, *, read: bool, write: bool) -> str | None:
        if getattr(message, "offline", False):
            if self.writable:
                return "online"
            return "session-changed" if message.session_id != self.persisted[0] else None
        if (read and not self.readable) or (write and not self.writable):
            return "not-available"
        if message.session_id < self.session:
            return "session-changed"
        self.session = message.session_id
        return None

    def execute(self, m: StorageMessage) -> Expected:
        before = self.session
        expected = self._execute(m)
        if isinstance(m, AppendRequest) and isinstance(expected, tuple):
            self.session = before  # an append that fails, for whatever reason, shuts out nobody
        return expected

    def _execute(self, m: StorageMessage) -> Expected:
        write = isinstance(m, (AppendRequest, SetLowWaterMarkRequest, TruncateRequest))
        first = isinstance(m, LastSessionInfoRequest)  # who begins a session will want both
        code = self.denied(m, read=not write, write=write or first)
        if code is not None:
            return code, m.sequence
        last = len(self.records) - 1
        prefix = m.session_id, m.sequence, m.partition
        match m:
            case AppendRequest():
                return self.append(m)
            case LastSessionInfoRequest():
                return LastSessionInfoResponse(*prefix, SessionInfo(*self.persisted))
            case MaxTransactionIdRequest():
                return MaxTransactionIdResponse(*prefix, last)
            case SetLowWaterMarkRequest():
                session, mark, local = self.persisted
                if last > m.low_water_mark:
                    return "mark-would-fall", m.sequence
                if m.session_id < session:
                    return "session-changed", m.sequence
                if m.low_water_mark < mark or last < local:
                    return "mark-would-fall", m.sequence
                self.persisted = m.session_id, m.low_water_mark, last
                return SuccessResponse(*prefix)
            case TruncateRequest():
                after = m.transaction_id
                if after < -1:
                    return "below-low-water-mark", m.sequence
                if after < last:
                    session, mark, local = self.persisted
                    if after < local:
                        if not m.offline:
                            return "below-low-water-mark", m.sequence
                        self.persisted = session, mark, after
                    del self.records[after + 1 :]
                return MaxTransactionIdResponse(*prefix, len(self.records) - 1)
            case RecordRequest():
                found = self.records[m.transaction_id] if 0 <= m.transaction_id <= last else None
                return RecordResponse(*prefix, found)
            case RecordListRequest():
                return RecordListResponse(*prefix, tuple(self.some(m.first_transaction_id, m.max_count)))
            case RecordHeaderListRequest():
                headers = [
                    RecordHeader(r.transaction_id, r.request_id, r.header)
                    for r in self.some(m.first_transaction_id, m.max_count)
                ]
                return RecordHeaderListResponse(*prefix, tuple(headers))
        return "unknown-type", m.sequence

    def some(self, first: int, count: int) -> list[WireRecord]:
        return self.records[first : first + max(count, 0)] if first >= 0 else []

    def append(self, m: AppendRequest) -> Expected:
        for place, found in enumerate(m.records):
            if found.transaction_id != len(self.records) + place:
                return "out-of-order", m.sequence
            if len(found.data) > LONGEST:
                return "too-long", m.sequence
            if found.data_checksum == WRONG:
                return "data-checksum", m.sequence
        self.records += m.records
        return SuccessResponse(m.session_id, m.sequence, m.partition)


WRONG = 0x12345678
"""A checksum that no record of these tests has."""

KINDS = ["append"] * 12 + ["info", "mark", "truncate", "truncate", "record", "max", "list", "headers", "nonsense"]


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, int, int, int, int, bool, int]:
    """Kind, partition, peer, session above the present one, number of records, offline, and what is odd."""
    return (
        draw(st.sampled_from(KINDS)),
        draw(st.integers(0, PARTITIONS - 1)),
        draw(st.integers(0, PEERS - 1)),
        draw(st.sampled_from([0] * 12 + [-1, 1])),
        draw(st.integers(0, 4)),
        draw(st.sampled_from([False] * 9 + [True])),
        draw(st.sampled_from([0] * 9 + [1, 2, 3, 4])),
    )


class ServiceMachine(RuleBasedStateMachine):
    """Hypothesis plays the cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="waltzctl-model-"))
        self.models = [Model() for _ in range(PARTITIONS)]
        self.hosted: HostedStorage | None = None
        self.sequence = 0

    @initialize(layout=st.sampled_from(Layout))
    def begin(self, layout: Layout) -> None:
        created(self.directory / "s", PARTITIONS, layout=layout)
        self.open()

    def open(self) -> None:
        storage = StorageDirectory.open(self.directory / "s", options=STORAGE)
        options = ServiceOptions(commit_bytes=400, workers=2)
        self.hosted = HostedStorage(storage, options=options, metrics=NodeMetrics(), log=LOG)

    def message(self, step: tuple[str, int, int, int, int, bool, int], lengths: list[int]) -> StorageMessage:
        """A request of this kind; `lengths` guesses where each log ends, so that most appends are in order."""
        kind, partition, _, above, count, offline, odd = step
        model = self.models[partition]
        session = (model.persisted[0] if offline else max(model.session, 0)) + above
        self.sequence += 1
        prefix = session, self.sequence, partition
        end = lengths[partition]
        if kind == "append":
            first = end + (odd if odd < 3 else 0)
            data = b"d" * (LONGEST + 1 if odd == 3 else (self.sequence * 7) % LONGEST)
            records = [record(number, data) for number in range(first, first + count)]
            if odd == 4 and records:
                last = records[-1]
                records[-1] = WireRecord(last.transaction_id, last.request_id, last.header, last.data, WRONG)
            if not odd and not above:
                lengths[partition] += count
            return AppendRequest(*prefix, tuple(records), offline)
        if kind == "truncate":
            lengths[partition] = max(min(end, end - count), 0)
            return TruncateRequest(*prefix, max(end - count, 0) - 1 - (odd == 1), offline)
        return {
            "info": LastSessionInfoRequest(*prefix, offline),
            "mark": SetLowWaterMarkRequest(*prefix, end - 1 + odd, offline),
            "record": RecordRequest(*prefix, end - count),
            "max": MaxTransactionIdRequest(*prefix, offline),
            "list": RecordListRequest(*prefix, end - 2 * count, count + odd - 1),
            "headers": RecordHeaderListRequest(*prefix, end - 2 * count, 2 * count),
            "nonsense": SuccessResponse(*prefix),
        }[kind]

    @rule(found=st.lists(steps(), min_size=1, max_size=25), grouped=st.booleans(), runs=st.integers(1, 5))
    def burst(self, found: list[tuple[str, int, int, int, int, bool, int]], grouped: bool, runs: int) -> None:
        """Requests of several peers at once; grouped: none is executed before all are queued."""
        hosted = self.hosted
        assert hosted is not None
        peers = [[Peer() for _ in range(PARTITIONS)] for _ in range(PEERS)]
        expected: list[list[list[Expected]]] = [[[] for _ in range(PARTITIONS)] for _ in range(PEERS)]
        lengths = [len(model.records) for model in self.models]
        loaded = [step for step in found if self.models[step[1]].assigned]
        queued = [(step[1], step[2], self.message(step, lengths)) for step in loaded]
        for partition, peer, message in queued:
            expected[peer][partition].append(self.models[partition].execute(message))
        services = [hosted.service(number) for number in range(PARTITIONS)]
        if grouped:
            for service in services:
                if service is not None:
                    service.hold()
        waiting: list[list[AppendRequest]] = [[] for _ in range(PARTITIONS)]
        owners = [0] * PARTITIONS

        def flush(partition: int) -> None:
            service = services[partition]
            if waiting[partition]:
                assert service is not None
                item = run_of(peers[owners[partition]][partition], waiting[partition])
                assert service.submit(item) is Admission.ACCEPTED
                waiting[partition] = []

        for partition, peer, message in queued:
            if owners[partition] != peer or not isinstance(message, AppendRequest) or len(waiting[partition]) >= runs:
                flush(partition)
            owners[partition] = peer
            if isinstance(message, AppendRequest):
                waiting[partition].append(message)
            else:
                service = services[partition]
                assert service is not None
                assert service.submit(request_of(peers[peer][partition], message)) is Admission.ACCEPTED
        for partition in range(PARTITIONS):
            flush(partition)
        if grouped:
            for service in services:
                if service is not None:
                    service.resume()
        for peer in range(PEERS):
            for partition in range(PARTITIONS):
                wanted = expected[peer][partition]
                answers = peers[peer][partition].wait(len(wanted))
                assert len(answers) == len(wanted)
                for answer, want in zip(answers, wanted, strict=True):
                    if isinstance(want, tuple):
                        assert isinstance(answer, FailureResponse), (answer, want)
                        assert (answer.failure.code, answer.sequence) == want
                    else:
                        assert encode(answer) == encode(want)

    @rule(seed=st.integers(0, 2**32), grouped=st.booleans(), runs=st.integers(1, 20))
    def storm(self, seed: int, grouped: bool, runs: int) -> None:
        """Many requests, most of which are in order."""
        random = Random(seed)
        self.burst(
            [
                (
                    random.choice(KINDS),
                    random.randrange(PARTITIONS),
                    random.randrange(PEERS),
                    random.choices([0, -1, 1], [40, 1, 1])[0],
                    random.randrange(5),
                    random.random() < 0.05,
                    random.choices(range(5), [60, 1, 1, 1, 1])[0],
                )
                for _ in range(60)
            ],
            grouped,
            runs,
        )

    @rule(partition=st.integers(0, PARTITIONS - 1), readable=st.booleans(), writable=st.booleans())
    def switch(self, partition: int, readable: bool, writable: bool) -> None:
        assert self.hosted is not None
        self.hosted.set_availability([partition], readable=readable, writable=writable)
        self.models[partition].readable, self.models[partition].writable = readable, writable

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def switch_on(self, partition: int) -> None:
        self.switch(partition, True, True)

    @rule(partition=st.integers(0, PARTITIONS - 1), delete=st.booleans())
    def take_away(self, partition: int, delete: bool) -> None:
        assert self.hosted is not None
        model = self.models[partition]
        if model.assigned:
            self.hosted.unassign([partition], delete_files=delete)
            model.assigned = False
            if delete:
                self.models[partition] = Model(assigned=False)

    @rule()
    def bring_back(self) -> None:
        assert self.hosted is not None
        missing = [number for number, model in enumerate(self.models) if not model.assigned]
        self.hosted.assign(missing)
        for number in missing:
            self.models[number].assigned = True

    @rule()
    def restart(self) -> None:
        assert self.hosted is not None
        self.hosted.close()
        self.open()

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def reopen(self, partition: int) -> None:
        assert self.hosted is not None
        if self.models[partition].assigned:
            self.hosted.reopen(partition)

    @invariant()
    def agrees(self) -> None:
        if self.hosted is None:
            return
        status = [(n, m.readable and m.writable) for n, m in enumerate(self.models) if m.assigned]
        assert self.hosted.assigned_status() == status
        for number, model in enumerate(self.models):
            if model.assigned:
                info = self.hosted.session_info(number)
                assert (info.session_id, info.low_water_mark, info.local_low_water_mark) == model.persisted
                service = self.hosted.service(number)
                assert service is not None
                service.hold()  # the worker is done with its last answer
                assert service.queue_size == 0
                service.resume()
                assert service.access.session_id == max(model.session, model.persisted[0])
                assert service.partition.max_transaction_id == len(model.records) - 1

    def teardown(self) -> None:
        if self.hosted is not None:
            self.hosted.close()
        shutil.rmtree(self.directory)


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
FEW = settings(max_examples=15, stateful_step_count=12, suppress_health_check=SLOW)
MANY = settings(max_examples=600, stateful_step_count=40, suppress_health_check=SLOW)


@pytest.mark.turns(10)
def test_the_service_answers_as_the_model_does() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(ServiceMachine, settings=FEW)


@pytest.mark.long
def test_the_service_answers_as_the_model_does_for_long() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(ServiceMachine, settings=MANY)
