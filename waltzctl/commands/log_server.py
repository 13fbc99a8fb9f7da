"""log-server: a log server in the foreground."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waltzctl import __version__
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.metadata_option import ZOOKEEPER_USER
from waltzctl.options import FormatOption, QuietOption, VerboseOption, path_of
from waltzctl.setting_options import SettingsGiven, show_settings, with_settings

if TYPE_CHECKING:
    from waltzctl.engine.columns.column import Object
    from waltzctl.engine.net.configuration import Configuration
    from waltzctl.engine.net.settings import Settings
    from waltzctl.engine.server.server import Server
    from waltzctl.engine.server.server_settings import LogServerOptions
    from waltzctl.foreground import Kind

MANUAL = Manual(
    name="log-server",
    summary="Run a log server of a cluster",
    description=(
        (
            "Serves partitions of a cluster to clients of this program and of release 0.13.2, in the foreground, until SIGTERM"
            " or Ctrl-C: appends with optimistic locks, feeds, data. Which partitions it serves the servers of the cluster agree"
            " on in its metadata; an append is acknowledged when a quorum of the partition's storage nodes has made it durable."
        ),
        (
            "Servers of this program and of release 0.13.2 share one cluster. It listens on 127.0.0.1 unless told otherwise, and"
            " speaks TLS with a certificate made at start unless one is given."
        ),
    ),
    examples=(
        Example("waltzctl log-server --metadata /data/waltz.meta", "On this machine only, ports 55180 and 55182."),
        Example(
            "waltzctl log-server --metadata zk://zk1:2181,zk2:2181/waltz --host 10.0.0.7 --key-store /etc/waltz/server.p12"
            " --key-store-password-file /etc/waltz/password --trust-store /etc/waltz/trust.p12"
            " --trust-store-password-file /etc/waltz/password",
            "For other machines; storage nodes and clients must show certificates that the trust store vouches for.",
        ),
        Example(
            "waltzctl log-server --config /etc/waltz/waltz-server.yaml --ready-file /run/waltz/server.json",
            "With the configuration file of a released server.",
        ),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.DAMAGED,
        ExitStatus.NOT_WALTZ,
        ExitStatus.MISMATCH,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("ready", "setting", "log"),
    sections=(
        ManualSection(
            "CONFIGURATION",
            (
                (
                    "The file of --config (or WALTZCTL_LOG_SERVER_CONFIG) is that of release 0.13.2: YAML, keys nested or"
                    " dotted, server.port required; ZooKeeper's keys and cluster.root in it say where the metadata is. Without"
                    " server.jetty.port it means no HTTP. What the release has no key for stands under waltzctl. Each setting has"
                    " an environment variable, which goes before the file; options go before both. --show-config lists all"
                    " settings, the values that hold and where they were said."
                ),
                (
                    "--metadata is zk://HOST:PORT,.../ROOT, or the path of an embedded store's file, which is for the processes"
                    " of one machine. WALTZCTL_METADATA says it for every command."
                ),
                ZOOKEEPER_USER,
            ),
        ),
        ManualSection(
            "FAILURES",
            (
                (
                    "A storage node that fails or is slow is left behind, and catches up from the others with every checksum"
                    " verified. When fewer than a quorum are left, the partition's session ends, appends wait, and a new session"
                    " begins by recovery as soon as a quorum is there; /health and the log say whom it waits for."
                ),
                (
                    "A server that loses its session with the metadata serves nothing until it has a new one, because its"
                    " partitions are given to others. Storage nodes let the older of two sessions write nothing in any case."
                ),
            ),
        ),
        ManualSection(
            "SIGNALS",
            (
                (
                    "SIGTERM, SIGINT: the server leaves the cluster, so that others take its partitions at once, gives clients"
                    " --drain to take their answers, and ends with status 0. A second one ends the process at once with status"
                    " 130; nothing that was acknowledged is lost."
                ),
                "SIGHUP: the configuration is read anew, as for serve.",
            ),
        ),
        ManualSection(
            "READY FILE AND SERVICE MANAGERS",
            (
                (
                    "--ready-file and systemd are told as by serve; contrib/ holds a unit, a configuration, and a composition of"
                    " containers with storage nodes and ZooKeeper."
                ),
            ),
        ),
        ManualSection(
            "WATCHING",
            (
                (
                    "The HTTP port answers /health with what is wrong in words, and /metrics as JSON or, where the Accept header"
                    " asks for text, for Prometheus. contrib/ holds alerts over that, each with what to do, and a dashboard for"
                    " Grafana."
                ),
            ),
        ),
    ),
)


def _declared() -> Settings[LogServerOptions]:
    from waltzctl.engine.server.server_settings import LOG_SERVER

    return LOG_SERVER


@with_settings(_declared)
def run(
    settings: SettingsGiven[Any],
    ready_file: Annotated[
        str | None, typer.Option("--ready-file", metavar="FILE", help="Written once all ports answer.")
    ] = None,
    no_uvloop: Annotated[bool, typer.Option("--no-uvloop", help="Use asyncio's own event loop.")] = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus | None:
    """Merge the configuration; start the server; stay."""
    if ready_file is not None:
        path_of(ready_file, name="--ready-file")

    def read() -> Configuration[LogServerOptions]:
        from waltzctl.engine.server.server_settings import METADATA_VARIABLE

        own = settings.declared.by_name["metadata"].variable
        everywhere = None if os.environ.get(own) else os.environ.get(METADATA_VARIABLE)
        return settings.read(
            log_level="debug" if verbose else "warning" if quiet else None, metadata=everywhere or None
        )

    from waltzctl.foreground import ProcessDisplay, serve_in_foreground, shown_once

    configuration = read()
    if settings.show_config:
        with Console(output_format, quiet=quiet, verbose=verbose) as console:
            show_settings(configuration, console)
        return None
    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return serve_in_foreground(
            _kind(),
            configuration,
            read,
            lambda _stack: (ProcessDisplay(shown_once(console, _screen)), sys.stderr),
            ready_file=None if ready_file is None else Path(ready_file),
            with_uvloop=not no_uvloop,
        )


def _screen(ready: Object, server: Server) -> list[str]:
    from waltzctl.render.serving import server_screen

    return server_screen(ready, server.options, version=__version__)


def _kind() -> Kind[LogServerOptions, Server]:
    """A log server as a process."""
    from waltzctl.engine.server.server import Server, location_of
    from waltzctl.foreground import Kind
    from waltzctl.objects.serve_objects import READY

    def before(options: LogServerOptions) -> Iterator[str]:
        yield f"connecting to the metadata at {location_of(options.server)}"

    def status(server: Server) -> str:
        where = server.addresses
        return f"log server {server.ready_info.server_id} at {where.host}:{where.port}"

    return Kind(
        "server",
        READY,
        lambda options: options.server,
        lambda options, log: Server.start(options.server, log=log, version=__version__),
        lambda server, options: server.reload(options.server),
        status,
        before,
    )
