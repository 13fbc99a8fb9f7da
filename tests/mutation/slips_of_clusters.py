"""Slips in servers among servers: who is dead, whose descriptor goes, what a session leaves behind, what feeds come from."""

from __future__ import annotations

from tests.mutation.trial import Slip

_DETECTED = ("tests/metadata/test_failure_detector.py",)
_MEMBERS = ("tests/metadata/test_membership.py",)
_SESSIONS = ("tests/metadata/test_session_loss.py",)
_SERVED = ("tests/server/test_partition.py",)
_CACHED = ("tests/server/test_transaction_cache.py",)
_DETECTOR = "engine/metadata/failure_detector.py"
_MEMBERSHIP = "engine/metadata/membership.py"
_PARTITION = "engine/server/served_partition.py"
_CACHE = "engine/server/transaction_cache.py"

_RECOVERY = "engine/quorum/recovery.py"
_LASTING = ("tests/quorum/test_lasting_marks.py",)

CLUSTERS: tuple[Slip, ...] = (
    Slip(
        _RECOVERY,
        "        if _may_be_marked(state, one):",
        "        if True:",
        _LASTING,
        "a session that ends leaves a mark above what the next one resolves: two histories of one partition",
    ),
    Slip(
        _RECOVERY,
        "len(state.keepers | {one.node}) >= state.last_quorum",
        "len(state.keepers | {one.node}) >= state.last_quorum - 1",
        _LASTING,
        "the same, where two copies are needed",
    ),
    Slip(
        _RECOVERY,
        "one.marked or one.cut_to is None or one.cut_to >= mark",
        "one.marked or one.cut_to is not None or one.cut_to is None",
        _LASTING,
        "copies that will be cut count as kept",
    ),
    Slip(
        _RECOVERY,
        "event.session_id < state.latest_session and held > known < cut_to",
        "False",
        _LASTING,
        "a replica with the mark of a server of the release counts with transactions that another session wrote differently",
    ),
    Slip(
        _RECOVERY,
        "event.session_id < state.latest_session and held > known < cut_to",
        "event.session_id <= state.latest_session and held > known < cut_to",
        _LASTING,
        "a replica that a session marked is compared in vain",
    ),
    Slip(
        _RECOVERY,
        "        known = last.closing_high_water_mark if last.session_id >= 0 else -1",
        "        known = last.closing_high_water_mark",
        _LASTING,
        "of one that was in no session whatever it holds is believed",
    ),
    Slip(
        _RECOVERY,
        "    if voter.held < one.held:",
        "    if voter.held < one.held - 1:",
        _LASTING,
        "a voter is asked for what it does not hold, and taken for failed",
    ),
    Slip(
        "engine/quorum/recovery_state.py",
        "self.is_published and (self.votes or self.marked)",
        "self.is_published",
        _LASTING,
        "one that is far behind excludes replicas that hold more than it",
    ),
    Slip(
        "engine/server/replica_session.py",
        "            if one != other:",
        "            if False:",
        ("tests/server/test_store_session.py",),
        "a replica that differs is let in",
    ),
    Slip(
        _DETECTOR,
        "if stood and await self._refused(address) else 0",
        "if await self._refused(address) else 0",
        _DETECTED,
        "a server that others cannot reach, but clients can, is taken from the servers",
    ),
    Slip(
        _DETECTOR,
        "if stood and await self._refused(address) else 0",
        "if stood else 0",
        _DETECTED,
        "a network that is down for a moment takes every server away",
    ),
    Slip(
        _DETECTOR,
        "if stood and await self._refused(address) else 0",
        "if stood and await self._refused(address) else refusals",
        _DETECTED,
        "refusals count that did not follow one another",
    ),
    Slip(
        _DETECTOR,
        "while refusals < _REFUSALS or not",
        "while refusals < _REFUSALS - 1 or not",
        _DETECTED,
        "a server that is being started again is taken away",
    ),
    Slip(
        _DETECTOR,
        "behind = sum(one.server < own for _, one in others)",
        "behind = 0",
        _DETECTED,
        "everybody watches the first servers, and nobody the last ones",
    ),
    Slip(
        _DETECTOR,
        "self._watched.pop(path).cancel()",
        "self._watched.pop(path)",
        _DETECTED,
        "connections to servers that left stay for ever",
    ),
    Slip(
        _MEMBERSHIP,
        "if self._path not in (path for path, _ in servers):",
        "if False:",
        _MEMBERS,
        "a server that was taken for dead serves nothing, for ever",
    ),
    Slip(
        _MEMBERSHIP,
        "lambda one: (one.host, one.port) == (host, port))",
        "lambda _: False)",
        _MEMBERS,
        "a server that is started again waits for the session of its predecessor",
    ),
    Slip(
        _MEMBERSHIP,
        "lambda one: (one.host, one.port) == (host, port))",
        "lambda one: one.host == host)",
        _MEMBERS,
        "of the servers of one machine the last one drives the others out",
    ),
    Slip(
        "engine/metadata/zookeeper_connection.py",
        "timeout=options.session_timeout,",
        "timeout=min(options.session_timeout, options.connect_timeout),",
        _SESSIONS,
        "sessions end sooner than they are configured to",
    ),
    Slip(
        "engine/metadata/zookeeper_connection.py",
        "share = seconds / len(client.hosts)",
        "share = seconds",
        _SESSIONS,
        "one host of an ensemble that hangs keeps everybody out",
    ),
    Slip(
        "engine/metadata/embedded_sessions.py",
        "if namespace != str(_pid_namespace()):",
        "if False:",
        _SESSIONS,
        "a process in another container counts as ended",
    ),
    Slip(
        _PARTITION,
        "if item.locks and (written := self._locks.last_written(item.locks)) > item.request.client_high_water_mark:",
        "if (written := self._locks.last_written(item.locks) if item.locks else -1) > item.request.client_high_water_mark:",
        _SERVED,
        "a client that knows of nothing yet is refused what needs no lock",
    ),
    Slip(
        _PARTITION,
        "if item.lost < _SESSIONS:",
        "if item.lost < _SESSIONS - 1:",
        _SERVED,
        "what two sessions in a row left unwritten is forgotten",
    ),
    Slip(
        _PARTITION,
        "if item.lost < _SESSIONS:",
        "if True:",
        _SERVED,
        "an append that ends sessions ends them for ever",
    ),
    Slip(
        _CACHE,
        "end if gap < 0 else gap",
        "end",
        _CACHED,
        "a feed tells zeros where a transaction is not in the cache",
    ),
)
