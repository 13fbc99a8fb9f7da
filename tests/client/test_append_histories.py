"""Whatever becomes of the appends of some calls: each is committed once, and told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.log_in_process import OPTIONS, Bulk, InProcess, run
from waltzctl.engine.client.log_transaction import Build, Draft
from waltzctl.engine.client.partition_mount import SPENT_AT

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
    async def test(made: InProcess) -> None:
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
            if {what for (what, _, _), _ in happens} <= ORDERLY:
                assert bulk.told == sorted(bulk.told)
        for place, task in enumerate(singles):
            assert log.log[task.result().transaction_id] == (task.result().request_id, b"single-%d" % place)
        assert len(log.committed) == len({*log.committed}) == len(singles) + sum(len(bulk.told) for bulk in bulks)
        assert len({number for number, data in log.log if data}) == len(log.committed)
        assert log.most <= in_flight
        assert (made.mount._to_resend, made.mount._pending, made.mount._calls, made.mount._turns) == (0, {}, {}, {})

    run(test, replace(OPTIONS, in_flight=in_flight, nudge=1.0))


def item(kind: str, data: bytes) -> Build | Draft:
    if kind == "draft":
        return Draft(data)
    return (lambda _mark: None) if kind == "nothing" else lambda _mark: Draft(data)


async def slowly(items: Iterable[Build | Draft]) -> AsyncIterator[Build | Draft]:
    for number, one in enumerate(items):
        if number % 3 == 1:
            await asyncio.sleep(0)
        yield one
