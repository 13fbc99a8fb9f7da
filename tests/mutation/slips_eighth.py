"""An eighth list of slips: each takes back a mend of what a third reading of the code by others showed."""

from __future__ import annotations

from tests.mutation.trial import Slip

_RETIRED, _JOURNAL = "tests/storage/test_retired.py", "tests/storage/test_commit_journal.py"
_STREAMS, _LOST = "tests/pipeline/test_streams.py", "tests/metadata/test_session_loss.py"
_OF_PARTITION, _ANEW = "tests/server/test_partition.py", "tests/server/test_assigned_anew.py"
_STORE, _BACKUPS = "tests/pages/test_page_storage.py", "tests/backup/test_backups.py"
_MOUNTS = "tests/client/test_partition_mount.py"

_OF_SESSION = "tests/server/test_store_session.py"

EIGHTH: tuple[Slip, ...] = (
    Slip(
        "engine/storage/retired.py",
        "    if linked and not (moved_back and os.path.isabs(os.readlink(directory))):\n",
        "    if linked and not moved_back:\n",
        (f"{_RETIRED}::test_a_link_is_put_aside_only_where_it_still_leads_to_the_files",),
        "a partition that is a relative link is empty after it was taken away and given back, and its ids are given away again",
    ),
    Slip(
        "engine/storage/retired.py",
        "        _refuse_elsewhere(place, moved_back=False)\n",
        "        pass\n",
        (_RETIRED,),
        "a node never starts again behind a deletion of what lies behind a link",
    ),
    Slip(
        "engine/storage/directory.py",
        "                self._finish_deletion(number, (number,))\n            info = self._control.info(number)\n",
        "                pass\n            info = self._control.info(number)\n",
        (f"{_RETIRED}::test_a_deletion_that_failed_is_finished_before_the_partition_begins_anew",),
        "the next start finishes the deletion of an old partition with the fence of the new one, and a replaced server is let in",
    ),
    Slip(
        "engine/storage/directory.py",
        "        if self._written_back is not None and number in self._written_back.failed:\n            keep_for(",
        "        if False:\n            keep_for(",
        (f"{_JOURNAL}::test_what_could_not_be_written_back_of_a_partition_goes_with_its_files",),
        "what the journal held of a deleted partition is written into the new one",
    ),
    Slip(
        "engine/storage/journal_recovery.py",
        "            if not _deletion_unfinished(storage, partition):\n    ",
        "",
        (f"{_JOURNAL}::test_a_deletion_in_whose_midst_a_process_died_wants_nothing_written_back",),
        "a partition that is half deleted keeps a journal for good",
    ),
    Slip(
        "engine/storage/append.py",
        "            newest = max(current.session_id, fences.get(partition))\n",
        "            newest = current.session_id\n",
        ("tests/storage/test_append.py::test_the_session_is_later_than_any_that_was_let_in",),
        "records are appended offline in the session of a server that was let in already",
    ),
    Slip(
        "engine/storage/commit_journal.py",
        "        raw = encode_entry(self.state.journal_id, (epoch, sequence, self._durable), writes, forgotten)\n",
        "        taken = self._free_files.pop()\n"
        "        raw = encode_entry(self.state.journal_id, (epoch, sequence, self._durable), writes, forgotten)\n"
        "        self._free_files.append(taken)\n",
        ("tests/node/test_commit_journal.py::test_without_memory_for_an_entry_appends_are_answered_all_the_same",),
        "after two moments without memory every commit waits for ever",
    ),
    Slip(
        "engine/storage/directory.py",
        "                self._drop_from_recovered_journal(number)  # a deletion may have failed, or the directory is lost\n",
        "",
        (f"{_JOURNAL}::test_a_partition_begun_anew_behind_a_deletion_that_failed_is_not_written_into",),
        "the records of a deleted partition are written into the one that came in its place",
    ),
    Slip(
        "engine/server/served_partition.py",
        "                self._pending.extendleft(reversed(decided))\n",
        "                pass\n",
        (f"{_OF_PARTITION}::test_what_is_committed_when_there_is_no_memory_to_note_its_locks_is_told_all_the_same",),
        "a client is told that what is committed has failed, and appends it once more",
    ),
    Slip(
        "engine/server/served_partition.py",
        "            self._pending.extendleft(reversed(unwritten))\n",
        "            pass\n",
        (f"{_OF_PARTITION}::test_what_a_session_left_is_sent_again_in_its_order_behind_a_moment_without_memory",),
        "appends are neither sent again nor over",
    ),
    Slip(
        "engine/server/store_session.py",
        "                    if held < self._next_id:\n",
        "                    if True:\n",
        (f"{_OF_SESSION}::test_what_a_replica_comes_back_with_and_was_never_sent_is_not_taken_for_the_sessions",),
        "a batch is committed with the vote of a replica that holds something else under its ids",
    ),
    Slip(
        "engine/node/commit_passes.py",
        "        except Exception as error:  # no memory:",
        "        except ZeroDivisionError as error:  # no memory:",
        ("tests/node/test_commit_passes.py::test_a_sync_for_which_there_is_no_memory_leaves_nobody_waiting",),
        "appends are never answered, and their partitions take no more",
    ),
    Slip(
        "engine/durable/quarantine.py",
        "    except DiskFullError:\n        _drop_copies(done.path, done.state)\n        write()\n",
        "    except DiskFullError:\n        raise\n",
        ("tests/repair/test_prune.py::test_on_a_full_disk_what_was_kept_makes_room_for_saying_that_it_is_gone",),
        "on a full disk nothing of what repairs kept can be given up",
    ),
    Slip(
        "engine/durable/directory_lock.py",
        "        if error.errno not in (errno.ENOSPC, errno.EDQUOT):\n            raise\n",
        "        raise\n",
        ("tests/durable/test_locks_and_names.py::test_who_wants_to_make_room_on_a_full_disk_is_let_in",),
        "on a full disk no node starts, and nothing can make room",
    ),
    Slip(
        "engine/server/store_session.py",
        "                batch.voters.discard(node)\n",
        "                pass\n",
        ("tests/server/test_store_session.py::test_what_a_replica_wrote_and_comes_back_without_has_no_vote_of_it",),
        "a batch is committed with the vote of a replica that has lost it",
    ),
    Slip(
        "engine/server/served_partition.py",
        "        self._reassigned = True\n",
        "        self._reassigned = False\n",
        (f"{_ANEW}::test_the_mark_of_before_is_not_told_while_the_session_of_a_later_assignment_opens",),
        "whoever reads up to the mark misses what another server committed meanwhile",
    ),
    Slip(
        "engine/server/served_partition.py",
        "            except Exception as error:  # for instance MemoryError: no other task takes appends\n",
        "            except ZeroDivisionError as error:\n",
        (f"{_OF_PARTITION}::test_a_partition_goes_on_behind_a_moment_without_memory",),
        "a partition takes no appends any more, and health calls it well",
    ),
    Slip(
        "engine/server/served_partition.py",
        "            flush.waiting.pop(done, None)\n",
        "            pass\n",
        (f"{_OF_PARTITION}::test_clients_that_mount_and_vanish_leave_nothing_in_a_partition_without_a_session",),
        "clients that mount and vanish fill the memory of a server whose partition has no session",
    ),
    Slip(
        "engine/server/feed_requests.py",
        "        if len(self._clients) > _MOST_CLIENTS:\n",
        "        if len(self._clients) >= _MOST_CLIENTS:\n",
        ("tests/server/test_client_port.py::test_so_many_clients_mount_through_one_connection",),
        "a connection has one client less than it may",
    ),
    Slip(
        "engine/pipeline/replica_stream.py",
        '        check_kept((place for place, one in begun.items() if one["partitions"]), ended)\n',
        "        pass\n",
        (f"{_STREAMS}::test_where_nobody_says_where_a_batch_begins_it_forgets_no_replica_without_a_word",),
        "with PySpark 4.1 a replica that is taken out and put in again is read twice",
    ),
    Slip(
        "engine/pipeline/agreement_stream.py",
        "            if after.decided < before.decided:\n",
        "            if after.decided < before.decided - 100:\n",
        (f"{_STREAMS}::test_where_nobody_says_where_a_batch_begins_it_does_not_go_back_without_a_word",),
        "with PySpark 4.1 transactions are there twice after a run in which less was known as committed",
    ),
    Slip(
        "engine/client/partition_mount.py",
        "                if not self.ready.is_set():  # it was,",
        "                if False:  # it was,",
        (f"{_MOUNTS}::test_a_flush_waits_for_the_next_mount_where_one_is_lost_in_the_moment_in_which_it_is_ready",),
        "a flush ends with an error of the program when its connection is lost in a certain moment",
    ),
    Slip(
        "engine/metadata/embedded_store.py",
        "                self._session_deadline = begun + self._timeout",
        "                self._session_deadline = self._loop.time() + self._timeout",
        (_LOST,),
        "a process believes in its session longer than others do, who have taken its partitions",
    ),
    Slip(
        "engine/client/sql_applier.py",
        r"CREATE\b((?!\b(TABLE|VIEW|INDEX)\b)[^;])*?\b(TRIGGER",
        r"CREATE\b([^;])*?\b(TRIGGER",
        ("tests/client/test_sql_applier.py",),
        "a COMMIT behind a table with a column `event` commits the mark without what follows",
    ),
    Slip(
        "engine/pages/page_storage.py",
        "                self.fail(reported)  # otherwise the writers would free",
        "                pass  # otherwise the writers would free",
        (_STORE,),
        "the room of pages that are in the log is given away when the writer is interrupted at the end",
    ),
    Slip(
        "engine/pages/page_storage.py",
        "            except DiskFullError:  # unused tails of blob files",
        "            except ZeroDivisionError:  # unused tails of blob files",
        (_BACKUPS,),
        "a vault that met the full disk in its log can neither be pruned nor written to any more",
    ),
    Slip(
        "engine/backup/backup_writer.py",
        "        puts, self._puts = self._puts, []\n",
        "        puts = self._puts\n",
        (_BACKUPS,),
        "a backup that is in the log loses its pages when it is interrupted then",
    ),
    Slip(
        "engine/backup/backup_creation.py",
        "                    check_left_alone(self._source, number, plan)\n",
        "                    pass\n",
        ("tests/backup/test_live.py::test_a_node_that_begins_while_its_directory_is_read_is_noticed",),
        "a backup during which a node began verifies and cannot be restored",
    ),
    Slip(
        "engine/backup/backup_removal.py",
        "        if missing := [one for one in plan.keeping if one not in there]:\n",
        "        if missing := [one for one in plan.keeping if False]:\n",
        (f"{_BACKUPS}::test_a_rule_is_not_followed_once_what_it_keeps_is_gone",),
        "backups are forgotten for the sake of one that is gone, and none is left",
    ),
    Slip(
        "engine/backup/retention.py",
        "for each in one.partitions) if one.partial else None",
        "for each in one.partitions) if False else None",
        ("tests/backup/test_retention.py::test_a_backup_of_some_partitions_takes_nobody_elses_place",),
        "the only full backup is forgotten for the sake of one of a single partition",
    ),
    Slip(
        "engine/durable/disk.py",
        "if needed > (free := free_bytes(directory)):",
        "if needed >= (free := free_bytes(directory)):",
        (_BACKUPS,),
        "a restore for which there is just enough room is refused",
    ),
    Slip(
        "engine/pages/blob_store.py",
        "*([gap, whole[place], gap] for place in copies)]",
        "*([whole[place]] for place in copies)]",
        ("tests/pages/test_blob_store.py::test_copies_lie_apart_in_a_batch_over_the_limit_too",),
        "a bad sector costs both copies of a small section that was written with a large record",
    ),
    Slip(
        "engine/descriptor_limit.py",
        "        if error.errno != errno.EMFILE or not raise_descriptor_limit():\n",
        "        if True:\n",
        ("tests/pages/test_page_storage.py::test_more_blob_files_than_a_process_may_have_open_unless_it_asks",),
        "a program with many connections writes pages until its descriptors are used up",
    ),
    Slip(
        "engine/descriptor_limit.py",
        "descriptor + min(spare, soft // 8) >= soft",
        "descriptor + min(spare, soft // 8) > soft",
        ("tests/test_descriptor_limit.py",),
        "one descriptor fewer than is needed besides is left",
    ),
    Slip(
        "engine/pipeline/replica_stream.py",
        "        if place not in there and end != before.get(place):\n",
        "        if False:\n",
        (f"{_STREAMS}::test_a_batch_that_was_interrupted_leaves_out_no_replica_without_a_word",),
        "what an interrupted batch was to read of a replica that was taken out counts as read, and never comes",
    ),
    Slip(
        "engine/client/write_room.py",
        "return self._free.is_set() and not self.waiting",
        "return self._free.is_set()",
        ("tests/client/test_order_of_calls.py",),
        "an append overtakes those that wait for room, which are out of order then",
    ),
    Slip(
        "engine/client/write_room.py",
        "async with self._turn:",
        "if True:",
        ("tests/client/test_order_of_calls.py",),
        "a call that was woken and found no room again waits behind later ones",
    ),
)
