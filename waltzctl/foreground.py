"""The life of a process that serves in the foreground: from its configuration to ports that answer, through signals, to its end.

A storage node (``waltzctl serve``) and a log server (``waltzctl log-server``) are two; `Service` knows of them what they share.

Signals: SIGTERM and SIGINT stop accepting, let everything that was read be executed and answered, and close; a second one ends
the process at once, which loses nothing that was acknowledged.  SIGHUP reads the configuration anew.
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

from waltzctl.engine.errors import WaltzError
from waltzctl.engine.freed_memory import keep_freed_memory
from waltzctl.engine.net.configuration import Configuration
from waltzctl.engine.net.logs import LineStream, NodeLog, goes_to_journal
from waltzctl.engine.net.notify import Notifier
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.event_loop import loop_factory
from waltzctl.exit_status import ExitStatus
from waltzctl.options import Format
from waltzctl.outcome import say
from waltzctl.ready_file import ReadyFile

if TYPE_CHECKING:
    from waltzctl.console import Console
    from waltzctl.engine.columns.column import Object, ObjectType
    from waltzctl.engine.net.metrics import NamedMetric
    from waltzctl.engine.net.monitoring_options import GraphiteOptions, LogOptions

SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread gives the interpreter away; the default of 5 ms is what an answer would wait for a worker."""
BIG_BLOCK = 1 << 20
"""Bytes from which memory is given back to the system at once; the C library would raise this to 32 MiB by itself, and keep what
frames of many megabytes leave behind, torn to pieces, for every thread of its own."""
KEPT_MEMORY = 16 << 20
"""Free bytes at the end of a heap that are kept: smaller blocks come and go with every batch."""
_ARENAS = 2
_LAST_WORDS_SECONDS = 1.0
"""How long it takes at most to say that the process ends at once."""


class PortOptions(Protocol):
    """What the options of everything that serves say alike."""

    @property
    def host(self) -> str:
        """Where it listens."""

    @property
    def plaintext(self) -> bool:
        """Whether without TLS."""

    @property
    def tls(self) -> TlsOptions:
        """Its certificate, and whom it trusts."""

    @property
    def beyond_loopback(self) -> bool:
        """Whether other machines may reach it."""

    @property
    def graphite(self) -> GraphiteOptions | None:
        """Where its metrics are sent."""

    @property
    def drain_seconds(self) -> float:
        """How long a stop may take."""


class ProcessOptions(Protocol):
    """What the options of a process say beside those of what serves."""

    @property
    def log(self) -> LogOptions:
        """How it logs."""

    def check(self) -> None:
        """Raise InvalidRequestError or RefusedError."""


class Metrics(Protocol):
    """A look at metrics."""

    def metrics(self) -> Iterable[NamedMetric]:
        """All of them."""


class Serving(Protocol):
    """What serves: a node, a log server."""

    @property
    def ready_info(self) -> Any:
        """What there is to say of it."""

    def read(self) -> Metrics:
        """Its metrics; may block."""

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Stop it."""


Options = TypeVar("Options", bound=ProcessOptions)
S = TypeVar("S", bound=Serving)


@dataclass(frozen=True)
class Kind(Generic[Options, S]):
    """A kind of process.

    `name`: for people.  `ports`: its options that say where and how it listens.  `start`: starts it.  `reload`: puts new options
    into force.  `status`: what it is doing, for the service manager.  `before`: what is logged before it starts.
    """

    name: str
    ready: ObjectType
    ports: Callable[[Options], PortOptions]
    start: Callable[[Options, logging.Logger], Awaitable[S]]
    reload: Callable[[S, Options], Awaitable[object]]
    status: Callable[[S], str]
    before: Callable[[Options], Iterable[str]] = lambda _options: ()


@dataclass(frozen=True)
class ProcessDisplay(Generic[S]):
    """Where the process shows itself when it is ready; `live`, where it is wanted, from then on.

    `abandon` leaves the terminal as it should be when the process ends without further ado.
    """

    ready: Callable[[Object, S], None]
    live: Callable[[S], Coroutine[Any, Any, None]] | None = None
    abandon: Callable[[], object] = lambda: None


@dataclass(slots=True)
class Service(Generic[Options, S]):
    """What serves, and what surrounds it in this process.  `read_again` gives the configuration as it is now."""

    kind: Kind[Options, S]
    configuration: Configuration[Options]
    read_again: Callable[[], Configuration[Options]]
    log: NodeLog
    notifier: Notifier
    shown: ProcessDisplay[S]
    ready_file: ReadyFile | None = None
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _reload: asyncio.Event = field(default_factory=asyncio.Event)
    _background: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def _ports(self) -> PortOptions:
        return self.kind.ports(self.configuration.options)

    async def run(self) -> ExitStatus:
        """Serve until a signal says otherwise.  Raises what starting and stopping raise."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        if self.ready_file is not None:
            self.ready_file.remove_stale()
        serving = await self._start()
        if serving is None:
            self.log.logger.info("stopped before the %s was ready", self.kind.name)
            return ExitStatus.CLEAN
        try:
            self._announce(serving)
            self._run_beside(serving)
            await self._asked.wait()
        finally:
            await self._stop(serving)
        return ExitStatus.CLEAN

    async def _start(self) -> S | None:
        """It serves; None when a signal came first."""
        for note in (*self.configuration.notes, *warnings_of(self._ports)):
            self.log.logger.warning("%s", note)
        for line in self.kind.before(self.configuration.options):
            self.log.logger.info("%s", line)
        starting = asyncio.ensure_future(self.kind.start(self.configuration.options, self.log.logger))
        asked = asyncio.ensure_future(self._asked.wait())
        await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await starting).stop(0)
            return None
        asked.cancel()
        return await starting

    def _announce(self, serving: S) -> None:
        """Everything that waits for it may come."""
        gc.collect()
        gc.freeze()  # what a start leaves behind lives as long as the process; collections need not look at it again
        ready = self.kind.ready.shown(serving.ready_info)
        if self.ready_file is not None:
            self.ready_file.write(ready)
        self.notifier.ready(self.kind.status(serving))
        self.shown.ready(ready, serving)

    # --- beside it ---------------------------------------------------------------------------------------------------

    def _run_beside(self, serving: S) -> None:
        self._begin(self._take_reloads(serving), "reloading")
        if self.notifier.watchdog_seconds is not None:
            self._begin(self._stay_alive(self.notifier.watchdog_seconds / 2), "the watchdog")
        if self.shown.live is not None:
            self._begin(self.shown.live(serving), "the live view")
        graphite = self._ports.graphite
        if graphite is not None:
            from waltzctl.engine.net.graphite import report_for_ever

            self._begin(
                report_for_ever(graphite, lambda: serving.read().metrics(), self.log.logger), "the report to Graphite"
            )

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            self._background.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                self.log.logger.error("%s ended; the %s serves on: %s", name, self.kind.name, error, exc_info=error)

        task.add_done_callback(ended)

    async def _stay_alive(self, interval: float) -> None:
        while True:
            self.notifier.alive()
            await asyncio.sleep(interval)

    # --- reload ------------------------------------------------------------------------------------------------------

    async def _take_reloads(self, serving: S) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            self.notifier.reloading()
            try:
                await self._reload_once(serving)
            except (WaltzError, OSError) as error:
                self.log.logger.error("the configuration stays as it was: %s", error)
            except Exception as error:  # a mistake of this program's: the next signal is heard all the same
                self.log.logger.exception("the configuration stays as it was: %s", str(error) or type(error).__name__)
            self.notifier.ready(self.kind.status(serving))

    async def _reload_once(self, serving: S) -> None:
        anew = await asyncio.to_thread(self._read_anew)
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
        """The configuration as it is now.  What waits for a restart has to be right as well: that one would be refused."""
        anew = self.read_again()
        anew.check()
        return anew

    # --- end ---------------------------------------------------------------------------------------------------------

    def _on_stop(self, number: int) -> None:
        if self._asked.is_set():
            self._end_at_once()
        self.log.logger.info("%s: stopping", signal.Signals(number).name)
        self._asked.set()

    def _end_at_once(self) -> NoReturn:
        if self.ready_file is not None:
            self.ready_file.remove()
        telling = threading.Thread(target=self._tell_end, name="the end", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread is to be had: it ends without a word
            telling.start()
            telling.join(_LAST_WORDS_SECONDS)  # whoever should read it may stand still, and holds up the log as well
        os._exit(ExitStatus.INTERRUPTED)

    def _tell_end(self) -> None:
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
            if self.ready_file is not None:  # with peers on every descriptor it could not be read before, whose it is
                self.ready_file.remove()
        self.log.logger.info("stopped")


def warnings_of(options: PortOptions) -> tuple[str, ...]:
    """What somebody who starts a process like this should know."""
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


def prepare_process() -> None:
    """Settings of this process that what serves is better off with."""
    import resource

    sys.setswitchinterval(SWITCH_INTERVAL)
    keep_freed_memory(kept=KEPT_MEMORY, mapped=BIG_BLOCK, arenas=_ARENAS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))


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
    """Run a process of this kind to its end.  `view`: how it shows itself, and the stream of its log."""
    configuration.check()
    file = ready_file_at(ready_file)
    log_options = configuration.options.log
    with contextlib.ExitStack() as stack:
        shown, stream = view(stack)
        journal = goes_to_journal(sys.stderr, os.environ)
        log = stack.enter_context(NodeLog(stream, form=log_options.format, level=log_options.level, journal=journal))
        notifier = Notifier.from_environment(os.environ)
        return serve(lambda: Service(kind, configuration, read, log, notifier, shown, file), with_uvloop=with_uvloop)


def shown_once(console: Console, screen: Callable[[Object, S], list[str]]) -> Callable[[Object, S], None]:
    """Show once that the process is ready: its screen for people, the object for programs."""

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
    """The ready file, if one is wanted.  Raises InvalidRequestError where it cannot be written."""
    if path is None:
        return None
    file = ReadyFile(path)
    file.check()
    return file
