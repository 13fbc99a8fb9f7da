"""The option failOnDataLoss: which rows are losses, what an error names, and how it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory
from tests.inspect.helpers import age, cut, flip
from tests.spark.nodes import served
from tests.spark.reading import read, verified
from tests.spark.streaming import Query, ids
from waltzctl.engine.compare.compare import compare
from waltzctl.engine.compare.comparison import CompareOptions
from waltzctl.engine.errors import DamageError, InvalidRequestError
from waltzctl.engine.findings import Code, Finding, Severity, make_finding
from waltzctl.engine.inspect.dump import dump_records
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.spark.data_loss import MOST_NAMED, Losses, fails_on_loss, is_loss
from waltzctl.engine.spark.stream_reader import stream_options
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.task_executor import LocalExecutor
from waltzctl.formats.segment import HEADER_SIZE, index_name, segment_name


@pytest.mark.parametrize(
    ("code", "severity", "missing", "lost"),
    [
        (Code.SEGMENT_GAP, None, 3, True),
        (Code.RECORD_CHECKSUM, None, None, True),  # nobody knows how many
        (Code.RECORD_CHECKSUM, None, 0, False),  # bytes between records that follow one another
        (Code.TORN_TAIL, Severity.REPAIRABLE, None, False),
        (Code.TORN_TAIL, Severity.DAMAGE, 1, True),
        (Code.DATA_CHECKSUM, None, None, False),  # the record is there
        (Code.SEGMENT_KEY, None, None, True),
        (Code.ACCEPTED_LOSSES_DAMAGED, None, None, False),
        (Code.STATE_FILE_DAMAGED, None, None, False),
    ],
)
def test_what_is_a_loss(code: Code, severity: Severity | None, missing: int | None, lost: bool) -> None:
    assert is_loss(make_finding(code, Path("d/0"), "said", severity=severity, missing=missing)) == lost


@pytest.mark.parametrize("count", [1, 2, MOST_NAMED, MOST_NAMED + 1, MOST_NAMED + 7])
def test_an_error_names_as_many_as_a_person_reads(count: int) -> None:
    losses = Losses(wanted=True)
    losses.see(
        make_finding(Code.SEGMENT_GAP, Path("d/0"), f"said {n}", transaction_id=n, missing=1) for n in range(count)
    )
    with pytest.raises(DamageError) as caught:
        losses.check()
    first, *lines = str(caught.value).splitlines()
    assert first == f"failOnDataLoss: transactions are lost in {count} place{'s' if count > 1 else ''}"
    assert lines[0].startswith("  d/0, transaction 0: segment-gap: said 0")
    assert len(lines) == min(count, MOST_NAMED) + (count > MOST_NAMED)
    assert lines[-1].startswith(f"  and {count - MOST_NAMED} more; ") == (count > MOST_NAMED)


def test_nothing_is_kept_where_nobody_asked_and_nothing_raised_where_nothing_is_lost() -> None:
    losses = Losses()
    losses.see([make_finding(Code.SEGMENT_GAP, Path("d/0"), "said", missing=1)])
    losses.check()
    Losses(wanted=True).check()


def test_what_is_no_loss_does_not_hide_one_behind_it() -> None:
    losses = Losses(wanted=True)
    losses.see(make_finding(code, Path("d/0"), "said", missing=1) for code in (Code.DATA_CHECKSUM, Code.SEGMENT_GAP))
    with pytest.raises(DamageError, match=r"lost in 1 place\n  d/0: segment-gap: said"):
        losses.check()


def test_how_it_is_asked_for(tmp_path: Path) -> None:
    assert [fails_on_loss(one) for one in ({}, {"failondataloss": " True "}, {"failondataloss": "false"})] == [
        False, True, False
    ]  # fmt: skip
    with pytest.raises(InvalidRequestError, match="option failOnDataLoss is true or false, not 'yes'"):
        stream_options({"failondataloss": "yes"})
    with pytest.raises(InvalidRequestError, match="option failOnDataLoss: view findings shows what is wrong"):
        read(tmp_path, view="findings", failOnDataLoss="true")


@pytest.mark.turns(10)
def test_damage_is_a_loss_and_bad_data_is_none(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "d", {0: 40}, size=50)
    assert ids(read(storage, failOnDataLoss="true")) == list(range(40))
    segment = storage / "0" / segment_name(0)
    flip(segment, 128 + 90 * 7 + 40)
    with pytest.raises(DamageError, match=r"transaction 7: record-checksum"):
        read(storage, failOnDataLoss="true")
    cut(segment, segment.stat().st_size - 1)
    assert [row["finding"] for row in read(storage) if row["finding"]] == ["record-checksum", "torn-tail"]


def test_what_a_node_lost_at_its_end_is_told_and_ends_a_query_that_is_to_fail(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "d", {0: 40, 1: 10}, num_partitions=2, per_segment=10)
    for name in (segment_name(30), index_name(30)):
        (storage / "0" / name).unlink()
    apply(
        plan_set_partition(
            storage, partition=0, setting=PartitionSetting(local_low_water_mark=39), allow_data_loss=True
        ),
        arguments=(),
    )
    with served(storage) as node:
        query = Query(node.url, plaintext="true", maxRecordsPerTrigger="7")
        query.run()
        query.restart()
        assert query.step() is None
        query.reader.stop()
        lost = [
            (row["finding"], row["partition"], row["transaction_id"], row["missing"])
            for row in query.rows
            if row["finding"]
        ]
        assert lost == [("acknowledged-missing", 0, 30, 10)]
        assert (ids(query.rows), ids(query.rows, 1)) == (list(range(30)), list(range(10)))
        strict = Query(node.url, plaintext="true", failOnDataLoss="true")
        with pytest.raises(DamageError, match=r"waltz://.*, transaction 30: acknowledged-missing: .* 30 to 39"):
            strict.run()
        strict.reader.stop()


@pytest.mark.turns(10)
@pytest.mark.parametrize("entries", [10, 4, 0, None])
@pytest.mark.parametrize("size", [0, 127])
def test_what_a_file_without_a_whole_header_held_is_counted_by_everybody(
    tmp_path: Path, size: int, entries: int | None
) -> None:
    """In the midst of a partition the next name tells how much that was, whatever is left of the index."""
    storage = build_directory(tmp_path / "d", {0: 40}, per_segment=10)
    cut(storage / "0" / segment_name(10), size)
    index = storage / "0" / index_name(10)
    if entries is None:
        index.unlink()
    else:
        cut(index, 128 + 8 * entries)
    lost = [("segment-header-short", 10, 10)]
    told = [(one.code.value, one.transaction_id, one.missing) for one in verified(storage) if one.code != "index-short"]
    assert told == lost
    dumped = [one for one in dump_records(storage) if isinstance(one, Finding)]
    assert [(one.code.value, one.transaction_id, one.missing) for one in dumped] == lost
    streams = [Query(storage, **options).run() for options in ({}, {"maxRecordsPerTrigger": "3"})]
    for rows in (read(storage), read(storage, minTransactionId=13, maxTransactionId=14), *streams):
        assert [(row["finding"], row["transaction_id"], row["missing"]) for row in rows if row["finding"]] == lost
    (rest,) = [row for row in Query(storage, startingTransactions='{"0": 16}').run() if row["finding"]]
    assert (rest["transaction_id"], rest["missing"]) == (16, 4)


@pytest.mark.turns(10)
@pytest.mark.parametrize("entries", [10, 7, 5, 4, 0])
def test_what_a_file_that_was_cut_within_a_record_held_is_counted_once_by_everybody(
    tmp_path: Path, entries: int
) -> None:
    """Where its index tells of a part of it, a gap in front of the next segment counted the rest a second time."""
    storage, other = (build_directory(tmp_path / name, {0: 30}, per_segment=10, size=20) for name in "do")
    cut(storage / "0" / segment_name(10), HEADER_SIZE + 4 * 60 + 30)
    cut(storage / "0" / index_name(10), HEADER_SIZE + 8 * entries)
    age(storage)
    lost = [("torn-tail", 14, 6)]

    def counted(found: Iterable[object]) -> list[tuple[str, int | None, int | None]]:
        findings = [one for one in found if isinstance(one, Finding) and one.missing]
        return [(one.code.value, one.transaction_id, one.missing) for one in findings]

    assert counted(verified(storage)) == lost
    assert counted(dump_records(storage)) == lost
    assert counted(compare([storage, other], CompareOptions(), LocalExecutor())) == lost
    for rows in (read(storage), Query(storage).run()):
        assert [(row["finding"], row["transaction_id"], row["missing"]) for row in rows if row["finding"]] == lost
    with StorageDirectory.open(storage, expected_partitions=1) as node:
        assert counted(node.partition(0).findings) == lost


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    ("entries", "lost"),
    [
        (10, [("segment-header-short", 30, 10)]),
        (4, [("segment-header-short", 30, 4), ("acknowledged-missing", 34, 6)]),
        (0, [("segment-header-short", None, None), ("acknowledged-missing", 30, 10)]),
    ],
)
def test_at_the_end_its_index_tells_it_and_the_mark_the_rest(
    tmp_path: Path, entries: int, lost: list[tuple[str, int | None, int | None]]
) -> None:
    storage = build_directory(tmp_path / "d", {0: 40}, per_segment=10, local_low_water_mark=39)
    cut(storage / "0" / segment_name(30), 50)
    cut(storage / "0" / index_name(30), 128 + 8 * entries)
    found = [(row["finding"], row["transaction_id"], row["missing"]) for row in read(storage) if row["finding"]]
    assert found == lost


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    ("listed", "mark", "lost"),
    [
        (10, 39, 3),  # the index tells of all that stood there
        (10, 38, 3),
        (8, 39, 1),  # and of one: what else was there the mark tells
        (None, 39, 1),
        (None, 37, 1),
    ],
)
def test_a_tail_in_which_several_were_lost_counts_them(
    tmp_path: Path, listed: int | None, mark: int, lost: int
) -> None:
    storage = build_directory(tmp_path / "d", {0: 40}, per_segment=10, size=20, local_low_water_mark=mark)
    segment, index = storage / "0" / segment_name(30), storage / "0" / index_name(30)
    whole = segment.read_bytes()
    segment.write_bytes(whole[: 128 + 7 * 60] + bytes(3 * 60))
    if listed is None:
        index.unlink()
    else:
        cut(index, 128 + 8 * listed)
    rest = [("acknowledged-missing", 38, 2)] if lost == 1 and mark == 39 else []
    expected = [("torn-tail", 37, lost), *rest]
    found = [
        (one.code.value, one.transaction_id, one.missing) for one in verified(storage) if one.code != "index-missing"
    ]
    assert found == expected
    dumped = [one for one in dump_records(storage) if isinstance(one, Finding)]
    assert [(one.code.value, one.transaction_id, one.missing) for one in dumped] == expected
    assert [
        (row["finding"], row["transaction_id"], row["missing"]) for row in read(storage) if row["finding"]
    ] == expected
