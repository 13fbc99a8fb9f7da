"""log trace: where a transaction is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.commands.log.log_target import STATUSES, options_of
from waltzctl.console import Console
from waltzctl.engine.amounts import chosen_partitions
from waltzctl.exit_status import ExitStatus
from waltzctl.log_session import use_log
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import FormatOption, QuietOption, VerboseOption, parsed, transaction_of

if TYPE_CHECKING:
    from waltzctl.engine.client.log_client import LogClient
    from waltzctl.engine.cluster.tracing import TransactionTrace
    from waltzctl.engine.metadata.cluster_state import ClusterState

MANUAL = Manual(
    name="trace",
    page="log",
    summary="Follow a transaction through the cluster",
    description=(
        (
            "Shows whether a transaction is committed, who appended it, which server has its partition, and what each"
            " replica holds under its id: the same as the majority, something else, damaged, or nothing (4 if one is"
            " damaged or different); and in which segment, at which byte, unless the node is a released one. The server"
            " that accepted it is known while the partition has not moved since, the session that wrote it while that"
            " session lasts: records name neither. A transaction that is given by its request id is searched from the"
            " id of --from on."
        ),
    ),
    examples=(
        Example("waltzctl log trace --metadata /data/waltz.meta --partition 0 17", "By its transaction id."),
        Example("waltzctl log trace --metadata /data/waltz.meta --request-id 7:1:0:42", "By its request id."),
    ),
    statuses=STATUSES,
    objects=("log-trace",),
)


def run(
    ctx: typer.Context,
    transactions: Annotated[
        list[int] | None, typer.Argument(metavar="TRANSACTION", min=0, help="Transaction ids.", show_default=False)
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="P", min=0, help="The partition of the transaction ids.")
    ] = None,
    request_id: Annotated[
        str | None, typer.Option("--request-id", metavar="C:G:P:S", help="Client, generation, partition, sequence.")
    ] = None,
    first: Annotated[
        int, typer.Option("--from", metavar="T", min=0, help="Search for the request id from this transaction on.")
    ] = 0,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Ask everybody and show."""
    target = ClusterTarget.of(ctx)
    wanted = parsed("--request-id", request_id, _numbers)
    if (wanted is None) is (partition is None) or (partition is None) is not (not transactions):
        raise typer.BadParameter("give --request-id, or --partition with transaction ids", param_hint="'--request-id'")
    for one in transactions or ():
        transaction_of(one, "TRANSACTION")

    from waltzctl.engine.cluster.tracing import find, trace
    from waltzctl.engine.errors import DeadlineError, RefusedError
    from waltzctl.engine.metadata.cluster_state import read_cluster_state
    from waltzctl.formats.request_id import RequestId
    from waltzctl.objects.log_objects import LOG_TRACE

    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        number = partition if wanted is None else wanted[2]
        assert number is not None, "one of the two was given"
        state: ClusterState = target.ask(lambda store: read_cluster_state(store, {number}))
        reach = target.connecting.reach(console)
        chosen_partitions({number}, state.num_partitions)

        async def work(client: LogClient) -> list[TransactionTrace]:
            ids = sorted(set(transactions or ()))
            if wanted is not None:
                found = await find(client, RequestId(*wanted), first)
                if found is None:
                    raise RefusedError(f"partition {number}: no committed transaction has request id {request_id}")
                ids = [found]
            try:
                mark = await client.high_water_mark(number)
            except DeadlineError:
                mark = None
            return [await trace(state, reach, number, one, mark) for one in ids]

        traces = use_log(target, console, work, options_of(target))
        wrong = {replica.state for found in traces for replica in found.replicas} & {"different", "damaged"}
        console.known = ExitStatus.DAMAGED if wrong else ExitStatus.CLEAN
        for found in traces:
            console.emit(LOG_TRACE.shown(found))
    return console.known


def _numbers(text: str) -> tuple[int, int, int, int]:
    try:
        client, generation, partition, sequence = (int(part) for part in text.split(":"))
    except ValueError:
        raise ValueError(f"{text!r} is no request id such as 7:1:0:42") from None
    if not all(-(2**31) <= number < 2**31 for number in (client, generation, partition, sequence)):
        raise ValueError(f"{text!r}: the numbers of a request id have 32 bits")
    return client, generation, partition, sequence
