"""The life of ``waltzctl serve``: from the configuration to a node that answers, through signals, to its end.

Signals: SIGTERM and SIGINT stop accepting, let everything that was read be executed and answered, and close; a second one ends
the process at once, which loses nothing that was acknowledged.  SIGHUP reads the configuration anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from waltzctl import __version__
from waltzctl.engine.errors import WaltzError
from waltzctl.engine.net.configuration import Configuration
from waltzctl.engine.net.logs import NodeLog
from waltzctl.engine.net.notify import Notifier
from waltzctl.engine.net.single_flight import OverdueError, SingleFlight
from waltzctl.engine.node.node import Node
from waltzctl.engine.node.node_settings import NodeOptions, ServeOptions
from waltzctl.exit_status import ExitStatus
from waltzctl.objects.serve import READY, live_object
from waltzctl.outcome import say
from waltzctl.ready_file import ReadyFile

if TYPE_CHECKING:
    from waltzctl.engine.columns.column import Object

SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread gives the interpreter away; the default of 5 ms is what an answer would wait for a worker."""
BIG_BLOCK = 1 << 20
"""Bytes from which memory is given back to the system at once; the C library would raise this to 32 MiB by itself, and keep what
frames of many megabytes leave behind, torn to pieces, for every thread of its own."""
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


@dataclass(frozen=True, slots=True)
class Shown:
    """Where the node shows itself: once when it is ready, and with `live` every `interval` seconds.

    `abandon` leaves the terminal as it should be when the process ends without further ado.
    """

    ready: Callable[[Object, Node], None]
    live: Callable[[Object], None] | None = None
    interval: float = 1.0
    abandon: Callable[[], object] = lambda: None


@dataclass(slots=True)
class Service:
    """A node and what surrounds it in this process.  `read_again` gives the configuration as it is now."""

    configuration: Configuration[ServeOptions]
    read_again: Callable[[], Configuration[ServeOptions]]
    log: NodeLog
    notifier: Notifier
    shown: Shown
    ready_file: ReadyFile | None = None
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _reload: asyncio.Event = field(default_factory=asyncio.Event)
    _background: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> ExitStatus:
        """Serve until a signal says otherwise.  Raises what `Node.start` and `Node.stop` raise."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        if self.ready_file is not None:
            self.ready_file.remove_stale()
        node = await self._start()
        if node is None:
            self.log.logger.info("stopped before the node was ready")
            return ExitStatus.CLEAN
        try:
            self._announce(node)
            self._run_beside(node)
            await self._asked.wait()
        finally:
            await self._stop(node)
        return ExitStatus.CLEAN

    async def _start(self) -> Node | None:
        """A node that serves; None when a signal came first."""
        options = self.configuration.options.node
        for note in (*self.configuration.notes, *warnings_of(options)):
            self.log.logger.warning("%s", note)
        if options.zookeeper is not None:
            where = options.zookeeper
            self.log.logger.info(
                "asking ZooKeeper at %s for the cluster at %s", where.connect_string, where.cluster_root
            )
        starting = asyncio.ensure_future(Node.start(options, log=self.log.logger, version=__version__))
        asked = asyncio.ensure_future(self._asked.wait())
        await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await starting).stop(0)
            return None
        asked.cancel()
        return await starting

    def _announce(self, node: Node) -> None:
        """Everything that waits for the node may come."""
        gc.collect()
        gc.freeze()  # what a start leaves behind lives as long as the node; collections need not look at it again
        ready = READY.shown(node.ready_info)
        if self.ready_file is not None:
            self.ready_file.write(ready)
        self.notifier.ready(self._status(node))
        self.shown.ready(ready, node)

    def _status(self, node: Node) -> str:
        where = node.addresses
        return f"serving {node.ready_info.directory} at {where.host}:{where.port}"

    # --- beside the node ---------------------------------------------------------------------------------------------

    def _run_beside(self, node: Node) -> None:
        self._begin(self._take_reloads(node), "reloading")
        if self.notifier.watchdog_seconds is not None:
            self._begin(self._stay_alive(self.notifier.watchdog_seconds / 2), "the watchdog")
        if self.shown.live is not None:
            self._begin(self._show_live(node, self.shown.live), "the live view")
        graphite = node.options.graphite
        if graphite is not None:
            from waltzctl.engine.net.graphite import report_for_ever

            self._begin(
                report_for_ever(graphite, lambda: node.read().metrics(), self.log.logger), "the report to Graphite"
            )

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            self._background.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                self.log.logger.error("%s ended; the node serves on: %s", name, error, exc_info=error)

        task.add_done_callback(ended)

    async def _stay_alive(self, interval: float) -> None:
        while True:
            self.notifier.alive()
            await asyncio.sleep(interval)

    async def _show_live(self, node: Node, show: Callable[[Object], None]) -> None:
        reading = SingleFlight(node.read, name="the live view")
        before: dict[int, int] = {}
        then = asyncio.get_running_loop().time()
        while True:
            with contextlib.suppress(OverdueError):  # a stuck disk: what was shown stays
                found = await reading.result(self.shown.interval * 10)
                now = asyncio.get_running_loop().time()
                show(live_object(found, node.connections(), before, now - then))
                before = {one.partition: one.metrics.append.count for one in found.partitions}
                then = now
            await asyncio.sleep(self.shown.interval)

    # --- reload ------------------------------------------------------------------------------------------------------

    async def _take_reloads(self, node: Node) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            self.notifier.reloading()
            try:
                await self._reload_once(node)
            except (WaltzError, OSError) as error:
                self.log.logger.error("the configuration stays as it was: %s", error)
            self.notifier.ready(self._status(node))

    async def _reload_once(self, node: Node) -> None:
        anew = await asyncio.to_thread(self.read_again)
        reload = self.configuration.reload(anew)
        await node.reload(reload.configuration.options.node)
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

    # --- end ---------------------------------------------------------------------------------------------------------

    def _on_stop(self, number: int) -> None:
        if self._asked.is_set():
            self._end_at_once()
        self.log.logger.info("%s: stopping", signal.Signals(number).name)
        self._asked.set()

    def _end_at_once(self) -> NoReturn:
        if self.ready_file is not None:
            self.ready_file.remove()
        with contextlib.suppress(OSError):
            self.shown.abandon()
            say("waltzctl: ended at once; everything that was acknowledged is durable")
            sys.stderr.flush()
        os._exit(ExitStatus.INTERRUPTED)

    async def _stop(self, node: Node) -> None:
        if self.ready_file is not None:
            self.ready_file.remove()
        seconds = self.configuration.options.node.drain_seconds
        self.notifier.stopping("answering what was asked, then closing", seconds)
        for task in tuple(self._background):
            task.cancel()
        await node.stop(seconds)
        self.log.logger.info("stopped")


def warnings_of(options: NodeOptions) -> tuple[str, ...]:
    """What somebody who starts a node like this should know."""
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
    """Settings of this process that a node is better off with."""
    import resource

    sys.setswitchinterval(SWITCH_INTERVAL)
    with contextlib.suppress(OSError, AttributeError):  # a C library without this call has no such settings
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, BIG_BLOCK)
        mallopt(_M_ARENA_MAX, 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))


def loop_factory(wanted: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop's event loop, where it is there and `wanted`; None for asyncio's own."""
    if not wanted:
        return None
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def serve(service: Callable[[], Service], *, with_uvloop: bool) -> ExitStatus:
    """Run a service to its end in an event loop of its own."""

    async def whole() -> ExitStatus:
        return await service().run()

    prepare_process()
    with asyncio.Runner(loop_factory=loop_factory(with_uvloop)) as runner:
        return runner.run(whole())


def ready_file_at(path: Path | None) -> ReadyFile | None:
    """The ready file, if one is wanted.  Raises InvalidRequestError where it cannot be written."""
    if path is None:
        return None
    file = ReadyFile(path)
    file.check()
    return file
