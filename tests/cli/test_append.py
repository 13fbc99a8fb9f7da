"""append: ids in the order of the lines, whole durable batches, errors that name the line."""

from __future__ import annotations

import errno
import json
import os
import select
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests import warm_start
from tests.builders import build_directory, digest
from tests.cli.damage import damage_record, index_of, records_of, segment_of
from tests.cli.running import command_line, environment, invoke, on_full_disk
from waltzctl.engine.storage.append import AppendSession
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.control import Layout, decode_control
from waltzctl.formats.request_id import RequestId


@pytest.fixture(params=list(Layout))
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 3, 1: 0}, layout=request.param)


def data_of(storage: Path, partition: int, first: int = 0) -> list[bytes]:
    return [record.data for _, record in records_of(segment_of(storage, partition, first))]


def test_lines_become_records_with_the_next_ids(storage: Path) -> None:
    answer = invoke("append", storage, "--partition", 0, "--format", "json", given=b"a\n\n\xff\x00\nlast")
    assert answer.status == 0
    (result,) = answer.objects
    assert result == {"schema": "waltzctl.append-result/1", "type": "append-result", "partition": 0, "first_transaction_id": 3,
                      "last_transaction_id": 6, "records": 4, "bytes": 4 * 40 + 7, "mended": [], "undo_ids": [],
                      "taken_back": []}  # fmt: skip
    found = records_of(segment_of(storage))[3:]
    assert [record.transaction_id for _, record in found] == [3, 4, 5, 6]
    assert [record.data for _, record in found] == [b"a", b"", b"\xff\x00", b"last"]
    assert all(record.data_ok and record.record_ok for _, record in found)
    assert [record.request_id.sequence for _, record in found] == [0, 1, 2, 3]


def test_it_is_a_new_session_whose_marks_are_what_was_there(storage: Path) -> None:
    assert invoke("append", storage, "--partition", 0, given="x\n").status == 0
    current = decode_control((storage / "waltz-storage.ctl").read_bytes()).partitions[0].current_struct
    assert current is not None
    assert current.marks == (4, 2, 2)


def test_segments_are_as_long_as_asked_for(storage: Path) -> None:
    lines = "".join(f"{number:060}\n" for number in range(100))
    answer = invoke("append", storage, "--partition", 1, "--segment-size", "1KiB", given=lines)
    assert answer.status == 0
    sizes = [path.stat().st_size for path in sorted((storage / "1").glob("*.seg"))]
    assert len(sizes) == 12  # the ninth record of 100 bytes crosses the threshold, the tenth begins a segment
    assert (set(sizes[:-1]), sizes[-1]) == ({128 + 9 * 100}, 228)
    assert invoke("append", storage, "--partition", 1, "--segment-size", "small", given=lines).status == 2


def test_an_empty_input_changes_nothing(storage: Path) -> None:
    control = (storage / "waltz-storage.ctl").read_bytes()
    answer = invoke("append", storage, "--partition", 0, "--format", "ndjson", given=b"")
    assert answer.status == 0
    assert answer.objects[0]["first_transaction_id"] is None
    assert answer.objects[0]["records"] == 0
    assert (storage / "waltz-storage.ctl").read_bytes() == control


@pytest.mark.turns(8)
def test_an_input_that_is_closed_is_none_that_is_empty(storage: Path) -> None:
    command = shlex.join(command_line("append", storage, "--partition", 0))
    done = subprocess.run(
        ["sh", "-c", f"{command} <&-"], env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, "nothing was appended" in done.stderr) == (14, True)


def test_ndjson_keeps_header_and_request_id(storage: Path) -> None:
    request = {"client": 7, "generation": -1, "partition": 1, "sequence": 9}
    line = json.dumps({"data_b64": "/wA=", "header": -3, "request_id": request})
    assert invoke("append", storage, "--partition", 1, "--input-format", "ndjson", given=line).status == 0
    ((_, record),) = records_of(segment_of(storage, 1))
    assert (record.data, record.header, record.request_id) == (b"\xff\x00", -3, RequestId(7, -1, 1, 9))


def test_progress_ids_are_the_last_of_each_batch(storage: Path) -> None:
    answer = invoke(
        "append",
        storage,
        "--partition",
        1,
        "--batch",
        2,
        "--progress-ids",
        "--format",
        "ndjson",
        given="1\n2\n3\n4\n5\n",
    )
    *numbers, result = answer.out.splitlines()
    assert numbers == ["1", "3", "4"]
    assert json.loads(result)["last_transaction_id"] == 4


def test_a_bad_line_ends_it_after_whole_batches(storage: Path) -> None:
    lines = ['{"data":"a"}', '{"data":"b"}', '{"data":"c"}', "{", '{"data":"d"}']
    answer = invoke("append", storage, "--partition", 1, "--batch", 2, "--input-format", "ndjson", "--format", "json",
                    given="\n".join(lines))  # fmt: skip
    assert answer.status == 2
    assert "input line 4: not JSON" in answer.err
    assert "2 records durable, the last one is transaction 1" in answer.err
    assert answer.objects[0]["records"] == 2
    assert data_of(storage, 1) == [b"a", b"b"]


def test_a_bad_first_line_changes_nothing(storage: Path) -> None:
    control = (storage / "waltz-storage.ctl").read_bytes()
    answer = invoke("append", storage, "--partition", 1, "--input-format", "ndjson", given="nonsense\n")
    assert answer.status == 2
    assert "nothing was appended" in answer.err
    assert (storage / "waltz-storage.ctl").read_bytes() == control


def test_a_partition_that_is_not_assigned_is_refused(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 1}, num_partitions=2)
    answer = invoke("append", storage, "--partition", 1, given="x\n")
    assert answer.status == 13
    assert "not assigned" in answer.err


@pytest.mark.parametrize("partition", ["2", "-1", "x", "0-1"])
def test_a_partition_that_cannot_be_meant(storage: Path, partition: str) -> None:
    before = digest(storage)
    assert invoke("append", storage, "--partition", partition, given="x\n").status == 2
    after = {name: value for name, value in digest(storage).items() if not name.startswith(".waltzctl")}
    assert after == before


def test_a_damaged_partition_takes_no_records(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 20})
    damage_record(segment_of(storage), 4)
    before = segment_of(storage).read_bytes()
    answer = invoke("append", storage, "--partition", 0, given="x\n")
    assert answer.status == 4
    assert "transaction 4" in answer.err
    assert segment_of(storage).read_bytes() == before


def test_not_a_storage_directory(tmp_path: Path) -> None:
    assert invoke("append", tmp_path, "--partition", 0, given="x\n").status == 10
    assert invoke("append", tmp_path / "none", "--partition", 0, given="x\n").status == 10
    assert list(tmp_path.iterdir()) == []


def start(storage: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return warm_start.Popen(
        command_line("append", storage, "--partition", "1", *arguments),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 60)
    assert ready
    return process.stdout.readline()


@pytest.mark.turns(10)
def test_an_id_is_shown_once_its_record_is_durable_and_survives_a_kill(storage: Path) -> None:
    process = start(storage, "--batch", "1", "--progress-ids")
    assert process.stdin is not None
    for number in range(3):
        process.stdin.write(b"%d\n" % number)
        process.stdin.flush()
        assert read_line(process) == b"%d\n" % number
        assert data_of(storage, 1) == [b"%d" % n for n in range(number + 1)]
    process.kill()
    process.communicate()
    assert invoke("verify", storage).status == 0
    assert data_of(storage, 1) == [b"0", b"1", b"2"]


def test_an_interrupt_keeps_whole_batches_and_says_how_many(storage: Path) -> None:
    process = start(storage, "--batch", "2", "--progress-ids", "--format", "ndjson")
    assert process.stdin is not None
    process.stdin.write(b"a\nb\nc\n")
    process.stdin.flush()
    assert read_line(process) == b"1\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert json.loads(out.splitlines()[-1])["records"] == 2
    assert b"interrupted: 2 records durable" in err
    assert data_of(storage, 1) == [b"a", b"b"]


def test_an_interrupt_before_anything_was_read_answers_too(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    assert invoke("append", storage, "--partition", 1, given="a\n").status == 0  # the lock's file is there from now on
    before = digest(storage)
    monkeypatch.setattr(AppendSession, "__init__", interrupted)
    answer = invoke("append", storage, "--partition", 1, "--format", "json", given="a\n")
    assert answer.status == 130
    shown = json.loads(answer.out)
    assert (shown["type"], shown["records"], shown["last_transaction_id"]) == ("append-result", 0, None)
    assert answer.err == "waltzctl: interrupted: nothing was appended\n"
    assert digest(storage) == before


def test_a_reader_that_goes_away_does_not_stop_it(storage: Path) -> None:
    process = start(storage, "--batch", "1", "--progress-ids")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    process.stdin.write(b"x\n" * 50)
    process.stdin.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), err) == (0, b"")
    assert len(data_of(storage, 1)) == 50


@pytest.mark.parametrize("more", [[], ["--batch", "2", "--progress-ids"], ["--format", "ndjson"]])
def test_a_full_disk_behind_stdout_does_not_hide_what_is_durable(storage: Path, more: list[str]) -> None:
    """Who is told of a full disk alone believes that nothing was appended, and appends it again."""
    done = on_full_disk("append", storage, "--partition", 1, *more, given=b"x\n" * 4)
    there = len(data_of(storage, 1))
    assert (done.status, there) == (14, 2 if "--batch" in more else 4)
    said = done.err.splitlines()
    assert said[0] == "waltzctl: what was done, and could not be written to standard output:"
    assert f"records       {there}" in said
    assert said[-1] == "waltzctl: error: standard output: No space left on device"


def test_a_directory_in_use_is_locked(storage: Path) -> None:
    process = start(storage, "--batch", "1", "--progress-ids")
    assert process.stdin is not None
    process.stdin.write(b"x\n")
    process.stdin.flush()
    read_line(process)
    answer = invoke("append", storage, "--partition", 0, given="y\n")
    assert answer.status == 11
    assert f"process {process.pid}" in answer.err
    assert os.path.exists(f"/proc/{process.pid}")
    process.communicate()
    assert process.returncode == 0


def torn(storage: Path) -> dict[str, str]:
    """Leave in both partitions what a crash leaves; returns every file outside of our own state."""
    for partition in (0, 1):
        with segment_of(storage, partition).open("ab") as file:
            file.write(b"half a record")
    index_of(storage, 1).unlink()
    return outside(storage)


def outside(storage: Path) -> dict[str, str]:
    return {name: value for name, value in digest(storage).items() if not name.startswith(".waltzctl")}


def of(found: dict[str, str], partition: int) -> dict[str, str]:
    return {name: value for name, value in found.items() if name.startswith(f"{partition}/")}


def test_only_the_partition_that_was_asked_for_is_touched(storage: Path) -> None:
    before = torn(storage)
    assert invoke("append", storage, "--partition", 0, given="x\n").status == 0
    assert of(outside(storage), 1) == of(before, 1)
    assert [one["files"] for one in invoke("undo", storage, "--list", "--format", "ndjson").objects] == [
        ["0/0000000000000000000.seg"]
    ]


def test_what_is_mended_is_said_and_kept(storage: Path) -> None:
    torn(storage)
    answer = invoke("append", storage, "--partition", 0, "--format", "json", "-q", given="x\n")
    assert answer.status == 0
    (result,) = answer.objects
    assert [finding["code"] for finding in result["mended"]] == ["torn-tail"]
    (undo_id,) = result["undo_ids"]
    assert "mended first: torn-tail: " in answer.err
    assert undo_id in answer.err
    again = invoke("append", storage, "--partition", 1, "--format", "json", given="x\n")
    assert [finding["code"] for finding in again.objects[0]["mended"]] == ["index-missing", "torn-tail"]
    assert again.err.count("mended first: ") == 2
    assert invoke("verify", storage).status == 0


def test_nothing_is_said_of_a_sound_partition(storage: Path) -> None:
    assert invoke("append", storage, "--partition", 0, given="x\n").err == ""


BIG = json.dumps({"data": "x", "header": 2**31})
REFUSALS = {
    "a bad line": (["--input-format", "ndjson"], "nonsense\n", 2),
    "a header beyond 32 bits": (["--input-format", "ndjson"], BIG, 2),
    "no such partition": (["--partition", "7"], "x\n", 2),
    "a batch of nothing": (["--batch", "0"], "x\n", 2),
    "an empty input": ([], "", 0),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_refused_changes_no_file(storage: Path, case: str) -> None:
    arguments, given, status = REFUSALS[case]
    before = torn(storage)
    assert invoke("append", storage, "--partition", 0, *arguments, given=given).status == status
    assert outside(storage) == before
    assert invoke("undo", storage, "--list", "--format", "json").objects == [[]]


def test_a_replica_that_is_behind_is_refused_unchanged(storage: Path) -> None:
    with StorageDirectory.open(storage) as opened:
        opened.partition(0).set_low_water_mark(10, 50)
    before = torn(storage)
    answer = invoke("append", storage, "--partition", 0, given="x\n")
    assert (answer.status, outside(storage)) == (13, before)
    assert "behind its cluster" in answer.err


def test_a_partition_that_is_switched_off_is_refused_unchanged(storage: Path) -> None:
    with StorageDirectory.open(storage) as opened:
        opened.set_availability(0, writable=False)
    before = torn(storage)
    assert invoke("append", storage, "--partition", 0, given="x\n").status == 13
    assert outside(storage) == before


def test_behind_the_last_session_nothing_is_appended(storage: Path) -> None:
    with StorageDirectory.open(storage) as opened:
        opened.partition(0).set_low_water_mark(2**63 - 1, 2)
    before = digest(storage)
    answer = invoke("append", storage, "--partition", 0, given="x\n")
    assert (answer.status, "is the last that there can be" in answer.err) == (13, True)
    assert digest(storage) == before


def test_damage_of_another_partition_does_not_matter(storage: Path) -> None:
    damage_record(segment_of(storage), 1)
    before = of(outside(storage), 0)
    assert invoke("append", storage, "--partition", 1, given="x\n").status == 0
    assert of(outside(storage), 0) == before


@pytest.mark.parametrize("name", [".seg", ".idx"])
@pytest.mark.parametrize("spared", range(3))
def test_a_shortage_of_descriptors_is_no_damage(
    storage: Path, monkeypatch: pytest.MonkeyPatch, name: str, spared: int
) -> None:
    """It was (4), with the advice to recover the partition."""
    before, real, left = data_of(storage, 0), os.open, [spared]

    def shortage(path: str | Path, flags: int, *more: int, **named: int) -> int:
        if os.fspath(path).endswith(name):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", shortage)
    answer = invoke("append", storage, "--partition", 0, given="x\n")
    monkeypatch.undo()
    assert left[0] < 0
    assert answer.status == 14
    assert "Too many open files" in answer.err
    assert "ulimit -n" in answer.err
    assert "recover" not in answer.err
    assert data_of(storage, 0) == before
    assert invoke("append", storage, "--partition", 0, given="x\n").status == 0
