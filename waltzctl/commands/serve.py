"""serve: a storage node in the foreground."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waltzctl import __version__
from waltzctl.console import Console, on_terminal, wants_colour
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.metadata_option import ZOOKEEPER_USER
from waltzctl.options import Format, FormatOption, QuietOption, VerboseOption, path_of
from waltzctl.setting_options import SettingsGiven, show_settings, with_settings

if TYPE_CHECKING:
    from waltzctl.engine.columns.column import Object
    from waltzctl.engine.net.configuration import Configuration
    from waltzctl.engine.net.logs import LineStream
    from waltzctl.engine.net.settings import Settings
    from waltzctl.engine.node.node import Node
    from waltzctl.engine.node.node_settings import ServeOptions
    from waltzctl.foreground import Kind, ProcessDisplay

_HOW_TO_BEGIN = (
    "make one with waltzctl create-cluster; with ZooKeeper configured, an empty directory becomes a new node"
)

LIVE_SECONDS = 1.0
LIVE_SECONDS_ELSEWHERE = 10.0
"""How often the live view is shown on a terminal, and how often as objects elsewhere."""

MANUAL = Manual(
    name="serve",
    summary="Run a storage node",
    description=(
        (
            "Serves a storage directory to Waltz servers and tools of release 0.13.2, in the foreground, until SIGTERM"
            " or Ctrl-C. By default the node listens on 127.0.0.1 only, and uses TLS with a certificate that is made"
            " at start. Requests are answered once they are durable."
        ),
        (
            "Create the directory with create-cluster. With ZooKeeper configured, the key and the number of partitions"
            " come from ZooKeeper, and an empty directory becomes a new node."
        ),
        ZOOKEEPER_USER,
    ),
    examples=(
        Example("waltzctl serve /data/waltz", "On this machine only, ports 55280 to 55282."),
        Example(
            "waltzctl serve /data/waltz --host 10.0.0.7 --key-store /etc/waltz/node.p12 --key-store-password-file"
            " /etc/waltz/password --trust-store /etc/waltz/trust.p12 --trust-store-password-file /etc/waltz/password",
            "For other machines: they must show a certificate that the trust store confirms.",
        ),
        Example(
            "waltzctl serve --config /etc/waltz/waltz-storage.yaml --ready-file /run/waltz/ready.json",
            "With the configuration file of a released node.",
        ),
        Example(
            "waltzctl serve --config /etc/waltz/waltz-storage.yaml --show-config",
            ("The effective settings, and where each was set."),
        ),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.DAMAGED,
        ExitStatus.NOT_WALTZ,
        ExitStatus.LOCKED,
        ExitStatus.MISMATCH,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("ready", "live", "setting", "log"),
    sections=(
        ManualSection(
            "CONFIGURATION",
            (
                (
                    "The file of --config (or WALTZCTL_SERVE_CONFIG) has the format of release 0.13.2: YAML, keys"
                    " nested or dotted, storage.port, storage.admin.port and storage.directory required. Without"
                    " storage.jetty.port there is no HTTP. Settings that the release does not have are under waltzctl."
                    " Unknown keys are named in a warning and ignored."
                ),
                (
                    "Each setting has an environment variable, which overrides the file: --admin-port is"
                    " WALTZCTL_SERVE_ADMIN_PORT. A password's variable may end in _FILE; its value is then a file"
                    " whose first line is the password. Options override both. serve --show-config lists all settings,"
                    " their variables, their effective values and where each value was set; passwords are not shown."
                ),
            ),
        ),
        ManualSection(
            "SIGNALS",
            (
                (
                    "SIGTERM, SIGINT: no new connection is accepted; requests that were read are executed and"
                    " answered, for at most --drain; the partitions are closed; exit status 0. A second signal ends"
                    " the process at once with status 130; nothing that was acknowledged is lost."
                ),
                (
                    "SIGHUP: the configuration is reloaded. Certificates (for new connections) and the settings that"
                    " SETTINGS marks as read anew change; the log says what changed and what needs a restart. If"
                    " anything in the new configuration is invalid, the old one stays in force as a whole."
                ),
            ),
        ),
        ManualSection(
            "SECURITY",
            (
                (
                    "The protocol has no users: every client that can connect may read, write and delete. To serve"
                    " other machines, give a trust store: then every client must show a certificate. Without a trust"
                    " store a warning is given. Without TLS (--plaintext) an address beyond this machine is refused"
                    " unless --insecure is given as well. HTTP is never encrypted and changes nothing."
                ),
                (
                    "Key stores are JKS, PKCS12 or PEM; JKS and PKCS12 are recognized from the file. A certificate"
                    " that is made at start is kept in memory only."
                ),
                (
                    "A password on the command line can be read by every user of the machine. Give a file instead"
                    " (--key-store-password-file, --trust-store-password-file, --key-password-file), or set the"
                    " variable."
                ),
            ),
        ),
        ManualSection(
            "READY FILE AND SERVICE MANAGERS",
            (
                (
                    "--ready-file is written, by rename, once all ports answer, and removed at exit. For ports given"
                    " as 0 it contains the actual numbers. The next start removes a file that a killed node left"
                    " behind."
                ),
                (
                    "Under systemd (Type=notify or notify-reload) readiness, reloading, stopping and the watchdog are"
                    " notified; contrib/ holds a unit, a container file and a configuration."
                ),
            ),
        ),
    ),
)


def _declared() -> Settings[ServeOptions]:
    from waltzctl.engine.node.node_settings import SERVE

    return SERVE


@with_settings(_declared)
def run(
    settings: SettingsGiven[Any],
    ready_file: Annotated[
        str | None, typer.Option("--ready-file", metavar="FILE", help="Written once all ports answer.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Show partitions and connections as they change.")] = False,
    no_uvloop: Annotated[bool, typer.Option("--no-uvloop", help="Use asyncio's own event loop.")] = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus | None:
    """Merge the configuration; start the node; stay."""
    if ready_file is not None:
        path_of(ready_file, name="--ready-file")

    def read() -> Configuration[ServeOptions]:
        return settings.read(log_level="debug" if verbose else "warning" if quiet else None)

    configuration = read()
    if settings.show_config:
        with Console(output_format, quiet=quiet, verbose=verbose) as console:
            show_settings(configuration, console)
        return None
    single = not live
    with Console(output_format, quiet=quiet, verbose=verbose, single=single, must_finish=True) as console:
        return _serve(configuration, read, console, ready_file, live=live, with_uvloop=not no_uvloop)


def _serve(
    configuration: Configuration[ServeOptions],
    read: Callable[[], Configuration[ServeOptions]],
    console: Console,
    ready_file: str | None,
    *,
    live: bool,
    with_uvloop: bool,
) -> ExitStatus:
    from waltzctl.engine.errors import NotWaltzError
    from waltzctl.foreground import serve_in_foreground

    try:
        return serve_in_foreground(
            _kind(),
            configuration,
            read,
            lambda stack: _view(console, stack, live=live),
            ready_file=None if ready_file is None else Path(ready_file),
            with_uvloop=with_uvloop,
        )
    except NotWaltzError as error:
        error.advice = error.advice or _HOW_TO_BEGIN
        raise


def _kind() -> Kind[ServeOptions, Node]:
    """A node as a process."""
    from waltzctl.engine.node.node import Node
    from waltzctl.foreground import Kind
    from waltzctl.objects.serve_objects import READY

    def before(options: ServeOptions) -> Iterator[str]:
        where = options.node.zookeeper
        if where is not None:
            yield f"asking ZooKeeper at {where.connect_string} for the cluster at {where.cluster_root}"

    def status(node: Node) -> str:
        return f"serving {node.ready_info.directory} at {node.addresses.host}:{node.addresses.port}"

    return Kind(
        "node",
        READY,
        lambda options: options.node,
        lambda options, log: Node.start(options.node, log=log, version=__version__),
        lambda node, options: node.reload(options.node),
        status,
        before,
    )


def _view(console: Console, stack: contextlib.ExitStack, *, live: bool) -> tuple[ProcessDisplay[Node], LineStream]:
    """How the node shows itself, and the stream of its log, which must not tear a live table apart."""
    from waltzctl.foreground import ProcessDisplay, close_view, shown_once

    table = live and console.format is Format.TABLE and on_terminal(console.stream) and not console.quiet
    if table:
        return _live_table(console, stack)
    stack.callback(close_view, console, console.flush)
    if live:
        from waltzctl.live_view import show_live

        def emit(shown: Object) -> None:
            console.emit(shown, flush=True)

        return ProcessDisplay(
            shown_once(console, _screen), lambda node: show_live(node, emit, LIVE_SECONDS_ELSEWHERE)
        ), sys.stderr
    return ProcessDisplay(shown_once(console, _screen)), sys.stderr


def _screen(ready: Object, node: Node) -> list[str]:
    from waltzctl.render.serving import screen

    return screen(ready, node.ready_info, node.options, version=__version__)


def _live_table(console: Console, stack: contextlib.ExitStack) -> tuple[ProcessDisplay[Node], LineStream]:
    """A table that is drawn again and again; log lines appear above it."""
    import rich.console
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from waltzctl.foreground import ProcessDisplay, close_view
    from waltzctl.live_view import show_live
    from waltzctl.render.serving import AboveLive, live_table

    drawn = rich.console.Console(file=console.stream, no_color=not wants_colour(console.stream), highlight=False)
    view = Live(console=drawn, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    stack.callback(close_view, console, view.stop)
    view.start()
    drawn.show_cursor(True)  # hidden, it would stay so in the shell behind Ctrl-Z or a kill
    heading: list[str] = []

    def ready(shown: Object, node: Node) -> None:
        lines = _screen(shown, node)
        heading.extend(lines)
        view.update(Text("\n".join(lines)), refresh=True)

    def update(shown: Object) -> None:
        view.update(Group(Text("\n".join(heading)), live_table(shown)), refresh=True)

    shown = ProcessDisplay(
        ready, lambda node: show_live(node, update, LIVE_SECONDS), abandon=lambda: drawn.show_cursor(True)
    )
    return shown, AboveLive(drawn) if on_terminal(sys.stderr) else sys.stderr
