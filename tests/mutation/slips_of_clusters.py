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
_CLIENT_PORT, _PORT = "engine/server/client_port.py", ("tests/server/test_client_port.py",)
_LOCKS, _LOCKED = "engine/scan/lock_loops.py", ("tests/server/test_locks.py",)
_LOOPS, _TAKEN = "engine/scan/client_loops.py", ("tests/scan/test_client_appends.py",)

_RECOVERY = "engine/quorum/recovery.py"
_LASTING = ("tests/quorum/test_lasting_marks.py",)

_OF_VERIFICATION = ("tests/cluster/test_cluster_verification.py",)

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
        "if one.lost < _SESSIONS:",
        "if one.lost < _SESSIONS - 1:",
        _SERVED,
        "what two sessions in a row left unwritten is forgotten",
    ),
    Slip(
        _PARTITION,
        "if one.lost < _SESSIONS:",
        "if True:",
        _SERVED,
        "an append that ends sessions ends them for ever",
    ),
    Slip(
        _PARTITION,
        "self._queue.appendleft(item.part(judged, len(item.records)))",
        "self._queue.append(item.part(judged, len(item.records)))",
        _PORT,
        "of appends that came together those beyond a batch go behind what came later",
    ),
    Slip(
        _CLIENT_PORT,
        "if partition is None or not partition.is_registered(client, self):",
        "if partition is None:",
        _PORT,
        "appends of a client that did not mount the partition are taken",
    ),
    Slip(
        _CLIENT_PORT,
        "self._begin(count, size)",
        "self._begin(count, 0)",
        _PORT,
        "what appends take in memory is not counted",
    ),
    Slip(
        _PARTITION,
        "self._before = self._now if now - self._begun < 2.0 else 0",
        "self._before = self._now",
        _SERVED,
        "a feed is granted what was committed long ago",
    ),
    Slip(
        _CLIENT_PORT,
        "self._done(count, size)",
        "self._done(count, 0)",
        _PORT,
        "what appends took in memory is never given back",
    ),
    Slip(
        _LOCKS,
        "if get(in_flight, one) > 0 and get(in_flight, other) > 0 and get(in_flight, third) > 0:",
        "if get(in_flight, one) > 0 or get(in_flight, other) > 0 or get(in_flight, third) > 0:",
        _LOCKED,
        "an append waits for one that has no lock of its own",
    ),
    Slip(
        _LOCKS,
        "put(in_flight, one, get(in_flight, one) + more)",
        "put(in_flight, one, max(0, more))",
        _LOCKED,
        "a lock that shares a slot is free while somebody holds it",
    ),
    Slip(
        _LOCKS,
        "if seen > mark:",
        "if seen > mark + 1:",
        _LOCKED,
        "an append is let through whose client does not know of the last transaction under its lock",
    ),
    Slip(
        _LOCKS,
        "            transaction += 1\n",
        "            transaction += 0\n",
        _LOCKED,
        "of appends that came together the first one counts as the last that wrote under a lock",
    ),
    Slip(
        _PARTITION,
        "item.client.refused(part.records.request_id(place), transaction_id)",
        "item.client.refused(part.records.request_id(0), transaction_id)",
        _SERVED,
        "of appends that are refused together one hears it several times, and the others never",
    ),
    Slip(
        _PARTITION,
        "begun = stop\n        return admitted, judged",
        "pass\n        return admitted, judged",
        _SERVED,
        "of appends that came together those behind a refused one are taken for those in front of it",
    ),
    Slip(
        _LOOPS,
        "if checksum(state, 0, memory, source, data) != unsigned_at(memory, source + data):",
        "if False:",
        _TAKEN,
        "appends are taken whatever their checksum says",
    ),
    Slip(
        _LOOPS,
        "if data != left:",
        "if data > left:",
        _TAKEN,
        "an append is taken with bytes left over behind it",
    ),
    Slip(
        _LOOPS,
        "if run < 0 or has != locked or number != client or where != partition:",
        "if run < 0 or number != client or where != partition:",
        _TAKEN,
        "the locks of an append behind one without locks are overlooked",
    ),
    Slip(
        "engine/server/replica_session.py",
        "self.records.part(transaction_id - self.first, len(self.records))",
        "self.records.part(transaction_id - self.first - 1, len(self.records))",
        ("tests/server/test_store_session.py",),
        "a replica that has the beginning of a batch is sent its last record once more",
    ),
    Slip(
        _CACHE,
        "end if gap < 0 else gap",
        "end",
        _CACHED,
        "a feed tells zeros where a transaction is not in the cache",
    ),
    Slip(
        _CACHE,
        "        self.held = self.held.translate(_ONE_LESS)\n",
        "",
        _CACHED,
        "behind large records a client is given another transaction's data",
    ),
    Slip(
        _CACHE,
        "chunk.held.count(0, place, place + count) == count and",
        "chunk.held.count(0, place, place + count) and",
        _CACHED,
        "data that is read while it is committed takes memory twice",
    ),
    Slip(
        _CACHE,
        "bytes(data[begin:end])",
        "data[begin:end]",
        _CACHED,
        "a record in the cache keeps the whole batch in memory, which nobody counts",
    ),
    Slip(
        _CACHE,
        "                self._data.used -= chunk.drop()",
        "                chunk.drop()",
        _CACHED,
        "the cache counts memory that it has given up, and holds less and less",
    ),
    Slip(
        "engine/client/partition_readings.py",
        'return None if self.out_of_service is None else f"out of service: {self.out_of_service}"',
        "return None",
        _OF_VERIFICATION,
        "a replica that damage keeps out of every session counts for a quorum, and verify of the cluster is clean",
    ),
    Slip(
        "engine/cluster/quorum_recovery.py",
        "if one.why_absent is not None:",
        "if one.available is False:",
        _OF_VERIFICATION,
        "recover plans with the vote of a replica that will not give one",
    ),
    Slip(
        "engine/cluster/cluster_verification.py",
        "                if last < mark:\n",
        "                if last < mark - 1:\n",
        _OF_VERIFICATION,
        "a replica that lacks the last committed transaction is whole",
    ),
    Slip(
        "engine/cluster/cluster_verification.py",
        "        if last > first:\n",
        "        if last >= first:\n",
        _OF_VERIFICATION,
        "a replica that stands still is said to catch up, as a note",
    ),
    Slip(
        "engine/server/store_session.py",
        "if known.phase is not Phase.ABSENT or known.reason != reason:",
        "if known.phase is not Phase.ABSENT:",
        ("tests/server/test_store_session.py",),
        "whoever asks why a partition is closed hears that a node is not connected yet, which refuses for damage",
    ),
    Slip(
        "engine/node/outages.py",
        "worst is not None and worst.code is Code.PARTITION_EMPTY",
        "False",
        ("tests/node/test_outages.py",),
        "a repair is advised that finds nothing to do",
    ),
    Slip(
        "engine/cluster/replica_removal.py",
        "held >= last.latest_session:",
        "held >= last.latest_session - 1:",
        ("tests/cluster/test_replica_removal.py",),
        "the only whole replica is taken away while others, restored from a backup, are being filled",
    ),
    Slip(
        "engine/cluster/replica_removal.py",
        "node not in last.members or ",
        "",
        ("tests/cluster/test_replica_removal.py",),
        "no replica can be taken away while a new one, which never acknowledged anything, is being filled",
    ),
    Slip(
        "engine/cluster/replica_removal.py",
        "    if reading.why_absent is not None:\n",
        "    if reading.why_absent is not None and reading.session_id is None:\n",
        ("tests/cluster/test_replica_removal.py",),
        "a replica in quarantine counts for the quorum that lets the last whole one go",
    ),
)
