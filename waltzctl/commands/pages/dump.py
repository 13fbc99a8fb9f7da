"""pages dump: pages, their versions, the log edit by edit, or the free ranges."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.commands.pages.verify import StoreArgument
from waltzctl.console import Console
from waltzctl.exit_status import INSPECTING, ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption, path_of

if TYPE_CHECKING:
    from waltzctl.engine.columns.column import Object
    from waltzctl.engine.pages.inspection import StoreView


class PageWhat(enum.StrEnum):
    """What is dumped of a page store."""

    PAGES = "pages"
    VERSIONS = "versions"
    LOG = "log"
    FREE = "free"


MANUAL = Manual(
    name="dump",
    page="pages",
    summary="Show pages, versions, the log or free ranges of a page store",
    description=(
        (
            "pages: every current page. versions: also superseded or deleted versions, as far as the log still has"
            " them. log: every readable edit, in the order in which edits are applied; an edit whose record is stored"
            " twice is shown once. free: bytes of blob files that no page uses. Findings of the log are shown first,"
            " and everything after damage is shown."
        ),
    ),
    examples=(
        Example("waltzctl pages dump /data/vault", "Offset and size of every page."),
        Example("waltzctl pages dump /data/vault --what log", "The log, edit by edit."),
    ),
    statuses=INSPECTING,
    objects=("finding", "page-version", "page-log-edit", "page-free-range"),
)


def run(
    path: StoreArgument,
    what: Annotated[PageWhat, typer.Option("--what", help="What to show.")] = PageWhat.PAGES,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Read and show."""
    store = path_of(path, name="DIR")

    from waltzctl.engine.columns.finding_columns import FINDING
    from waltzctl.engine.findings import status_of, worst
    from waltzctl.engine.pages.inspection import view_store

    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        view = view_store(store, every_version=what is PageWhat.VERSIONS)
        console.known = ExitStatus.from_label(status_of(worst(view.findings)))
        for finding in view.findings:
            console.emit(FINDING.shown(finding))
        for shown in _objects(view, what):
            console.emit(shown)
    return console.known


def _objects(view: StoreView, what: PageWhat) -> Iterator[Object]:
    from waltzctl.engine.pages.inspection import dump_free, dump_log, dump_versions
    from waltzctl.objects.pages_objects import FREE_RANGE, LOG_EDIT, PAGE_VERSION

    if what is PageWhat.LOG:
        yield from map(LOG_EDIT.shown, dump_log(view))
    elif what is PageWhat.FREE:
        yield from map(FREE_RANGE.shown, dump_free(view))
    else:
        yield from map(PAGE_VERSION.shown, dump_versions(view))
