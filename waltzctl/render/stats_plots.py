"""Plots as inline SVG: only shapes, scaled to the available width; labels are text of the page beside them.

So text keeps its size on a small screen, and nothing is cut off or overlaps.  Every plot has a title and a description for screen
readers, and the page has the numbers as a table.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from waltzctl.values import printable

HEIGHT = 100
TOLD = 200
"""Buckets of a plot up to which each has a tooltip with its numbers."""


def text(value: object) -> str:
    """Text escaped for HTML: paths and names may contain anything."""
    return html.escape(printable(str(value)), quote=True)


@dataclass(frozen=True, slots=True)
class Mark:
    """A marked range of the axis, as fractions of its length, with its tooltip."""

    start: float
    end: float
    said: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A column chart.

    `most`: the value of the full height.  `said`: the tooltip of each column, or none.  `axis`: labels along the axis, evenly
    spaced from end to end; `heights`: labels at the top and in the middle.  `origin` and `length`: the shown range, in columns,
    if it is not all of them; marks are fractions of that range.
    """

    title: str
    description: str
    values: Sequence[float]
    most: float
    axis: tuple[str, ...]
    heights: tuple[str, str]
    said: Sequence[str] = ()
    marks: Sequence[Mark] = ()
    kind: str = "records"
    origin: float = 0
    length: float | None = None


def opening(title: str) -> str:
    """The beginning of a page, before its contents; the page loads no resources, and has no scripts."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
    )


def outline(values: Sequence[float], most: float) -> str:
    """The SVG path of columns of width 1; a column with a value above 0 is always visible."""
    if not most:
        return ""
    parts = []
    for place, value in enumerate(values):
        if value > 0:
            top = HEIGHT - max(value / most * HEIGHT, 1)
            parts.append(f"M{place} {HEIGHT}V{top:.4g}h1V{HEIGHT}z")
    return "".join(parts)


def svg(plot: Plot, name: str) -> str:
    """The SVG element alone.  `name`: the prefix of its ids, unique on the page."""
    count = max(len(plot.values), 1) if plot.length is None else plot.length
    tips = ""
    if plot.said and len(plot.said) <= TOLD:
        tips = "".join(
            f'<rect class="tip" x="{place}" y="0" width="1" height="{HEIGHT}"><title>{text(said)}</title></rect>'
            for place, said in enumerate(plot.said)
        )
    thin = count / 300
    marks = "".join(
        f'<rect class="gap" x="{plot.origin + min(mark.start * count, count - thin):.5g}" y="0"'
        f' width="{max((mark.end - mark.start) * count, thin):.5g}" height="{HEIGHT}"><title>{text(mark.said)}</title></rect>'
        for mark in plot.marks
    )
    return (
        f'<svg class="plot" viewBox="{plot.origin:.5g} 0 {count:.5g} {HEIGHT}" preserveAspectRatio="none" role="img"'
        f' aria-labelledby="{name}t {name}d"><title id="{name}t">{text(plot.title)}</title>'
        f'<desc id="{name}d">{text(plot.description)}</desc>'
        f'<path class="{plot.kind}" d="{outline(plot.values, plot.most)}"/>{tips}{marks}</svg>'
    )


def figure(plot: Plot, name: str, below: str = "") -> str:
    """The figure: SVG element, title, axes, and `below` it a table, as HTML."""
    upper, middle = plot.heights
    axis = "".join(f"<span>{text(label)}</span>" for label in plot.axis)
    return (
        f"<figure><figcaption>{text(plot.title)}</figcaption>"
        f'<div class="chart"><div class="y" aria-hidden="true"><span>{text(upper)}</span><span>{text(middle)}</span>'
        f'<span>0</span></div><div class="room">{svg(plot, name)}</div></div>'
        f'<div class="x" aria-hidden="true">{axis}</div>{below}</figure>\n'
    )


def bar(share: float, said: str, kind: str) -> str:
    """A bar in a table's row, which has the number as text."""
    width = max(share * 100, 0.7 if share > 0 else 0)
    return (
        f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{text(said)}">'
        f'<rect class="{kind}" width="{width:.4g}" height="10"/></svg>'
    )


def strip(values: Sequence[float], most: float, said: str, kind: str) -> str:
    """A small plot for a table's row."""
    return (
        f'<svg class="strip" viewBox="0 0 {max(len(values), 1)} {HEIGHT}" preserveAspectRatio="none" role="img"'
        f' aria-label="{text(said)}"><path class="{kind}" d="{outline(values, most)}"/></svg>'
    )


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, words: frozenset[int] = frozenset()) -> str:
    """A table.  Cells are HTML; the columns in `words` are text or figures, all others numbers."""

    def cells(row: Sequence[str], tag: str) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        return "".join(f"<{tag}{scope}{'' if n in words else ' class=n'}>{cell}</{tag}>" for n, cell in enumerate(row))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>\n" for row in rows)
    head = cells([text(title) for title in titles], "th")
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n'
    )


def details(summary: str, inner: str) -> str:
    """A section that is closed until it is clicked (``<details>``)."""
    return f"<details><summary>{text(summary)}</summary>{inner}</details>"


STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1b2027;--soft:#57606b;--line:#d3d9e0;--card:#f5f7f9;
--records:#2a6db0;--bytes:#b3621b;--gap:#c5283d;--good:#1c7a43}
@media (prefers-color-scheme:dark){:root{--page:#14181d;--ink:#e6e9ed;--soft:#a3adb8;--line:#38414b;--card:#1d232a;
--records:#6aa9e9;--bytes:#e39a55;--gap:#ff6b7a;--good:#62c88d}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:74rem;margin:0 auto;padding:1.2rem}
h1{font-size:1.5rem;margin:0 0 .2rem}h2{font-size:1.2rem;margin:2.2rem 0 .5rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1rem 0 .3rem}
p{margin:.4rem 0;max-width:60rem}.soft,figcaption,.x,.y,dt{color:var(--soft)}
.path{overflow-wrap:anywhere;font-family:ui-monospace,monospace;font-size:.88em}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(8rem,1fr));gap:.6rem;margin:1rem 0}
dl div{background:var(--card);border:1px solid var(--line);border-radius:.4rem;padding:.5rem .7rem}
dt{font-size:.82rem}dd{margin:0;font-size:1.15rem;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.damaged,.repairable{color:var(--gap)}.clean{color:var(--good)}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,22rem),1fr));gap:1rem}
figure{margin:.6rem 0;min-width:0}figcaption{font-size:.9rem;margin-bottom:.2rem;overflow-wrap:anywhere}
.chart{display:flex;gap:.5rem}.room{flex:1;min-width:0;border-left:1px solid var(--line);border-bottom:1px solid var(--line);
background:linear-gradient(var(--line),var(--line)) 0 0/100% 1px no-repeat,
linear-gradient(var(--line),var(--line)) 0 50%/100% 1px no-repeat}
.plot{display:block;width:100%;height:8rem}.wide .plot{height:11rem}
.y{display:flex;flex-direction:column;justify-content:space-between;text-align:right;font-size:.75rem;width:4.8rem;flex:none;
margin:-.55em 0;white-space:nowrap}
.x{display:flex;justify-content:space-between;gap:.5rem;font-size:.75rem;margin:.2rem 0 0 5.3rem}
.x span{min-width:0}.x span:last-child{text-align:right}
.records{fill:var(--records)}.bytes{fill:var(--bytes)}.gap{fill:var(--gap);fill-opacity:.8}
.tip{fill:transparent}.tip:hover{fill:var(--ink);fill-opacity:.15}
.key{display:inline-block;width:.8em;height:.8em;background:var(--gap);opacity:.8;margin-right:.3em}
.scroll{overflow-x:auto;margin:.5rem 0}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.2rem .6rem .2rem 0;border-bottom:1px solid var(--line);vertical-align:middle}
th{font-weight:600;color:var(--soft)}th,td{white-space:nowrap}.n{text-align:right}
.long{display:block;white-space:normal;min-width:15rem;max-width:40rem;overflow-wrap:anywhere}
.bar{display:block;width:8rem;height:.8rem}.strip{display:block;width:11rem;height:1.6rem;border-bottom:1px solid var(--line)}
details{margin:.3rem 0}summary{cursor:pointer;color:var(--soft);font-size:.85rem}
footer{margin:2rem 0 1rem;color:var(--soft);font-size:.85rem}
@media (max-width:34rem){main{padding:.8rem}.y{width:3.9rem}.x{margin-left:4.4rem}.bar{width:3.6rem}.strip{width:7rem}}
@media print{details{display:none}}
"""
