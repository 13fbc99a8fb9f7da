"""stats as one HTML page: it loads no resources, has no scripts, and escapes all text from the storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from waltzctl import __version__
from waltzctl.render.stats_plots import Mark, Plot, bar, details, figure, opening, strip, table, text
from waltzctl.render.stats_terminal import (
    ESTIMATE,
    amount,
    class_name,
    moment,
    partition_names,
    rate,
    series_bound,
    size,
    time_series,
    total_of,
    width_text,
)
from waltzctl.values import counted, human_bytes

if TYPE_CHECKING:
    from waltzctl.engine.stats.report import MissingIds, PartitionStats, StatsReport

PLOTTED = 48
"""Partitions with plots, at most: those with the most records.  The tables have all."""
POINTED = 16
"""Partitions whose plots have tooltips with the numbers, at most."""
ROWS = 1000
"""Rows of a table of gaps, findings, segments or buckets, at most."""


def page(report: StatsReport, paths: Sequence[PurePath]) -> Iterator[str]:
    """The page, in pieces."""
    yield opening(f"Waltz statistics: {', '.join(map(str, paths))}")
    yield f"<h1>Waltz statistics</h1>\n{''.join(f'<p class=path>{text(path)}</p>' for path in paths)}\n"
    yield _tiles(report)
    view = _View(report)
    yield from view.partitions()
    if report.records:
        yield from view.over_time()
        yield from view.by_id()
        yield from view.sizes()
        yield from view.clients()
        yield from view.headers()
    yield from view.gaps()
    yield from view.untimed()
    yield from view.findings()
    yield f"<footer>waltzctl {text(__version__)} stats. Nothing was modified.</footer>\n</main>\n</body>\n</html>\n"


def _tiles(report: StatsReport) -> str:
    known = report.client_ranking
    missing = sum(one.missing for one in report.partitions)
    tiles = [
        ("Records", f"{report.records:,}"),
        ("Bytes on disk", human_bytes(report.bytes)),
        ("Partitions", f"{len(report.partitions):,}"),
        ("Segments", f"{report.segments:,}"),
        ("Clients", f"{known.known:,}{'' if known.exact else ' or more'}"),
        ("Missing ids", f"{missing:,}"),
        ("Findings", f"{len(report.findings):,}"),
    ]
    inner = "".join(f"<div><dt>{name}</dt><dd>{text(value)}</dd></div>" for name, value in tiles)
    state = f'<div><dt>State</dt><dd class="{report.status}">{text(report.status)}</dd></div>'
    return f"<dl>{inner}{state}</dl>\n"


def _label(milliseconds: int, span: int) -> str:
    """A time as the label of an axis with a length of `span` milliseconds."""
    shown = moment(milliseconds)
    if span <= 10 * 60_000:
        return shown[11:]
    return shown[:10] if span > 90 * 86_400_000 else shown[5:16]


class _View:
    """The parts of the page."""

    def __init__(self, report: StatsReport) -> None:
        self._report = report
        self._names = partition_names(report)
        self._places = {one.place: one for one in report.partitions}
        ranked = sorted(report.partitions, key=lambda one: (-one.records, one.place))
        self._plotted = sorted(one.place for one in ranked[:PLOTTED] if one.records)
        self._pointed = {one.place for one in ranked[:POINTED]}
        self._number = 0

    def _figure(self, plot: Plot, below: str = "") -> str:
        self._number += 1
        return figure(plot, f"p{self._number}", below)

    def _called(self, place: int) -> str:
        return f"partition {self._names[place]}"

    def partitions(self) -> Iterator[str]:
        """The table of all partitions, with their mean rates."""
        partitions = self._report.partitions
        yield "<h2>Partitions</h2>\n"
        titles = (
            "Partition",
            "Segments",
            "Records",
            "Bytes",
            "Transactions",
            "Missing",
            "Repeated",
            "From (UTC)",
            "To (UTC)",
        )
        rows = [[*map(text, self._partition_row(one))] for one in partitions]
        yield table(titles, rows, words=frozenset({0, 7, 8}))
        yield "<h2>Rates</h2>\n"
        yield "<p class='soft'>Means over the time that the segments took, as far as their times are known.</p>\n"
        fastest = max((one.records_per_second or 0 for one in partitions), default=0) or 1
        widest = max((one.bytes_per_second or 0 for one in partitions), default=0) or 1
        rates = []
        for one in partitions:
            records, amount_of = rate(one.records_per_second, amount), rate(one.bytes_per_second, size)
            rates.append(
                [
                    text(self._names[one.place]),
                    text(records),
                    bar((one.records_per_second or 0) / fastest, f"{records} records", "records"),
                    text(amount_of),
                    bar((one.bytes_per_second or 0) / widest, amount_of, "bytes"),
                ]
            )
        yield table(("Partition", "Transactions", "", "Bytes", ""), rates, words=frozenset({0, 2, 4}))

    def _partition_row(self, one: PartitionStats) -> list[str]:
        ids = "-" if one.first_transaction_id is None else f"{one.first_transaction_id} - {one.last_transaction_id}"
        times = ("-", "-")
        if one.interval is not None:
            times = (moment(one.interval.start), moment(one.interval.end))
        numbers = (f"{number:,}" for number in (one.missing, one.repeated))
        return [
            self._names[one.place], f"{one.segments:,}", f"{one.records:,}", human_bytes(one.bytes), ids, *numbers, *times,
        ]  # fmt: skip

    def over_time(self) -> Iterator[str]:
        """Rates by time bucket, of all partitions together and of each."""
        report = self._report
        extent = report.extent
        yield "<h2>Over time</h2>\n"
        both = [(kind, time_series(report, "partition", of_bytes=kind == "bytes")) for kind in ("records", "bytes")]
        if extent is None or not both[0][1]:
            yield "<p>No segment has times that can be true, so there is nothing over time.</p>\n"
            return
        yield (
            f"<p>Estimated. {text(ESTIMATE)}</p>\n<p class='soft'>{text(moment(extent.start))} to"
            f" {text(moment(extent.end))} UTC; a column is {text(width_text(report.width))}.</p>\n"
        )
        yield '<div class="wide">'
        for kind, rows in both:
            yield self._time_figure(kind, total_of(rows), "All partitions", said=True, numbers=kind == "bytes")
        yield "</div>\n"
        if len(self._plotted) > 1 or len(report.partitions) > 1:
            by_place = {kind: dict(rows) for kind, rows in both}
            shown = [place for place in self._plotted if place in by_place["records"]]
            yield from self._left_out(len(by_place["records"]), len(shown))
            yield '<div class="grid">\n'
            for place in shown:
                yield "<div>"
                for kind, series in by_place.items():
                    called = self._called(place).capitalize()
                    yield self._time_figure(kind, series[place], called, said=place in self._pointed, numbers=False)
                yield "</div>\n"
            yield "</div>\n"

    def _left_out(self, known: int, shown: int) -> Iterator[str]:
        if known > shown:
            yield (
                f'<p class="soft">The {shown} partitions with most records; --format ndjson has the numbers of all'
                f" {known:,}.</p>\n"
            )

    def _time_figure(self, kind: str, values: Sequence[float], called: str, *, said: bool, numbers: bool) -> str:
        report = self._report
        extent, width = report.extent, report.width
        assert extent is not None
        unit = size if kind == "bytes" else amount
        noun = "bytes" if kind == "bytes" else "transactions"
        start = extent.start // width * width
        moments = [start + width * number for number in range(len(values) + 1)]
        span = moments[-1] - moments[0]
        most = max(values)
        tips = [f"{moment(at)} UTC: {rate(value, unit)}" for at, value in zip(moments, values, strict=False)]
        middle = (moments[0] + moments[-1]) // 2
        plot = Plot(
            f"{called}: {noun} over time",
            f"{len(values)} columns of {width_text(width)} from {moment(moments[0])} to {moment(moments[-1])} UTC; the highest is"
            f" {rate(most, unit)}.",
            values,
            most,
            tuple(_label(at, span) for at in (moments[0], middle, moments[-1])),
            (rate(most, unit), rate(most / 2, unit)),
            tips if said else (),
            kind=kind,
        )
        return self._figure(plot, self._numbers() if numbers else "")

    def _numbers(self) -> str:
        """All partitions' buckets as a table."""
        sums: dict[int, list[int]] = {}
        for bucket in self._report.time_buckets:
            if bucket.by == "partition":
                total = sums.setdefault(bucket.start, [0, 0])
                total[0] += bucket.records
                total[1] += bucket.bytes
        width = self._report.width
        rows = [
            [text(moment(at)), f"{one[0]:,}", text(human_bytes(one[1])), text(rate(one[0] * 1000 / width, amount))]
            for at, one in sorted(sums.items())[:ROWS]
        ]
        titles = ("From (UTC)", "Transactions", "Bytes", "Rate")
        return details("The numbers as a table", table(titles, rows, words=frozenset({0})))

    def by_id(self) -> Iterator[str]:
        """Bytes along the ids of each partition, gaps marked."""
        report = self._report
        gaps: dict[int, list[MissingIds]] = {}
        for gap in report.gaps:
            gaps.setdefault(gap.place, []).append(gap)
        buckets: dict[int, list[tuple[int, int, int]]] = {}
        for one in report.id_buckets:
            buckets.setdefault(one.place, []).append((one.first, one.last, one.bytes))
        yield "<h2>By transaction id</h2>\n"
        yield (
            "<p>Exact. Bytes of the records of each range of ids, as a mean of one id."
            f" {'<span class=key></span>Red: ids that no record has.' if gaps else 'No id is missing.'}</p>\n"
        )
        yield from self._left_out(len(buckets), len(self._plotted))
        yield '<div class="grid">\n'
        for place in self._plotted:
            yield self._id_figure(place, buckets[place], gaps.get(place, []))
        yield "</div>\n"

    def _id_figure(self, place: int, buckets: list[tuple[int, int, int]], gaps: Iterable[MissingIds]) -> str:
        one = self._places[place]
        assert one.first_transaction_id is not None
        assert one.last_transaction_id is not None
        lowest, behind = one.first_transaction_id, one.last_transaction_id + 1
        span = buckets[0][1] - buckets[0][0] + 1
        first = buckets[0][0]
        values = [0.0] * ((buckets[-1][1] + 1 - first) // span)
        tips = [""] * len(values)
        for number in range(len(values)):
            begin, end = max(first + span * number, lowest), min(first + span * (number + 1), behind)
            tips[number] = f"transactions {begin} to {end - 1}"
        for begin, last, amount_of in buckets:
            number = (begin - first) // span
            values[number] = amount_of / (min(last + 1, behind) - max(begin, lowest))
            tips[number] += f": {size(values[number])} an id"
        most = max(values)
        room = behind - lowest
        marks = [
            Mark((gap.first - lowest) / room, (gap.last + 1 - lowest) / room, _gap_text(gap))
            for gap in gaps
            if gap.first >= lowest
        ]
        plot = Plot(
            f"{self._called(place).capitalize()}: bytes by transaction id",
            f"Transactions {lowest} to {behind - 1} in columns of {span}; the highest is {size(most)} an id;"
            f" {counted(one.gaps, 'gap')} with {one.missing} missing.",
            values,
            most,
            (str(lowest), str(behind - 1)),
            (size(most), size(most / 2)),
            tips if place in self._pointed else (),
            marks,
            "bytes",
            (lowest - first) / span,
            room / span,
        )
        return self._figure(plot)

    def sizes(self) -> Iterator[str]:
        """The histogram of data lengths."""
        report = self._report
        yield "<h2>Sizes of data</h2>\n"
        records = max(one.records for one in report.size_classes)
        most = max(one.bytes for one in report.size_classes)
        series = dict(time_series(report, "size-class", of_bytes=False))
        highest = max((max(row) for row in series.values()), default=0)
        rows = [
            [
                text(class_name(one.lowest, one.highest)),
                f"{one.records:,}",
                bar(one.records / records, f"{one.records:,} records", "records"),
                text(human_bytes(one.bytes)),
                bar(one.bytes / most, human_bytes(one.bytes), "bytes"),
                self._strip(series.get(one.number), highest),
            ]
            for one in report.size_classes
        ]
        titles = ("Data", "Records", "", "Bytes", "", "Transactions over time")
        yield table(titles, rows, words=frozenset({0, 2, 4, 5}))

    def _strip(self, values: Sequence[float] | None, most: float) -> str:
        return "-" if not values else strip(values, most, f"peak {rate(max(values), amount)}", "records")

    def clients(self) -> Iterator[str]:
        """The first ones."""
        report = self._report
        ranking = report.client_ranking
        yield f"<h2>Clients: the first {len(report.clients):,} of {ranking.known:,}{'' if ranking.exact else ' or more'}</h2>\n"
        if not ranking.exact:
            yield (
                f"<p>There are too many clients to keep: any one may have up to {ranking.missed_records:,} more records and"
                f" {text(human_bytes(ranking.missed_bytes))} more than is shown.</p>\n"
            )
        if not report.client_series.exact:
            yield f"<p>{text(series_bound(report))}</p>\n"
        records = max(one.records for one in report.clients)
        most = max(one.bytes for one in report.clients)
        series = dict(time_series(report, "client", of_bytes=False))
        highest = max((max(row) for row in series.values()), default=0)
        rows = [
            [
                str(one.client),
                f"{one.records:,}",
                bar(one.records / records, f"{one.records:,} records", "records"),
                text(human_bytes(one.bytes)),
                bar(one.bytes / most, human_bytes(one.bytes), "bytes"),
                str(one.partitions),
                f"{one.lowest_generation} - {one.highest_generation}",
                self._strip(series.get(one.client), highest),
            ]
            for one in report.clients
        ]
        titles = ("Client", "Records", "", "Bytes", "", "Partitions", "Generations", "Transactions over time")
        yield table(titles, rows, words=frozenset({2, 4, 7}))

    def headers(self) -> Iterator[str]:
        """The values that most records have."""
        report = self._report
        ranking = report.header_ranking
        more = "" if ranking.exact else " or more"
        yield f"<h2>Header values: the first {len(report.headers):,} of {ranking.known:,}{more}</h2>\n"
        records = max(one.records for one in report.headers)
        rows = [
            [
                str(one.header),
                f"{one.records:,}",
                bar(one.records / records, f"{one.records:,} records", "records"),
                text(human_bytes(one.bytes)),
            ]
            for one in report.headers
        ]
        yield table(("Header", "Records", "", "Bytes"), rows, words=frozenset({2}))

    def gaps(self) -> Iterator[str]:
        """Ids without a record."""
        report = self._report
        total = sum(one.gaps for one in report.partitions)
        if not total:
            return
        yield f"<h2>Gaps: {total:,}</h2>\n"
        rows = [
            [
                text(self._names[gap.place]),
                str(gap.first),
                str(gap.last),
                f"{gap.transactions:,}",
                text(gap.cause or "-"),
            ]
            for gap in report.gaps[:ROWS]
        ]
        yield table(("Partition", "First", "Last", "Transactions", "Finding"), rows, words=frozenset({0, 4}))
        yield from _rest(total)

    def untimed(self) -> Iterator[str]:
        """Segments that no series over time includes."""
        report = self._report
        if not report.untimed:
            return
        yield f"<h2>Without a time: {counted(len(report.untimed), 'segment')}</h2>\n"
        yield f"<p>{counted(report.untimed_records, 'record')} of these segments are in no series over time.</p>\n"
        rows = [
            [
                _long(one.path, "long path"),
                f"{one.records:,}",
                text(human_bytes(one.bytes)),
                _long(one.reason),
            ]
            for one in report.untimed[:ROWS]
        ]
        yield table(("Segment", "Records", "Bytes", "Why"), rows, words=frozenset({0, 3}))
        yield from _rest(len(report.untimed))

    def findings(self) -> Iterator[str]:
        """The findings."""
        found = self._report.findings
        if not found:
            return
        yield f"<h2>Findings: {len(found):,}</h2>\n"
        rows = [
            [
                text(one.severity),
                text(one.code),
                _long(one.path, "long path"),
                "-" if one.transaction_id is None else str(one.transaction_id),
                _long(one.message),
            ]
            for one in found[:ROWS]
        ]
        yield table(("Severity", "Code", "Path", "Transaction", "What"), rows, words=frozenset({0, 1, 2, 4}))
        yield from _rest(len(found))


def _long(words: object, kind: str = "long") -> str:
    """Text that may wrap."""
    return f'<span class="{kind}">{text(words)}</span>'


def _gap_text(gap: MissingIds) -> str:
    ids = f"transaction {gap.first}" if gap.first == gap.last else f"transactions {gap.first} to {gap.last}"
    return f"{ids} missing{'' if gap.cause is None else f': {gap.cause}'}"


def _rest(total: int) -> Iterator[str]:
    if total > ROWS:
        yield f'<p class="soft">and {total - ROWS:,} more; --format ndjson has them.</p>\n'
