"""verify on the command line: formats, exit status, sentences; what it finds is the engine's matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import warm_start
from tests.builders import build_directory, digest
from tests.cli.damage import damage_record, index_of, segment_of, tear_tail
from tests.cli.running import command_line, environment, invoke, on_full_disk, on_terminal, run
from waltzctl.engine.inspect import sampling


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 60, 2: 5})


def test_a_clean_directory(storage: Path) -> None:
    before = digest(storage)
    answer = invoke("verify", storage, "--format", "ndjson")
    (summary,) = answer.objects
    assert answer.status == 0
    expected = {"status": "clean", "exit_status": 0, "partitions": 2, "segments": 3, "records": 65, "modified": False,
                "complete": True}  # fmt: skip
    assert {name: summary[name] for name in expected} == expected
    assert digest(storage) == before


def test_damage_is_named_and_gives_4(storage: Path) -> None:
    number = damage_record(segment_of(storage), 10)
    answer = invoke("verify", storage, "--format", "ndjson")
    (finding,) = answer.only("finding")
    assert answer.status == 4
    assert (finding["code"], finding["severity"], finding["transaction_id"]) == ("record-checksum", "damage", number)
    assert finding["path"] == str(segment_of(storage))
    assert answer.objects[-1]["damage"] == 1


def test_what_loses_nothing_gives_3(storage: Path) -> None:
    index_of(storage).unlink()
    tear_tail(segment_of(storage, first=50))
    answer = invoke("verify", storage, "--format", "ndjson")
    assert answer.status == 3
    assert {"index-missing", "torn-tail"} <= {finding["code"] for finding in answer.only("finding")}


def test_json_is_one_array_of_the_same_objects(storage: Path) -> None:
    damage_record(segment_of(storage), 10)
    array = json.loads(invoke("verify", storage, "--format", "json").out)
    lines = invoke("verify", storage, "--format", "ndjson").objects
    for objects in (array, lines):
        objects[-1].pop("elapsed_seconds")
    assert array == lines


def test_plain_has_a_line_for_each_object_and_the_conclusion_last(storage: Path) -> None:
    damage_record(segment_of(storage), 10)
    lines = run("verify", storage).out.splitlines()
    heads = {line.split("\t")[0][2:]: line.split("\t")[1:] for line in lines if line.startswith("# ") and "\t" in line}
    (finding,) = [line.split("\t") for line in lines if line.startswith("finding\t")]
    found = dict(zip(heads["finding"], finding[1:], strict=True))
    assert found["code"] == "record-checksum"
    assert found["path"] == str(segment_of(storage))
    assert lines[-1].startswith("# FAILED  1 damage finding in ")
    assert lines[-1].endswith("Nothing was modified.")


def test_a_terminal_gets_a_report_with_the_conclusion_last(storage: Path) -> None:
    damage_record(segment_of(storage), 10)
    answer = on_terminal("verify", storage, NO_COLOR="1")
    assert answer.status == 4
    assert f"partition 0  {segment_of(storage)}\n" in answer.out
    assert "  DAMAGE      record-checksum  transaction 10 at offset" in answer.out
    assert "\x1b[" not in answer.out
    assert "What mends it:" in answer.out
    assert answer.out.splitlines()[-1].startswith("FAILED  1 damage finding in 3 segments")
    assert answer.out.splitlines()[-1].endswith("Nothing was modified.")


def test_colours_only_on_a_terminal_that_wants_them(storage: Path) -> None:
    damage_record(segment_of(storage), 10)
    assert "\x1b[31m" in on_terminal("verify", storage).out
    assert "\x1b[" not in on_terminal("verify", storage, TERM="dumb").out
    assert "\x1b[" not in run("verify", storage, "--format", "table").out


def test_quiet_says_nothing_when_all_is_well(storage: Path) -> None:
    answer = invoke("verify", storage, "-q")
    assert (answer.status, answer.out, answer.err) == (0, "", "")
    damage_record(segment_of(storage), 10)
    assert "record-checksum" in invoke("verify", storage, "-q").out


def test_a_sample_reads_other_parts_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record in each of forty blocks is damaged: what is found is not always the same."""
    monkeypatch.setattr(sampling, "BLOCK", 400)
    storage = build_directory(tmp_path / "damaged", {0: 200}, per_segment=200)
    for place in range(2, 200, 5):
        damage_record(segment_of(storage), place)
    told = set()
    for _ in range(8):
        answer = invoke("verify", storage, "--sample", "30%", "--format", "ndjson")
        told.add(tuple(one["transaction_id"] for one in answer.only("finding")))
    assert len(told) > 1


def test_partitions_are_restricted(storage: Path) -> None:
    damage_record(segment_of(storage), 10)
    assert invoke("verify", storage, "--partition", "2").status == 0
    assert invoke("verify", storage, "--partition", "0,2").status == 4
    assert invoke("verify", storage, "--partition", "3").status == 2


def test_several_paths_and_single_files(storage: Path, tmp_path: Path) -> None:
    other = build_directory(tmp_path / "other", {0: 5})
    answer = invoke("verify", storage, other, "--format", "ndjson")
    assert answer.objects[-1]["records"] == 70
    for path in (segment_of(storage), index_of(storage), storage / "waltz-storage.ctl", storage / "0"):
        assert invoke("verify", path).status == 0


def test_what_is_not_waltz_gives_10(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "file.txt", tmp_path / "missing"):
        answer = invoke("verify", path)
        assert answer.status == 10
        assert str(path) in answer.err
        assert answer.out in ("", "[]\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sample", "0%"],
        ["--sample", "x"],
        ["--max-duration", "soon"],
        ["--limit-rate", "-1"],
        ["--partition", "1-0"],
        ["--format", "xml"],
        ["--quick", "--sample", "10%"],
        ["--no-such-option"],
    ],
)
def test_nonsense_is_a_usage_error(storage: Path, arguments: list[str]) -> None:
    answer = invoke("verify", storage, *arguments)
    assert (answer.status, answer.out) == (2, "")


def test_a_name_that_is_no_utf8_is_shown_and_read_back(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path) + b"/st\xffrage\n"
    storage = build_directory(Path(os.fsdecode(place)), {0: 5})
    damage_record(segment_of(storage), 2)
    done = warm_start.run(command_line("verify", place, "--format", "ndjson"), env=environment())
    assert done.returncode == 4
    finding = json.loads(done.stdout.splitlines()[0])
    assert os.fsencode(finding["path"]) == os.fsencode(segment_of(storage))
    plain = warm_start.run(command_line("verify", place), env=environment(LC_ALL="C"))
    assert b"/st\\xffrage\\n/0/" in plain.stdout
    assert plain.returncode == 4


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 2000}, per_segment=10)
    for first in range(0, 2000, 10):
        index_of(storage, first=first).unlink()
    process = warm_start.Popen(
        command_line("verify", storage, "--format", "ndjson"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    first_line = process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert json.loads(first_line)["type"] == "finding"
    assert (process.wait(60), err) == (3, b"")  # what was found by then


@pytest.mark.parametrize("arguments", [["--help"], ["verify", "--help"], ["--version"]])
def test_help_into_a_closed_pipe_is_quiet(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = warm_start.Popen(command_line(*arguments), stdout=writer, stderr=subprocess.PIPE, env=environment())
    os.close(writer)
    _, err = process.communicate()
    assert (process.returncode, err) == (0, b"")


def test_a_full_disk_behind_stdout_is_an_input_output_error(storage: Path) -> None:
    done = on_full_disk("verify", storage)
    assert done.status == 14
    assert done.err == "waltzctl: error: standard output: No space left on device\n"


@pytest.mark.parametrize("arguments", [["--help"], ["verify", "--help"], ["node", "--help"], ["--version"]])
def test_help_onto_a_full_disk_is_an_input_output_error(arguments: list[str]) -> None:
    done = on_full_disk(*arguments)
    assert (done.status, done.err) == (14, "waltzctl: error: No space left on device\n")


@pytest.mark.parametrize(("damaged", "status"), [(False, 0), (True, 4)])
def test_a_full_disk_behind_stderr_changes_no_status(storage: Path, damaged: bool, status: int) -> None:
    """What cannot be told there is left out; what is found is not."""
    if damaged:
        damage_record(segment_of(storage), 3)
    with open("/dev/full", "wb") as full:
        done = warm_start.run(
            command_line("verify", storage, "-v"), stdout=subprocess.PIPE, stderr=full, env=environment()
        )
    assert done.returncode == status
    assert done.stdout.splitlines()[-1].startswith(b"# FAILED" if damaged else b"# OK")


@pytest.mark.parametrize(
    ("options", "word"), [((), "OK"), (("--quick",), "INCOMPLETE"), (("--sample", "50%"), "INCOMPLETE")]
)
def test_ok_is_said_of_what_was_read_whole(storage: Path, options: tuple[str, ...], word: str) -> None:
    last = invoke("verify", storage, *options).out.splitlines()[-1]
    assert last.startswith(f"# {word}  no findings")
    assert ("Not everything was read." in last) == (word == "INCOMPLETE")


def test_what_is_found_counts_more_than_what_was_not_read(storage: Path) -> None:
    index_of(storage).unlink()
    assert invoke("verify", storage, "--quick").out.splitlines()[-1].startswith("# REPAIRABLE  ")
    index_of(storage).write_bytes(b"")
    segment_of(storage).unlink()
    assert invoke("verify", storage, "--quick").out.splitlines()[-1].startswith("# FAILED  ")


@pytest.mark.turns(8)
def test_closed_streams_are_no_difficulty(storage: Path) -> None:
    line = " ".join(map(str, command_line("verify", storage)))
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(["bash", "-c", f"{line} {closed}"], capture_output=True, env=environment(), check=False)
        assert (done.returncode, done.stderr) == (0, b""), closed


@pytest.mark.turns(10)
def test_an_interrupt_shows_what_was_checked_so_far(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 400}, per_segment=20, size=20_000)
    index_of(storage).unlink()
    process = warm_start.Popen(
        command_line("verify", storage, "--format", "ndjson", "--limit-rate", "400KiB"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["code"] == "index-missing"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err.decode()
    summary = json.loads(out.splitlines()[-1])
    assert (summary["type"], summary["complete"], summary["exit_status"]) == ("verify-summary", False, 130)


def test_an_interrupted_run_is_not_called_ok(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 400}, per_segment=20, size=20_000)
    (storage / "notes.txt").write_text("the note is what this test waits for")
    process = warm_start.Popen(
        command_line("verify", storage, "--limit-rate", "50KiB"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"# finding")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    assert process.returncode == 130
    last = out.decode().splitlines()[-1]
    assert last.startswith("# INCOMPLETE  1 note in ")
    assert last.endswith("Not everything was read. Nothing was modified.")
