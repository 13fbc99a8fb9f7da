"""The released storage on directories of the documented layout: what it does to them, and that it opens them once converted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.builders import digest, make_records
from tests.interop.processes import PATIENCE
from tests.interop.released import Java, needs_released
from tests.repair.scenes import codes, status
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.convert import plan_convert
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.storage.availability_marks import Availability
from waltzctl.engine.storage.directory import StorageDirectory, create_cluster
from waltzctl.formats.control import Layout

pytestmark = needs_released
COUNT = 40


def opened_by_release(java: Java, storage: Path) -> subprocess.CompletedProcess[str]:
    command = java.command("OpenStorage", storage, log=storage.with_suffix(".log4j"))
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Documented layout. 0: a session and records; 1: empty; 2: switched off for writing; 3: never assigned."""
    path = tmp_path / "storage"
    create_cluster([path], num_partitions=4, assign=(0, 1, 2))
    with StorageDirectory.open(path) as directory:
        partition = directory.partition(0)
        partition.set_low_water_mark(5, -1)
        partition.append(make_records(COUNT))
        partition.set_low_water_mark(6, COUNT + 2)
        directory.set_availability(2, writable=False)
    return path


def test_a_release_extends_a_documented_control_file_and_fails_and_recover_brings_it_back(
    java: Java, storage: Path
) -> None:
    control = storage / "waltz-storage.ctl"
    before = digest(storage)
    whole = control.read_bytes()
    answer = opened_by_release(java, storage)
    assert answer.returncode != 0
    assert "partition info corrupted" in answer.stderr
    assert control.read_bytes() == whole.ljust(Layout.RELEASED.file_size(4), b"\0")
    assert codes(storage) == {"control-file-extended"}
    result = apply(plan_recover(storage), arguments=[])
    assert result.exit_status_name == "clean"
    assert control.read_bytes() == whole
    assert {name: sha for name, sha in digest(storage).items() if not name.startswith(".waltzctl")} == {
        name: sha for name, sha in before.items() if not name.startswith(".waltzctl")
    }


def test_a_release_opens_a_converted_directory_with_its_marks(java: Java, storage: Path) -> None:
    whole = (storage / "waltz-storage.ctl").read_bytes()
    assert apply(plan_convert(storage, layout=Layout.RELEASED), arguments=[]).exit_status_name == "clean"
    answer = opened_by_release(java, storage)
    assert answer.returncode == 0, answer.stderr
    said = [line.split() for line in answer.stdout.splitlines()]
    assert [line[:6] for line in said] == [
        ["0", "6", str(COUNT + 2), str(COUNT - 1), "true", "true"],
        ["1", "-1", "-1", "-1", "true", "true"],
        ["2", "-1", "-1", "-1", "true", "false"],
        ["3", "-1", "-1", "-1", "false", "true"],
    ]
    assert status(storage) == "clean"
    assert apply(plan_convert(storage, layout=Layout.DOCUMENTED), arguments=[]).exit_status_name == "clean"
    assert (storage / "waltz-storage.ctl").read_bytes() == whole
    with StorageDirectory.open(storage) as directory:
        assert directory.availability(2) == Availability(readable=True, writable=False)
        assert directory.partition(0).max_transaction_id == COUNT - 1
