"""pages: exit statuses, what is shown to people, and that the commands that a finding names mend it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests import warm_start
from tests.cli.running import Answer, command_line, environment, invoke, on_terminal
from tests.crash.simdisk import Tree
from tests.pages.stores import crash
from waltzctl.engine.durable import quarantine
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.pages.inspection import store_status
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_recovery import apply_recovery, plan_recovery
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.recovery_mode import RecoveryMode


@pytest.fixture
def store(tmp_path: Path) -> Path:
    opened = PageStorage.create(tmp_path / "s")
    opened.write(WriteBatch().put_page(1, b"one").put_page(2, b"two" * 500).put_ref(3, 1))
    opened.write(WriteBatch().put_page(2, b"again"))
    crash(opened)
    return tmp_path / "s"


def verify(store: Path) -> Answer:
    return invoke("pages", "verify", store, "--format", "ndjson")


def test_a_whole_store(store: Path) -> None:
    before = Tree.read(store)
    answer = invoke("pages", "verify", store, "--format", "table")
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.startswith("OK  no findings in 3 pages and 2 log records (")
    assert invoke("pages", "verify", store, "-q").out == ""
    (summary,) = verify(store).objects
    assert [summary[name] for name in ("status", "pages", "references", "log_files", "blob_files", "modified")] == [
        "clean", 3, 1, 1, 1, False,
    ]  # fmt: skip
    for what in ("pages", "versions", "log", "free"):
        assert invoke("pages", "dump", store, "--what", what, "--format", "table").status == 0
    assert invoke("pages", "status", store).status == 0
    assert Tree.read(store).differences(before) == []


def test_status_shows_how_full_each_file_is(store: Path) -> None:
    shown = invoke("pages", "status", store, "--format", "table").out
    assert "3 in 1 namespaces: 1 references, 0 external" in shown
    assert "░░░░░░░░░░░░░░░░░░░░   1%" in shown
    (status,) = invoke("pages", "status", store, "--format", "ndjson").objects
    assert [(one["file_id"], one["bytes"], one["valid_bytes"]) for one in status["blob_files"]] == [(1, 1508, 8)]
    assert status["space_amplification"] == 188.5
    log = (store / "wal" / "log_1_0").stat().st_size - status["log_bytes"]
    assert log > 0, "room for records to come is not counted"
    assert status["write_amplification"] == round((1508 + status["log_bytes"]) / 1508, 4)
    assert (status["versions"], status["snapshots"]) == (3, 0)
    assert "3, 0 snapshots" in shown
    assert f"{status['write_amplification']:.2f} bytes for each byte of a page" in shown


def test_status_of_a_store_that_is_open(store: Path) -> None:
    """Which snapshots are held its process alone knows; what collection moved is written for nobody."""
    with PageStorage.open(store) as opened, opened.snapshot():
        for page in range(10, 20):
            opened.write(WriteBatch().put_page(page, bytes(1000)))
        opened.write(WriteBatch().put_page(2, b"three"))
        (status,) = invoke("pages", "status", store, "--format", "ndjson").objects
        assert (status["versions"], status["snapshots"]) == (13, None)
        assert "as its process knows" in invoke("pages", "status", store, "--format", "table").out
    with PageStorage.open(store, PageOptions(full_gc_rate=0.9)) as opened:
        for page in (1, 2, *range(10, 19)):
            opened.write(WriteBatch().delete(page))
        before = store_status(store)
        collect_garbage(opened)
        after = store_status(store)
        assert (before.data_moved, after.data_written) == (0, before.data_written)
        assert after.data_moved == opened.status().data_moved > 1000
    assert after.write_amplification == (after.data_written + after.data_moved + after.log_written) / after.data_written
    with PageStorage.open(store) as opened:
        collect_garbage(opened, checkpoint=True)
    (status,) = invoke("pages", "status", store, "--format", "ndjson").objects
    assert status["write_amplification"] is None


def test_dump_tells_where_pages_lie(store: Path) -> None:
    pages = invoke("pages", "dump", store, "--format", "ndjson").only("page-version")
    assert [(one["page_id"], one["kind"], one["origin"], one["offset"], one["size"]) for one in pages] == [
        (1, "data", None, 0, 3), (2, "data", None, 1503, 5), (3, "reference", 1, 0, 3),
    ]  # fmt: skip
    versions = invoke("pages", "dump", store, "--what", "versions", "--format", "ndjson").only("page-version")
    assert [(one["page_id"], one["sequence"], one["latest"]) for one in versions] == [
        (1, 1, True), (2, 2, True), (2, 1, False), (3, 1, True),
    ]  # fmt: skip
    edits = invoke("pages", "dump", store, "--what", "log", "--format", "ndjson").only("page-log-edit")
    assert [one["edit"] for one in edits] == ["put", "put", "ref", "put"]
    (free,) = invoke("pages", "dump", store, "--what", "free", "--format", "ndjson").objects
    assert (free["file_id"], free["offset"], free["size"]) == (1, 3, 1500)


def test_gc_gives_room_back(store: Path) -> None:
    (done,) = invoke("pages", "gc", store, "--format", "ndjson").objects
    assert [done[name] for name in ("exit_status", "rounds", "pages_moved", "blob_bytes_before", "blob_bytes")] == [
        0, 3, 2, 1508, 8,
    ]  # fmt: skip
    answer = invoke("pages", "gc", store, "--format", "table")
    assert answer.out.endswith("COLLECTED  8 B of blob files became 8 B; 0 pages moved, 0 versions let go.\n")
    assert verify(store).status == 0


def test_gc_of_a_store_in_use_is_refused_and_verify_is_not(store: Path) -> None:
    with PageStorage.open(store):
        assert invoke("pages", "gc", store).status == 11
        assert verify(store).status == 0


def test_a_torn_tail_is_mended_by_what_the_finding_names(store: Path) -> None:
    with (store / "wal" / "log_1_0").open("ab") as log:
        log.write(b"torn")
    answer = verify(store)
    (finding,) = answer.only("finding")
    assert (answer.status, finding["code"], finding["severity"]) == (3, "log-torn-tail", "repairable")
    assert finding["remedy"] == f"waltzctl pages gc {store}"
    assert invoke("pages", "status", store).status == 3
    assert invoke(*shlex.split(finding["remedy"])[1:]).status == 0
    assert verify(store).status == 0


def test_what_a_crash_left_behind_the_last_page_is_given_back(store: Path) -> None:
    with (store / "blob" / "blobfile_1").open("ab") as blob:
        blob.write(b"of a write that never came to be")
    (finding,) = verify(store).only("finding")
    assert finding["code"] == "space-leaked"
    assert invoke(*shlex.split(finding["remedy"])[1:]).status == 0
    assert verify(store).status == 0


def test_a_damaged_log_is_refused_and_salvaged(store: Path, tmp_path: Path) -> None:
    log = store / "wal" / "log_1_0"
    raw = bytearray(log.read_bytes())
    raw[40] ^= 1
    log.write_bytes(raw)
    before = Tree.read(store, (".waltzctl/lock",))
    answer = verify(store)
    (finding,) = answer.only("finding")
    assert (answer.status, finding["code"]) == (4, "log-record-checksum")
    assert finding["remedy"] == f"waltzctl pages salvage {store} --to DIR"
    refused = invoke("pages", "gc", store)
    assert refused.status == 4
    assert "take what is whole with pages recover --mode skip-damaged, or into a new directory" in refused.err
    saved = invoke("pages", "salvage", store, "--to", tmp_path / "to", "--format", "table")
    assert saved.status == 5
    assert "SALVAGED IN PART  1 page written" in saved.out
    assert Tree.read(store, (".waltzctl/lock",)).differences(before) == []
    assert verify(tmp_path / "to").status == 0


def test_a_damaged_page_costs_itself_and_what_refers_to_it(store: Path, tmp_path: Path) -> None:
    blob = store / "blob" / "blobfile_1"
    blob.write_bytes(b"X" + blob.read_bytes()[1:])
    answer = verify(store)
    assert (answer.status, [one["code"] for one in answer.only("finding")]) == (4, ["page-checksum"])
    assert "page 0:1" in answer.only("finding")[0]["message"]
    (done,) = invoke("pages", "gc", store, "--format", "ndjson").objects
    assert (done["exit_status"], [one["code"] for one in done["findings"]]) == (5, ["page-checksum"])
    (saved,) = invoke("pages", "salvage", store, "--to", tmp_path / "to", "--format", "ndjson").objects
    assert (saved["exit_status"], saved["lost"], saved["pages"]) == (5, ["0:1", "0:3"], 1)


def test_what_is_no_store_and_what_cannot_be_meant(store: Path, tmp_path: Path) -> None:
    for action in ("verify", "status", "dump", "gc"):
        assert invoke("pages", action, tmp_path).status == 10
    (tmp_path / "none").mkdir()
    assert invoke("pages", "salvage", tmp_path / "none", "--to", tmp_path / "to").status == 10
    assert invoke("pages", "salvage", store, "--to", store / "to").status == 2
    assert invoke("pages", "dump", store, "--what", "else").status == 2
    assert invoke("pages", store, "verify").status == 2


def damaged(store: Path) -> Path:
    """The first record of the log is not what it was: pages 1 and 2 in their first version, and page 3."""
    log = store / "wal" / "log_1_0"
    raw = bytearray(log.read_bytes())
    raw[40] ^= 1
    log.write_bytes(raw)
    return store


def test_a_damaged_store_is_recovered_in_place_and_taken_back(store: Path) -> None:
    damaged(store)
    before = Tree.read(store, (".waltzctl/lock",))
    assert invoke("pages", "recover", store, "--yes").status == 4
    assert invoke("pages", "recover", store, "--mode", "absolute-consistency", "--yes").status == 4
    words = ("pages", "recover", store, "--mode", "skip-damaged")
    refused = invoke(*words, "--format", "ndjson")
    assert refused.status == 13
    planned = invoke(*words, "--dry-run", "--format", "ndjson")
    assert planned.status == 4, "as verify"
    (plan,) = planned.only("plan")
    assert (plan["command"], plan["arguments"]["mode"]) == ("pages recover", "skip-damaged")
    assert [(step["action"], step["loses_data"]) for step in plan["steps"]] == [
        ("give-up", True), ("write-checkpoint", False), ("set-aside", False),
    ]  # fmt: skip
    assert "Nothing was modified." in invoke(*words, "--dry-run", "--format", "table").out
    assert Tree.read(store, (".waltzctl/lock",)).differences(before) == []
    answer = invoke(*words, "--yes", "--format", "ndjson")
    assert answer.status == 0, answer.err
    (result,) = answer.only("result")
    assert (result["applied"], result["status"], result["plan_hash"]) == (True, "clean", plan["hash"])
    assert verify(store).status == 0
    listed = invoke("undo", store, "--list", "--format", "ndjson").only("undo-entry")
    assert [(one["id"], one["command"]) for one in listed] == [(result["undo_id"], "pages-recover")]
    assert invoke("undo", store).status == 13
    assert invoke("undo", store, "--allow-data-loss", "--yes").status == 2
    assert invoke("undo", store, "--dry-run").status == 0
    undone = invoke("undo", store, "--yes", "--format", "table")
    assert undone.status == 4, "the damage is there again"
    assert "UNDONE  2 files brought back" in undone.out
    assert {name: one for name, one in Tree.read(store).files.items() if ".waltzctl" not in name} == {
        name: one for name, one in before.files.items() if ".waltzctl" not in name
    }
    assert invoke("undo", store, result["undo_id"], "--yes").status == 13
    assert invoke("undo", store, "20260101T000000Z-x", "--yes").status == 2
    shown = invoke(*words, "--yes", "--format", "table").out
    assert "REPAIRED" in shown
    with PageStorage.open(store) as opened:
        assert bytes(opened.read(2).data) == b"again"
        assert opened.max_id() == 2
    refused = invoke("undo", store, "--yes")
    assert refused.status == 13
    assert "was opened for writing since" in refused.err
    assert invoke(*words, "--yes", "--format", "table").out.endswith("NOTHING TO DO. Nothing was modified.\n")


def test_recovery_up_to_the_first_fault_tells_what_it_costs(store: Path) -> None:
    with PageStorage.open(store) as opened:
        opened.write(WriteBatch().put_page(7, b"seven" * 200))
        opened.write(WriteBatch().put_page(8, b"eight" * 200))
    log = store / "wal" / "log_2_0"
    raw = bytearray(log.read_bytes())
    raw[40] ^= 1
    log.write_bytes(raw)
    answer = invoke("pages", "recover", store, "--mode", "point-in-time", "--yes", "--format", "table")
    assert answer.status == 3, "the room behind the last page is nobody's"
    for said in ("drop-records", "page 0:8 is given up", "space-leaked", "REPAIRED", f"waltzctl pages gc {store}"):
        assert said in answer.out
    assert verify(store).status == 3
    assert invoke("pages", "gc", store).status == 0
    assert verify(store).status == 0


def test_a_version_whose_room_was_used_again_is_damage_that_remains(store: Path) -> None:
    with PageStorage.open(store) as opened:
        opened.write(WriteBatch().put_page(7, b"seven"))  # where page 2 was first
    log = store / "wal" / "log_1_0"
    raw = bytearray(log.read_bytes())
    raw[-60] ^= 1
    log.write_bytes(raw)
    answer = invoke("pages", "recover", store, "--mode", "point-in-time", "--yes", "--format", "table")
    assert answer.status == 5
    assert "DAMAGE REMAINS" in answer.out
    assert "page 0:2" in " ".join(one["message"] for one in verify(store).only("finding"))
    assert invoke("undo", store, "--yes").status == 4


def test_recovery_of_a_store_in_use_and_of_none(store: Path, tmp_path: Path) -> None:
    damaged(store)
    assert invoke("pages", "recover", tmp_path / "none", "--yes").status == 10
    assert invoke("pages", "recover", store, "--mode", "best", "--yes").status == 2
    with DirectoryLock.acquire(store, None):
        assert invoke("pages", "recover", store, "--mode", "skip-damaged", "--yes").status == 11


@pytest.mark.turns(8)
def test_a_recovery_that_is_killed_is_taken_back(store: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The process dies between two of its steps; the next command says so, and the one after that recovers."""
    damaged(store)
    before = {name: one for name, one in Tree.read(store).files.items() if ".waltzctl" not in name}
    words = ("pages", "recover", store, "--mode", "skip-damaged", "--yes", "--format", "ndjson")
    for number in range(100 if request.config.getoption("--long") else 5):
        with warm_start.Popen(command_line(*words), env=environment(), stdout=-3, stderr=-3) as process:
            time.sleep(0.1 + 0.05 * (number % 12))
            os.kill(process.pid, signal.SIGKILL)
        for _ in range(3):
            answer = invoke(*words)
            assert answer.status in (0, 3, 4), answer.err
            if verify(store).status == 0:
                break
        assert verify(store).status == 0
        assert invoke("undo", store, "--yes").status == 4
        now = {name: one for name, one in Tree.read(store).files.items() if ".waltzctl" not in name}
        assert now == before


def kept_plan(store: Path, *words: str) -> Path:
    file = store.with_name("plan.json")
    file.write_text(invoke("pages", "recover", store, *words, "--dry-run", "--format", "json").out)
    return file


def test_a_kept_plan_is_carried_out_as_it_stands_or_not_at_all(store: Path, tmp_path: Path) -> None:
    damaged(store)
    file = kept_plan(store, "--mode", "skip-damaged")
    words = ("pages", "recover", store, "--plan", file)
    before = Tree.read(store)
    unasked = invoke(*words)
    assert (unasked.status, "not confirmed, nothing was modified" in unasked.err) == (13, True)
    other = invoke(*words, "--mode", "point-in-time", "--yes")
    assert (other.status, "made with other options" in other.err) == (2, True)
    shutil.copytree(store, tmp_path / "copy")
    elsewhere = invoke("pages", "recover", tmp_path / "copy", "--plan", file, "--yes")
    assert (elsewhere.status, f"not for {tmp_path / 'copy'}" in elsewhere.err) == (2, True)
    of_another = invoke("recover", store, "--plan", file, "--yes")
    assert (of_another.status, "a plan of pages recover, not of recover" in of_another.err) == (2, True)
    changed = json.loads(file.read_text())
    for change in ({"steps": changed["steps"][1:]}, {"hash": "0" * 64}):
        file.with_name("changed.json").write_text(json.dumps({**changed, **change}))
        assert invoke(*words[:-1], file.with_name("changed.json"), "--yes").status == 13
    for nonsense in ("{}", "nothing", json.dumps({**changed, "arguments": {**changed["arguments"], "mode": "best"}})):
        file.with_name("changed.json").write_text(nonsense)
        assert invoke(*words[:-1], file.with_name("changed.json"), "--yes").status == 2
    assert Tree.read(store).differences(before) == []
    answer = invoke(*words, "--yes", "--format", "ndjson")
    assert (answer.status, answer.only("result")[0]["plan_hash"]) == (0, changed["hash"])
    stale = invoke(*words, "--yes")
    assert (stale.status, "no longer those that the plan was made for" in stale.err) == (13, True)


def test_a_plan_that_loses_nothing_needs_no_second_word(store: Path) -> None:
    with (store / "wal" / "log_1_0").open("ab") as log:
        log.write(b"torn")
    assert invoke("pages", "recover", store, "--plan", kept_plan(store)).status == 0
    assert verify(store).status == 0


def test_on_a_terminal_yes_is_typed(store: Path) -> None:
    damaged(store)
    before = Tree.read(store)
    words = ("pages", "recover", store, "--mode", "skip-damaged")
    assert on_terminal(*words, typed=b"no\n", after=b"to apply the plan").status == 13
    assert Tree.read(store).differences(before) == []
    assert on_terminal(*words, typed=b"yes\n", after=b"to apply the plan").status == 0
    assert on_terminal("undo", store, typed=b"no\n", after=b"to do it").status == 13
    assert on_terminal("undo", store, typed=b"yes\n", after=b"to do it").status == 4


def test_what_a_recovery_kept_is_given_up(store: Path) -> None:
    damaged(store)
    assert invoke("pages", "recover", store, "--mode", "skip-damaged", "--yes").status == 0
    prune = ("undo", store, "--prune", "--older-than", "1ms")
    assert invoke(*prune).status == 13
    assert invoke("undo", store, "--prune", "--older-than", "1d", "--yes", "--format", "table").out.startswith(
        "NOTHING"
    )
    assert invoke(*prune, "--keep", "1", "--yes").status == 0
    (plan,) = invoke(*prune, "--dry-run", "--format", "ndjson").only("plan")
    with DirectoryLock.acquire(store, None):
        assert invoke(*prune, "--yes").status == 11
    (result,) = invoke(*prune, "--yes", "--format", "ndjson").only("result")
    assert (result["status"], result["bytes_freed"]) == ("pruned", plan["steps"][0]["length"])
    (entry,) = invoke("undo", store, "--list", "--format", "ndjson").only("undo-entry")
    assert entry["state"] == "pruned"
    assert [path.name for path in Path(entry["quarantine"]).iterdir()] == ["manifest.json"]
    assert invoke("undo", store, "--yes").status == 13
    assert "was pruned" in invoke("undo", store, entry["id"], "--yes").err
    assert verify(store).status == 0


def test_an_interrupted_recovery_is_told_and_goes_on(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged(store)
    with monkeypatch.context() as patched:
        patched.setattr(quarantine, "_finish", die)
        with pytest.raises(DeathError):
            apply_recovery(plan_recovery(store, RecoveryMode.SKIP_DAMAGED), arguments=())
    before = Tree.read(store)
    seen = verify(store)
    (found,) = seen.only("finding")
    assert (seen.status, found["code"], found["remedy"]) == (3, "repair-interrupted", f"waltzctl undo {store}")
    (status,) = invoke("pages", "status", store, "--format", "ndjson").only("page-store-status")
    assert [one["code"] for one in status["findings"]] == ["repair-interrupted"]
    words = ("pages", "recover", store, "--mode", "skip-damaged")
    (plan,) = invoke(*words, "--dry-run", "--format", "ndjson").only("plan")
    assert [step["action"] for step in plan["steps"]] == ["roll-back"]
    assert Tree.read(store).differences(before) == []
    answer = invoke(*words, "--yes", "--format", "ndjson")
    assert (answer.status, "taken back" in answer.err) == (0, True)
    assert verify(store).only("finding") == []


class DeathError(BaseException):
    pass


def die(*_: object) -> None:
    raise DeathError
