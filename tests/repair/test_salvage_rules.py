"""The rules of salvage on values: whose a run is, which copy is written, what fragments make a record; bounds from both sides."""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import make_records, segment_header
from tests.repair.salvage_cases import data_file
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.log.cluster_keys import join_keys
from waltzctl.engine.repair import salvage as salvage_module
from waltzctl.engine.repair import salvage_attribution, salvage_fragments, salvage_selection
from waltzctl.engine.repair.salvage import _choose_cluster, _Probes, _why_nothing_wanted, _with_fragments
from waltzctl.engine.repair.salvage_attribution import (
    FAR,
    Attributed,
    AttributionReason,
    Chain,
    Doubt,
    Question,
    attribute,
    find_chains,
    request_ids_agree,
)
from waltzctl.engine.repair.salvage_fragments import BLOCK, as_run, join, join_fragments
from waltzctl.engine.repair.salvage_headers import FoundHeader, HeaderKind
from waltzctl.engine.repair.salvage_runs import SalvageRun, find_headers, find_runs
from waltzctl.engine.repair.salvage_selection import RecordPiece, select
from waltzctl.engine.scan.byte_source import ByteSource, BytesSource, read_bytes
from waltzctl.formats.control import MAX_PARTITIONS
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, SegmentHeader, encode_records

KEY, OTHER = UUID(int=0x1234 << 64), UUID(int=0xFFFF << 32)


def run(first: int, count: int, start: int, *, source: int = 0, size: int = 50, says: int | None = None) -> SalvageRun:
    """A run of `count` records of `size` bytes each."""
    return SalvageRun(source, start, start + count * size, first, np.full(count, size, np.uint32), says)


def header(
    number: int, first: int, offset: int, *, source: int = 0, key: UUID = KEY, kind: str = "segment"
) -> FoundHeader:
    return FoundHeader(source, offset, HeaderKind(kind), key, number, first)


@dataclasses.dataclass
class Told:
    """What damaged records claim and where they close, by offset and id."""

    claims: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)
    closing: set[tuple[int, int, int]] = dataclasses.field(default_factory=set)

    def claim(self, source: int, offset: int, transaction_id: int) -> int | None:
        return self.claims.get((offset, transaction_id))

    def closes(self, source: int, offset: int, transaction_id: int, end: int) -> bool:
        return (offset, transaction_id, end) in self.closing


def chains_of(
    headers: Sequence[FoundHeader],
    runs: Sequence[SalvageRun],
    *,
    size: int = 10**7,
    trusted: bool = True,
    told: Told | None = None,
) -> tuple[list[tuple[int | None, list[int]]], list[int]]:
    """Each chain with its header's partition and the first ids of its runs, and those of doubtful runs."""
    chains, doubts = find_chains(headers, runs, [size] * 3, trusted, told or Told())
    found = [(chain.header.number if chain.header else None, [one.first for one in chain.runs]) for chain in chains]
    return found, [doubt.run.first for doubt in doubts]


# --- whose ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "room", "joined"),
    [
        (0, 0, True),
        (0, 40, True),
        (1, 0, True),
        (1, 39, False),
        (1, 40, True),
        (2, 79, False),
        (2, 80, True),
        (-1, 40, False),
    ],
)
def test_a_run_stands_behind_another_where_there_was_room_for_what_is_missing(
    lost: int, room: int, *, joined: bool
) -> None:
    """No room at all is a file from which bytes were cut."""
    first, second = run(5, 3, 128), run(8 + lost, 3, 128 + 150 + room)
    found, doubts = chains_of([header(2, 5, 0)], [first, second])
    assert found == ([(2, [5, 8 + lost])] if joined else [(2, [5]), (None, [8 + lost])])
    assert doubts == []


@pytest.mark.parametrize(("lost", "room", "joined"), [(0, 0, True), (1, 39, False), (1, 40, True), (-1, 40, False)])
def test_a_run_stands_behind_its_header_where_there_was_room(lost: int, room: int, *, joined: bool) -> None:
    found, _ = chains_of([header(2, 5, 0)], [run(5 + lost, 3, 128 + room)])
    assert found == [(2 if joined else None, [5 + lost])]


@pytest.mark.parametrize(
    ("room", "says", "trusted", "joined"),
    [
        (FAR, None, True, True),
        (FAR + 1, None, True, False),
        (FAR + 1, 2, True, True),
        (FAR + 1, 2, False, False),
        (FAR, 3, True, False),
        (FAR, 3, False, True),
    ],
)
def test_behind_a_far_gap_the_request_ids_must_speak_for_a_run(
    room: int, says: int | None, trusted: bool, *, joined: bool
) -> None:
    first, second = run(5, 3, 128, says=2), run(8, 3, 128 + 150 + room, says=says)
    found, _ = chains_of([header(2, 5, 0)], [first, second], trusted=trusted)
    assert found == ([(2, [5, 8])] if joined else [(2, [5]), (None, [8])])


@pytest.mark.parametrize(("says", "joined"), [(2, True), (None, False), (3, False)])
def test_runs_without_a_header_are_joined_over_a_far_gap_by_their_request_ids(
    says: int | None, *, joined: bool
) -> None:
    found, _ = chains_of([], [run(5, 3, 128, says=2), run(8, 3, 300 + FAR, says=says)])
    assert found == ([(None, [5, 8])] if joined else [(None, [5]), (None, [8])])
    near, _ = chains_of([], [run(5, 3, 128, says=2), run(8, 3, 300, says=says)])
    assert near == ([(None, [5]), (None, [8])] if says == 3 else [(None, [5, 8])])


def test_the_chain_with_the_most_records_is_taken_first() -> None:
    runs = [run(0, 2, 128), run(2, 5, 300), run(2, 3, 600), run(5, 3, 800), run(8, 1, 1000)]
    assert chains_of([header(1, 0, 0)], runs)[0] == [(1, [0, 2, 5, 8]), (None, [2])]
    runs = [run(0, 2, 128), run(2, 7, 300), run(2, 3, 700), run(5, 3, 900)]
    assert chains_of([header(1, 0, 0)], runs)[0] == [(1, [0, 2]), (None, [2, 5])]
    assert [len(one.runs) for one in find_chains([header(1, 0, 0)], runs, [10**4], True, Told())[0]] == [2, 2]
    assert [one.runs[1].start for one in find_chains([header(1, 0, 0)], runs, [10**4], True, Told())[0]] == [300, 900]


def test_single_records_are_joined_as_well() -> None:
    runs = [run(number, 1, 128 + 60 * number) for number in range(4)]
    assert chains_of([], runs)[0] == [(None, [0, 1, 2, 3])]
    assert chains_of([header(1, 0, 0)], runs)[0] == [(1, [0, 1, 2, 3])]
    rivals = [run(0, 2, 128), run(0, 1, 300), run(1, 2, 400), run(2, 3, 600)]
    assert chains_of([header(1, 0, 0)], rivals)[0][0] == (1, [0, 2])
    assert sum(len(one[1]) for one in chains_of([header(1, 0, 0)], rivals)[0]) == 4


def test_a_run_is_joined_to_the_heaviest_chain_that_it_fits() -> None:
    """Also where one that it does not fit is heavier than all, and a light one stands between the two."""
    runs = [run(100, 20, 128), run(4, 10, 2000), run(5, 1, 3000), run(14, 20, 4000)]
    for headers in ([], [header(1, 0, 0)]):
        assert chains_of(headers, runs)[0][0] == (1 if headers else None, [4, 14])


@pytest.mark.parametrize(("heavy", "start"), [(10, 1000), (4, 1000), (3, 5000), (2, 5000)])
def test_of_two_chains_that_a_run_fits_it_is_joined_to_the_heavier_or_else_the_nearer(heavy: int, start: int) -> None:
    """Both end with 39, the nearer one has three records; others, which the run does not fit, stand in front and between."""
    runs = [run(100, 1, 128), run(40 - heavy, heavy, 1000), run(200, 1, 3000), run(37, 3, 5000), run(40, 90, 7000)]
    (chain, *_), _ = find_chains([], runs, [10**5], True, Told())
    assert [one.start for one in chain.runs] == [start, 7000]
    ahead = [run(300, 80, 128), *runs[1:]]
    found, _ = find_chains([], ahead, [10**5], True, Told())
    assert [one.start for one in found[0].runs] == [start, 7000]


def test_what_follows_a_run_that_does_not_fit_the_header_does_not_fit_it_either() -> None:
    assert chains_of([header(1, 5, 0)], [run(1, 2, 128), run(3, 2, 300)])[0] == [(None, [1, 3])]


@pytest.mark.parametrize("window", [1, 2, 3])
def test_runs_are_looked_back_over_in_a_window(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage_attribution, "LINK_WINDOW", window)
    runs = [run(0, 9, 128), run(500, 1, 600), run(400, 1, 700), run(9, 9, 800)]
    found = chains_of([header(1, 0, 0)], runs)[0]
    assert ((1, [0, 9]) in found) == (window >= 3)


def test_headers_speak_for_the_runs_behind_them_in_their_source() -> None:
    headers = [header(1, 0, 0), header(2, 7, 1000), header(3, 0, 0, source=1), header(9, 0, 2000, kind="control")]
    runs = [run(0, 2, 128), run(7, 2, 1128), run(9, 1, 2200), run(0, 3, 128, source=1), run(3, 4, 0, source=2)]
    assert chains_of(headers, runs)[0] == [(1, [0]), (2, [7]), (None, [9]), (3, [0]), (None, [3])]
    chains, _ = find_chains(headers, runs, [10**4] * 3, True, Told())
    assert [chain.records for chain in chains] == [2, 2, 1, 3, 4]


def test_what_the_request_ids_of_a_chain_name() -> None:
    assert Chain(None, [run(0, 1, 0, says=2), run(1, 1, 50, says=2)]).request_partition == 2
    assert Chain(None, [run(0, 1, 0, says=2), run(1, 1, 50, says=3)]).request_partition is None
    assert Chain(None, [run(0, 1, 0), run(1, 1, 50, says=3)]).request_partition is None
    assert Chain(None, [run(0, 3, 0), run(3, 2, 150)]).records == 5


# --- inside a damaged record --------------------------------------------------------------------------------------------------

_END = 128 + 3 * 50
"""Where the first run ends, and a damaged record with the id 8 stands."""


@pytest.mark.parametrize(
    ("claims", "closing", "size", "inside"),
    [
        ({}, set(), 2000, False),
        ({(_END, 8): 900}, set(), 2000, True),  # to where another run begins
        ({(_END, 8): 899}, set(), 2000, False),
        ({(_END, 8): 899, (899, 9): 1}, set(), 2000, True),  # to where the next record stands, damaged as well
        ({(_END, 8): 899, (899, 8): 1}, set(), 2000, False),
        ({(_END, 8): 500}, set(), 2000, False),  # to the run itself: it stands behind the damage
        ({(_END, 8): 400, (400, 9): 900}, set(), 2000, True),
        ({(_END, 8): 400, (400, 8): 900}, set(), 2000, False),
        ({(_END, 8): 499, (499, 9): 900}, set(), 2000, True),
        ({(_END, 8): 501, (501, 9): 900}, set(), 2000, True),
        ({(_END, 8): 900}, {(_END, 8, 500)}, 2000, False),  # its checksums prove that it ends in front of the run
        ({}, {(_END, 8, 900)}, 2000, True),
        ({}, {(_END, 8, 2000)}, 2000, True),
        ({}, {(_END, 8, 901)}, 2000, False),
        ({}, {(_END, 9, 900)}, 2000, False),
        ({(_END, 8): 2000}, set(), 2000, True),
        ({(_END, 8): 2001}, set(), 2000, True),  # a lone file that is torn
        ({(_END, 8): 2001, (950, 20): 1, (950, 22): 1}, set(), 2000, True),
        ({(_END, 8): 2001, (950, 21): 5000}, set(), 2000, False),  # its end goes on with its ids
        ({(_END, 8): 951}, set(), 950, False),  # its last record is whole
    ],
)
def test_when_a_run_lies_inside_a_damaged_record(
    claims: dict[tuple[int, int], int], closing: set[tuple[int, int, int]], size: int, *, inside: bool
) -> None:
    runs = [run(5, 3, 128), run(9, 1, 500), run(20, 1, 900)]
    found, doubts = chains_of([header(2, 5, 0)], runs, size=size, told=Told(claims, closing))
    assert (9 in doubts) == inside
    assert (9 in found[0][1]) != inside


def test_a_run_lies_inside_a_record_behind_the_nearest_run_of_its_file() -> None:
    runs = [run(5, 3, 128), run(9, 1, 400), run(12, 1, 600), run(20, 1, 900)]
    claims = {(450, 10): 900}
    assert chains_of([header(2, 5, 0)], runs, size=2000, told=Told(claims))[1] == [12]
    for other in ({(_END, 8): 900}, {(_END, 10): 900}, {(450, 8): 900}):
        assert chains_of([header(2, 5, 0)], runs, size=2000, told=Told(other))[1] == (
            [9, 12] if (_END, 8) in other else []
        )


@pytest.mark.parametrize("start", [450, 451])
def test_a_run_right_behind_a_run_of_the_file_lies_in_no_damaged_record(start: int) -> None:
    """Though one in front of both claims to reach further: its checksums prove that it ends in front of the first."""
    runs = [run(5, 3, 128), run(9, 1, 400), run(7, 1, start), run(20, 1, 900)]
    told = Told({(_END, 8): 900}, {(_END, 8, 400)})
    found, doubts = chains_of([header(2, 5, 0)], runs, size=2000, told=told)
    assert (found[0], doubts) == ((2, [5, 9, 20]), [])


def test_in_an_image_a_length_that_leads_out_of_the_stretch_is_not_believed() -> None:
    runs = [run(5, 3, 128), run(9, 2, 500)]
    told = Told({(_END, 8): 5000})
    assert chains_of([header(2, 5, 0)], runs, size=2000, told=told)[1] == [9]
    assert chains_of([header(2, 5, 0), header(3, 0, 0, source=1)], runs, size=2000, told=told)[1] == [9]
    assert chains_of([header(2, 5, 0), header(3, 0, 1500)], runs, size=2000, told=told)[1] == []
    moved = [run(5, 3, 129), run(9, 2, 501)]
    assert chains_of([header(2, 5, 1)], moved, size=2000, told=Told({(_END + 1, 8): 5000}))[1] == []


@pytest.mark.parametrize(
    ("places", "far", "inside"), [(2, FAR, True), (1, FAR, False), (2, 600, False), (2, 622, True)]
)
def test_a_few_places_are_tried_as_the_end_of_a_damaged_record(
    places: int, far: int, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(salvage_attribution, "PLACES", places)
    monkeypatch.setattr(salvage_attribution, "FAR", far)
    runs = [run(5, 3, 128), run(9, 4, 500), run(30, 1, 800), run(20, 2, 900)]
    told = Told({}, {(_END, 8, 900)})
    assert (9 in chains_of([header(2, 5, 0)], runs, told=told)[1]) == inside


def test_a_run_right_behind_the_header_that_lies_in_the_first_record() -> None:
    told = Told({(128, 5): 700})
    found, doubts = chains_of([header(2, 5, 0)], [run(5, 3, 200), run(6, 2, 700)], told=told)
    assert (found, doubts) == ([(2, [6])], [5])


# --- keys and partitions ------------------------------------------------------------------------------------------------------


def flipped(key: UUID, bits: int) -> UUID:
    return UUID(int=key.int ^ ((1 << bits) - 1))


@pytest.mark.parametrize(("bits", "same"), [(1, True), (4, True), (5, False)])
def test_keys_that_differ_in_a_few_bits_are_the_one_found_most_often(bits: int, *, same: bool) -> None:
    bent = flipped(KEY, bits)
    assert join_keys([bent, KEY, KEY]) == {KEY: KEY, bent: KEY if same else bent}
    assert join_keys([bent, bent, KEY]) == {bent: bent, KEY: bent if same else KEY}
    assert join_keys([bent, bent, KEY], KEY) == {KEY: KEY, bent: KEY if same else bent}
    assert join_keys([bent], KEY) == {KEY: KEY, bent: KEY if same else bent}
    assert join_keys([]) == {}
    assert join_keys([], OTHER) == {OTHER: OTHER}
    assert join_keys([KEY, OTHER]) == {KEY: KEY, OTHER: OTHER}


@pytest.mark.parametrize(
    ("agreeing", "others", "several", "heard"),
    [(99, 1, False, True), (98, 1, False, False), (90, 10, True, True), (89, 10, True, False), (0, 5, False, False)],
)
def test_request_ids_are_heard_where_they_agree_with_the_headers(
    agreeing: int, others: int, several: bool, *, heard: bool
) -> None:
    """Of one partition nearly always; of several somewhat less, as they cannot agree by accident."""
    headers = [header(1, 0, 0), header(2, 0, 50_000), header(1, 0, 100_000)]
    runs = [run(0, others, 100_128, says=7)]
    if several:
        runs += [run(0, agreeing // 2, 128, says=1), run(0, agreeing - agreeing // 2, 50_128, says=2)]
    elif agreeing:
        runs.append(run(0, agreeing, 128, says=1))
    assert request_ids_agree(headers, runs) is heard
    elsewhere = [run(9, 10**4, 300_000, says=99), run(0, 500, 128, source=1, says=9)]
    assert request_ids_agree(headers, [*runs, *elsewhere]) is heard


def test_nothing_is_heard_where_no_run_stands_right_behind_a_header() -> None:
    assert request_ids_agree([header(1, 0, 0)], [run(0, 3, 129, says=1), run(0, 3, 127, says=1)]) is None
    assert request_ids_agree([], [run(0, 3, 128, says=1)]) is None
    assert request_ids_agree([header(1, 0, 0)], [run(0, 3, 128, says=1)]) is True


def whose(
    chains: Sequence[Chain],
    *,
    key: UUID | None = None,
    partition: int | None = None,
    trusted: bool | None = None,
    keys: Sequence[UUID] = (KEY,),
) -> tuple[list[tuple[int, UUID | None, int, str, int]], list[tuple[int, str]]]:
    question = Question(dict(zip(keys, keys, strict=True)), key, partition, trusted)
    settled, doubts = attribute(chains, question)
    found = [(one.run.first, one.cluster_key, one.partition, one.witness.value, one.support) for one in settled]
    return found, [(doubt.run.first, doubt.reason.split()[-1]) for doubt in doubts]


LEADING = Chain(header(4, 0, 0), [run(0, 3, 128, says=4), run(5, 2, 500, says=4)])


@pytest.mark.parametrize(
    ("chain", "options", "found"),
    [
        # right behind the last id of one partition
        (Chain(None, [run(7, 2, 0)]), {}, (KEY, 4, "continuation")),
        (Chain(None, [run(8, 2, 0)]), {}, None),
        (Chain(None, [run(6, 2, 0)]), {}, None),
        (Chain(None, [run(3, 2, 0)]), {}, (KEY, 4, "continuation")),
        # what the request ids say, where they are heard
        (Chain(None, [run(70, 2, 0, says=6)]), {"trusted": True}, (KEY, 6, "request-id")),
        (Chain(None, [run(70, 2, 0, says=6)]), {"trusted": False}, None),
        (Chain(None, [run(70, 2, 0, says=6)]), {"trusted": None}, (KEY, 6, "request-id")),
        (Chain(None, [run(70, 2, 0, says=0)]), {"trusted": True}, (KEY, 0, "request-id")),
        (Chain(None, [run(70, 2, 0, says=-1)]), {"trusted": True}, None),
        (Chain(None, [run(7, 2, 0, says=6)]), {"trusted": True}, (KEY, 6, "request-id")),
        (Chain(None, [run(7, 2, 0, says=6)]), {"trusted": False}, (KEY, 4, "continuation")),
        (Chain(None, [run(7, 2, 0, says=-1)]), {"trusted": True}, None),
        (Chain(None, [run(70, 2, 0, says=6)]), {"trusted": None, "partition": 6}, (KEY, 6, "request-id")),
        (Chain(None, [run(70, 2, 0, says=6)]), {"trusted": None, "partition": 8}, (KEY, 8, "caller")),
        # what the caller says
        (Chain(None, [run(70, 2, 0)]), {"partition": 9}, (KEY, 9, "caller")),
        (Chain(None, [run(70, 2, 0, says=6)]), {"trusted": True, "partition": 9}, (KEY, 6, "request-id")),
        (Chain(None, [run(70, 2, 0, says=-1)]), {"trusted": True, "partition": 9}, None),
        (Chain(None, [run(70, 2, 0)]), {"partition": 9, "key": KEY}, (KEY, 9, "caller")),
        (Chain(None, [run(70, 2, 0)]), {"partition": 9, "key": OTHER}, None),
        (Chain(None, [run(70, 2, 0, says=6)]), {"trusted": True, "key": OTHER}, None),
        (Chain(None, [run(7, 2, 0)]), {"key": OTHER}, None),  # by a continuation alone nothing is another cluster's
        (Chain(None, [run(7, 2, 0)]), {"key": KEY}, (KEY, 4, "continuation")),
    ],
)
def test_whose_a_chain_without_a_header_is(
    chain: Chain, options: dict[str, object], found: tuple[UUID, int, str] | None
) -> None:
    settled, doubts = whose([LEADING, chain], **options)  # type: ignore[arg-type]
    assert settled[:2] == [(0, KEY, 4, "header", 5), (5, KEY, 4, "header", 5)]
    first = chain.runs[0].first
    if found is None:
        untold = "cluster" if options.get("key") is OTHER else "partition"
        assert (settled[2:], doubts) == ([], [(first, untold)])
    else:
        assert (settled[2:], doubts) == ([(first, *found, 2)], [])


def test_of_two_clusters_only_a_continuation_tells() -> None:
    other = Chain(header(4, 0, 0, source=1, key=OTHER), [run(0, 9, 128, source=1, says=4)])
    chains = [LEADING, other, Chain(None, [run(9, 1, 0)]), Chain(None, [run(40, 1, 0, says=4)])]
    settled, doubts = whose(chains, trusted=True, partition=4, keys=(KEY, OTHER))
    assert settled[3:] == [(9, OTHER, 4, "continuation", 1)]
    assert [first for first, _ in doubts] == [40]
    both = Chain(header(4, 0, 0, source=1, key=OTHER), [run(0, 7, 128, source=1)])
    assert whose([LEADING, both, Chain(None, [run(7, 1, 0)])], keys=(KEY, OTHER))[1] == [(7, "cluster")]


def test_what_nothing_speaks_for_is_told_in_order_and_keeps_nothing_from_the_others() -> None:
    chains = [
        Chain(None, [run(80, 1, 900, says=6)]),
        Chain(None, [run(50, 2, 500)]),
        Chain(None, [run(30, 2, 0), run(70, 1, 300)]),
        Chain(None, [run(40, 2, 400, says=6)]),
    ]
    settled, doubts = whose([LEADING, *chains], trusted=True)
    assert [(one[0], one[2], one[3]) for one in settled[2:]] == [(40, 6, "request-id"), (80, 6, "request-id")]
    assert [first for first, _ in doubts] == [30, 70, 50]


def test_continuations_follow_one_another_and_two_that_could_do_tell_nothing() -> None:
    settled, _ = whose([LEADING, Chain(None, [run(9, 2, 0)]), Chain(None, [run(7, 2, 500)])])
    assert [(one[0], one[3]) for one in settled[2:]] == [(7, "continuation"), (9, "continuation")]
    parts = Chain(None, [run(7, 2, 500), run(12, 3, 800)])
    settled, doubts = whose([LEADING, Chain(None, [run(15, 1, 0)]), parts, Chain(None, [run(9, 1, 3000)])])
    assert [(one[0], one[3]) for one in settled[2:]] == [
        (7, "continuation"),
        (12, "continuation"),
        (15, "continuation"),
    ]
    assert doubts == [(9, "partition")]
    second = Chain(header(5, 0, 0, source=1), [run(0, 7, 128, source=1, says=5)])
    assert whose([LEADING, second, Chain(None, [run(7, 2, 500)])])[1] == [(7, "partition")]
    third = Chain(header(9, 0, 0, source=2, key=OTHER), [run(0, 1, 128, source=2, says=9)])
    behind = [Chain(None, [run(7, 2, 500, says=5)]), Chain(None, [run(9, 1, 900, says=5)])]
    for key in (None, KEY):
        told = whose([LEADING, second, third, *behind], trusted=True, keys=(KEY, OTHER), key=key)[0]
        assert told[-2:] == [(7, KEY, 5, "continuation", 2), (9, KEY, 5, "continuation", 1)]
    doubts = whose([LEADING, second, third, *behind], trusted=True, keys=(KEY, OTHER), key=OTHER)[1]
    assert doubts == [(7, "cluster"), (9, "cluster")]


@pytest.mark.parametrize(
    ("counts", "chosen"),
    [
        ({KEY: 5}, KEY),
        ({KEY: 0}, KEY),
        ({KEY: 0, OTHER: 1}, OTHER),
        ({KEY: 1, OTHER: 0}, KEY),
        ({}, "no header that tells their cluster"),
        ({KEY: 0, OTHER: 0}, f"several clusters were found: {KEY} (0 records), {OTHER} (0 records)"),
        ({KEY: 2, OTHER: 7}, f"several clusters were found: {OTHER} (7 records), {KEY} (2 records)"),
    ],
)
def test_which_cluster_is_salvaged(counts: dict[UUID, int], chosen: UUID | str) -> None:
    assert _choose_cluster(KEY, counts) == KEY
    assert _choose_cluster(UUID(int=1), counts) == UUID(int=1)
    if isinstance(chosen, UUID):
        assert _choose_cluster(None, counts) == chosen
        return
    with pytest.raises(InvalidRequestError) as refused:
        _choose_cluster(None, counts)
    assert chosen in str(refused.value)


def test_what_was_found_where_nothing_was_that_was_asked_for() -> None:
    runs = [run(0, 2, 0), run(5, 3, 500), run(9, 4, 900)]
    mine = [Attributed(one, KEY, at, AttributionReason.HEADER, 1) for one, at in zip(runs, (8, 1, 8), strict=True)]
    counts = {KEY: 9, OTHER: 2, UUID(int=1): 0}
    doubts = [Doubt(run(50, 3, 5000), "why"), Doubt(run(60, 4, 6000), "why")]
    assert _why_nothing_wanted(KEY, 3, counts, mine, doubts) == (
        f"no record of cluster {KEY}, partition 3 was found; records found: 2 of cluster {OTHER}, 3 of partition 1,"
        " 6 of partition 8, 7 of which nothing tells whose they are (--partition says so)"
    )
    assert (
        _why_nothing_wanted(KEY, None, {KEY: 0}, [], []) == f"no record of cluster {KEY} was found; records found: none"
    )


def test_without_any_header_the_key_is_whatever_the_caller_names() -> None:
    chain = Chain(None, [run(0, 3, 0, says=2)])
    assert whose([chain], keys=())[0] == [(0, None, 2, "request-id", 3)]
    assert whose([chain], keys=(), key=KEY)[0] == [(0, KEY, 2, "request-id", 3)]
    assert whose([chain], keys=(KEY,))[0] == [(0, KEY, 2, "request-id", 3)]
    assert whose([chain], keys=(KEY, OTHER))[1] == [(0, "cluster")]
    assert whose([chain], keys=(KEY, OTHER), key=KEY)[1] == [(0, "cluster")]


# --- which copy -------------------------------------------------------------------------------------------------------------


def copies(
    *parts: tuple[int, list[bytes]], support: Sequence[int] = (), witness: Sequence[AttributionReason] = ()
) -> tuple[list[Attributed], list[BytesSource]]:
    """Runs of records with these data, from these ids on, each in a source of its own behind four bytes."""
    runs, sources = [], []
    for number, (first, contents) in enumerate(parts):
        records = [Record.make(first + at, RequestId(1, 2, 3, 4), 0, data) for at, data in enumerate(contents)]
        body, offsets = encode_records(records)
        ends = [*offsets[1:], len(body)]
        sizes = np.array([b - a for a, b in zip(offsets, ends, strict=True)], np.uint32)
        made = SalvageRun(number, 4, 4 + len(body), first, sizes, 3)
        held = support[number] if support else 10
        runs.append(Attributed(made, KEY, 3, witness[number] if witness else AttributionReason.HEADER, held))
        sources.append(BytesSource(b"----" + body))
    return runs, sources


def chosen(runs: Sequence[Attributed], sources: Sequence[BytesSource]) -> tuple[object, ...]:
    paths = [Path(f"{number}") for number in range(len(sources))]
    found = select(3, runs, sources, paths)
    pieces = [(piece.run.source, piece.first, piece.last) for piece in found.pieces]
    conflicts = [
        (one.transaction_id, [int(str(place.path)) for place in (one.kept, *one.others)], one.reason)
        for one in found.conflicts
    ]
    return pieces, found.duplicates, found.superseded, conflicts


SOURCE = "its source was named first"


def test_intervals_of_ids_are_taken_from_the_run_that_holds_them() -> None:
    a, b, c = [b"a"] * 4, [b"a"] * 5, [b"a"] * 2
    assert chosen(*copies((0, a))) == ([(0, 0, 3)], 0, 0, [])
    assert chosen(*copies((0, a), (4, b))) == ([(0, 0, 3), (1, 4, 8)], 0, 0, [])
    assert chosen(*copies((0, a), (6, c))) == ([(0, 0, 3), (1, 6, 7)], 0, 0, [])
    assert chosen(*copies((0, a), (2, b))) == ([(0, 0, 3), (1, 4, 6)], 2, 0, [])
    assert chosen(*copies((1, c), (0, b))) == ([(1, 0, 0), (0, 1, 2), (1, 3, 4)], 2, 0, [])
    assert chosen(*copies((1, c), (0, b), support=(1, 2))) == ([(1, 0, 4)], 2, 0, [])
    assert chosen(*copies((0, a), (0, a), (0, a))) == ([(0, 0, 3)], 8, 0, [])


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 100])
@pytest.mark.parametrize("block", [1, 7, 41, 1000])
def test_only_differing_records_are_named(chunk: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage_selection, "CHUNK", chunk)
    monkeypatch.setattr(salvage_selection, "BLOCK", block)
    good = [b"one", b"two", b"three", b"four", b"fifth"]
    for place in range(5):
        for content in (b"other", b"x" * len(good[place])):
            bad = [*good]
            bad[place] = content
            found = chosen(*copies((0, good), (0, bad)))
            assert found == ([(0, 0, 4)], 4, 1, [(place, [0, 1], SOURCE)])
            shifted = chosen(*copies((0, good), (2, bad[2:])))
            assert shifted == ([(0, 0, 4)], 3 - (place >= 2), int(place >= 2), [(place, [0, 1], SOURCE)] * (place >= 2))
    exchanged = [good[0], good[2], good[1], *good[3:]]
    assert chosen(*copies((0, good), (0, exchanged)))[1:3] == (3, 2)


@pytest.mark.parametrize("support", [(11, 10), (10, 11)])
def test_what_stands_behind_a_record_is_not_compared_in_its_place(support: tuple[int, int]) -> None:
    """Behind each of two differing records stands a copy of the other one."""
    (a, b), sources = copies((7, [b"one"]), (7, [b"two"]), support=support)
    bodies = [bytes(read_bytes(one, 4, 43)) for one in sources]
    behind = [BytesSource(b"----" + bodies[0] + bodies[1]), BytesSource(b"----" + bodies[1] + bodies[0])]
    assert chosen([a, b], behind)[1:3] == (0, 1)


@pytest.mark.parametrize(
    ("support", "witness", "damaged", "kept", "reason"),
    [
        ((10, 11), (AttributionReason.HEADER, AttributionReason.CALLER), (), 1, "more records stand together with it"),
        (
            (10, 10),
            (AttributionReason.CALLER, AttributionReason.CONTINUATION),
            (),
            1,
            "its partition is better attested",
        ),
        ((10, 10), (AttributionReason.REQUEST_ID, AttributionReason.HEADER), (), 1, "its partition is better attested"),
        (
            (10, 10),
            (AttributionReason.CONTINUATION, AttributionReason.REQUEST_ID),
            (),
            1,
            "its partition is better attested",
        ),
        ((10, 10), (AttributionReason.HEADER, AttributionReason.HEADER), (), 0, SOURCE),
        (
            (99, 10),
            (AttributionReason.HEADER, AttributionReason.CALLER),
            (0,),
            1,
            "its data agrees with the data checksum",
        ),
        (
            (10, 99),
            (AttributionReason.HEADER, AttributionReason.CALLER),
            (0, 1),
            1,
            "more records stand together with it",
        ),
    ],
)
def test_which_of_two_differing_records_is_kept(
    support: tuple[int, int],
    witness: tuple[AttributionReason, AttributionReason],
    damaged: tuple[int, ...],
    kept: int,
    reason: str,
) -> None:
    runs, sources = copies((0, [b"a", b"b", b"c"]), (0, [b"a", b"x", b"c"]), support=support, witness=witness)
    runs = [
        dataclasses.replace(one, run=dataclasses.replace(one.run, data_damaged=(1,) if at in damaged else ()))
        for at, one in enumerate(runs)
    ]
    pieces, duplicates, superseded, conflicts = chosen(runs, sources)
    assert (duplicates, superseded) == (2, 1)
    assert conflicts == [(1, [kept, 1 - kept], reason)]
    assert [source for source, first, last in pieces if first <= 1 <= last] == [kept]  # type: ignore[attr-defined]


def test_of_two_in_one_source_the_later_one_and_where_they_stand() -> None:
    one, other = (Record.make(0, RequestId(1, 2, 3, 4), 0, data).encode() for data in (b"one", b"other"))
    image = b"--" + one + b"-" + other
    first = SalvageRun(0, 2, 2 + len(one), 0, np.array([len(one)], np.uint32), 3)
    second = SalvageRun(0, 3 + len(one), len(image), 0, np.array([len(other)], np.uint32), 3)
    runs = [Attributed(made, KEY, 3, AttributionReason.HEADER, 1) for made in (first, second)]
    found = select(3, runs, [BytesSource(image)], [Path("x")])
    (conflict,) = found.conflicts
    assert conflict.reason == "it stands later in its source"
    assert (conflict.kept.offset, conflict.kept.size) == (3 + len(one), len(other))
    assert [(place.offset, place.size) for place in conflict.others] == [(2, len(one))]
    assert chosen([runs[0], dataclasses.replace(runs[0])], [BytesSource(image)])[1:3] == (1, 0)


# --- fragments --------------------------------------------------------------------------------------------------------------


def split_image(record: bytes, lead: int, at: int, gap: int, *, swapped: bool) -> tuple[bytes, int, int]:
    """An image with a record whose first `at` bytes end a block and whose rest begins one; where it begins and its rest ends."""
    front = b"\xaa" * lead + record[:at]
    assert len(front) % BLOCK == 0
    rest = record[at:]
    back = rest + b"\xbb" * (-len(rest) % BLOCK)
    if swapped:
        return back + b"\xcc" * gap + front, len(back) + gap + lead, len(rest)
    return front + b"\xcc" * gap + back, lead, len(front) + gap + len(rest)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("size", [0, 1, 500, 511, 512, 513, 1500])
@pytest.mark.parametrize("at", [1, 28, 31, 32, 35, 36, 37, 39, 40, 400, 511, 512, 513, 1024])
def test_a_record_is_put_together_wherever_it_is_split(size: int, at: int, *, swapped: bool) -> None:
    record = Record.make(7, RequestId(1, 2, 3, 4), 0, bytes(n % 251 for n in range(size))).encode()
    if at >= len(record):
        return
    for gap in (BLOCK, 3 * BLOCK):
        image, end, start = split_image(record, -at % BLOCK, at, gap, swapped=swapped)
        assert join(BytesSource(image), 7, end, start) == record
        assert join(BytesSource(image), 8, end, start) is None
        broken = bytearray(image)
        broken[end] ^= 1
        assert join(BytesSource(bytes(broken)), 7, end, start) is None
        broken = bytearray(image)
        broken[start - 1] ^= 1
        assert join(BytesSource(bytes(broken)), 7, end, start) is None


def test_what_is_not_split_at_blocks_or_not_at_all_is_not_put_together() -> None:
    record = Record.make(7, RequestId(1, 2, 3, 4), 0, bytes(1000)).encode()
    whole = b"\xaa" * 12 + record + bytes(5000)
    assert join(BytesSource(whole), 7, 12, 12 + len(record)) is None
    image, end, start = split_image(record, 12, 500, BLOCK, swapped=False)
    assert join(BytesSource(image), 7, end, start) == record
    assert join(BytesSource(b"-" + image), 7, end + 1, start + 1) is None
    odd = image[:512] + b"\xcc" * (BLOCK + 1) + image[1024:]
    assert join(BytesSource(odd), 7, end, start + 1) is None
    assert join(BytesSource(image[:20]), 7, 12, 20) is None
    assert join(BytesSource(image), 7, len(image) - 10, start) is None


@pytest.mark.parametrize("at", [30, 600])
@pytest.mark.parametrize(("more", "found"), [(0, True), (-1, False)])
def test_only_records_up_to_a_size_are_put_together(
    at: int, more: int, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record.make(7, RequestId(1, 2, 3, 4), 0, bytes(n % 7 for n in range(1300))).encode()
    monkeypatch.setattr(salvage_fragments, "LARGEST", len(record) + more)
    image, end, start = split_image(record, -at % BLOCK, at, BLOCK, swapped=False)
    assert (join(BytesSource(image), 7, end, start) == record) == found


@pytest.mark.parametrize("length", [-1, -41, 2**31 - 1, 1299, 1301])
def test_a_length_that_is_not_the_records_own_joins_nothing(length: int) -> None:
    record = bytearray(Record.make(7, RequestId(1, 2, 3, 4), 0, bytes(1300)).encode())
    record[28:32] = struct.pack(">i", length)
    for at in (30, 600):
        image, end, start = split_image(bytes(record), -at % BLOCK, at, BLOCK, swapped=False)
        assert join(BytesSource(image), 7, end, start) is None


def pieces_around(missing: int = 1) -> tuple[list[RecordPiece], list[BytesSource], bytes, list[Record]]:
    """Three pieces of one image; between two of them a record is split, behind the second nothing is missing."""
    records = make_records(6, first=5, size=700)
    front = encode_records(records[:2])[0]
    record = records[2].encode()
    at = -len(front) % BLOCK
    rest = record[at:] + encode_records(records[3:])[0]
    image = front + record[:at] + b"\xcc" * BLOCK + rest
    sizes = [np.array([one.size for one in part], np.uint32) for part in (records[:2], records[3:])]
    start = len(front) + at + BLOCK + len(record) - at
    first = SalvageRun(0, 0, len(front), 5, sizes[0], 3)
    second = SalvageRun(0, start, start + sum(one.size for one in records[3:]), 7 + missing, sizes[1], 3)
    return (
        [RecordPiece(first, 5, 6), RecordPiece(second, 7 + missing, 9 + missing)],
        [BytesSource(image)],
        record,
        records,
    )


def test_a_record_that_is_missing_alone_is_put_between_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, sources, record, _ = pieces_around()
    assert [(place, one.encode()) for place, one in join_fragments(pieces, sources)] == [(1, record)]
    broken = bytearray(read_bytes(sources[0], 0, sources[0].size()))
    broken[int(pieces[1].run.start) - 1] ^= 1
    assert list(join_fragments(pieces, [BytesSource(bytes(broken))])) == []
    for missing in (0, 2):
        assert list(join_fragments(pieces_around(missing)[0], sources)) == []
    elsewhere = [pieces[0], RecordPiece(dataclasses.replace(pieces[1].run, source=1), 8, 10)]
    assert list(join_fragments(elsewhere, [*sources, *sources])) == []
    monkeypatch.setattr(salvage_fragments, "MOST", len(record))
    twice = [*pieces, *pieces]
    assert [place for place, _ in join_fragments(twice, sources)] == [1]
    monkeypatch.setattr(salvage_fragments, "MOST", 2 * len(record))
    assert [place for place, _ in join_fragments(twice, sources)] == [1, 3]
    monkeypatch.setattr(salvage_fragments, "MOST", len(record) - 1)
    assert list(join_fragments(pieces, sources)) == []


def test_records_that_were_put_together_stand_in_front_of_the_pieces_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces = [RecordPiece(run(first, 2, 100 * first), first, first + 1) for first in (0, 3, 6, 10)]
    joined = [(place, Record.make(number, RequestId(1, 2, 3, 4), 0, b"x")) for place, number in ((1, 2), (2, 5))]
    monkeypatch.setattr(salvage_module, "join_fragments", lambda *_: iter(joined))
    sources: list[ByteSource] = [BytesSource(b"image")]
    found = _with_fragments(pieces, sources)
    assert [(one.first, one.last) for one in found] == [(0, 1), (2, 2), (3, 4), (5, 5), (6, 7), (10, 11)]
    assert [bytes(read_bytes(sources[found[at].run.source], 0, 99)) for at in (1, 3)] == [
        record.encode() for _, record in joined
    ]


def test_a_record_alone_is_a_run() -> None:
    record = Record.make(7, RequestId(1, 2, 3, 4), 0, b"abc")
    made = as_run(record, 5)
    assert (made.source, made.start, made.end, made.first, made.last) == (5, 0, 43, 7, 7)
    assert (made.sizes.tolist(), made.request_partition, made.data_damaged) == ([43], 3, ())
    assert made.offsets().tolist() == [0, 43]
    assert as_run(dataclasses.replace(record, data_checksum=0), 5).data_damaged == (7,)


# --- runs and headers -------------------------------------------------------------------------------------------------------


def test_runs_are_as_long_as_ids_and_bytes_go_on() -> None:
    parts = [(0, 2), (2, 3), (9, 1)]
    image = b"".join(encode_records(make_records(count, first=first, size=9))[0] for first, count in parts)
    found = list(find_runs(BytesSource(image), 4))
    assert [(one.source, one.start, one.end, one.first, one.last, len(one)) for one in found] == [
        (4, 0, 245, 0, 4, 5),
        (4, 245, 294, 9, 9, 1),
    ]
    gap = image[:98] + b"-" + image[98:]
    assert [one.start for one in find_runs(BytesSource(gap), 0)] == [0, 99, 246]


@pytest.mark.parametrize("count", [4095, 4096, 4097, 8193])
def test_a_run_goes_on_from_batch_to_batch(count: int) -> None:
    records = [Record.make(n, RequestId(1, 2, 3, n), 0, b"") for n in range(count)]
    (found,) = find_runs(BytesSource(encode_records(records)[0]), 0)
    assert (found.first, found.last, found.end, found.request_partition) == (0, count - 1, 40 * count, 3)
    records[-1] = Record.make(count - 1, RequestId(1, 2, 4, 1), 0, b"")
    (found,) = find_runs(BytesSource(encode_records(records)[0]), 0)
    assert found.request_partition is None


def test_offsets_beyond_four_gibibytes() -> None:
    made = SalvageRun(0, 2**33, 2**33 + 3 * (2**31), 0, np.full(3, 2**31, np.uint32), None)
    assert made.offsets().tolist() == [2**33, 2**33 + 2**31, 2**33 + 2**32, 2**33 + 3 * 2**31]


def headers_in(image: bytes) -> list[tuple[int, str, int, int]]:
    source = BytesSource(image)
    found = find_headers(source, 0, list(find_runs(source, 0)))
    return [(one.offset, one.kind.value, one.number, one.first) for one in found]


TIME = 1_700_000_000_000


def raw_header(**changed: object) -> bytes:
    fields: dict[str, object] = {"partition": 3, "first_transaction_id": 5, "created": TIME}
    made = dataclasses.replace(segment_header(3, 5), **fields | changed)  # type: ignore[arg-type]
    return made.encode()


RECORDS = encode_records(make_records(2, first=5))[0]


@pytest.mark.parametrize(
    ("changed", "believed"),
    [
        ({}, True),
        ({"partition": 0}, True),
        ({"partition": MAX_PARTITIONS - 1}, True),
        ({"partition": MAX_PARTITIONS - 1, "version": 1}, True),
        ({"partition": MAX_PARTITIONS, "version": 1}, False),
        ({"partition": 0, "version": 1}, True),
        ({"partition": -1, "version": 1}, False),
        ({"partition": -1}, False),
        ({"cluster_key": UUID(int=0)}, False),
        ({"cluster_key": UUID(int=1)}, True),
        ({"version": 1}, True),
        ({"created": 999_999_999_999}, True),
        ({"first_transaction_id": 6}, True),
        ({"version": 1, "created": 999_999_999_999}, False),
        ({"version": 1, "created": 1_000_000_000_000}, True),
        ({"version": 1, "created": 4_999_999_999_999}, True),
        ({"version": 1, "created": 5_000_000_000_000}, False),
        ({"version": 1, "first_transaction_id": 6}, False),
        ({"created": 0, "first_transaction_id": 6}, False),
    ],
)
def test_the_header_in_front_of_a_run_may_have_one_damaged_field(changed: dict[str, object], *, believed: bool) -> None:
    raw = raw_header(**changed)
    found = headers_in(b"-" * 9 + raw + RECORDS)
    assert [one[:2] for one in found] == ([(9, "segment")] if believed else [])
    dirty = bytearray(raw)
    dirty[100] = 1
    assert bool(headers_in(bytes(dirty) + RECORDS)) == (believed and not set(changed) - {"partition", "cluster_key"})


def test_a_header_in_front_of_a_run_does_not_reach_into_what_is_in_front() -> None:
    raw = raw_header()
    assert headers_in(raw + RECORDS) == [(0, "segment", 3, 5)]
    assert headers_in(raw[1:] + RECORDS) == []
    before = encode_records([Record.make(9, RequestId(1, 2, 3, 4), 0, b"")])[0]
    assert headers_in(before + raw + RECORDS) == [(40, "segment", 3, 5)]
    assert headers_in(before + raw[1:] + RECORDS) == []


HEAD_ONLY = RECORDS[:36]


@pytest.mark.parametrize(
    ("behind", "kind"),
    [
        (b"", "alone"),
        (HEAD_ONLY, "segment"),
        (HEAD_ONLY[:35], "alone"),
        (HEAD_ONLY[:28] + b"\xff\xff\xff\xff" + HEAD_ONLY[32:], "alone"),
        (HEAD_ONLY[:28] + bytes(4) + HEAD_ONLY[32:], "segment"),
        (struct.pack(">q", 6) + HEAD_ONLY[8:], "alone"),
        (struct.pack(">q", HEADER_SIZE), "index"),
        (struct.pack(">q", HEADER_SIZE)[:7], "alone"),
        (struct.pack(">q", HEADER_SIZE + 1), "alone"),
        (struct.pack(">q", HEADER_SIZE) + b"\7" * 60, "index"),
    ],
)
def test_what_a_header_stands_in_front_of(behind: bytes, kind: str) -> None:
    assert headers_in(b"\7" * 11 + raw_header() + behind) == [(11, kind, 3, 5)]


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"partition": MAX_PARTITIONS}, True),
        ({"partition": MAX_PARTITIONS + 1}, False),
        ({"partition": -1}, False),
        ({"first_transaction_id": 0}, True),
        ({"first_transaction_id": -1}, False),
        ({"cluster_key": UUID(int=0)}, False),
        ({"version": 1}, False),
        ({"created": 999_999_999_999}, False),
        ({"created": 1_000_000_000_000}, True),
        ({"created": 4_999_999_999_999}, True),
        ({"created": 5_000_000_000_000}, False),
    ],
)
def test_a_header_that_stands_alone_must_be_right(changed: dict[str, object], *, found: bool) -> None:
    assert bool(headers_in(b"\7" * 11 + raw_header(**changed) + b"\7" * 50)) == found


@pytest.mark.parametrize("window", [200, 300])
def test_headers_are_found_at_every_place_of_a_window(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltzctl.engine.repair.salvage_runs.WINDOW", window)
    raw = raw_header()
    for lead in range(window - 135, window + 10):
        for behind in (b"", bytes(40)):
            assert [one[0] for one in headers_in(b"\7" * lead + raw + behind)] == [lead], lead
    three = raw + raw_header(first_transaction_id=256) + bytes(30) + raw_header(first_transaction_id=0)
    assert [one[0] for one in headers_in(three)] == [0, 128, 286]
    assert headers_in(raw[:127]) == []


def test_a_header_that_begins_with_the_last_byte_of_another_one_is_a_part_of_it() -> None:
    """That byte is 0, and so are the first ones of a header."""
    first, second = raw_header(), raw_header(first_transaction_id=9)
    assert [place for place, *_ in headers_in(first + second)] == [0, 128]
    assert [place for place, *_ in headers_in(first[:-1] + second)] == [0]


@settings(max_examples=20)
@given(st.lists(st.tuples(st.sampled_from(["header", "zeros", "junk", "records"]), st.integers(0, 300)), max_size=7))
def test_headers_between_anything_are_found_once_each(parts: list[tuple[str, int]]) -> None:
    image, wanted = b"\7", []
    for number, (what, size) in enumerate(parts):
        if what == "header":
            wanted.append(len(image))
            image += raw_header(first_transaction_id=1000 + number) + b"\7"
        elif what == "records":
            image += encode_records(make_records(2, first=number * 50))[0] + b"\7"
        else:
            image += (b"\7" * size if what == "junk" else bytes(size)) + b"\7"
    assert [one[0] for one in headers_in(image)] == wanted


def test_every_pair_of_kinds_has_a_rank() -> None:
    ranks = [salvage_attribution.RANK[one] for one in AttributionReason]
    assert all(a > b for a, b in itertools.pairwise(ranks))
    assert SegmentHeader.decode(raw_header()).partition == 3


@pytest.mark.parametrize(
    ("length", "number", "claim"),
    [(0, 7, 42), (1, 7, 43), (2**31 - 1, 7, 42 + 2**31 - 1), (-1, 7, None), (0, 8, None)],
)
def test_where_a_damaged_record_claims_to_end(length: int, number: int, claim: int | None) -> None:
    raw = b"--" + struct.pack(">q16siiI", 7, b"\1" * 16, 0, length, 5)
    probes = _Probes([BytesSource(b"other"), BytesSource(raw)])  # type: ignore[list-item]
    assert probes.claim(1, 2, number) == claim
    assert probes.claim(1, 3, number) is None
    record = Record.make(7, RequestId(1, 2, 3, 4), 0, b"abc").encode()
    closing = _Probes([BytesSource(b"--" + record)])  # type: ignore[list-item]
    assert closing.closes(0, 2, 7, 2 + len(record))
    assert not closing.closes(0, 2, 7, 1 + len(record))


# --- many ---------------------------------------------------------------------------------------------------------------------


def test_the_work_grows_with_the_damaged_places_and_not_with_their_square() -> None:
    """Each run lies one damaged record behind the run in front of it, far from the header; how often a claim is looked at."""
    count = 300
    runs = [run(2 * n, 1, HEADER_SIZE + n * 100, says=2) for n in range(count)]
    looks = [0]

    class Counted(Told):
        def claim(self, source: int, offset: int, transaction_id: int) -> int | None:
            looks[0] += 1
            return super().claim(source, offset, transaction_id)

    told = Counted({(HEADER_SIZE + n * 50, n): HEADER_SIZE + n * 50 + 50 for n in range(2 * count)})
    found, doubts = chains_of([header(2, 0, 0)], runs, told=told)
    assert (found, doubts) == ([(2, [one.first for one in runs])], [])
    assert looks[0] <= 3 * count


def test_how_many_records_stand_together_is_counted_once_and_not_for_each_run() -> None:
    count, looks = 300, [0]

    class Weighed(Chain):
        @property
        def records(self) -> int:
            looks[0] += 1
            return super().records

    runs = [run(2 * n, 1, HEADER_SIZE + n * 100, says=2) for n in range(count)]
    question = Question({KEY: KEY}, None, None, trusted=True)
    settled, _ = attribute([Weighed(header(2, 0, 0), runs)], question)
    assert [one.support for one in settled] == [count] * count
    assert looks[0] == 1


def test_the_runs_of_many_partitions_are_gone_over_once_and_not_once_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = [0]

    class Counted(list[Attributed]):
        def __iter__(self) -> Iterator[Attributed]:
            passes[0] += 1
            return super().__iter__()

    plain = salvage_module._attribute

    def counted(*arguments: Any) -> Any:
        outcome = plain(*arguments)
        return dataclasses.replace(outcome, wanted=Counted(outcome.wanted))

    monkeypatch.setattr(salvage_module, "_attribute", counted)
    image = tmp_path / "image"
    image.write_bytes(b"".join(data_file(make_records(2, partition=n, size=9), partition=n) for n in range(40)))
    report = salvage_module.salvage([image], to=tmp_path / "out")
    assert [(one.partition, one.records) for one in report.partitions] == [(n, 2) for n in range(40)]
    assert passes[0] < 10
