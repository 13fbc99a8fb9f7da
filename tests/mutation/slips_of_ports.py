"""Slips below the protocols: connections, the ports that they come to, and those who work and wait behind them."""

from __future__ import annotations

from tests.mutation.trial import Slip

_CONNECTION, _PORT = "engine/net/connection.py", "engine/net/port.py"
_FLIGHT, _EXECUTOR = "engine/net/single_flight.py", "engine/net/executor.py"
_OF_CONNECTION = ("tests/node/test_connection.py",)
_OF_PORT = ("tests/node/test_port.py",)
_LISTENING = ("tests/net/test_listening.py",)
_WAITING = ("tests/net/test_waiting.py",)
_BOUNDS = ("tests/node/test_bounds.py",)

PORTS: tuple[Slip, ...] = (
    Slip(
        _CONNECTION,
        "        self._note_queued(self._transport.get_write_buffer_size())\n        self._resume(Pause.UNREAD_ANSWERS)",
        "        self._resume(Pause.UNREAD_ANSWERS)",
        _OF_CONNECTION,
        "a peer that took its answers is promised no room for the next one",
    ),
    Slip(
        _CONNECTION,
        "        self._tail = bytes(received[start:end])\n        return None",
        "        self._tail = bytes(received[:end])\n        return None",
        _OF_CONNECTION,
        "keep-alives in front of a Hello fill the buffer that all connections share",
    ),
    Slip(
        _CONNECTION,
        "        self._port.budget.leave(self)\n        self._big",
        "        self._big",
        _OF_CONNECTION,
        "memory is reserved for whoever is gone, and never given back",
    ),
    Slip(
        _CONNECTION,
        "if self._pauses & Pause.DRAINING and not",
        "if self._pauses is Pause.DRAINING and not",
        _OF_CONNECTION,
        "a stop waits to its last second for a connection that was crowded when it began",
    ),
    Slip(
        _CONNECTION,
        "if not budget.crowded or self._big is not None or not self.open:",
        "if not budget.crowded or not self.open:",
        _OF_CONNECTION,
        "a frame that takes the last memory waits for ever for itself",
    ),
    Slip(
        _CONNECTION,
        "if not budget.crowded or self._big is not None or not self.open:",
        "if not budget.crowded or self._big is not None:",
        _OF_CONNECTION,
        "who was refused stands in the line of those who wait for memory",
    ),
    Slip(
        _CONNECTION,
        "            if not self.share.queued:\n                self._moved = self._port.loop.time()\n",
        "",
        _OF_CONNECTION,
        "a peer's time to take its answers begins before there are any",
    ),
    Slip(
        _CONNECTION,
        "now - self._spoken > limits.keep_alive_seconds",
        "now - self._heard > limits.keep_alive_seconds",
        _OF_CONNECTION,
        "a client that sends and is sent nothing takes the node for dead",
    ),
    Slip(
        _CONNECTION,
        "        if self._closing:\n            return\n        if self._big is None:",
        "        if self._big is None:",
        _OF_CONNECTION,
        "what arrives behind the end is executed for nobody",
    ),
    Slip(
        _CONNECTION,
        "        if self._answers:\n            self.send()\n        self._check_bounds()",
        "        if self._answers:\n            self.send()",
        _OF_CONNECTION,
        "a peer is read without bound",
    ),
    Slip(
        _PORT,
        "            dropped, self._dropped = self._dropped, 0",
        "            dropped = self._dropped",
        _OF_PORT,
        "complaints that were left out are told again and again",
    ),
    Slip(
        _PORT,
        "            self._stop_listening()\n            raise ListenError",
        "            raise ListenError",
        _LISTENING,
        "a start that failed leaves a socket that listens to nobody",
    ),
    Slip(
        _PORT,
        "        self._stop_listening()\n        self.draining = True",
        "        self.draining = True",
        _OF_PORT,
        "a node that stops goes on accepting",
    ),
    Slip(
        _PORT,
        "                    await self._empty.wait()\n        await self.close()",
        "                    await self._empty.wait()\n                return\n        await self.close()",
        _OF_PORT,
        "behind a stop the port goes on looking at the clock",
    ),
    Slip(
        _PORT,
        "            self._empty.clear()\n            with contextlib.suppress(TimeoutError):",
        "            with contextlib.suppress(TimeoutError):",
        _OF_PORT,
        "a stop answers nobody once the port had been empty",
    ),
    Slip(
        _PORT,
        "            task.cancel()\n",
        "            pass\n",
        _OF_PORT,
        "a stop waits for a handshake that does not come",
    ),
    Slip(
        _PORT,
        "        if self._arriving:\n            await asyncio.wait(list(self._arriving))\n",
        "",
        _OF_PORT,
        "a port counts as closed while somebody is still coming in",
    ),
    Slip(
        _PORT,
        "            self._timer.cancel()\n            self._timer = None\n",
        "            self._timer = None\n",
        _OF_PORT,
        "a closed port goes on looking at the clock",
    ),
    Slip(
        _PORT,
        "        self._touched.pop(connection, None)\n",
        "",
        _OF_PORT,
        "who is gone is held until somebody else is answered",
    ),
    Slip(
        _PORT,
        "        while self._touched:",
        "        if self._touched:",
        _OF_PORT,
        "an answer that another one made room for waits for the next tick",
    ),
    Slip(
        _PORT,
        "        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n",
        "",
        _LISTENING,
        "a node cannot be started again for minutes",
    ),
    Slip(
        _EXECUTOR,
        "                del job  # an idle thread keeps nothing alive\n",
        "",
        _WAITING,
        "a partition that was given up is held by an idle thread",
    ),
    Slip(
        _EXECUTOR,
        "            self._workers.remove(worker)\n            self._start_worker(job)",
        "            self._start_worker(job)",
        _WAITING,
        "with each thread that ends the pool becomes smaller",
    ),
    Slip(
        _FLIGHT,
        "            with self._lock:\n                self._waiting.discard(future)",
        "            pass",
        _WAITING,
        "each health check of a stuck disk is remembered",
    ),
    Slip(
        _FLIGHT,
        "            with contextlib.suppress(RuntimeError):  # its event loop has been closed",
        "            if future:",
        _WAITING,
        "somebody whose loop is gone keeps the others from waking",
    ),
    Slip(
        _FLIGHT,
        "None if deadline is None else run.started + deadline - time.monotonic()",
        "deadline",
        _WAITING,
        "each health check of a stuck disk waits for the whole deadline",
    ),
    Slip(
        _FLIGHT,
        "time.monotonic() - run.finished < max_age",
        "time.monotonic() - run.started < max_age",
        _WAITING,
        "a slow disk is looked at without a pause",
    ),
    Slip(
        "engine/net/small_file.py",
        'line = data.splitlines()[0] if data else b""',
        'line = data.split()[0] if data.split() else b""',
        _BOUNDS,
        "a password with a blank opens nothing",
    ),
    Slip(
        "engine/net/small_file.py",
        "        return line.decode()\n",
        "        return line.decode().strip()\n",
        _BOUNDS,
        "a password that ends with a blank opens nothing",
    ),
    Slip(
        _PORT,
        "            task.add_done_callback(self._arriving.discard)",
        "            task.add_done_callback(lambda _: None)",
        _OF_PORT,
        "a node remembers everybody who ever came",
    ),
    Slip(
        "engine/net/outbox.py",
        "                less_urgent(*its_arguments)",
        "                less_urgent(*its_arguments)\n                break",
        _WAITING,
        "appends are counted later and later",
    ),
    Slip(
        "engine/net/http_port.py",
        'request.query.get("pretty", "").lower() == "true"',
        'request.query.get("pretty") is not None',
        ("tests/node/test_http_limits.py",),
        "who asks for one line is given many",
    ),
    Slip(
        _CONNECTION,
        "        self._connected = self._heard = self._moved = self._port.loop.time()\n        self.made",
        "        self._heard = self._moved = self._port.loop.time()\n        self.made",
        _OF_CONNECTION,
        "a connection is told to be older than it is",
    ),
)
