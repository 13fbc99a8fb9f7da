"""Whatever becomes of the appends of some calls: each is committed once, and told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.log_in_process import OPTIONS, Bulk, InProcess, run
from waltzctl.engine.client import append_call, partition_mount
from waltzctl.engine.client.append_call import AppendCall, AppendsInBulk, OneAppend
from waltzctl.engine.client.log_connection import LogConnection
from waltzctl.engine.client.log_transaction import Build, Draft
from waltzctl.engine.client.partition_mount import SPENT_AT, Mount
from waltzctl.engine.client.undecided_appends import UndecidedAppends

few = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


HAPPENS = st.one_of(
    st.tuples(st.just("commit"), st.integers(1, 4), st.integers(0, 2)),
    st.tuples(st.just("refuse"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("pass over"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("cut"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("move"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("append"), st.just(0), st.just(0)),
)
"""What, of how many appends or which of them, and how many transactions of others."""
ORDERLY = {"commit", "append"}
WITHOUT_MEMORY: list[tuple[Any, str]] = [
    (Mount, "fed"),
    (Mount, "pushed"),
    (Mount, "connected"),
    (Mount, "_mount_answered"),
    (UndecidedAppends, "fail_oldest"),
    (Mount, "_decide_passed"),
    (UndecidedAppends, "return_conflicting"),
    (Mount, "_wake_next"),
    (AppendCall, "refused"),
    (AppendCall, "wake"),
    (OneAppend, "committed"),
    (AppendsInBulk, "committed"),
    (LogConnection, "send"),
    (partition_mount, "RequestId"),
    (append_call, "RequestId"),
    (append_call, "Transaction"),
]
"""What may lack memory while the client is at work on what a server said."""


@pytest.mark.turns(8)
@few
@given(
    given=st.lists(st.lists(st.sampled_from(("draft", "builder", "nothing")), max_size=12), min_size=1, max_size=2),
    happens=st.lists(st.tuples(HAPPENS, st.sampled_from((0, 1, 2, 5, 40))), max_size=25),
    in_flight=st.integers(1, 4),
    awaited=st.booleans(),
    spent=st.one_of(st.none(), st.integers(0, 12)),
)
def test_whatever_happens_each_is_committed_once_and_told(
    given: list[list[str]],
    happens: list[tuple[tuple[str, int, int], int]],
    in_flight: int,
    awaited: bool,
    spent: int | None,
) -> None:
    live_through(given, happens, in_flight, awaited=awaited, spent=spent)


@pytest.mark.parametrize("what", WITHOUT_MEMORY, ids=lambda what: f"{what[0].__name__.rpartition('.')[2]}-{what[1]}")
def test_whatever_happens_a_moment_without_memory_doubles_and_hides_nothing(what: tuple[Any, str]) -> None:
    for seed in range(40):
        random = Random(seed)
        kinds = [random.choice(("commit", "refuse", "pass over", "cut", "move", "append", "append")) for _ in range(14)]
        happens = [
            ((kind, random.randrange(4), random.randrange(3)), random.choice((0, 1, 2, 5, 40))) for kind in kinds
        ]
        live_through([["draft"] * 8] * 2, happens, 3, fails=(what, seed % 13 + 1, seed % 2 == 0))


def live_through(
    given: list[list[str]],
    happens: list[tuple[tuple[str, int, int], int]],
    in_flight: int,
    *,
    awaited: bool = False,
    spent: int | None = None,
    fails: tuple[tuple[Any, str], int, bool] | None = None,
) -> None:
    """`fails`: what, at which time, and whether behind what it does."""

    async def test(made: InProcess) -> None:
        if fails is not None:
            patch.setattr(*fails[0], failing(made, getattr(*fails[0]), *fails[1:]))
        log, generation, singles = made.log, 1, list[asyncio.Task[Any]]()
        if spent is not None:
            made.mount._sequence = SPENT_AT - spent
        bulks = []
        for who, kinds in enumerate(given):
            items = [item(kind, b"%d-%d" % (who, place)) for place, kind in enumerate(kinds)]
            bulks.append(Bulk(made, slowly(items) if awaited else items))
        for (what, number, others), turns in happens:
            match what:
                case "commit":
                    log.commit(number, others=others)
                case "refuse" if number < len(log.appends):
                    log.refuse(number, behind=others)
                case "pass over" if number < len(log.appends):
                    log.pass_over(number)
                case "cut":
                    log.commit(number, told=False)
                    log.cut()
                case "move":
                    log.commit(number, told=False)
                    generation += 1
                    made.moves(generation)
                case "append":
                    data = b"single-%d" % len(singles)
                    singles.append(asyncio.ensure_future(made.client.append(0, Draft(data))))
            for _ in range(turns):
                await asyncio.sleep(0)
        tasks = [*singles, *(bulk.task for bulk in bulks)]
        while not all(task.done() for task in tasks):
            log.commit(in_flight, others=1)
            await asyncio.sleep(0.1)
        for who, (kinds, bulk) in enumerate(zip(given, bulks, strict=True)):
            wanted = {place: b"%d-%d" % (who, place) for place, kind in enumerate(kinds) if kind != "nothing"}
            assert bulk.task.result() == len(bulk.told) == len(wanted)
            assert {place: log.log[number][1] for place, number in bulk.told} == wanted
            if {what for (what, _, _), _ in happens} <= ORDERLY and fails is None:
                assert bulk.told == sorted(bulk.told)
        for place, task in enumerate(singles):
            assert log.log[task.result().transaction_id] == (task.result().request_id, b"single-%d" % place)
        assert len(log.committed) == len({*log.committed}) == len(singles) + sum(len(bulk.told) for bulk in bulks)
        assert len({number for number, data in log.log if data}) == len(log.committed)
        assert log.most <= in_flight
        undecided, running = made.mount._undecided, made.mount._running
        assert (undecided.to_resend, undecided.sent, running.appending, running.turns) == (0, {}, {}, {})

    with pytest.MonkeyPatch.context() as patch:
        run(test, replace(OPTIONS, in_flight=in_flight, nudge=1.0))


def failing(made: InProcess, real: Callable[..., Any], time: int, behind: bool) -> Callable[..., Any]:
    """`real`, which lacks memory at that time that a server's message leads to it."""
    times = count(1)

    def fails_once(*given: Any) -> Any:
        if not made.log.receiving or next(times) != time:
            return real(*given)
        if behind and getattr(real, "__name__", "") in {"fed", "_decide_passed", "_mount_answered", "_wake_next"}:
            real(*given)
        raise MemoryError

    return fails_once


def item(kind: str, data: bytes) -> Build | Draft:
    if kind == "draft":
        return Draft(data)
    return (lambda _mark: None) if kind == "nothing" else lambda _mark: Draft(data)


async def slowly(items: Iterable[Build | Draft]) -> AsyncIterator[Build | Draft]:
    for number, one in enumerate(items):
        if number % 3 == 1:
            await asyncio.sleep(0)
        yield one
