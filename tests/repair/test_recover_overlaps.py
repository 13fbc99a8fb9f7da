"""Two segments with the same ids: alike, one goes and nothing is lost; different, witnesses decide, or a person."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builders import build_directory, make_records, write_segment
from tests.inspect.helpers import age
from tests.repair.scenes import recovered
from tests.repair.trees import snapshot
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.inspect.dump import dump_records
from waltzctl.engine.inspect.verification import VerifyOptions, VerifySummary
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.storage.loss_ledger import read_ledger
from waltzctl.formats.segment import CHECKPOINT_INTERVAL, HEADER_SIZE, Record, encode_entries, index_name, segment_name

Runs = Sequence[Sequence[Record]]


def records(first: int, stop: int, seed: int = 0) -> list[Record]:
    """Those of one history; another `seed` is another history of the same lengths' kind."""
    return make_records(60, seed=seed)[first:stop]


def build(path: Path, segments: Runs, mark: int = 5) -> Path:
    """Partition 0 with these segments, whether they join or not."""
    build_directory(path, {0: [segments[0]]}, local_low_water_mark=mark)
    for one in segments[1:]:
        write_segment(path / "0", one)
    return path


def stored(path: Path) -> list[Record]:
    found: list[Record] = []
    for file in sorted((path / "0").glob("*.seg")):
        data = file.read_bytes()[128:]
        while data:
            size = 40 + int.from_bytes(data[28:32])
            found.append(Record.decode(data[:size]))
            data = data[size:]
    return found


def status(path: Path) -> str:
    (summary,) = [one for one in verify((path,), VerifyOptions(exclusive=True)) if isinstance(one, VerifySummary)]
    return summary.status


def actions(repair: Repair) -> list[tuple[str, str, bool]]:
    return [(one.action, one.path.name, one.loses_data) for one in repair.plan.steps if one.path.suffix == ".seg"]


@pytest.mark.parametrize("stop", [19, 20, 21])
def test_the_same_records_twice_cost_nothing(tmp_path: Path, stop: int) -> None:
    """The later segment ends before, at, or behind the end of the earlier one."""
    path = build(tmp_path / "d", [records(0, 10), records(10, 20), records(15, stop)])
    assert status(path) == "damaged"
    repair, _ = recovered(path)
    wanted = ("cut-segment", segment_name(10), False) if stop > 20 else ("remove-segment", segment_name(15), False)
    assert actions(repair) == [wanted]
    assert (status(path), stored(path)) == ("clean", records(0, max(20, stop)))


def test_an_empty_segment_inside_another_goes(tmp_path: Path) -> None:
    path = build(tmp_path / "d", [records(0, 20)])
    write_segment(path / "0", [], first=12)
    assert actions(recovered(path)[0]) == [("remove-segment", segment_name(12), False)]
    assert (status(path), stored(path)) == ("clean", records(0, 20))


def test_several_copies_in_a_row(tmp_path: Path) -> None:
    path = build(tmp_path / "d", [records(0, 30), records(10, 20), records(20, 30), records(25, 35)])
    recovered(path)
    assert (status(path), stored(path)) == ("clean", records(0, 35))


def two_histories(path: Path, stop: int = 25, mark: int = 5) -> Path:
    """Transactions 15 to 19 of one history behind 10, and of another one up to `stop` - 1 in a segment of their own."""
    return build(path, [records(0, 10), records(10, 20), records(15, stop, seed=9)], mark)


@pytest.mark.parametrize("stop", [19, 20, 21, 25])
def test_two_histories_are_left_to_a_person_with_words_on_both(tmp_path: Path, stop: int) -> None:
    path = two_histories(tmp_path / "d", stop)
    before = snapshot(age(path))
    repair, _ = recovered(path)
    assert (repair.plan.steps, [one.code for one in repair.plan.undecided]) == ((), ["segment-overlap"])
    said = repair.plan.undecided[0].message
    assert f"transactions 15 to {min(stop, 20) - 1} stand twice" in said
    assert segment_name(10) in said
    assert segment_name(15) in said
    assert (snapshot(path), status(path)) == (before, "damaged")


@pytest.mark.parametrize(("stop", "kept"), [(19, 0), (20, 9), (21, 9)])
def test_told_to_lose_it_keeps_what_reaches_further_and_of_two_the_later(tmp_path: Path, stop: int, kept: int) -> None:
    path = two_histories(tmp_path / "d", stop)
    repair, _ = recovered(path, loss=True)
    assert repair.plan.loses_data
    assert stored(path) == records(0, 15) + (records(15, 20) if kept == 0 else records(15, stop, seed=9))
    assert status(path) == "damaged"
    (loss,) = read_ledger(path).losses
    assert (loss.first, loss.last, loss.disputed) == (15, min(stop, 20) - 1, True)


@pytest.mark.parametrize("kept", [0, 9])
def test_a_replica_decides(tmp_path: Path, kept: int) -> None:
    path = two_histories(tmp_path / "d", 20)
    replica = build(tmp_path / "replica", [records(0, 15) + records(15, 20, seed=kept)])
    repair, _ = recovered(path, replica)
    assert not repair.plan.loses_data
    assert (status(path), stored(path)) == ("clean", records(0, 15) + records(15, 20, seed=kept))


def test_replicas_that_disagree_decide_nothing(tmp_path: Path) -> None:
    path = two_histories(tmp_path / "d", 20)
    both = [build(tmp_path / str(seed), [records(0, 15) + records(15, 20, seed=seed)]) for seed in (0, 9)]
    assert recovered(path, *both)[0].plan.steps == ()


def test_what_the_other_run_alone_holds_is_not_lost_unasked(tmp_path: Path) -> None:
    """The replica has the earlier run; what the later one holds beyond stands nowhere else."""
    path = two_histories(tmp_path / "d", 25)
    replica = build(tmp_path / "replica", [records(0, 20)])
    repair, _ = recovered(path, replica)
    assert repair.plan.steps == ()
    assert "stands nowhere else" in repair.plan.undecided[0].message


@pytest.mark.parametrize(("stop", "decided"), [(19, False), (20, True), (21, True)])
def test_a_run_that_ends_one_record_earlier_is_not_kept_unasked(tmp_path: Path, stop: int, *, decided: bool) -> None:
    """The replica has the later run; the earlier one goes on to transaction 19."""
    path = two_histories(tmp_path / "d", stop)
    replica = build(tmp_path / "replica", [records(0, 15) + records(15, stop, seed=9)])
    repair, _ = recovered(path, replica)
    assert bool(repair.plan.steps) == decided
    assert not repair.plan.loses_data


@pytest.mark.parametrize(("following", "kept"), [(20, 0), (25, 9)])
def test_the_next_segment_decides(tmp_path: Path, following: int, kept: int) -> None:
    segments = [records(0, 10), records(10, 20), records(15, 25, seed=9), records(following, 30, seed=kept)]
    path = build(tmp_path / "d", segments)
    repair, _ = recovered(path)
    assert not repair.plan.loses_data
    wanted = records(0, 20) + records(20, 30) if kept == 0 else records(0, 15) + records(15, 30, seed=9)
    assert (status(path), stored(path)) == ("clean", wanted)


@pytest.mark.parametrize(("mark", "decided"), [(19, False), (20, True), (24, True), (25, False)])
def test_the_mark_decides_where_one_run_alone_reaches_it(tmp_path: Path, mark: int, *, decided: bool) -> None:
    path = two_histories(tmp_path / "d", 25, mark)
    repair, _ = recovered(path)
    assert bool(repair.plan.steps) == decided
    if decided:
        assert not repair.plan.loses_data
        assert (status(path), stored(path)) == ("clean", records(0, 15) + records(15, 25, seed=9))


def test_witnesses_against_each_other_decide_nothing(tmp_path: Path) -> None:
    path = two_histories(tmp_path / "d", 25, 22)
    replica = build(tmp_path / "replica", [records(0, 20)])
    assert recovered(path, replica)[0].plan.steps == ()


def test_a_damaged_run_is_not_compared(tmp_path: Path) -> None:
    path = build(tmp_path / "d", [records(0, 20), records(15, 25)])
    target = path / "0" / segment_name(15)
    data = bytearray(target.read_bytes())
    data[128 + 9] ^= 1
    target.write_bytes(data)
    repair = plan_recover(path)
    assert repair.plan.steps == ()
    assert "segment-overlap" in [one.code for one in repair.plan.undecided]


@pytest.mark.parametrize(("stop", "mended"), [(18, False), (19, True), (25, True)])
def test_a_torn_copy_goes_where_the_other_one_holds_all_of_it(tmp_path: Path, stop: int, *, mended: bool) -> None:
    """Transaction 19 is torn in the earlier segment; the later one begins with 15."""
    path = build(tmp_path / "d", [records(0, 20), records(15, stop)])
    target = path / "0" / segment_name(0)
    target.write_bytes(target.read_bytes()[:-3])
    repair, _ = recovered(path)
    assert bool(actions(repair)) == mended
    assert not repair.plan.loses_data
    if mended:
        assert (status(path), stored(path)) == ("clean", records(0, stop))


@pytest.mark.parametrize("stop", [16, 18])
def test_what_is_restored_behind_an_overlap_follows_the_record_in_front_of_it(tmp_path: Path, stop: int) -> None:
    """Not behind the later segment, which ends in front of it: there the ids would be out of order."""
    replica = build(tmp_path / "r", [records(0, 21)], mark=20)
    path = build(tmp_path / "d", [records(0, 20), records(15, stop)], mark=20)
    target = path / "0" / segment_name(0)
    target.write_bytes(target.read_bytes()[:-3])
    theirs = replica / "0" / segment_name(0)
    data, place = theirs.read_bytes(), HEADER_SIZE + sum(one.size for one in records(0, 15))
    theirs.write_bytes(
        data[: place + 9] + b"\xff" + data[place + 10 :]
    )  # or what is in both would be known to be right
    repair, result = recovered(path, replica)
    assert (bool(actions(repair)), repair.plan.loses_data) == (True, False)
    assert "record-order" not in [one.code for one in result.findings]
    held = [one.transaction_id for one in dump_records(path) if not isinstance(one, Finding)]
    assert held == [*range(19), *range(15, stop), 19, 20]


def two_torn(path: Path, stop: int, mark: int, seed: int = 0) -> Path:
    """Transaction 19 is torn in the earlier segment, and the last one in the later, which begins with 15."""
    build(path, [records(0, 20), records(15, stop, seed=seed)], mark=mark)
    for first in (0, 15):
        target = path / "0" / segment_name(first)
        target.write_bytes(target.read_bytes()[:-3])
    return path


@pytest.mark.turns(8)
@pytest.mark.parametrize("mark", [5, 22])
@pytest.mark.parametrize("stop", [16, 18, 19, 20, 21])
def test_of_two_torn_copies_the_shorter_goes_where_a_replica_has_its_records(
    tmp_path: Path, stop: int, mark: int
) -> None:
    """A second repair was needed, though the first one said that to give records up comes next; or nothing was done at all."""
    replica = build(tmp_path / "r", [records(0, 23)], mark=mark)
    repair, result = recovered(two_torn(tmp_path / "d", stop, mark), replica)
    assert (result.status, repair.plan.loses_data) == ("clean", False)
    assert stored(tmp_path / "d") == records(0, 23 if mark == 22 else max(stop - 1, 19))


@pytest.mark.parametrize("stop", [16, 18, 19])
@pytest.mark.parametrize("seed", [0, 9])
def test_of_two_torn_copies_the_shorter_stays_where_nobody_has_its_records(
    tmp_path: Path, stop: int, seed: int
) -> None:
    """Neither unasked nor with a replica that has none of them; with leave it goes if it holds the same."""
    path = two_torn(tmp_path / "d", stop, 22, seed)
    assert plan_recover(age(path)).plan.steps == ()
    replica = build(tmp_path / "r", [records(0, 15)], mark=22)
    assert "remove-segment" not in [one.action for one in plan_recover(path, replicas=[replica]).plan.steps]
    same = seed == 0 or stop == 16  # nothing of it is intact
    for replicas in ([], [replica]):
        repair = plan_recover(path, replicas=replicas, allow_data_loss=True)
        assert ("remove-segment" in [one.action for one in repair.plan.steps]) is same


@pytest.mark.parametrize("loss", [False, True])
@pytest.mark.parametrize("stop", [16, 18, 19])
@pytest.mark.parametrize("whole", [False, True])
def test_the_torn_record_of_the_shorter_copy_may_be_the_right_one(
    tmp_path: Path, stop: int, *, whole: bool, loss: bool
) -> None:
    """Both histories part there: the earlier segment's was kept, silently, and the replica has the other."""
    path = build(tmp_path / "d", [records(0, 20), records(15, stop)], mark=5)
    for first in (15,) if whole else (0, 15):
        target = path / "0" / segment_name(first)
        target.write_bytes(target.read_bytes()[:-3])
    other = build(tmp_path / "r", [records(0, stop - 1) + records(stop - 1, 20, seed=9)], mark=5)
    repair = plan_recover(age(path), replicas=[age(other)], allow_data_loss=loss)
    assert "remove-segment" not in [one.action for one in repair.plan.steps]
    assert "segment-overlap" in [one.code for one in repair.plan.undecided]
    same = build(tmp_path / "s", [records(0, stop) + records(stop, 20, seed=9)], mark=5)  # one step further
    again = plan_recover(path, replicas=[age(same)], allow_data_loss=loss)
    assert "remove-segment" in [one.action for one in again.plan.steps]


@pytest.mark.parametrize("change", ["torn", "flipped"])
@pytest.mark.parametrize("mark", [5, 20])
def test_an_empty_segment_inside_a_damaged_one_goes(tmp_path: Path, change: str, mark: int) -> None:
    """It was left, and called a second copy of transactions; nothing could be done about what is behind it."""
    replica = build(tmp_path / "r", [records(0, 21)], mark=mark)
    path = build(tmp_path / "d", [records(0, 20)], mark=mark)
    write_segment(path / "0", [], first=15)
    target = path / "0" / segment_name(0)
    data = target.read_bytes()
    target.write_bytes(data[:-3] if change == "torn" else data[: HEADER_SIZE + 9] + b"\xff" + data[HEADER_SIZE + 10 :])
    repair, result = recovered(path, replica)
    assert actions(repair)[0] == ("remove-segment", segment_name(15), False)
    assert result.status == "clean"
    assert stored(path) == records(0, 21 if mark == 20 else 19 if change == "torn" else 20)


def test_segments_that_join_inside_one_that_is_left_stay_as_they_are(tmp_path: Path) -> None:
    """No byte of the first of them was cut, and that in each repair anew."""
    path = build(tmp_path / "d", [records(0, 21), records(3, 9), records(9, 15)], mark=19)
    target = path / "0" / segment_name(0)
    target.write_bytes(target.read_bytes()[:-3])
    repair, result = recovered(path)
    assert (actions(repair), result.status) == ([], "damaged")


@pytest.mark.parametrize("change", ["none", "torn", "flipped"])
@pytest.mark.parametrize("held", [0, 3])
def test_a_segment_whose_index_alone_proves_a_loss_is_not_removed(tmp_path: Path, change: str, held: int) -> None:
    """It was removed without leave, since the one in front of it has what is left of it: a loss was clean after that."""
    path = build(tmp_path / "d", [records(0, 20)], mark=5)
    write_segment(path / "0", records(15, 15 + held), first=15)
    with (path / "0" / index_name(15)).open("ab") as index:
        index.write(encode_entries([HEADER_SIZE + 60 * number for number in range(held, CHECKPOINT_INTERVAL)]))
    target = path / "0" / segment_name(0)
    data = target.read_bytes()
    if change == "torn":
        target.write_bytes(data[:-3])
    elif change == "flipped":
        target.write_bytes(data[: HEADER_SIZE + 9] + b"\xff" + data[HEADER_SIZE + 10 :])
    missing = CHECKPOINT_INTERVAL - (19 if change == "torn" else 20)
    for loss, code in ((False, Code.DURABLE_MISSING), (True, Code.LOSS_ACCEPTED)):
        repair = plan_recover(age(path), allow_data_loss=loss)
        assert loss or repair.plan.steps == ()
        result = apply(repair, arguments=["recover"])
        assert missing in [one.missing for one in result.findings if one.code is code]


@pytest.mark.parametrize(("stop", "decided"), [(29, False), (30, True), (31, True)])
def test_a_run_that_others_go_on_from_is_kept_if_they_go_as_far(tmp_path: Path, stop: int, *, decided: bool) -> None:
    """The next segment begins where the later run ends; where that chain stops short, the earlier run alone holds the rest."""
    segments = [records(0, 30), records(15, 20, seed=1), records(20, 25, seed=1), records(25, stop, seed=1)]
    path = build(tmp_path / "d", segments)
    repair, _ = recovered(path)
    first = actions(repair)[:1]
    assert first == ([("cut-segment", segment_name(0), False)] if decided else [])
    if decided:
        assert stored(path) == [*records(0, 15), *records(15, stop, seed=1)]
    else:
        assert set(stored(path)) >= set(records(0, 30))


def step_by_step(path: Path, *replicas: Path, loss: bool = False) -> list[list[tuple[str, str, bool]]]:
    """Recover until nothing is left to do; the steps in data files each time.  The first one lets the rest be compared."""
    done = []
    while (repair := plan_recover(age(path), replicas=replicas, allow_data_loss=loss)).plan.steps:
        done.append(actions(repair))
        assert len(done) < 5
        apply(repair, arguments=["recover"])
    return done


@pytest.mark.turns(10)
@pytest.mark.parametrize("first", [0, 14, 15, 18])
@pytest.mark.parametrize("place", [28, 31, 9])
def test_a_torn_end_inside_the_segment_in_front_of_it_is_restored(tmp_path: Path, first: int, place: int) -> None:
    """Nobody looked at it: it is no end of the log.  So both could never be compared, even where a replica holds all of one."""
    runs = [[*records(0, first + 1), *records(first + 1, 20, seed=9)], records(first + 1, first + 2)]
    path, again, name = build(tmp_path / "d", runs), build(tmp_path / "e", runs), segment_name(first + 1)
    for one in (path, again):
        data = bytearray((one / "0" / name).read_bytes())
        data[HEADER_SIZE + place] ^= 0x80
        (one / "0" / name).write_bytes(data)
    assert step_by_step(path) == []
    replica = age(build(tmp_path / "r", [records(0, 2), records(2, 30)]))
    done = step_by_step(path, replica)
    assert done[0] == [("restore-record", name, False)]
    other = [records(0, first), records(first, first + 1, seed=7), records(first + 1, 30)]
    replica = age(build(tmp_path / "another", [[one for part in other for one in part]]))
    assert step_by_step(again, replica) == [], "it has another record in front of it"


@pytest.mark.turns(10)
@pytest.mark.parametrize("twice", [14, 15, 19])
@pytest.mark.parametrize(("other", "told"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_repeat_at_the_end_of_a_segment_that_overlaps_with_the_next(
    tmp_path: Path, twice: int, *, other: bool, told: bool
) -> None:
    """It kept both from being compared, also with leave to lose it: a command was named that did nothing.

    Unasked it only goes if it has the same bytes.
    """
    again = records(twice, twice + 1, seed=9 if other else 0)
    path = build(tmp_path / "d", [[*records(0, 20), *again], records(15, 25)])
    replicas = [age(build(tmp_path / "r", [records(0, 30)]))] if told else []
    done = step_by_step(path, *replicas)
    assert bool(done) == (told or not other)
    if done:
        assert done[0][0] == ("cut-torn-tail", segment_name(0), told)
    else:
        assert step_by_step(path, loss=True)[0][0] == ("cut-torn-tail", segment_name(0), True)
        assert [(loss.first, loss.last, loss.disputed) for loss in read_ledger(path).losses] == [(twice, twice, True)]
    assert stored(path) == records(0, 25)


@pytest.mark.parametrize(("seed", "told"), [(0, False), (9, False), (9, True)])
@pytest.mark.parametrize("place", [3, 31])
def test_a_damaged_version_is_restored_where_the_segment_overlaps_with_the_next(
    tmp_path: Path, seed: int, place: int, *, told: bool
) -> None:
    """All else in its header is right: it is this partition's, whatever stands twice.  With a wrong partition nobody knows."""
    path = build(tmp_path / "d", [[*records(0, 15), *records(15, 20, seed=seed)], records(15, 25)])
    target = path / "0" / segment_name(0)
    data = bytearray(target.read_bytes())
    data[place] ^= 4
    target.write_bytes(data)
    replicas = [age(build(tmp_path / "r", [records(0, 30)]))] if told else []
    repair = plan_recover(age(path))
    assert ("write-segment-header" in [one.action for one in repair.plan.steps]) == (place == 3)
    step_by_step(path)
    step_by_step(path, *replicas)
    assert (status(path) == "clean") == (place == 3 and (told or not seed))
