"""Which partitions may be read and written: the file's bytes, what is no such file, and the released flag."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.repair.trees import recording
from waltzctl.engine.errors import OTHER_PROGRAM, DamageError
from waltzctl.engine.storage import availability_marks
from waltzctl.engine.storage.availability_marks import (
    OFF,
    Availability,
    availability_path,
    combine,
    encode_marks,
    forget_availability,
    load_marks,
    read_availability,
    save_marks,
)
from waltzctl.formats.control import Layout, decode_control, initial_control

EACH = [Availability(readable, writable) for readable in (True, False) for writable in (True, False)]


def write(path: Path, raw: bytes) -> None:
    (path / ".waltzctl").mkdir(exist_ok=True)
    Path(availability_path(path)).write_bytes(raw)


def test_the_bytes_and_back(tmp_path: Path) -> None:
    assert Availability() == Availability(True, True)
    assert [one.available for one in EACH] == [True, False, False, False]
    assert load_marks(tmp_path) == {}
    (tmp_path / ".waltzctl").mkdir()
    marks = dict(enumerate(EACH)) | {11: Availability(False, False), 5: Availability(True, False)}
    save_marks(tmp_path, marks)
    raw = Path(availability_path(tmp_path)).read_bytes()
    assert raw == encode_marks(marks)
    assert json.loads(raw) == {
        "version": 1,
        "partitions": {
            "1": {"readable": True, "writable": False},
            "2": {"readable": False, "writable": True},
            "3": {"readable": False, "writable": False},
            "5": {"readable": True, "writable": False},
            "11": {"readable": False, "writable": False},
        },
    }
    assert list(json.loads(raw)["partitions"]) == ["1", "2", "3", "5", "11"]
    assert encode_marks({1: EACH[1]}) == (
        b'{\n  "version": 1,\n  "partitions": {\n    "1": {\n      "readable": true,\n      "writable": false\n    }\n  }\n}\n'
    )
    assert load_marks(tmp_path) == {number: mark for number, mark in marks.items() if not mark.available}


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"partitions": {}},
        {"version": 2, "partitions": {}},
        {"version": 1},
        {"version": 1, "partitions": []},
        {"version": 1, "partitions": {"x": {"readable": True, "writable": True}}},
        {"version": 1, "partitions": {"1": {"readable": True}}},
        {"version": 1, "partitions": {"1": {"readable": 1, "writable": True}}},
        {"version": 1, "partitions": {"1": {"readable": True, "writable": 0}}},
        {"version": 1, "partitions": {"1": None}},
    ],
)
def test_what_is_no_such_file(tmp_path: Path, document: object) -> None:
    write(tmp_path, json.dumps(document).encode())
    with pytest.raises(DamageError, match=r"availability\.json: cannot be understood: "):
        load_marks(tmp_path)
    forget_availability(tmp_path, 1)
    assert json.loads(Path(availability_path(tmp_path)).read_bytes()) == document


def test_what_is_nested_too_deeply_is_no_such_file(tmp_path: Path) -> None:
    write(tmp_path, b"[" * 60_000)
    with pytest.raises(DamageError, match=r"availability\.json: cannot be understood: "):
        load_marks(tmp_path)


@pytest.mark.parametrize("document", [[], {"partitions": {}}, {"version": 2, "partitions": {}}])
def test_another_version_is_named(tmp_path: Path, document: object) -> None:
    write(tmp_path, json.dumps(document).encode())
    with pytest.raises(DamageError, match="cannot be understood: no object of version 1") as refused:
        load_marks(tmp_path)
    assert (refused.value.advice == OTHER_PROGRAM) == (document == {"version": 2, "partitions": {}})


def test_forgetting_a_partition(tmp_path: Path) -> None:
    (tmp_path / ".waltzctl").mkdir()
    forget_availability(tmp_path, 1)
    save_marks(tmp_path, {1: EACH[1], 2: EACH[2]})
    with recording() as changes:
        forget_availability(tmp_path, 3)
    assert not changes
    forget_availability(tmp_path, 1)
    assert load_marks(tmp_path) == {2: EACH[2]}


@pytest.mark.parametrize("available", [None, True, False])
@pytest.mark.parametrize("mark", [None, *EACH])
def test_the_released_flag_and_the_file(tmp_path: Path, available: bool | None, mark: Availability | None) -> None:
    """A flag that is set allows both; a cleared one says as the file does, and forbids both where that says nothing."""
    marks = {} if mark is None else {0: mark}
    built = build_directory(tmp_path / "d", {0: 1}, layout=Layout.DOCUMENTED)
    documented = decode_control((built / "waltz-storage.ctl").read_bytes())
    assert combine(documented, marks, 0) == (mark or Availability())
    path = build_directory(tmp_path / "r", {0: 1, 1: 1}) / "waltz-storage.ctl"
    control = decode_control(path.read_bytes())
    if available is None:
        raw = bytearray(control.encode())
        for number in (1, 2):
            raw[Layout.RELEASED.struct_offset(0, number)] ^= 1
        control = decode_control(raw)
    elif not available:
        info = control.partitions[0]
        infos = [info.with_struct(*info.updated(flags=4)), control.partitions[1]]
        control = decode_control(b"".join([control.header.encode(), *(one.encode() for one in infos)]))
    expected = Availability()
    if available is False:
        expected = Availability(False, False) if mark is None or mark.available else mark
    assert combine(control, marks, 0) == expected
    if mark is not None:
        write(tmp_path / "r", encode_marks(marks))
    assert read_availability(tmp_path / "r", control) == {0: expected, 1: Availability()}


def test_each_partition_of_the_control_file_has_one(tmp_path: Path) -> None:
    control = initial_control(Layout.RELEASED, uuid.UUID(int=1), 3, 0)
    assert read_availability(tmp_path, control) == dict.fromkeys(range(3), Availability())


def test_the_file_is_decoded_again_only_where_it_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of thousands of partitions asks for its mark when a node starts."""
    decoded, real = list[object](), availability_marks._decode

    def counted(document: object) -> dict[int, Availability]:
        decoded.append(document)
        return real(document)

    monkeypatch.setattr(availability_marks, "_decode", counted)
    (tmp_path / ".waltzctl").mkdir()
    marks = {number: Availability(True, False) for number in range(7001, 7010)}
    save_marks(tmp_path, marks)
    for _ in range(3):
        found = load_marks(tmp_path)
        assert found == marks
        found.clear()
    assert len(decoded) == 1
    save_marks(tmp_path, marks | {7001: OFF})
    assert load_marks(tmp_path) == marks | {7001: OFF}
    assert len(decoded) == 2


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_the_bytes_are_those_of_json(count: int) -> None:
    marks = {7 * number: EACH[number % 4] for number in range(count)}
    entries = {
        str(number): {"readable": mark.readable, "writable": mark.writable}
        for number, mark in marks.items()
        if not mark.available
    }
    assert encode_marks(marks) == (json.dumps({"version": 1, "partitions": entries}, indent=2) + "\n").encode()
