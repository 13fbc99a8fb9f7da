"""stats on the command line: every format, the page, hostile names, and the exit status."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.builders import CREATED, build_directory, digest
from tests.cli.damage import damage_record, index_of, segment_of, tear_tail
from tests.cli.running import Answer, invoke, on_terminal, run
from tests.inspect.helpers import age
from tests.stats.support import set_times

HOUR = 3_600_000
KINDS = [
    "stats-partition", "stats-size-class", "stats-client", "stats-header", "stats-bucket", "stats-summary",
]  # fmt: skip


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    path = age(build_directory(tmp_path / "storage", {0: 200, 2: 60}))
    set_times(path, 0, [CREATED + n * HOUR for n in range(4)], CREATED + 5 * HOUR)
    set_times(path, 2, [CREATED + n * HOUR for n in range(2)], CREATED + 2 * HOUR)
    return path


@pytest.fixture
def damaged(storage: Path) -> Path:
    damage_record(segment_of(storage), 7)
    segment_of(storage, 0, 100).unlink()
    index_of(storage, 0, 100).unlink()
    return age(storage)


def test_objects_come_in_a_fixed_order_and_agree(storage: Path) -> None:
    answer = invoke("stats", storage, "--format", "ndjson")
    assert answer.status == 0
    kinds = list(dict.fromkeys(one["type"] for one in answer.objects))
    assert kinds == KINDS
    (summary,) = answer.only("stats-summary")
    partitions = answer.only("stats-partition")
    assert [one["partition"] for one in partitions] == [0, 2]
    assert summary["records"] == sum(one["records"] for one in partitions) == 260
    assert summary["bytes"] == sum(one["bytes"] for one in partitions)
    assert (summary["from"], summary["modified"]) == ("2023-11-14T22:13:20.123Z", False)
    for axis, by in (("time", "partition"), ("time", "size-class"), ("transaction", "partition")):
        buckets = [one for one in answer.only("stats-bucket") if (one["axis"], one["by"]) == (axis, by)]
        assert sum(one["records"] for one in buckets) == 260
        assert sum(one["bytes"] for one in buckets) == summary["bytes"]
    assert json.loads(invoke("stats", storage, "--format", "json").out)[:-1] == answer.objects[:-1]


def test_damage_is_listed_and_tells_in_the_exit_status_as_in_dump(damaged: Path) -> None:
    answer = invoke("stats", damaged, "--format", "ndjson")
    dumped = invoke("dump", damaged, "--format", "ndjson")
    assert answer.status == dumped.status == 4
    assert answer.only("finding") == dumped.only("finding")
    assert [(one["first_transaction_id"], one["last_transaction_id"], one["transactions"], one["cause"])
            for one in answer.only("stats-gap")] == [(7, 7, 1, "record-checksum"), (100, 149, 50, "segment-gap")]  # fmt: skip
    (summary,) = answer.only("stats-summary")
    assert (summary["status"], summary["exit_status"], summary["missing"], summary["gaps"]) == ("damaged", 4, 51, 2)
    assert summary["records"] == len(dumped.only("record")) == 260 - 51


def test_the_conclusion_begins_with_the_word_that_verify_and_status_have(damaged: Path) -> None:
    words = {invoke(command, damaged).out.splitlines()[-1].split("  ")[0] for command in ("stats", "verify", "status")}
    assert words == {"# FAILED"}


def test_a_torn_tail_is_repairable(storage: Path) -> None:
    tear_tail(segment_of(storage, 2, 50))
    assert invoke("stats", age(storage), "--format", "ndjson").status == 3


def test_nothing_is_changed(storage: Path, tmp_path: Path) -> None:
    before = digest(storage)
    times = {path: path.stat().st_mtime_ns for path in storage.rglob("*")}
    for form in ("table", "plain", "json", "ndjson"):
        assert invoke("stats", storage, "--format", form, "--html", tmp_path / "page.html").status == 0
    assert digest(storage) == before
    assert {path: path.stat().st_mtime_ns for path in storage.rglob("*")} == times


def test_table_off_a_terminal_is_ascii(storage: Path) -> None:
    answer = run("stats", storage, "--format", "table")
    assert answer.status == 0
    assert answer.out.isascii()
    assert "\x1b" not in answer.out
    for part in ("Transactions over time", "Bytes over time", "by transaction id", "Sizes of data", "Clients: the first 10",
                 "Header values", "(estimated)", "(exact)", "####"):  # fmt: skip
        assert part in answer.out
    assert answer.out.splitlines()[-1].startswith("OK  260 records")
    assert answer.out.endswith("Nothing was modified.\n")


@pytest.mark.parametrize("columns", [60, 80, 132])
def test_on_a_terminal_there_are_blocks_and_no_line_is_too_long(damaged: Path, columns: int) -> None:
    answer = on_terminal("stats", damaged, columns=columns)
    assert answer.status == 4
    assert "█" in answer.out
    assert "\x1b[1m" in answer.out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", answer.out)
    after = plain[plain.index("Transactions over time") : plain.index("Gaps:")]
    assert max(len(line) for line in after.splitlines()) <= max(columns, 70)
    assert "Gaps: 2 gaps, 51 transactions missing" in plain
    assert "segment-gap" in plain


def test_replicas_of_one_partition_are_told_apart_by_the_ends_of_their_paths(tmp_path: Path) -> None:
    place = tmp_path / ("long" * 20)
    place.mkdir()
    storages = [age(build_directory(place / name, {0: 50})) for name in ("one", "two")]
    for storage in storages:
        set_times(storage, 0, [CREATED], CREATED + HOUR)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal("stats", *storages, columns=80).out)
    series = plain[plain.index("Transactions over time") : plain.index("Sizes of data")].splitlines()
    assert max(map(len, series)) <= 80
    for name in ("one/0", "two/0"):
        assert [line for line in series if line.startswith("..") and name in line]


def test_no_colour_and_dumb_terminals_are_respected(storage: Path) -> None:
    assert "\x1b" not in on_terminal("stats", storage, NO_COLOR="1").out
    dumb = on_terminal("stats", storage, TERM="dumb").out
    assert dumb.isascii()
    assert "\x1b" not in dumb


def test_plain_is_tabs_and_quiet_leaves_the_sentence_out(storage: Path) -> None:
    answer = invoke("stats", storage)
    lines = answer.out.splitlines()
    assert lines[0].startswith("# stats-partition\tpath\tpartition\tsegments\trecords")
    assert lines[-1].startswith("# OK  260 records")
    assert not [line for line in invoke("stats", storage, "-q").out.splitlines() if line.startswith("# OK")]


def test_top_bucket_and_partition(storage: Path) -> None:
    answer = invoke("stats", storage, "--format", "ndjson", "--top", 3, "--bucket", "2h", "--partition", "0")
    assert len(answer.only("stats-client")) == 3
    assert len({one["client"] for one in answer.only("stats-bucket") if one["by"] == "client"}) == 3
    (summary,) = answer.only("stats-summary")
    assert (summary["bucket_seconds"], summary["records"], summary["partitions"]) == (7200, 200, 1)
    assert invoke("stats", storage, "--bucket", "auto").status == 0


def test_without_a_time_the_reason_is_said(storage: Path) -> None:
    set_times(storage, 2, [CREATED + HOUR, CREATED], CREATED + 2 * HOUR)
    answer = invoke("stats", storage, "--format", "ndjson")
    assert answer.status == 0
    assert [one["segment"] for one in answer.only("stats-untimed")] == [0, 50]
    assert "next segment was created before that" in answer.only("stats-untimed")[0]["reason"]
    assert "Without a time: 60 records in 2 segments" in invoke("stats", storage, "--format", "table").out


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--top", "0"], 2),
        (["--top", "many"], 2),
        (["--bucket", "often"], 2),
        (["--bucket", "0s"], 2),
        (["--partition", "9"], 2),
        (["--engine", "local", "--master", "local[1]"], 2),
        (["--html", ""], 2),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(storage: Path, words: list[str], status: int) -> None:
    assert invoke("stats", storage, *words).status == status


def test_what_is_no_storage_is_refused(tmp_path: Path) -> None:
    assert invoke("stats", tmp_path).status == 10
    assert invoke("stats", tmp_path / "missing").status == 10
    assert invoke("stats", "waltz://127.0.0.1:55281").status == 2


VOID = {"meta", "link", "br", "img", "input", "hr", "base", "embed", "source"}


class Page(HTMLParser):
    """Checks that elements nest and are closed, and keeps what was seen."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute twice: {tag} {attrs}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    def count(self, tag: str) -> int:
        return sum(one == tag for one, _ in self.tags)

    @property
    def words(self) -> str:
        return " ".join(self.text)


def paged(tmp_path: Path, *words: object) -> tuple[Answer, str, Page]:
    target = tmp_path / "page.html"
    answer = invoke("stats", *words, "--html", target, "--format", "ndjson")
    text = target.read_text("utf-8")
    return answer, text, Page(text)


def test_the_page_is_well_formed_and_stands_alone(damaged: Path, tmp_path: Path) -> None:
    answer, text, page = paged(tmp_path, damaged)
    assert answer.status == 4
    assert "page.html: written" in answer.err
    assert text.startswith("<!doctype html>\n")
    assert not re.search(r"https?:|//[a-z]|url\(|@import|javascript:", text, re.I)
    assert {"script", "link", "img", "iframe", "object", "embed", "base", "form"}.isdisjoint(
        tag for tag, _ in page.tags
    )
    assert {"src", "href", "style", "onload", "onclick"}.isdisjoint(name for _, own in page.tags for name in own)
    policy = next(own for tag, own in page.tags if tag == "meta" and own.get("http-equiv"))
    assert (policy["content"] or "").startswith("default-src 'none'")
    assert "prefers-color-scheme:dark" in text
    assert ("html", {"lang": "en"}) in page.tags
    ids = [own["id"] for _, own in page.tags if "id" in own]
    assert len(ids) == len(set(ids))
    assert page.words.count("segment-gap") >= 2


def test_whoever_cannot_see_the_plots_has_titles_and_tables(damaged: Path, tmp_path: Path) -> None:
    _, _, page = paged(tmp_path, damaged)
    ids = {own.get("id") for _, own in page.tags}
    pictures = [own for tag, own in page.tags if tag == "svg"]
    assert len(pictures) > 20
    for own in pictures:
        assert own.get("role") == "img"
        named = own.get("aria-labelledby")
        assert own.get("aria-label") or (named and set(named.split()) <= ids)
    assert page.count("table") >= 7
    assert page.count("details") >= 1
    for tag, own in page.tags:
        assert tag != "th" or own.get("scope") == "col"


def test_the_page_shows_what_the_objects_say(damaged: Path, tmp_path: Path) -> None:
    answer, _, page = paged(tmp_path, damaged)
    (summary,) = answer.only("stats-summary")
    assert f"{summary['records']:,}" in page.text
    for client in answer.only("stats-client"):
        assert str(client["client"]) in page.text
    gaps = [own for tag, own in page.tags if tag == "rect" and own.get("class") == "gap"]
    assert len(gaps) == len(answer.only("stats-gap")) == 2
    assert "transactions 100 to 149 missing: segment-gap" in page.words
    assert "Estimated." in page.words
    assert "Exact." in page.words


HOSTILE = "<script>alert(1)</script>&\"'\x1b[31m\n"


def test_hostile_names_are_escaped_everywhere(tmp_path: Path) -> None:
    place = tmp_path / HOSTILE.replace("/", "\u2215")
    place.mkdir()
    storage = build_directory(place / "storage", {0: 60})
    damage_record(segment_of(storage), 3)
    set_times(storage, 0, [CREATED, CREATED - HOUR], CREATED + HOUR)
    answer, text, page = paged(tmp_path, storage)
    assert answer.status == 4
    assert "<script" not in text
    assert page.count("script") == 0
    assert "\x1b" not in text
    assert "\\x1b[31m\\n" in page.words
    assert "<script>alert(1)" in page.words
    table = run("stats", storage, "--format", "table")
    assert "\x1b" not in table.out
    assert "\x1b" not in run("stats", storage).out


def test_a_name_that_is_no_utf8_is_shown_escaped(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(place)
    storage = build_directory(Path(os.fsdecode(place)) / "s", {0: 10})
    answer = run("stats", storage, "--html", tmp_path / "page.html")
    assert answer.status == 0
    assert "\\xff\\xfe" in (tmp_path / "page.html").read_text("utf-8")


def test_an_empty_storage_has_a_page_as_well(tmp_path: Path) -> None:
    answer, _, page = paged(tmp_path, build_directory(tmp_path / "s", {0: 0}))
    assert answer.status == 0
    assert "Waltz statistics" in page.words
    assert invoke("stats", tmp_path / "s", "--format", "table").status == 0


@pytest.mark.turns(10)
def test_many_partitions_are_all_in_the_tables(tmp_path: Path) -> None:
    storage = age(build_directory(tmp_path / "s", dict.fromkeys(range(60), 3)))
    _, _, page = paged(tmp_path, storage)
    assert "59" in page.text
    assert "The 48 partitions with most records" in page.words
    assert "and 28 more partitions" in invoke("stats", storage, "--format", "table").out


def test_the_page_is_written_whole_and_never_into_what_is_counted(storage: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("before")
    assert invoke("stats", storage, "--html", target).status == 0
    assert target.read_text().endswith("</html>\n")
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith("page") or one.name.startswith(".")] == [
        "page.html"
    ]
    before = digest(storage)
    assert invoke("stats", storage, "--html", storage / "page.html").status == 13
    assert invoke("stats", segment_of(storage), "--html", segment_of(storage)).status == 13
    assert invoke("stats", storage / "0", "--html", storage / "page.html").status == 13
    assert invoke("stats", storage, "--html", tmp_path / "missing" / "page.html").status == 14
    assert digest(storage) == before


def test_progress_is_told_on_stderr_only(storage: Path) -> None:
    answer = invoke("stats", storage, "-v", "--format", "ndjson")
    assert "waltzctl: stats:" in answer.err
    assert answer.objects
