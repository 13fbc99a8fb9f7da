"""What comes out of the ranges of a partition, put together: runs, ends, marks, and what is said in the end."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import pytest

from tests.builders import KEY, build_directory
from tests.compare.columns import runs_of
from tests.compare.test_states import compared
from waltzctl.engine.compare import compare as compare_room
from waltzctl.engine.compare import comparison as comparison_room
from waltzctl.engine.compare import differences as differences_room
from waltzctl.engine.compare.compare import _PartitionResults, compare
from waltzctl.engine.compare.comparison import (
    CompareOptions,
    CompareSummary,
    PartitionComparison,
    ReplicaComparison,
    RestoreSource,
)
from waltzctl.engine.compare.differences import rows, write_table
from waltzctl.engine.compare.directories import Member
from waltzctl.engine.compare.replica_reading import PartitionReplica
from waltzctl.engine.compare.side_by_side import Difference, RangeResult, RangeTask, Side
from waltzctl.engine.compare.states import replicas_of
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.findings import Code, Finding, Severity, Where, make_finding
from waltzctl.engine.log.assess import Stretch, begun
from waltzctl.engine.quorum.vote import ABSENT, DAMAGED, Ballot, LastSession, Run, Verdict, decide
from waltzctl.formats.request_id import RequestId

WHERE = Where(PurePath("/s"), 0, PurePath("/s/0"))


def member(number: int, held_to: int | None = None, mark: int | None = None, *, there: bool = True) -> Member:
    path = PurePath(f"/{number}")
    replica = PartitionReplica(number, path, 0, KEY, None, (), False, -1) if there else None
    return Member(path, Ballot(there, 5, mark), replica, held_to)


def side(replica: int, number: int, data: bytes | None = b"data") -> Side:
    return Side(replica, number, 0, 128, 44, RequestId(1, 2, 3, 4), 5, 4, 6, 7, True, data)


def difference(number: int) -> Difference:
    return Difference(number, (side(0, number), side(1, number)))


def result(*runs: Run, **known: object) -> RangeResult:
    empty = RangeResult(0, runs, (), (), (), 0, 0, False)
    return replace(empty, **known)  # type: ignore[arg-type]


def gathered(*results: RangeResult, members: Sequence[Member] = (member(0), member(1))) -> _PartitionResults:
    found = _PartitionResults(tuple(members))
    for one in results:
        found.add(one)
    return found


def told(runs: Sequence[Run]) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(run.first, run.stop, run.versions) for run in runs]


def test_runs_that_are_alike_go_on_from_range_to_range() -> None:
    found = gathered(
        result(Run(0, 5, (0, 0)), Run(5, 7, (0, 1))), result(Run(7, 9, (0, 1)), Run(9, 10, (0, 0))), result()
    )
    assert told(found.runs) == [(0, 5, (0, 0)), (5, 9, (0, 1)), (9, 10, (0, 0))]
    assert found.complete
    assert [found.end_of(number) for number in (0, 1)] == [10, 10]
    assert [gathered(result(Run(0, 3, (0, 0)), Run(3, 5, (0, ABSENT)))).end_of(number) for number in (0, 1)] == [5, 3]
    assert gathered(result(Run(0, 3, (0, 0)), Run(3, 5, (0, DAMAGED)))).end_of(1) == 5, "damage is a trace as well"
    assert gathered().end_of(0) == 0
    assert gathered(members=(member(0), member(1))).all_runs() == ()


def test_one_coarse_range_makes_all_incomplete() -> None:
    for coarse in ((True, False), (False, True)):
        assert not gathered(*(result(coarse=one) for one in coarse)).complete


def test_of_the_first_difference_alone_the_data_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare_room._MOST_DIFFERENCES == 1000
    monkeypatch.setattr(compare_room, "_MOST_DIFFERENCES", 3)
    parts = result(differences=(difference(1), difference(2))), result(differences=(difference(5), difference(6)))
    found = gathered(*parts).differences
    assert [one.transaction_id for one in found] == [1, 2, 5]
    assert [[side.data for side in one.sides] for one in found] == [[b"data"] * 2, [None] * 2, [None] * 2]
    assert found[0] == difference(1)
    assert found[2].sides == (side(0, 5, None), side(1, 5, None))


def test_of_a_segment_in_two_ranges_the_end_counts() -> None:
    end, other = Stretch(0, 0, 10, 9), Stretch(0, 0, 20, 19)
    key = (1, 0)
    for ranges, wanted in (
        ([begun(0, 0), end], end),
        ([end, begun(0, 0)], end),
        ([end, other], other),
        ([begun(0, 0)], begun(0, 0)),
        ([begun(0, 0), begun(0, 1)], begun(0, 0)),
    ):
        found = gathered(*(result(stretches=((1, one),)) for one in ranges))
        assert found.stretches == {key: wanted}


def test_segments_of_a_replica_that_do_not_join_are_told() -> None:
    late, early = Stretch(12, 12, 20, 19), Stretch(0, 0, 10, 9, listed=14, excess=True)
    found = gathered(result(stretches=((1, late), (0, Stretch(3, 3, 9, 8)), (1, early))))
    assert [(one.code, one.transaction_id, one.segment) for one in found.joined(1, WHERE)] == [
        (Code.SEGMENT_GAP, 10, 12)
    ]
    assert [(one.code, one.transaction_id, one.segment) for one in found.joined(0, WHERE)] == [(Code.SEGMENT_GAP, 0, 3)]
    assert list(found.joined(2, WHERE)) == []


@pytest.mark.parametrize(("held_to", "open_end"), [(None, False), (3, False), (4, False), (5, True), (6, True)])
def test_who_is_proven_to_have_held_more_has_an_open_end(held_to: int | None, open_end: bool) -> None:
    members = member(0, held_to), member(1, 4)
    found = gathered(result(Run(0, 5, (0, 0))), members=members).ballots()
    assert [one.open_end for one in found] == [open_end, False]
    told_so = gathered(result(Run(0, 5, (0, 0)), open_ends=(1,)), result(), members=members).ballots()
    assert [one.open_end for one in told_so] == [open_end, True]
    assert (found[0].session_id, found[0].present) == (5, True)


@pytest.mark.parametrize(
    ("sessions", "blank"),
    [
        ((5, -1), (False, True)),
        ((5, 0), (False, False)),
        ((5, None), (False, False)),
        ((0, -1), (False, True)),
        ((-1, -1), (False, False)),
        ((None, -1), (False, False)),
        ((-1, 5), (False, False)),  # it holds something
    ],
)
def test_who_holds_nothing_and_was_in_no_session_beside_others_that_were_is_blank(
    sessions: tuple[int | None, ...], blank: tuple[bool, ...]
) -> None:
    first, second = (
        replace(one, ballot=replace(one.ballot, session_id=session))
        for one, session in zip((member(0), member(1)), sessions, strict=True)
    )
    found = gathered(result(Run(0, 5, (0, ABSENT))), members=(first, second)).ballots()
    assert tuple(one.blank for one in found) == blank
    assert not any(one.open_end for one in found)


@pytest.mark.parametrize(
    ("sessions", "last", "blank"),
    [
        ((5, -1), LastSession(5, 3, 3), (False, True)),
        ((5, 4), LastSession(5, 3, 3), (False, True)),
        ((5, 4), LastSession(5, 3, 2), (False, False)),
        ((4, 4), LastSession(5, 3, 2), (True, True)),
        ((5, 5), LastSession(5, 3, 3), (False, False)),
        ((-1, 5), LastSession(5, 3, 3), (True, False)),  # whatever it holds
    ],
)
def test_by_the_metadata_those_are_blank_of_whom_more_are_older_than_it_has_closed(
    sessions: tuple[int, int], last: LastSession, blank: tuple[bool, bool]
) -> None:
    first, second = (
        replace(one, ballot=replace(one.ballot, session_id=session))
        for one, session in zip((member(0), member(1)), sessions, strict=True)
    )
    found = gathered(result(Run(0, 5, (0, ABSENT))), members=(first, second)).ballots(last)
    assert tuple(one.blank for one in found) == blank


@pytest.mark.parametrize(
    ("members", "runs"),
    [
        ((member(0), member(1)), [(0, 4, (0, 0)), (4, 6, (0, ABSENT))]),
        ((member(0), member(1, 3)), [(0, 4, (0, 0)), (4, 6, (0, ABSENT))]),
        ((member(0), member(1, 4)), [(0, 4, (0, 0)), (4, 5, (0, DAMAGED)), (5, 6, (0, ABSENT))]),
        ((member(0), member(1, 5)), [(0, 4, (0, 0)), (4, 6, (0, DAMAGED))]),
        ((member(0, 5), member(1)), [(0, 4, (0, 0)), (4, 6, (0, ABSENT))]),
        ((member(0, 6), member(1)), [(0, 4, (0, 0)), (4, 6, (0, ABSENT)), (6, 7, (DAMAGED, ABSENT))]),
        (
            (member(0, 6), member(1, 7)),
            [(0, 4, (0, 0)), (4, 6, (0, DAMAGED)), (6, 7, (DAMAGED, DAMAGED)), (7, 8, (ABSENT, DAMAGED))],
        ),
        ((member(0), member(1, 5, there=False)), [(0, 4, (0, 0)), (4, 6, (0, ABSENT))]),
        ((member(0), member(1, 9, there=False)), [(0, 4, (0, 0)), (4, 6, (0, ABSENT))]),
        ((member(0, mark=1), member(1)), [(0, 2, (0, 0)), (2, 4, (0, 0)), (4, 6, (0, ABSENT))]),
        ((member(0, mark=9), member(1)), [(0, 4, (0, 0)), (4, 6, (0, ABSENT))]),
    ],
)
def test_what_a_replica_is_proven_to_have_held_it_has_lost(
    members: Sequence[Member], runs: list[tuple[int, int, tuple[int, ...]]]
) -> None:
    assert told(gathered(result(*runs_of("aaaaaa", "aaaa")), members=members).all_runs()) == runs


def test_of_replicas_that_hold_nothing_everything_is_lost() -> None:
    assert told(gathered(members=(member(0, 0), member(1))).all_runs()) == [(0, 1, (DAMAGED, ABSENT))]
    assert told(gathered(members=(member(0, -1), member(1))).all_runs()) == []


def test_who_held_nothing_has_not_lost_its_end() -> None:
    assert [one.open_end for one in gathered(members=(member(0, -1), member(1, 0))).ballots()] == [False, True]


# --- a whole comparison -----------------------------------------------------------------------------------------------


@dataclass
class Given:
    """Does the work of an executor with answers that are known."""

    answer: Callable[[RangeTask], RangeResult]
    weights: Sequence[int] = ()

    def map(
        self, work: object, tasks: Sequence[RangeTask], *, weights: Sequence[int], what: str
    ) -> Iterator[RangeResult]:
        self.weights = weights
        assert len(weights) == len(tasks)
        return map(self.answer, tasks)


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    return [build_directory(tmp_path / name, {0: 1, 1: 1}, local_low_water_mark=-1) for name in "ab"]


_BAD = make_finding(Code.RECORD_CHECKSUM, PurePath("/x"), "made up", partition=0, offset=5)
_VERDICTS = {
    Verdict.EQUAL: (Run(0, 1, (0, 0)),),
    Verdict.RECOVERABLE: (Run(0, 1, (0, 0)), Run(1, 2, (0, ABSENT))),
    Verdict.LOST: (Run(0, 1, (DAMAGED, DAMAGED)),),
}


def asked(
    paths: Sequence[Path], answers: dict[int, RangeResult], replicas: int | None = None
) -> tuple[list[Finding], list[PartitionComparison], CompareSummary]:
    seen = list(compare(paths, CompareOptions(None, replicas), Given(lambda task: answers[task.partition])))  # type: ignore[arg-type]
    summary = seen.pop()
    assert isinstance(summary, CompareSummary)
    findings = [one for one in seen if isinstance(one, Finding)]
    return findings, [one for one in seen if isinstance(one, PartitionComparison)], summary


@pytest.mark.parametrize(
    ("verdicts", "findings", "status", "name"),
    [
        ((Verdict.EQUAL, Verdict.EQUAL), (), Verdict.EQUAL, "clean"),
        ((Verdict.EQUAL, Verdict.EQUAL), (_BAD,), Verdict.EQUAL, "repairable"),
        ((Verdict.EQUAL, Verdict.EQUAL), (replace(_BAD, severity=Severity.NOTE),), Verdict.EQUAL, "clean"),
        ((Verdict.RECOVERABLE, Verdict.EQUAL), (), Verdict.RECOVERABLE, "repairable"),
        ((Verdict.EQUAL, Verdict.LOST), (_BAD,), Verdict.LOST, "damaged"),
        ((Verdict.LOST, Verdict.RECOVERABLE), (), Verdict.LOST, "damaged"),
    ],
)
def test_the_gravest_verdict_is_that_of_all(
    pair: list[Path], verdicts: Sequence[Verdict], findings: tuple[Finding, ...], status: Verdict, name: str
) -> None:
    answers = {
        number: result(*_VERDICTS[one], records=number + 3, bytes=number + 10) for number, one in enumerate(verdicts)
    }
    answers = {number: replace(one, partition=number, findings=findings) for number, one in answers.items()}
    shown, partitions, summary = asked(pair, answers)
    assert shown == list(findings), "what two ranges see is told once"
    assert [(one.partition, one.verdict) for one in partitions] == list(enumerate(verdicts))
    assert (summary.status, summary.exit_status_name) == (status, name)
    assert summary.partitions == {one: verdicts.count(one) for one in Verdict}
    assert (summary.records, summary.bytes, summary.complete) == (7, 21, True)
    assert summary.findings == sum(one.severity is not Severity.NOTE for one in findings)
    assert (summary.replicas, summary.unassigned, summary.held) == (tuple(pair), (), ())
    assert 0 <= summary.elapsed_seconds < 600


def test_partitions_are_compared_in_their_order(pair: list[Path]) -> None:
    for wanted, told_of in (((1, 0), [0, 1]), ((1,), [1]), ((0,), [0])):
        seen = list(compare(pair, CompareOptions(wanted), Given(lambda task: result())))  # type: ignore[arg-type]
        assert [one.partition for one in seen if isinstance(one, PartitionComparison)] == told_of


def test_a_range_that_was_not_told_apart_makes_the_whole_incomplete(pair: list[Path]) -> None:
    for coarse in ((True, False), (False, True)):
        answers = {number: result(coarse=one) for number, one in enumerate(coarse)}
        _, partitions, summary = asked(pair, answers)
        assert [one.complete for one in partitions] == [not one for one in coarse]
        assert not summary.complete


@pytest.mark.parametrize(("replicas", "quorum"), [(None, 2), (2, 2), (3, 2), (4, 3)])
def test_so_many_replicas_there_are(pair: list[Path], replicas: int | None, quorum: int) -> None:
    _, (one, _), _ = asked(pair, dict.fromkeys((0, 1), result(Run(0, 1, (0, 0)))), replicas)
    assert (one.decision.last_replicas, one.decision.quorum) == (replicas or 2, quorum)
    assert one.clean_to == (None if replicas == 4 else 0)


def test_fewer_replicas_than_were_given_are_refused(pair: list[Path], tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequestError, match="1 replicas: 2 of the directories that were given are replicas of one"
    ):
        compare(pair, CompareOptions(None, 1), Given(lambda _: result()))  # type: ignore[arg-type]
    more = [*pair, build_directory(tmp_path / "c", {1: 1}, num_partitions=2, local_low_water_mark=-1)]
    with pytest.raises(InvalidRequestError, match="1 replicas: 3 of the directories"):
        compare(more, CompareOptions(None, 1), Given(lambda _: result()))  # type: ignore[arg-type]


def test_what_was_told_before_hides_nothing_that_was_not(pair: list[Path]) -> None:
    other = replace(_BAD, offset=6)
    answers = {0: result(findings=(_BAD,)), 1: result(partition=1, findings=(_BAD, other))}
    assert asked(pair, answers)[0] == [_BAD, other]


def test_the_first_place_that_differs_is_shown_with_its_sides(pair: list[Path]) -> None:
    runs = runs_of("aabaca", "aaxaya")
    known = result(*runs, differences=(difference(4), difference(2)))
    _, (one, other), _ = asked(pair, {0: known, 1: result(*runs_of("aaaa", "aaa"))})
    assert (one.first_divergence, one.divergence) == (2, Difference(2, (side(0, 2, None), side(1, 2, None))))
    assert (other.first_divergence, other.divergence) == (None, None)


# --- what is said of a replica ----------------------------------------------------------------------------------------


def test_damaged_ids_are_named_one_by_one_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert comparison_room.MOST_IDS == 10_000
    one = replace(compared("aaaa", "aaaa")[0], damaged=((2, 5), (7, 8), (10, 12)))
    assert (one.damaged_records, one.damaged_ids()) == (6, [2, 3, 4, 7, 10, 11])
    for most in range(7):
        monkeypatch.setattr(comparison_room, "MOST_IDS", most)
        assert one.damaged_ids() == [2, 3, 4, 7, 10, 11][:most]


@pytest.mark.parametrize(
    ("sources", "path"),
    [
        ([], None),
        ([(2, 5, "b")], "b"),
        ([(2, 5, None), (7, 8, "c")], "c"),
        ([(1, 2, "b"), (5, 7, "b"), (8, 9, "b")], None),
        ([(1, 2, "b"), (4, 5, "c")], "c"),
        ([(7, 8, "c")], "c"),
    ],
)
def test_what_is_damaged_comes_back_from_the_first_that_has_it(
    sources: list[tuple[int, int, str | None]], path: str | None
) -> None:
    given = tuple(RestoreSource(first, stop, None if name is None else PurePath(name)) for first, stop, name in sources)
    one: ReplicaComparison = replace(compared("aaaa", "aaaa")[0], damaged=((2, 5), (7, 8)), sources=given)
    assert one.restore_from == (None if path is None else PurePath(path))


# --- the table of differences -----------------------------------------------------------------------------------------


def table(*columns: str, differences: tuple[Difference, ...] = (), of: int | None = None) -> list[dict[str, object]]:
    runs, ballots = runs_of(*columns), [Ballot()] * len(columns)
    decision = decide(runs, ballots, of or len(columns))
    replicas = replicas_of(runs, decision, ballots, [PurePath(f"/{n}") for n in range(len(columns))])
    return list(rows(PartitionComparison(3, decision, None, replicas, tuple(runs), differences, True)))


def test_the_table_has_a_row_for_each_replica_where_not_all_are_equal() -> None:
    found = table("aaa!aa", "aabaa", "aaaaa", differences=(difference(2),))
    assert [tuple(row.values())[:7] for row in found] == [
        (3, 2, 2, "/0", "kept", 0, None),
        (3, 2, 2, "/1", "outvoted", 1, "/0"),
        (3, 2, 2, "/2", "kept", 0, None),
        (3, 3, 3, "/0", "damaged", None, "/1"),
        (3, 3, 3, "/1", "kept", 1, None),
        (3, 3, 3, "/2", "kept", 1, None),
        (3, 5, 5, "/0", "beyond", 0, None),
        (3, 5, 5, "/1", "missing", None, None),
        (3, 5, 5, "/2", "missing", None, None),
    ]
    assert [row.get("data") for row in found] == [b"data", b"data", b"data", *[None] * 6]
    assert [len(row) > 7 for row in found] == [True] * 3 + [False] * 6
    assert {row["segment"] for row in found[:3]} == {0}


def test_what_is_acknowledged_and_nowhere_has_rows_too() -> None:
    runs, ballots = [Run(0, 1, (ABSENT, ABSENT)), Run(1, 2, (0, 0))], [Ballot(low_water_mark=1)] * 2
    decision = decide(runs, ballots, 2)
    replicas = replicas_of(runs, decision, ballots, [PurePath("/0"), PurePath("/1")])
    found = rows(PartitionComparison(3, decision, None, replicas, tuple(runs), (), True))
    assert [tuple(row.values())[:7] for row in found] == [
        (3, 0, 0, "/0", "missing", None, None),
        (3, 0, 0, "/1", "missing", None, None),
    ]


def test_the_table_has_no_row_of_a_replica_that_cannot_be_read() -> None:
    runs, ballots = runs_of("aaa", "aab", ""), [Ballot(), Ballot(), Ballot(present=False, unread=True)]
    decision = decide(runs, ballots, 3)
    replicas = replicas_of(runs, decision, ballots, [PurePath(f"/{n}") for n in range(3)])
    found = rows(PartitionComparison(3, decision, None, replicas, tuple(runs), (), True))
    assert [tuple(row.values())[1:5] for row in found] == [(2, 2, "/0", "beyond"), (2, 2, "/1", "beyond")]


def test_the_table_is_written_in_parts_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    runs, ballots = runs_of("aba", "aca", "ada"), [Ballot()] * 3
    decision = decide(runs, ballots, 3)
    one = PartitionComparison(
        3, decision, None, replicas_of(runs, decision, ballots, [PurePath("/n")] * 3), tuple(runs), (), True
    )
    for batch in (1, 2, 3, 4):
        monkeypatch.setattr(differences_room, "_BATCH", batch)
        target = io.BytesIO()
        assert write_table([one, one], target) == 6
        assert parquet.read_table(target).column("state").to_pylist() == ["open"] * 6
        stored = parquet.ParquetFile(target).metadata
        parts = [stored.row_group(number).num_rows for number in range(stored.num_row_groups)]
        assert [one for one in parts if one] == [batch] * (6 // batch) + ([6 % batch] if 6 % batch else [])
    assert write_table([], io.BytesIO()) == 0


def test_of_what_cannot_be_told_the_table_says_that_it_is_open_or_lost() -> None:
    found = table("ax!a", "ay!a", "az!a")
    assert [(row["first_transaction_id"], row["state"], row["version"], row["restore_from"]) for row in found] == [
        (1, "open", 0, None), (1, "open", 1, None), (1, "open", 2, None),
        (2, "damaged", None, None), (2, "damaged", None, None), (2, "damaged", None, None),
    ]  # fmt: skip
    assert [row["state"] for row in table("aa", "", "")] == ["beyond", "missing", "missing"]
    assert table("aa") == table("aa", "aa") == []
    assert [row["state"] for row in table("aa", "aa", of=5)] == ["beyond"] * 2
    equal_and_cut = table("ab", "ab", "ac", "ac")
    assert [row["state"] for row in equal_and_cut] == ["beyond"] * 4
