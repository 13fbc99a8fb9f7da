"""How a replica stands to what is kept, one transaction to each side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.compare.clusters import (
    COUNT,
    compared,
    cuts,
    extend,
    flip,
    keep_up_to,
    make_cluster,
    marks,
    rewrite,
    segments,
    states,
)
from waltzctl.engine.compare import ranges
from waltzctl.engine.compare.comparison import ReplicaStanding
from waltzctl.engine.quorum.vote import ABSENT, DAMAGED, Ballot, Run, Verdict, decide
from waltzctl.formats.control import decode_control
from waltzctl.formats.segment import HEADER_SIZE, RECORD_OVERHEAD

LAST = COUNT - 1


@pytest.mark.parametrize(
    ("last", "state", "cut"),
    [
        (LAST - 1, ReplicaStanding.BEHIND, None),
        (LAST, ReplicaStanding.EQUAL, None),
        (LAST + 1, ReplicaStanding.AHEAD, LAST),
        (LAST + 2, ReplicaStanding.AHEAD, LAST),
    ],
)
def test_a_replica_is_behind_or_ahead_from_one_transaction_on(
    tmp_path: Path, last: int, state: ReplicaStanding, cut: int | None
) -> None:
    nodes = make_cluster(tmp_path)
    if last > LAST:
        extend(nodes[0], last - LAST)
    elif last < LAST:
        keep_up_to(nodes[0], last)
    answer = compared(*nodes)[0]
    assert (answer.clean_to, answer.replicas[0].state, answer.replicas[0].cut_after) == (LAST, state, cut)
    assert answer.replicas[0].last_transaction_id == last


@pytest.mark.parametrize(("number", "replaced", "cut"), [(LAST - 1, True, None), (LAST, False, LAST - 1)])
def test_a_replica_is_cut_in_front_of_a_fork_and_not_where_it_goes_on_like_the_others(
    tmp_path: Path, number: int, replaced: bool, cut: int | None
) -> None:
    nodes = make_cluster(tmp_path)
    rewrite(nodes[0], number)
    own = compared(*nodes)[0].replicas[0]
    assert (own.state, own.outvoted, own.cut_after) == (ReplicaStanding.DIVERGED, ((number, number + 1),), cut)
    assert [(one.first, one.stop) for one in own.sources] == ([(number, number + 1)] if replaced else [])


@pytest.mark.parametrize(("mark", "clean_to"), [(LAST, LAST), (LAST + 1, LAST + 1), (LAST + 2, LAST + 2)])
def test_what_one_replica_alone_holds_is_kept_up_to_the_mark(tmp_path: Path, mark: int, clean_to: int) -> None:
    """It holds three transactions more than the others; the low-water mark says what was acknowledged."""
    nodes = make_cluster(tmp_path)
    extend(nodes[0], 3)
    marks(nodes[0], mark=mark)
    assert compared(*nodes)[0].clean_to == clean_to


@pytest.mark.parametrize(("last", "said"), [(-1, "there is no transaction to keep"), (0, "0 is the highest")])
def test_the_reason_tells_the_first_transaction_from_none(last: int, said: str) -> None:
    runs = [Run(0, 1, (0, 0))] if last == 0 else []
    assert said in decide(runs, [Ballot(), Ballot()], 2).reason


@pytest.mark.parametrize(
    ("versions", "differs"),
    [((0, 0), False), ((0, 1), True), ((0, ABSENT), False), ((0, DAMAGED), False), ((ABSENT, DAMAGED), False)],
)
def test_only_intact_records_differ(versions: tuple[int, ...], differs: bool) -> None:
    assert Run(0, 1, versions).differs is differs


@pytest.mark.parametrize("open_end", [False, True])
def test_who_is_gone_counts_once_among_those_of_whom_nothing_is_known(open_end: bool) -> None:
    ballots = [*[Ballot()] * 4, Ballot(present=False, open_end=open_end)]
    runs = [Run(0, 6, (0, 0, 0, 0, ABSENT)), Run(6, 8, (0, ABSENT, ABSENT, ABSENT, ABSENT))]
    assert decide(runs, ballots, 5).clean_to == 5


def test_a_lost_record_does_not_keep_what_is_ahead_from_being_cut(tmp_path: Path) -> None:
    nodes = make_cluster(tmp_path)
    for node in nodes:
        flip(node, 70)
    extend(nodes[0], 5)
    answer = compared(*nodes)
    assert (answer[0].verdict, cuts(answer[0])) == (Verdict.LOST, [LAST, None, None])
    assert answer.summary.exit_status_name == "damaged", "whatever else was found"


@pytest.mark.parametrize(("valid", "code"), [(True, "control-pair-tie"), (False, "control-pair-checksum")])
def test_a_pair_of_which_none_is_in_force_is_named_as_verify_does(tmp_path: Path, valid: bool, code: str) -> None:
    nodes = make_cluster(tmp_path)
    path = nodes[0] / "waltz-storage.ctl"
    control = decode_control(path.read_bytes())
    one, other = control.partitions[0].structs
    pair = (
        replace(one, low_water_mark=60, local_low_water_mark=59, sequence=7).sealed(),
        replace(other, low_water_mark=59, local_low_water_mark=60, sequence=7).sealed(),
    )
    data = replace(control, partitions=(replace(control.partitions[0], structs=pair), *control.partitions[1:])).encode()
    for struct in () if valid else pair:
        raw = struct.encode()
        data = data.replace(raw, raw[:-1] + bytes([raw[-1] ^ 1]))
    path.write_bytes(data)
    answer = compared(*nodes)
    assert answer.codes() == {code}
    assert answer[0].replicas[0].session_id is None


@pytest.mark.parametrize(("kept", "state"), [(999, "damaged"), (1000, "equal")])
def test_an_index_proves_as_much_where_no_mark_is_known(tmp_path: Path, kept: int, state: str) -> None:
    paths = [build_directory(tmp_path / name, {0: 1001}, per_segment=2000, size=0) for name in "ab"]
    (paths[0] / "waltz-storage.ctl").unlink()
    segment = segments(paths[0])[0]
    segment.write_bytes(segment.read_bytes()[: HEADER_SIZE + RECORD_OVERHEAD * kept])
    assert states(compared(*paths)[0])[0] == state


def test_a_torn_tail_in_front_of_a_range_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        build_directory(tmp_path / name, {0: 600}, per_segment=1000, local_low_water_mark=-1, size=100) for name in "ab"
    ]
    file = segments(nodes[0])[0]
    file.write_bytes(file.read_bytes()[: HEADER_SIZE + 20 * (RECORD_OVERHEAD + 100) + 50])
    seen = []
    for size in (1 << 30, 10_000):
        monkeypatch.setattr(ranges, "RANGE", size)
        answer = compared(*nodes)
        seen.append([(one.code.value, one.transaction_id) for one in answer.findings])
    assert seen == [[("torn-tail", 20)]] * 2


def test_what_a_sealed_segment_lost_behind_a_torn_record_is_damaged_in_every_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        build_directory(tmp_path / name, {0: 620}, per_segment=600, local_low_water_mark=-1, size=100) for name in "ab"
    ]
    file = segments(nodes[0])[0]
    file.write_bytes(file.read_bytes()[: HEADER_SIZE + 20 * (RECORD_OVERHEAD + 100) + 50])
    for size in (1 << 30, 10_000):
        monkeypatch.setattr(ranges, "RANGE", size)
        own = compared(*nodes)[0].replicas[0]
        assert (own.state, own.damaged) == (ReplicaStanding.DAMAGED, ((20, 600),))


def test_a_range_begins_with_the_last_transaction_of_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other replica's segments end one transaction later, or earlier, than those by which the ranges are cut."""
    monkeypatch.setattr(ranges, "RANGE", 1)
    paths = [
        build_directory(tmp_path / f"n{size}", {0: 120}, per_segment=size, local_low_water_mark=-1)
        for size in (39, 40, 41)
    ]
    for nodes in (paths, paths[::-1]):
        answer = compared(*nodes)
        assert (answer[0].verdict, answer[0].clean_to, answer.summary.records) == (Verdict.EQUAL, 119, 360)
