"""stats in a terminal: tables, bars and sparklines.

They use block characters where the terminal can show them, else ASCII.  On a terminal everything fits its width; without one only
the bars have a maximal length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waltzctl.formats.adapters import format_time
from waltzctl.values import counted, human_bytes, human_duration, printable, verdict

if TYPE_CHECKING:
    from waltzctl.engine.stats.report import PartitionStats, StatsReport

_BLOCKS = " ▁▂▃▄▅▆▇█"
_RAMP = " .:-=+*#%@"
_PARTS = " ▏▎▍▌▋▊▉"
PARTITIONS_SHOWN = 32
LINES_SHOWN = 20
NAMED = 24
"""Characters of a name beside a sparkline, at most."""
_NARROW, _WIDE = 40, 120
"""The least and the greatest width of the layout, in columns."""

ESTIMATE = (
    "Records carry no time. Each was written between the creation of its segment and that of the next one (for the last"
    " segment: the file's last change), and is placed in that interval by where it stands in the file."
)


@dataclass(frozen=True, slots=True)
class Look:
    """The capabilities of the output.  `width`: columns of the terminal; None: no terminal."""

    width: int | None
    colour: bool
    blocks: bool

    @property
    def columns(self) -> int:
        """The width of the layout, in columns."""
        return 80 if self.width is None else min(max(self.width, _NARROW), _WIDE)

    def bold(self, text: str) -> str:
        """A heading."""
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def bar(self, share: float, length: int) -> str:
        """A bar with a `share` of `length` columns; visible where the share is above 0."""
        if not self.blocks:
            return "#" * max(round(share * length), 1 if share > 0 else 0)
        eighths = max(round(share * length * 8), 1 if share > 0 else 0)
        return "█" * (eighths // 8) + (_PARTS[eighths % 8] if eighths % 8 else "")

    def heights(self, values: Sequence[float], most: float) -> str:
        """A sparkline: a column for each value, visible where the value is above 0."""
        ramp = _BLOCKS if self.blocks else _RAMP
        top = len(ramp) - 1
        return "".join(ramp[min(top, max(1, round(one / most * top)))] if one > 0 else " " for one in values)


@dataclass(frozen=True, slots=True)
class Series:
    """A named row of values, one for each bucket from the first to the last.

    `shown`: the text of the largest value.  `most`: the value of the full height.
    """

    name: str
    values: tuple[float, ...]
    shown: str
    most: float


def rate(value: float | None, unit: Callable[[float], str]) -> str:
    """A rate for people, from one a second: in the unit of time that gives a number of a usual size."""
    if value is None:
        return "-"
    for seconds, name in ((1, "s"), (60, "min"), (3600, "h")):
        if value * seconds >= 1 or not value:
            return f"{unit(value * seconds)}/{name}"
    return f"{unit(value * 86400)}/d"


def amount(value: float) -> str:
    """A number of records, or of records a second."""
    return (
        f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}" if value >= 10 else f"{value:.2g}"
    )


def size(value: float) -> str:
    """A number of bytes, or of bytes a second."""
    return human_bytes(round(value))


def moment(milliseconds: int) -> str:
    """A time for people, in UTC."""
    shown = format_time(milliseconds)
    return "-" if shown is None else shown[:19].replace("T", " ")


def width_text(milliseconds: int) -> str:
    """The width of a bucket."""
    for unit, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if milliseconds % unit == 0:
            return f"{milliseconds // unit}{name}"
    return f"{milliseconds}ms"


def narrowed(values: Sequence[float], columns: int) -> tuple[float, ...]:
    """Reduce values to at most `columns`: each is the maximum of a group of neighbours."""
    each = -(-len(values) // columns)
    return tuple(max(values[n : n + each]) for n in range(0, len(values), each))


def partition_names(report: StatsReport) -> dict[int, str]:
    """The name of each partition: its number, with its directory where several have the same number."""
    numbers = [one.partition for one in report.partitions]
    return {
        one.place: str(one.partition)
        if one.partition is not None and numbers.count(one.partition) == 1
        else printable(str(one.path))
        for one in report.partitions
    }


def class_name(lowest: int, highest: int) -> str:
    """A size class for people."""
    if highest == 0:
        return "no data"
    if highest < 1024:
        return f"{lowest} B" if lowest == highest else f"{lowest} - {highest} B"
    return f"{human_bytes(lowest)} - {human_bytes(highest + 1)}"


def time_series(report: StatsReport, by: str, *, of_bytes: bool) -> list[tuple[int, tuple[float, ...]]]:
    """The rates (1/s) of each series in every bucket from the first to the last."""
    if report.extent is None:
        return []
    first = report.extent.start // report.width
    count = report.extent.last // report.width - first + 1
    rows: dict[int, list[float]] = {}
    for one in report.time_buckets:
        if one.by == by:
            row = rows.setdefault(one.which, [0.0] * count)
            row[one.start // report.width - first] += (one.bytes if of_bytes else one.records) * 1000 / report.width
    return [(which, tuple(row)) for which, row in rows.items()]


def total_of(rows: Sequence[tuple[int, tuple[float, ...]]]) -> tuple[float, ...]:
    """The sum of several series."""
    return tuple(map(sum, zip(*(row for _, row in rows), strict=True)))


def stats_lines(report: StatsReport, look: Look) -> Iterator[str]:
    """The report without findings and conclusion, line by line."""
    names = partition_names(report)
    yield from _partitions(report, names, look)
    if not report.records:
        return
    yield from _over_time(report, names, look)
    yield from _by_id(report, names, look)
    yield from _sizes(report, look)
    yield from _clients(report, look)
    yield from _headers(report, look)
    yield from _gaps(report, names)
    yield from _untimed(report)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], look: Look, left: frozenset[int]) -> Iterator[str]:
    """Aligned columns; those with their number in `left` to the left, all others to the right."""
    widths = [max(len(row[n]) for row in (titles, *rows)) for n in range(len(titles))]

    def line(row: Sequence[str]) -> str:
        cells = [
            text.ljust(w) if n in left else text.rjust(w) for n, (text, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    yield look.bold(line(titles))
    yield from map(line, rows)


def _ids(one: PartitionStats) -> str:
    return "-" if one.first_transaction_id is None else f"{one.first_transaction_id}..{one.last_transaction_id}"


def _partitions(report: StatsReport, names: dict[int, str], look: Look) -> Iterator[str]:
    rows = [
        (
            names[one.place],
            f"{one.records:,}",
            human_bytes(one.bytes),
            _ids(one),
            f"{one.missing:,}",
            rate(one.records_per_second, amount),
            rate(one.bytes_per_second, size),
        )
        for one in report.partitions
    ]
    titles = ("P", "RECORDS", "BYTES", "TRANSACTIONS", "MISSING", "RECORD RATE", "BYTE RATE")
    yield from _table(titles, rows, look, frozenset())


def _columns(series: Sequence[Series], look: Look) -> Iterator[str]:
    """Sparklines below each other."""
    names = [_ended(one.name, NAMED) for one in series]
    named = max(map(len, names))
    told = max(len(one.shown) for one in series)
    room = max(look.columns - named - told - 4, 10)
    for one, name in zip(series, names, strict=True):
        drawn = look.heights(narrowed(one.values, room), one.most)
        yield (
            f"{name.rjust(named)}  {drawn}  {one.shown}"
            if look.blocks
            else f"{name.rjust(named)} |{drawn}| {one.shown}"
        )


def _ended(name: str, length: int) -> str:
    """A long name, shortened to its end, which distinguishes names better than the beginning."""
    return name if len(name) <= length else ".." + name[2 - length :]


def _series(report: StatsReport, by: str, names: dict[int, str], *, of_bytes: bool) -> list[Series]:
    unit = size if of_bytes else amount
    rows = [one for one in time_series(report, by, of_bytes=of_bytes) if one[0] in names]
    most = max((max(row) for _, row in rows), default=0)
    return [Series(names[which], row, f"peak {rate(max(row), unit)}", most) for which, row in rows]


def _over_time(report: StatsReport, names: dict[int, str], look: Look) -> Iterator[str]:
    if report.extent is None:
        return
    for of_bytes in (False, True):
        series = _series(report, "partition", names, of_bytes=of_bytes)
        if not series:
            return
        yield ""
        yield look.bold(f"{'Bytes' if of_bytes else 'Transactions'} over time, by partition (estimated)")
        if not of_bytes:
            extent = f"{moment(report.extent.start)} to {moment(report.extent.end)} UTC"
            yield f"{extent}; a bucket is {width_text(report.width)}"
        shown = series[:PARTITIONS_SHOWN]
        if len(series) > 1:
            total = total_of(time_series(report, "partition", of_bytes=of_bytes))
            shown.insert(0, Series("all", total, f"peak {rate(max(total), size if of_bytes else amount)}", max(total)))
        yield from _columns(shown, look)
        yield from _more(len(series))
    clients = {one.client: str(one.client) for one in report.clients[:LINES_SHOWN]}
    classes = {one.number: class_name(one.lowest, one.highest) for one in report.size_classes}
    for what, by, called in (("client", "client", clients), ("size of data", "size-class", classes)):
        yield ""
        yield look.bold(f"Transactions over time, by {what} (estimated)")
        yield from _columns(_series(report, by, called, of_bytes=False), look)
        if by == "client" and not report.client_series.exact:
            yield series_bound(report)


def series_bound(report: StatsReport) -> str:
    """The note under series of clients that are estimates."""
    missed = report.client_series.missed_records
    return (
        f"There are too many clients to keep: up to {counted(missed, 'record')} of each may be missing in its series."
    )


def _more(series: int) -> Iterator[str]:
    if series > PARTITIONS_SHOWN:
        yield f"and {counted(series - PARTITIONS_SHOWN, 'more partition')}"


def _by_id(report: StatsReport, names: dict[int, str], look: Look) -> Iterator[str]:
    by_place: dict[int, dict[int, float]] = {}
    spans: dict[int, int] = {}
    for one in report.id_buckets:
        by_place.setdefault(one.place, {})[one.first] = one.bytes
        spans[one.place] = one.last - one.first + 1
    series = []
    for place, buckets in by_place.items():
        span, first, last = spans[place], min(buckets), max(buckets)
        values = tuple(buckets.get(number, 0.0) / span for number in range(first, last + 1, span))
        most = max(values)
        series.append(Series(names[place], values, f"{counted(span, 'id')} a bucket, peak {size(most)} an id", most))
    yield ""
    yield look.bold("Bytes by transaction id (exact)")
    yield from _columns(series[:PARTITIONS_SHOWN], look)
    yield from _more(len(series))


def _bars(titles: Sequence[str], rows: Sequence[Sequence[str]], values: Sequence[int], look: Look) -> Iterator[str]:
    """A table whose last column is a bar."""
    most = max(values)
    taken = sum(max(len(row[n]) for row in (titles, *rows)) + 2 for n in range(len(titles)))
    length = max(min(look.columns - taken, 40), 8)
    drawn = [(*row, look.bar(value / most, length)) for row, value in zip(rows, values, strict=True)]
    yield from _table((*titles, ""), drawn, look, frozenset({len(titles)}))


def _sizes(report: StatsReport, look: Look) -> Iterator[str]:
    yield ""
    yield look.bold("Sizes of data")
    rows = [
        (class_name(one.lowest, one.highest), f"{one.records:,}", human_bytes(one.bytes)) for one in report.size_classes
    ]
    yield from _bars(("DATA", "RECORDS", "BYTES"), rows, [one.records for one in report.size_classes], look)


def _clients(report: StatsReport, look: Look) -> Iterator[str]:
    yield ""
    ranking = report.client_ranking
    yield look.bold(
        f"Clients: the first {len(report.clients):,} of {ranking.known:,}{'' if ranking.exact else ' or more'}"
    )
    rows = [
        (
            str(one.client),
            f"{one.records:,}",
            human_bytes(one.bytes),
            str(one.partitions),
            _span(one.lowest_generation, one.highest_generation),
        )
        for one in report.clients
    ]
    titles = ("CLIENT", "RECORDS", "BYTES", "PARTITIONS", "GENERATIONS")
    yield from _bars(titles, rows, [one.records for one in report.clients], look)
    if not ranking.exact:
        yield (
            f"There are too many clients to keep: any one may have up to {ranking.missed_records:,} more records and"
            f" {human_bytes(ranking.missed_bytes)} more than is shown."
        )


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}..{high}"


def _headers(report: StatsReport, look: Look) -> Iterator[str]:
    yield ""
    ranking = report.header_ranking
    more = "" if ranking.exact else " or more"
    yield look.bold(f"Header values: the first {len(report.headers):,} of {ranking.known:,}{more}")
    rows = [(str(one.header), f"{one.records:,}", human_bytes(one.bytes)) for one in report.headers]
    yield from _bars(("HEADER", "RECORDS", "BYTES"), rows, [one.records for one in report.headers], look)
    if not ranking.exact:
        yield f"There are too many to keep: any one may have up to {ranking.missed_records:,} more records than is shown."


def _gaps(report: StatsReport, names: dict[int, str]) -> Iterator[str]:
    total = sum(one.gaps for one in report.partitions)
    if not total:
        return
    yield ""
    yield f"Gaps: {counted(total, 'gap')}, {counted(sum(one.missing for one in report.partitions), 'transaction')} missing"
    for gap in report.gaps[:LINES_SHOWN]:
        ids = str(gap.first) if gap.first == gap.last else f"{gap.first} to {gap.last}"
        cause = "" if gap.cause is None else f"  {gap.cause}"
        yield f"  partition {names[gap.place]}  {ids}  ({gap.transactions:,}){cause}"
    if total > LINES_SHOWN:
        yield f"  and {total - LINES_SHOWN:,} more"


def _untimed(report: StatsReport) -> Iterator[str]:
    if not report.untimed:
        return
    yield ""
    yield (
        f"Without a time: {counted(report.untimed_records, 'record')} in {counted(len(report.untimed), 'segment')}, in no"
        " series over time"
    )
    for one in report.untimed[:LINES_SHOWN]:
        yield f"  {printable(str(one.path))}: {one.reason}"
    if len(report.untimed) > LINES_SHOWN:
        yield f"  and {len(report.untimed) - LINES_SHOWN:,} more"


def conclusion(report: StatsReport) -> str:
    """The last sentence."""
    missing = sum(one.missing for one in report.partitions)
    gaps = f", {counted(missing, 'transaction')} missing" if missing else ""
    found = f", {counted(len(report.findings), 'finding')}" if report.findings else ""
    known = report.client_ranking
    clients = f"{known.known:,}{'' if known.exact else ' or more'} {'client' if known.known == 1 else 'clients'}"
    return (
        f"{verdict(report.status)}  {counted(report.records, 'record')} ({human_bytes(report.bytes)}) of {clients} in"
        f" {counted(len(report.partitions), 'partition')} and {counted(report.segments, 'segment')}{gaps}{found},"
        f" {human_duration(report.elapsed_seconds)}. Nothing was modified."
    )
