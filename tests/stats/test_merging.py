"""Aggregates: however records are cut into parts, and in whatever order parts are merged, the result is the same and right."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.engine.stats import counting
from waltzctl.engine.stats.aggregate import Aggregate, Collector, TableBounds, merge, nothing
from waltzctl.engine.stats.axes import Clock, Interval, Scale
from waltzctl.engine.stats.counting import Counting
from waltzctl.engine.stats.report import clients_of, gaps_of, repeated_in
from waltzctl.formats.segment import HEADER_SIZE, RECORD_OVERHEAD

HOUR = 3_600_000
properties = settings(max_examples=30)


@dataclass(frozen=True)
class Row:
    client: int
    generation: int
    header: int
    length: int


@dataclass(frozen=True)
class Segment:
    """Runs of rows, each with the id of its first one; the bytes between runs are damaged."""

    place: int
    runs: tuple[tuple[int, tuple[Row, ...]], ...]
    interval: Interval | None

    def batches(self) -> list[RecordBatch]:
        offset, batches = HEADER_SIZE, []
        for first, rows in self.runs:
            batches.append(batch_of(rows, first, offset))
            offset = batches[-1].end + 77
        return batches

    @property
    def size(self) -> int:
        return self.batches()[-1].end + 5 if self.runs else HEADER_SIZE


def batch_of(rows: tuple[Row, ...], first: int, offset: int) -> RecordBatch:
    count = len(rows)
    lengths = [row.length for row in rows]
    words = [(row.client << 32) | (row.generation & 0xFFFFFFFF) for row in rows]
    offsets = list(accumulate((RECORD_OVERHEAD + length for length in lengths), initial=offset))[:-1]
    return RecordBatch(
        np.array(offsets, np.int64), np.arange(first, first + count, dtype=np.int64), np.array(words, np.int64),
        np.zeros(count, np.int64), np.array([row.header for row in rows], np.int32), np.array(lengths, np.int32),
        np.zeros(count, np.uint32), np.zeros(count, np.uint32), np.ones(count, np.bool_),
    )  # fmt: skip


def part_of(batch: RecordBatch, begin: int, end: int) -> RecordBatch:
    names = [name for name in RecordBatch.__slots__ if name not in ("data", "data_base")]
    return replace(batch, **{name: getattr(batch, name)[begin:end] for name in names})


INT32 = st.integers(-(2**31), 2**31 - 1)
CLIENTS = st.one_of(st.integers(-3, 9), st.integers(200_000, 200_003), INT32)
LENGTHS = st.one_of(st.integers(0, 70), st.sampled_from([127, 128, 4095, 4096, 70_000, 2**31 - 1]))
ROWS = st.builds(Row, CLIENTS, st.one_of(st.integers(0, 3), INT32), st.one_of(st.integers(0, 2), INT32), LENGTHS)
INTERVALS = st.none() | st.builds(
    lambda start, length: Interval(start, start + length),
    st.integers(1, 40 * HOUR) | st.integers(1, 2**42),
    st.sampled_from([0, 1, 999, HOUR, 100 * HOUR]) | st.integers(0, 400 * HOUR),
)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    number, runs = draw(st.integers(0, 5) | st.integers(0, 2**62)), []
    for rows in draw(st.lists(st.lists(ROWS, min_size=1, max_size=12), max_size=3)):
        number += draw(st.sampled_from([0, 0, 1, 5, 1000]))
        runs.append((number, tuple(rows)))
        number += len(rows)
    return Segment(draw(st.integers(0, 2)), tuple(runs), draw(INTERVALS))


SCALES = st.builds(Scale, st.sampled_from([None, None, 1, 1000, HOUR]))


def counted(
    segment: Segment,
    batches: list[RecordBatch],
    scale: Scale,
    bounds: TableBounds = TableBounds(),  # noqa: B008
) -> Aggregate:
    one = Counting(segment.place, scale, Clock(segment.interval), segment.size, bounds)
    for batch in batches:
        one.add(batch)
    return one.aggregate()


def whole(chosen: list[Segment], scale: Scale, bounds: TableBounds = TableBounds()) -> Aggregate:  # noqa: B008  # frozen
    return merge([nothing(scale, bounds), *(counted(one, one.batches(), scale, bounds) for one in chosen)])


@st.composite
def cut(draw: st.DrawFn, chosen: list[Segment], scale: Scale, bounds: TableBounds = TableBounds()) -> list[Aggregate]:  # noqa: B008
    """Every segment in parts, the batches of each part cut somewhere as well."""
    parts = []
    for segment in chosen:
        pieces: list[list[RecordBatch]] = [[]]
        for batch in segment.batches():
            begin = 0
            for end in sorted({*draw(st.lists(st.integers(1, len(batch)), max_size=3)), len(batch)}):
                pieces[-1].append(part_of(batch, begin, end))
                begin = end
                if draw(st.booleans()):
                    pieces.append([])
        parts += [counted(segment, piece, scale, bounds) for piece in pieces]
    return draw(st.permutations(parts))


def merged_somehow(
    data: st.DataObject,
    parts: list[Aggregate],
    scale: Scale,
    bounds: TableBounds = TableBounds(),  # noqa: B008
) -> Aggregate:
    """Pairs, triples and more, in any tree."""
    left = [nothing(scale, bounds), *parts]
    while len(left) > 1:
        many = data.draw(st.integers(2, len(left)))
        place = data.draw(st.integers(0, len(left) - many))
        left[place : place + many] = [merge(left[place : place + many])]
    return left[0]


@pytest.mark.turns(10)
@properties
@given(st.lists(segments(), max_size=4), SCALES, st.data())
def test_any_cut_and_any_order_give_the_same(chosen: list[Segment], scale: Scale, data: st.DataObject) -> None:
    parts = data.draw(cut(chosen, scale))
    assert merged_somehow(data, parts, scale) == whole(chosen, scale)
    collector = Collector(scale)
    for part in parts:
        collector.add(part)
    assert collector.result() == whole(chosen, scale)


def oracle(chosen: list[Segment], scale: Scale) -> dict[str, Counter[tuple[int, ...]]]:
    """The same sums, record by record in Python."""
    sums: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    extent = None
    for segment in chosen:
        if segment.interval is not None:
            extent = segment.interval.joined(extent)
    width = scale.width(extent)
    for segment in chosen:
        for batch, (_, rows) in zip(segment.batches(), segment.runs, strict=True):
            for offset, row in zip(batch.offset.tolist(), rows, strict=True):
                size = row.length + RECORD_OVERHEAD
                kind = row.length.bit_length()
                keys = {
                    "classes": (segment.place, kind),
                    "clients": (segment.place, row.client),
                    "headers": (row.header,),
                }
                if segment.interval is not None:
                    start, end = segment.interval.start, segment.interval.end
                    at = start + (offset - HEADER_SIZE) * (end - start) // max(segment.size - HEADER_SIZE, 1)
                    keys |= {"time_places": (at // width, segment.place), "time_classes": (at // width, kind),
                             "time_clients": (at // width, row.client)}  # fmt: skip
                for name, key in keys.items():
                    sums[name][(*key, 0)] += 1
                    sums[name][(*key, 1)] += size
    return sums


@pytest.mark.turns(10)
@properties
@given(st.lists(segments(), max_size=4), SCALES)
def test_every_record_is_counted_where_it_belongs(chosen: list[Segment], scale: Scale) -> None:
    total, expected = whole(chosen, scale), oracle(chosen, scale)
    tables = {
        "classes": total.classes, "clients": total.clients.table, "headers": total.headers.table,
        "time_places": total.time_places, "time_classes": total.time_classes, "time_clients": total.time_clients.table,
    }  # fmt: skip
    for name, table in tables.items():
        found = {
            (*key, number): value
            for key, values in zip(table.keys.T.tolist(), table.values[:2].T.tolist(), strict=True)
            for number, value in enumerate(values)
        }
        assert found == dict(expected[name]), name


@pytest.mark.turns(10)
@properties
@given(st.lists(segments(), max_size=4), st.data())
def test_ids_runs_generations_and_gaps_are_exact(chosen: list[Segment], data: st.DataObject) -> None:
    scale = Scale()
    total = merged_somehow(data, data.draw(cut(chosen, scale)), scale)
    ids: dict[int, list[int]] = defaultdict(list)
    generations: dict[tuple[int, int], list[int]] = defaultdict(list)
    for segment in chosen:
        for first, rows in segment.runs:
            ids[segment.place] += range(first, first + len(rows))
            for row in rows:
                generations[segment.place, row.client].append(row.generation)
    for place in range(3):
        own = set(ids[place])
        seen = [number for first, last in total.runs.of(place) for number in range(first, last + 1)]
        assert seen == sorted(own)
        assert repeated_in(total, place, len(ids[place])) == len(ids[place]) - len(own)
        gaps = gaps_of(total, place, (), whole=False)
        assert sum(gap.transactions for gap in gaps) == (max(own) - min(own) + 1 - len(own) if own else 0)
    in_buckets: Counter[int] = Counter()
    for (place, _), (records, _) in zip(total.ids.keys.T.tolist(), total.ids.values.T.tolist(), strict=True):
        in_buckets[place] += records
    assert in_buckets == Counter({place: len(own) for place, own in ids.items() if own})
    table = total.clients.table
    found = {
        tuple(key): tuple(row[2:]) for key, row in zip(table.keys.T.tolist(), table.values.T.tolist(), strict=True)
    }
    assert found == {key: (min(all_of), max(all_of)) for key, all_of in generations.items()}


@pytest.mark.turns(8)
@properties
@given(st.lists(segments(), max_size=5), st.integers(1, 6), st.data())
def test_beyond_the_bound_what_is_missed_is_bounded_and_said(
    chosen: list[Segment], limit: int, data: st.DataObject
) -> None:
    scale, bounds = Scale(), TableBounds(clients=limit, headers=limit)
    total = merged_somehow(data, data.draw(cut(chosen, scale, bounds)), scale, bounds)
    for ranked, of in ((total.clients, lambda row: row.client), (total.headers, lambda row: row.header)):
        true: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for segment in chosen:
            for _, rows in segment.runs:
                for row in rows:
                    true[of(row)][0] += 1
                    true[of(row)][1] += row.length + RECORD_OVERHEAD
        kept: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        table = ranked.table
        assert len(table) <= limit
        for key, (records, size) in zip(table.keys[ranked.owner].tolist(), table.values[:2].T.tolist(), strict=True):
            kept[key][0] += records
            kept[key][1] += size
        for key, (records, size) in true.items():
            assert 0 <= records - kept[key][0] <= ranked.missed_records
            assert 0 <= size - kept[key][1] <= ranked.missed_bytes
        if ranked.exact:
            assert dict(kept) == dict(true)


def test_the_largest_clients_survive_any_number_of_small_ones() -> None:
    rows = tuple(Row(7, 1, 0, 0) if number % 3 == 0 else Row(100 + number, 1, 0, 0) for number in range(3000))
    segment = Segment(0, ((0, rows),), None)
    (batch,) = segment.batches()
    scale, bounds = Scale(), TableBounds(clients=50, headers=50)
    parts = [counted(segment, [part_of(batch, at, at + 100)], scale, bounds) for at in range(0, 3000, 100)]
    total = merge(parts)
    (first, *_), ranking = clients_of(total, {0: 0}, 10)
    assert (first.client, first.records) == (7, 1000)
    assert not ranking.exact
    assert 0 < ranking.missed_records <= 60


def test_clients_far_apart_and_close_together_are_counted_alike() -> None:
    near = tuple(Row(number % 50, number % 7 - 3, 0, number % 90) for number in range(600))
    far = tuple(replace(row, client=row.client * counting.WINDOW) for row in near)
    sums = []
    for rows, step in ((near, 1), (far, counting.WINDOW)):
        segment = Segment(0, ((0, rows),), None)
        table = counted(segment, segment.batches(), Scale()).clients.table
        sums.append(
            {key // step: tuple(row) for key, row in zip(table.keys[1].tolist(), table.values.T.tolist(), strict=True)}
        )
    assert sums[0] == sums[1]


def test_rows_that_are_kept_for_later_are_grouped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(Row(number * 300_000 % 2**31, 1, number * 7919, 3) for number in range(900))
    segment = Segment(0, ((0, rows),), Interval(HOUR, 9 * HOUR))
    expected = counted(segment, segment.batches(), Scale())
    (batch,) = segment.batches()
    monkeypatch.setattr(counting, "_PENDING", 64)
    pieces = [part_of(batch, at, at + 50) for at in range(0, 900, 50)]
    assert counted(segment, pieces, Scale()) == expected
