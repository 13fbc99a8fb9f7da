"""Slips in the inspection: what is damage, how grave, and what is missing."""

from __future__ import annotations

from tests.mutation.trial import Slip

_LOG = "engine/log/assess.py"
_ENTRIES = "engine/log/index.py"
_PARTITION = "engine/inspect/partition_checks.py"
_SEGMENT = "engine/inspect/segment_checks.py"
_INDEX = "engine/log/index_comparison.py"
_RECORDS = "engine/inspect/record_checks.py"
_TOLD = "engine/findings/damaged_records.py"
_RELEASED = "engine/inspect/released_start.py"
_VOUCHING = "engine/inspect/vouching.py"
_STEP = ("tests/inspect/test_one_step.py",)
_VOUCHED = ("tests/inspect/test_manifest_values.py", "tests/inspect/test_one_step.py", "tests/inspect/test_vouching.py")

INSPECT: tuple[Slip, ...] = (
    Slip(
        "engine/inspect/segment_order.py",
        "return named if all(begins_with(job) == job.first for job in asked) else self.jobs",
        "return named",
        ("tests/inspect/test_dump.py", "tests/spark/test_pushdown.py"),
        "a range of transactions is empty, though all of them are whole, where data files were swapped",
    ),
    Slip(
        "engine/inspect/verification.py",
        "return replace(self, sample_seed=secrets.randbits(63))",
        "return replace(self, sample_seed=0)",
        ("tests/inspect/test_bounds.py", "tests/inspect/test_distributed_checks.py", "tests/cli/test_verify.py"),
        "a sample of every night reads the same tenth, and the other nine are never read",
    ),
    Slip(
        "engine/inspect/resume.py",
        'replace(asked, sample_seed=mode.get("sample_seed"))',
        "replace(asked, sample_seed=0)",
        ("tests/inspect/test_bounds.py",),
        "a sample that is cut short each night is never continued",
    ),
    Slip(
        _LOG,
        "elif expected is not None and one.begins < expected:",
        "elif expected is not None and one.begins < expected - 1:",
        _STEP,
        "a transaction that stands in two segments is not told",
    ),
    Slip(
        _LOG,
        "gap = expected is not None and one.begins > expected",
        "gap = expected is not None and one.begins > expected + 1",
        _STEP,
        "a gap of one transaction between segments is clean",
    ),
    Slip(
        _LOG,
        "if max(proven.names, by_index) > following:",
        "if max(proven.names, by_index) > following + 1:",
        _STEP,
        "verify is clean with one durable transaction lost above the mark",
    ),
    Slip(
        _LOG,
        "following = max(last, -1 if mark is None else mark) + 1",
        "following = max(last, -1 if mark is None else mark) + 2",
        _STEP,
        "verify is clean with one durable transaction lost above the mark",
    ),
    Slip(
        _LOG,
        "lost = tuple(without(whole, held))",
        "lost = tuple(without((segment, segment + entries - 1), held))",
        _STEP,
        "an index that alone proves one transaction is called repairable",
    ),
    Slip(
        _PARTITION,
        "[(report.begins, report.last_id + 1) for report in reports if report.last_id is not None]",
        "[(report.begins, report.last_id + 2) for report in reports if report.last_id is not None]",
        ("tests/inspect/test_one_step.py", "tests/inspect/test_codes.py", "tests/repair/test_accepted_losses.py"),
        "one lost transaction counts as held",
    ),
    Slip(
        _PARTITION,
        "context.number >= partitions:",
        "context.number > partitions:",
        _STEP,
        "the directory of a partition that is none is checked as if it were one",
    ),
    Slip(
        _PARTITION,
        "NoSegment(session if session is not None and session >= 0 else None)",
        "NoSegment(session if session is not None and session > 0 else None)",
        _STEP,
        "a partition whose files are gone is a note",
    ),
    Slip(
        _INDEX,
        "entries > next_id - begins or odd > 0",
        "entries > next_id - begins + 1 or odd > 0",
        _STEP,
        "an index with one entry too many is clean",
    ),
    Slip(
        _LOG,
        "reached - 1 + max(explained, torn)",
        "reached + max(explained, torn)",
        _STEP,
        "verify is clean with one acknowledged transaction lost",
    ),
    Slip(
        _SEGMENT,
        "        return self.size < HEADER_SIZE\n",
        "        return self.size <= HEADER_SIZE\n",
        _STEP,
        "an empty segment is called damaged",
    ),
    Slip(
        _INDEX,
        "_steps(stored, before) < RECORD_OVERHEAD",
        "_steps(stored, before) < RECORD_OVERHEAD - 1",
        _STEP,
        "entries too close for a record between them are clean to a quick look",
    ),
    Slip(
        _INDEX,
        "np.flatnonzero(reader.entries(start, end - start) < size)",
        "np.flatnonzero(reader.entries(start, end - start) <= size)",
        _STEP,
        "an index that is one entry ahead of its data is called wrong",
    ),
    Slip(
        _INDEX,
        "inside[0] = stored[0] == damage.offset",
        "inside[0] = stored[0] >= damage.offset",
        _STEP,
        "a wrong entry of a damaged record is clean",
    ),
    Slip(
        _INDEX,
        "(stored > damage.offset) & (stored < damage.end)",
        "(stored >= damage.offset) & (stored <= damage.end)",
        _STEP,
        "wrong entries of damaged records are clean",
    ),
    Slip(
        "engine/findings/indexes.py",
        "if self.count and self.first <= other.last and other.first <= self.last:",
        "if self.count and self.first <= other.last and other.first < self.last:",
        _STEP,
        "a wrong entry is counted twice",
    ),
    Slip(
        _ENTRIES,
        "wanted, back = min(transaction_id, index.end() - 1), 0",
        "wanted, back = transaction_id + 1, 0",
        ("tests/log/test_index_and_parts.py",),
        "a reader begins behind the record that it was asked for",
    ),
    Slip(
        _ENTRIES,
        "if transaction_id < self.begins or count <= 0",
        "if transaction_id < self.begins - 1 or count <= 0",
        _STEP,
        "the header of an index is read as an entry",
    ),
    Slip(
        _ENTRIES,
        "        return max(0, self.source.size() - HEADER_SIZE) % ENTRY_SIZE\n",
        "        return 0\n",
        _STEP,
        "an index that ends inside an entry is clean",
    ),
    Slip(
        _RECORDS,
        "if len(self.damages) + len(self.bad_data) < MAX_LISTED:",
        "if len(self.damages) + len(self.bad_data) <= MAX_LISTED:",
        _STEP,
        "the list is longer than its bound",
    ),
    Slip(
        _RECORDS,
        "        self.unlisted += 1\n",
        "        pass\n",
        _STEP,
        "damage beyond the list is not counted",
    ),
    Slip(
        _TOLD,
        "expected > max(self.mark, self.durable_to)",
        "expected >= max(self.mark, self.durable_to)",
        _STEP,
        "a torn acknowledged record is called repairable",
    ),
    Slip(
        _TOLD,
        "expected > max(self.mark, self.durable_to)",
        "expected > self.mark",
        _STEP,
        "a torn record that was durable is called repairable",
    ),
    Slip(
        _RECORDS,
        "for place in np.flatnonzero(~run.data_ok):",
        "for place in np.flatnonzero(~run.data_ok)[:-1]:",
        _STEP,
        "one record whose data is wrong is clean",
    ),
    Slip(
        "engine/losses.py",
        "return self.following is None and self.entries == 0",
        "return self.following is None and self.entries <= 1",
        _STEP,
        "a data file whose only record is gone is called repairable",
    ),
    Slip(
        _RELEASED,
        "        if highest > self.mark:\n",
        "        if highest > self.mark + 1:\n",
        _STEP,
        "it is not told that a release does not start",
    ),
    Slip(
        _RELEASED,
        "before = _wrapped(highest - 1)",
        "before = _wrapped(highest)",
        _STEP,
        "it is not told that a release does not start",
    ),
    Slip(
        _RELEASED,
        "acknowledged = bad and following <= self.mark",
        "acknowledged = bad and following < self.mark",
        _STEP,
        "it is not told that a release loses an acknowledged record",
    ),
    Slip(
        _RELEASED,
        "if first >= next_id and",
        "if first > next_id and",
        _STEP,
        "it is not told that the next roll-over of a release fails for ever",
    ),
    Slip(
        _RELEASED,
        "not 0 <= header.data_length <= LARGEST_ARRAY",
        "not -1 <= header.data_length <= LARGEST_ARRAY",
        _STEP,
        "it is not told that a release does not start",
    ),
    Slip(
        _VOUCHING,
        "if state.size < wanted.size or (state.size > wanted.size and not last):",
        "if state.size < wanted.size - 1 or (state.size > wanted.size and not last):",
        _VOUCHED,
        "a file that is a byte shorter than the manifest says breaks the comparison off",
    ),
    Slip(
        _VOUCHING,
        "if state.size < wanted.size or (state.size > wanted.size and not last):",
        "if state.size < wanted.size or (state.size > wanted.size + 1 and not last):",
        _VOUCHED,
        "a byte more behind a sealed segment matches the manifest",
    ),
    Slip(
        _VOUCHING,
        "any(a < b for a, b in zip(marks, before, strict=True))",
        "any(a < b for a, b in zip(marks[1:], before[1:], strict=True))",
        _VOUCHED,
        "a session that fell matches the manifest",
    ),
    Slip(
        _VOUCHING,
        "and segment[1] > ends.get(segment[0], -1)",
        "and segment[1] >= ends.get(segment[0], -1)",
        _VOUCHED,
        "a file that came in front of the end counts as growth",
    ),
    Slip(
        _VOUCHING,
        "segment[0] < self._manifest.header.num_partitions",
        "segment[0] <= self._manifest.header.num_partitions",
        _VOUCHED,
        "a file of a partition that is none counts as growth",
    ),
)
