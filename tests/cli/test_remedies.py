"""Every remedy that is printed can be run as it is printed, and leads on: the finding is gone, or the next step is named.

Each finding of each example is followed on a copy of its own, from the remedy that verify prints over those that the commands
name when something is left, until it is gone or a person must decide.  A command that is named twice would be a circle.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.building import LAST, Files, clean, flip, header, index, name, offset_of, put_segment, segment
from fixtures.control_examples import control_examples
from fixtures.segment_examples import segment_examples
from tests.cli.running import invoke
from tests.inspect.test_codes import interrupted_repair
from waltzctl.engine.catalogue import OF_PAGE_STORES
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.engine.findings import CATALOGUE, Code, Finding, Severity, remedy_for
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.log.url_path import UrlPath
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout, decode_control
from waltzctl.formats.segment import HEADER_SIZE, RECORD_HEADER, entry_position

STEPS = 6
PERSON = {
    # What no command can decide, and in which example: the way ends there, and the last command says so.
    ("misplaced-segments", "segment-key"),
    ("misplaced-segments", "segment-partition"),
    ("misplaced-segments", "segment-name"),
    ("misplaced-segments", "segment-gap"),
    ("misplaced-segments", "segment-overlap"),
}


def write(path: Path, files: Files) -> Path:
    for key, data in files.items():
        target = path / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return path


def more() -> Iterator[tuple[str, Files]]:
    """Damage of which the examples have none, or only the harmless kind."""
    files = clean()
    files[name(8)] = files[name(8)][:60]
    yield "short-header-with-records", files
    files = clean()
    del files[name(16)]
    yield "lost-last-data-file", files
    files = clean()
    flip(files, name(8), 28 + 3, 4)
    yield "damaged-header", files
    files = clean()
    flip(files, name(8), 28 + 3, 4)
    flip(files, index(8), entry_position(9, 8) + 7)
    flip(files, index(8), entry_position(10, 8) + 7)
    yield "damaged-header-and-index", files
    files = clean()
    put_segment(files, 0, 8, segment(0, 8, 16))
    flip(files, name(8), offset_of(10, 8) + RECORD_HEADER.size + 3)
    flip(files, name(8), offset_of(12, 8) + RECORD_HEADER.size + 3)
    yield "two-flipped-bits", files
    files = clean()
    put_segment(files, 0, 8, segment(0, 8, 18))
    flip(files, name(8), offset_of(17, 8) + RECORD_HEADER.size - 9)
    yield "damaged-overlap", files
    files = clean()
    flip(files, CONTROL_FILE_NAME, 3)
    yield "control-version", files
    files = clean()
    files[CONTROL_FILE_NAME] += bytes(2 * 76)
    yield "bytes-behind-the-infos", files
    files = clean(num_partitions=2, assigned=2)
    files[CONTROL_FILE_NAME] = files[CONTROL_FILE_NAME][:100]
    yield "control-file-cut", files
    files = clean()
    files["7/" + name(0).split("/")[1]] = header(7, 0)
    yield "beyond-the-partitions", files


EXAMPLES: dict[str, Files] = {one.name: one.files for one in (*segment_examples(), *control_examples())} | dict(more())


def replica_of(path: Path, files: Files) -> Path:
    """An intact replica of the same cluster, with every transaction."""
    control = files.get(CONTROL_FILE_NAME, b"")
    count = len(decode_control(control).partitions) if len(control) >= 128 else 1
    return write(path, clean(Layout.RELEASED, num_partitions=count, assigned=count, mark=LAST))


def findings(storage: Path) -> list[dict[str, Any]]:
    """What verify prints."""
    seen = verify((storage,), VerifyOptions(exclusive=True))
    return [FINDING.shown(one) for one in seen if isinstance(one, Finding)]


def key(finding: dict[str, Any], storage: Path) -> tuple[Any, ...]:
    place = Path(finding["path"]).relative_to(storage)
    return finding["code"], place, finding["transaction_id"], finding["severity"]


def run(remedy: str, storage: Path, replica: Path, fresh: Path) -> list[dict[str, Any]]:
    """Run a remedy as it is printed, placeholders replaced and agreed to; the findings that it leaves, as it says."""
    words = shlex.split(remedy)
    assert words[0] == "waltzctl"
    words = [{"REPLICA": str(replica), "DIR": str(fresh)}.get(word, word) for word in words[1:]]
    if words[0] == "salvage":
        answer = invoke(*words)
        assert answer.status in (0, 3, 4), (remedy, answer.err)
        assert not [one for one in findings(fresh) if one["severity"] != "note"]
        return []
    answer = invoke(*words, "--yes", "--format", "json")
    assert answer.status in (0, 3, 4, 5), (remedy, answer.err)
    found: list[dict[str, Any]] = json.loads(answer.out).get("findings", [])
    assert answer.status == 0 or found or words[0] == "undo"
    return found


def follow(finding: dict[str, Any], storage: Path, replica: Path, fresh: Path) -> str | None:
    """Go from remedy to remedy.  None: the finding is gone; else the code that a person is left with."""
    wanted = key(finding, storage)
    remedy = finding["remedy"]
    done: list[str] = []
    while remedy is not None:
        assert remedy not in done, f"a circle: {done}"
        assert len(done) < STEPS
        done.append(remedy)
        left = run(remedy, storage, replica, fresh)
        if remedy.startswith("waltzctl salvage"):
            return None
        if wanted not in [key(one, storage) for one in findings(storage)]:
            return None
        (remedy,) = {one["remedy"] for one in left if key(one, storage) == wanted}
    return str(finding["code"])


@pytest.mark.turns(10)
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_remedy_leads_on(tmp_path: Path, example: str) -> None:
    files = EXAMPLES[example]
    first = write(tmp_path / "first", files)
    replica = replica_of(tmp_path / "replica", files)
    assert findings(replica) == []
    for number, found in enumerate(findings(first)):
        if found["remedy"] is None:
            assert not CATALOGUE[Code(found["code"])].remedies(Severity(found["severity"])), found
            continue
        storage = tmp_path / str(number)
        shutil.copytree(first, storage)
        moved = dict(found, path=found["path"].replace(str(first), str(storage)))
        moved["remedy"] = found["remedy"].replace(str(first), str(storage))
        end = follow(moved, storage, replica, tmp_path / f"fresh-{number}")
        assert end is None or (example, end) in PERSON


def test_an_interrupted_repair_is_taken_back_as_printed(tmp_path: Path) -> None:
    storage = write(tmp_path / "d", clean())
    interrupted_repair(storage)
    (found,) = [one for one in findings(storage) if one["remedy"] is not None]
    assert follow(found, storage, storage, storage) is None


def test_the_undo_that_a_repair_of_a_partition_prints_can_be_run(tmp_path: Path) -> None:
    files = EXAMPLES["missing-index"]
    storage = write(tmp_path / "d", files)
    answer = invoke("recover", storage / "0", "--yes", "--format", "plain")
    (line,) = [one for one in answer.out.splitlines() if "To take it back: " in one]
    words = shlex.split(line.split("To take it back: ")[1])
    assert invoke(*words[1:], "--yes").status == 3, "with the file goes what mended it"
    assert not (storage / index(8)).exists()


def test_commands_in_advice_can_be_run_where_a_path_has_spaces(tmp_path: Path) -> None:
    storage, vault = tmp_path / "a storage", tmp_path / "a vault"
    assert invoke("create-cluster", storage, "--partitions", 1).status == 0
    refused = invoke("undo", storage, "--yes")
    assert shlex.split(refused.err.splitlines()[1])[:4] == ["waltzctl", "undo", str(storage), "--list"]
    made = invoke("backup", "init", vault)
    assert shlex.split(made.out.splitlines()[-1].partition(": ")[2]) == [
        "waltzctl", "backup", "create", str(vault), "DIR",
    ]  # fmt: skip
    assert invoke("append", storage, "--partition", 0, given="one\ntwo\n").status == 0
    data = storage / "0" / "0000000000000000000.seg"
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size - 1)
    seen = invoke("status", storage).out
    assert f"waltzctl verify '{storage}' names" in seen
    said = invoke("append", storage, "--partition", 0, given="two\n").err
    assert f"(waltzctl undo '{storage}' --list)" in said


@pytest.mark.parametrize("given", [("./-n",), ("--", "-n"), ("./vault:n::1",)])
def test_a_remedy_can_be_run_where_a_path_looks_like_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    files = clean()
    del files[index(0)]
    write(tmp_path / given[-1], files)
    monkeypatch.chdir(tmp_path)
    found = invoke("verify", "--format", "ndjson", *given).only("finding")
    (remedy,) = {one["remedy"] for one in found}
    assert invoke(*shlex.split(remedy)[1:], "--yes").status == 0
    assert invoke("verify", *given).status == 0


@pytest.mark.parametrize("style", ["table", "plain", "ndjson"])
@pytest.mark.parametrize("given", [b"n\xff1", b"a\nb's\\"])
def test_a_remedy_can_be_pasted_where_a_path_cannot_be_shown(tmp_path: Path, given: bytes, style: str) -> None:
    """Its bytes reach the command, whatever a terminal may be sent of them."""
    files = clean()
    del files[index(0)]
    storage = write(tmp_path / os.fsdecode(given), files)
    shown = invoke("verify", storage, "--format", style)
    if style == "ndjson":
        (remedy,) = {one["remedy"] for one in shown.only("finding")}
    else:
        remedy = re.findall("waltzctl re.*", shown.out)[-1]
    assert pasted(remedy)[2] == os.fsencode(storage)
    (named,) = re.findall("waltzctl verify .*(?= names)", invoke("status", storage).out)
    assert pasted(named)[2] == os.fsencode(storage)


def pasted(line: str) -> list[bytes]:
    """The words of which a shell makes a command line."""
    made = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], stdout=subprocess.PIPE, check=True)
    return made.stdout.split(b"\0")[:-1]


def test_every_code_with_a_remedy_has_an_example(tmp_path: Path) -> None:
    seen = {"repair-interrupted", *map(str, OF_PAGE_STORES)}  # remedies of page stores are followed in test_pages.py
    for number, files in enumerate(EXAMPLES.values()):
        seen |= {one["code"] for one in findings(write(tmp_path / str(number), files))}
    elsewhere = OF_PAGE_STORES  # tests/pages
    assert seen >= {
        code.value for code, kind in CATALOGUE.items() if kind.command is not None and code not in elsewhere
    }
    assert HEADER_SIZE == 128


@pytest.mark.parametrize("code", Code)
def test_a_ladder_never_returns_to_what_was_run(code: Code) -> None:
    for severity in Severity:
        steps = CATALOGUE[code].remedies(severity)
        assert len(set(steps)) == len(steps)


def test_a_directory_beyond_the_partitions_is_noted_and_left(tmp_path: Path) -> None:
    """Alone, and beside something to mend."""
    files = clean()
    for path in [path for path in files if path.startswith("0/")]:
        files["7" + path[1:]] = files[path]
    storage = write(tmp_path / "d", files)
    answer = invoke("recover", storage, "--yes", "--format", "json")
    assert (answer.status, json.loads(answer.out)["applied"]) == (0, False)
    assert [one["code"] for one in findings(storage)] == ["partition-not-assigned"]
    for damaged, command in ((index(8), "recover"), (index(16), "rebuild-index")):
        (storage / damaged).unlink()
        before = {path: path.read_bytes() for path in (storage / "7").iterdir()}
        answer = invoke(command, storage, "--yes", "--format", "json")
        result = json.loads(answer.out)
        assert (answer.status, result["applied"], result["status"]) == (0, True, "clean")
        assert {path: path.read_bytes() for path in (storage / "7").iterdir()} == before


def test_of_a_backup_the_copy_is_mended(tmp_path: Path) -> None:
    """The backup is never written: its findings say how a copy is made, which shows the same ones with their remedies."""
    files = clean()
    flip(files, name(8), HEADER_SIZE + 3, 4)
    storage, vault = write(tmp_path / "d", files), tmp_path / "it's a vault"
    assert invoke("backup", "init", vault).status == 0
    invoke("backup", "create", vault, storage)
    found = invoke("verify", f"vault:{vault}::latest", "--format", "ndjson").only("finding")
    (remedy,) = {one["remedy"] for one in found}
    words = [str(tmp_path / "copy") if word == "DIR" else word for word in shlex.split(remedy)[1:]]
    invoke(*words)
    assert [one["code"] for one in findings(tmp_path / "copy")] == [one["code"] for one in found]


def test_a_directory_that_begins_with_a_hyphen_is_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = clean()
    del files[index(8)]
    write(tmp_path / "-d", files)
    monkeypatch.chdir(tmp_path)
    (one,) = invoke("verify", "./-d", "--format", "ndjson").only("finding")
    done = invoke(*shlex.split(one["remedy"])[1:], "--yes")
    assert done.status == 0
    back = done.out.partition("To take it back: ")[2]
    assert invoke(*shlex.split(back)[1:], "--yes").status == 3, "undone: the index is gone again"


def test_what_lies_behind_a_url_has_no_command() -> None:
    assert remedy_for(Code.TORN_TAIL, UrlPath.of("s3://bucket/node-1"), 3) is None
