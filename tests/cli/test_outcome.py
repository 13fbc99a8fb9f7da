"""One place turns what a command raises into an exit status and a message."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import warm_start
from tests.builders import build_directory
from tests.cli.damage import flip, index_of, segment_of
from tests.cli.running import command_line, environment, invoke
from waltzctl.console import Console
from waltzctl.engine import errors
from waltzctl.engine.findings import Code, make_finding
from waltzctl.exit_status import ExitStatus
from waltzctl.options import Format
from waltzctl.outcome import conclude

ROOT = Path(__file__).resolve().parents[2]


def every_error(kind: type[errors.WaltzError]) -> Iterator[type[errors.WaltzError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from every_error(below)


def test_every_error_of_the_engine_has_an_exit_status() -> None:
    for path in sorted((ROOT / "engine").rglob("*.py")):
        if re.search(r"^class \w+Error\(", path.read_text(), re.MULTILINE):
            importlib.import_module(".".join(("waltzctl", *path.relative_to(ROOT).with_suffix("").parts)))
    kinds = list(every_error(errors.WaltzError))
    assert {kind.__name__ for kind in kinds} >= {"WrongPasswordError", "SessionLostError", "PartitionClosedError"}
    assert {kind.__name__: kind.status for kind in kinds} == {
        kind.__name__: ExitStatus.from_label(kind.status).label for kind in kinds
    }


def test_the_numbers_are_those_of_the_contract() -> None:
    assert {status.label: int(status) for status in ExitStatus} == {
        "clean": 0, "internal": 1, "usage": 2, "repairable": 3, "damaged": 4, "damage-remains": 5, "not-waltz": 10, "locked": 11,
        "mismatch": 12, "refused": 13, "io-error": 14, "interrupted": 130,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (errors.NotWaltzError("x: nothing here"), ExitStatus.NOT_WALTZ, "waltzctl: error: x: nothing here\n"),
        (errors.RefusedError("no", advice="do y"), ExitStatus.REFUSED, "waltzctl: refused: no\n  do y\n"),
        (errors.DirectoryLockedError(Path("d"), 7), ExitStatus.LOCKED, "locked by process 7"),
        (
            errors.DiskReadError("f", 12, OSError(errno.EIO, "broken")),
            ExitStatus.IO_ERROR,
            "f: cannot read at offset 12: broken",
        ),
        (OSError(errno.ENOSPC, "full", "/x"), ExitStatus.IO_ERROR, "waltzctl: error: /x: full\n"),
        (KeyboardInterrupt(), ExitStatus.INTERRUPTED, "waltzctl: interrupted\n"),
        (BrokenPipeError(), ExitStatus.CLEAN, ""),
        (MemoryError(), ExitStatus.INTERNAL, "out of memory"),
        (
            RuntimeError("can't start new thread"),
            ExitStatus.IO_ERROR,
            "start no further thread\n  allow more (ulimit -u;",
        ),
        (ZeroDivisionError("oops"), ExitStatus.INTERNAL, "ZeroDivisionError: oops"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_explained(
    error: BaseException, status: ExitStatus, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> None:
        raise error

    assert conclude(body) is status
    err = capsys.readouterr().err
    assert said in err
    assert bool(err) == bool(said)


def test_a_damage_error_lists_its_findings(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [make_finding(Code.RECORD_CHECKSUM, Path("f"), f"finding {number}") for number in range(25)]

    def body() -> None:
        raise errors.DamageError("partition 3 is damaged", findings)

    assert conclude(body) is ExitStatus.DAMAGED
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "waltzctl: error: partition 3 is damaged"
    assert lines[1] == "  damage  record-checksum: finding 0"
    assert lines[-1] == "  and 5 more; run verify to see them"


def test_messages_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> None:
        raise errors.NotWaltzError("\x1b[2J\udcff: nothing")

    conclude(body)
    assert capsys.readouterr().err == "waltzctl: error: \\x1b[2J\\xff: nothing\n"


def test_an_answer_is_the_status() -> None:
    assert conclude(lambda: ExitStatus.DAMAGED) is ExitStatus.DAMAGED
    assert conclude(lambda: None) is ExitStatus.CLEAN


@pytest.mark.parametrize(
    ("error", "status"), [(errors.RefusedError("no"), 13), (KeyboardInterrupt(), 130), (ValueError(), 1)], ids=repr
)
def test_a_status_is_that_of_the_error_where_nobody_reads_what_was_shown_before(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stdout still had for a reader that is gone made the interpreter end with 120."""
    reader, writer = os.pipe()
    os.close(reader)

    def body() -> None:
        print("shown")
        raise error

    with os.fdopen(writer, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        assert conclude(body) == status
        gone.flush()  # as at exit


def unread(*arguments: object) -> tuple[int, bytes]:
    """Exit status and stderr of a command whose output nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    process = warm_start.Popen(command_line(*arguments), stdout=writer, stderr=subprocess.PIPE, env=environment())
    os.close(writer)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.parametrize("command", [("status",), ("verify",), ("verify", "--format", "json")], ids=" ".join)
def test_a_status_that_is_known_holds_though_nobody_reads_the_answer(tmp_path: Path, command: tuple[str, ...]) -> None:
    """``waltzctl status DIR | grep -q x`` said that all is well."""
    storage = build_directory(tmp_path / "storage", {0: 60}, local_low_water_mark=9)
    index_of(storage).unlink()
    assert unread(command[0], storage, *command[1:]) == (3, b"")


@pytest.mark.parametrize("command", [("verify",), ("dump",), ("dump", "--format", "raw"), ("stats",)], ids=" ".join)
def test_damage_that_was_met_counts_though_nobody_reads_on(tmp_path: Path, command: tuple[str, ...]) -> None:
    storage = build_directory(tmp_path / "storage", {0: 60})
    flip(segment_of(storage), 140)
    status, err = unread(command[0], storage, *command[1:])
    assert status == 4
    assert (err == b"") is ("raw" not in command)  # bytes have no findings between them


@pytest.mark.turns(8)
def test_what_is_wrong_with_a_control_file_counts_before_its_partitions_are_shown(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "storage", {0: 60}, num_partitions=2000)
    flip(storage / "waltz-storage.ctl", 140)
    flip(storage / "waltz-storage.ctl", 170)
    for shown in ("plain", "hexdump"):
        wanted = invoke("dump", storage, "--what", "control", "--format", shown).status
        assert wanted != ExitStatus.CLEAN
        assert unread("dump", storage, "--what", "control", "--format", shown) == (wanted, b"")


def test_what_a_comparison_found_holds_though_nobody_reads_the_answer(tmp_path: Path) -> None:
    one = build_directory(tmp_path / "one", {0: 60})
    other = build_directory(tmp_path / "other", {0: 50})
    assert unread("compare", one, other) == (invoke("compare", one, other).status, b"")
    assert invoke("compare", one, other).status == ExitStatus.REPAIRABLE


@pytest.mark.usefixtures("capsys")
def test_what_was_found_counts_where_the_reader_of_another_output_goes() -> None:
    """``compare A B --differences FIFO`` of replicas that differ was a success where the reader closed the FIFO."""

    def body() -> None:
        with Console(None) as console:
            console.known = ExitStatus.DAMAGED
            raise BrokenPipeError

    assert conclude(body) is ExitStatus.DAMAGED


@pytest.mark.parametrize("chosen", ["json", "ndjson"])
@pytest.mark.parametrize("command", ["verify", "status"])
def test_why_a_command_ends_is_told_though_standard_output_is_full(tmp_path: Path, chosen: str, command: str) -> None:
    """Nothing but the full disk was told, with its status."""
    with Path("/dev/full").open("w") as full:
        arguments = command_line(command, tmp_path / "nowhere", "--format", chosen)
        process = warm_start.Popen(arguments, stdout=full, stderr=subprocess.PIPE, env=environment())
        _, err = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.NOT_WALTZ
    assert b"standard output: No space left on device\n" in err
    assert err.endswith(b": no such file or directory\n")


def test_what_else_was_asked_for_comes_whole_though_nobody_reads_the_differences(tmp_path: Path) -> None:
    """``compare A B --differences FIFO --plan-dir PLANS --format json`` wrote no plan, and an array without an end."""
    pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")
    one = build_directory(tmp_path / "one", {0: 60}, local_low_water_mark=9)
    other = build_directory(tmp_path / "other", {0: 50}, local_low_water_mark=9)
    fifo, plans = tmp_path / "fifo", tmp_path / "plans"
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: fifo.open("rb").close())
    reader.start()
    told = invoke("compare", one, other, "--differences", fifo, "--plan-dir", plans, "--format", "json")
    reader.join()
    assert (told.status, told.err) == (ExitStatus.REPAIRABLE, "")
    assert json.loads(told.out)[-1]["type"] == "compare-summary"
    assert len([*plans.iterdir()]) == 1


@pytest.mark.parametrize("chosen", ["json", "ndjson", "plain"])
def test_what_was_shown_comes_whole_though_the_reader_of_another_output_goes(
    chosen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> None:
        with Console(Format(chosen)) as console:
            console.emit({"type": "example", "number": 1})
            raise BrokenPipeError

    assert conclude(body) is ExitStatus.CLEAN
    if chosen == "json":
        assert json.loads(capsys.readouterr().out) == [{"type": "example", "number": 1}]


def test_files_that_were_asked_for_are_written_though_nobody_reads_the_answer(tmp_path: Path) -> None:
    """``compare A B --plan-dir PLANS | head -1`` ended with the verdict, and without a plan."""
    pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")
    one = build_directory(tmp_path / "one", {0: 60}, local_low_water_mark=9)
    other = build_directory(tmp_path / "other", {0: 50}, local_low_water_mark=9)
    plans, table, manifest = tmp_path / "plans", tmp_path / "table", tmp_path / "manifest"
    status, _ = unread("compare", one, other, "--plan-dir", plans, "--differences", table)
    assert status == ExitStatus.REPAIRABLE
    assert len([*plans.iterdir()]) == 1
    assert table.exists()
    (one / "0" / "stray").touch()
    os.utime(one / "0" / "stray", (0, 0))
    assert unread("verify", one, "--manifest", manifest) == (ExitStatus.CLEAN, b"")
    assert manifest.exists()


def test_what_a_page_store_lacks_holds_though_nobody_reads_the_answer(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "storage", {0: 60})
    vault = tmp_path / "vault"
    assert invoke("backup", "init", vault).status == invoke("backup", "create", vault, storage).status == 0
    for file in (vault / "blob").iterdir():
        flip(file, 20)
    for command in (("pages", "verify", vault), ("backup", "verify", vault)):
        assert unread(*command) == (ExitStatus.DAMAGED, b"")
    for file in (vault / "wal").iterdir():
        flip(file, 20)
    assert invoke("pages", "status", vault).status == ExitStatus.DAMAGED
    assert unread("pages", "status", vault) == (ExitStatus.DAMAGED, b"")


@pytest.mark.parametrize("chosen", ["plain", "json", "ndjson"])
def test_why_a_command_ends_is_told_though_nobody_reads_its_answer(tmp_path: Path, chosen: str) -> None:
    """The error's object for programs has no reader then: ``verify NOWHERE --format ndjson | true`` was a success."""
    for command in ("verify", "status"):
        status, err = unread(command, tmp_path / "nowhere", "--format", chosen)
        assert status == ExitStatus.NOT_WALTZ
        assert err.endswith(b": no such file or directory\n")


@pytest.mark.parametrize(
    "command", [("verify",), ("verify", "x", "--partition", "y"), ("nosuch",), ("node",)], ids=" ".join
)
@pytest.mark.parametrize("full", [True, False], ids=["full", "closed"])
def test_arguments_that_cannot_be_meant_are_that_though_stderr_takes_nothing(
    command: tuple[str, ...], full: bool
) -> None:
    """It was an error of the system (14), as if the disk with the data were full."""
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full" if full else writer, "wb", closefd=full) as nowhere:
        process = warm_start.Popen(command_line(*command), stdout=subprocess.PIPE, stderr=nowhere, env=environment())
        shown, _ = process.communicate(timeout=60)
    os.close(writer)
    assert (process.returncode, shown) == (2, b"")
