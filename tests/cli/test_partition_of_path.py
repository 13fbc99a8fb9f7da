"""A path that names a partition, and --partition: one of them may narrow the other, never contradict it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory, digest
from tests.cli.damage import segment_of
from tests.cli.running import invoke

READING = [
    ["verify"],
    ["dump"],
    ["dump", "--what", "index"],
    ["dump", "--what", "segments"],
    ["dump", "--what", "control"],
    ["dump", "--format", "hexdump"],
    ["stats"],
    ["status"],
]
WRITING = [["recover", "--yes"], ["rebuild-index", "--yes"], ["truncate", "--after", "3", "--yes"], ["append"]]
EACH = pytest.mark.parametrize("command", [*READING, *WRITING], ids=" ".join)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 10, 1: 10, 2: 10}, local_low_water_mark=-1)


@EACH
def test_another_partition_than_the_path_names_is_refused_by_name(storage: Path, command: list[str]) -> None:
    before = digest(storage)
    answer = invoke(command[0], storage / "1", *command[1:], "--partition", "2", given="x\n")
    assert answer.status == 2
    if command != ["status"]:  # which takes no part of a storage directory at all
        assert f"{storage / '1'}: lies in partition 1, and partition 2 was asked for" in answer.err
    assert answer.out == ""
    assert digest(storage) == before


@pytest.mark.parametrize("command", [["verify"], ["dump"], ["rebuild-index", "--yes"]], ids=" ".join)
def test_a_file_of_another_partition_is_refused_as_well(storage: Path, command: list[str]) -> None:
    before = digest(storage)
    answer = invoke(command[0], segment_of(storage, 1), *command[1:], "--partition", "0,2")
    assert answer.status == 2
    assert "lies in partition 1, and partition 0,2 was asked for" in answer.err
    assert digest(storage) == before


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    ("command", "path"),
    [(command, ".") for command in [*READING, ["rebuild-index", "--yes"], ["recover", "--yes"]]]
    + [(["verify"], "waltz-storage.ctl"), (["dump"], "waltz-storage.ctl"), (["dump", "--what", "control"], "1")],
    ids=str,
)
def test_partitions_that_the_control_file_does_not_have_are_refused_in_few_words(
    storage: Path, command: list[str], path: str
) -> None:
    before = digest(storage)
    answer = invoke(command[0], storage / path, *command[1:], "--partition", "1,8-90000")
    assert (answer.status, answer.out) == (2, "")
    assert "partition 8-90000: the control file has partitions 0 to 2" in answer.err
    assert len(answer.err) < 1000
    assert digest(storage) == before


def test_one_path_of_several_is_enough(storage: Path) -> None:
    answer = invoke("verify", storage, storage / "1", "--partition", "0")
    assert answer.status == 2
    assert str(storage / "1") in answer.err


@pytest.mark.parametrize("chosen", ["1", "0-2"])
def test_a_range_that_holds_the_partition_of_the_path_means_that_one(storage: Path, chosen: str) -> None:
    answer = invoke("verify", storage / "1", "--partition", chosen, "--format", "ndjson")
    assert (answer.status, answer.objects[-1]["segments"], answer.objects[-1]["records"]) == (0, 1, 10)
    plan = invoke("rebuild-index", storage / "1", "--all", "--partition", chosen, "--dry-run", "--format", "json")
    assert [step["partition"] for step in plan.objects[0]["steps"]] == [1]


def test_the_same_partition_twice_is_no_contradiction(storage: Path) -> None:
    assert invoke("truncate", storage / "1", "--partition", "1", "--after", "3", "--yes").status == 0
    answer = invoke("append", storage / "1", "--partition", "1", "--format", "ndjson", given="x\n")
    assert (answer.status, answer.objects[0]["first_transaction_id"]) == (0, 4)
