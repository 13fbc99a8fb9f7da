"""The settings of a log client: its times and bounds."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.amounts import check_at_least
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.retries import pause_after

_SHORTEST_NUDGE = 0.05


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The settings of a log client; times are seconds."""

    timeout: float = 30.0
    """Deadline of a call that is not given one."""
    in_flight: int = 64
    """Undecided appends of a partition at a time."""
    ahead: int = 4096
    """Transactions of a feed that are queued for a slower reader; beyond, nothing is read from the server."""
    nudge: float = 5.0
    """Time without a decided append after which a flush is sent; at least a twentieth of a second."""
    first_retry: float = 0.05
    """Pause before the first retry; it doubles with each further retry."""
    longest_retry: float = 5.0
    """Longest pause between retries."""
    not_ready: float = 0.2
    """Pause before a server that is not ready is asked again."""
    max_body: int = PortLimits().max_client_body
    """Bytes of the longest append's frame body, which is little more than its data.

    Our servers close the connection at a longer one, with everything in flight there (`PortLimits.max_client_body`); servers of
    release 0.13.2 have no limit.
    """

    def __post_init__(self) -> None:
        times = "timeout", "nudge", "first_retry", "longest_retry", "not_ready"
        for name in (*times, "in_flight", "ahead", "max_body"):
            check_at_least(name, getattr(self, name), 0 if name in times else 1)

    @property
    def answer_seconds(self) -> float:
        """How long a server may take for an answer before what it was asked counts as passed over: `nudge`, with its bound."""
        return max(self.nudge, _SHORTEST_NUDGE)

    def pause_after(self, pause: float) -> float:
        """The pause in seconds after a retry that came `pause` seconds after the one before; see `engine.net.retries`."""
        return pause_after(pause, first=self.first_retry, longest=self.longest_retry)
