"""Slips in comparisons of replicas, and in the vote and the recovery that go by them."""

from __future__ import annotations

from tests.mutation.trial import Slip

COMPARISONS: tuple[Slip, ...] = (
    Slip(
        "engine/compare/states.py",
        "        return mine < 0 or mine == run.versions[other]",
        "        return mine < 0 or run.versions[other] < 0 or mine == run.versions[other]",
        ("tests/compare/test_states.py",),
        "who lost a record next to one that it restores is named as its source",
    ),
    Slip(
        "engine/compare/directories.py",
        "        known = mark is not None or proven > 0",
        "        known = mark is not None",
        ("tests/compare/test_directories.py",),
        "a replica without marks has not lost what its files prove it held",
    ),
    Slip(
        "engine/compare/directories.py",
        "            held,\n            found.required - 1,",
        "            held,\n            found.next_id - 1,",
        ("tests/compare/test_directories.py",),
        "what a replica gave up is asked of it again",
    ),
    Slip(
        "engine/compare/directories.py",
        "info.current is None and belongs(view, number):",
        "info.current is None:",
        ("tests/compare/test_directories.py",),
        "a damaged pair is told of a directory that is no replica",
    ),
    Slip(
        "engine/compare/directories.py",
        "            if ledger.fault is not None:\n                yield ledger",
        "            if False:\n                yield ledger",
        ("tests/compare/test_directories.py",),
        "a ledger that cannot be read is not told",
    ),
    Slip(
        "engine/compare/directories.py",
        "self._member(len(found), view, partition, ledger, held=held)",
        "self._member(len(found), view, partition, self.ledgers[0], held=held)",
        ("tests/compare/test_directories.py",),
        "what one replica gave up is another's",
    ),
    Slip(
        "engine/compare/replica_reading.py",
        "        if tail.unread or tail.holds_records:\n",
        "        if tail.unread:\n",
        ("tests/compare/test_reading_ends.py",),
        "an end in which records stand that lead nowhere votes as if it had never held more",
    ),
    Slip(
        "engine/compare/replica_reading.py",
        "            segment.following is None,\n",
        "            segment.stop is None,\n",
        ("tests/compare/test_directories.py",),
        "a segment in front of an index alone has an open end",
    ),
    Slip(
        "engine/compare/plans.py",
        "(first, stop - 1) for first, stop in replaced_ranges(own)",
        "(first, stop) for first, stop in replaced_ranges(own)",
        ("tests/compare/test_plans.py",),
        "a record that nobody outvoted is replaced with the one in front of it",
    ),
    Slip(
        "engine/compare/plans.py",
        "                wrong |= _not_to_be_trusted(one, own)",
        "                wrong = _not_to_be_trusted(one, own)",
        ("tests/compare/test_plans.py",),
        "who was outvoted in all but the last partition is copied from",
    ),
    Slip(
        "engine/quorum/vote.py",
        "        self.gone = sum(not one.present for one in ballots)",
        "        self.gone = sum(not voter for voter in self.voters)",
        ("tests/quorum/test_one_step.py",),
        "a replica of an older session is missing, and equal ones are to be recovered",
    ),
    Slip(
        "engine/quorum/vote.py",
        "Verdict.LOST if lost else Verdict.UNDECIDABLE if undecided else verdict",
        "Verdict.UNDECIDABLE if undecided else Verdict.LOST if lost else verdict",
        ("tests/quorum/test_one_step.py",),
        "a loss beside something undecidable is not told",
    ),
    Slip(
        "engine/quorum/recovery.py",
        "        latest_session=max(one.session_id for one in last.values()),",
        "        latest_session=max(last[n].session_id for n in nodes if n in last),",
        ("tests/quorum/test_one_step.py",),
        "a replica that took no part in the latest session votes",
    ),
    Slip(
        "engine/quorum/recovery.py",
        "last.session_id >= 0 else -1",
        "last.session_id > 0 else -1",
        ("tests/quorum/test_one_step.py",),
        "a replica of the first session is cut to its low-water mark",
    ),
    Slip(
        "engine/quorum/recovery.py",
        "            one = replace(one, phase=_clean(one.proven_to), high_water_mark=last)",
        "            one = replace(one, phase=Phase.PUBLISHED, high_water_mark=cut_to)",
        ("tests/quorum/test_one_step.py",),
        "behind a deep cut a copy begins where records are missing",
    ),
    Slip(
        "engine/quorum/recovery.py",
        "(other.held < mark, other.node in copying, other.held)",
        "(other.node in copying, other.held < mark, other.held)",
        ("tests/quorum/test_one_step.py",),
        "a replica copies from one that lacks what is kept, and has to copy again",
    ),
    Slip(
        "engine/compare/compare.py",
        "return max((run.stop for run in self.runs if run.versions[number] != ABSENT), default=0)",
        "return max((run.stop for run in self.runs if run.versions[number] >= 0), default=0)",
        ("tests/compare/test_gathering.py",),
        "a replica whose end is damaged ends in front of it",
    ),
    Slip(
        "engine/compare/replica_reading.py",
        "                if piece.stop > expected:",
        "                if True:",
        ("tests/compare/test_reading.py::test_what_is_out_of_order_in_front_of_a_torn_end_is_lost_once",),
        "ids that are lost twice are told twice, and those behind them are compared with others",
    ),
)
