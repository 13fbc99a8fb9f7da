"""Slips in the storage engine: what may be cut, what opening believes, which ids are given away."""

from __future__ import annotations

from tests.mutation.trial import Slip

_PARTITION = "engine/storage/partition.py"
_LOG = "engine/storage/partition_log.py"
_SEGMENT = "engine/storage/segment_recovery.py"
_TOLD = "engine/findings/__init__.py"
_JUDGED = "engine/log/assess.py"
_OPENING = "engine/storage/partition_recovery.py"
_CONTROL = "engine/storage/control_file.py"
_EVIDENCE = "engine/log/evidence.py"
_LEDGER = "engine/storage/loss_ledger.py"
_LOSSES = "engine/losses.py"
_STRAYS = "engine/storage/strays.py"
_STEP = ("tests/storage/test_one_step.py",)
_OPENS = ("tests/storage/test_opening_one_step.py",)
_WITNESS = ("tests/log/test_evidence.py",)

STORAGE: tuple[Slip, ...] = (
    Slip(
        _PARTITION,
        "if after < self.local_low_water_mark and not allow_data_loss:",
        "if after < self.local_low_water_mark - 1 and not allow_data_loss:",
        _STEP,
        "the last acknowledged transaction is truncated without permission",
    ),
    Slip(
        _PARTITION,
        "if after >= self.max_transaction_id:",
        "if after >= self.max_transaction_id - 1:",
        _STEP,
        "a truncation of one transaction is answered and not done",
    ),
    Slip(_PARTITION, "if after < -1:", "if after < -2:", _STEP, "a nonsense id removes a whole log"),
    Slip(
        _PARTITION,
        "if self.max_transaction_id > low_water_mark:",
        "if self.max_transaction_id > low_water_mark + 1:",
        _STEP,
        "a session begins with a log that is longer than its mark",
    ),
    Slip(
        _PARTITION,
        "for path in (segment.index_path, segment.data_path):",
        "for path in (segment.data_path, segment.index_path):",
        _STEP,
        "an index whose data file went first proves a loss that is none",
    ),
    Slip(
        "engine/storage/segment_files.py",
        "        if self.index.size() > checkpoint:\n",
        "        if self.index.size() > checkpoint + 10**6:\n",
        _STEP,
        "a crash within a truncation leaves an index that proves a loss that is none",
    ),
    Slip(
        "engine/storage/segment_files.py",
        "if following % CHECKPOINT_INTERVAL == 0:",
        "if following % CHECKPOINT_INTERVAL == 1:",
        _STEP,
        "the index is not durable at a checkpoint that is believed later",
    ),
    Slip(
        _LOG,
        "segments[-1].first_transaction_id > after + 1:",
        "segments[-1].first_transaction_id > after:",
        _STEP,
        "a truncation takes the segment away that begins behind it",
    ),
    Slip(
        _LOG,
        "if transaction_id >= max(end, self._lost_below):",
        "if transaction_id >= max(end, self._lost_below - 1):",
        _OPENS,
        "the last transaction that was lost reads as one that never was",
    ),
    Slip(
        _CONTROL,
        "if session_id < current.session_id:",
        "if session_id < current.session_id - 1:",
        _STEP,
        "the session in front of the present one takes over",
    ),
    Slip(_CONTROL, "                if new < old:", "                if new < old - 1:", _STEP, "a mark falls by one"),
    Slip(
        _CONTROL,
        "if mark >= current.local_low_water_mark:",
        "if mark > current.local_low_water_mark - 2:",
        _STEP,
        "a mark that should fall by one stays, and the next opening misses what was given up",
    ),
    Slip(
        "engine/storage/batch.py",
        "if size > threshold and size > HEADER_SIZE:",
        "if size >= threshold and size > HEADER_SIZE:",
        _STEP,
        "segments are divided at other transactions than those of the release",
    ),
    Slip(
        "engine/storage/batch.py",
        "end = min(max(full, begin + 1), checkpoint, count)",
        "end = min(max(full, begin + 1), checkpoint + 1, count)",
        _STEP,
        "a record behind a checkpoint is written together with the checkpoint",
    ),
    Slip(
        "engine/storage/append.py",
        "        if last < mark:\n",
        "        if last < mark - 1:\n",
        _STEP,
        "records are appended to a replica that lacks an acknowledged one",
    ),
    Slip(
        "engine/storage/append.py",
        "if loss.last > last and",
        "if loss.last > last + 1 and",
        _STEP,
        "the id of a transaction that was given up is given away again",
    ),
    Slip(
        _SEGMENT,
        "self.index_size != entry_position(next_first, self.first):",
        "self.index_size < entry_position(next_first, self.first):",
        _OPENS,
        "an index with junk behind it is believed",
    ),
    Slip(
        _SEGMENT,
        "        if self._entry(self.first) != HEADER_SIZE:\n            return False\n",
        "",
        _OPENS,
        "a sealed segment whose first entry is wrong opens without a finding",
    ),
    Slip(
        _TOLD,
        "expected > max(self.mark, self.durable_to)",
        "expected >= self.durable_to",
        _OPENS,
        "a torn record that was acknowledged is cut at opening",
    ),
    Slip(
        _TOLD,
        "return self.last and self.mark is not None and",
        "return self.mark is not None and",
        _OPENS,
        "the end of a sealed segment is cut at opening",
    ),
    Slip(
        _SEGMENT,
        "() if self.index_size == expected else",
        "() if self.index_size >= expected else",
        _OPENS,
        "an index with an entry too many stays as it is",
    ),
    Slip(
        _JUDGED,
        "if mark is not None and last < mark:",
        "if mark is not None and last + 1 < mark:",
        _OPENS,
        "a partition that lost one acknowledged transaction opens for writing",
    ),
    Slip(
        _JUDGED,
        "gap = expected is not None and one.begins > expected",
        "gap = expected is not None and one.begins - 1 > expected",
        _OPENS,
        "a gap of one transaction between segments is not seen",
    ),
    Slip(
        _JUDGED,
        "elif expected is not None and one.begins < expected:",
        "elif expected is not None and one.begins + 1 < expected:",
        _OPENS,
        "a transaction that stands in two segments is not seen",
    ),
    Slip(
        _JUDGED,
        "whole = segment, segment + entries\n",
        "whole = segment, segment + entries - 1\n",
        _OPENS,
        "an index that proves one lost transaction is thrown away",
    ),
    Slip(
        _JUDGED,
        "whole = segment, segment + entries\n",
        "whole = segment, segment + entries + 1\n",
        _OPENS,
        "an index that a truncation left quarantines the partition",
    ),
    Slip(
        _OPENING,
        "NoSegment(session_id if session_id >= 0 else None)",
        "NoSegment(session_id if session_id > 0 else None)",
        _OPENS,
        "a partition whose files are gone is begun anew",
    ),
    Slip(
        _OPENING,
        "        and (empty is None or empty.harmless)\n",
        "",
        _OPENS,
        "a data file whose records are gone is removed with the index that lists them",
    ),
    Slip(
        _OPENING,
        "return segment.data.size < HEADER_SIZE",
        "return segment.data.size <= HEADER_SIZE",
        _OPENS,
        "an empty segment is taken for one that never got its header",
    ),
    Slip(
        _JUDGED,
        "if max(proven.names, by_index) > following:",
        "if max(proven.names, by_index) - 1 > following:",
        _OPENS,
        "one durable transaction above the mark is lost in silence",
    ),
    Slip(
        _OPENING,
        "(extent.first_transaction_id, extent.next_transaction_id - 1)",
        "(extent.first_transaction_id, extent.next_transaction_id)",
        _OPENS,
        "the id of a record that only a stray file holds is given away again",
    ),
    Slip(
        _EVIDENCE,
        "mark = 0 if local_low_water_mark is None else max(0, local_low_water_mark + 1)",
        "mark = 0 if local_low_water_mark is None else max(0, local_low_water_mark)",
        _WITNESS,
        "the transaction at the mark is not proven",
    ),
    Slip(
        _EVIDENCE,
        "(first + entries - 1) // CHECKPOINT_INTERVAL",
        "(first + entries) // CHECKPOINT_INTERVAL",
        _WITNESS,
        "a crash at a checkpoint quarantines the partition",
    ),
    Slip(
        _EVIDENCE,
        "(loss.last + 1 for loss in accepted)",
        "(loss.last for loss in accepted)",
        _WITNESS,
        "the id of the last transaction that was given up is given away again",
    ),
    Slip(
        _EVIDENCE,
        "segment.data is None or segment.data.size < HEADER_SIZE",
        "segment.data is None or segment.data.size < HEADER_SIZE - 1",
        _WITNESS,
        "the entries of an index whose data file lost its header prove nothing",
    ),
    Slip(
        _LEDGER,
        "if mark > loss.local_low_water_mark and mark >= loss.last:",
        "if mark > loss.local_low_water_mark and mark >= loss.last - 1:",
        _STEP,
        "a loss is forgotten while its last transaction is still missing",
    ),
    Slip(
        _LEDGER,
        "if mark > loss.local_low_water_mark and mark >= loss.last:",
        "if mark >= loss.last:",
        _STEP,
        "a loss below the mark is forgotten at once",
    ),
    Slip(
        _LOSSES,
        "        if first < min(low, stop):",
        "        if first + 1 < min(low, stop):",
        _STEP,
        "one transaction between two ranges is taken for one that came back",
    ),
    Slip(
        _LOSSES,
        "        first = max(first, high)\n",
        "        first = high\n",
        _STEP,
        "what came back still counts as lost",
    ),
    Slip(
        _LEDGER,
        "without((loss.first, loss.last + 1), held)",
        "without((loss.first, loss.last), held)",
        _STEP,
        "the last transaction of a loss is forgotten",
    ),
    Slip(
        _STRAYS,
        "if found and first <= found[-1][1] + 1:",
        "if found and first <= found[-1][1] + 2:",
        _STEP,
        "one transaction between two ranges is taken for known",
    ),
    Slip(
        _STRAYS,
        "held = [(low, high + 1) for low, high in known]",
        "held = [(low, high) for low, high in known]",
        _STEP,
        "a known transaction is called hidden",
    ),
    Slip(
        _STRAYS,
        "held = [(low, high + 1) for low, high in known]",
        "held = [(low, high + 2) for low, high in known]",
        _STEP,
        "one hidden transaction is not told",
    ),
    Slip(
        _STRAYS,
        "without((first, last + 1), held)",
        "without((first, last), held)",
        _STEP,
        "one hidden transaction is not told",
    ),
    Slip(
        "engine/storage/assignment.py",
        "if control is None or not 0 <= partition < len(control.partitions):",
        "if control is None or not 0 <= partition < len(control.partitions) - 1:",
        _STEP,
        "nothing is known of the last partition",
    ),
    Slip(
        "engine/storage/assignment.py",
        "if current is not None and current.marks != _INITIAL:",
        "if current is not None and current.marks[2] != _INITIAL[2]:",
        _STEP,
        "a partition whose directory is lost counts as one that never was here",
    ),
)
