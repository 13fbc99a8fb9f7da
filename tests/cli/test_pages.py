"""pages: exit statuses, what is shown to people, and that the commands that a finding names mend it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.running import Answer, invoke
from tests.crash.simdisk import Tree
from tests.pages.stores import crash
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_storage import PageStorage


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
    assert "salvage what is whole into a new directory" in refused.err
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
