"""The options of commands that dump storage: the records or parts to show, and their form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.options import DataForm, DumpFormat, What, path_of, transaction_range, with_shared

if TYPE_CHECKING:
    from collections.abc import Collection

    from waltzctl.storage_dump import DumpRequest


@dataclass(frozen=True, slots=True)
class Dumping:
    """The options of a dump."""

    what: Annotated[What | None, typer.Option("--what", help="What to show; the default depends on PATH.")] = None
    first: Annotated[int | None, typer.Option("--from", metavar="T", min=0, help="First transaction.")] = None
    last: Annotated[int | None, typer.Option("--to", metavar="T", min=0, help="Last transaction.")] = None
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most this many objects.")] = None
    reverse: Annotated[bool, typer.Option("--reverse", help="Last record first.")] = False
    data: Annotated[DataForm | None, typer.Option("--data", help="Form of the data; default base64.")] = None
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to FILE, which appears when it is complete."),
    ] = None
    output_format: Annotated[
        DumpFormat | None,
        typer.Option("--format", help="Form of the output; default: table on a terminal, plain elsewhere."),
    ] = None

    def check(self) -> None:
        """Raise typer.BadParameter for an invalid combination."""
        transaction_range(self.first, self.last)
        if self.output_format is DumpFormat.RAW and self.data is not None:
            raise typer.BadParameter("raw is the data as it is", param_hint="'--data'")
        if self.output_format is DumpFormat.HEXDUMP and self.data not in (None, DataForm.NONE):
            raise typer.BadParameter("a hexdump shows bytes, or with none no data", param_hint="'--data'")

    def request(self, path: PurePath, partitions: Collection[int] | None, *, quiet: bool, verbose: int) -> DumpRequest:
        """The request for a path.  Raises typer.BadParameter."""
        from waltzctl.storage_dump import DumpRequest

        return DumpRequest(
            path=path,
            what=self.what,
            partitions=partitions,
            first=self.first,
            last=self.last,
            limit=self.limit,
            reverse=self.reverse,
            data=self.data,
            format=self.output_format,
            output=None if self.output is None else path_of(self.output, name="-o"),
            quiet=quiet,
            verbose=verbose,
        )


with_dumping = with_shared(Dumping, "dumping")
"""A decorator that gives a command these options, as one argument, `dumping`."""
