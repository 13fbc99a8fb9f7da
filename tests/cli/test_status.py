"""status on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, digest
from tests.cli.damage import damage_record, index_of, segment_of
from tests.cli.running import invoke, on_terminal
from waltzctl.formats.control import Layout


@pytest.mark.parametrize("layout", list(Layout))
def test_every_key_of_the_contract(tmp_path: Path, layout: Layout) -> None:
    storage = build_directory(tmp_path / "s", {0: 60, 2: 5}, num_partitions=4, layout=layout)
    before = digest(storage)
    answer = invoke("status", storage, "--format", "json")
    (status,) = answer.objects
    assert answer.status == 0
    assert (status["path"], status["cluster_key"], status["layout"], status["num_partitions"], status["locked_by"]) == (
        str(storage), str(KEY), layout.value, 4, None
    )  # fmt: skip
    assert [one["partition"] for one in status["partitions"]] == [0, 1, 2, 3]
    assert [one["health"] for one in status["partitions"]] == ["ok", "unassigned", "ok", "unassigned"]
    first = status["partitions"][0]
    assert (first["assigned"], first["readable"], first["writable"], first["session_id"]) == (True, True, True, 3)
    assert (first["segments"], first["records"], first["first_transaction_id"], first["last_transaction_id"]) == (
        2,
        60,
        0,
        59,
    )
    assert first["bytes"] == sum(path.stat().st_size for path in (storage / "0").iterdir())
    assert status["partitions"][1]["first_transaction_id"] is None
    assert digest(storage) == before


def test_health_and_exit_status(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 60, 1: 5})
    index_of(storage, 1).unlink()
    answer = invoke("status", storage, "--format", "ndjson")
    assert answer.status == 3
    assert [one["health"] for one in answer.objects[0]["partitions"]] == ["ok", "repairable"]
    assert [one["code"] for one in answer.objects[0]["findings"]] == ["index-missing"]
    damage_record(segment_of(storage, first=50), 9)
    segment_of(storage).unlink()
    assert invoke("status", storage).status == 4


def test_damage_of_a_partition_that_is_not_assigned_is_no_success(tmp_path: Path) -> None:
    """Its health is unassigned; the worst finding that is shown decides, as for verify."""
    storage = build_directory(tmp_path / "s", {0: 60, 1: 60}, layout=Layout.RELEASED)
    assert invoke("set-partition", storage, "--partition", 1, "--unassigned", "--yes").status == 0
    answer = invoke("status", storage, "--format", "json")
    assert answer.status == 0
    assert [one["code"] for one in answer.objects[0]["findings"]] == ["partition-not-assigned"]
    segment_of(storage, 1).unlink()
    answer = invoke("status", storage, "--format", "json")
    assert [one["health"] for one in answer.objects[0]["partitions"]] == ["ok", "unassigned"]
    assert "damage" in [one["severity"] for one in answer.objects[0]["findings"]]
    assert answer.status == invoke("verify", storage).status == 4
    assert "FAILED  1 partition of 2" in invoke("status", storage, "--format", "table").out


def test_a_table_in_80_columns(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 60, 2: 5}, num_partitions=4)
    answer = on_terminal("status", storage, NO_COLOR="1")
    lines = answer.out.splitlines()
    assert answer.status == 0
    assert any(line.startswith("P  HEALTH  RW  SESSION") for line in lines)
    assert "not assigned here: 1,3" in lines
    assert lines[-1].endswith("Nothing was modified.")
    assert max(len(line) for line in lines if str(storage) not in line) <= 80


def test_partitions_are_restricted(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 5, 1: 5, 2: 5})
    answer = invoke("status", storage, "--partition", "0,2", "--format", "json")
    assert [one["partition"] for one in answer.objects[0]["partitions"]] == [0, 2]
    assert invoke("status", storage, "--partition", "3").status == 2


def test_a_part_of_a_directory_has_no_status(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 5})
    assert invoke("status", storage / "0").status == 2
    assert invoke("status", tmp_path).status == 10
