"""The page of a pipeline's tables: what is in it, and that words from outside stay words."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import invoke
from waltzctl.engine.pipeline import running
from waltzctl.engine.pipeline.completeness import gaps
from waltzctl.engine.pipeline.project_creation import create_project
from waltzctl.engine.pipeline.running import RunReport
from waltzctl.render.pipeline_html import page

EVIL = '/data/<script>"&'


def complete(node: str, partition: int, present: int, **less: int) -> dict[str, Any]:
    counts = {"missing": 0, "damaged": 0, "behind": 0, **less}
    last = 99 - counts["behind"]
    usual = {"partition": partition, "expected": 100, "present": present, "mark": 90, "last_transaction_id": last}
    return {"node": node, **usual, **counts}


def active(node: str, dimension: str, value: str, first: int, records: int, **more: Any) -> dict[str, Any]:
    return {
        "node": node, "partition": 0, "dimension": dimension, "value": value, "records": records, "bytes": records * 120,
        "data_bytes": records * 80, "first_transaction_id": first, "last_transaction_id": first + records - 1,
        "seconds": None, "records_per_second": None, "bytes_per_second": None, **more,
    }  # fmt: skip


def reported(tmp_path: Path) -> RunReport:
    rows = (complete(EVIL, 0, 89, damaged=1, behind=10), complete("/b", 0, 100), complete("/b", 1, 100))
    quarantine = [
        {
            "node": EVIL, "partition": 0, "transaction_id": 7, "finding": "record-checksum", "missing": 1, "remedy": "<b>do</b>",
        }
    ]  # fmt: skip
    activity = (
        active(EVIL, "segment", "0", 0, 50, records_per_second=12.5), active(EVIL, "segment", "50", 50, 40),
        active("/b", "client", "3", 0, 60), active(EVIL, "client", "3", 0, 89), active("/b", "client", "4", 0, 40),
        active("/b", "header", "0", 0, 100),
    )  # fmt: skip
    return RunReport(tmp_path, (), tuple(gaps(rows, quarantine)), 1.0, rows, activity)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)
        if tag not in ("meta", "path", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "rect"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_says_what_the_tables_say(tmp_path: Path) -> None:
    text = "".join(page(reported(tmp_path), "lake"))
    found = Page(text)
    assert found.open == []
    assert "script" not in found.names
    assert "b" not in found.names
    said = "".join(found.words)
    for words in (EVIL, "<b>do</b>", "damaged: 7 to 7", "behind", "12.5 records/s", "repairable", "Clients", "Headers"):
        assert words in said, words
    assert text.count('class="gap"') == 1, "what is behind is not among the ids that the replica has"
    assert "89" in found.words[found.words.index("Clients") :], "of the replica that has most of them"


def test_a_page_without_anything(tmp_path: Path) -> None:
    found = Page("".join(page(RunReport(tmp_path, (), (), 1.0), "lake")))
    assert found.open == []
    assert "Every replica has everything." in "".join(found.words)


def test_run_writes_the_page_and_fails_by_gaps_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_project(tmp_path / "lake", ["/n"])
    asked: list[running.RunOptions] = []

    def run(_project: object, options: running.RunOptions, _say: object) -> RunReport:
        asked.append(options)
        return reported(tmp_path / "lake")

    monkeypatch.setattr(running, "run_pipeline", run)
    answer = invoke("pipeline", "run", tmp_path / "lake", "--html", tmp_path / "page.html")
    assert answer.status == 0, answer.err
    assert asked[-1].look
    assert "damaged: 7 to 7" in (tmp_path / "page.html").read_text()
    answer = invoke("pipeline", "run", tmp_path / "lake", "--html", tmp_path / "page.html", "--require", "complete")
    assert answer.status == 3
    assert invoke("pipeline", "run", tmp_path / "lake", "--html", "x", "--dry-run").status == 2
