"""The ledger of accepted losses in a storage directory: read, forgotten, told apart from what is over."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.counted import Counted
from tests.repair.trees import recording
from waltzctl.engine.losses import without
from waltzctl.engine.storage import loss_ledger
from waltzctl.engine.storage.loss_ledger import forget_partition, ledger_path, read_ledger, still_lost
from waltzctl.formats.accepted_losses import AcceptedLoss, Ledger, encode_ledger

LOSS = AcceptedLoss(1, 10, 19, 9, "2026-11-22T08:51:18.000Z", "test")
LOSSES = (replace(LOSS, partition=0), LOSS, replace(LOSS, first=30, last=30), replace(LOSS, partition=2))


def write(path: Path, raw: bytes) -> Path:
    (path / ".waltzctl").mkdir(exist_ok=True)
    Path(ledger_path(path)).write_bytes(raw)
    return Path(ledger_path(path))


def test_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_ledger(tmp_path) == Ledger()
    assert ledger_path(tmp_path) == tmp_path / loss_ledger.LEDGER_NAME
    path = write(tmp_path, encode_ledger(LOSSES))
    assert read_ledger(tmp_path) == Ledger(LOSSES)
    ledger = read_ledger(tmp_path)
    assert ledger.of_partition(1) == LOSSES[1:3]
    assert ledger.of_partition(3) == ledger.of_partition(None) == ()
    for limit, fault in ((0, None), (-1, "it is cut off")):
        monkeypatch.setattr(loss_ledger, "_LIMIT", path.stat().st_size + limit)
        assert read_ledger(tmp_path).fault == fault


def test_losses_of_many_partitions_are_looked_through_once_and_not_for_each() -> None:
    losses = Counted(replace(LOSS, partition=number) for number in range(300))
    ledger = Ledger(losses)
    assert [ledger.of_partition(number) for number in range(300)] == [(one,) for one in losses]
    assert losses.handed <= 3 * len(losses)


def test_forgetting_a_partition(tmp_path: Path) -> None:
    path = write(tmp_path, encode_ledger(LOSSES))
    with recording() as changes:
        forget_partition(tmp_path, 3)
    assert not changes
    forget_partition(tmp_path, 1)
    assert read_ledger(tmp_path) == Ledger((LOSSES[0], LOSSES[3]))
    forget_partition(tmp_path, 0)
    with recording() as changes:
        forget_partition(tmp_path, 2)
    assert [(one.kind, one.path.name) for one in changes] == [
        ("unlink", "accepted-losses"),
        ("sync-directory", ".waltzctl"),
    ]
    forget_partition(tmp_path, 2)
    damaged = encode_ledger(LOSSES)[:-2]
    write(tmp_path, damaged)
    forget_partition(tmp_path, 0)
    assert path.read_bytes() == damaged, "nothing of a damaged one may be lost on the way"


@pytest.mark.parametrize(
    ("mark", "held", "disputed", "rest"),
    [
        (None, [], False, [(10, 20)]),
        (9, [], False, [(10, 20)]),
        (18, [], False, [(10, 20)]),
        (19, [], False, []),
        (20, [], False, []),
        (20, [], True, [(10, 20)]),
        (9, [(10, 20)], False, []),
        (9, [(10, 20)], True, [(10, 20)]),
        (9, [(0, 11), (19, 30)], False, [(11, 19)]),
    ],
)
def test_what_is_still_lost(
    mark: int | None, held: list[tuple[int, int]], disputed: bool, rest: list[tuple[int, int]]
) -> None:
    assert still_lost(replace(LOSS, disputed=disputed), held, mark) == rest


@pytest.mark.parametrize(("then", "now", "over"), [(19, 19, False), (18, 19, True), (25, 25, False), (25, 26, True)])
def test_a_mark_that_was_as_high_already_says_nothing(then: int, now: int, over: bool) -> None:
    assert still_lost(replace(LOSS, local_low_water_mark=then), [], now) == ([] if over else [(10, 20)])
    assert still_lost(replace(LOSS, first=0, last=0, local_low_water_mark=-1), [], None) == [(0, 1)]
    assert still_lost(replace(LOSS, first=0, last=0, local_low_water_mark=-1), [], 0) == []


def test_what_is_left_of_a_range_against_sets_of_numbers() -> None:
    dice = random.Random(3)
    for _ in range(2000):
        first = dice.randrange(10)
        stop = first + dice.randrange(8)
        held = [(low, low + dice.randrange(4)) for low in (dice.randrange(14) for _ in range(dice.randrange(4)))]
        found = without((first, stop), held)
        assert [n for low, high in found for n in range(low, high)] == [
            n for n in range(first, stop) if not any(low <= n < high for low, high in held)
        ]
        assert all(low < high for low, high in found)
        assert all(low <= first or any(end == low for _, end in held) for low, _ in found)
