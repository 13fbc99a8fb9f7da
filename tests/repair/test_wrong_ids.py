"""Records with right checksums and wrong ids: named alike by verify and recover, restored from a replica, never cut unasked."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.building import LAST, SEGMENTS, Files, clean, index, put_segment, record, segment
from tests.repair.trees import snapshot
from tests.trust.running import Said, called
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verification import VerifyOptions, VerifySummary
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.log.view import view_storage
from waltzctl.engine.repair.apply import RepairResult, apply
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.loss_ledger import read_ledger
from waltzctl.engine.storage.segment_recovery import SegmentPlace, examine_segment
from waltzctl.formats.segment import Record, index_name, segment_name

ENDS = (*SEGMENTS[1:], LAST + 1)
FAR = 10**15
WHOLE = {record(0, number).encode() for number in range(LAST + 1)}


def altered(changes: Mapping[int, int]) -> Files:
    """The clean example, where some transactions stand under other ids, their checksums made anew."""
    files = clean()
    for first, end in zip(SEGMENTS, ENDS, strict=True):
        found = [record(0, number) for number in range(first, end)]
        records = [
            Record.make(changes.get(one.transaction_id, one.transaction_id), one.request_id, one.header, one.data)
            for one in found
        ]
        put_segment(files, 0, first, segment(0, first, end, records=records))
    return files


def write(path: Path, files: Files) -> Path:
    for name, data in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return path


def look(path: Path) -> tuple[list[Finding], VerifySummary]:
    seen = list(verify((path,), VerifyOptions(exclusive=True)))
    findings = [one for one in seen if isinstance(one, Finding)]
    (summary,) = [one for one in seen if isinstance(one, VerifySummary)]
    return findings, summary


def stored(path: Path) -> dict[bytes, int]:
    """Every record with a right checksum, back to back in the data files, and how often it is there: by the format alone."""
    found: dict[bytes, int] = {}
    for file in sorted((path / "0").glob("*.seg")):
        data = file.read_bytes()[128:]
        while len(data) >= 40:
            size = 40 + int.from_bytes(data[28:32], signed=True)
            if not 40 <= size <= len(data) or not Record.decode(data[:size]).record_ok:
                break
            found[data[:size]] = found.get(data[:size], 0) + 1
            data = data[size:]
    return found


def recovered(path: Path, *replicas: Path, loss: bool = False) -> tuple[Repair, RepairResult]:
    """Recover, and prove that undo gives every byte back; what verify says afterwards is what recover said."""
    before = snapshot(path)
    repair = plan_recover(path, replicas=replicas, allow_data_loss=loss)
    result = apply(repair, arguments=["recover"])
    if result.applied:
        undo(path, result.undo_id)
        assert snapshot(path) == before
        repair = plan_recover(path, replicas=replicas, allow_data_loss=loss)
        result = apply(repair, arguments=["recover"])
    summary = look(path)[1]
    assert result.status == summary.status
    unbroken = stored(path).keys() == {record(0, n).encode() for n in present(path)}
    assert (summary.status == "clean") == (unbroken and not read_ledger(path).losses), (
        "an end that was given up is not forgotten"
    )
    return repair, result


def present(path: Path) -> range:
    """The ids that the data files' names and records show to be there, from 0 up to the last, if there is no gap."""
    return range(sum(stored(path).values()))


@pytest.mark.turns(8)
@pytest.mark.parametrize("wrong", [105, 3, 4, 6, 2, 9, FAR, -1])
def test_a_wrong_id_in_the_middle_is_the_loss_of_the_right_one(tmp_path: Path, wrong: int) -> None:
    storage, replica = write(tmp_path / "d", altered({5: wrong})), write(tmp_path / "replica", clean())
    (found,), _ = look(storage)
    assert (found.code, found.transaction_id) == ("record-order", 5)
    assert f"transaction 5 is expected, but {wrong} stands there" in found.message
    repair = plan_recover(storage)
    (left,) = repair.plan.undecided
    assert (left.code, left.transaction_id, left.offset, left.length) == (
        found.code,
        found.transaction_id,
        found.offset,
        found.length,
    )
    assert left.message.startswith(f"{found.message}; no replica was named")
    recovered(storage, loss=True)
    assert stored(storage).keys() == WHOLE - {record(0, 5).encode()}
    assert [(one.code, one.transaction_id) for one in look(storage)[0]] == [
        ("segment-gap", 5),
        ("loss-accepted", 5),
    ]
    again = write(tmp_path / "again", altered({5: wrong}))
    _, result = recovered(again, replica)
    assert (result.status, stored(again).keys()) == ("clean", WHOLE)


@pytest.mark.turns(10)
@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "without-index"])
@pytest.mark.parametrize("number", [0, 7, 8, 19])
@pytest.mark.parametrize("wrong", [2, 20, FAR])
def test_at_the_ends_of_segments(tmp_path: Path, number: int, wrong: int, *, indexed: bool) -> None:
    if wrong == number:
        pytest.skip("that is its own id")
    files = altered({number: wrong})
    if not indexed:
        del files[index(max(first for first in SEGMENTS if first <= number))]
    storage, replica = write(tmp_path / "d", files), write(tmp_path / "replica", clean())
    findings, summary = look(storage)
    assert summary.status == "damaged"
    orders = [one.transaction_id for one in findings if one.code == "record-order"]
    assert orders == [number], "the id that is not there, named once"
    before = stored(storage)
    recovered(storage)
    assert stored(storage) == before, "nothing is cut unasked"
    _, result = recovered(storage, replica)
    if number < LAST or wrong < number or indexed:
        assert (result.status, stored(storage).keys()) == ("clean", WHOLE)


@pytest.mark.turns(8)
@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 40))])
def test_any_mixture_of_wrong_ids(tmp_path: Path, seed: int) -> None:
    """No intact record goes without the word, nothing is called clean that is not, and a replica gives everything back."""
    source = random.Random(seed)
    changes: dict[int, int] = {}
    for number in source.sample(range(LAST + 1), source.randint(1, 5)):
        near = [number - 1, number + 1, number + 2, number - 3, source.randrange(LAST + 1), 40, 105, FAR, -7]
        changes[number] = source.choice([one for one in near if one != number])
    files = altered(changes)
    for first in SEGMENTS:
        if source.random() < 0.2:
            del files[index(first)]
    intact = WHOLE - {record(0, number).encode() for number in changes}
    storage = write(tmp_path / "d", files)
    assert look(storage)[1].status == "damaged"
    before = stored(storage)
    recovered(storage)
    assert stored(storage) == before
    loss = write(tmp_path / "loss", files)
    recovered(loss, loss=True)
    assert stored(loss).keys() >= intact, "what is given up is what was altered"
    replica = write(tmp_path / "replica", clean())
    recovered(storage, replica)
    assert stored(storage).keys() >= intact
    acknowledged = {record(0, number).encode() for number in range(12)}
    assert stored(storage).keys() >= acknowledged


def left_out(*numbers: int, indexed: str = "anew") -> Files:
    """The clean example without some records; the index made from what is there, as it was, or none."""
    files = clean()
    for first, end in zip(SEGMENTS, ENDS, strict=True):
        kept = [record(0, number) for number in range(first, end) if number not in numbers]
        old = files[index(first)]
        put_segment(files, 0, first, segment(0, first, end, records=kept))
        if indexed == "as-it-was":
            files[index(first)] = old
        elif indexed == "none":
            del files[index(first)]
    return files


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    ("indexed", "numbers"),
    [
        *(("anew", one) for one in [(0,), (3, 4), (8, 9), (17, 18), (5, 18)]),
        *(("as-it-was", one) for one in [(1, 3), (16,), (17,)]),
        *(("none", one) for one in [(3, 4, 5, 6), (0,), (17, 18)]),
    ],
)
def test_records_that_are_missing_in_the_middle(tmp_path: Path, numbers: tuple[int, ...], indexed: str) -> None:
    """They alone are lost: what stands behind them keeps its ids, whatever the index was made from."""
    files = left_out(*numbers, indexed=indexed)
    storage, replica = write(tmp_path / "d", files), write(tmp_path / "replica", clean())
    findings, summary = look(storage)
    assert summary.status == "damaged"
    assert {one.transaction_id for one in findings if one.code == "record-order"} <= set(numbers)
    before = stored(storage)
    recovered(storage)
    assert stored(storage) == before, "nothing is cut unasked"
    loss = write(tmp_path / "loss", files)
    recovered(loss, loss=True)
    kept = WHOLE - {record(0, number).encode() for number in numbers}
    assert stored(loss).keys() == kept
    given_up = {number for one in read_ledger(loss).losses for number in range(one.first, one.last + 1)}
    assert given_up == set(numbers)
    _, result = recovered(storage, replica)
    assert (result.status, stored(storage).keys()) == ("clean", WHOLE)
    both = write(tmp_path / "both", files)
    _, result = recovered(both, replica, loss=True)
    assert (result.status, stored(both).keys()) == ("clean", WHOLE)


@pytest.mark.parametrize("step", [100, 1, 3])
def test_wrong_ids_up_to_the_end_that_rise_like_right_ones(tmp_path: Path, step: int) -> None:
    """Are ids missing or wrong?  The replica tells."""
    files = altered({18: 18 + step, 19: 19 + step})
    storage, replica = write(tmp_path / "d", files), write(tmp_path / "replica", clean())
    before = stored(storage)
    recovered(storage)
    assert stored(storage) == before
    loss = write(tmp_path / "loss", files)
    recovered(loss, loss=True)
    assert stored(loss) == before
    _, result = recovered(storage, replica)
    assert (result.status, stored(storage).keys()) == ("clean", WHOLE)


@pytest.mark.parametrize("start", [10, 12, 13, 16, 17])
@pytest.mark.parametrize("count", [2, 3])
def test_ids_that_are_one_too_low_in_a_row(tmp_path: Path, start: int, count: int) -> None:
    """They read like one record twice and another missing; the replica's records stand in the same bytes."""
    files = altered({number: number - 1 for number in range(start, start + count)})
    storage, replica = write(tmp_path / "d", files), write(tmp_path / "replica", clean())
    before = stored(storage)
    recovered(storage)
    assert stored(storage) == before
    _, result = recovered(storage, replica)
    assert (result.status, stored(storage).keys()) == ("clean", WHOLE)


def test_ids_that_are_one_too_low_up_to_the_end_are_not_taken_for_a_repeat(tmp_path: Path) -> None:
    """Given up or not, the records stay where they are, and verify names them: nothing here tells which it is."""
    files = altered({number: number - 1 for number in range(17, LAST + 1)})
    storage = write(tmp_path / "d", files)
    before = snapshot(storage)
    recovered(storage, loss=True)
    assert snapshot(storage) == before
    findings, _ = look(storage)
    assert [(one.code, one.transaction_id) for one in findings] == [("record-order", 17)]


SHAPES = {
    "shifted up to the next segment": ({5: 6, 6: 7, 7: 8}, 5, None),
    "shifted down to the next segment": ({5: 4, 6: 5, 7: 6}, 5, None),
    "shifted down in the middle": ({2: 1, 3: 2, 4: 3}, 2, 5),
    "one far too large": ({3: 300}, 3, 4),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_room_judges_alike(tmp_path: Path, shape: str) -> None:
    """What one takes for wrong ids, nobody takes for a repeat or a gap: verify, dump, compare, recover and an opening."""
    changes, first, behind = SHAPES[shape]
    storage, replica = write(tmp_path / "d", altered(changes)), write(tmp_path / "replica", clean())
    view = view_storage(storage)
    assert view.control is not None
    place = SegmentPlace(storage, 0, view.control.header.cluster_key, 1 << 20)
    segment = view.partitions[0].data_segments[0]
    told = {
        "verify": placed(look(storage)[0]),
        "recover": placed(plan_recover(storage).plan.undecided),
        "opening": placed(examine_segment(segment, place, next_first=SEGMENTS[1], durable_to=LAST, mark=-1).findings),
        "dump": found_by(called("dump", storage, "--data", "none", "--format", "ndjson")),
        "compare": found_by(called("compare", storage, replica, "--format", "ndjson")),
    }
    stop = SEGMENTS[1] if behind is None else behind
    length = sum(record(0, number).size for number in range(first, stop))
    if behind is not None:
        del told["opening"]  # a segment with both ends right is not read
    assert told == {room: [(first, length)] for room in told}


Placed = list[tuple[int | None, int | None]]


def placed(findings: Sequence[Finding]) -> Placed:
    """Id and length of each place where the order is wrong."""
    return [(one.transaction_id, one.length) for one in findings if one.code == "record-order"]


def found_by(said: Said) -> Placed:
    """The same of a command's findings."""
    return [(one["transaction_id"], one["length"]) for one in said.only("finding") if one["code"] == "record-order"]


@pytest.mark.parametrize(("twice", "lost"), [(15, {10}), (14, {10})])
def test_ids_are_right_that_the_next_segment_begins_with_as_well(tmp_path: Path, twice: int, lost: set[int]) -> None:
    """One record is missing, and the next segment begins early with the last ones here: by places the ids would fit, too."""
    files = clean()
    records = [record(0, number) for number in range(8, 16) if number not in lost]
    put_segment(files, 0, 8, segment(0, 8, 16, records=records))
    for path in (f"0/{segment_name(16)}", f"0/{index_name(16)}"):
        del files[path]
    put_segment(files, 0, twice, segment(0, twice, LAST + 1))
    storage = write(tmp_path / "s", files)
    repair = plan_recover(storage, allow_data_loss=True)
    apply(repair, arguments=["recover"])
    assert set(stored(storage)) == {record(0, number).encode() for number in range(LAST + 1) if number not in lost}
    (loss,) = read_ledger(storage).losses
    assert (loss.first, loss.last) == (10, 10)


@pytest.mark.parametrize("wrong", [106, 7, 8, 5, 4])
def test_a_wrong_id_behind_a_damaged_record_takes_no_intact_one_with_it(tmp_path: Path, wrong: int) -> None:
    """Checksums prove that one damaged record lies in front of it: so its id is wrong, and those behind it are right."""
    lying, sound = 5, write(tmp_path / "replica", clean())
    files = altered({lying + 1: wrong})
    name = f"0/{segment_name(0)}"
    data = bytearray(files[name])
    at = 128 + sum(record(0, number).size for number in range(lying))
    data[at + 28] ^= 0x80  # the length of record 5 is negative
    files[name] = bytes(data)
    path = write(tmp_path / "d", files)
    apply(plan_recover(path, allow_data_loss=True), arguments=["recover"])
    assert WHOLE - set(stored(path)) == {record(0, lying).encode(), record(0, lying + 1).encode()}
    other = write(tmp_path / "other", files)
    assert apply(plan_recover(other, replicas=[sound]), arguments=["recover"]).exit_status_name == "clean"
    assert set(stored(other)) == WHOLE


def only(records: Sequence[Record], mark: int) -> Files:
    """The clean example with one segment, of these records."""
    files = clean(mark=mark)
    for first in SEGMENTS[1:]:
        del files[f"0/{segment_name(first)}"], files[index(first)]
    put_segment(files, 0, 0, segment(0, 0, 1, records=list(records)))
    return files


@pytest.mark.turns(10)
@pytest.mark.parametrize("mark", [-1, 0])
@pytest.mark.parametrize("wrong", [[1], [2], [20], [FAR], [1, 2, 3], [100, 101]])
def test_no_record_of_a_log_has_its_own_id(tmp_path: Path, wrong: list[int], mark: int) -> None:
    """Nothing stands in front of them that a replica could have as well; it has them, all but the ids."""
    right = [record(0, number) for number in range(len(wrong))]
    moved = [
        Record.make(number, one.request_id, one.header, one.data) for number, one in zip(wrong, right, strict=True)
    ]
    storage = write(tmp_path / "d", only(moved, mark))
    _, result = recovered(storage, write(tmp_path / "replica", clean(mark=mark)))
    assert (result.status, stored(storage).keys()) == ("clean", {one.encode() for one in right})


@pytest.mark.turns(10)
@pytest.mark.parametrize("wrong", [1, 2, FAR])
@pytest.mark.parametrize("change", ["request_id", "header", "data"])
def test_a_log_of_another_first_record_is_not_replaced(tmp_path: Path, wrong: int, change: str) -> None:
    """As long as a replica's, but not the same: it may be right, and what was in front of it lost."""
    one = record(0, 0)
    other = {
        "request_id": replace(one.request_id, sequence=one.request_id.sequence + 1),
        "header": one.header + 1,
        "data": one.data[:-1] + b"?",
    }
    kept = {"request_id": one.request_id, "header": one.header, "data": one.data} | {change: other[change]}
    storage = write(tmp_path / "d", only([Record.make(wrong, **kept)], -1))
    before = stored(storage)
    _, result = recovered(storage, write(tmp_path / "replica", clean(mark=-1)))
    assert (result.status, stored(storage)) == ("damaged", before)


@pytest.mark.parametrize("first", ["right", "other"])
def test_replicas_that_disagree_on_the_first_record_restore_nothing(tmp_path: Path, first: str) -> None:
    one = record(0, 0)
    storage = write(tmp_path / "d", only([Record.make(2, one.request_id, one.header, one.data)], -1))
    files = clean(mark=-1)
    records = [Record.make(0, one.request_id, one.header + 1, one.data), *(record(0, n) for n in range(1, SEGMENTS[1]))]
    put_segment(files, 0, 0, segment(0, 0, SEGMENTS[1], records=records))
    replicas = {"right": write(tmp_path / "right", clean(mark=-1)), "other": write(tmp_path / "other", files)}
    before = stored(storage)
    recovered(storage, *sorted(replicas.values(), key=lambda path: path.name != first))
    assert stored(storage) == before
