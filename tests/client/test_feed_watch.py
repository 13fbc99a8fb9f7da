"""What a server has passed over is asked for again: when, how often, and when not.  The mount is a stand-in, the time virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.simulation.virtual_time import simulate
from waltzctl.engine.client.feed_watch import FeedWatch
from waltzctl.engine.errors import PeerUnreachableError
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire

Mark = asyncio.Future[wire.HighWaterMarkResponse]


@dataclass
class Watched:
    """`told`: what the watch asked of the mount, with the seconds since the beginning; `marks`: questions, in their order."""

    seconds: float = 5.0
    position: int = 7
    reads: bool = True
    feeding: Any = "a connection"
    told: list[tuple[str, float]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun, self.watch = self.loop.time(), FeedWatch(self, self.seconds)

    def _tell(self, what: str) -> None:
        self.told.append((what, self.loop.time() - self.begun))

    def ask_high_water_mark(self, timeout: float) -> Mark:
        """See `WatchedMount`."""
        assert timeout == self.seconds
        self._tell("ask")
        self.marks.append(self.loop.create_future())
        return self.marks[-1]

    def mount_again(self) -> None:
        """See `WatchedMount`."""
        self._tell("mount")
        self.watch.await_answer()

    def remount(self) -> None:
        """See `WatchedMount`."""
        self._tell("remount")

    def answer(self, *ends: int) -> None:
        """The last questions are answered."""
        for mark, end in zip(self.marks[-len(ends) :], ends, strict=True):
            mark.set_result(wire.HighWaterMarkResponse(RequestId(1, 1, 0, 0), end))


def told(test: Callable[[Watched], Awaitable[None]], **given: Any) -> list[tuple[str, float]]:
    """What is asked of a mount in a test and half an hour behind it."""

    errors: list[object] = []

    async def whole() -> list[tuple[str, float]]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        mount = Watched(**given)
        await test(mount)
        await asyncio.sleep(1800.0)
        mount.watch.stop()
        return mount.told

    found = simulate(whole())
    assert errors == []
    return found


def mounts(*seconds: float) -> list[tuple[str, float]]:
    return [("mount", one) for one in seconds]


def test_each_mount_has_twice_the_time_of_the_one_before_up_to_five_minutes() -> None:
    async def test(mount: Watched) -> None:
        mount.watch.await_answer()

    assert told(test, seconds=10.0) == mounts(10, 30, 70, 150, 310, 610, 910, 1210, 1510)


def test_behind_an_answer_the_next_mount_has_the_shortest_time() -> None:
    async def test(mount: Watched) -> None:
        mount.watch.await_answer()
        await asyncio.sleep(39.0)
        mount.watch.answered()
        await asyncio.sleep(61.0)
        mount.watch.await_answer()
        await asyncio.sleep(10.5)
        mount.watch.answered()

    assert told(test, seconds=10.0) == mounts(10, 30, 110)


def test_a_mount_that_is_sent_once_more_has_its_time_from_then_on() -> None:
    async def test(mount: Watched) -> None:
        mount.watch.await_answer()
        await asyncio.sleep(9.0)
        mount.watch.await_answer()
        await asyncio.sleep(21.0)
        mount.watch.answered()

    assert told(test, seconds=10.0) == mounts(29)


@pytest.mark.parametrize("paused", [True, False])
def test_a_mount_is_not_asked_for_again_while_transactions_come_or_nothing_is_read(paused: bool) -> None:
    async def test(mount: Watched) -> None:
        mount.watch.await_answer()
        for _ in range(5):
            await asyncio.sleep(9.0)
            mount.reads, mount.position = not paused, mount.position + (not paused)
        mount.reads = True
        await asyncio.sleep(12.0)
        mount.watch.answered()

    assert told(test, seconds=10.0) == (mounts(50) if paused else [])


@pytest.mark.parametrize("behind", [29.0, 31.0, 36.0])
def test_of_a_mount_that_has_ended_nothing_is_asked(behind: float) -> None:
    async def test(mount: Watched) -> None:
        mount.watch.await_feed()
        await asyncio.sleep(20.0)
        mount.watch.await_answer()
        await asyncio.sleep(behind - 20.0)
        if mount.marks:
            mount.answer(8)
        await asyncio.sleep(0.1)
        mount.watch.stop()

    expected = mounts(40) if behind > 40 else []
    assert told(test, seconds=20.0) == ([("ask", 30.0)] if behind > 30 else []) + expected


def test_a_feed_that_brings_nothing_is_asked_about_and_mounted_anew_in_longer_and_longer_times() -> None:
    async def test(mount: Watched) -> None:
        mount.watch.await_feed()
        for _ in range(900):
            await asyncio.sleep(1.0)
            if mount.marks and not mount.marks[-1].done():
                mount.answer(8)

    seen = [(what, round(when)) for what, when in told(test) if when < 900]
    asked = [when for what, when in seen if what == "ask"]
    assert asked == [30, 60, 120, 240, 480, 780]
    assert [when for what, when in seen if what == "remount"] == [one + 5 for one in asked]


def test_a_feed_that_goes_on_is_asked_about_in_the_shortest_time_again() -> None:
    async def test(mount: Watched) -> None:
        mount.watch.await_feed()
        for second in range(1, 400):
            await asyncio.sleep(1.0)
            if mount.marks and not mount.marks[-1].done():
                mount.answer(8 if second < 100 else -1)
            mount.position += second == 110

    assert [when for what, when in told(test) if what == "ask" and when < 400] == [
        30,
        60,
        150,
        180,
        210,
        240,
        270,
        300,
        330,
        360,
        390,
    ]


@pytest.mark.parametrize("mark", [6, 7, 8, None, PeerUnreachableError("here:1", "gone")], ids=str)
def test_only_what_is_known_to_be_there_is_missed(mark: int | Exception | None) -> None:
    async def test(mount: Watched) -> None:
        mount.watch.await_feed()
        await asyncio.sleep(31.0)
        (asked,) = mount.marks
        if isinstance(mark, int):
            mount.answer(mark)
        elif mark is None:
            asked.cancel()
        else:
            asked.set_exception(mark)
        await asyncio.sleep(6.0)
        mount.watch.stop()

    assert told(test) == [("ask", 30.0), *([("remount", 36.0)] if mark == 8 else [])]


@pytest.mark.parametrize("what", ["position", "reads", "feeding", "asked for again", "nothing"])
def test_what_comes_meanwhile_or_is_asked_for_anew_is_not_missed(what: str) -> None:
    async def test(mount: Watched) -> None:
        mount.watch.await_feed()
        await asyncio.sleep(31.0)
        mount.answer(8)
        await asyncio.sleep(4.0)
        match what:
            case "position":
                mount.position += 1
            case "reads":
                mount.reads = False
            case "feeding":
                mount.feeding = "another connection"
            case "asked for again":
                mount.watch.await_feed()
        await asyncio.sleep(2.0)
        mount.reads = True
        await asyncio.sleep(2.0)
        mount.watch.stop()

    assert told(test) == [("ask", 30.0), *([("remount", 36.0)] if what == "nothing" else [])]


@pytest.mark.parametrize("what", ["position", "reads", "feeding", "nothing"])
def test_nothing_is_asked_about_a_feed_that_goes_on_is_paused_or_was_sent(what: str) -> None:
    async def test(mount: Watched) -> None:
        mount.watch.await_feed()
        mount.watch.await_feed()  # there is one look all the same
        await asyncio.sleep(29.0)
        match what:
            case "position":
                mount.position += 1
            case "reads":
                mount.reads = False
            case "feeding":
                mount.feeding = None
        await asyncio.sleep(30.0)
        mount.reads, mount.feeding = True, "a connection"
        await asyncio.sleep(2.0)
        mount.watch.stop()

    assert told(test) == [("ask", 30.0), ("ask", 60.0)][what != "nothing" :]


def test_of_two_late_answers_one_is_the_beginning_of_the_time() -> None:
    async def test(mount: Watched) -> None:
        mount.watch.await_feed()
        await asyncio.sleep(65.0)
        mount.answer(8, 8)
        await asyncio.sleep(10.0)
        mount.watch.stop()

    assert told(test, seconds=40.0) == [("ask", 30.0), ("ask", 60.0)]
