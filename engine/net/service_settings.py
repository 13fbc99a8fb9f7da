"""Settings that every process with ports has (listening, stopping, plaintext), and the checks of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from waltzctl.engine.errors import InvalidOptionsError
from waltzctl.engine.net.loopback import refuse_beyond_loopback
from waltzctl.engine.net.setting_kinds import HOST, PORT_OR_OFF, SECONDS, SWITCH
from waltzctl.engine.net.settings import Option, check_bounds, check_groups, setting

NEXT_PORT = -1
"""The default of a port whose number is derived from the first port (`port_behind`)."""
_OPENSSL = "certificates are handled by OpenSSL, which has no such choice"


class ListeningOptions(Protocol):
    """The fields that `check_service` needs."""

    @property
    def host(self) -> str:
        """The address to listen at."""

    @property
    def plaintext(self) -> bool:
        """Whether the ports work without TLS."""

    @property
    def insecure(self) -> bool:
        """Whether that is allowed for ports that other machines can reach."""


def host_setting() -> Any:
    """The setting of the address that all ports listen at."""
    return setting("address to listen at", HOST, default="127.0.0.1", key="waltzctl.host", option=Option("ADDRESS"))


def http_port_setting(key: str, first: str) -> Any:
    """The setting of the HTTP port: by default the `first` port + 2; off if a configuration file leaves it out."""
    return setting(
        "HTTP port",
        PORT_OR_OFF,
        default=NEXT_PORT,
        unless=f"{first} port + 2",
        left_out=None,
        key=key,
        option=Option(),
    )


def plaintext_setting(ports: str) -> Any:
    """The setting that turns TLS off for `ports`."""
    return setting(
        f"no TLS on the {ports}",
        SWITCH,
        default=False,
        key="waltzctl.plaintext",
        option=Option(),
        moots=("certificate", "key-store", "trust-store"),
    )


def insecure_setting() -> Any:
    """The setting that allows plaintext on ports that other machines can reach."""
    return setting(
        "allow plaintext beyond this machine",
        SWITCH,
        default=False,
        key="waltzctl.insecure",
        option=Option(),
        needs="plaintext",
    )


def drain_setting(meaning: str, default: float) -> Any:
    """The setting of the longest duration of a stop."""
    return setting(
        meaning,
        SECONDS.within(least=0),
        default=default,
        key="waltzctl.drain",
        name="drain",
        option=Option(),
        reloadable=True,
    )


def without_choice(prefix: str) -> dict[str, str]:
    """Keys of the release below `prefix` that have no effect here, each with the reason."""
    return {f"{prefix}ssl.{one}.algorithm": _OPENSSL for one in ("keyManager", "trustManager")}


def port_behind(first: int, count: int) -> int:
    """The number of a port derived from the first one; 0 (a free port) if the first is 0."""
    return first + count if first else 0


def check_service(options: ListeningOptions, ports: Sequence[tuple[str, str, int | None]]) -> None:
    """Check the options of a process with ports.  `ports`: of each, its name in messages, its field, and its number.

    Raises InvalidRequestError (values out of bounds, ports that are equal, groups that contradict themselves) and RefusedError
    (plaintext beyond loopback without `insecure`).
    """
    check_bounds(options)
    seen: dict[int, tuple[str, str]] = {}
    for name, field, port in ports:
        if port in seen:
            other, other_field = seen[port]
            message = f"the {other} and the {name} port are both {port}"
            raise InvalidOptionsError(message, options, other_field, field, advice="the ports must differ")
        if port:
            seen[port] = name, field
    check_groups(options)
    if options.plaintext and not options.insecure:
        refuse_beyond_loopback(options.host)
