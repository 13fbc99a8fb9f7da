"""Which directories are compared, in which words others are refused, and what is known of each member."""

from __future__ import annotations

import os
import shutil
import uuid
from itertools import permutations
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, write_segment
from tests.compare.clusters import marks
from tests.inspect.test_codes import break_struct
from waltzctl.engine.compare.directories import Directories, belongs, open_directories
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.errors import InvalidRequestError, MismatchError, NotWaltzError, WaltzError
from waltzctl.engine.quorum.vote import Ballot
from waltzctl.engine.storage.loss_ledger import ledger_path
from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger
from waltzctl.formats.segment import segment_name

OTHER = uuid.UUID(int=7)


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    return [build_directory(tmp_path / name, {0: 30, 1: 5}, local_low_water_mark=20) for name in "ab"]


def opened(*paths: Path) -> Directories:
    return open_directories(paths, None)


def test_what_cannot_be_compared_is_refused_and_says_why(pair: list[Path], tmp_path: Path) -> None:
    a, b = pair
    other = build_directory(tmp_path / "other", {0: 3, 1: 3}, key=OTHER)
    more = build_directory(tmp_path / "more", {0: 3}, num_partitions=3)
    refused: list[tuple[type[WaltzError], list[Path], str]] = [
        (InvalidRequestError, [a], "one replica alone cannot be compared"),
        (InvalidRequestError, [a, b, a / ".." / "a"], f"{a}/../a: the same directory as {a}; a replica is compared"),
        (NotWaltzError, [a, b / "0"], f"{b}/0: a partition directory, not a storage directory"),
        (MismatchError, [a, b, other], f"{other}: the cluster key is {OTHER}, that of {a} is {KEY}"),
        (MismatchError, [more, a], f"{a}: 2 partitions, {more} has 3"),
    ]
    for kind, paths, why in refused:
        with pytest.raises(kind) as caught:
            opened(*paths)
        assert why in str(caught.value)
    with pytest.raises(InvalidRequestError):
        open_directories(pair, [2])


def test_one_directory_under_two_names_is_refused_whichever_comes_first(pair: list[Path], tmp_path: Path) -> None:
    """Otherwise a replica would be a quorum with itself."""
    a, b = pair
    (tmp_path / "link").symlink_to(a)
    (tmp_path / "further").symlink_to(tmp_path / "link")
    names = [a, tmp_path / "link", tmp_path / "further", a / ".." / "a"]
    for first, second in permutations(names, 2):
        with pytest.raises(
            InvalidRequestError, match=f"^{second}: the same directory as {first}; a replica is compared"
        ):
            opened(first, b, second)
    assert [view.path for view in opened(tmp_path / "link", b).views] == [tmp_path / "link", b]


def test_control_files_that_are_gone_say_nothing_until_all_are(pair: list[Path]) -> None:
    (pair[0] / "waltz-storage.ctl").unlink()
    found = opened(*pair)
    assert (found.cluster_key, found.num_partitions, found.held) == (KEY, 2, (False, False))
    assert [(one.code.value, Path(one.path).parent) for one in found.findings([0, 1])] == [
        ("control-file-missing", pair[0])
    ]
    for number in (1, 0):
        break_struct(pair[1], number, 1, 2)
    told = [one.partition for one in opened(*pair).findings([1, 0]) if one.partition is not None]
    assert told == sorted(told)
    assert set(told) == {0, 1}
    os.truncate(pair[1] / "waltz-storage.ctl", 7)
    with pytest.raises(NotWaltzError, match=f"{pair[0]} and the others: no usable control file"):
        opened(*pair)


def test_a_control_file_that_is_too_short_is_told_with_its_size(pair: list[Path]) -> None:
    os.truncate(pair[1] / "waltz-storage.ctl", 7)
    (one,) = opened(*pair).findings([0])
    assert (one.code.value, "7 bytes" in one.message) == ("control-file-size", True)


@pytest.mark.parametrize("which", [0, 1])
def test_a_control_file_that_was_cut_hides_no_partition(pair: list[Path], which: int) -> None:
    """Nor does one with bytes behind its end add any."""
    control = pair[which] / "waltz-storage.ctl"
    data = control.read_bytes()
    for size in (len(data) - 76, 128, len(data) + 76):
        control.write_bytes(data.ljust(size, b"\xff")[:size])
        for wanted in (None, [1]):
            found = open_directories(pair, wanted)
            assert found.num_partitions == 2
            assert len(found.members(1)) == 2
            assert [(one.code.value, one.path) for one in found.findings([0, 1])] == [("control-file-size", control)]
        with pytest.raises(InvalidRequestError, match="partitions 0 to 1"):
            open_directories(pair, [2])


def test_a_directory_in_use_is_known(pair: list[Path]) -> None:
    with DirectoryLock.acquire(pair[1], pair[1] / "waltz-storage.ctl"):
        found = opened(*pair)
        assert found.held == (False, True)
        assert [one.replica.held for one in found.members(0) if one.replica is not None] == [False, True]


def test_partitions_that_were_asked_for_are_looked_at_where_they_are(tmp_path: Path) -> None:
    one = build_directory(tmp_path / "one", {0: 3}, num_partitions=2)
    both = build_directory(tmp_path / "both", {0: 3, 1: 3})
    found = open_directories([one, both], [1])
    assert [sorted(view.partitions) for view in found.views] == [[], [1]]
    (member,) = [one for one in found.members(1) if one.replica is not None]
    assert member.path == both
    assert [belongs(view, 1) for view in found.views] == [False, True]


def test_a_directory_that_has_other_partitions_alone_takes_no_part(pair: list[Path]) -> None:
    (pair[0] / "waltz-storage.ctl").unlink()
    for file in (pair[0] / "1").iterdir():
        file.unlink()
    (pair[0] / "1").rmdir()
    found = open_directories(pair, [1])
    assert [sorted(view.partitions) for view in found.views] == [[], [1]]
    assert [one.path for one in found.members(1)] == [pair[1]]


def test_members_are_numbered_and_bring_their_marks(pair: list[Path]) -> None:
    marks(pair[1], session=9, mark=12, local=11)
    first, second = opened(*pair).members(0)
    assert first.ballot == Ballot(True, 3, 20, 20)
    assert second.ballot == Ballot(True, 9, 12, 11)
    assert [(one.path, one.held_to) for one in (first, second)] == [(pair[0], 20), (pair[1], 11)]
    for number, one in enumerate((first, second)):
        assert one.replica is not None
        assert (one.replica.number, one.replica.storage, one.replica.partition) == (number, pair[number], 0)
        assert (one.replica.mark, one.replica.durable_to) == (one.ballot.local_low_water_mark, one.held_to)
        assert (one.replica.cluster_key, [segment.first for segment in one.replica.segments]) == (KEY, [0])


@pytest.mark.parametrize(("mark", "held_to"), [(None, None), (-1, -1), (0, 0), (5, 5)])
def test_what_a_replica_held_is_as_far_as_anything_tells(tmp_path: Path, mark: int | None, held_to: int | None) -> None:
    nodes = [build_directory(tmp_path / name, {0: 9}, local_low_water_mark=mark) for name in "ab"]
    if mark is None:
        (nodes[0] / "waltz-storage.ctl").unlink()
    member, _ = opened(*nodes).members(0)
    assert member.held_to == held_to
    assert member.replica is not None
    assert (member.replica.mark, member.replica.durable_to) == (mark, -1 if mark is None else mark)


def test_a_replica_without_its_directory_is_a_member_that_is_gone(pair: list[Path]) -> None:
    for file in (pair[0] / "0").iterdir():
        file.unlink()
    (pair[0] / "0").rmdir()
    gone, there = opened(*pair).members(0)
    assert (gone.replica, gone.held_to, gone.ballot) == (None, None, Ballot(False, 3, 20, 20))
    assert there.replica is not None
    assert there.replica.number == 1


def accept(storage: Path, last: int) -> None:
    path = ledger_path(storage)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_ledger([AcceptedLoss(0, 30, last, 20, "2026-11-22T08:51:18.000Z", "why")]))


@pytest.mark.parametrize("which", [0, 1])
def test_what_a_replica_gave_up_is_its_own(pair: list[Path], which: int) -> None:
    """It held it; and a torn end there is no loss of what must have been durable."""
    accept(pair[which], 34)
    members = opened(*pair).members(0)
    assert [one.held_to for one in members] == [34 if number == which else 20 for number in (0, 1)]
    assert [one.replica and one.replica.durable_to for one in members] == [20, 20]


@pytest.mark.parametrize("first", [1, 2, 30])
def test_what_files_alone_prove_was_held_as_well(pair: list[Path], first: int) -> None:
    """Without a control file the name of the last segment tells."""
    (pair[0] / "waltz-storage.ctl").unlink()
    write_segment(pair[0] / "0", [], first=first)
    member, _ = opened(*pair).members(0)
    assert (member.ballot.local_low_water_mark, member.held_to) == (None, first - 1)


@pytest.mark.parametrize("which", [0, 1])
def test_a_ledger_that_cannot_be_read_is_told_of_its_directory(pair: list[Path], which: int) -> None:
    accept(pair[which], 34)
    ledger = ledger_path(pair[which])
    ledger.write_bytes(ledger.read_bytes()[:-20])
    (one,) = opened(*pair).findings([0])
    assert (one.code.value, one.path) == ("accepted-losses-damaged", ledger)


@pytest.mark.parametrize("there", [True, False])
def test_a_damaged_pair_is_told_of_who_is_a_replica_only(pair: list[Path], there: bool) -> None:
    break_struct(pair[0], 1, 1, 2)
    if not there:
        shutil.rmtree(pair[0] / "1")
    found = opened(*pair)
    assert len(found.members(1)) == 1 + there
    assert [one.code.value for one in found.findings([0, 1])] == ["control-pair-checksum"] * there


def test_a_pair_of_which_one_is_in_force_is_no_hindrance(pair: list[Path]) -> None:
    break_struct(pair[0], 1, 1)
    assert list(opened(*pair).findings([0, 1])) == []


def test_a_segment_in_front_of_an_index_alone_is_the_last_one(pair: list[Path]) -> None:
    """Of the data files, so that its torn end is that of the partition."""
    write_segment(pair[0] / "0", [], first=30)
    (pair[0] / "0" / segment_name(30)).unlink()
    member, _ = opened(*pair).members(0)
    assert member.replica is not None
    assert [(one.first, member.replica.job(one).last) for one in member.replica.segments] == [(0, True), (30, True)]
