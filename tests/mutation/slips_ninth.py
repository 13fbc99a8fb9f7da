"""A ninth list of slips: each takes back a mend of what readings by one question each, through all areas, showed."""

from __future__ import annotations

from tests.mutation.trial import Slip

_JOURNAL, _LOCKS = "tests/storage/test_commit_journal.py", "tests/storage/test_locks.py"
_STORE, _FAULTS = "tests/pages/test_page_storage.py", "tests/storage/test_disk_faults.py"
_OUTCOME, _LOST = "tests/cli/test_outcome.py", "tests/metadata/test_session_loss.py"

NINTH: tuple[Slip, ...] = (
    Slip(
        "engine/storage/journal_recovery.py",
        "    if is_written(state.path):\n        return False\n",
        "",
        (f"{_JOURNAL}::test_a_journal_that_a_process_writes_is_nobody_elses",),
        "a copy at a node's path removes the journal that the node writes, and with it what is durable only there",
    ),
    Slip(
        "engine/storage/journal_recovery.py",
        "        if part.offset > end:\n",
        "        if False:\n",
        (f"{_JOURNAL}::test_a_copy_that_is_older_than_the_journal_gets_no_hole",),
        "a copy that is older than its original's journal gets records with zeros in front of them",
    ),
    Slip(
        "engine/storage/journal_creation.py",
        "        if files and file_status.is_at(path, os.fstat(files[0].fileno())):",
        "        if True:",
        (f"{_JOURNAL}::test_of_two_that_make_a_journal_at_one_path_at_once_the_faster_one_keeps_it",),
        "of two nodes that are given one journal the slower one removes it from the faster one",
    ),
    Slip(
        "engine/storage/partition.py",
        "        self._control.check_in_place()\n        active.sync_data()\n",
        "        active.sync_data()\n",
        (_LOCKS,),
        "a node whose directory was replaced by a copy begins its next segment in the copy",
    ),
    Slip(
        "engine/storage/control_file.py",
        "        self.check_in_place()\n        self._file.write_at(self._layout.struct_offset",
        "        self._file.write_at(self._layout.struct_offset",
        (_LOCKS,),
        "marks and sessions of a node whose directory was moved part from its segments",
    ),
    Slip(
        "engine/pages/page_storage.py",
        "        self.check_in_place()\n        ticket = _Ticket(edits, judged)\n",
        "        ticket = _Ticket(edits, judged)\n",
        (f"{_STORE}::test_a_store_that_was_moved_commits_nothing",),
        "a backup ends well whose pages got into a copy of the vault",
    ),
    Slip(
        "engine/pages/page_gc.py",
        "        store.check_in_place()\n        report.cut",
        "        report.cut",
        (f"{_STORE}::test_a_store_that_was_moved_collects_nothing_in_a_copy", "tests/pages/test_page_gc.py"),
        "garbage collection removes blob files of a copy that still needs them",
    ),
    Slip(
        "engine/durable/quarantine.py",
        "        check_built()\n",
        "",
        ("tests/repair/test_apply.py::test_a_replica_that_changes_between_the_check_and_the_copying_gives_nothing",),
        "a repair copies other records than those that were planned, and is called clean",
    ),
    Slip(
        "engine/durable/disk.py",
        "                if not is_at(beside, made):\n",
        "                if False:\n",
        ("tests/durable/test_locks_and_names.py::test_a_file_that_two_replace_at_once_is_never_half_of_one",),
        "of two processes that replace a file one gives its name to what the other one has half written",
    ),
    Slip(
        "engine/durable/directory_lock.py",
        "            _hold_directory(descriptors[-1])\n",
        "            pass\n",
        ("tests/durable/test_locks_and_names.py::test_who_removes_the_lock_file_gets_no_second_holder",),
        "two processes write to a vault whose lock file somebody removed",
    ),
    Slip(
        "engine/storage/directory.py",
        "        if leaving.condition.shows_unacknowledged:\n",
        "        if leaving.condition.error is not None:\n",
        (f"{_FAULTS}::test_a_partition_that_could_not_be_mended_is_not_cut_when_it_is_opened_again",),
        "a partition that could not be mended when it was opened loses its whole log when it is opened again",
    ),
    Slip(
        "engine/client/inspect.py",
        "    if reading.unread:\n",
        "    if False:\n",
        ("tests/client/test_node_inspection.py",),
        "a partition of which a node reads nothing is called clean",
    ),
    Slip(
        "engine/storage/directory.py",
        "renew_last_segment(old.path, number, data=old.condition.unsynced_when_opened)",
        "renew_last_segment(old.path, number, data=False)",
        (f"{_FAULTS}::test_what_could_not_be_flushed_when_it_was_opened_is_written_again",),
        "records that a failed flush left in the page cache alone are acknowledged when the partition is opened again",
    ),
    Slip(
        "engine/client/partition_mount.py",
        "                    if queue.qsize() - held > self.position - before:  # it came that far: it must not come twice\n",
        "                    if False:\n",
        ("tests/client/test_feeds.py",),
        "a transaction is given to its reader twice",
    ),
    Slip(
        "engine/client/append_call.py",
        "        self.wake()  # this and the next line may raise MemoryError: then nothing has changed\n"
        "        self.again.append(self.sent[sequence])\n        del self.sent[sequence]\n",
        "        self.again.append(self.sent[sequence])\n        del self.sent[sequence]\n        self.wake()\n",
        ("tests/client/test_append_histories.py",),
        "behind a moment without memory no connection lasts any more",
    ),
    Slip(
        "engine/metadata/embedded_store.py",
        "        if self._closing is not None:  # nobody would cancel it\n",
        "        if False:\n",
        (f"{_LOST}::test_a_call_that_is_under_way_when_its_store_is_closed_leaves_nothing_at_work",),
        "the metadata's file is looked at for ever by a store that was closed",
    ),
    Slip(
        "engine/client/partition_mount.py",
        "            self.position = transaction_id\n        if self._connection",
        "        if self._connection",
        ("tests/client/test_partition_mount.py",),
        "a mount does not go on behind what it was fed",
    ),
    Slip(
        "engine/server/log_server.py",
        "            await asyncio.shield(asyncio.gather(*map(self._close, gone)))\n",
        "            await asyncio.gather(*map(self._close, gone))\n",
        ("tests/server/test_partition.py",),
        "a server that is stopped while a partition is taken away leaves its session at work",
    ),
    Slip(
        "engine/spark/record_rows.py",
        "    doubtful = part.whole and (found is not None or reader.begins != reader.job.first)\n",
        "    doubtful = False\n",
        ("tests/spark/test_splits.py",),
        "two segments with each other's names are told as gaps, and a query that fails on loss ends",
    ),
    Slip(
        "engine/inspect/segment_order.py",
        "        return last is not None and last < expected\n",
        "        return True\n",
        ("tests/inspect/test_dump.py",),
        "records in a segment with a name outside of the range are passed over",
    ),
    Slip(
        "engine/repair/salvage_attribution.py",
        "        if question.cluster_key not in (None, found[0]):\n",
        "        if False:\n",
        ("tests/repair/test_salvage.py", "tests/repair/test_salvage_rules.py"),
        "what may be of the cluster that was asked for is counted as another one's, and nothing is said",
    ),
    Slip(
        "engine/pipeline/agreement.py",
        "if stop > decided + 1 else None",
        "if stop > decided else None",
        ("tests/pipeline/test_agreement.py",),
        "a hole that was told is told once more, of no id",
    ),
    Slip(
        "engine/inspect/live.py",
        "        if age >= enough:\n",
        "        if age >= enough or age < 0:\n",
        ("tests/inspect/test_while_written.py",),
        "beside a file server whose clock is ahead a batch that is being written is a torn tail",
    ),
    Slip(
        "waltzctl/console.py",
        "                raise ReaderGoneError(self.known) from error\n",
        "                raise\n",
        (_OUTCOME,),
        "damage that was told is status 0 where the reader has enough",
    ),
    Slip(
        "waltzctl/console.py",
        "                drop_output()  # why the command ends is the error, for which stderr and the exit status are left\n",
        "                raise\n",
        (_OUTCOME,),
        "an error is status 0 where nobody reads the answer",
    ),
)
