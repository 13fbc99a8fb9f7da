"""A record in the data of another one is no record of the log, though a search behind damage meets it first."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.building import SEGMENTS, Files, clean, index, name, overwrite, put_segment, record, segment
from tests.repair.scenes import actions, undecided
from tests.repair.test_rivals import recovered
from tests.repair.test_wrong_ids import stored, write
from tests.repair.trees import snapshot
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries, entry_position

INNER = Record.make(5, RequestId(8, 1, 0, 5), 0, b"a record within a record")


def crafted() -> tuple[Files, list[Record]]:
    """The clean example, with such a transaction 5, the last one of its segment, so that no entry leads to one behind it."""
    files = clean()
    records = [record(0, number) for number in range(5)]
    records.append(Record.make(5, RequestId(7, 1, 0, 5), 0, INNER.encode() + b"and more"))
    for one in (name(8), index(8)):
        del files[one]
    put_segment(files, 0, 6, segment(0, 6, SEGMENTS[2]))
    put_segment(files, 0, 0, segment(0, 0, len(records), records=records))
    return files, records


def damaged(files: Files, records: list[Record]) -> Files:
    """Junk from the middle of transaction 4 into the header of 5: the first intact record behind it is the one in the data."""
    start = HEADER_SIZE + sum(one.size for one in records[:5])
    overwrite(files, name(0), start - 12, b"\xee" * 30)
    return files


def test_it_is_not_taken_for_a_transaction(tmp_path: Path) -> None:
    files, records = crafted()
    replica = write(tmp_path / "replica", files)
    storage = write(tmp_path / "d", damaged(dict(files), records))
    before = snapshot(storage)
    assert actions(plan_recover(storage)) == []
    assert snapshot(storage) == before
    repair = plan_recover(storage, allow_data_loss=True)
    assert "split-segment" not in [step.action for step in repair.plan.steps if step.from_transaction_id == 4]
    assert "inside it" in repair.plan.undecided[0].message
    assert undecided(repair)[0] in ("record-checksum", "record-length")
    _, result = recovered(storage, replica)
    assert result.status == "clean"
    assert records[5].encode() in stored(storage)
    assert INNER.encode() not in stored(storage)


def test_its_entry_is_not_written_over(tmp_path: Path) -> None:
    """The index is all that tells until a replica has decided; what else it lacks is rebuilt then."""
    files, records = crafted()
    replica = write(tmp_path / "replica", files)
    storage = write(tmp_path / "d", damaged(dict(files), records))
    before = snapshot(storage)
    repair = plan_rebuild_index(storage)
    assert (actions(repair), undecided(repair)) == ([], ["record-length"])
    assert "only this index tells" in repair.plan.undecided[0].message
    rebuilt = plan_rebuild_index(storage, everything=True, partitions=[0]).plan.steps
    assert [Path(one.path).name for one in rebuilt] == [Path(index(other)).name for other in (6, 16)]
    assert snapshot(storage) == before
    _, result = recovered(storage, replica)
    assert result.status == "clean"
    assert actions(plan_rebuild_index(storage)) == []


@pytest.mark.parametrize(("step", "kept"), [(0, False), (1, True)])
def test_an_entry_at_the_edge_of_the_damage_is_not_inside_it(tmp_path: Path, step: int, kept: bool) -> None:
    """At its first byte the lost record begins: an entry there is wrong, not telling."""
    files, records = crafted()
    offset = HEADER_SIZE + sum(one.size for one in records[:4])
    overwrite(files, index(0), entry_position(5, 0), encode_entries([offset + step]))
    storage = write(tmp_path / "d", damaged(files, records))
    repair = plan_rebuild_index(storage)
    assert (actions(repair) == []) == kept
    assert (undecided(repair) != []) == kept
