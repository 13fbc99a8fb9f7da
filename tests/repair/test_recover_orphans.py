"""A lost data file under whose ids other records stand: restored where its index and a replica say the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builders import build_directory, make_records, write_segment
from tests.inspect.helpers import age
from tests.repair.scenes import flip, recovered
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.storage.loss_ledger import read_ledger
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, Record, encode_records, index_name, segment_name

LOST = 10
"""The first id of the lost data file; it had five records, under the first three of which others stand."""
RIGHT = make_records(20, size=None, seed=1)
OTHERS = make_records(20, size=None, seed=2)


def build(path: Path, front: Sequence[Record], lost: Sequence[Record], mark: int = 5) -> Path:
    """One segment, and the index of another one."""
    build_directory(path, {0: [front]}, local_low_water_mark=mark)
    write_segment(path / "0", lost).unlink()
    return path


def damaged(path: Path, *, stop: int = LOST + 5, others: int = LOST + 3, mark: int = 5) -> Path:
    return build(path, [*RIGHT[:LOST], *OTHERS[LOST:others]], RIGHT[LOST:stop], mark)


def sound(path: Path, records: Sequence[Record] = RIGHT) -> Path:
    return build_directory(path, {0: [records]}, local_low_water_mark=5)


def restored(storage: Path, *replicas: Path) -> bool:
    """Whether the data file comes back; nothing is given up either way."""
    repair = plan_recover(age(storage), replicas=[age(one) for one in replicas])
    back = [one for one in repair.plan.steps if (one.action, one.path.name) == ("restore-segment", segment_name(LOST))]
    assert not repair.plan.loses_data
    return bool(back)


@pytest.mark.parametrize("mark", [5, LOST + 4])
@pytest.mark.parametrize("others", [LOST + 1, LOST + 3, LOST + 5, LOST + 6])
def test_it_is_restored_and_what_stands_there_goes(tmp_path: Path, others: int, mark: int) -> None:
    """Nothing was restored, and to give up what the replica has was named as the next command."""
    storage, replica = damaged(tmp_path / "d", others=others, mark=mark), sound(tmp_path / "r")
    repair, result = recovered(storage, replica)
    if others == LOST + 6:  # a record beyond the lost file's, which stands nowhere else
        assert result.status == "damaged"
        assert restored(damaged(tmp_path / "e", others=others, mark=mark), replica)
        return
    assert (result.status, read_ledger(storage).losses) == ("clean", ())
    body = (storage / "0" / segment_name(LOST)).read_bytes()[HEADER_SIZE:]
    assert body == encode_records(RIGHT[LOST : LOST + 5])[0]
    assert {one.action for one in repair.plan.steps} >= {"restore-segment", "cut-segment"}


@pytest.mark.parametrize(("stop", "back"), [(LOST + 1, False), (LOST + 2, True)])
def test_a_single_entry_tells_no_length(tmp_path: Path, stop: int, *, back: bool) -> None:
    assert restored(damaged(tmp_path / "d", stop=stop), sound(tmp_path / "r")) == back


@pytest.mark.parametrize("entry", range(5))
def test_every_entry_has_to_be_where_the_replicas_record_begins(tmp_path: Path, entry: int) -> None:
    storage = damaged(tmp_path / "d")
    flip(storage / "0" / index_name(LOST), HEADER_SIZE + ENTRY_SIZE * entry + 7)
    assert not restored(storage, sound(tmp_path / "r"))


@pytest.mark.parametrize("place", [3, 12, 31, 39])
def test_an_index_of_another_segment_proves_nothing(tmp_path: Path, place: int) -> None:
    storage = damaged(tmp_path / "d")
    flip(storage / "0" / index_name(LOST), place)
    assert not restored(storage, sound(tmp_path / "r"))


@pytest.mark.parametrize("number", range(LOST - 2, LOST + 6))
def test_a_replica_has_to_hold_all_of_them_and_the_one_in_front(tmp_path: Path, number: int) -> None:
    """What is further in front, or behind, is not asked for."""
    replica = sound(tmp_path / "r")
    place = HEADER_SIZE + sum(one.size for one in RIGHT[:number])
    flip(replica / "0" / segment_name(0), place + 9)
    kept = number == LOST - 2 or number == LOST + 5
    assert restored(damaged(tmp_path / "d"), replica) == kept


def test_a_replica_with_another_record_in_front_is_another_history(tmp_path: Path) -> None:
    for number in (LOST - 2, LOST - 1):
        replica = sound(tmp_path / f"r{number}", [*RIGHT[:number], OTHERS[number], *RIGHT[number + 1 :]])
        assert restored(damaged(tmp_path / f"d{number}"), replica) == (number == LOST - 2)


def test_replicas_that_disagree_restore_nothing(tmp_path: Path) -> None:
    same_length = Record.make(LOST, RIGHT[LOST].request_id, RIGHT[LOST].header + 1, RIGHT[LOST].data)
    other = sound(tmp_path / "o", [*RIGHT[:LOST], same_length, *RIGHT[LOST + 1 :]])
    replica = sound(tmp_path / "r")
    assert restored(damaged(tmp_path / "d"), replica, sound(tmp_path / "same"))
    assert not restored(damaged(tmp_path / "e"), replica, other)
    assert not restored(damaged(tmp_path / "f"), other, replica)


def test_records_of_the_listed_lengths_may_be_those_of_the_index(tmp_path: Path) -> None:
    front = [
        *RIGHT[:LOST],
        *(Record.make(n, one.request_id, 7, one.data) for n, one in enumerate(RIGHT[LOST:13], LOST)),
    ]
    assert not restored(build(tmp_path / "d", front, RIGHT[LOST:15]), sound(tmp_path / "r"))


@pytest.mark.parametrize("place", ["front", "end"])
def test_a_damaged_segment_in_front_comes_first(tmp_path: Path, place: str) -> None:
    storage = damaged(tmp_path / "d")
    data = storage / "0" / segment_name(0)
    flip(data, HEADER_SIZE + 9 if place == "front" else data.stat().st_size - 1)
    assert not restored(storage, sound(tmp_path / "r"))
    assert not restored(damaged(tmp_path / "e")), "without a replica nothing is"
