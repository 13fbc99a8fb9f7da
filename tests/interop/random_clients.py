"""Random conversations of clients with two log servers at once, and what has to be kept from both to compare them.

Requests are said in turns: some on one connection, then everything is waited for.  So the order of appends is the same at both.
Not said here, because the servers are known to differ: see `test_servers_side_by_side.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.interop.side_by_side import Pair, settled
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.frame import Magic, frame, keep_alive

PARTITIONS = 5
"""Of the cluster; its only server has all of them."""
GENERATION = 1
"""Of every partition: it has had one server."""
NOT_SERVED = (PARTITIONS, 99, -1, 2**31 - 1, -(2**31))
EDGES = (0, 1, -1, 2**31 - 1, -(2**31))


@dataclass
class _Client:
    """A connection, and what the client said through it."""

    pair: Pair
    client: int
    connection: int
    others: tuple[int, ...] = ()
    """Further clients of the connection, which have no other one."""
    generations: tuple[int, ...] = (GENERATION, GENERATION, 0, -1)
    """Those that it may name when it mounts: a later connection takes a partition only over with one that is not lower."""
    mounted: dict[tuple[int, int], RequestId] = field(default_factory=dict)
    """By partition and client: the last mount."""
    feeds: Counter[int] = field(default_factory=Counter)
    """By partition: how many feeds were asked for."""

    def waiting(self, partition: int) -> int:
        """How many feeds of a partition are not suspended yet."""
        return self.feeds[partition] - self.pair.talks[0].suspended[partition]


class Conversation:
    """Everything that is said to the two servers, drawn from one seed."""

    def __init__(
        self, ports: Sequence[int], seed: int, *, first_client: int, served: range, crowded: bool = False
    ) -> None:
        """`first_client`: the lowest client id; those of another conversation are far away.  `served`: partitions to talk of.

        `crowded`: hundreds of appends are sent together, and no feeds are asked for: those of ours are granted more then.
        """
        self._ports, self._random, self._partitions = ports, random.Random(seed), served
        self._next_client = first_client
        self._sequence = 0
        self._clients: list[_Client] = []
        self._pairs: list[Pair] = []
        """All that there ever were."""
        self.marks = dict.fromkeys(served, -1)
        """Last committed transaction of each partition."""
        self._decided = set[int]()
        """Partitions in which an append of this turn would come behind a flush or a mount."""
        self._missed: set[tuple[int, int]] = set()
        self.said = Counter[str]()
        self._crowded = crowded

    async def begin(self) -> None:
        """Connect the observer, which never mounts."""
        self._observer = await self._connected(4, "observer")
        await self._settle()

    async def _connected(self, version: int, name: str) -> Pair:
        self._pairs.append(await Pair.begin(self._ports, version, name))
        return self._pairs[-1]

    async def end(self) -> None:
        """Close all connections."""
        for pair in self._pairs:
            await pair.close()

    async def _settle(self, said: str = "") -> None:
        """Everything said so far is decided and answered, alike."""
        pairs = [self._observer, *(one.pair for one in self._clients)]
        try:
            await settled(pairs)
            for partition in self._partitions:
                self._observer.say(wire.FlushRequest(self._id(5, partition)))
            heard = await settled(pairs)
        except AssertionError as error:
            raise AssertionError(f"behind {said}:\n{error}") from None
        for one in heard[self._observer.name]:
            self.marks[one.request_id.partition] = one.high_water_mark

    def _id(self, client: int, partition: int, generation: int | None = None) -> RequestId:
        self._sequence += 1
        if generation is None:
            generation = self._random.choice((GENERATION, GENERATION, 0, -1, -(2**31)))
        return RequestId(client, generation, partition, self._sequence)

    # ---- turns ---------------------------------------------------------------------------------------------------------

    async def turn(self) -> None:
        """Say something, and wait until both have answered."""
        draw = self._random.random()
        if len(self._clients) < 3 or (draw < 0.03 and len(self._clients) < 9):
            said = await self._connect()
        elif draw < 0.05:
            said = await self._leave()
        elif draw < 0.07:
            said = await self._replace()
        elif draw < 0.09:
            said = await self._spoil()
        elif draw < 0.10:
            said = await self._prefer()
        else:
            said = self._burst(self._random.choice(self._clients))
        await self._settle(said)
        if any(one.pair.ended[0] for one in self._clients):
            self._clients = [one for one in self._clients if not one.pair.ended[0]]

    async def _connect(self, of: _Client | None = None) -> str:
        version = self._random.choice((0, 1, 2, 3, 4, 4, 4))
        if of is None:
            self._next_client += 10
            client = self._next_client
            others = (client + 1, client + 2) if self._random.random() < 0.2 else ()
            connection = self._random.choice((0, 0, 7, -3))
        else:
            client, others, connection = of.client, (), of.connection + self._random.choice((1, 2, 100))
        name = f"client {client}, connection {connection}"
        made = _Client(await self._connected(version, name), client, connection, others)
        self._clients.append(made)
        # the release takes whoever speaks first on a connection for its only client
        made.pair.say(wire.HighWaterMarkRequest(self._id(client, self._random.choice(self._partitions))))
        return f"a connection of {name}"

    async def _leave(self) -> str:
        gone = self._clients.pop(self._random.randrange(len(self._clients)))
        await gone.pair.close()
        return f"{gone.pair.name} has left"

    async def _replace(self) -> str:
        """A client connects once more, and mounts there what it had, or something else."""
        alone = [one for one in self._clients if not one.others]
        if not alone:
            return "nothing"
        number = self._random.choice(alone).client
        old = max((one for one in alone if one.client == number), key=lambda one: one.connection)
        said = await self._connect(old)
        new = self._clients[-1]
        new.generations = (GENERATION,)
        for partition in self._random.sample(self._partitions, 2):
            self._mount(new, partition)
        for one in self._clients[:-1]:
            if one.client == new.client:
                for key in new.mounted:
                    one.mounted.pop(key, None)
        return said

    async def _spoil(self) -> str:
        """Something that ends the connection."""
        client = self._random.choice(self._clients)
        pair = client.pair
        version = pair.version
        request_id = self._id(client.client, 99)  # the release may do what it reads before it closes
        append = wire.AppendRequest(request_id, 2**40, 0, b"spoiled", crc32(b"spoiled"))
        body = wire.encode(append, version)[7:]
        front = wire.PREFIX_SCHEMA.build({"type": 0, "request_id": request_id})[1:]
        answer_id = self._id(client.client, self._random.choice(self._partitions))
        name, frames = self._random.choice(
            [
                ("a wrong checksum", frame(Magic.CLIENT, version, body[:-1] + bytes([body[-1] ^ 1]))),
                ("a type that there is not", frame(Magic.CLIENT, version, bytes([99]) + front)),
                (
                    "a type of a later version",
                    frame(Magic.CLIENT, version, bytes([(13, 15, 21, 21, 23)[version]]) + front),
                ),
                ("a body that ends too early", frame(Magic.CLIENT, version, body[:-3])),
                ("a body that goes on", frame(Magic.CLIENT, version, body + b"x")),
                ("another magic", frame(Magic.STORAGE, version, body)),
                ("another version", frame(Magic.CLIENT, version + 1, body)),
                ("a negative length", b"L" + version.to_bytes(2, "big") + b"\xff\xff\xff\xff"),
                ("an answer", wire.encode(wire.FlushResponse(answer_id, 3), version)),
                ("a response to a mount", wire.encode(wire.MountResponse(answer_id, wire.MountState.READY), version)),
                ("another Hello", frame(Magic.HELLO, 0, b"\0\0\0\0\xff\xff\xff\xff")),
            ]
        )
        self.said[name] += 1
        pair.send(frames)
        await self._until_ended(pair, name)
        return name

    async def _prefer(self) -> str:
        """Preferences: apart from everything else, as the release answers two at a time with none at all sometimes."""
        client = self._random.choice(self._clients)
        if client.pair.version < 2:
            return "nothing"
        kind = self._random.choice((wire.AddPreferredPartitionRequest, wire.RemovePreferredPartitionRequest))
        partitions = self._random.choices(range(PARTITIONS), k=self._random.choice((1, 2, 6)))
        client.pair.say(kind(RequestId(client.client, 0, partitions[0], 0), tuple(partitions)))
        await self._settle("preferences")
        await asyncio.sleep(0.1)
        self.said["preferences"] += 1
        return f"{client.pair.name}: {kind.__name__} {partitions}"

    async def _until_ended(self, pair: Pair, name: str) -> None:
        for _ in range(300):
            if all(pair.ended):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{pair.name} (version {pair.version}): ended behind {name}: released, ours: {pair.ended}")

    def _burst(self, client: _Client) -> str:
        said = []
        appended: set[int] = set()
        self._decided = set[int]()
        ways: list[tuple[int, Callable[[_Client, int, set[int]], str | None]]] = [
            (10, self._append),
            (3, self._mount_again),
            (3, self._feed),
            (3, self._data),
            (1, self._mark),
            (1, self._flush),
            (1, self._not_served),
            (1, self._about_the_server),
            (1, self._alive),
        ]
        if self._crowded:
            missing = [one for one in self._partitions if (one, client.client) not in client.mounted]
            if missing and not self._is_replaced(client):
                for partition in missing:
                    self._mount(client, partition, client.client)
                return f"{client.pair.name}: mounts of {missing}"
            ways = [one for one in ways if one[1] not in (self._mount_again, self._feed, self._flush)]
        weights, calls = zip(*ways, strict=True)
        for _ in range(self._random.choice((300, 800) if self._crowded else (1, 2, 5, 12, 30))):
            partition = min(self._random.choice(self._partitions), self._random.choice(self._partitions))
            (call,) = self._random.choices(calls, weights)
            what = call(client, partition, appended)
            if what is not None:
                self.said[what.split(" ")[0]] += 1
                said.append(f"{what} of {partition}")
        for partition in appended:  # here, as the observer might overtake them
            client.pair.say(wire.FlushRequest(self._id(client.client, partition)))
        return f"{client.pair.name}: {', '.join(said)}"

    def _who(self, client: _Client) -> int:
        return self._random.choice((client.client, *client.others))

    def _append(self, client: _Client, partition: int, appended: set[int]) -> str | None:
        who = self._who(client)
        if partition in self._decided or (client.others and (partition, who) not in client.mounted):
            return None
        mark = self.marks[partition]
        position = self._random.choice((mark, mark, -1, mark - 1, mark // 2, mark + 3, mark + 50, 2**63 - 1))
        locks = {
            name: tuple(
                self._lock()
                for _ in range(self._random.choice((0, 0, 0, 1, 1, 2) if self._crowded else (0, 0, 1, 1, 2, 5)))
            )
            for name, since in (("write_locks", 0), ("read_locks", 1), ("append_locks", 2))
            if client.pair.version >= since and self._random.random() < 0.6
        }
        data = self._random.randbytes(self._random.choice((0, 1, 20, 100, 3000)))
        header = self._random.choice((0, 5, *EDGES))
        request_id = self._id(who, partition, GENERATION)
        if self._random.random() < 0.1 and self._sequence > 5:  # a number that was used already
            request_id = RequestId(who, GENERATION, partition, self._random.randrange(self._sequence))
        client.pair.say(wire.AppendRequest(request_id, max(position, -1), header, data, crc32(data), **locks))
        appended.add(partition)
        return "append"

    def _lock(self) -> int:
        if self._crowded and self._random.random() < 0.9:  # most are admitted, and wait for one another now and then
            return self._random.randrange(-(2**31), 2**31)
        return self._random.choice((self._random.randrange(6), *EDGES, self._random.randrange(-(2**31), 2**31)))

    def _mount_again(self, client: _Client, partition: int, appended: set[int]) -> str | None:
        if client.waiting(partition) or self._is_replaced(client) or partition in self._decided:
            return None
        self._decided.add(partition)
        self._mount(client, partition)
        return "mount"

    def _mount(self, client: _Client, partition: int, who: int | None = None) -> None:
        mark = self.marks[partition]
        if who is None:
            who = self._who(client)
        position = self._random.choice((mark, mark, -1, 0, mark - 1, mark - 150, mark // 2, mark + 500, 2**63 - 1))
        request_id = self._id(who, partition, self._random.choice(client.generations))
        client.pair.say(wire.MountRequest(request_id, max(position, -1), client.connection))
        client.mounted[partition, who] = request_id

    def _is_replaced(self, client: _Client) -> bool:
        return any(one.client == client.client and one.connection > client.connection for one in self._clients)

    def _feed(self, client: _Client, partition: int, appended: set[int]) -> str | None:
        who = self._who(client)
        if (partition, who) not in client.mounted:
            if client.others:
                return None
            client.pair.say(wire.FeedRequest(self._id(who, partition), -1))  # both ignore it
            return "feed without a mount"
        mark = self.marks[partition]
        if partition in appended and mark > 60:
            return None
        if client.waiting(partition) and self._random.random() < 0.7:
            return None
        if client.waiting(partition) or partition in self._decided:
            client.pair.tangled.add(partition)
        position = self._random.choice((mark, -1, mark - 1, mark - 99, mark - 100, mark - 101, mark // 3))
        client.pair.say(wire.FeedRequest(client.mounted[partition, who], max(position, -1)))
        client.feeds[partition] += 1
        return "feed"

    def _data(self, client: _Client, partition: int, appended: set[int]) -> str | None:
        mark = self.marks[partition]
        transaction_id = self._random.choice(
            (0, mark, mark // 2, mark - 70, mark + 1, mark + 9, 2**63 - 1, -1, -(2**63))
        )
        if not 0 <= transaction_id <= mark:
            if partition in appended and 0 <= transaction_id < 2**40:
                return None
            self._missed.add((partition, transaction_id))
        elif (partition, transaction_id) in self._missed:  # the release refuses it for ever
            return None
        client.pair.say(wire.TransactionDataRequest(self._id(self._who(client), partition), transaction_id))
        return "data"

    def _mark(self, client: _Client, partition: int, appended: set[int]) -> str | None:
        if partition in appended:
            return None
        client.pair.say(wire.HighWaterMarkRequest(self._id(self._who(client), partition)))
        return "mark"

    def _flush(self, client: _Client, partition: int, appended: set[int]) -> str:
        self._decided.add(partition)
        client.pair.say(wire.FlushRequest(self._id(self._who(client), partition)))
        return "flush"

    def _not_served(self, client: _Client, partition: int, appended: set[int]) -> str:
        request_id = self._id(self._who(client), self._random.choice(NOT_SERVED))
        message = self._random.choice(
            [
                wire.MountRequest(request_id, self._random.choice((-1, 0, 9)), client.connection),
                wire.AppendRequest(request_id, -1, 0, b"nobody", crc32(b"nobody")),
                wire.FeedRequest(request_id, -1),
                wire.TransactionDataRequest(request_id, self._random.choice((-1, 0, 3))),
                wire.FlushRequest(request_id),
                wire.HighWaterMarkRequest(request_id),
            ]
        )
        answered = isinstance(message, wire.MountRequest | wire.TransactionDataRequest)
        client.pair.say(message, answered=answered)
        return "not served"

    def _about_the_server(self, client: _Client, partition: int, appended: set[int]) -> str | None:
        request_id = RequestId(self._who(client), self._random.choice((0, 7)), partition, self._random.choice((0, 3)))
        preferred = (*self._random.choices(range(PARTITIONS + 1), k=self._random.choice((0, 1, 5))), PARTITIONS)
        messages: list[tuple[int, Any]] = [
            (1, wire.CheckStorageConnectivityRequest(request_id)),
            (2, wire.ServerPartitionsAssignmentRequest(request_id)),
            (2, wire.AddPreferredPartitionRequest(request_id, preferred)),
            (2, wire.RemovePreferredPartitionRequest(request_id, preferred)),
            (4, wire.ServerPartitionsHealthRequest(request_id)),
        ]
        known = [message for since, message in messages if client.pair.version >= since]
        if not known:
            return None
        client.pair.say(message := self._random.choice(known))
        return type(message).__name__

    def _alive(self, client: _Client, partition: int, appended: set[int]) -> str:
        client.pair.send(keep_alive(Magic.CLIENT, client.pair.version) * self._random.choice((1, 3)))
        return "keep-alive"
