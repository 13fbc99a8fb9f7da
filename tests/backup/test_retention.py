"""Which backups are kept: each rule, at its border and one step to each side."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from waltzctl.engine.backup.retention import Retention, kept
from waltzctl.formats.vault import BESIDE, BackedPartition, BackupHead


def head(number: int, when: str, source: str = "/a", tag: str | None = None) -> BackupHead:
    created = int(datetime.fromisoformat(when).replace(tzinfo=UTC).timestamp() * 1000)
    beside = BackedPartition(BESIDE, None, None, 0, 0, 0, 0)
    return BackupHead(number, created, source, tag, None, None, (), beside, 2 * number, 2, 0, 0, 0, 0, 0.0, False, 0)


HEADS = [
    head(1, "2025-12-29 23:59:59"),  # a Monday: the first week of 2026, as ISO 8601 has it
    head(2, "2026-01-01 00:00:00"),
    head(3, "2026-01-01 12:00:00"),
    head(4, "2026-01-01 12:59:59"),
    head(5, "2026-01-01 13:00:00"),
    head(6, "2026-01-05 00:00:00", tag="release"),  # the next Monday
    head(7, "2026-02-01 00:00:00"),
]


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        (Retention(last=1), {7}),
        (Retention(last=3), {7, 6, 5}),
        (Retention(last=99), {1, 2, 3, 4, 5, 6, 7}),
        (Retention(hourly=4), {7, 6, 5, 4}),
        (Retention(hourly=5), {7, 6, 5, 4, 2}),
        (Retention(daily=3), {7, 6, 5}),
        (Retention(daily=4), {7, 6, 5, 1}),
        (Retention(weekly=2), {7, 6}),
        (Retention(weekly=3), {7, 6, 5}),
        (Retention(weekly=4), {7, 6, 5}),
        (Retention(monthly=2), {7, 6}),
        (Retention(monthly=3), {7, 6, 1}),
        (Retention(yearly=1), {7}),
        (Retention(yearly=2), {7, 1}),
        (Retention(tags=frozenset({"release"})), {6}),
        (Retention(tags=frozenset({"other"})), set()),
        (Retention(last=1, yearly=2, tags=frozenset({"release"})), {7, 6, 1}),
    ],
)
def test_rules(retention: Retention, expected: set[int]) -> None:
    assert set(kept(HEADS, retention)) == expected
    assert set(kept(reversed(HEADS), retention)) == expected


def test_each_source_is_judged_by_itself() -> None:
    assert set(kept([*HEADS, head(8, "2020-01-01", source="/b")], Retention(last=1))) == {7, 8}


def test_a_backup_of_another_cluster_at_the_same_path_takes_nobody_elses_place() -> None:
    """The directory was moved away and another one put there, or the machine's path is that of each cluster in turn."""
    keys = (uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=2), None)
    some = [replace(head(8 + place, f"2026-02-0{place + 2}"), cluster_key=key) for place, key in enumerate(keys)]
    assert set(kept([*HEADS, *some], Retention(last=1))) == {8, 10, 11}
    assert set(kept([*HEADS, *some], Retention(last=2))) == {7, 8, 9, 10, 11}


def test_a_backup_of_some_partitions_takes_nobody_elses_place() -> None:
    """It has not what the one of all has, nor what one of others has."""
    first, second = ([BackedPartition(number, 0, 9, 0, 0, 0, 0) for number in numbers] for numbers in ((3,), (1, 3)))
    some = [
        replace(head(8 + place, f"2026-02-0{place + 2}"), partitions=tuple(there), partial=True)
        for place, there in enumerate((first, second, first))
    ]
    assert set(kept([*HEADS, *some], Retention(last=1))) == {7, 9, 10}
    assert set(kept([*HEADS, *some], Retention(monthly=2))) == {7, 6, 9, 10}


def test_the_newest_is_the_one_made_last_where_the_clock_was_put_back() -> None:
    after = [*HEADS, head(8, "2026-01-31 00:00:00"), head(9, "2026-01-31 12:00:00")]
    assert set(kept(after, Retention(last=1))) == {9}
    assert set(kept(after, Retention(daily=2))) == {9, 7}


def test_what_keeps_a_backup_is_told() -> None:
    assert kept(HEADS, Retention(last=1, daily=1, yearly=2))[7] == ("last", "daily", "yearly")


def test_no_rule_at_all_is_told_apart() -> None:
    assert not Retention().keeps_something
    assert Retention(tags=frozenset({"x"})).keeps_something
