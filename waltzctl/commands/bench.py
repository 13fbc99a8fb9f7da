"""bench: load on a node's data port, and what it took."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from waltzctl.connection_options import SECURITY, Connecting, address_of, with_connection
from waltzctl.console import Console
from waltzctl.event_loop import run_async
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import (
    FormatOption,
    QuietOption,
    VerboseOption,
    YesOption,
    parsed,
    partitions_of,
)
from waltzctl.values import counted, format_ranges, parse_duration, parse_size

if TYPE_CHECKING:
    from waltzctl.engine.client.connection_factory import ConnectionFactory
    from waltzctl.engine.client.load import LoadOptions, LoadResult, SurveyedPartition
    from waltzctl.engine.client.load_frames import LoadPartition
    from waltzctl.engine.net.addresses import Address

Result = TypeVar("Result")

MANUAL = Manual(
    name="bench",
    summary="Put load on a storage node and measure it",
    description=(
        (
            "Appends records to partitions of a node, of waltzctl or of release 0.13.2, as fast as the node accepts"
            " them, or with --read reads lists of records, and shows rates and the distribution of latencies."
            " HOST:PORT is the data port."
        ),
        (
            "IT WRITES: appended records stay in the partition unless --truncate removes them, and appending begins a"
            " new session, which shuts out a server that uses the partition. A partition that was ever used needs"
            " --yes, or its number typed on a terminal."
        ),
    ),
    examples=(
        Example(
            "waltzctl bench 127.0.0.1:55280 --partition 0-3 --batch 100 --in-flight 10",
            "Four partitions, ten requests of 100 records in flight for each.",
        ),
        Example(
            "waltzctl bench 127.0.0.1:55280 --duration 30s --data-size 1KiB --truncate --yes",
            "Half a minute on partition 0; the appended records are removed again.",
        ),
        Example(
            "waltzctl bench 127.0.0.1:55280 --read --batch 1000 --format json | jq .latency_seconds",
            "Read existing records; change nothing.",
        ),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.DAMAGED,
        ExitStatus.MISMATCH,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("bench-result",),
    sections=(
        ManualSection(
            "WHAT IS MEASURED",
            (
                (
                    "Each partition always has --in-flight requests in flight: the next one is sent as soon as one is"
                    " answered. The latency of a request is the time from handing it to the operating system until its"
                    " answer has arrived; an append is answered once it is durable. Percentiles are exact to one part"
                    " in 128; minimum, mean and maximum are exact. The warm-up does not count. The load waits for"
                    " requests that end after --duration, and does not count them."
                ),
                (
                    "The load runs in one process on one processor, on the node's machine if both share it. If that"
                    " processor is always busy, the result measures the load generator, not the node."
                ),
            ),
        ),
        ManualSection(
            "SESSIONS",
            (
                (
                    "Inspecting a partition changes nothing. Appending uses the session after the current one, or that"
                    " of --session; reading uses the current session. A server that is shut out begins a still later"
                    " session as soon as it notices, and the load then ends with status 13."
                ),
                (
                    "--truncate removes the appended records, and nothing else, at the end or on Ctrl-C. It always"
                    " needs --yes, or the confirmation on a terminal."
                ),
            ),
        ),
        SECURITY,
    ),
)


@with_connection
def run(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The node's data port.", show_default=False)],
    partition: Annotated[
        str | None,
        typer.Option("--partition", metavar="RANGES", help="These partitions, for instance 0-3,7; default 0."),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Records per request.")] = 1,
    data_size: Annotated[
        str, typer.Option("--data-size", metavar="SIZE", help="Data size of a record, for instance 1KiB.")
    ] = "100",
    in_flight: Annotated[
        int, typer.Option("--in-flight", metavar="N", min=1, help="Requests in flight for each partition.")
    ] = 10,
    duration: Annotated[
        str, typer.Option("--duration", metavar="TIME", help="How long to measure, for instance 30s.")
    ] = "5s",
    warm_up: Annotated[
        str, typer.Option("--warm-up", metavar="TIME", help="Warm-up before the measurement; not counted.")
    ] = "1s",
    connections: Annotated[
        int, typer.Option("--connections", metavar="N", min=1, help="Connections that share the partitions.")
    ] = 1,
    session: Annotated[
        int | None, typer.Option("--session", metavar="ID", min=0, help="Session; default: the next one.")
    ] = None,
    read: Annotated[bool, typer.Option("--read", help="Read lists of --batch records; write nothing.")] = False,
    truncate: Annotated[bool, typer.Option("--truncate", help="Remove the appended records at the end.")] = False,
    yes: YesOption = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    *,
    connection: Connecting,
) -> ExitStatus:
    """Look, say what will be done, ask, do it, show what it took."""
    node = address_of(address, name="HOST:PORT")
    partitions = sorted(partitions_of(partition) or {0})
    size = parsed("--data-size", data_size, parse_size) or 0
    seconds = parsed("--duration", duration, parse_duration) or 0.0
    warming = parsed("--warm-up", warm_up, _duration_or_none)
    if read and truncate:
        raise typer.BadParameter("reading leaves nothing to remove", param_hint="'--truncate'")

    from waltzctl.engine.client.load import LoadOptions
    from waltzctl.objects.bench_objects import bench_result_object

    with Console(output_format, quiet=quiet, verbose=verbose, single=True) as console:
        reach = connection.reach(console)
        options = LoadOptions(
            batch=batch,
            data_size=size,
            in_flight=in_flight,
            seconds=seconds,
            warm_up=warming or 0.0,
            read=read,
            session_id=session,
            connections=connections,
            timeout=reach.timeout,
        )
        options.check()
        surveyed = run_async(_look(reach, node, partitions), with_uvloop=True)
        _agree(console, node, surveyed, options, truncate=truncate, yes=yes)
        places, result = run_async(_load(console, reach, node, surveyed, options, truncate=truncate), with_uvloop=True)
        shown = bench_result_object(
            node, places, options, result, tls=reach.context(node) is not None, truncated=truncate
        )
        console.emit(shown, flush=True)
        rate = f"{result.transactions / result.seconds:,.0f} {'records' if read else 'transactions'} a second"
        stays = (
            "" if read or not _appended(places, result) else " They were removed again." if truncate else " They stay."
        )
        console.success(f"{'READ' if read else 'APPENDED'}  {rate}.{stays}")
    return ExitStatus.CLEAN


def _duration_or_none(text: str) -> float:
    return 0.0 if text.strip() in ("0", "0s") else parse_duration(text)


def _appended(places: Sequence[LoadPartition], result: LoadResult) -> int:
    return sum(
        last - place.last_transaction_id for place, last in zip(places, result.last_transaction_ids, strict=True)
    )


async def _look(reach: ConnectionFactory, node: Address, partitions: Sequence[int]) -> tuple[SurveyedPartition, ...]:
    from waltzctl.engine.client.load import survey

    async with await reach.storage(node) as client:
        return await survey(client, partitions)


async def _load(
    console: Console,
    reach: ConnectionFactory,
    node: Address,
    surveyed: Sequence[SurveyedPartition],
    options: LoadOptions,
    *,
    truncate: bool,
) -> tuple[tuple[LoadPartition, ...], LoadResult]:
    from waltzctl.engine.client.load import begin, run_load, take_away

    async with await reach.storage(node) as client:
        places = await begin(client, surveyed, options)
        ended = removed = False
        try:
            result = await run_load(client, places, options, ssl_context=reach.context(node), on_phase=console.detail)
            ended = True
        finally:
            try:
                if truncate and not client.closed:
                    await take_away(client, places)
                    removed = True
            finally:
                if not options.read and not (ended and (removed or not truncate)):
                    console.note(f"what was appended until then {'was removed again' if removed else 'stays there'}")
    return places, result


def _agree(
    console: Console,
    node: Address,
    surveyed: Sequence[SurveyedPartition],
    options: LoadOptions,
    *,
    truncate: bool,
    yes: bool,
) -> None:
    """Announce the load, and ask where it could do harm.  Raises RefusedError without the user's agreement."""
    from waltzctl.engine.errors import RefusedError
    from waltzctl.repair_procedure import confirm

    used = [found for found in surveyed if not found.is_fresh]
    newer = [found for found in used if options.session_of(found) != found.session_id]
    names = format_ranges([found.partition for found in surveyed])
    if options.read:
        console.note(f"reading partition {names} of {node}, round and round; nothing is written")
        endangered = bool(newer)
    else:
        held = sum(found.last_transaction_id + 1 for found in surveyed)
        stay = "they are removed again at the end" if truncate else "they stay there"
        console.note(
            f"appending transactions to partition {names} of {node}, which holds {counted(held, 'transaction')}; {stay}"
        )
        endangered = bool(used) or truncate
    if newer:
        sessions = ", ".join(
            f"{found.partition}: {options.session_of(found)} after {found.session_id}" for found in newer[:8]
        )
        console.note(f"a new session shuts out any server that uses the partition ({sessions})")
    if not endangered or yes:
        return
    if not sys.stdin.isatty():
        why = "it is in use or was" if used else "--truncate removes transactions"
        raise RefusedError(
            f"{node}: partition {names}: {why}, and nobody confirmed; nothing was done",
            advice="add --yes if no server needs it, or take a partition that nothing has used",
        )
    confirm({found.partition for found in surveyed})
