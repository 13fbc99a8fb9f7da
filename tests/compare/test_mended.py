"""Whatever was done to three replicas: their plans, one after the other, lead to what is kept, and undo leads back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compare.clusters import MARK, compared, make_cluster, read, segment_of, write
from tests.compare.test_ranges import Injuries, by_id, injure, injuries
from tests.repair.trees import snapshot
from waltzctl.engine.compare import ranges
from waltzctl.engine.compare.plans import plans
from waltzctl.engine.quorum.vote import Verdict
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.undoing import undo
from waltzctl.formats.segment import Record


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Path]]:
    return {mark: make_cluster(tmp_path_factory.mktemp("cluster"), mark=mark) for mark in (-1, MARK)}


def mend_all(nodes: list[Path], *, loss: bool) -> list[tuple[Path, str]]:
    """Compare, carry out one plan, compare again, until no plan does anything."""
    done: list[tuple[Path, str]] = []
    for _ in range(8):
        answer = compared(*nodes)
        found = [one for one in plans(list(answer.partitions.values()), nodes, allow_data_loss=loss) if one.plan.steps]
        if not found:
            return done
        result = apply(found[0], arguments=["recover"])
        assert result.undo_id is not None
        done.append((found[0].storage, result.undo_id))
    raise AssertionError("plans without end")


def check_mended(nodes: list[Path], *, loss: bool) -> None:
    first = compared(*nodes)[0]
    before = [snapshot(path) for path in nodes]
    held = by_id(first)
    done = mend_all(nodes, loss=loss)
    after = compared(*nodes)[0]
    if first.decision.undecided:
        assert done == [], "what is undecidable is left alone"
    if first.verdict in (Verdict.EQUAL, Verdict.RECOVERABLE) and loss:
        assert after.verdict in (Verdict.EQUAL, Verdict.RECOVERABLE)
        for replica in after.replicas:
            unproven = any(source.path is None for source in replica.sources)
            assert replica.state.value in ("equal", "behind") or unproven, "what can be restored is"
    else:
        assert after.clean_to == first.clean_to, "nothing that is kept goes, nothing else comes"
        told = by_id(after)
        for one in first.decision.kept:
            for number in range(one.run.first, one.run.stop):
                if one.version is not None:
                    assert max(told[number]) >= 0, "an intact copy of all that is kept stays"
                    assert max(held[number]) >= 0
    for path, undo_id in reversed(done):
        undo(path, undo_id)
    assert [snapshot(path) for path in nodes] == before


Case = tuple[tuple[Injuries, ...], int, bool]
cases = st.tuples(st.tuples(injuries, injuries, injuries), st.sampled_from((-1, MARK)), st.booleans())


def mend_and_undo(whole: dict[int, list[Path]], root: Path, case: Case) -> None:
    wanted, mark, loss = case
    nodes = [Path(shutil.copytree(path, root / path.name)) for path in whole[mark]]
    for salt, (path, one) in enumerate(zip(nodes, wanted, strict=True)):
        injure(path, one, salt)
    check_mended(nodes, loss=loss)
    shutil.rmtree(root)


@pytest.mark.turns(8)
@pytest.mark.parametrize("loss", [False, True])
@pytest.mark.parametrize(
    "wanted",
    [
        ([("flip", 2)], [("cut", 1)], [("fork", 0)]),
        ([("fork", 0)], [("fork", 0)], [("flip", 2)]),
        ([("fork", 0), ("flip", 3)], [("cut", 2)], []),
        ([("flip", 6), ("rewrite", 5)], [("cut", 5)], []),
    ],
)
def test_a_damaged_record_behind_a_fork_is_no_reason_to_keep_what_goes_with_the_fork(
    whole: dict[int, list[Path]], tmp_path: Path, wanted: tuple[Injuries, ...], loss: bool
) -> None:
    mend_and_undo(whole, tmp_path / "case", (wanted, -1, loss))


@pytest.mark.turns(8)
@pytest.mark.parametrize("size", [ranges.RANGE, 700])
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("number", [0, 49, 60, 99, 100, 112, 129])
def test_a_replica_with_two_records_of_an_id_is_no_vote_against_what_both_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, indexed: bool, size: int
) -> None:
    """The other one of the two stands in front, so that it is the one in the sequence; whatever ranges there are."""
    monkeypatch.setattr(ranges, "RANGE", size)
    nodes = make_cluster(tmp_path, 2, mark=-1)
    file = segment_of(nodes[0], number)
    records, index = read(file), file.with_suffix(".idx").read_bytes()
    last, end = records[-1].transaction_id, compared(*nodes)[0].clean_to
    own = records[number - records[0].transaction_id]
    records.insert(number - records[0].transaction_id, Record.make(number, own.request_id, own.header, b"another"))
    write(file, records)
    if not indexed:
        file.with_suffix(".idx").write_bytes(index)
    one = compared(*nodes)[0]
    assert (one.verdict, one.clean_to) == (Verdict.RECOVERABLE, end)
    assert one.replicas[1].state.value == "equal"
    mend_all(nodes, loss=False)
    assert compared(*nodes)[0].verdict is Verdict.EQUAL
    assert [one.transaction_id for one in read(file)] == list(range(records[0].transaction_id, last + 1))


@pytest.mark.turns(8)
@settings(max_examples=20)
@given(cases)
def test_plans_lead_to_what_is_kept_and_undo_leads_back(
    whole: dict[int, list[Path]], tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    mend_and_undo(whole, tmp_path_factory.mktemp("case"), case)


@pytest.mark.long
@settings(max_examples=1000)
@given(cases)
def test_plans_lead_to_what_is_kept_and_undo_leads_back_thoroughly(
    whole: dict[int, list[Path]], tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    mend_and_undo(whole, tmp_path_factory.mktemp("case"), case)
