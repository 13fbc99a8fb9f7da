"""The tables of a pipeline as one page of HTML, with the plots of ``waltzctl stats``: nothing is loaded, and no script runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from waltzctl import __version__
from waltzctl.render.stats_plots import Mark, Plot, bar, figure, opening, table, text
from waltzctl.values import human_bytes

if TYPE_CHECKING:
    from waltzctl.engine.pipeline.completeness import IncompleteRange
    from waltzctl.engine.pipeline.running import RunReport

ROWS = 1000
"""Rows of a table, at most."""
PLOTTED = 48
"""Partitions of replicas with plots, at most: those with the most records."""
Row = dict[str, Any]


def page(report: RunReport, name: str) -> Iterator[str]:
    """The page, in pieces, of a run whose report has the tables' rows."""
    yield opening(f"Waltz pipeline: {name}")
    yield f"<h1>Waltz pipeline</h1>\n<p class=path>{text(report.path)}</p>\n"
    gaps = report.gaps or ()
    yield _tiles(report)
    yield from _gaps(gaps)
    yield from _completeness(report.completeness)
    yield from _segments(report.activity, gaps)
    for dimension, title in (("client", "Clients"), ("header", "Headers")):
        yield from _ranking([one for one in report.activity if one["dimension"] == dimension], title)
    yield f"<footer>waltzctl {text(__version__)} pipeline run.</footer>\n</main>\n</body>\n</html>\n"


def _tiles(report: RunReport) -> str:
    rows = report.completeness
    tiles = [
        ("Replicas", f"{len({row['node'] for row in rows}):,}"),
        ("Partitions", f"{len({row['partition'] for row in rows}):,}"),
        *((title, f"{sum(row[key] for row in rows):,}") for title, key in _COUNTS),
    ]
    inner = "".join(f"<div><dt>{title}</dt><dd>{value}</dd></div>" for title, value in tiles)
    state = f'<div><dt>State</dt><dd class="{report.exit_status_name}">{report.exit_status_name}</dd></div>'
    return f"<dl>{inner}{state}</dl>\n"


_COUNTS = (("Present", "present"), ("Missing", "missing"), ("Damaged", "damaged"), ("Behind", "behind"))


def _gaps(gaps: Sequence[IncompleteRange]) -> Iterator[str]:
    yield "<h2>Gaps</h2>\n"
    if not gaps:
        yield "<p>Every replica has everything.</p>\n"
        return
    titles = ("Replica", "Partition", "Is", "From", "To", "Elsewhere", "What to do")
    rows = [
        [
            text(one.node or "every replica"), str(one.partition), text(one.kind), _number(one.first_transaction_id),
            _number(one.last_transaction_id), "yes" if one.elsewhere else "no",
            f"<span class=long>{text(one.remedy or '-')}</span>",
        ]
        for one in gaps[:ROWS]
    ]  # fmt: skip
    yield table(titles, rows, words=frozenset({0, 2, 5, 6}))
    yield from _left_out(len(gaps))


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _left_out(count: int) -> Iterator[str]:
    if count > ROWS:
        yield f'<p class="soft">The first {ROWS:,} of {count:,}.</p>\n'


def _completeness(rows: Sequence[Row]) -> Iterator[str]:
    yield "<h2>Completeness</h2>\n"
    titles = ("Replica", "Partition", "Expected", "Present", "", "Missing", "Damaged", "Behind", "Mark")
    shown = [
        [
            text(one["node"]), str(one["partition"]), f"{one['expected']:,}", f"{one['present']:,}",
            bar(one["present"] / max(one["expected"], 1), f"{one['present']:,} of {one['expected']:,}", "records"),
            *(f"{one[key]:,}" for _, key in _COUNTS[1:]), _number(one["mark"]),
        ]
        for one in sorted(rows, key=lambda one: (one["partition"], one["node"]))
    ]  # fmt: skip
    yield table(titles, shown[:ROWS], words=frozenset({0, 4}))
    yield from _left_out(len(shown))


def _segments(activity: Sequence[Row], gaps: Sequence[IncompleteRange]) -> Iterator[str]:
    """Bytes of a transaction along the ids, a column for each segment; missing ids in red."""
    segments: dict[tuple[int, str], list[Row]] = {}
    for one in activity:
        if one["dimension"] == "segment" and one["first_transaction_id"] is not None:
            segments.setdefault((one["partition"], one["node"]), []).append(one)
    if not segments:
        return
    yield "<h2>By transaction id</h2>\n"
    yield "<p>Bytes of a transaction, segment by segment. <span class=key></span>Red: what the replica lacks.</p>\n"
    most = sorted(segments, key=lambda place: (-sum(one["records"] for one in segments[place]), place))[:PLOTTED]
    yield '<div class="grid">\n'
    for number, place in enumerate(sorted(most)):
        yield figure(
            _plot(place, sorted(segments[place], key=lambda one: one["first_transaction_id"]), gaps), f"p{number}"
        )
    yield "</div>\n"


def _plot(place: tuple[int, str], rows: Sequence[Row], gaps: Sequence[IncompleteRange]) -> Plot:
    partition, node = place
    low, high = rows[0]["first_transaction_id"], max(one["last_transaction_id"] for one in rows) + 1
    values = [one["bytes"] / max(one["records"], 1) for one in rows]
    most = max(values)
    room = max(high - low, 1)
    marks = [
        Mark((max(first, low) - low) / room, (min(last + 1, high) - low) / room, f"{one.kind}: {first} to {last}")
        for one in gaps
        if one.partition == partition and one.node in (node, None) and (first := one.first_transaction_id) is not None
        if (last := first if one.last_transaction_id is None else one.last_transaction_id) >= low and first < high
    ]
    tips = [
        f"transactions {one['first_transaction_id']} to {one['last_transaction_id']}: {one['records']:,} records,"
        f" {human_bytes(one['bytes'])}{_rate(one)}"
        for one in rows
    ]
    heights = human_bytes(round(most)), human_bytes(round(most / 2))
    said = f"{len(rows)} segments, transactions {low} to {high - 1}; the most is {heights[0]} a transaction."
    return Plot(
        f"Partition {partition} of {node}", said, values, most, (str(low), str(high - 1)), heights, tips, marks, "bytes"
    )


def _rate(row: Row) -> str:
    return "" if row["records_per_second"] is None else f", {row['records_per_second']:,.1f} records/s"


def _ranking(rows: Sequence[Row], title: str) -> Iterator[str]:
    """By what all replicas together hold of it, each record counted in the replica that has most of them."""
    held: dict[str, dict[str, list[int]]] = {}
    for one in rows:
        sums = held.setdefault(one["value"], {}).setdefault(one["node"], [0, 0])
        sums[0] += one["records"]
        sums[1] += one["bytes"]
    largest = {value: max(nodes.values()) for value, nodes in held.items()}
    if not largest:
        return
    yield f"<h2>{title}</h2>\n"
    ranked = sorted(largest.items(), key=lambda one: (-one[1][0], one[0]))
    top = ranked[0][1][0] or 1
    shown = [
        [text(value), f"{records:,}", bar(records / top, f"{records:,} records", "records"), text(human_bytes(size))]
        for value, (records, size) in ranked[:ROWS]
    ]
    yield table((title[:-1], "Records", "", "Bytes"), shown, words=frozenset({0, 2}))
    yield from _left_out(len(ranked))
