"""dump on the command line: what is shown for which path, the forms of data, -o, and the exit status."""

from __future__ import annotations

import base64
import gc
import io
import json
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

from tests.builders import build_directory, digest, make_records
from tests.cli.damage import damage_record, index_of, records_of, segment_of
from tests.cli.running import invoke, on_full_disk, on_terminal, run
from waltzctl import lossless_json
from waltzctl.console import Writer
from waltzctl.formats.control import Layout
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import Record
from waltzctl.options import DataForm
from waltzctl.render import dumped
from waltzctl.render.ndjson import NdjsonWriter
from waltzctl.render.plain import PlainWriter

TEXTS = (b"plain", "h\u00e9llo\n".encode(), b"\xff\x00", b'{"a": [1.5, null]}', b"[1e999]", b"NaN", b"")


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 60, 2: 5})


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    records = [Record.make(number, RequestId(1, 2, 0, number), -number, data) for number, data in enumerate(TEXTS)]
    return build_directory(tmp_path / "texts", {0: [records]})


def test_a_record_has_every_key_of_the_contract(storage: Path) -> None:
    shown = invoke("dump", segment_of(storage), "--format", "ndjson").objects
    for found, (offset, record) in zip(shown, records_of(segment_of(storage)), strict=True):
        request = record.request_id
        assert found == {
            "schema": "waltzctl.record/1", "type": "record", "partition": 0, "segment": 0,
            "transaction_id": record.transaction_id, "offset": offset, "size": record.size,
            "request_id": {"client": request.client, "generation": request.generation, "partition": request.partition,
                           "sequence": request.sequence},
            "header": record.header, "data_length": len(record.data), "data_checksum": f"{record.data_checksum:08x}",
            "record_checksum": f"{record.record_checksum:08x}", "data_b64": base64.b64encode(record.data).decode(),
        }  # fmt: skip


def ids(*arguments: object) -> list[tuple[int, int]]:
    return [
        (one["partition"], one["transaction_id"])
        for one in invoke("dump", *arguments, "--format", "ndjson").only("record")
    ]


def test_range_limit_and_reverse(storage: Path) -> None:
    assert ids(storage, "--from", 48, "--to", 51) == [(0, 48), (0, 49), (0, 50), (0, 51)]
    assert ids(storage, "--partition", "2", "--reverse", "--limit", 2) == [(2, 4), (2, 3)]
    assert ids(storage, "--limit", 0) == []
    assert len(ids(storage)) == 65
    assert ids(storage / "2") == [(2, number) for number in range(5)]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("waltz-storage.ctl", {"control", "partition-info"}),
        ("0/0000000000000000000.idx", {"index-entry"}),
        ("0/0000000000000000000.seg", {"record"}),
        ("0", {"record"}),
        ("", {"record"}),
    ],
)
def test_what_is_shown_depends_on_the_path(storage: Path, name: str, kinds: set[str]) -> None:
    assert {one["type"] for one in invoke("dump", storage / name, "--format", "ndjson").objects} == kinds


def test_what_can_be_chosen(storage: Path) -> None:
    for what, kinds in (
        ("segments", {"segment"}),
        ("index", {"index-entry"}),
        ("control", {"control", "partition-info"}),
    ):
        assert {one["type"] for one in invoke("dump", storage, "--what", what, "--format", "ndjson").objects} == kinds


@pytest.mark.parametrize("layout", list(Layout))
def test_the_control_file(tmp_path: Path, layout: Layout) -> None:
    storage = build_directory(tmp_path / "s", {0: 5}, num_partitions=3, layout=layout)
    control, *infos = invoke("dump", storage, "--what", "control", "--format", "ndjson").objects
    assert (control["layout"], control["num_partitions"], control["size"]) == (layout.value, 3, layout.file_size(3))
    assert control["created"] == "2023-11-14T22:13:20.123Z"
    assert [info["partition"] for info in infos] == [0, 1, 2]
    struct = infos[0]["structs"][infos[0]["current"] - 1]
    assert (struct["session_id"], struct["low_water_mark"], struct["valid"]) == (3, 2, True)
    assert (struct["flags"] is None) == (layout is Layout.DOCUMENTED)
    assert struct["assigned"] is (None if layout is Layout.DOCUMENTED else True)


def test_segments(storage: Path) -> None:
    index_of(storage, 2).unlink()
    answer = invoke("dump", storage, "--what", "segments", "--format", "ndjson")
    shown = [
        (one["partition"], one["segment"], one["last_transaction_id"], one["records"], one["index"])
        for one in answer.only("segment")
    ]
    assert shown == [(0, 0, 49, 50, "ok"), (0, 50, 59, 10, "ok"), (2, 0, 4, 5, "missing")]
    assert answer.status == 3


def test_index_entries_are_the_records_offsets(storage: Path) -> None:
    shown = invoke(
        "dump", storage, "--what", "index", "--partition", "2", "--from", 1, "--to", 3, "--format", "ndjson"
    ).objects
    expected = [(record.transaction_id, offset) for offset, record in records_of(segment_of(storage, 2))[1:4]]
    assert [(one["transaction_id"], one["offset"]) for one in shown] == expected


def data_of(texts: Path, form: str) -> list[dict[str, object]]:
    shown = invoke("dump", texts, "--data", form, "--format", "ndjson").objects
    return [{key: value for key, value in one.items() if key.startswith("data") and key not in ("data_length", "data_checksum")}
            for one in shown]  # fmt: skip


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_the_forms_of_data(texts: Path) -> None:
    assert data_of(texts, "base64") == [{"data_b64": in_base64(data)} for data in TEXTS]
    assert data_of(texts, "hex") == [{"data_hex": data.hex()} for data in TEXTS]
    assert data_of(texts, "none") == [{} for _ in TEXTS]
    assert data_of(texts, "utf8") == [
        {"data": None, "data_b64": in_base64(data)} if data == b"\xff\x00" else {"data": data.decode()}
        for data in TEXTS
    ]
    assert data_of(texts, "json") == [
        {"data": {"a": [1.5, None]}} if data.startswith(b"{") else {"data": None, "data_b64": in_base64(data)}
        for data in TEXTS
    ]


JSON = ("{}", "[]", "null", "true", "1.5", '{"a":[null,true,{"b":"ä"}]}', '[1,[2,3],"a,b"]', '[[1,2],[3],"a","b"]')


def test_json_is_json_for_cut_and_for_people(tmp_path: Path) -> None:
    """Told apart are null, an empty list, what is no JSON, and lists that differ in their depth."""
    rows = [
        Record.make(n, RequestId(1, 2, 0, n), 0, one.encode()) for n, one in enumerate([*JSON, '"text"', "no JSON"])
    ]
    storage = build_directory(tmp_path / "s", {0: [rows]})
    plain = invoke("dump", storage, "--data", "json", "--format", "plain").out.splitlines()
    place = plain[0].lstrip("# ").split("\t").index("data")
    found = [line.split("\t")[place] for line in plain if line.startswith("record")]
    assert found == [*JSON, "text", "-"]
    table = run("dump", storage, "--data", "json", "--format", "table", COLUMNS="200").out
    for number, one in enumerate(JSON):
        line = next(line for line in table.splitlines() if f"1.2.0.{number} " in line)
        assert line.rstrip().endswith(f" {one}")


@pytest.mark.turns(10)
@pytest.mark.parametrize("form", ["plain", "table", "json", "ndjson"])
@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("1.50", "1.5"),
        ("1e2", "100.0"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("0.1", "0.1"),
        ("0.10000000000000001", "0.10000000000000001"),
        ("12345678901234567.25", "12345678901234567.25"),
        ("9007199254740993.0", "9007199254740993.0"),
        ("1e-400", "1e-400"),
        ("[-0,0,-1,-0.0]", "[-0,0,-1,-0.0]"),
        ("1e-99999999999999999999", "1e-99999999999999999999"),
        ("12345678901234567890123", "12345678901234567890123"),
        ('{"a":[0.10000000000000001,1.5],"b":"ä"}', '{"a":[0.10000000000000001,1.5],"b":"ä"}'),
    ],
)
def test_a_number_is_shown_with_all_of_its_digits(tmp_path: Path, form: str, data: str, shown: str) -> None:
    """A float is written as Python writes it; what no float holds, as it stands in the record."""
    rows = [Record.make(0, RequestId(1, 2, 0, 0), 0, data.encode())]
    storage = build_directory(tmp_path / "s", {0: [rows]})
    out = run("dump", storage, "--data", "json", "--format", form, COLUMNS="200").out
    if "json" in form:
        assert f'"data":{shown.replace("ä", chr(92) + "u00e4")}' in out
    else:
        assert any(line.rstrip().endswith((f" {shown}", f"\t{shown}")) for line in out.splitlines())


@pytest.mark.parametrize("data", [b"[1e400]", b'{"a":1,"b":2,"a":3}', b'[{"a":{"":1,"":1}}]'])
def test_json_of_which_something_would_be_lost_is_shown_as_bytes(tmp_path: Path, data: bytes) -> None:
    """A number that is read as infinite, a key that stands twice."""
    storage = build_directory(tmp_path / "s", {0: [[Record.make(0, RequestId(1, 2, 0, 0), 0, data)]]})
    assert data_of(storage, "json") == [{"data": None, "data_b64": in_base64(data)}]


@pytest.mark.parametrize("form", ["plain", "table", "json", "ndjson"])
def test_json_is_shown_as_such_up_to_a_depth_that_can_be_written(tmp_path: Path, form: str) -> None:
    depths = (1, 499, 500, 501, 900, 940, 964, 966, 990, 2000)
    data = ["[" * depth + "]" * depth for depth in depths] + ['{"a":' * 501 + "1" + "}" * 501, '["' + "[" * 3000 + '"]']
    rows = [Record.make(n, RequestId(1, 2, 0, n), 0, one.encode()) for n, one in enumerate(data)]
    storage = build_directory(tmp_path / "s", {0: [rows]})
    answer = invoke("dump", storage, "--data", "json", "--format", form)
    assert (answer.status, answer.err) == (0, answer.err)
    if form == "ndjson":
        assert ["data_b64" not in one for one in answer.objects] == [True] * 3 + [False] * 8 + [True]


def test_the_bytes_of_an_index_entry_are_those_of_its_place_whatever_the_file_is_called(storage: Path) -> None:
    for suffix in (".seg", ".idx"):
        (storage / "2" / f"{0:019d}{suffix}").rename(storage / "2" / f"{5000:019d}{suffix}")
    places = [
        one["offset"]
        for one in invoke("dump", storage / "2", "--what", "index", "--format", "ndjson").only("index-entry")
    ]
    shown = invoke("dump", storage / "2", "--what", "index", "--format", "hexdump").out
    for number, offset in enumerate(places):
        entry = offset.to_bytes(8).hex(" ")
        assert f"{128 + 8 * number:08x}  {entry}  transaction {number}" in shown, shown


def test_what_was_dumped_can_be_appended_elsewhere(texts: Path, tmp_path: Path) -> None:
    other = build_directory(tmp_path / "other", {0: 0})
    for form in ("base64", "hex"):
        dumped = invoke("dump", texts, "--format", "ndjson", "--data", form).out
        assert invoke("append", other, "--partition", 0, "--input-format", "ndjson", given=dumped).status == 0
    copies = [record for _, record in records_of(segment_of(other))]
    assert [record.data for record in copies] == [*TEXTS, *TEXTS]
    assert [record.header for record in copies[: len(TEXTS)]] == [-number for number in range(len(TEXTS))]


def test_damage_stands_in_its_place_and_ends_nothing(storage: Path) -> None:
    damage_record(segment_of(storage), 10)
    answer = invoke("dump", segment_of(storage), "--format", "ndjson")
    assert answer.status == 4
    order = [one.get("code", one["transaction_id"]) for one in answer.objects]
    assert order == [*range(10), "record-checksum", *range(11, 50)]


def test_json_is_an_array(storage: Path) -> None:
    assert len(json.loads(invoke("dump", storage, "--format", "json").out)) == 65
    assert invoke("dump", storage, "--format", "json", "--limit", 0).out == "[]\n"


def test_plain_is_never_shortened(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: [make_records(3, size=5000)]})
    lines = run("dump", storage).out.splitlines()
    assert lines[0].startswith("# record\tpartition\tsegment\ttransaction_id\t")
    for line, (_, record) in zip(lines[1:4], records_of(segment_of(storage)), strict=True):
        assert line.split("\t")[-1] == in_base64(record.data)
    assert lines[4] == "# 3 records. Nothing was modified."


def test_a_table_shortens_data_to_the_terminal(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: [make_records(3, size=5000)]})
    answer = on_terminal("dump", storage, columns=140)
    assert answer.status == 0
    assert max(len(line) for line in answer.out.splitlines()) <= 140
    assert "…" in answer.out
    full = run("dump", storage, "--format", "table", "--data", "hex").out
    assert records_of(segment_of(storage))[0][1].data.hex() in full


def test_raw_is_the_data_and_nothing_else(texts: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    answer = run("dump", texts, "--format", "raw", "-o", target)
    assert (answer.status, answer.out) == (0, "")
    assert target.read_bytes() == b"".join(TEXTS)
    assert run("dump", texts, "--format", "raw", "--from", 0, "--to", 0).out == "plain"


def test_hexdump_shows_every_byte_with_the_names_of_fields(storage: Path) -> None:
    for path in (segment_of(storage, 2), storage / "waltz-storage.ctl"):
        lines = invoke("dump", path, "--format", "hexdump").out.splitlines()
        shown = {}
        for line in lines:
            head, _, rest = line.partition("  ")
            if len(head) == 8 and all(digit in "0123456789abcdef" for digit in head):
                for place, pair in enumerate(rest[:47].split("  ")[0].split()):
                    shown[int(head, 16) + place] = int(pair, 16)
        content = path.read_bytes()
        zeros = {place for place in range(len(content)) if content[place] == 0}
        wanted = set(range(128, len(content))) if path.suffix == ".seg" else set(range(len(content))) - zeros
        assert {place: content[place] for place in wanted} == {place: shown[place] for place in wanted}
    text = "\n".join(lines)
    for name in ("cluster_key", "num_partitions", "struct1.session_id", "struct2.checksum"):
        assert f"  {name} " in text


def test_hexdump_of_damage_shows_its_bytes(storage: Path) -> None:
    damage_record(segment_of(storage), 3)
    offset, _ = records_of(segment_of(storage))[3]
    answer = invoke("dump", segment_of(storage), "--format", "hexdump", "--to", 5)
    assert answer.status == 4
    assert "!! damage record-checksum: " in answer.out
    assert f"\n{offset:08x}  " in answer.out


def test_hexdump_of_headers_and_index(storage: Path) -> None:
    segments = invoke("dump", storage / "2", "--what", "segments", "--format", "hexdump").out
    assert segments.count("first_transaction_id") == 2
    entries = invoke("dump", index_of(storage, 2), "--format", "hexdump").out
    assert "transaction 0                at offset 128" in entries


def test_output_appears_whole_and_beside_what_is_inspected_only(storage: Path, tmp_path: Path) -> None:
    before = digest(storage)
    target = tmp_path / "out.ndjson"
    target.write_text("old")
    answer = invoke("dump", storage, "--format", "ndjson", "-o", target)
    assert (answer.status, answer.out) == (0, "")
    assert "65 records" in answer.err
    assert len(target.read_text().splitlines()) == 65
    (tmp_path / "link").symlink_to(storage)
    for inside in (storage / "out", storage / "0" / "out", tmp_path / "link" / "out", storage / "waltz-storage.ctl",
                   storage / "0" / ".." / "out"):  # fmt: skip
        assert invoke("dump", storage / "0", "-o", inside).status == 13
    assert digest(storage) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out.ndjson", "storage"]


def test_output_that_cannot_be_written_leaves_nothing(storage: Path, tmp_path: Path) -> None:
    answer = invoke("dump", storage, "-o", tmp_path / "missing" / "out")
    assert answer.status == 14
    assert "cannot create" in answer.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--from", "-1"],
        ["--from", "5", "--to", "4"],
        ["--limit", "-1"],
        ["--what", "segments", "--from", "1"],
        ["--what", "control", "--reverse"],
        ["--what", "index", "--data", "hex"],
        ["--what", "index", "--format", "raw"],
        ["--format", "raw", "--data", "none"],
        ["--format", "hexdump", "--data", "hex"],
        ["--what", "control", "--partition", "9"],
        ["--data", "xml"],
        ["--what", "everything"],
        ["--partition", "9"],
        ["--from", "9" * 30],
    ],
)
def test_nonsense_is_a_usage_error(storage: Path, arguments: list[str]) -> None:
    answer = invoke("dump", storage, *arguments)
    assert (answer.status, answer.out) == (2, "")


@pytest.mark.parametrize("what", ["records", "segments", "index"])
@pytest.mark.parametrize("more", [[], ["--partition", "0"], ["--format", "hexdump"]])
def test_a_control_file_is_not_said_to_hold_no_records(storage: Path, what: str, more: list[str]) -> None:
    answer = invoke("dump", storage / "waltz-storage.ctl", "--what", what, *more)
    assert (answer.status, answer.out) == (2, "")
    assert "name the storage directory" in answer.err


def test_what_is_not_waltz(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    for path in (tmp_path / "x.txt", tmp_path / "none", tmp_path):
        assert invoke("dump", path).status == 10


def test_a_directory_without_write_permission_is_shown_and_left_as_it_is(storage: Path) -> None:
    times = {path: os.stat(path).st_mtime_ns for path in storage.rglob("*")}
    before = digest(storage)
    for what in ("records", "segments", "index", "control"):
        for form in ("table", "plain", "json", "ndjson", "hexdump"):
            assert invoke("dump", storage, "--what", what, "--format", form).status == 0
    assert digest(storage) == before
    assert {path: os.stat(path).st_mtime_ns for path in storage.rglob("*")} == times


@pytest.mark.parametrize("form", ["ndjson", "json", "plain", "table"])
def test_long_data_is_shown_as_short_data_is(texts: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    for data in ("base64", "hex", "utf8", "json"):
        short = invoke("dump", texts, "--format", form, "--data", data).out
        with monkeypatch.context() as patch:
            patch.setattr(dumped, "_LONG", 1)
            patch.setattr(lossless_json, "_LONG_PIECE", 3)
            assert invoke("dump", texts, "--format", form, "--data", data).out == short


@pytest.mark.parametrize("form", [DataForm.BASE64, DataForm.HEX])
def test_the_text_of_long_data_is_never_there_as_a_whole(monkeypatch: pytest.MonkeyPatch, form: DataForm) -> None:
    """A record of 100 MiB took seven times that: its text, the line, the line with its end, and those in bytes."""
    monkeypatch.setattr(dumped, "_LONG", 1000)
    monkeypatch.setattr(lossless_json, "_LONG_PIECE", 30)
    written: list[str] = []
    stream: Any = SimpleNamespace(write=written.append)
    NdjsonWriter(stream).write(
        {"a": lossless_json.ExactNumber("1.50"), **dumped.data_keys(b"\xff" * 1000, form), "z": 1}
    )
    assert max(map(len, written)) <= 60
    of_data = (
        {"data_hex": "ff" * 1000} if form is DataForm.HEX else {"data_b64": base64.b64encode(b"\xff" * 1000).decode()}
    )
    assert (
        "".join(written)
        == json.dumps({"a": 1, **of_data, "z": 1}, separators=(",", ":")).replace("1,", "1.50,", 1) + "\n"
    )


@pytest.mark.parametrize("form", [DataForm.BASE64, DataForm.HEX, DataForm.UTF8])
@pytest.mark.parametrize("writer", [PlainWriter, NdjsonWriter])
def test_no_form_of_long_data_is_written_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, writer: Any, form: DataForm
) -> None:
    """As UTF-8, or in plain lines, a record of 100 MiB took up to 2.4 GiB."""
    monkeypatch.setattr(lossless_json, "_LONG_PIECE", 30)
    written: list[str] = []
    stream: Any = SimpleNamespace(write=written.append)
    data = ("a\t\u20ac\U0001f600" * 100).encode()

    def lines(long: int) -> str:
        monkeypatch.setattr(dumped, "_LONG", long)
        written.clear()
        writer(stream).write({"type": "t", **dumped.data_keys(data, form), "z": "\x07"})
        return "".join(written)

    assert lines(1000000) == lines(1)
    assert max(map(len, written)) <= 100


@pytest.mark.parametrize("writer", [PlainWriter, NdjsonWriter])
def test_what_was_written_is_not_kept_until_python_looks_for_cycles(writer: Callable[[TextIO], Writer]) -> None:
    """Records may be long, and many come before it looks."""

    class Text(str):
        pass

    given = Text("6162")
    kept = weakref.ref(given)
    shown = {"schema": "s", "type": "record", "request_id": {"client": 1}, "parts": [{"at": 1}], "data_hex": given}
    gc.disable()
    try:
        writer(io.StringIO()).write(shown)
        del given, shown
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("form", ["raw", "hexdump", "plain"])
def test_a_full_disk_behind_standard_output_is_named(storage: Path, form: str) -> None:
    """Of raw and hexdump it seemed to be the disk of the data."""
    answer = on_full_disk("dump", storage, "--format", form)
    assert (answer.status, answer.err) == (14, "waltzctl: error: standard output: No space left on device\n")
