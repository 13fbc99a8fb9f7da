"""Which server gets which partition: each once, evenly, as few as possible moved, preferences kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltzctl.engine.metadata.assignment_policy import assign
from waltzctl.formats.znodes import AssignedPartition, ServerAssignment, ServerDescriptor, ServerPartitions

NOTHING = ServerAssignment(-1, 0, ())


def server(number: int, *preferred: int) -> ServerDescriptor:
    return ServerDescriptor(number, "h", 1, preferred)


def held(assignment: ServerAssignment) -> dict[int, dict[int, int]]:
    return {one.server: {p.partition: p.generation for p in one.partitions} for one in assignment.servers}


def test_the_first_server_gets_everything_under_the_first_generation() -> None:
    found = assign(NOTHING, 1, 2, [server(1)])
    assert found == ServerAssignment(1, 2, (ServerPartitions(1, (AssignedPartition(0, 1), AssignedPartition(1, 1))),))


def test_a_second_server_takes_half_and_those_get_the_next_generation() -> None:
    before = assign(NOTHING, 1, 5, [server(1)])
    after = assign(before, 2, 5, [server(1), server(2)])
    assert held(after) == {1: {0: 1, 1: 1, 2: 1}, 2: {3: 2, 4: 2}}
    back = assign(after, 3, 5, [server(2)])
    assert held(back) == {2: {0: 2, 1: 2, 2: 2, 3: 2, 4: 2}}


def test_the_last_generation_stays_and_every_partition_has_a_server() -> None:
    """What has no room in its field was to be written, at each attempt, and no partition of the cluster moved any more."""
    before = ServerAssignment(1, 2, (ServerPartitions(1, (AssignedPartition(0, 2**31 - 1), AssignedPartition(1, 7))),))
    after = assign(before, 2, 2, [server(2)])
    assert held(after) == {2: {0: 2**31 - 1, 1: 8}}
    assert ServerAssignment.decode(after.encode()) == after


def test_a_preference_that_brings_a_server_to_its_share_leaves_a_place_for_everyone() -> None:
    """Release 0.13.2 finds no place for the third partition here, and its cluster manager stops for good."""
    found = assign(NOTHING, 1, 3, [server(1, 0), server(2)])
    assert sorted(partition for one in held(found).values() for partition in one) == [0, 1, 2]
    assert 0 in held(found)[1]


def test_without_servers_nobody_has_anything() -> None:
    assert assign(assign(NOTHING, 1, 3, [server(1)]), 2, 3, []) == ServerAssignment(2, 3, ())


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_partition_that_the_assignment_before_does_not_name_is_a_new_one(lost: int) -> None:
    kept = tuple(AssignedPartition(n, 4) for n in range(3) if n != lost)
    found = assign(ServerAssignment(1, 3, (ServerPartitions(1, kept),)), 2, 3, [server(1)])
    assert held(found) == {1: {n: 1 if n == lost else 4 for n in range(3)}}


@pytest.mark.parametrize(
    ("preferences", "sizes"),
    [
        (((0, 1, 2, 3), (), ()), [4, 2, 1]),  # three are left for two, of which the first has the place of one more
        (((0, 1, 2), (), ()), [3, 2, 2]),
        (((0, 1, 2), (3, 4, 5), ()), [3, 3, 1]),  # both take the place of one more: there is only one
        (((0, 1, 2, 3, 4, 5, 6), (), ()), [7, 0, 0]),
        (((), (), (6,)), [3, 2, 2]),
    ],
)
def test_preferences_take_places_of_those_with_one_more(
    preferences: tuple[tuple[int, ...], ...], sizes: list[int]
) -> None:
    found = assign(NOTHING, 1, 7, [server(n, *wanted) for n, wanted in enumerate(preferences, 1)])
    assert [len(held(found)[n]) for n in (1, 2, 3)] == sizes
    for n, wanted in enumerate(preferences, 1):
        assert {*wanted} <= held(found)[n].keys()


def test_what_more_servers_keep_moves_nowhere() -> None:
    before = assign(NOTHING, 1, 7, [server(1), server(2)])
    assert {n: sorted(own) for n, own in held(before).items()} == {1: [0, 1, 2, 3], 2: [4, 5, 6]}
    after = assign(before, 2, 7, [server(1), server(2), server(3)])
    assert {n: sorted(own) for n, own in held(after).items()} == {1: [0, 1, 2], 2: [4, 5], 3: [3, 6]}
    back = assign(after, 3, 7, [server(2), server(3)])
    assert {n: sorted(own) for n, own in held(back).items()} == {2: [0, 1, 4, 5], 3: [2, 3, 6]}


@pytest.mark.turns(8)
@settings(max_examples=150)
@given(
    st.integers(0, 12),
    st.lists(
        st.tuples(st.integers(1, 6), st.lists(st.integers(0, 12), max_size=3)), max_size=6, unique_by=lambda one: one[0]
    ),
    st.lists(
        st.tuples(st.integers(1, 6), st.lists(st.integers(0, 12), max_size=3)), max_size=6, unique_by=lambda one: one[0]
    ),
)
def test_every_partition_once_evenly_and_nothing_moves_without_need(
    partitions: int, first: list[tuple[int, list[int]]], second: list[tuple[int, list[int]]]
) -> None:
    before = assign(NOTHING, 1, partitions, [server(n, *wanted) for n, wanted in first])
    after = assign(before, 2, partitions, [server(n, *wanted) for n, wanted in second])
    now, then = held(after), held(before)
    if not second:
        assert now == {}
        return
    given = [partition for one in now.values() for partition in one]
    assert sorted(given) == list(range(partitions))
    wanted = {n: {p for p in preferred if p < partitions} for n, preferred in second}
    for number, own in now.items():
        for partition, generation in own.items():
            old = [one[partition] for one in then.values() if partition in one]
            stayed = partition in then.get(number, {})
            assert generation == (old[0] if stayed else (old[0] if old else 0) + 1)
    for partition in {one for each in wanted.values() for one in each}:
        (owner,) = [n for n, own in now.items() if partition in own]
        assert partition in wanted[owner], "a preferred partition went to one that does not prefer it"
    least, more = divmod(partitions, len(second))
    preferred = {number: len(own & now[number].keys()) for number, own in wanted.items()}
    spent = sum(max(0, count - least) for count in preferred.values())
    if spent <= more:  # no preference takes more places than there are
        assert sorted(map(len, now.values())) == [least] * (len(second) - more) + [least + 1] * more or any(
            count > least + 1 for count in preferred.values()
        )
    if not any(wanted.values()):
        assert sorted(map(len, now.values())) == [least] * (len(second) - more) + [least + 1] * more
        stayed = sum(len(own.keys() & then.get(number, {}).keys()) for number, own in now.items())
        had = [len(then.get(number, {})) for number in now]
        assert stayed == sum(min(count, least) for count in had) + min(more, sum(count > least for count in had))
        same = {n: dict(own) for n, own in then.items()}
        if {n for n, _ in first} == {n for n, _ in second} and not any(w for _, w in first):
            assert now == same
