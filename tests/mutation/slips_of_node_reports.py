"""Slips in what a node says of itself: failures, outages, health, metrics; and in its start, reload and stop."""

from __future__ import annotations

from tests.mutation.trial import Slip

_FAILURE_RESPONSES = "engine/node/failure_responses.py"
_ADMIN_PORT = "engine/node/admin_port.py"
_NODE_COLLECTOR = "engine/node/node_collector.py"
_CLUSTER_METADATA = "engine/node/cluster_metadata.py"
_OUTAGES = "engine/node/outages.py"
_PARTITION_OUTAGE = "engine/node/partition_outage.py"
_DISK_PROBE = "engine/node/disk_probe.py"
_NODE = "engine/node/node.py"
_HEALTH = "engine/node/health.py"
_OF_WHOLE_ANSWERS = ("tests/node/test_whole_answers.py",)
_OF_ADMIN_CONNECTION = ("tests/node/test_admin_connection.py",)
_OF_HOSTING = ("tests/node/test_hosting.py",)
_OF_OUTAGES = ("tests/node/test_outages.py",)
_OF_JOURNALS = ("tests/node/test_commit_journal.py",)

NODE_REPORTS: tuple[Slip, ...] = (
    Slip(
        _HEALTH,
        "        found += [self.journal.problem] if self.journal is not None and self.journal.problem else []\n",
        "",
        _OF_JOURNALS,
        "a node whose commit journal failed is well",
    ),
    Slip(
        _HEALTH,
        "        if self.journal is not None:\n            details",
        "        if self.journal is not None and self.journal.fault:\n            details",
        _OF_JOURNALS,
        "nobody sees that a journal is in force",
    ),
    Slip(
        _NODE_COLLECTOR,
        "journal=None if report.journal is None else report.journal.fault is None",
        "journal=report.journal is not None",
        _OF_JOURNALS,
        "the alert of a journal that cannot be written never fires",
    ),
    Slip(
        _NODE_COLLECTOR,
        "        if surroundings.journal is not None:\n",
        "        if True:\n",
        _OF_JOURNALS,
        "a node without a journal shows one that failed",
    ),
    Slip(
        "engine/storage/journal_recovery.py",
        "    if _is_own(storage, state):\n",
        "    if True:\n",
        ("tests/storage/test_commit_journal.py",),
        "a copy that is opened takes the journal away from the original",
    ),
    Slip(
        "engine/storage/journal_creation.py",
        "owner, path = owner_of(storage), path.absolute()",
        "owner = owner_of(storage)",
        _OF_JOURNALS,
        "a node that is started elsewhere does not find its journal",
    ),
    Slip(
        _FAILURE_RESPONSES,
        "    (errors.ChecksumMismatchError, FailureCode.DATA_CHECKSUM, STORAGE_EXCEPTION),\n",
        "",
        _OF_WHOLE_ANSWERS,
        "data that was damaged on its way looks like a damaged disk",
    ),
    Slip(
        _FAILURE_RESPONSES,
        "    (errors.NotAssignedError, FailureCode.NOT_ASSIGNED, PLAIN_EXCEPTION),\n",
        "",
        _OF_WHOLE_ANSWERS,
        "a released tool does not see that a partition is not assigned",
    ),
    Slip(
        _FAILURE_RESPONSES,
        "    (errors.NotAvailableError, FailureCode.NOT_AVAILABLE, STORAGE_EXCEPTION),\n",
        "",
        _OF_WHOLE_ANSWERS,
        "a partition that is switched off cannot be told from a refusal",
    ),
    Slip(
        _FAILURE_RESPONSES,
        "    (errors.MarkWouldFallError, FailureCode.MARK_WOULD_FALL, STORAGE_EXCEPTION),\n",
        "",
        _OF_WHOLE_ANSWERS,
        "a mark that would fall cannot be told from a refusal",
    ),
    Slip(
        _ADMIN_PORT,
        "            except OverdueError as error:",
        "            except TimeoutError as error:",
        _OF_ADMIN_CONNECTION,
        "a request that hangs keeps a node from stopping in order",
    ),
    Slip(
        _ADMIN_PORT,
        "if self._executing is None and self._queue and self.open and",
        "if self._executing is None and self._queue and",
        _OF_ADMIN_CONNECTION,
        "what an operator has given up on is done all the same",
    ),
    Slip(
        _NODE_COLLECTOR,
        "quarantined=frozenset(one.partition for one in report.partitions if one.quarantined)",
        "quarantined=frozenset(one.partition for one in report.partitions if one.out)",
        _OF_WHOLE_ANSWERS,
        "a full disk is shown as damage",
    ),
    Slip(
        _NODE_COLLECTOR,
        "if surroundings.free_bytes is not None:",
        "if surroundings.free_bytes:",
        _OF_WHOLE_ANSWERS,
        "the gauge of a disk vanishes when nothing is free",
    ),
    Slip(
        _CLUSTER_METADATA,
        "path = f\"{options.cluster_root.rstrip('/')}/{STORE_PATH}\"",
        'path = f"{options.cluster_root}/{STORE_PATH}"',
        _OF_HOSTING,
        "a root that ends with a slash is not found",
    ),
    Slip(
        _CLUSTER_METADATA,
        '    except ZnodeVersionError as error:\n        raise MismatchError(f"{where}: {error}") from None\n',
        "",
        _OF_HOSTING,
        "what a newer program wrote is told as damage",
    ),
    Slip(
        _OUTAGES,
        "    elif not isinstance(error, DiskReadError):\n        return None",
        "    elif not isinstance(error, DiskReadError) or error.errno in _TEMPORARY_ERRORS:\n        return None",
        _OF_OUTAGES,
        "a replica that cannot read aborts the recovery of all again and again",
    ),
    Slip(
        _OUTAGES,
        "        partition.read(transaction_id)\n    except WaltzError:",
        "        partition.read(transaction_id)\n    except CorruptRecordError:",
        _OF_OUTAGES,
        "a disk that fails once more is an internal error",
    ),
    Slip(
        _OUTAGES,
        "        if not self._lock.acquire(blocking=False):",
        "        if not self._lock.acquire():",
        _OF_OUTAGES,
        "one look at a disk that hangs holds every partition up",
    ),
    Slip(
        _PARTITION_OUTAGE,
        "self._outage.returns is not Return.RECORD:\n            self._outage = None",
        "self._outage.returns is Return.OPENED:\n            self._outage = None",
        _OF_OUTAGES,
        "a partition that was opened again waits for space",
    ),
    Slip(
        _PARTITION_OUTAGE,
        "before.code is not now.code",
        "before is not now",
        _OF_OUTAGES,
        "the log says at each request that a partition is quarantined",
    ),
    Slip(
        _DISK_PROBE,
        "            if status.f_flag & os.ST_RDONLY:\n",
        "            if False:\n",
        _OF_WHOLE_ANSWERS,
        "what is wrong with a read-only disk is told as an error of the probe",
    ),
    Slip(
        _DISK_PROBE,
        "            return DiskState(free, None, str(error))",
        "            return DiskState(None, None, str(error))",
        _OF_WHOLE_ANSWERS,
        "how much is free is not told when the disk refuses",
    ),
    Slip(
        "engine/net/service_settings.py",
        "    check_groups(options)\n",
        "",
        _OF_HOSTING,
        "options that cannot be meant are found out while the node runs",
    ),
    Slip(
        _NODE,
        "        self._open.push_async_callback(self.health.close, 1.0)\n",
        "",
        _OF_HOSTING,
        "a look at the disk outlives the node, and its file the lock",
    ),
    Slip(
        _NODE,
        'name="node-start", undo=_close_hosted)',
        'name="node-start")',
        _OF_HOSTING,
        "a start that was cancelled leaves threads and files",
    ),
    Slip(
        _NODE,
        "for number, one in partitions.items() if one.damaged)",
        "for number, one in partitions.items() if one.failed)",
        _OF_HOSTING,
        "a node does not say at its start what is quarantined",
    ),
    Slip(
        _NODE,
        "        options.check()\n        made = Single",
        "        made = Single",
        _OF_HOSTING,
        "limits that cannot be meant are put into force",
    ),
    Slip(
        _NODE,
        "        await asyncio.shield(self._stopping)",
        "        await self._stopping",
        _OF_HOSTING,
        "who stops waiting for a stop cancels it",
    ),
    Slip(
        _NODE,
        "                self.health.begin_draining()\n",
        "",
        _OF_HOSTING,
        "a balancer sends clients to a node that stops",
    ),
    Slip(
        _HEALTH,
        "for port in self.ports if not port.listening",
        "for port in self.ports[:2] if not port.listening",
        _OF_WHOLE_ANSWERS,
        "nobody learns that the HTTP port is gone",
    ),
    Slip(
        _HEALTH,
        "result(self._options.deadline, max_age=self._options.max_age)",
        "result(self._options.deadline)",
        _OF_WHOLE_ANSWERS,
        "health checks load the disk",
    ),
    Slip(
        "engine/node/readings.py",
        "            continue  # unassigned meanwhile",
        "            break  # unassigned meanwhile",
        ("tests/node/test_readings.py",),
        "a partition that was just taken away hides those behind it",
    ),
)
