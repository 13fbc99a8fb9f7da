"""log-server: a log server in the foreground."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
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
    from waltzctl.engine.net.logs import LineStream
    from waltzctl.engine.net.settings import Settings
    from waltzctl.engine.server.server import Server
    from waltzctl.engine.server.server_settings import LogServerOptions
    from waltzctl.foreground import Kind

MANUAL = Manual(
    name="log-server",
    summary="Run a log server of a cluster",
    description=(
        (
            "Serves partitions of a cluster to clients of waltzctl and of release 0.13.2, in the foreground, until"
            " SIGTERM or Ctrl-C: appends with optimistic locks, feeds, data. The servers of the cluster agree in its"
            " metadata on which server serves which partition. An append is acknowledged when a quorum of the"
            " partition's storage nodes has made it durable."
        ),
        (
            "Servers of waltzctl and of release 0.13.2 can share one cluster. By default the server listens on"
            " 127.0.0.1 only, and uses TLS with a certificate that is made at start."
        ),
    ),
    examples=(
        Example("waltzctl log-server --metadata /data/waltz.meta", "On this machine only, ports 55180 and 55182."),
        Example(
            "waltzctl log-server --metadata zk://zk1:2181,zk2:2181/waltz --host 10.0.0.7 --key-store /etc/waltz/server.p12"
            " --key-store-password-file /etc/waltz/password --trust-store /etc/waltz/trust.p12"
            " --trust-store-password-file /etc/waltz/password",
            "For other machines; storage nodes and clients must show certificates that the trust store confirms.",
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
                    "The file of --config (or WALTZCTL_LOG_SERVER_CONFIG) has the format of release 0.13.2: YAML, keys"
                    " nested or dotted, server.port required; ZooKeeper's keys and cluster.root in it give the"
                    " metadata. Without server.jetty.port there is no HTTP. Settings that the release does not have"
                    " are under waltzctl. Each setting has an environment variable, which overrides the file; options"
                    " override both. --show-config lists all settings, their effective values and where each value was"
                    " set."
                ),
                (
                    "--metadata is zk://HOST:PORT,.../ROOT, or the path of an embedded store's file, which only the"
                    " processes of one machine can share. WALTZCTL_METADATA sets it for every command."
                ),
                ZOOKEEPER_USER,
            ),
        ),
        ManualSection(
            "FAILURES",
            (
                (
                    "A storage node that fails or is slow is left behind, and later catches up from the others, with"
                    " every checksum verified. When fewer than a quorum are left, the partition's session ends and"
                    " appends wait; a new session begins with recovery as soon as a quorum is back. /health and the"
                    " log name the missing nodes."
                ),
                (
                    "A server that loses its session with the metadata serves nothing until it has a new one, because"
                    " its partitions are given to other servers. Storage nodes in any case refuse writes of the older"
                    " of two sessions."
                ),
            ),
        ),
        ManualSection(
            "SIGNALS",
            (
                (
                    "SIGTERM, SIGINT: the server leaves the cluster, so that other servers take its partitions at"
                    " once, gives clients --drain to receive their answers, and ends with status 0. A second signal"
                    " ends the process at once with status 130; nothing that was acknowledged is lost."
                ),
                "SIGHUP: the configuration is reloaded, as for serve.",
            ),
        ),
        ManualSection(
            "READY FILE AND SERVICE MANAGERS",
            (
                (
                    "--ready-file and systemd work as for serve; contrib/ holds a unit, a configuration, and a"
                    " composition of containers with storage nodes and ZooKeeper."
                ),
            ),
        ),
        ManualSection(
            "WATCHING",
            (
                (
                    "The HTTP port answers /health with the problems in words, and /metrics as JSON or, if the Accept"
                    " header asks for text, for Prometheus. contrib/ holds alert rules, each with what to do, and a"
                    " dashboard for Grafana."
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

    from waltzctl.foreground import ProcessDisplay, close_view, serve_in_foreground, shown_once

    def view(stack: ExitStack) -> tuple[ProcessDisplay[Server], LineStream]:
        stack.callback(close_view, console, console.flush)
        return ProcessDisplay(shown_once(console, _screen)), sys.stderr

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
            view,
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
