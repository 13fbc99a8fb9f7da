"""Replicas that differ in one way each: what recovery would keep, and what is said of each replica."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, digest
from tests.compare.clusters import (
    COUNT,
    MARK,
    compared,
    cuts,
    damaged,
    extend,
    flip,
    keep_up_to,
    make_cluster,
    marks,
    place_of,
    read,
    remove_segment,
    rewrite,
    segment_of,
    segments,
    states,
    tear,
    write,
)
from waltzctl.engine.compare.compare import compare
from waltzctl.engine.compare.comparison import CompareOptions, PartitionComparison, ReplicaStanding
from waltzctl.engine.errors import InvalidRequestError, MismatchError, NotWaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.quorum.vote import LastSession, Verdict
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.task_executor import LocalExecutor
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import HEADER_SIZE

LAST = COUNT - 1


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    return make_cluster(tmp_path)


def test_equal_replicas_are_equal_and_nothing_is_touched(nodes: list[Path]) -> None:
    before = [digest(path) for path in nodes]
    answer = compared(*nodes)
    assert answer[0].verdict is Verdict.EQUAL
    assert answer[0].clean_to == LAST
    assert answer[0].first_divergence is None
    assert states(answer[0]) == ["equal"] * 3
    assert answer.findings == ()
    assert answer.summary.exit_status_name == "clean"
    assert answer.summary.records == 3 * COUNT
    assert [digest(path) for path in nodes] == before


def test_segments_that_are_cut_differently_hold_the_same(nodes: list[Path], tmp_path: Path) -> None:
    other = build_directory(tmp_path / "whole", {0: COUNT}, per_segment=COUNT, local_low_water_mark=MARK, session=3)
    answer = compared(*nodes[:2], other)
    assert answer[0].verdict is Verdict.EQUAL
    assert answer[0].clean_to == LAST


def test_a_single_rewritten_record_is_outvoted_and_its_versions_are_shown(nodes: list[Path]) -> None:
    rewrite(nodes[1], 70, b"not what was sent")
    one = compared(*nodes)[0]
    assert (one.verdict, one.clean_to, one.first_divergence) == (Verdict.RECOVERABLE, LAST, 70)
    assert states(one) == ["equal", "diverged", "equal"]
    assert one.replicas[1].outvoted == ((70, 71),)
    assert one.replicas[1].cut_after is None
    assert [(source.first, source.stop, source.path) for source in one.replicas[1].sources] == [(70, 71, nodes[0])]
    assert one.divergence is not None
    kept, other = one.divergence.sides
    _, offset, record = place_of(nodes[0], 70)
    assert (kept.replica, kept.offset, kept.size, kept.data) == (0, offset, record.size, record.data)
    assert (kept.data_checksum, kept.record_checksum) == (record.data_checksum, record.record_checksum)
    assert (other.replica, other.data) == (1, b"not what was sent")
    assert other.request_id.sequence == kept.request_id.sequence + 1000


def test_a_fork_is_cut_in_front_of_its_first_record(nodes: list[Path]) -> None:
    keep_up_to(nodes[2], 99)
    extend(nodes[2], 10, seed=1)
    one = compared(*nodes)[0]
    assert (one.verdict, one.clean_to, one.first_divergence) == (Verdict.RECOVERABLE, LAST, 100)
    assert states(one) == ["equal", "equal", "diverged"]
    assert cuts(one) == [None, None, 99]


def test_a_replica_ahead_of_all_others_is_cut(nodes: list[Path]) -> None:
    extend(nodes[0], 5)
    one = compared(*nodes)[0]
    assert (one.verdict, one.clean_to) == (Verdict.RECOVERABLE, LAST)
    assert states(one) == ["ahead", "equal", "equal"]
    assert cuts(one) == [LAST, None, None]
    assert one.replicas[0].last_transaction_id == LAST + 5


def test_an_empty_disk_is_no_vote_against_what_one_of_the_others_holds(nodes: list[Path], tmp_path: Path) -> None:
    """Two of three had acknowledged it; the disk of one was replaced, and the third was behind."""
    keep_up_to(nodes[2], 120)
    empty = build_directory(tmp_path / "replaced", {0: 0}, session=-1, local_low_water_mark=-1)
    one = compared(nodes[0], empty, nodes[2])[0]
    assert (one.verdict, one.clean_to, one.decision.caught_up) == (Verdict.RECOVERABLE, LAST, True)
    assert states(one) == ["equal", "behind", "behind"]
    assert cuts(one) == [None, None, None]
    keep_up_to(nodes[1], 125)
    added = build_directory(tmp_path / "added", {0: 0}, session=-1, local_low_water_mark=-1)
    grown = compared(*nodes, empty, added)[0]  # from three replicas to five: 125 has its two of three
    assert (grown.verdict, grown.clean_to, cuts(grown)[0]) == (Verdict.RECOVERABLE, LAST, None)


def test_directories_that_the_metadata_does_not_know_are_refused(nodes: list[Path]) -> None:
    def options(replicas: int, key: uuid.UUID = KEY, partitions: int = 1) -> CompareOptions:
        return CompareOptions(last_sessions={0: LastSession(3, replicas, replicas)}, cluster=(key, partitions))

    for replicas in (3, 4):
        *_, one, _ = compare(nodes, options(replicas), LocalExecutor(1))
        assert isinstance(one, PartitionComparison)
        assert (one.decision.last_replicas, one.verdict) == (replicas, Verdict.EQUAL if replicas == 3 else one.verdict)
    with pytest.raises(InvalidRequestError, match="the metadata names 2 replicas of its last session, 3 of the dir"):
        list(compare(nodes, options(2), LocalExecutor(1)))
    for wrong in (options(3, uuid.UUID(int=1)), options(3, partitions=2)):
        with pytest.raises(MismatchError, match="the metadata says"):
            list(compare(nodes, wrong, LocalExecutor(1)))


def test_the_highest_that_two_of_three_hold_is_kept(nodes: list[Path]) -> None:
    for path, last in zip(nodes, (125, 123, 120), strict=True):
        keep_up_to(path, last)
    one = compared(*nodes)[0]
    assert one.clean_to == 123
    assert not one.decision.caught_up
    assert states(one) == ["ahead", "equal", "behind"]
    assert cuts(one) == [123, None, None]


def test_with_a_replica_unseen_the_others_catch_up_with_the_highest(nodes: list[Path]) -> None:
    keep_up_to(nodes[0], 125)
    keep_up_to(nodes[1], 123)
    one = compared(nodes[0], nodes[1], replicas=3)[0]
    assert (one.verdict, one.clean_to) == (Verdict.RECOVERABLE, 125)
    assert one.decision.caught_up
    assert states(one) == ["equal", "behind"]


def test_two_of_five_replicas_decide_nothing_but_what_was_acknowledged(nodes: list[Path]) -> None:
    one = compared(nodes[0], nodes[1], replicas=5)[0]
    assert (one.verdict, one.clean_to) == (Verdict.UNDECIDABLE, MARK)
    assert one.decision.undecided == ((MARK + 1, COUNT),)
    assert cuts(one) == [None, None]


def test_two_versions_without_a_quorum_leave_it_open(nodes: list[Path]) -> None:
    rewrite(nodes[1], 100)
    one = compared(nodes[0], nodes[1], replicas=3)[0]
    assert (one.verdict, one.first_divergence) == (Verdict.UNDECIDABLE, 100)
    assert one.decision.undecided == ((100, 101),)
    assert states(one) == ["diverged", "diverged"]
    assert cuts(one) == [None, None]


def test_a_damaged_copy_may_have_been_either_version(nodes: list[Path]) -> None:
    rewrite(nodes[1], 100)
    flip(nodes[2], 100)
    one = compared(*nodes)[0]
    assert one.verdict is Verdict.UNDECIDABLE
    assert one.decision.undecided == ((100, 101),)
    assert damaged(one.replicas[2]) == [100]


def test_versions_above_every_mark_that_nobody_can_have_acknowledged_are_cut(nodes: list[Path]) -> None:
    for path in nodes:
        keep_up_to(path, 110)
    extend(nodes[0], 3, seed=1)
    extend(nodes[1], 3, seed=2)
    one = compared(*nodes)[0]
    assert (one.verdict, one.clean_to, one.first_divergence) == (Verdict.RECOVERABLE, 110, 111)
    assert cuts(one) == [110, 110, None]


@pytest.mark.parametrize("number", [0, 49, 50, 70, LAST - 1])
def test_a_damaged_record_is_restored_from_another_replica(nodes: list[Path], number: int) -> None:
    flip(nodes[0], number)
    answer = compared(*nodes)
    one = answer[0]
    assert (one.verdict, one.clean_to, one.first_divergence) == (Verdict.RECOVERABLE, LAST, None)
    assert states(one) == ["damaged", "equal", "equal"]
    assert damaged(one.replicas[0]) == [number]
    assert one.replicas[0].restore_from == nodes[1]
    assert answer.codes() == {"record-checksum"} or number == 49


def test_each_damaged_record_has_its_own_source(nodes: list[Path]) -> None:
    flip(nodes[0], 10)
    flip(nodes[1], 20)
    flip(nodes[0], 30)
    flip(nodes[1], 30)
    one = compared(*nodes)[0]
    assert states(one) == ["damaged", "damaged", "equal"]
    assert [(source.first, source.path) for source in one.replicas[0].sources] == [(10, nodes[1]), (30, nodes[2])]
    assert [(source.first, source.path) for source in one.replicas[1].sources] == [(20, nodes[0]), (30, nodes[2])]


def test_what_is_damaged_everywhere_is_lost(nodes: list[Path]) -> None:
    for path in nodes:
        flip(path, 70)
    one = compared(*nodes)[0]
    assert (one.verdict, one.clean_to) == (Verdict.LOST, LAST)
    assert one.decision.lost == ((70, 71),)
    assert [replica.restore_from for replica in one.replicas] == [None] * 3


def test_what_is_damaged_in_all_that_are_here_may_be_in_the_one_that_is_not(nodes: list[Path]) -> None:
    for path in nodes[:2]:
        flip(path, 70)
    assert compared(*nodes[:2], replicas=3)[0].verdict is Verdict.UNDECIDABLE


def test_a_damaged_length_hides_nothing_behind_it(nodes: list[Path]) -> None:
    file, offset, _ = place_of(nodes[0], 105)
    data = bytearray(file.read_bytes())
    data[offset + 29] ^= 0x10  # a length far beyond the end of the file
    file.write_bytes(data)
    one = compared(*nodes)[0]
    assert states(one) == ["damaged", "equal", "equal"]
    assert damaged(one.replicas[0]) == [105]
    assert one.replicas[0].last_transaction_id == LAST


def test_a_torn_tail_is_what_a_crash_leaves(nodes: list[Path]) -> None:
    tear(nodes[0])
    answer = compared(*nodes)
    assert (answer[0].verdict, answer[0].clean_to) == (Verdict.RECOVERABLE, LAST)
    assert states(answer[0]) == ["behind", "equal", "equal"]
    assert answer[0].replicas[0].last_transaction_id == LAST - 1
    assert answer.codes() == {"torn-tail"}


def test_a_last_record_of_which_only_bits_changed_was_held(nodes: list[Path]) -> None:
    keep_up_to(nodes[2], LAST - 1)
    flip(nodes[1], LAST)
    one = compared(*nodes)[0]
    assert one.clean_to == LAST, "the first two held it, so it may have been acknowledged"
    assert states(one) == ["equal", "damaged", "behind"]
    assert damaged(one.replicas[1]) == [LAST]


def test_acknowledged_records_that_are_gone_are_damage(nodes: list[Path]) -> None:
    keep_up_to(nodes[0], MARK - 5)
    one = compared(*nodes)[0]
    assert states(one) == ["damaged", "equal", "equal"]
    assert damaged(one.replicas[0]) == list(range(MARK - 4, MARK + 1))
    assert one.replicas[0].restore_from == nodes[1]


def test_a_loss_that_was_accepted_was_held_all_the_same(nodes: list[Path]) -> None:
    """Its mark has fallen to what is left, and it does not look like one that never held the rest."""
    segment_of(nodes[0], 100).unlink()
    apply(plan_recover(nodes[0], allow_data_loss=True), arguments=[])
    answer = compared(*nodes[:2])
    assert answer.codes() == {"loss-accepted"}
    assert answer[0].clean_to == LAST
    assert states(answer[0]) == ["damaged", "equal"]
    assert damaged(answer[0].replicas[0]) == list(range(100, COUNT))
    assert answer.summary.exit_status_name == "repairable"
    apply(plan_recover(nodes[0], replicas=[nodes[1]]), arguments=[])
    answer = compared(*nodes[:2])
    assert (answer[0].verdict, answer.codes()) == (Verdict.EQUAL, set())


@pytest.mark.parametrize(("kept", "state"), [(999, "damaged"), (1000, "equal")])
def test_an_index_proves_what_a_replica_has_lost(tmp_path: Path, kept: int, state: str) -> None:
    paths = make_cluster(tmp_path / "c", 2, records=1001, mark=-1)
    for path in paths:
        shutil.rmtree(path)
        build_directory(path, {0: 1001}, per_segment=2000, size=0, local_low_water_mark=-1)
    segment = segment_of(paths[0], 0)
    segment.write_bytes(segment.read_bytes()[: HEADER_SIZE + 40 * kept])
    answer = compared(*paths)
    assert states(answer[0])[0] == state


@pytest.mark.parametrize("layout", list(Layout))
def test_a_lost_directory_is_a_replica_that_cannot_be_seen(tmp_path: Path, layout: Layout) -> None:
    paths = [
        build_directory(tmp_path / name, {0: 5, 1: 100}, layout=layout, local_low_water_mark=4, session=1)
        for name in ("a", "b")
    ]
    shutil.rmtree(paths[0] / "1")
    answer = compared(*paths)
    assert answer.codes() == {"partition-directory-missing"}
    assert states(answer[1])[0] == "missing"
    shutil.rmtree(paths[1] / "1")
    assert compared(*paths)[1].verdict is Verdict.LOST


def test_who_lost_acknowledged_records_may_have_held_more(nodes: list[Path]) -> None:
    keep_up_to(nodes[0], MARK - 5)
    keep_up_to(nodes[1], 110)
    one = compared(*nodes)[0]
    assert (one.verdict, one.clean_to) == (Verdict.RECOVERABLE, LAST)
    assert one.decision.caught_up, "the first replica may have acknowledged what only the third one holds"


@pytest.mark.parametrize("number", [0, 60, 120])
def test_a_lost_segment(nodes: list[Path], number: int) -> None:
    first, last = remove_segment(nodes[1], number)
    answer = compared(*nodes)
    one = answer[0]
    assert (one.verdict, one.clean_to) == (Verdict.RECOVERABLE, LAST)
    if last == LAST:  # nothing tells that it was there: the others have rolled over since
        assert states(one) == ["equal", "behind", "equal"]
    else:
        assert states(one) == ["equal", "damaged", "equal"]
        assert damaged(one.replicas[1]) == list(range(first, last + 1))
        assert "segment-gap" in answer.codes()


def test_an_index_without_its_data_file_tells_what_was_there(nodes: list[Path]) -> None:
    segment_of(nodes[1], 120).unlink()
    one = compared(*nodes)[0]
    assert states(one) == ["equal", "damaged", "equal"]
    assert damaged(one.replicas[1]) == list(range(100, COUNT))


def test_a_header_that_is_damaged_is_believed_where_the_index_proves_it(nodes: list[Path]) -> None:
    file = segment_of(nodes[0], 60)
    data = bytearray(file.read_bytes())
    data[14] ^= 1
    file.write_bytes(data)
    answer = compared(*nodes)
    assert answer[0].verdict is Verdict.EQUAL
    assert answer.codes() == {"segment-key"}
    assert answer.summary.exit_status_name == "repairable"
    file.with_suffix(".idx").write_bytes(data[:HEADER_SIZE] + file.with_suffix(".idx").read_bytes()[HEADER_SIZE:])
    assert damaged(compared(*nodes)[0].replicas[0]) == list(range(50, 100))


def test_an_empty_replica_is_behind_everything(tmp_path: Path) -> None:
    nodes = make_cluster(tmp_path, 2, mark=-1)
    empty = build_directory(tmp_path / "empty", {0: 0}, local_low_water_mark=-1)
    one = compared(*nodes, empty)[0]
    assert states(one) == ["equal", "equal", "behind"]
    assert one.replicas[2].last_transaction_id is None


def test_empty_replicas_are_equal(tmp_path: Path) -> None:
    nodes = [build_directory(tmp_path / name, {0: 0}, local_low_water_mark=-1) for name in "abc"]
    one = compared(*nodes)[0]
    assert (one.verdict, one.clean_to) == (Verdict.EQUAL, None)


def test_everything_gone_everywhere_is_lost(nodes: list[Path]) -> None:
    for path in nodes:
        for file in segments(path):
            file.unlink()
            file.with_suffix(".idx").unlink()
    one = compared(*nodes)[0]
    assert (one.verdict, one.clean_to) == (Verdict.LOST, None)
    assert one.decision.lost == ((0, MARK + 1),)


def test_a_missing_partition_directory_counts_as_unseen(nodes: list[Path]) -> None:
    for file in (nodes[2] / "0").iterdir():
        file.unlink()
    (nodes[2] / "0").rmdir()
    keep_up_to(nodes[1], 120)
    answer = compared(*nodes)
    one = answer[0]
    assert (one.verdict, one.clean_to) == (Verdict.RECOVERABLE, LAST)
    assert one.decision.caught_up
    assert states(one) == ["equal", "behind", "missing"]
    assert answer.codes() == {"partition-directory-missing"}


def test_a_missing_control_file_leaves_the_records_their_say(nodes: list[Path]) -> None:
    (nodes[1] / "waltz-storage.ctl").unlink()
    answer = compared(*nodes)
    assert answer[0].verdict is Verdict.EQUAL
    assert answer[0].replicas[1].session_id is None
    assert answer.codes() == {"control-file-missing"}
    assert answer.summary.exit_status_name == "repairable"
    for path in (nodes[0], nodes[2]):
        (path / "waltz-storage.ctl").unlink()
    with pytest.raises(NotWaltzError):
        compared(*nodes)


def test_who_missed_the_last_session_has_no_vote(nodes: list[Path]) -> None:
    extend(nodes[0], 4)
    marks(nodes[0], session=2)
    three = compared(*nodes)[0]
    assert [replica.votes for replica in three.replicas] == [False, True, True]
    assert three.clean_to == LAST
    assert cuts(three) == [LAST, None, None]


def test_partitions_are_compared_among_those_that_have_them(tmp_path: Path) -> None:
    a = build_directory(tmp_path / "a", {0: 20, 1: 30}, num_partitions=4)
    b = build_directory(tmp_path / "b", {1: 30, 2: 40}, num_partitions=4)
    c = build_directory(tmp_path / "c", {2: 40, 0: 20}, num_partitions=4)
    answer = compared(a, b, c)
    assert sorted(answer.partitions) == [0, 1, 2]
    assert [[replica.path.name for replica in answer[number].replicas] for number in (0, 1, 2)] == [
        ["a", "c"], ["a", "b"], ["b", "c"],
    ]  # fmt: skip
    assert answer.summary.unassigned == (3,)
    assert {one.verdict for one in answer.partitions.values()} == {Verdict.EQUAL}
    assert sorted(compared(a, b, c, partitions=[1]).partitions) == [1]


def test_data_that_the_client_sent_with_a_wrong_checksum_is_the_same_everywhere(nodes: list[Path]) -> None:
    from dataclasses import replace

    from waltzctl.formats.checksums import crc32

    for path in nodes:
        file = segment_of(path, 70)
        records = read(file)
        for place, record in enumerate(records):
            if record.transaction_id == 70:
                wrong = replace(record, data_checksum=record.data_checksum ^ 1)
                records[place] = replace(wrong, record_checksum=crc32(wrong.encode()[:-4]))
        write(file, records)
    answer = compared(*nodes)
    assert (answer[0].verdict, answer.findings) == (Verdict.EQUAL, ())
    whole = make_cluster(nodes[0].parent / "right")
    answer = compared(*nodes[:2], whole[2])
    one = answer[0]
    assert damaged(one.replicas[0]) == [70]
    named = [found for path in nodes[:2] for found in verify([path]) if isinstance(found, Finding)]
    assert answer.findings == tuple(named), "where one holds what was sent, the others are damaged"
    assert one.replicas[0].restore_from == whole[2]


def test_one_replica_alone_and_one_given_twice_are_mistakes(nodes: list[Path]) -> None:
    for paths in (nodes[:1], [nodes[0], nodes[0]], [nodes[0], nodes[0] / ".." / nodes[0].name]):
        with pytest.raises(InvalidRequestError):
            compared(*paths)
    with pytest.raises(InvalidRequestError):
        compared(*nodes, replicas=2)
    with pytest.raises(InvalidRequestError):
        compared(*nodes, partitions=[7])
    with pytest.raises(NotWaltzError):
        compared(nodes[0], nodes[1] / "0")


def test_another_cluster_or_number_of_partitions_is_refused(nodes: list[Path], tmp_path: Path) -> None:
    import uuid

    other = build_directory(tmp_path / "other", {0: 10}, key=uuid.UUID(int=KEY.int ^ 1))
    more = build_directory(tmp_path / "more", {0: 10}, num_partitions=3)
    for path in (other, more):
        with pytest.raises(MismatchError):
            compared(nodes[0], path)


def test_states_are_named_from_the_gravest_on() -> None:
    assert list(ReplicaStanding) == ["missing", "diverged", "damaged", "ahead", "behind", "equal"]


def test_replicas_behind_urls_are_compared_with_files(nodes: list[Path]) -> None:
    fsspec = pytest.importorskip("fsspec")
    from waltzctl.engine.log.places import place

    rewrite(nodes[1], 70)
    flip(nodes[0], 20)
    store = fsspec.filesystem("memory")
    for path in nodes[:2]:
        store.put(str(path), f"/compared/{path.name}", recursive=True)
    try:
        one = compared(place("memory://compared/node-1"), place("memory://compared/node-2"), nodes[2])[0]
    finally:
        store.rm("/compared", recursive=True)
    assert states(one) == ["damaged", "diverged", "equal"]
    assert damaged(one.replicas[0]) == [20]
    assert one.replicas[0].restore_from == nodes[2]
    assert one.first_divergence == 70


def test_what_an_unreadable_end_and_a_replica_that_was_not_given_may_hold_together_is_open(nodes: list[Path]) -> None:
    """The last segment of one has no header and no index any more, another is behind, and the third is not here."""
    first, second, third = nodes
    keep_up_to(first, 99)
    last = segments(second)[-1]
    last.write_bytes(bytes(HEADER_SIZE) + last.read_bytes()[HEADER_SIZE:])
    last.with_suffix(".idx").unlink()
    answer = compared(first, second, replicas=3)
    assert (answer[0].verdict, answer[0].clean_to) == (Verdict.UNDECIDABLE, 99)
    assert answer.summary.exit_status_name == "damaged"
    whole = compared(first, second, third, replicas=3)
    assert (whole[0].verdict, whole[0].clean_to) == (Verdict.RECOVERABLE, LAST)
