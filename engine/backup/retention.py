"""Retention: which backups are kept, a pure function of their heads.

Backups are grouped by source and by the key of its cluster, as another cluster's directory may come to the same path; partial
ones also by their set of partitions, as none of them can replace a complete one.  Within a group they are ordered by when they
were made (`first_page`, not the clock), newest first.

A rule such as ``daily: 7`` keeps the newest backup of each of the last seven days that have one.  A backup is kept if any rule
keeps it.  Hours, days, weeks, months and years are in UTC, weeks as in ISO 8601.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from waltzctl.formats.vault import BackupHead

_PERIODS: Mapping[str, Callable[[datetime], str]] = {
    "hourly": lambda time: time.strftime("%Y-%m-%d %H"),
    "daily": lambda time: time.strftime("%Y-%m-%d"),
    "weekly": lambda time: "{}-W{}".format(*time.isocalendar()[:2]),
    "monthly": lambda time: time.strftime("%Y-%m"),
    "yearly": lambda time: time.strftime("%Y"),
}


@dataclass(frozen=True, slots=True)
class Retention:
    """How many backups each rule keeps; 0 for none.  `tags`: backups with one of these are always kept."""

    last: int = 0
    hourly: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    tags: frozenset[str] = frozenset()

    @property
    def keeps_something(self) -> bool:
        """Whether any rule is given: without rules everything would be forgotten."""
        return self != Retention()


def kept(heads: Iterable[BackupHead], retention: Retention) -> dict[int, tuple[str, ...]]:
    """The ids of the backups that are kept, each with the rules that keep it."""
    groups: dict[tuple[str, uuid.UUID | None, tuple[int, ...] | None], list[BackupHead]] = defaultdict(list)
    for one in heads:
        numbers = tuple(each.partition for each in one.partitions) if one.partial else None
        groups[one.source, one.cluster_key, numbers].append(one)
    found: dict[int, tuple[str, ...]] = {}
    for group in groups.values():
        newest_first = sorted(group, key=lambda one: one.first_page, reverse=True)
        for one, rules in zip(newest_first, _rules(newest_first, retention), strict=True):
            if rules:
                found[one.id] = rules
    return found


def _rules(newest_first: list[BackupHead], retention: Retention) -> Iterable[tuple[str, ...]]:
    seen: dict[str, set[str]] = {name: set() for name in _PERIODS}
    for place, one in enumerate(newest_first):
        rules = []
        if place < retention.last:
            rules.append("last")
        time = datetime.fromtimestamp(one.created_ms / 1000, UTC)
        for name, period_of in _PERIODS.items():
            period = period_of(time)
            if period not in seen[name] and len(seen[name]) < getattr(retention, name):
                seen[name].add(period)
                rules.append(name)
        if one.tag is not None and one.tag in retention.tags:
            rules.append("tag")
        yield tuple(rules)
