"""pages status: what a page store holds, and how full its files are."""

from __future__ import annotations

from waltzctl.commands.pages.verify import StoreArgument
from waltzctl.console import Console
from waltzctl.exit_status import INSPECTING, ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption, path_of

MANUAL = Manual(
    name="status",
    page="pages",
    summary="Show what a page store holds and how full its files are",
    description=(
        (
            "Pages, references, log, and for each blob file the share that pages use. It reads the log and no data;"
            " only verify tells whether every page is intact."
        ),
    ),
    examples=(Example("waltzctl pages status /data/vault", "The whole store."),),
    statuses=INSPECTING,
    objects=("page-store-status",),
)


def run(
    path: StoreArgument,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Look and report."""
    store = path_of(path, name="DIR")

    from waltzctl.engine.findings import status_of, worst
    from waltzctl.engine.pages.inspection import store_status
    from waltzctl.objects.pages_objects import PAGE_STORE_STATUS

    with Console(output_format, quiet=quiet, verbose=verbose, single=True) as console:
        found = store_status(store)
        console.known = ExitStatus.from_label(status_of(worst(found.findings)))
        console.emit(PAGE_STORE_STATUS.shown(found), flush=True)
    return console.known
