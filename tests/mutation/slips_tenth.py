"""A tenth list of slips: each takes back a mend of what failing system calls, two commands at once and hostile peers showed."""

from __future__ import annotations

from tests.mutation.trial import Slip

_FENCES, _OUTAGES = "tests/storage/test_fences.py", "tests/node/test_outages.py"
_UNEXAMINABLE, _APPLY = "tests/cli/test_unexaminable.py", "tests/repair/test_apply.py"
_AGREED, _BACKUPS = "tests/cli/test_recover_replicas.py", "tests/backup/test_live.py"

TENTH: tuple[Slip, ...] = (
    Slip(
        "engine/storage/fences.py",
        "            if sync_failed(storage, FENCES):\n",
        "            if False:\n",
        (f"{_FENCES}::test_what_a_failed_sync_left_in_memory_only_is_written_again",),
        "a session that is fenced in memory only counts, and behind a power loss an older server appends again",
    ),
    Slip(
        "engine/storage/fences.py",
        "            return self._not_raised[1] if self._not_raised and self._not_raised[0] == partition else found",
        "            return found",
        (f"{_OUTAGES}::test_a_session_whose_fence_could_not_be_synced_is_not_let_in_by_assigning_anew",),
        "a session that was refused, as its fence could not be synced, is let in once the partition comes back",
    ),
    Slip(
        "engine/node/access_control.py",
        "            if (failed := self._partition.marks_failed) is not None:\n                raise",
        "            if (failed := None) is not None:\n                raise",
        (f"{_OUTAGES}::test_sessions_that_are_refused_again_and_again_take_no_memory",),
        "a session begins whose mark cannot be set, which ends the recovery of all its replicas",
    ),
    Slip(
        "engine/pages/wal_store.py",
        "                if (begin := last.unconfirmed_from) is not None:\n",
        "                if (begin := None if last.unconfirmed is None else last.unconfirmed.offset) is not None:\n",
        ("tests/pages/test_wal.py::test_an_empty_record_whose_flush_failed_is_written_again",),
        "a vault whose log was closed in memory only is refused as damaged behind a power loss",
    ),
    Slip(
        "engine/durable/restore.py",
        "        _write_again(file, path)\n",
        "        pass\n",
        ("tests/durable/test_quarantine.py::test_what_a_failed_sync_restored_in_memory_only_is_written_again",),
        "what an undo restored in memory only counts as restored, and the copies go",
    ),
    Slip(
        "engine/durable/file_status.py",
        '        raise DiskReadError(path, None, error, doing="examine") from error',
        "        return None",
        (_UNEXAMINABLE,),
        "a data file that the disk does not let be examined passes for one that is missing",
    ),
    Slip(
        "engine/repair/plan.py",
        "sources, seen=self.seen, missing=missing)",
        "sources, missing=missing)",
        (_APPLY,),
        "a plan that a node wrote behind is carried out, and cuts what was acknowledged meanwhile",
    ),
    Slip(
        "engine/repair/set_partition.py",
        "        self._draft.reads(path)\n",
        "",
        ("tests/repair/test_apply.py::test_a_session_is_not_set_below_a_fence_that_came_since",),
        "a session is set below the fence that a node raised since the plan was made",
    ),
    Slip(
        "engine/repair/prune.py",
        "        for name in prepared.latest:\n",
        "        for name in ():\n",
        ("tests/repair/test_prune.py",),
        "the copies of a repair go that is one of the latest by now",
    ),
    Slip(
        "engine/backup/source_files.py",
        "        if source.live and (control or small):\n",
        "        if control or (source.live and small):\n",
        (_BACKUPS,),
        "a backup has the marks from before a repair and not the records that it gave up, and is told as whole",
    ),
    Slip(
        "engine/repair/replica_records.py",
        "            if self.context.allow_data_loss:\n                found.unread",
        "            if False:\n                found.unread",
        (_UNEXAMINABLE,),
        "records are given up that a replica holds which could not be read for a moment",
    ),
    Slip(
        "engine/compare/compare.py",
        "            missing = member.open_end or (",
        "            missing = (",
        (_UNEXAMINABLE,),
        "a replica whose last data file cannot be examined votes for the end before it, and others are cut to that",
    ),
    Slip(
        "engine/inspect/partition_runs.py",
        "            bounds = (mark, None if first is None else first - 1, self._mark_now())\n",
        "            bounds = (mark, None if first is None else first - 1)\n",
        ("tests/inspect/test_live.py",),
        "records that a repair gave up while a verification ran are told as lost",
    ),
    Slip(
        "engine/durable/disk.py",
        "            if kind is None:  # what failed before is told: whoever is told of a failed sync notes it\n",
        "            if True:\n",
        ("tests/durable/test_disk.py",),
        "an error of close hides a failed sync, which the next process then does not make good",
    ),
    Slip(
        "engine/durable/work_directory.py",
        "            disk.rename(target, place)\n",
        "            pass\n",
        ("tests/durable/test_work_directory.py",),
        "a restore that ends with an error leaves a directory that the same command then refuses",
    ),
    Slip(
        "waltzctl/__main__.py",
        "    signal.signal(signal.SIGCHLD, signal.SIG_DFL)\n",
        "",
        ("tests/cli/test_startup.py",),
        "a pipeline's run that failed under a parent that ignores SIGCHLD is a success",
    ),
    Slip(
        "engine/pages/page_storage.py",
        "if not blobs.cut_tails(named):",
        "if not blobs.cut_tails():",
        ("tests/pages/test_flushed_with_record.py",),
        "a batch that was acknowledged is taken for torn where a store is opened on a full disk",
    ),
    Slip(
        "engine/durable/quarantine.py",
        "    check_can_end(entry)\n",
        "",
        ("tests/durable/test_quarantine.py",),
        "an undo is begun that can end only when somebody makes room, and until then nobody can write",
    ),
    Slip(
        "engine/durable/undoable.py",
        "        if name in moved:\n",
        "        if False:\n",
        ("tests/repair/test_set_partition.py",),
        "a file of a partition that was put aside comes back alone, and with it the partition",
    ),
    Slip(
        "engine/repair/undo_conditions.py",
        "    check_copies(entry, [file])\n",
        "",
        ("tests/repair/test_undo.py",),
        "an undo without what was kept of the control file ends with a traceback",
    ),
)
