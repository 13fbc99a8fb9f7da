"""A second sample of slips, made by hand like the first one, in other places: how good are the tests where nobody looked?"""

from __future__ import annotations

from tests.mutation.trial import Slip

SECOND: tuple[Slip, ...] = (
    Slip(
        "engine/log/evidence.py",
        "return max(self.required, self.accepted)",
        "return self.required",
        ("tests/log/test_evidence.py",),
        "ids of transactions whose loss was accepted are given away again",
    ),
    Slip(
        "engine/log/evidence.py",
        "wrong = (header.partition != partition) + (header.first_transaction_id != segment.first_transaction_id)",
        "wrong = int(header.first_transaction_id != segment.first_transaction_id)",
        ("tests/log/test_evidence.py",),
        "the index of another partition proves a loss that is none",
    ),
    Slip(
        "engine/log/evidence.py",
        "count, chunk = start, _CHUNK",
        "count, chunk = start - 1, _CHUNK",
        ("tests/log/test_evidence.py",),
        "an index with a long hole proves less than it does",
    ),
    Slip(
        "engine/storage/fences.py",
        "if session_id <= pair.session_id:",
        "if session_id < pair.session_id:",
        ("tests/storage/test_fences.py",),
        "every request of a session writes and syncs the fence again",
    ),
    Slip(
        "engine/storage/fences.py",
        """            self._file.sync()
""",
        """            pass
""",
        ("tests/storage/test_fences.py",),
        "an older session is let in behind a power loss",
    ),
    Slip(
        "engine/storage/fences.py",
        """            if self._failed is not None:
                raise self._failed.with_traceback(None)  # else the traceback grows with every session that asks
            if session_id <= pair.session_id:""",
        "            if session_id <= pair.session_id:",
        ("tests/storage/test_fences.py",),
        "a session is let in by a fence of which nobody knows whether it is durable",
    ),
    Slip(
        "engine/storage/fences.py",
        "                file.sync()\n        except FenceError",
        "                pass\n        except FenceError",
        ("tests/storage/test_fences.py",),
        "a fence that was read and is not durable yet is believed",
    ),
    Slip(
        "engine/storage/batch.py",
        "if computed != stored:",
        'if computed != stored and name == "record":',
        ("tests/storage/test_weaknesses.py",),
        "data that was damaged on its way is written with a checksum that confirms it",
    ),
    Slip(
        "engine/storage/batch.py",
        "offsets[:-1] + size if size else",
        "offsets[:-1] if size else",
        ("tests/storage/test_append_blocks.py",),
        "the index entries of the second block lead into the first",
    ),
    Slip(
        "engine/storage/segment_files.py",
        """            self.data.sync()
            self.data_synced = True
            if following""",
        """            if following""",
        ("tests/storage/test_append_blocks.py",),
        "acknowledged records are not on disk",
    ),
    Slip(
        "engine/storage/segment_files.py",
        "self.end += int(part.offsets[-1])",
        "self.end = int(part.offsets[-1])",
        ("tests/storage/test_append.py",),
        "the second batch overwrites the first",
    ),
    Slip(
        "engine/storage/segment_recovery.py",
        "if self._entry(self.first) != HEADER_SIZE:",
        "if self._entry(self.first) is None:",
        ("tests/storage/test_opening_one_step.py",),
        "a sealed segment whose index leads behind its first record opens without a finding",
    ),
    Slip(
        "engine/storage/segment_recovery.py",
        "return replace(state, trusted=False) if verdict.data_wrong else state",
        "return state",
        ("tests/storage/test_edges.py",),
        "a segment of another cluster is written to",
    ),
    Slip(
        "engine/storage/partition_recovery.py",
        "and (empty is None or empty.harmless)",
        "",
        ("tests/storage/test_opening_one_step.py",),
        "a data file that lost its records is replaced by an empty one",
    ),
    Slip(
        "engine/storage/partition_recovery.py",
        "        and not hiding\n",
        "",
        ("tests/storage/test_opening_one_step.py",),
        "ids of records under a stray name are given away again",
    ),
    Slip(
        "engine/storage/append.py",
        "self._partition.set_low_water_mark(self.session_id, self._partition.max_transaction_id)",
        "self._partition.set_low_water_mark(self.session_id, self._partition.max_transaction_id - 1)",
        ("tests/storage/test_append.py",),
        "the last transaction before an append counts as not acknowledged",
    ),
    Slip(
        "engine/repair/reconcile.py",
        "part.first <= after + 1]",
        "part.first <= after + 2]",
        ("tests/compare/test_plans.py",),
        "a segment that begins behind the cut stays",
    ),
    Slip(
        "engine/repair/reconcile.py",
        "loses_data=found.next_id > after + 1,",
        "loses_data=found.next_id > after + 2,",
        ("tests/compare/test_plans.py",),
        "a plan that cuts one record says that it loses nothing",
    ),
    Slip(
        "engine/repair/reconcile.py",
        "for part in reversed(self.removed):",
        "for part in self.removed:",
        ("tests/compare/test_plans.py",),
        "a crash within a repair leaves a gap instead of a shorter log",
    ),
    Slip(
        "engine/durable/quarantine.py",
        "        if not same_contents(found, file.after):",
        "        if False:",
        ("tests/durable/test_quarantine.py",),
        "a repair that did not leave what it was to leave counts as applied",
    ),
    Slip(
        "engine/durable/quarantine.py",
        """        disk.sync_directory(path)
        disk.unlink(path / UNSETTLED)""",
        "        disk.unlink(path / UNSETTLED)",
        ("tests/durable/test_quarantine.py",),
        "what the manifest shows is not durable, and nobody knows",
    ),
    Slip(
        "engine/durable/quarantine.py",
        "names = sorted(names_in(path) or (), key=lambda name: name == MANIFEST)",
        "names = names_in(path) or ()",
        ("tests/durable/test_quarantine.py",),
        "a crash leaves copies without the manifest that says what they are",
    ),
    Slip(
        "engine/repair/apply.py",
        """                repair.check_current()
""",
        "",
        ("tests/repair/test_apply.py",),
        "a plan is applied to files that changed since it was made",
    ),
    Slip(
        "engine/repair/apply.py",
        "elif seen.severity is not Severity.NOTE:",
        "elif seen.severity is Severity.DAMAGE:",
        ("tests/repair/test_apply.py",),
        "what a repair left to be repaired is not named",
    ),
    Slip(
        "engine/durable/undoable.py",
        """            if (
                later.number > entry.number
""",
        """            if (
                later.number >= entry.number
""",
        ("tests/repair/test_undo.py",),
        "the advice names the repair itself as the one to undo first",
    ),
    Slip(
        "engine/durable/undoable.py",
        "        if not (entry.storage / move.target).is_dir() or os.path.lexists(entry.storage / move.path):",
        "        if not (entry.storage / move.target).is_dir():",
        ("tests/repair/test_set_partition.py",),
        "an undo moves a directory over one that came since",
    ),
    Slip(
        "engine/repair/prune.py",
        "            if name not in found or kept_bytes(found[name]) != size:",
        "            if name not in found:",
        ("tests/repair/test_prune.py",),
        "copies that came since the plan was made are given up with it",
    ),
    Slip(
        "engine/inspect/live.py",
        "age < 0 or age >=",
        "age >=",
        ("tests/inspect/test_one_step.py",),
        "a clock that was set back keeps damage from being told",
    ),
    Slip(
        "engine/inspect/control_checks.py",
        "if not found or quiet or found == before:",
        "if not found or quiet:",
        ("tests/inspect/test_status.py",),
        "a fault of the control file that stays is looked at for ever",
    ),
    Slip(
        "engine/compare/replica_reading.py",
        "if segment.stop is not None and segment.stop <= self.low:",
        "if segment.stop is not None and segment.stop <= self.low + 1:",
        ("tests/compare/test_one_step.py",),
        "the last transaction of a segment is absent where it is asked for alone",
    ),
    Slip(
        "engine/compare/replica_reading.py",
        "        if first < end:\n            yield Broken(first, end)",
        "        if first < end - 1:\n            yield Broken(first, end)",
        ("tests/compare/test_compare.py",),
        "one damaged transaction is not told",
    ),
    Slip(
        "engine/node/commit.py",
        """                stop = min(stop, chunk.ends[run])
""",
        "",
        ("tests/node/test_commit.py",),
        "records of a connection that was broken off are written behind a gap",
    ),
    Slip(
        "engine/spark/run_joining.py",
        "if behind.first > reached + 1:",
        "if behind.first > reached + 2:",
        ("tests/spark/test_writer_joining.py",),
        "an import that lacks one transaction is written as if it were whole",
    ),
    Slip(
        "engine/spark/run_writing.py",
        """                data.sync()
                index.sync()
""",
        """                data.sync()
""",
        ("tests/spark/test_writer_staging.py",),
        "an imported index is not on disk when the import says that it is done",
    ),
    Slip(
        "engine/spark/stream_reader.py",
        "reach, found = nothing + count, start",
        "reach, found = nothing + count + 1, start",
        ("tests/spark/test_stream_directory.py",),
        "a batch has one transaction more than its bound",
    ),
    Slip(
        "formats/control.py",
        "    if max(rises) <= 0:",
        "    if max(rises) <= 1:",
        ("tests/formats/test_control.py",),
        "of two contradicting structs of a session one is chosen",
    ),
    Slip(
        "formats/fence.py",
        "sessions[0] >= sessions[1]",
        "sessions[0] > sessions[1]",
        ("tests/formats/test_fence.py",),
        "a fence of twice the same session is written over in the wrong place",
    ),
    Slip(
        "engine/scan/scanner.py",
        "(expected_id is not None and transaction_id != expected_id)",
        "False",
        ("tests/scan/test_scanner.py",),
        "a record at a wrong place is taken for the one that was asked for",
    ),
)
