"""dump: show what is in the files, damaged places included."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.connection_options import (
    SECURITY,
    Connecting,
    nodes_of,
    refuse_with_node,
    refuse_without_node,
    with_connection,
)
from waltzctl.dump_options import Dumping, with_dumping
from waltzctl.engines import ENGINE, Computing, with_engine
from waltzctl.exit_status import INSPECTING, ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import (
    DataForm,
    DumpFormat,
    PartitionsOption,
    QuietOption,
    VerboseOption,
    What,
    partitions_of,
    path_of,
    place_of,
)

MANUAL = Manual(
    name="dump",
    summary="Show control file, segments, indexes or records",
    description=(
        (
            "PATH is a storage directory, a partition directory, or one .ctl, .seg or .idx file. By default it shows"
            " records for a directory or a .seg file, the index for an .idx file, and the control file for a .ctl"
            " file; --what selects another view."
        ),
        ("waltz://HOST:PORT, the address of a node's admin port, shows the node's records, without file offsets."),
        (
            "Damage appears as a finding at its place, what follows it is still shown, and the exit status reports it."
            " Nothing is locked or changed."
        ),
    ),
    examples=(
        Example("waltzctl dump /data/waltz --partition 3 --from 81230 --to 81240", "Eleven transactions."),
        Example("waltzctl dump /data/waltz --partition 3 --reverse --limit 1", "The last record."),
        Example(
            "waltzctl dump /data/waltz --partition 0-3 --format ndjson --data utf8 -o records.ndjson",
            "Everything in four partitions, as text, into a file.",
        ),
        Example(
            "waltzctl dump /data/waltz --partition 3 --from 7 --to 7 --format raw -o payload.bin",
            "The bytes of one record's data.",
        ),
        Example("waltzctl dump /data/waltz/waltz-storage.ctl --format hexdump", "Every field of the control file."),
        Example(
            "waltzctl dump /data/waltz --export parquet -o records.parquet", "A table for anything that reads Parquet."
        ),
        Example("waltzctl dump waltz://127.0.0.1:55281 --partition 3 --limit 10", "Records of a running node."),
    ),
    statuses=(*INSPECTING[:-1], ExitStatus.REFUSED, ExitStatus.INTERRUPTED),
    objects=("record", "finding", "control", "partition-info", "segment", "index-entry"),
    sections=(
        ManualSection(
            "FORMATS",
            (
                (
                    "table: columns, for a terminal; data as text, shortened to the line. plain: columns separated by"
                    " tabs, never shortened. json: an array. ndjson: one object per line."
                ),
                "hexdump: the bytes as they are in the file, with the file offset and the name of every field.",
                "raw: only the data of the records, concatenated.",
            ),
        ),
        ManualSection(
            "DATA",
            (
                (
                    "base64 (data_b64) and hex (data_hex) show any bytes. utf8 and json put text or a JSON value under"
                    " data. If the bytes are not valid text or JSON, or JSON would lose something (a duplicate key, a"
                    " number that is read as infinite), data is null and data_b64 holds the bytes. none leaves the"
                    " data out and is fastest."
                ),
            ),
        ),
        ManualSection(
            "TABLES",
            (
                (
                    "--export FORMAT writes records (or segments, index, control, as --what says) as a table into the"
                    " new directory -o DIR. It has the columns of the Spark data source: the storage first, then those"
                    " of a record, data as bytes, and finding with the code of any damage at that place. The findings"
                    " follow as objects."
                ),
                (
                    "waltzctl itself writes parquet and orc; with --engine spark any format that Spark knows by name"
                    " can be written. The directory appears once it is complete."
                ),
            ),
        ),
        ENGINE,
        SECURITY,
    ),
)


@with_engine
@with_connection
@with_dumping
def run(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A directory, a .ctl, .seg or .idx file, or waltz://HOST:PORT.", show_default=False
        ),
    ],
    dumping: Dumping = Dumping(),  # noqa: B008  # frozen
    export: Annotated[
        str | None,
        typer.Option(
            "--export", metavar="FORMAT", help="Write a table into the new directory -o DIR: parquet, json, delta, ..."
        ),
    ] = None,
    partition: PartitionsOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    connection: Connecting = Connecting(),  # noqa: B008  # frozen
    computing: Computing = Computing(),  # noqa: B008  # frozen
) -> ExitStatus:
    """Show it."""
    partitions = partitions_of(partition)
    dumping.check()
    what, data, output = dumping.what, dumping.data, dumping.output

    nodes = nodes_of([path], name="PATH")
    if nodes is not None:
        if what not in (None, What.RECORDS):
            raise typer.BadParameter("a node shows its records only", param_hint="'--what'")
        refuse_with_node(reverse=dumping.reverse, export=export, **computing.given)
        if dumping.output_format is DumpFormat.HEXDUMP:
            raise typer.BadParameter("a node does not show its bytes", param_hint="'--format'")

        from waltzctl.node_dump import NodeDump, dump_node

        return dump_node(
            NodeDump(
                address=nodes[0],
                connecting=connection,
                partitions=partitions,
                first=dumping.first,
                last=dumping.last,
                limit=dumping.limit,
                data=data,
                format=dumping.output_format,
                output=path_of(output, name="-o") if output is not None else None,
                quiet=quiet,
                verbose=verbose,
            )
        )
    refuse_without_node(connection)
    if export is not None:
        if output is None:
            raise typer.BadParameter("name the directory of the table with -o DIR", param_hint="'--export'")
        for option, given in (
            ("--limit", dumping.limit is not None),
            ("--reverse", dumping.reverse),
            ("--format", dumping.output_format is not None),
        ):
            if given:
                raise typer.BadParameter(
                    "is not for tables, which hold everything in no order", param_hint=f"'{option}'"
                )
        if data not in (None, DataForm.NONE):
            raise typer.BadParameter("a table holds the bytes themselves; none leaves them out", param_hint="'--data'")

        from waltzctl.engine.log.target import resolve
        from waltzctl.storage_dump import check_request, what_of
        from waltzctl.table_export import Export
        from waltzctl.table_export import export as export_table

        place = place_of(path)
        target = resolve(place)
        shown = what_of(target, what)
        check_request(dumping.request(place, partitions, quiet=quiet, verbose=verbose), target, shown)
        return export_table(
            Export(
                path=place,
                target=path_of(output, name="-o"),
                format=export,
                what=shown,
                partitions=partitions,
                first=dumping.first,
                last=dumping.last,
                data=data is not DataForm.NONE,
                computing=computing,
                quiet=quiet,
                verbose=verbose,
            )
        )
    for option, value in computing.given.items():
        if value is not None:
            raise typer.BadParameter("is for tables: add --export FORMAT -o DIR", param_hint=f"'--{option}'")

    from waltzctl.storage_dump import dump

    return dump(dumping.request(place_of(path), partitions, quiet=quiet, verbose=verbose))
