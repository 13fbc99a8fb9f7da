"""The same conversations with two log servers: one connection to each, the same bytes to both, and what they answer compared.

What is answered to a connection is compared by partition, and apart from one another by what answers it (`_STREAMS`): a server
may overtake itself between these, and between partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from waltzctl.engine.net.tls import client_context
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.frame import FrameReader, Magic
from waltzctl.formats.wire.hello import HELLO_VERSION, WALTZ_CLIENT, Hello

PATIENCE = 20.0
"""Seconds that a server has for an answer."""
_SETTLING = 0.003
"""Seconds after which everything is compared once more: what one of the two says too much comes then, or is found later."""
_STREAMS: dict[type[Any], str] = {
    wire.MountResponse: "feed",
    wire.FeedData: "feed",
    wire.FeedSuspended: "feed",
    wire.LockFailure: "appends",
    wire.FlushResponse: "appends",
}
_ANSWERS = (
    wire.MountResponse,
    wire.FlushResponse,
    wire.TransactionDataResponse,
    wire.HighWaterMarkResponse,
    wire.CheckStorageConnectivityResponse,
    wire.ServerPartitionsAssignmentResponse,
    wire.AddPreferredPartitionResponse,
    wire.RemovePreferredPartitionResponse,
    wire.ServerPartitionsHealthResponse,
)
"""What is sent once for each request of its kind."""


def _told(message: Any) -> Any:
    """What is compared of a message: no order where there is none, no words of an error, no addresses."""
    match message:
        case wire.TransactionDataResponse(request_id, transaction_id, wire.TransactionRefused()):
            return wire.TransactionDataResponse(request_id, transaction_id, wire.TransactionRefused("refused"))
        case wire.CheckStorageConnectivityResponse(request_id, nodes):
            reached = tuple(sorted(("node", connected) for _, connected in nodes))
            return wire.CheckStorageConnectivityResponse(request_id, reached)
        case wire.ServerPartitionsAssignmentResponse(request_id, partitions):
            return wire.ServerPartitionsAssignmentResponse(request_id, tuple(sorted(partitions)))
        case wire.ServerPartitionsHealthResponse(request_id, partitions):
            return wire.ServerPartitionsHealthResponse(request_id, tuple(sorted(partitions)))
    return message


class Talk:
    """One connection to one server, in one version of the protocol, and everything that came through it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self.version = version
        self.heard: list[Any] = []
        """Since everything was compared last."""
        self.answered = 0
        """How many requests were answered."""
        self.suspended = Counter[int]()
        """How many feeds of each partition came to their end."""
        self.ended = False
        """Whether the server closed the connection."""
        self.greeted = asyncio.Event()
        self._reader, self._writer = reader, writer
        self._task = asyncio.create_task(self._hear())

    @classmethod
    async def begin(cls, port: int, version: int) -> Talk:
        """Connect, and agree on this version alone."""
        tls = client_context(TlsOptions(), trust_all=True)
        reader, writer = await asyncio.open_connection("localhost", port, ssl=tls)
        writer.write(Hello((version,), WALTZ_CLIENT).encode())
        talk = cls(reader, writer, version)
        await asyncio.wait_for(talk.greeted.wait(), PATIENCE)
        return talk

    async def _hear(self) -> None:
        frames = FrameReader()
        with contextlib.suppress(OSError):
            while data := await self._reader.read(1 << 16):
                frames.feed(data)
                if not self.greeted.is_set():
                    if frames.next(Magic.HELLO, HELLO_VERSION) is None:
                        continue
                    self.greeted.set()
                while (body := frames.next(Magic.CLIENT, self.version)) is not None:
                    self._note(_told(wire.decode(body, self.version)))
        self.ended = True

    def _note(self, message: Any) -> None:
        self.heard.append(message)
        self.answered += isinstance(message, _ANSWERS)
        self.suspended[message.request_id.partition] += isinstance(message, wire.FeedSuspended)

    def send(self, frames: bytes) -> None:
        """Send what is a frame, or should not be one."""
        self._writer.write(frames)

    async def close(self) -> None:
        """Close it, as a client does that has ended."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def streams(self) -> dict[tuple[int, str], list[Any]]:
        """What came, by partition and kind, in its order."""
        found = defaultdict[tuple[int, str], list[Any]](list)
        for one in self.heard:
            number = one.request_id.partition
            found[number, _STREAMS.get(type(one), type(one).__name__)].append(one)
        for (_, kind), messages in found.items():
            if kind == wire.TransactionDataResponse.__name__:  # those in a cache may overtake others
                messages.sort(key=repr)
            if (
                kind == _STREAMS[wire.LockFailure]
            ):  # one that is contended is refused behind others that are refused at once
                flushed = 0
                for place in (*(at for at, one in enumerate(messages) if isinstance(one, wire.FlushResponse)), None):
                    messages[flushed:place] = sorted(messages[flushed:place], key=lambda one: one.request_id.sequence)
                    flushed = len(messages) if place is None else place + 1
        return dict(found)


class Pair:
    """The same connection to both servers: the released one's first, then ours."""

    def __init__(self, released: Talk, ours: Talk, name: str) -> None:
        self.talks = released, ours
        self.version = released.version
        self.name = name
        self.expected = 0
        """How many requests were sent that are answered one by one."""
        self.tangled: set[int] = set()
        """Partitions that had two feeds at once: they may come in any order."""

    @classmethod
    async def begin(cls, ports: Sequence[int], version: int, name: str = "") -> Pair:
        """Connect to both."""
        released, ours = [await Talk.begin(port, version) for port in ports]
        return cls(released, ours, name)

    def say(self, message: Any, *, answered: bool = True) -> None:
        """Send a message to both.  `answered`: whether there will be an answer, if messages of its type have any."""
        self.send(wire.encode(message, self.version))
        silent = (wire.AppendRequest, wire.FeedRequest)
        self.expected += answered and not isinstance(message, silent)

    def send(self, frames: bytes) -> None:
        """Send bytes to both."""
        for talk in self.talks:
            talk.send(frames)

    async def close(self) -> None:
        """Close both."""
        for talk in self.talks:
            await talk.close()

    @property
    def ended(self) -> tuple[bool, ...]:
        """Which of the servers have closed it."""
        return tuple(talk.ended for talk in self.talks)

    def difference(self) -> str:
        """The first difference between what the servers said; empty: there is none."""
        released, ours = (talk.streams() for talk in self.talks)
        for key in sorted(released.keys() | ours.keys()):
            one, other = released.get(key, []), ours.get(key, [])
            if key[0] in self.tangled and key[1] == "feed":
                one, other = sorted(one, key=repr), sorted(other, key=repr)
            if one != other:
                same = next(
                    (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
                )
                shown = f"released {one[same : same + 3]}, ours {other[same : same + 3]}"
                return f"{self.name}, version {self.version}, {key}, message {same}: {shown}"
        if len(set(self.ended)) > 1:
            return f"{self.name}: closed by the released server, by ours: {self.ended}"
        return ""


async def settled(pairs: Sequence[Pair], *, patience: float = PATIENCE) -> dict[str, list[Any]]:
    """Wait until both servers have answered everything, and have said the same: that, by the name of the connection.

    Raises AssertionError where they do not.
    """
    loop = asyncio.get_running_loop()
    deadline, alike = loop.time() + patience, False
    while True:
        done = all(talk.ended or talk.answered >= pair.expected for pair in pairs for talk in pair.talks)
        differences = [*filter(None, (pair.difference() for pair in pairs))] if done else ["not everything is answered"]
        if not differences and alike:
            break
        alike = not differences
        if loop.time() > deadline:
            unanswered = [
                f"{pair.name}: {pair.expected} requests, answered {[talk.answered for talk in pair.talks]}"
                for pair in pairs
                if any(talk.answered != pair.expected for talk in pair.talks)
            ]
            raise AssertionError("\n".join([*differences, *unanswered, *filter(None, (p.difference() for p in pairs))]))
        await asyncio.sleep(_SETTLING)
    heard = {pair.name: [*pair.talks[0].heard] for pair in pairs}
    for pair in pairs:
        for talk in pair.talks:
            talk.heard.clear()
    return heard
