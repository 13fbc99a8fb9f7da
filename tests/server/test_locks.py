"""Optimistic locks: the slots of the release, each kind against each other, and never an estimate that is too low."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.held_locks import held_locks
from tests.scan.wire_support import in_every_form
from waltzctl.engine.scan.client_appends import HeldLocks
from waltzctl.engine.scan.wire_layout import ADMITTED, CONTENDED
from waltzctl.engine.server.locks import DEFAULT_SIZE, LockTable
from waltzctl.formats.lock_id import lock_id
from waltzctl.formats.wire.client import AppendLocks


@pytest.mark.parametrize(
    ("name", "number", "slots"),
    [
        ("test", 1, (19840, 3401, 7710)),
        ("lock", 0, (17880, 23681, 15910)),
        ("account", 1234567890123, (16158, 13935, 12940)),
    ],
)
def test_slots_of_the_release(name: str, number: int, slots: tuple[int, ...]) -> None:
    assert slots_of(lock_id(name, number), DEFAULT_SIZE) == {*slots}


KINDS = ("write", "read", "append")


def of(kind: str, *locks: int) -> AppendLocks:
    return AppendLocks(**{kind: locks})


_ALL, _NOTHING = 1 << 62, -(1 << 62)
"""High-water marks of clients that know everything, and nothing."""


class Table(LockTable):
    """The table, asked about one append at a time."""

    def held(self, locks: AppendLocks, mark: int = _ALL) -> HeldLocks:
        return held_locks([(mark, locks)])

    def begin(self, held: HeldLocks) -> bool:
        """Whether it is not contended; what its client knows is as if it knew everything."""
        (verdict,) = self.admit(held, 1, _ALL)
        assert verdict in {ADMITTED, CONTENDED}
        return verdict == ADMITTED

    def last_written(self, held: HeldLocks) -> int:
        """What it would be refused by if nothing were in flight and its client knew nothing; -1 when nothing can."""
        of = replace(held, appends=array("q", [_NOTHING, held.appends[1]]))
        written, in_flight = self._slots()
        self._table = written, array("q", bytes(8)) * self.size
        try:
            (verdict,) = self.admit(of, 1, _ALL)
            assert verdict not in {ADMITTED, CONTENDED}
            return verdict
        finally:
            self._table = written, in_flight


def in_flight(table: LockTable) -> array[int]:
    """How many transactions in flight each slot counts."""
    return table._slots()[1]


@cache
def slots_of(lock: int, size: int) -> frozenset[int]:
    """The slots that a table of `size` marks for a lock."""
    table = Table(-1, size)
    assert table.begin(table.held(of("write", lock)))
    return frozenset(slot for slot, count in enumerate(in_flight(table)) if count)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_each_kind_against_each_other(kind: str, other: str) -> None:
    """A write or read lock sees what writes, in flight or committed; an append lock does not."""
    table = Table(9, 100)
    assert table.begin(table.held(of(other, 7)))
    verdict = ADMITTED if kind == "append" or other == "read" else CONTENDED
    assert table.admit(table.held(of(kind, 7)), 1, _ALL) == [verdict]
    table = Table(9, 100)
    table.begin(table.held(of(other, 7)))
    table.commit(table.held(of(other, 7)), 10)
    seen = {"append": -1}.get(kind, 9 if other == "read" else 10)
    assert table.last_written(table.held(of(kind, 7))) == seen
    assert table.begin(table.held(of(kind, 7)))


def test_what_is_behind_a_contended_append_is_judged_at_once() -> None:
    table = LockTable(4, 30_000)
    asked = [(4, of("write", 1)), (4, of("read", 1)), (3, of("read", 2)), (3, of("read", 1)), (4, of("append", 1))]
    assert table.admit(held_locks([*asked, (4, of("write", 3))]), 9, 4) == [
        *(ADMITTED, CONTENDED, 4, CONTENDED, ADMITTED, ADMITTED)
    ]
    assert sum(in_flight(table)) == 9, "three that are admitted"


def test_a_client_that_claims_to_know_what_is_not_committed_waits() -> None:
    """It may be right, and is admitted then; nothing behind it is judged before."""
    table = LockTable(4, 30_000)
    asked = [(4, of("write", 1)), (4, of("read", 1)), (5, of("read", 1)), (4, of("read", 1))]
    assert table.admit(held_locks(asked), 9, 4) == [ADMITTED, CONTENDED]
    assert table.admit(held_locks(asked[2:]), 9, 4) == []
    table.commit(held_locks(asked[:1]), 5)
    assert table.admit(held_locks(asked[2:]), 9, 5) == [ADMITTED, 5]


def test_a_contended_append_is_refused_with_the_last_that_wrote_whatever_is_in_flight_now() -> None:
    table = LockTable(4, 30_000)
    held = held_locks([(4, of("write", 1)), (4, of("write", 2)), (4, of("read", 1)), (4, AppendLocks(write=(2, 1)))])
    assert table.admit(held, 9, 4) == [ADMITTED, ADMITTED, CONTENDED, CONTENDED]
    table.commit(held.part(0, 2), 5)
    now = held_locks([(6, of("write", 1, 2))])
    assert table.admit(now, 1, 6) == [ADMITTED]
    before = table._slots()
    assert table.conflicts(held.part(2, 4), 6) == [5, 6]
    assert table._slots() == before
    table.commit(now, 7)
    assert table.conflicts(held.part(2, 4), 6) == [7, 7]


def test_behind_a_reset_a_contended_append_is_refused_all_the_same() -> None:
    table, held = LockTable(4, 10), held_locks([(4, of("read", 1)), (4, of("write", 1))])
    table.reset(4)
    assert table.conflicts(held, 9) == [9, 9]
    table.reset(5)
    assert table.conflicts(held, 9) == [5, 5], "nothing is left marked"


def test_what_is_refused_marks_nothing() -> None:
    table = Table(-1, 1000)
    assert table.begin(table.held(of("write", 1)))
    assert not table.begin(table.held(AppendLocks(write=(2, 3), read=(1,), append=(4,))))
    assert table.begin(table.held(AppendLocks(write=(2, 3), append=(4,))))
    table.give_up(table.held(of("write", 1)))
    assert table.begin(table.held(of("read", 1)))
    assert table.last_written(table.held(of("write", 1))) == -1


def test_the_highest_of_several_locks_is_told() -> None:
    table = Table(3, 100_000)
    for lock, transaction in ((1, 5), (2, 8)):
        table.begin(table.held(of("write", lock)))
        table.commit(table.held(of("write", lock)), transaction)
    assert [table.last_written(table.held(of("read", lock))) for lock in (1, 2, 3)] == [5, 8, 3]
    assert table.last_written(table.held(AppendLocks(write=(1,), read=(2,), append=(3,)))) == 8
    assert table.last_written(table.held(AppendLocks(append=(1, 2)))) == -1


def test_a_parent_that_is_read_and_a_child_that_is_appended_to() -> None:
    table, parent, child = Table(-1), lock_id("parent", 1), lock_id("child", 1)
    for transaction, locks in enumerate(
        (AppendLocks(write=(parent, child)), *[AppendLocks(read=(parent,), append=(child,))] * 3)
    ):
        assert table.begin(table.held(locks))
        assert table.last_written(table.held(locks)) <= 0
        table.commit(table.held(locks), transaction)
    assert table.last_written(table.held(AppendLocks(write=(parent, child)))) == 3


def test_a_table_takes_memory_from_the_first_locks_on() -> None:
    """Half a megabyte, of each of thousands of partitions; until then every lock is as it was at the start, or the last reset."""
    table, held = LockTable(4), held_locks([(3, of("write", 1)), (7, of("write", 2))])
    assert table._table is None
    table.reset(7)
    assert table._table is None
    assert table.admit(held, 2, 7) == [7, ADMITTED]
    assert sum(in_flight(table)) == 3
    table.reset(8)
    assert table._table is None


def test_a_reset_counts_everything_as_written() -> None:
    table = Table(-1, 10)
    table.begin(table.held(of("write", 1)))
    table.reset(7)
    assert table.begin(table.held(of("write", 1)))
    assert table.last_written(table.held(of("read", 12345))) == 7


def test_a_small_table_refuses_too_much_and_never_too_little() -> None:
    """The release: with 300 slots the first false conflict comes behind at least one and fewer than 101 locks."""
    chance, table, behind = random.Random(5), Table(-1, 300), 0
    for transaction in range(101):
        lock = lock_id("account", chance.getrandbits(62))
        if table.last_written(table.held(of("write", lock))) >= 0:
            break
        behind += 1
        assert table.begin(table.held(of("write", lock)))
        table.commit(table.held(of("write", lock)), transaction)
    assert 1 <= behind < 101


@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["write", "append"])), max_size=40),
    st.integers(1, 30),
    st.integers(-1, 5),
)
def test_the_estimate_is_never_too_low(commits: list[tuple[int, str]], size: int, mark: int) -> None:
    table, last = Table(mark, size), {}
    for transaction, (lock, kind) in enumerate(commits, mark + 1):
        assert table.begin(table.held(of(kind, lock)))
        table.commit(table.held(of(kind, lock)), transaction)
        last[lock] = transaction
    for lock in range(21):
        assert last.get(lock, mark) <= table.last_written(table.held(of("read", lock))) <= mark + len(commits)


def test_a_table_without_slots() -> None:
    with pytest.raises(ValueError, match="0 slots"):
        Table(-1, 0)


def _with_slots(size: int, wanted: Callable[[frozenset[int]], bool]) -> int:
    """The first lock, by its id, whose slots are such."""
    return next(lock for lock in range(1, 100_000) if wanted(slots_of(lock, size)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [1, 2, 3])
def test_only_a_lock_whose_slots_are_all_in_flight_is_contended(kind: str, shared: int) -> None:
    size = 40
    one = _with_slots(size, lambda slots: len(slots) == 3)
    mine = slots_of(one, size)
    other = (
        _with_slots(size, lambda slots: len(slots) == 3 and len(mine & slots) == shared)
        if shared < 3
        else _with_slots(size, lambda slots: slots == mine)
    )
    table = Table(-1, size)
    assert table.begin(table.held(of("write", one)))
    assert table.begin(table.held(of(kind, other))) is (shared < 3 or kind == "append")


def test_a_slot_stays_in_flight_until_the_last_one_that_marked_it_is_decided() -> None:
    size = 40
    one = _with_slots(size, lambda slots: len(slots) == 3)
    other = _with_slots(size, lambda slots: len(slots) == 3 and len(slots_of(one, size) & slots) == 1)
    table = Table(-1, size)
    assert table.begin(table.held(of("write", one)))
    assert table.begin(table.held(of("append", other)))
    table.commit(table.held(of("write", one)), 0)
    assert table.begin(table.held(of("read", one)))
    assert not table.begin(table.held(of("read", other)))
    table.give_up(table.held(of("append", other)))
    assert table.begin(table.held(of("read", other)))
    assert {*in_flight(table)} == {0}


class _Table(RuleBasedStateMachine):
    """The table against all that is in flight and all that was written, under locks that are few and slots that are fewer."""

    locks = st.builds(AppendLocks, *[st.lists(st.integers(0, 12), max_size=2).map(tuple)] * 3)

    @initialize(size=st.integers(1, 30))
    def make(self, size: int) -> None:
        self.table, self.transaction = Table(-1, size), -1
        self.in_flight: list[AppendLocks] = []
        self.written: dict[int, int] = {}

    @rule(locks=locks)
    def begin(self, locks: AppendLocks) -> None:
        writing = {lock for one in self.in_flight for lock in (*one.write, *one.append)}
        if self.table.begin(self.table.held(locks)):
            assert not writing & {*locks.write, *locks.read}, "its client does not know who writes"
            self.in_flight.append(locks)
        else:
            assert writing, "nobody holds anything"

    @precondition(lambda self: self.in_flight)
    @rule()
    def commit(self) -> None:
        self.transaction += 1
        decided = self.in_flight.pop(0)
        self.table.commit(self.table.held(decided), self.transaction)
        self.written |= dict.fromkeys((*decided.write, *decided.append), self.transaction)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.table.give_up(self.table.held(self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))))

    @invariant()
    def never_too_low(self) -> None:
        for lock in range(13):
            assert (
                self.written.get(lock, -1)
                <= self.table.last_written(self.table.held(of("read", lock)))
                <= self.transaction
            )

    def teardown(self) -> None:
        for one in self.in_flight:
            self.table.give_up(self.table.held(one))
        assert {*in_flight(self.table)} == {0}, "nothing stays in flight"


@st.composite
def appends(draw: st.DrawFn) -> list[tuple[int, AppendLocks]]:
    """Of clients that know of this or that transaction."""
    return draw(st.lists(st.tuples(st.integers(-2, 12), _Table.locks), min_size=1, max_size=9))


@pytest.mark.turns(8)
@given(appends(), st.integers(1, 30), st.data())
@settings(max_examples=200)
def test_appends_that_come_together_are_judged_as_one_by_one(
    came: list[tuple[int, AppendLocks]], size: int, data: st.DataObject
) -> None:
    """In any pieces, and of any part of a table; also what becomes of them then."""
    first = data.draw(st.integers(0, len(came) - 1))
    stop = data.draw(st.integers(first + 1, len(came)))
    most = data.draw(st.integers(1, 9))
    before = data.draw(st.lists(st.integers(0, 12), max_size=3))
    end, committed = data.draw(st.sampled_from(["commit", "give up"])), data.draw(st.integers(-2, 12))

    def check() -> None:
        together, alone = LockTable(3, size), LockTable(3, size)
        for table in (together, alone):
            table.admit(
                held_locks([(99, AppendLocks(write=(lock,))) for lock in before] or [(0, AppendLocks())]), 9, 99
            )
        held = held_locks(came).part(first, stop)
        told, admitted = list[int](), list[HeldLocks]()
        for one in came[first:stop]:
            verdict = alone.admit(held_locks([one]), 1, committed) if len(admitted) < most else []
            if not verdict:
                break
            told += verdict
            admitted += [held_locks([one])] if verdict == [ADMITTED] else []
        assert together.admit(held, most, committed) == told
        assert in_flight(together) == in_flight(alone)
        begun, transaction = 0, 20
        for fine, group in groupby(told, ADMITTED.__eq__):
            count = len([*group])
            if fine:
                stretch = held.part(begun, begun + count)
                together.commit(stretch, transaction) if end == "commit" else together.give_up(stretch)
                transaction += count
            begun += count
        for place, one_held in enumerate(admitted, 20):
            alone.commit(one_held, place) if end == "commit" else alone.give_up(one_held)
        assert together._slots() == alone._slots()

    in_every_form(check)


def test_an_append_is_refused_by_what_its_client_does_not_know() -> None:
    table = Table(7, 30_000)
    asked = [(mark, of(kind, 1)) for mark in (6, 7, 8) for kind in KINDS]
    told = [table.admit(held_locks([one]), 1, 8) for one in asked[:2] + asked[2:3]]
    assert told == [[7], [7], [ADMITTED]]
    table.reset(7)
    assert table.admit(held_locks([(6, of("read", 1)), (7, of("read", 1)), (8, of("read", 1))]), 9, 8) == [
        *(7, ADMITTED, ADMITTED)
    ]


def test_appends_that_are_committed_together_have_transactions_of_their_own() -> None:
    table, two = LockTable(-1), held_locks([(-1, of("write", 1)), (-1, of("append", 2))])
    assert table.admit(two, 9, -1) == [ADMITTED, ADMITTED]
    table.commit(two, 5)
    assert table.admit(held_locks([(5, of("read", 1)), (5, of("read", 2)), (6, of("read", 2))]), 9, 6) == [
        *(ADMITTED, 6, ADMITTED)
    ]


def test_locks_that_are_no_table_are_refused() -> None:
    held = held_locks([(0, of("write", 1, 2)), (0, of("write", 3))])
    table = LockTable(-1, 100)
    for wrong in (replace(held, locks=held.locks[:1]), replace(held, locks=held.locks[:2])):
        for call in (lambda it: table.admit(it, 9, 9), lambda it: table.commit(it, 1), table.give_up):
            with pytest.raises(ValueError, match=r"^the locks of appends end elsewhere than they should$"):
                call(wrong)


TestLockTable = pytest.mark.turns(10)(_Table.TestCase)
TestLockTable.settings = settings(max_examples=100, stateful_step_count=30)
