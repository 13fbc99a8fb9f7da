"""A server process in the foreground: start, signals, reload and stop.

There are two kinds: a storage node (``waltzctl serve``) and a log server (``waltzctl log-server``).  `Service` is their common
part.

================  ====================================================================================================
signal            effect
================  ====================================================================================================
SIGTERM, SIGINT   a graceful stop: accept no further requests, execute and answer those that were read, close
the second one    exit at once; nothing that was acknowledged is lost
SIGHUP            read the configuration and the certificates again
================  ====================================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from waltzctl.engine.descriptor_limit import raise_descriptor_limit
from waltzctl.engine.errors import WaltzError
from waltzctl.engine.freed_memory import keep_freed_memory
from waltzctl.engine.net.configuration import Configuration
from waltzctl.engine.net.logs import LineStream, NodeLog, goes_to_journal
from waltzctl.engine.net.notify import Notifier
from waltzctl.engine.net.settings import RELOAD_SECONDS
from waltzctl.engine.net.single_flight import OverdueError, SingleFlight
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.event_loop import loop_factory
from waltzctl.exit_status import ExitStatus
from waltzctl.options import Format
from waltzctl.outcome import leave_stream, say
from waltzctl.ready_file import ReadyFile

if TYPE_CHECKING:
    from waltzctl.console import Console
    from waltzctl.engine.columns.column import Object, ObjectType
    from waltzctl.engine.net.metrics import NamedMetric
    from waltzctl.engine.net.monitoring_options import GraphiteOptions, LogOptions

SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread releases the GIL to another one; with the default, 5 ms, a response would wait that long."""
BIG_BLOCK = 1 << 20
"""Blocks of at least this size, in bytes, are returned to the system when freed (``M_MMAP_THRESHOLD``).  The C library would
raise this up to 32 MiB by itself, and keep the memory of large frames, fragmented, in the arena of every thread."""
KEPT_MEMORY = 16 << 20
"""Free bytes at the end of a heap that are not returned to the system, as every batch allocates and frees small blocks."""
_ARENAS = 2
_EXIT_MESSAGE_TIMEOUT = 1.0
"""Seconds, at most, for the last output of the process: a blocked terminal or pipe must not delay the exit."""
_READY_TIMEOUT = 5.0
"""Seconds, at most, to print that the server is ready, before it goes on without."""


class PortOptions(Protocol):
    """The options of ports, common to storage nodes and log servers."""

    @property
    def host(self) -> str:
        """The address to listen on; empty: all."""

    @property
    def plaintext(self) -> bool:
        """Whether the ports have no TLS."""

    @property
    def tls(self) -> TlsOptions:
        """The server's certificate, and its trust store for clients."""

    @property
    def beyond_loopback(self) -> bool:
        """Whether other machines can connect."""

    @property
    def graphite(self) -> GraphiteOptions | None:
        """The Graphite server for its metrics; None: none."""

    @property
    def drain_seconds(self) -> float:
        """Seconds that a graceful stop may take."""


class ProcessOptions(Protocol):
    """The options of the process itself."""

    @property
    def log(self) -> LogOptions:
        """The log's level and format."""

    def check(self) -> None:
        """Raise InvalidRequestError or RefusedError."""


class Metrics(Protocol):
    """A snapshot of metrics."""

    def metrics(self) -> Iterable[NamedMetric]:
        """All metrics."""


class Serving(Protocol):
    """A running server: a storage node or a log server."""

    @property
    def ready_info(self) -> Any:
        """What the ready object shows (`Kind.ready`)."""

    def read(self) -> Metrics:
        """Its metrics; may block."""

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Stop the server; requests under way have `drain_seconds` to be answered."""


Options = TypeVar("Options", bound=ProcessOptions)
S = TypeVar("S", bound=Serving)


@dataclass(frozen=True)
class Kind(Generic[Options, S]):
    """A kind of server process: the functions in which a storage node and a log server differ."""

    name: str
    """For messages."""
    ready: ObjectType
    """The object that is printed when the server is ready."""
    ports: Callable[[Options], PortOptions]
    """Returns the options of the ports."""
    start: Callable[[Options, logging.Logger], Awaitable[S]]
    """Starts the server."""
    reload: Callable[[S, Options], Awaitable[object]]
    """Applies new options to the running server."""
    status: Callable[[S], str]
    """Returns the status line for the service manager (systemd)."""
    before: Callable[[Options], Iterable[str]] = lambda _options: ()
    """Returns the lines to log before the start."""


@dataclass(frozen=True)
class ProcessDisplay(Generic[S]):
    """The display of a server process on the terminal.

    `ready`: shows that it is ready.  `live`: a live view from then on; None: none.  `abandon`: restores the terminal when the
    process exits at once.
    """

    ready: Callable[[Object, S], None]
    live: Callable[[S], Coroutine[Any, Any, None]] | None = None
    abandon: Callable[[], object] = lambda: None


@dataclass(slots=True)
class Service(Generic[Options, S]):
    """A server with its surroundings in this process: signals, log, service manager, ready file.

    `read_again`: reads the configuration again.
    """

    kind: Kind[Options, S]
    configuration: Configuration[Options]
    read_again: Callable[[], Configuration[Options]]
    log: NodeLog
    notifier: Notifier
    shown: ProcessDisplay[S]
    ready_file: ReadyFile | None = None
    _stop_requested: asyncio.Event = field(default_factory=asyncio.Event)
    _reload_requested: asyncio.Event = field(default_factory=asyncio.Event)
    _background: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def _ports(self) -> PortOptions:
        return self.kind.ports(self.configuration.options)

    async def run(self) -> ExitStatus:
        """Serve until a signal says otherwise.  Raises what starting and stopping raise."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload_requested.set)
        if self.ready_file is not None:
            self.ready_file.remove_stale()
        serving = await self._start()
        if serving is None:
            self.log.logger.info("stopped before the %s was ready", self.kind.name)
            return ExitStatus.CLEAN
        try:
            await self._announce(serving)
            if self.shown.live is not None:
                self._start_task(self.shown.live(serving), "the live view")
            await self._stop_requested.wait()
        finally:
            await self._stop(serving)
        return ExitStatus.CLEAN

    async def _start(self) -> S | None:
        """Start the server; None when a signal to stop came first."""
        for note in (*self.configuration.notes, *warnings_of(self._ports)):
            self.log.logger.warning("%s", note)
        for line in self.kind.before(self.configuration.options):
            self.log.logger.info("%s", line)
        starting = asyncio.ensure_future(self.kind.start(self.configuration.options, self.log.logger))
        asked = asyncio.ensure_future(self._stop_requested.wait())
        await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await starting).stop(0)
            return None
        asked.cancel()
        return await starting

    async def _announce(self, serving: S) -> None:
        """Tell everybody who waits that the server is ready: ready file, service manager, terminal.

        Standard output is written by a thread: one that was stopped (Ctrl-S), or whose reader stands still, stops no request,
        nor the background tasks: the service manager's watchdog may have less patience.
        """
        gc.collect()
        gc.freeze()  # objects of the start live as long as the process: exclude them from garbage collections
        ready = self.kind.ready.shown(serving.ready_info)
        if self.ready_file is not None:
            self.ready_file.write(ready)
        self.notifier.ready(self.kind.status(serving))
        self._start_background_tasks(serving)
        with contextlib.suppress(OverdueError):
            await SingleFlight(lambda: self.shown.ready(ready, serving), name="ready").result(_READY_TIMEOUT)

    # --- background tasks --------------------------------------------------------------------------------------------

    def _start_background_tasks(self, serving: S) -> None:
        self._start_task(self._reload_on_signal(serving), "reloading")
        if self.notifier.watchdog_seconds is not None:
            self._start_task(self._feed_watchdog(self.notifier.watchdog_seconds / 2), "the watchdog")
        graphite = self._ports.graphite
        if graphite is not None:
            from waltzctl.engine.net.graphite import report_for_ever

            self._start_task(
                report_for_ever(graphite, lambda: serving.read().metrics(), self.log.logger), "the report to Graphite"
            )

    def _start_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            self._background.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                self.log.logger.error("%s ended; the %s serves on: %s", name, self.kind.name, error, exc_info=error)

        task.add_done_callback(ended)

    async def _feed_watchdog(self, interval: float) -> None:
        while True:
            self.notifier.alive()
            await asyncio.sleep(interval)

    # --- reload ------------------------------------------------------------------------------------------------------

    async def _reload_on_signal(self, serving: S) -> None:
        while True:
            await self._reload_requested.wait()
            self._reload_requested.clear()
            self.notifier.reloading()
            try:
                await self._reload_once(serving)
            except (WaltzError, OSError, OverdueError) as error:
                self.log.logger.error("the configuration stays as it was: %s", error)
            except Exception as error:  # a defect of this program must not end the task: the next SIGHUP has to work
                self.log.logger.exception("the configuration stays as it was: %s", str(error) or type(error).__name__)
            self.notifier.ready(self.kind.status(serving))

    async def _reload_once(self, serving: S) -> None:
        # in a thread for which neither the process's end waits nor, if it hangs, the next reload
        anew = await SingleFlight(self._read_anew, name="reading the configuration").result(RELOAD_SECONDS)
        reload = self.configuration.reload(anew)
        await self.kind.reload(serving, reload.configuration.options)
        self.configuration = reload.configuration
        self.log.set_level(self.configuration.options.log.level)
        log = self.log.logger
        for note in anew.notes:
            log.warning("%s", note)
        for one in reload.changed:
            log.info("%s is %s now (%s)", one.setting.key, one.shown, one.source)
        for one in reload.needs_restart:
            log.warning("%s is %s (%s): this needs a restart", one.setting.key, one.shown, one.source)
        log.info("configuration and certificates were read anew")

    def _read_anew(self) -> Configuration[Options]:
        """Read and check the whole configuration, also settings that need a restart: an error there would make that fail."""
        anew = self.read_again()
        anew.check()
        return anew

    # --- end ---------------------------------------------------------------------------------------------------------

    def _on_stop(self, number: int) -> None:
        if self._stop_requested.is_set():
            self._exit_at_once()
        self.log.logger.info("%s: stopping", signal.Signals(number).name)
        self._stop_requested.set()

    def _exit_at_once(self) -> NoReturn:
        if self.ready_file is not None:
            self.ready_file.remove()
        _ends_in_time(self._print_exit)  # stderr may be blocked, and with it the log
        os._exit(ExitStatus.INTERRUPTED)

    def _print_exit(self) -> None:
        with contextlib.suppress(OSError):
            self.shown.abandon()
            say("waltzctl: ended at once; everything that was acknowledged is durable")
            sys.stderr.flush()

    async def _stop(self, serving: S) -> None:
        if self.ready_file is not None:
            self.ready_file.remove()
        seconds = self._ports.drain_seconds
        self.notifier.stopping("answering what was asked, then closing", seconds)
        for task in tuple(self._background):
            task.cancel()
        try:
            await serving.stop(seconds)
        finally:
            if self.ready_file is not None:  # again: the first attempt may have failed for want of a file descriptor
                self.ready_file.remove()
        self.log.logger.info("stopped")


def warnings_of(options: PortOptions) -> tuple[str, ...]:
    """Warnings about ports that other machines can connect to without TLS or without client certificates."""
    if not options.beyond_loopback:
        return ()
    place = options.host or "all addresses"
    if options.plaintext:
        return (f"{place}: no TLS; whoever is on the way reads everything, and whoever reaches the ports can write",)
    if options.tls.trust_store is None:
        return (
            f"{place}: no trust store, so no client has to show a certificate: whoever reaches the ports can write",
        )
    return ()


def _ends_in_time(output: Callable[[], object]) -> bool:
    """Run the last output in a thread, as it may wait for a reader; returns whether it ended, without waiting for long."""
    thread = threading.Thread(target=output, name="the end", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started
        return False
    thread.join(_EXIT_MESSAGE_TIMEOUT)
    return not thread.is_alive()


def close_view(console: Console, close: Callable[[], object]) -> None:
    """End the display of a server, with `close`; where standard output takes nothing any more, without it."""

    def closing() -> None:
        with contextlib.suppress(OSError):  # told by whoever writes next, or the process's end
            close()

    if not _ends_in_time(closing):
        console.give_up()


def prepare_process() -> None:
    """Settings of the process for a server: GIL switch interval, memory allocator, limit of open files."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    keep_freed_memory(kept=KEPT_MEMORY, mapped=BIG_BLOCK, arenas=_ARENAS)
    raise_descriptor_limit()


def serve(service: Callable[[], Service[Options, S]], *, with_uvloop: bool) -> ExitStatus:
    """Run a service to its end in an event loop of its own."""

    async def whole() -> ExitStatus:
        return await service().run()

    prepare_process()
    with asyncio.Runner(loop_factory=loop_factory(with_uvloop)) as runner:
        return runner.run(whole())


def serve_in_foreground(
    kind: Kind[Options, S],
    configuration: Configuration[Options],
    read: Callable[[], Configuration[Options]],
    view: Callable[[contextlib.ExitStack], tuple[ProcessDisplay[S], LineStream]],
    *,
    ready_file: Path | None,
    with_uvloop: bool,
) -> ExitStatus:
    """Run a process of this kind to its end.  `view`: returns its display, and the stream of its log."""
    configuration.check()
    file = ready_file_at(ready_file)
    log_options = configuration.options.log
    with contextlib.ExitStack() as stack:
        shown, stream = view(stack)
        journal = goes_to_journal(sys.stderr, os.environ)
        log = NodeLog(stream, form=log_options.format, level=log_options.level, journal=journal)
        stack.callback(lambda: leave_stream("stderr") if log.stuck else None)
        stack.enter_context(log)
        notifier = Notifier.from_environment(os.environ)
        return serve(lambda: Service(kind, configuration, read, log, notifier, shown, file), with_uvloop=with_uvloop)


def shown_once(console: Console, screen: Callable[[Object, S], list[str]]) -> Callable[[Object, S], None]:
    """A `ProcessDisplay.ready` that prints lines from `screen` for people, or the object for programs."""

    def show(ready: Object, serving: S) -> None:
        if console.quiet:
            return
        if console.format is not Format.TABLE:
            console.emit(ready, flush=True)
            return
        for line in screen(ready, serving):
            console.line(line)
        console.flush()

    return show


def ready_file_at(path: Path | None) -> ReadyFile | None:
    """The ready file, if there is to be one.  Raises InvalidRequestError where it cannot be written."""
    if path is None:
        return None
    file = ReadyFile(path)
    file.check()
    return file
