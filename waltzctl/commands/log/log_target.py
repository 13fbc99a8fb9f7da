"""What the actions of ``log`` share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waltzctl.exit_status import ExitStatus
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import parsed
from waltzctl.values import parse_duration

if TYPE_CHECKING:
    from waltzctl.engine.client.client_options import ClientOptions

STATUSES = (
    ExitStatus.CLEAN,
    ExitStatus.USAGE,
    ExitStatus.DAMAGED,
    ExitStatus.NOT_WALTZ,
    ExitStatus.MISMATCH,
    ExitStatus.REFUSED,
    ExitStatus.IO_ERROR,
    ExitStatus.INTERRUPTED,
)


def options_of(target: ClusterTarget, in_flight: int | None = None) -> ClientOptions:
    """The client's, as the command line has them; None leaves a thing as it is."""
    from waltzctl.engine.client.client_options import ClientOptions

    timeout = parsed("--timeout", target.connecting.timeout, parse_duration)
    given = ClientOptions()
    return ClientOptions(
        timeout=given.timeout if timeout is None else timeout,
        in_flight=given.in_flight if in_flight is None else in_flight,
    )
