"""Slips in opening and keeping a storage directory, and in what is read of one."""

from __future__ import annotations

from tests.mutation.trial import Slip

_RETIRED = "engine/storage/retired.py"
_PARTITION = "engine/storage/partition.py"
_APPEND = "engine/storage/append.py"
_SEGMENT_READER = "engine/storage/segment_reader.py"
_DIRECTORY = "engine/storage/directory.py"
_PARTITION_OPENING = "engine/storage/partition_opening.py"
_ASSESS = "engine/log/assess.py"
_PLACES = "engine/log/places.py"
_VIEW = "engine/log/view.py"
_SEGMENT_RECOVERY = "engine/storage/segment_recovery.py"
_OF_RETIRED = ("tests/storage/test_retired.py",)
_OF_PARTITION = ("tests/storage/test_partition.py",)
_OF_APPEND_BLOCKS = ("tests/storage/test_append_blocks.py",)
_OF_APPEND = ("tests/storage/test_append.py",)
_OF_SEGMENT_READER = ("tests/storage/test_segment_reader.py",)
_OF_DIRECTORY = ("tests/storage/test_directory.py",)
_OF_ASSESS = ("tests/log/test_assess.py",)
_OF_VIEW = ("tests/log/test_view.py",)
_OF_SELDOM = ("tests/storage/test_seldom.py",)

DIRECTORIES: tuple[Slip, ...] = (
    Slip(
        _RETIRED,
        "    check_put_aside(storage, number)\n    relocate",
        "    relocate",
        _OF_RETIRED,
        "a partition takes the place of one that was put aside",
    ),
    Slip(
        _RETIRED,
        "    if target.exists():\n        _delete(target)\n",
        "",
        _OF_RETIRED,
        "a partition whose deletion was interrupted can never be deleted again",
    ),
    Slip(
        _PARTITION,
        "        if self.quarantined:\n            return ()\n        return tuple(one",
        "        return tuple(one",
        _OF_PARTITION,
        "an operator is told that what is quarantined was mended",
    ),
    Slip(
        _PARTITION,
        "                    self._undo_append(error, batch.first_transaction_id)\n                    raise",
        "                    raise",
        _OF_APPEND_BLOCKS,
        "a partition writes on over what could not be cut off",
    ),
    Slip(
        _PARTITION,
        "if after < self.local_low_water_mark and not allow_data_loss:",
        "if after < self.low_water_mark and not allow_data_loss:",
        _OF_PARTITION,
        "a replica that was behind refuses to be brought up to date",
    ),
    Slip(
        _APPEND,
        "        partition.append(made)\n",
        "        for one in made:\n            partition.append([one])\n",
        _OF_APPEND,
        "half of a batch is there when it fails",
    ),
    Slip(
        _APPEND,
        '        batch_of_records(first_batch, self._last + 1, f"{self._path}: partition {self._number}", longest)\n',
        "        assert longest\n",
        _OF_APPEND,
        "a refusal changes the files",
    ),
    Slip(
        _APPEND,
        "expected_key=expected_key, partitions=()",
        "partitions=()",
        _OF_APPEND,
        "records are appended to another cluster",
    ),
    Slip(
        "engine/storage/segment_files.py",
        "                file.truncate(size)\n            file.sync()",
        "                file.truncate(size)\n                file.sync()",
        _OF_APPEND_BLOCKS,
        "a session begins in front of index entries that the disk does not hold",
    ),
    Slip(
        _SEGMENT_READER,
        "room = min(LIST_BYTES, max_bytes)",
        "room = max_bytes",
        _OF_SEGMENT_READER,
        "one peer has a node read as much at once as it likes",
    ),
    Slip(
        "engine/storage/control_file.py",
        "            else:\n                file.sync()\n",
        "            else:\n                file.size()\n",
        ("tests/storage/test_control_file.py::test_after_a_failed_sync_the_next_process_writes_the_file_again",),
        "what a node believes at its start is gone after a power loss",
    ),
    Slip(
        _DIRECTORY,
        "                opened._taken_back = taken_back\n",
        "",
        _OF_DIRECTORY,
        "nobody learns that a repair was taken back",
    ),
    Slip(
        _DIRECTORY,
        "            with with_roll_backs(taken_back):",
        "            with contextlib.nullcontext():",
        _OF_DIRECTORY,
        "nobody learns that a repair was taken back",
    ),
    Slip(
        _DIRECTORY,
        "                self._control.set_flag(number, FLAG_ASSIGNED, True)\n            opened",
        "                self._control.set_flag(number, FLAG_ASSIGNED | FLAG_AVAILABLE, True)\n            opened",
        _OF_DIRECTORY,
        "a partition that was switched off comes back on",
    ),
    Slip(
        _DIRECTORY,
        "            del self._partitions[number]\n            leaving.close()\n",
        "            del self._partitions[number]\n",
        _OF_DIRECTORY,
        "a partition that was given up is written on",
    ),
    Slip(
        _DIRECTORY,
        "finish_deletions(self.path, self._control, wanted).items():",
        "finish_deletions(self.path, self._control).items():",
        _OF_DIRECTORY,
        "who opens one partition deletes another one",
    ),
    Slip(
        _DIRECTORY,
        "            self._findings += self._control.findings(number, self.path)\n            if present:",
        "            if present:",
        _OF_DIRECTORY,
        "damage in the control file is hidden until the partition is assigned",
    ),
    Slip(
        _PARTITION_OPENING,
        "            settle_partition(directory, number)\n            examination",
        "            examination",
        _OF_DIRECTORY,
        "records that were shown are gone after a power loss",
    ),
    Slip(
        _PARTITION_OPENING,
        "        except QUARANTINING_ERRORS as error:\n            self._check_shortage(error)\n            if isinstance",
        "        except DamageError as error:\n            self._check_shortage(error)\n            if isinstance",
        _OF_DIRECTORY,
        "one partition that cannot be mended stops the node",
    ),
    Slip(
        _DIRECTORY,
        "            stack.callback(self._directory_lock.release)\n"
        "            stack.callback(self._control.close)\n"
        "            for partition in self._partitions.values():\n"
        "                stack.callback(partition.close)",
        "            for partition in self._partitions.values():\n"
        "                stack.callback(partition.close)\n"
        "            stack.callback(self._control.close)\n"
        "            stack.callback(self._directory_lock.release)",
        _OF_DIRECTORY,
        "another node opens a directory that is still written",
    ),
    Slip(
        _PARTITION_OPENING,
        "(DiskError, FileNotFoundError, NotWaltzError, RefusedError, DamageError)",
        "(DiskError, FileNotFoundError, NotWaltzError, DamageError)",
        _OF_DIRECTORY,
        "a repair that waits in one partition stops the node",
    ),
    Slip(
        "engine/storage/store.py",
        '        f"{disk.STATE_DIRECTORY}/{FENCE_FILE_NAME}",\n',
        "",
        ("tests/storage/test_store.py",),
        "a repair of the fences is refused",
    ),
    Slip(
        "engine/log/evidence.py",
        "expected_id=first + place)",
        "expected_id=None)",
        ("tests/log/test_evidence.py",),
        "another partition's index proves a loss",
    ),
    Slip(
        _ASSESS,
        "            expected = min(max(expected, reached), one.begins)",
        "            pass",
        _OF_ASSESS,
        "a gap is told where an older segment has it all",
    ),
    Slip(
        _ASSESS,
        "reached = max(reached, reach(one))",
        "reached = reach(one)",
        _OF_ASSESS,
        "a gap is told where an older segment has it all",
    ),
    Slip(
        _PLACES,
        "    if isinstance(path, VaultPath):\n        raise InvalidRequestError(",
        "    if False:\n        raise InvalidRequestError(",
        ("tests/log/test_places.py",),
        "a command that writes makes a directory that is called like a backup",
    ),
    Slip(
        "engine/log/url_access.py",
        "min(self._ahead * 4, LARGE) if at in",
        "self._ahead * 4 if at in",
        ("tests/log/test_url_access.py",),
        "an object is read into memory as a whole",
    ),
    Slip(
        _VIEW,
        "Layout.RELEASED.file_size(MAX_PARTITIONS) + 1",
        "Layout.DOCUMENTED.file_size(MAX_PARTITIONS) + 1",
        _OF_VIEW,
        "a control file of many partitions counts as cut off",
    ),
    Slip(
        _VIEW,
        "    with contextlib.suppress(SpecialFileError):",
        "    with contextlib.suppress(DiskReadError):",
        _OF_VIEW,
        "a control file that the disk does not give counts as missing",
    ),
    Slip(
        "engine/log/target.py",
        "if partitions is not None and self.partition not in partitions:",
        "if partitions and self.partition not in partitions:",
        _OF_VIEW,
        "a partition is taken that nobody chose",
    ),
    Slip(
        "formats/fence.py",
        "    if version != FENCE_VERSION:",
        "    if version > FENCE_VERSION:",
        ("tests/formats/test_fence.py",),
        "sessions of a form that nobody knows are believed",
    ),
    Slip(
        _SEGMENT_RECOVERY,
        'whole = torn.proof == "end" and torn.end',
        "whole = torn.end",
        _OF_SELDOM,
        "bytes that nobody has looked at are cut off",
    ),
    Slip(
        "engine/findings/damaged_records.py",
        "Severity.REPAIRABLE if harmless and not damage.holds_records else",
        "Severity.REPAIRABLE if harmless else",
        ("tests/storage/test_opening_one_step.py::test_a_torn_tail_in_which_records_stand_is_left_to_a_person",),
        "verify calls repairable what recover leaves to a person",
    ),
    Slip(
        _SEGMENT_RECOVERY,
        "return whole and not torn.holds_records and",
        "return whole and",
        ("tests/storage/test_opening_one_step.py::test_a_torn_tail_in_which_records_stand_is_left_to_a_person",),
        "one flipped bit of a length, and a start cuts off every acknowledged record behind it",
    ),
    Slip(
        _SEGMENT_RECOVERY,
        "        if comparison.unreadable is not None:\n            raise comparison.unreadable\n",
        "",
        _OF_SELDOM,
        "an index that the disk does not give is made anew from what could not be compared",
    ),
    Slip(
        _SEGMENT_RECOVERY,
        "            ceiling=self.next_first,\n",
        "",
        _OF_SELDOM,
        "records behind a damaged place are told as out of order",
    ),
    Slip(
        _SEGMENT_RECOVERY,
        "            if isinstance(part, Damage):\n                cause",
        "            if isinstance(part, Damage):\n                return\n                cause",
        _OF_SELDOM,
        "an index is made that ends at damage, and nobody is told",
    ),
    Slip(
        "engine/storage/partition_recovery.py",
        "            index.truncate(size)\n        index.sync()",
        "            index.truncate(size)",
        _OF_SELDOM,
        "an index that was mended is gone after a power loss",
    ),
    Slip(
        "engine/storage/belonging.py",
        "named.pop() if len(named) == 1 else partition",
        "named.pop() if named else partition",
        ("tests/storage/test_belonging.py",),
        "a partition is quarantined for what a program writes into its request ids",
    ),
    Slip(
        "engine/storage/directory.py",
        "                prepare_relocation(self.path, DELETING if delete_files else UNASSIGNED)\n",
        "                pass\n",
        ("tests/storage/test_assignment.py",),
        "a deletion that a full disk refuses leaves the partition closed, with all its bytes",
    ),
    Slip(
        "engine/node/hosted_storage.py",
        "            prepare_relocation(storage.path, DELETING)\n",
        "            pass\n",
        ("tests/node/test_hosting.py::test_a_full_disk_can_be_made_room_on_by_deleting_a_partition",),
        "on a full disk no partition can be deleted to make room",
    ),
    Slip(
        "engine/storage/directory.py",
        "mark = Availability() if released and after == OFF else after",
        "mark = Availability() if after == OFF else after",
        ("tests/storage/test_directory.py",),
        "a partition of the documented layout is not switched off when somebody says so",
    ),
    Slip(
        "engine/storage/retired.py",
        "                _empty(directory / name)\n                _forget(storage, control, number)\n",
        "                pass\n",
        ("tests/storage/test_retired.py",),
        "on a full disk a fence or an accepted loss outlives the files that it is about",
    ),
    Slip(
        "engine/durable/directory_lock.py",
        "if asking and error.errno in",
        "if error.errno in",
        ("tests/durable/test_locks_and_names.py",),
        "a control file that may not be written sends people to look for a process that is not there",
    ),
)
