"""serve: a storage node in the foreground."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl import __version__
from waltzctl.console import Console, on_terminal, wants_colour
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, Section
from waltzctl.options import Format, FormatOption, QuietOption, VerboseOption, path_of

if TYPE_CHECKING:
    from waltzctl.engine.columns.column import Object
    from waltzctl.engine.net.logs import LineStream
    from waltzctl.engine.node.configuration import Configuration
    from waltzctl.engine.node.node import Node
    from waltzctl.node_process import Shown

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
            "Serves a storage directory to Waltz servers and tools of release 0.13.2, in the foreground, until SIGTERM or"
            " Ctrl-C. It listens on 127.0.0.1 unless told otherwise, and speaks TLS with a certificate made at start unless"
            " one is given. Requests are answered once they are durable."
        ),
        (
            "Create the directory with create-cluster. With ZooKeeper configured, the key and the number of partitions come"
            " from there, and an empty directory becomes a new node."
        ),
    ),
    examples=(
        Example("waltzctl serve /data/waltz", "On this machine only, ports 55280 to 55282."),
        Example(
            "waltzctl serve /data/waltz --host 10.0.0.7 --key-store /etc/waltz/node.p12 --key-store-password-file"
            " /etc/waltz/password --trust-store /etc/waltz/trust.p12 --trust-store-password-file /etc/waltz/password",
            "For other machines: they must show a certificate that the trust store vouches for.",
        ),
        Example(
            "waltzctl serve --config /etc/waltz/waltz-storage.yaml --ready-file /run/waltz/ready.json",
            "With the configuration file of a released node.",
        ),
        Example(
            "waltzctl serve --config /etc/waltz/waltz-storage.yaml --show-config", "What would hold, and who says so."
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
        Section(
            "CONFIGURATION",
            (
                (
                    "The file of --config (or WALTZCTL_SERVE_CONFIG) is that of release 0.13.2: YAML, keys nested or dotted,"
                    " storage.port, storage.admin.port and storage.directory required. Without storage.jetty.port it means"
                    " no HTTP. Keys that are not known are named in a warning and ignored."
                ),
                (
                    "What the release has no key for stands under waltzctl: host, plaintext, insecure, certificate, key,"
                    " keyPassword, drain, maxDataLength, minFree, log.format, log.level, zookeeper.connectTimeout, and bounds"
                    " under waltzctl.limits and waltzctl.service."
                ),
                (
                    "Each setting has an environment variable, which goes before the file: --admin-port is"
                    " WALTZCTL_SERVE_ADMIN_PORT. A password's variable may end in _FILE and then names the file whose first"
                    " line it is. Options go before both. serve --show-config lists all settings, their variables, the"
                    " values that hold and where they were said; passwords are not shown."
                ),
            ),
        ),
        Section(
            "SIGNALS",
            (
                (
                    "SIGTERM, SIGINT: nobody new is accepted, what was read is executed and answered for at most --drain,"
                    " the partitions are closed, exit status 0. A second one ends the process at once with status 130;"
                    " nothing that was acknowledged is lost."
                ),
                (
                    "SIGHUP: the configuration is read anew. Certificates (for new connections), limits, the time to drain,"
                    " the space that should be free and the log level change; the log says what changed and what needs a"
                    " restart. If anything is wrong with the"
                    " new configuration, all of the old one stays."
                ),
            ),
        ),
        Section(
            "SECURITY",
            (
                (
                    "The protocol has no users: whoever may connect may read, write and delete. Beyond this machine, give a"
                    " trust store; then every client has to show a certificate. Without one a warning says so. Without TLS"
                    " (--plaintext) an address beyond this machine is refused unless --insecure is said as well. HTTP is"
                    " never encrypted and changes nothing."
                ),
                (
                    "Key stores are JKS, PKCS12 or PEM; the store tells which of the first two it is. A certificate that is"
                    " made at start is kept in memory only."
                ),
                (
                    "A password on the command line can be read by every user of the machine: give its file"
                    " (--key-store-password-file, --trust-store-password-file, --key-password-file) or set its variable."
                ),
            ),
        ),
        Section(
            "READY FILE AND SERVICE MANAGERS",
            (
                (
                    "--ready-file is written, by rename, once all ports answer, and removed at exit. With ports of 0 it tells"
                    " which ones they are. A file that a killed node left behind is removed by the next start."
                ),
                (
                    "Under systemd (Type=notify or notify-reload) readiness, reloading, stopping and the watchdog are"
                    " notified; contrib/ holds a unit, a container file and a configuration."
                ),
            ),
        ),
    ),
)


def run(
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="The storage directory.", show_default=False)
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="Configuration file of a released node.")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen at; 127.0.0.1 unless given.")
    ] = None,
    port: Annotated[
        str | None, typer.Option("--port", metavar="PORT", help="Data port; 55280 unless given, 0 takes a free one.")
    ] = None,
    admin_port: Annotated[
        str | None, typer.Option("--admin-port", metavar="PORT", help="Admin port; data port + 1 unless given.")
    ] = None,
    http_port: Annotated[
        str | None, typer.Option("--http-port", metavar="PORT|off", help="HTTP port; data port + 2 unless given.")
    ] = None,
    plaintext: Annotated[bool, typer.Option("--plaintext", help="No TLS on the data and admin port.")] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow --plaintext beyond this machine.")] = False,
    certificate: Annotated[
        str | None, typer.Option("--certificate", metavar="FILE", help="PEM file: certificate, then its chain.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", "--certificate-key", metavar="FILE", help="PEM file: its private key; the same file unless given."
        ),
    ] = None,
    key_password_file: Annotated[
        str | None,
        typer.Option(
            "--key-password-file",
            "--certificate-key-password-file",
            metavar="FILE",
            help="First line: password of that key.",
        ),
    ] = None,
    key_store: Annotated[
        str | None, typer.Option("--key-store", metavar="FILE", help="Key store with certificate and key.")
    ] = None,
    key_store_type: Annotated[
        str | None, typer.Option("--key-store-type", metavar="TYPE", help="JKS, PKCS12 or PEM; JKS unless given.")
    ] = None,
    key_store_password: Annotated[
        str | None, typer.Option("--key-store-password", metavar="TEXT", help="Its password; better give a file.")
    ] = None,
    key_store_password_file: Annotated[
        str | None, typer.Option("--key-store-password-file", metavar="FILE", help="First line: its password.")
    ] = None,
    trust_store: Annotated[
        str | None,
        typer.Option("--trust-store", metavar="FILE", help="Who may connect: certificates that vouch for clients."),
    ] = None,
    trust_store_type: Annotated[
        str | None, typer.Option("--trust-store-type", metavar="TYPE", help="JKS, PKCS12 or PEM; JKS unless given.")
    ] = None,
    trust_store_password: Annotated[
        str | None, typer.Option("--trust-store-password", metavar="TEXT", help="Its password; better give a file.")
    ] = None,
    trust_store_password_file: Annotated[
        str | None, typer.Option("--trust-store-password-file", metavar="FILE", help="First line: its password.")
    ] = None,
    segment_size: Annotated[
        str | None,
        typer.Option("--segment-size", metavar="SIZE", help="A segment beyond it is closed; 1GB unless given."),
    ] = None,
    min_free: Annotated[
        str | None,
        typer.Option("--min-free", metavar="SIZE", help="Free space below which /health is bad; 64MiB unless given."),
    ] = None,
    ready_file: Annotated[
        str | None, typer.Option("--ready-file", metavar="FILE", help="Written once all ports answer.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Show partitions and connections as they change.")] = False,
    log_format: Annotated[
        str | None, typer.Option("--log-format", metavar="human|json", help="Form of the log on stderr.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error; info unless given."),
    ] = None,
    drain: Annotated[
        str | None,
        typer.Option("--drain", metavar="TIME", help="How long a stop waits for what was asked; 30s unless given."),
    ] = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Show the settings that hold and who says so; start nothing.")
    ] = False,
    no_uvloop: Annotated[bool, typer.Option("--no-uvloop", help="Use asyncio's own event loop.")] = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus | None:
    """Merge the configuration; start the node; stay."""
    texts = {
        "host": host,
        "port": port,
        "admin-port": admin_port,
        "http-port": http_port,
        "key-store-type": key_store_type,
        "key-store-password": key_store_password,
        "trust-store-type": trust_store_type,
        "trust-store-password": trust_store_password,
        "segment-size": segment_size,
        "min-free": min_free,
        "log-format": log_format,
        "log-level": log_level or ("debug" if verbose else "warning" if quiet else None),
        "drain": drain,
        "plaintext": "true" if plaintext else None,
        "insecure": "true" if insecure else None,
    }
    paths = {
        "directory": path,
        "certificate": certificate,
        "key": key,
        "key-password-file": key_password_file,
        "key-store": key_store,
        "key-store-password-file": key_store_password_file,
        "trust-store": trust_store,
        "trust-store-password-file": trust_store_password_file,
    }
    for name, text in (*paths.items(), ("config", config), ("ready-file", ready_file)):
        if text is not None:
            path_of(text, name="PATH" if name == "directory" else f"--{name}")

    from waltzctl.engine.node.configuration import Given, load_configuration

    given = [Given(name, text) for name, text in (*texts.items(), *paths.items()) if text is not None]
    file = None if config is None else Path(config)

    def read() -> Configuration:
        return load_configuration(file=file, environment=os.environ, given=given)

    configuration = read()
    if show_config:
        with Console(output_format, quiet=quiet, verbose=verbose) as console:
            _show(configuration, console)
        return None
    single = not live
    with Console(output_format, quiet=quiet, verbose=verbose, single=single, must_finish=True) as console:
        return _serve(configuration, read, console, ready_file, live=live, with_uvloop=not no_uvloop)


def _show(configuration: Configuration, console: Console) -> None:
    """``--show-config``."""
    from waltzctl.objects.serve import SETTING

    for one in configuration.settings:
        console.emit(SETTING.shown(one))
    for note in configuration.notes:
        console.note(note)
    configuration.node_options().check()


def _serve(
    configuration: Configuration,
    read: Callable[[], Configuration],
    console: Console,
    ready_file: str | None,
    *,
    live: bool,
    with_uvloop: bool,
) -> ExitStatus:
    from waltzctl.engine.errors import NotWaltzError
    from waltzctl.engine.net.logs import NodeLog, goes_to_journal
    from waltzctl.engine.net.notify import Notifier
    from waltzctl.node_process import Service, ready_file_at, serve

    configuration.node_options().check()
    file = ready_file_at(None if ready_file is None else Path(ready_file))
    with contextlib.ExitStack() as stack:
        shown, stream = _view(console, stack, live=live)
        log = stack.enter_context(
            NodeLog(
                stream,
                form=configuration.log_format,
                level=configuration.log_level,
                journal=goes_to_journal(sys.stderr, os.environ),
            )
        )
        try:
            return serve(
                lambda: Service(configuration, read, log, Notifier.from_environment(os.environ), shown, file),
                with_uvloop=with_uvloop,
            )
        except NotWaltzError as error:
            error.advice = error.advice or _HOW_TO_BEGIN
            raise


def _view(console: Console, stack: contextlib.ExitStack, *, live: bool) -> tuple[Shown, LineStream]:
    """How the node shows itself, and the stream of its log, which must not tear a live table apart."""
    from waltzctl.node_process import Shown

    table = live and console.format is Format.TABLE and on_terminal(console.stream) and not console.quiet
    if table:
        return _live_table(console, stack)
    if live:
        return Shown(_ready(console), lambda shown: console.emit(shown, flush=True), LIVE_SECONDS_ELSEWHERE), sys.stderr
    return Shown(_ready(console)), sys.stderr


def _ready(console: Console) -> Callable[[Object, Node], None]:
    """Show once that the node is ready: a screen for people, the object for programs."""
    from waltzctl.render.serving import screen

    def show(ready: Object, node: Node) -> None:
        if console.format is not Format.TABLE:
            if not console.quiet:
                console.emit(ready, flush=True)
        elif not console.quiet:
            for line in screen(ready, node.ready_info, node.options, version=__version__):
                console.line(line)
            console.flush()

    return show


def _live_table(console: Console, stack: contextlib.ExitStack) -> tuple[Shown, LineStream]:
    """A table that is drawn again and again; log lines appear above it."""
    import rich.console
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from waltzctl.node_process import Shown
    from waltzctl.render.serving import AboveLive, live_table, screen

    drawn = rich.console.Console(file=console.stream, no_color=not wants_colour(console.stream), highlight=False)
    view = stack.enter_context(Live(console=drawn, auto_refresh=False, redirect_stdout=False, redirect_stderr=False))
    heading: list[str] = []

    def ready(shown: Object, node: Node) -> None:
        lines = screen(shown, node.ready_info, node.options, version=__version__)
        heading.extend(lines)
        view.update(Text("\n".join(lines)), refresh=True)

    def update(shown: Object) -> None:
        view.update(Group(Text("\n".join(heading)), live_table(shown)), refresh=True)

    shown = Shown(ready, update, LIVE_SECONDS, abandon=lambda: drawn.show_cursor(True))
    return shown, AboveLive(drawn) if on_terminal(sys.stderr) else sys.stderr
