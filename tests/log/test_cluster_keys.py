"""The command that is printed for a directory without its control file, where files of another cluster stand in it."""

from __future__ import annotations

import os
import shlex
import uuid
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, make_records, write_segment
from tests.cli.running import invoke
from tests.inspect.helpers import age, flip, run, seg
from waltzctl.engine.errors import MismatchError, RefusedError
from waltzctl.engine.findings import Code
from waltzctl.engine.log import cluster_keys
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.formats.control import CONTROL_FILE_NAME

OTHER = uuid.UUID(int=KEY.int ^ 0b11111)
"""As far from the other one as keys of two clusters have to be."""
NEAR = uuid.UUID(int=KEY.int ^ 0b1111)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Two segments in one partition, and no control file."""
    path = build_directory(tmp_path / "s", {0: 20, 1: 0}, per_segment=10)
    seg(path, 1, 0).unlink()
    (path / CONTROL_FILE_NAME).unlink()
    return path


def foreign(storage: Path, *firsts: int, key: uuid.UUID = OTHER) -> None:
    for first in firsts:
        write_segment(storage / "1", make_records(3, first=first), partition=1, key=key)


def told(storage: Path) -> tuple[str, str | None]:
    (found,) = (one for one in run(age(storage))[0] if one.code is Code.CONTROL_FILE_MISSING)
    return found.message, found.remedy


@pytest.mark.parametrize(("firsts", "named"), [((), None), ((0,), KEY), ((0, 10), "KEY"), ((0, 10, 20), OTHER)])
def test_the_key_that_most_intact_headers_have_is_named(
    storage: Path, firsts: tuple[int, ...], named: uuid.UUID | str | None
) -> None:
    foreign(storage, *firsts)
    message, remedy = told(storage)
    plain = f"waltzctl salvage {storage} --to DIR"
    assert remedy == (plain if named is None else f"{plain} --key {named}")
    assert ("nothing tells whose directory it is" in message) == (named == "KEY")
    assert (str(OTHER) in message) == (named == "KEY")


@pytest.mark.parametrize("key", [NEAR, OTHER])
def test_a_key_with_a_few_damaged_bits_is_no_other_cluster(storage: Path, key: uuid.UUID) -> None:
    foreign(storage, 0, key=key)
    assert ("--key" in str(told(storage)[1])) == (key == OTHER)


@pytest.mark.parametrize("place", [0, 31, 39])
def test_a_header_that_is_not_intact_does_not_count(storage: Path, place: int) -> None:
    foreign(storage, 0, 10)
    flip(seg(storage, 1, 10), place)
    assert str(told(storage)[1]).endswith(f"--key {KEY}")


def test_all_that_is_left_names_the_same_command(storage: Path) -> None:
    foreign(storage, 0)
    remedy = told(storage)[1]
    assert [one.remedy for one in plan_recover(storage).plan.undecided] == [remedy]
    seg(storage, 0, 0).with_suffix(".idx").unlink()
    assert {one.remedy for one in run(age(storage))[0] if one.remedy is not None} == {remedy}
    with pytest.raises(RefusedError) as refused:
        plan_rebuild_index(storage)
    assert str(refused.value.advice).endswith(str(remedy))


def test_a_control_file_that_is_too_short_knows_its_key(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 10, 1: 0})
    foreign(storage, 0, 10, 20)
    control = storage / CONTROL_FILE_NAME
    control.write_bytes(control.read_bytes()[:200])
    assert [one.remedy for one in plan_recover(storage).plan.undecided] == [
        f"waltzctl salvage {storage} --to DIR --key {KEY}"
    ]


@pytest.mark.parametrize("firsts", [(0,), (0, 10), (0, 10, 20)])
def test_the_command_is_carried_out_as_it_is_printed(storage: Path, tmp_path: Path, firsts: tuple[int, ...]) -> None:
    """Without the key it was refused: records of several clusters were found."""
    foreign(storage, *firsts)
    given = {"DIR": str(tmp_path / "fresh"), "KEY": str(KEY)}
    words = [given.get(one, one) for one in shlex.split(str(told(storage)[1]))[1:]]
    answer = invoke(*words)
    assert answer.status in (0, 4, 5), answer.err
    assert (tmp_path / "fresh" / CONTROL_FILE_NAME).is_file()


def test_so_many_headers_are_read(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign(storage, 0, 10, 20)
    monkeypatch.setattr(cluster_keys, "MOST_HEADERS", 3)
    assert str(told(storage)[1]).endswith(f"--key {KEY}")


@pytest.mark.parametrize("name", ["0000000000000000031.seg", "x.seg"])
def test_a_misplaced_file_of_another_cluster_makes_the_key_needed(storage: Path, name: str) -> None:
    """It says nothing of whose directory this is; but salvage finds its records, and was refused without the key."""
    write_segment(storage / "1", make_records(3), partition=1, key=OTHER).rename(storage / "0" / name)
    assert str(told(storage)[1]).endswith(f"--key {KEY}")


@pytest.mark.parametrize(("size", "salvaged"), [(0, False), (128, False), (167, False), (168, True)])
def test_without_room_for_a_record_nothing_is_salvaged(storage: Path, size: int, *, salvaged: bool) -> None:
    """The command was refused: it found no record."""
    for first in (0, 10):
        os.truncate(seg(storage, 0, first), size if first else 0)
    message, remedy = told(storage)
    assert (remedy is not None, "nothing to salvage" in message) == (salvaged, not salvaged)
    if not salvaged:
        assert [one.remedy for one in plan_recover(storage).plan.undecided] == [None]
        (storage / "0" / "notes").touch()
        assert told(storage)[1] is not None, "nobody knows what that is"


@pytest.mark.parametrize(
    ("own", "theirs", "command", "said"),
    [
        (0, 0, False, "holds none of these records"),
        (1, 0, False, "holds none of these records"),
        (0, 1, True, "1 have the replica's key as well, and 0 the control file's"),
        (1, 1, True, "1 have the replica's key as well, and 1 the control file's"),
        (2, 1, False, "move these files away by hand"),
        (2, 3, True, "3 have the replica's key as well, and 2 the control file's"),
    ],
)
def test_data_files_here_tell_whether_a_replica_or_the_control_file_is_of_another_cluster(
    tmp_path: Path, own: int, theirs: int, command: bool, said: str
) -> None:
    """The replica alone was blamed, and nothing said how to go on."""
    path = build_directory(tmp_path / "s", {0: 0})
    for one in (path / "0").iterdir():
        one.unlink()
    for number in range(own + theirs):
        write_segment(path / "0", make_records(3, first=3 * number), key=KEY if number < own else OTHER)
    replica = build_directory(tmp_path / "r", {0: 9}, key=OTHER)
    with pytest.raises(MismatchError) as refused:
        plan_recover(path, replicas=[replica])
    advice = str(refused.value.advice)
    assert said in advice
    assert advice.endswith(f"waltzctl salvage {path} --to DIR --key {OTHER}") == command


@pytest.mark.parametrize(("key", "damaged"), [(NEAR, True), (OTHER, False)])
def test_a_replicas_key_a_few_bits_apart_is_a_damaged_control_file(
    tmp_path: Path, key: uuid.UUID, damaged: bool
) -> None:
    path, replica = build_directory(tmp_path / "s", {0: 3}), build_directory(tmp_path / "r", {0: 3}, key=key)
    with pytest.raises(MismatchError) as refused:
        plan_recover(path, replicas=[replica])
    assert ("differ in 4 bits alone" in str(refused.value.advice)) == damaged


def test_a_replica_of_another_cluster_beside_files_without_room_names_no_command(tmp_path: Path) -> None:
    path, replica = build_directory(tmp_path / "s", {0: 0}), build_directory(tmp_path / "r", {0: 3}, key=OTHER)
    data = bytearray(seg(path, 0, 0).read_bytes())
    data[12:28] = OTHER.bytes
    seg(path, 0, 0).write_bytes(bytes(data))
    write_segment(path / "0", make_records(3, first=10), key=uuid.UUID(int=5))  # a third cluster's
    with pytest.raises(MismatchError) as refused:
        plan_recover(path, replicas=[replica])
    assert str(refused.value.advice).endswith("from a backup")
