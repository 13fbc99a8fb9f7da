"""Rows of quarantine, tallies, gaps, last values, and what a decoder makes: functions of values."""

from __future__ import annotations

import asyncio
import math
from collections import namedtuple
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row

from waltzctl.engine.catalogue import CATALOGUE, Code
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.pipeline.agreement import Differs, Nowhere
from waltzctl.engine.pipeline.bucket_files import bucket_file, buckets_there, keep_number, key_there, lost_buckets
from waltzctl.engine.pipeline.column_types import arrow_columns, parse_columns
from waltzctl.engine.pipeline.completeness import gaps
from waltzctl.engine.pipeline.decoding import check_columns, decoded, load_decoder
from waltzctl.engine.pipeline.project import open_project
from waltzctl.engine.pipeline.project_creation import create_project
from waltzctl.engine.pipeline.quarantine_rows import differing_row, finding_row, nowhere_row, refused_row
from waltzctl.engine.pipeline.schemas import TALLY
from waltzctl.engine.pipeline.state_files import BUCKET, StateWriter, last_values, state_writer
from waltzctl.engine.pipeline.tables import Tables
from waltzctl.engine.pipeline.tallies import COUNTED, tally

NODES = ("/data/node-1", "/data/node-2")


def bad_row(code: str, **values: object) -> dict[str, object]:
    empty = dict.fromkeys(("segment", "transaction_id", "offset", "size", "missing"))
    return {"node": NODES[0], "partition": 3, "finding": code, **empty, **values}


@pytest.mark.parametrize("code", list(Code))
def test_every_finding_has_words_and_something_to_do(code: Code) -> None:
    row = finding_row(bad_row(code.value, transaction_id=7), NODES)
    assert row["message"].startswith(CATALOGUE[code].meaning)
    assert NODES[0] in row["message"]
    assert row["remedy"]
    assert "REPLICA" not in row["remedy"]


def test_a_remedy_names_the_other_replica() -> None:
    row = finding_row(bad_row("record-checksum", transaction_id=7, segment=0, offset=99, size=40, missing=1), NODES)
    assert row["remedy"] == "waltzctl recover /data/node-1 --partition 3 --from /data/node-2"
    assert "segment 0, offset 99, 40 bytes, from transaction 7 on, 1 missing" in row["message"]


def test_of_a_node_nobody_is_sent_to_a_path_that_is_none() -> None:
    row = finding_row(bad_row("record-checksum") | {"node": "waltz://h:1"}, ("waltz://h:1",))
    assert row["remedy"] == CATALOGUE[Code.RECORD_CHECKSUM].what_to_do


def test_a_copy_that_differs_is_told_with_the_vote() -> None:
    copy = {
        "request_id": {"client": 1, "generation": 2, "partition": 3, "sequence": 4},
        "header": 5, "data_length": 6, "data_checksum": "0000abcd",
    }  # fmt: skip
    row = differing_row(Differs(8, 1, 0, 2, 3, 2), 3, (*NODES, "/data/node-3"), copy)
    assert row["finding"] == "replica-differs"
    assert "2 of 3 replicas hold what was agreed upon, among them /data/node-1" in row["message"]
    assert row["remedy"] == "waltzctl compare /data/node-2 /data/node-1 --partition 3"
    open_row = differing_row(Differs(8, 1, None, 1, 2, 2), 3, NODES, copy)
    assert "no version has the 2 of 2 replicas" in open_row["message"]
    assert (row["missing"], open_row["missing"]) == (0, 1)


def test_what_is_nowhere_and_what_the_decoder_refuses() -> None:
    assert nowhere_row(Nowhere(4, 7), 1, NODES)["missing"] == 3
    assert "4 to 6" in nowhere_row(Nowhere(4, 7), 1, NODES)["message"]
    row = refused_row({"partition": 1, "transaction_id": 9, "refused": "ValueError: no"})
    assert (row["finding"], row["transaction_id"]) == ("decoder-refused", 9)
    assert "ValueError: no" in row["message"]


def counted(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    kinds = {
        "node": pa.string(), "partition": pa.int32(), "segment": pa.int64(), "transaction_id": pa.int64(),
        "size": pa.int64(), "header": pa.int32(), "data_length": pa.int32(), "finding": pa.string(), "missing": pa.int64(),
        "request_id": pa.struct([(name, pa.int32()) for name in ("client", "generation", "partition", "sequence")]),
    }  # fmt: skip
    struct = pa.struct([(name, kinds[name]) for name in COUNTED])
    found = tally(pa.array(rows, struct))
    assert found.type.value_type == pa.struct(list(TALLY))
    assert len(found) == len(rows)
    assert all(not one for one in found.to_pylist()[1:])
    return found.to_pylist()[0] if rows else []


def record(number: int, client: int = 1) -> dict[str, object]:
    request = {"client": client, "generation": 0, "partition": 0, "sequence": number}
    return bad_row("", finding=None, transaction_id=number, segment=0, size=50) | {
        "finding": None, "request_id": request, "header": 2, "data_length": 10,
    }  # fmt: skip


def test_records_and_losses_are_counted_apart() -> None:
    rows = [
        record(0), record(1, client=7),
        bad_row("record-checksum", transaction_id=2, missing=1, segment=0, size=50),
        bad_row("segment-gap", transaction_id=3, missing=5),
        {**record(8), "finding": "data-checksum"},
        bad_row("reserved-not-zero"),
    ]  # fmt: skip
    found = counted(rows)
    (whole,) = [one for one in found if one["kind"] == "partition"]
    names = ("records", "bytes", "data_bytes", "missing", "damaged", "first_transaction_id", "next_transaction_id")
    assert tuple(whole[name] for name in names) == (2, 100, 20, 5, 2, 0, 9)
    clients = {one["value"]: one["records"] for one in found if one["kind"] == "client"}
    assert clients == {1: 1, 7: 1}
    assert counted([]) == []


def complete_row(node: str, **values: int) -> dict[str, object]:
    usual = {"partition": 0, "expected": 10, "present": 10, "missing": 0, "damaged": 0, "behind": 0, "mark": 9}
    return {"node": node, **usual, "last_transaction_id": 9 - values.get("behind", 0), **values}


def test_a_gap_that_another_replica_fills_is_no_loss() -> None:
    rows = [complete_row("a"), complete_row("b", behind=3, present=7)]
    (gap,) = gaps(rows, [])
    assert (gap.node, gap.kind, gap.first_transaction_id, gap.last_transaction_id, gap.elsewhere) == (
        "b",
        "behind",
        7,
        9,
        True,
    )
    damaged = {
        "node": "a",
        "partition": 0,
        "transaction_id": 2,
        "missing": 1,
        "finding": "record-checksum",
        "remedy": "x",
    }
    first, _ = gaps(rows, [damaged])
    assert (first.node, first.kind, first.last_transaction_id, first.elsewhere) == ("a", "damaged", 2, True)


def test_a_gap_that_nobody_fills_is_one() -> None:
    rows = [complete_row("a"), complete_row("b", behind=3, present=7)]
    damaged = {
        "node": "a",
        "partition": 0,
        "transaction_id": 8,
        "missing": 1,
        "finding": "record-checksum",
        "remedy": "x",
    }
    assert [one.elsewhere for one in gaps(rows, [damaged])] == [False, False]
    unknown = damaged | {"missing": None, "transaction_id": 2}
    assert gaps(rows, [unknown])[0].elsewhere is False
    nowhere = damaged | {"node": None}
    assert gaps(rows, [nowhere])[1].kind == "nowhere"
    assert gaps([complete_row("a")], [damaged | {"node": "gone"}]) == []


def test_the_last_value_of_each_key_is_that_of_the_highest_id_in_its_partition() -> None:
    rows = pa.table(
        {
            "key": ["a", "b", "a", None, None, "a"],
            "partition": [0, 0, 0, 0, 0, 1],
            "transaction_id": [1, 2, 3, 4, 5, 0],
            "v": list("uvwxyz"),
        }
    )
    assert last_values(rows, ["key"])["v"].to_pylist() == ["w", "z", "v", "y"]
    assert last_values(last_values(rows, ["key"]), ["key"]) == last_values(rows, ["key"])
    assert last_values(rows.slice(0, 0), ["key"]).num_rows == 0
    for name in (".key", "[0]", "a.b", "a b"):  # which are no paths
        named = rows.rename_columns([name, "partition", "transaction_id", "v"])
        assert last_values(named, [name])["v"].to_pylist() == ["w", "z", "v", "y"]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_what_is_no_number_is_one_key(kind: pa.DataType) -> None:
    nan = float("nan")
    keys = [nan, 1.0, -nan, None, nan, None, 0.0, -0.0]
    rows = pa.table({"key": pa.array(keys, kind), "partition": [0] * 8, "transaction_id": [*range(8)]})
    assert last_values(rows, ["key"])["transaction_id"].to_pylist() == [7, 1, 4, 5]


def test_state_takes_a_batch_twice_and_late_ones_without_a_change(tmp_path: Path) -> None:
    writer = StateWriter(tmp_path, ["key"])

    def batch(*rows: tuple[str, int, str]) -> pa.RecordBatch:
        made = [
            {"key": key, "partition": 0, "transaction_id": at, "v": value, BUCKET: len(key) % 2}
            for key, at, value in rows
        ]
        return pa.RecordBatch.from_pylist(made)

    def held() -> list[tuple[str, int]]:
        import pyarrow.dataset as ds

        found = ds.dataset([str(one) for one in sorted(tmp_path.glob("*.parquet"))]).to_table()
        return sorted((one["key"], one["transaction_id"]) for one in found.to_pylist())

    first = [batch(("a", 1, "x"), ("bb", 2, "y")), batch(("a", 3, "z"))]
    for _ in range(2):
        writer.commit([writer.write(iter(first))], 0)
        assert held() == [("a", 3), ("bb", 2)]
    writer.commit([writer.write(iter([batch(("a", 2, "late"), ("bb", 9, "new"))])), None], 1)
    assert held() == [("a", 3), ("bb", 9)]
    staged = writer.write(iter([batch(("a", 99, "never"))]))
    writer.abort([staged], 2)
    assert held() == [("a", 3), ("bb", 9)]
    assert not (tmp_path / "_temporary").exists()
    assert writer.write(iter([])).files == ()  # type: ignore[attr-defined]


def test_files_of_state_have_their_names_for_good_when_spark_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = StateWriter(tmp_path, ["key"])
    row = {"key": "a", "partition": 0, "transaction_id": 1, "v": "x", BUCKET: 0}
    message = writer.write(iter([pa.RecordBatch.from_pylist([row])]))
    synced: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(
        disk, "observer", lambda change: synced.append((change.path, [one.name for one in tmp_path.glob("*.parquet")]))
    )
    writer.commit([message], 0)
    assert synced == [(tmp_path, ["part-00000.parquet"])]


def test_state_can_be_read_before_there_is_a_value_and_loses_none_to_that(tmp_path: Path) -> None:
    """Spark cannot tell the columns of a directory without a file: a log in which nothing was decoded yet has a state, too."""
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    import pyarrow.parquet as pq

    columns = parse_columns(f"key STRING, partition INT, transaction_id BIGINT, at TIMESTAMP, {BUCKET} INT")
    options = {"path": (tmp_path / "state").as_uri(), "key": "key", "buckets": "1"}

    def rows(number: int, zone: str) -> list[pa.RecordBatch]:
        kinds = [pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", zone), pa.int32()]
        return [pa.record_batch([pa.array([one], kind) for one, kind in zip(["a", 0, number, 7, 0], kinds, strict=True)],
                                names=columns.names)]  # fmt: skip

    for _ in range(2):
        writer = state_writer(options, columns)
        (file,) = tmp_path.rglob("*.parquet")
        assert pq.read_table(file).num_rows == 0
        assert pq.read_schema(file).names == ["key", "partition", "transaction_id", "at"]
        assert pq.read_schema(file).field("at").type == pa.timestamp("us", "UTC"), (
            "else Spark takes it for one without a zone"
        )
    for number in (1, 2):
        writer.commit([writer.write(iter(rows(number, "Europe/Berlin")))], number)
        writer = state_writer(options, columns)
        assert [one["transaction_id"] for one in pq.read_table(file).to_pylist()] == [number]
    assert sorted(one.name for one in (tmp_path / "state").iterdir()) == ["_buckets", file.name]
    for wrong in ({"path": "x"}, {"path": "x", "key": "key"}, {"path": "x", "key": "key", "buckets": "few"}):
        with pytest.raises(InvalidRequestError, match="path and key"):
            state_writer(wrong, columns)


@pytest.mark.parametrize(("said", "refused"), [(7, True), (8, False), (9, True)])
def test_state_is_not_gone_on_with_in_another_number_of_buckets(tmp_path: Path, said: int, refused: bool) -> None:
    """A key would have its old row in one file and its new one in another."""
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    columns = parse_columns(f"key STRING, partition INT, transaction_id BIGINT, {BUCKET} INT")
    options = {"path": str(tmp_path / "lake" / "state"), "key": "key"}
    state_writer(options | {"buckets": "8"}, columns)
    if not refused:
        state_writer(options | {"buckets": str(said)}, columns)
        return
    with pytest.raises(InvalidRequestError, match=f"of 8 buckets, and waltz.state.buckets is {said}") as caught:
        state_writer(options | {"buckets": str(said)}, columns)
    assert f"pipeline run {tmp_path / 'lake'}" in str(caught.value.advice)


@pytest.mark.parametrize(("last", "there"), [(6, 8), (7, 8), (8, 9), (100000, 100001)])
def test_older_files_of_state_say_that_there_are_no_fewer_than_the_last(tmp_path: Path, last: int, there: int) -> None:
    assert buckets_there(tmp_path / "none", 8) == 8
    for name in (bucket_file(tmp_path, 0).name, bucket_file(tmp_path, last).name, "part-00099-c000.snappy.parquet"):
        (tmp_path / name).touch()
    assert buckets_there(tmp_path, 8) == there
    keep_number(tmp_path, 12, ["a"])
    assert buckets_there(tmp_path, 8) == 12
    keep_number(tmp_path, 8, ["b"])
    assert buckets_there(tmp_path, 8) == 12, "of those that there are"
    assert key_there(tmp_path, ["b"]) == ("a",)


@pytest.mark.parametrize("said", ["12", "12\n", "12\nkey", '12\n{"a": 1}', "12\n[1]"])
def test_where_no_key_stands_beside_the_files_it_is_the_decoders_from_now_on(tmp_path: Path, said: str) -> None:
    (tmp_path / "_buckets").write_text(said)
    assert (buckets_there(tmp_path, 8), key_there(tmp_path, ["a"])) == (12, ("a",))
    keep_number(tmp_path, 8, ["a"])
    assert (buckets_there(tmp_path, 8), key_there(tmp_path, ["b"])) == (12, ("a",))


def test_state_is_not_gone_on_with_where_one_of_its_files_is_gone(tmp_path: Path) -> None:
    """Only the keys that came again were in it."""
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    columns = parse_columns(f"key STRING, partition INT, transaction_id BIGINT, {BUCKET} INT")
    options = {"path": str(tmp_path), "key": "key", "buckets": "4"}
    for bucket in (2, 1):
        writer = state_writer(options, columns)
        rows = [{"key": "a", "partition": 0, "transaction_id": 1, BUCKET: bucket}]
        writer.commit([writer.write(iter(pa.Table.from_pylist(rows).to_batches()))], 0)
    assert lost_buckets(tmp_path) == []
    bucket_file(tmp_path, 2).unlink()
    assert lost_buckets(tmp_path) == [2]
    with pytest.raises(InvalidRequestError, match=r"part-00002\.parquet is gone"):
        state_writer(options, columns)
    keep_number(tmp_path, 4, ["key"])
    assert lost_buckets(tmp_path) == [2], "it stays so until all of it begins anew"


def test_state_is_not_gone_on_with_by_another_key(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    columns = parse_columns(f"a STRING, b STRING, c STRING, partition INT, transaction_id BIGINT, {BUCKET} INT")
    options = {"path": str(tmp_path / "state"), "buckets": "8"}
    for _ in range(2):
        state_writer(options | {"key": "a,b"}, columns)
    with pytest.raises(InvalidRequestError, match="its rows are by a, b, and the decoder's KEY is c"):
        state_writer(options | {"key": "c"}, columns)


def test_state_is_written_with_a_spark_whose_schemas_take_no_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4.1 has UTC unless something else is said, and refuses the word that later ones need."""
    import pyarrow.parquet as pq
    from pyspark.sql.pandas import types
    from pyspark.sql.pandas.types import to_arrow_schema

    def earlier(schema: Any, timestamp_utc: bool = True) -> pa.Schema:  # Spark's
        return to_arrow_schema(schema, timezone="UTC" if timestamp_utc else None)

    monkeypatch.setattr(types, "to_arrow_schema", earlier)
    columns = parse_columns(f"key STRING, partition INT, transaction_id BIGINT, at TIMESTAMP, {BUCKET} INT")
    state_writer({"path": str(tmp_path / "state"), "key": "key", "buckets": "1"}, columns)
    (file,) = tmp_path.rglob("*.parquet")
    assert pq.read_schema(file).field("at").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("said", "arrow"),
    [
        ("STRING", pa.string()), ("BINARY", pa.binary()), ("BOOLEAN", pa.bool_()), ("DATE", pa.date32()),
        ("TIMESTAMP", pa.timestamp("us", "UTC")), ("TIMESTAMP_NTZ", pa.timestamp("us")), ("FLOAT", pa.float32()),
        ("DOUBLE", pa.float64()), ("TINYINT", pa.int8()), ("SMALLINT", pa.int16()), ("INT", pa.int32()),
        ("BIGINT", pa.int64()), ("DECIMAL(12, 3)", pa.decimal128(12, 3)),
        ("ARRAY<TIMESTAMP>", pa.list_(pa.field("element", pa.timestamp("us", "UTC")))),
        ("MAP<STRING, TIMESTAMP>", pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
        ("STRUCT<at: TIMESTAMP>", pa.struct([("at", pa.timestamp("us", "UTC"))])),
    ],
)  # fmt: skip
def test_a_decoder_may_make_every_type(tmp_path: Path, said: str, arrow: pa.DataType) -> None:
    """Spark asks for the zone of times, or fails without a word that says so."""
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    assert arrow_columns(parse_columns(f"made {said}")) == pa.schema([("made", arrow)])


def write_decoder(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def decode(h, d): ...", "SCHEMA must be a text"),
        ("SCHEMA = 'a INT'\ndef decode(h, d): ...", "KEY must name a column"),
        ("SCHEMA = 'a INT'\nKEY = 'a'", "no function decode"),
        ("import nowhere_at_all", "ModuleNotFoundError"),
    ],
)
def test_a_decoder_that_is_none_is_told_with_its_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        load_decoder(write_decoder(tmp_path / "decoder.py", text))
    assert str(tmp_path / "decoder.py") in str(caught.value)


def test_names_that_are_taken_or_not_there(tmp_path: Path) -> None:
    found = load_decoder(write_decoder(tmp_path / "d.py", "SCHEMA = 'a INT'\nKEY = 'a'\ndef decode(h, d): return None"))
    check_columns(found, {"a": "integer"}, tmp_path)
    with pytest.raises(InvalidRequestError, match="KEY names 'a'"):
        check_columns(found, {"b": "integer"}, tmp_path)
    with pytest.raises(InvalidRequestError, match="column of state"):
        check_columns(found, {"a": "integer", "Partition": "integer"}, tmp_path)
    with pytest.raises(InvalidRequestError, match="column of state"):
        check_columns(found, {"a": "integer", BUCKET: "integer"}, tmp_path)


@pytest.mark.parametrize(("kind", "refused"), [("ARRAY<INT>", True), ("MAP<STRING, INT>", True), ("STRUCT<x: INT>", True),
                                               ("STRING", False), ("DOUBLE", False), ("DECIMAL(9, 2)", False)])  # fmt: skip
def test_what_is_put_in_no_order_is_no_key(tmp_path: Path, kind: str, refused: bool) -> None:
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    create_project(tmp_path / "p", ["/n"])
    text = f"SCHEMA = 'a {kind}, b ARRAY<INT>'\nKEY = 'a'\ndef decode(h, d): return None"
    path = write_decoder(tmp_path / "p" / "decoder.py", text)
    tables = Tables(open_project(tmp_path / "p"))
    if not refused:
        assert tables._decoded_type.names == ["a", "b"]
        return
    with pytest.raises(InvalidRequestError, match=f"KEY names 'a', which is {kind.partition('<')[0]}") as caught:
        tables._decoded_type  # noqa: B018
    assert str(path) in str(caught.value)


def test_what_raises_or_does_not_fit_is_refused_and_the_rest_is_decoded() -> None:
    def decode(header: int, data: bytes) -> dict[str, object] | None:
        if not data:
            return {"n": 100 // header}
        return {b"none": None, b"text": {"n": "x"}, b"more": {"n": 1, "m": 2}}[data]

    datas = pa.array([b"", b"none", b"text", b"more", b""])
    found = decoded(pa.array([5, 0, 0, 0, 0]), datas, decode, pa.struct([("n", pa.int32())])).to_pylist()
    assert [one["decoded"] for one in found] == [{"n": 20}, None, None, None, None]
    assert [one["refused"] is None for one in found] == [True, True, False, False, False]
    assert "'m', which SCHEMA does not name" in found[3]["refused"]
    assert found[4]["refused"].startswith("ZeroDivisionError")


@pytest.mark.parametrize(
    ("kind", "made", "why"),
    [
        (pa.int64(), 19.99, "no whole number"), (pa.int8(), Decimal("0.5"), "no whole number"),
        (pa.int32(), float("nan"), "no whole number"), (pa.int32(), np.float32(1.5), "no whole number"),
        (pa.timestamp("us", "UTC"), 1.5, "no whole number"), (pa.list_(pa.int32()), [1, 1.5], "no whole number"),
        (pa.map_(pa.int32(), pa.int32()), {1.5: 1}, "no whole number"), (pa.float32(), -1e39, "too great for a FLOAT"),
        (pa.float32(), (2 - 2**-24) * 2.0**127, "too great for a FLOAT"), (pa.float32(), math.inf, None),
        (pa.int64(), 2.0, None), (pa.int64(), Decimal("2.0"), None), (pa.int64(), 2**62 + 1, None), (pa.int64(), None, None),
        (pa.float32(), 2.0**127, None), (pa.float32(), 7, None), (pa.float64(), 1e300, None),
        (pa.map_(pa.int32(), pa.int32()), {1: 2.0, 3: None}, None), (pa.date32(), date(2026, 1, 1), None),
        (pa.date32(), datetime(2026, 1, 1, 13, 30, tzinfo=UTC), "no whole day"), (pa.date32(), 1.5, "no whole number"),
        (pa.date32(), datetime(2026, 1, 1, 0, 0, 0, 1, UTC), "no whole day"), (pa.list_(pa.date32()), [date.max, None], None),
    ],
)  # fmt: skip
def test_a_number_that_its_column_cannot_be_is_refused(kind: pa.DataType, made: object, why: str | None) -> None:
    """Arrow cuts off what is behind the point, and makes what is too great infinite."""
    (one,) = decoded(pa.array([0]), pa.array([b""]), lambda _h, _d: {"n": made}, pa.struct([("n", kind)])).to_pylist()
    if why is None:
        assert one["refused"] is None
        kept = one["decoded"]["n"]
        assert (dict(kept) if isinstance(made, dict) else kept) == made
    else:
        assert one["decoded"] is None
        assert f"in n, which is {why}" in one["refused"]


class _UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (_UnspeakableError(), "_UnspeakableError"), (ValueError("caf\udce9"), "ValueError: caf?"),
        (KeyError("caf\udce9"), "KeyError: 'caf\\udce9'"), (ValueError("x" * 600), "ValueError: " + "x" * 488),
    ],
)  # fmt: skip
def test_an_error_that_says_nothing_or_no_text_is_a_reason_as_well(error: Exception, why: str) -> None:
    def decode(header: int, data: bytes) -> dict[str, object]:
        raise error

    (one,) = decoded(pa.array([0]), pa.array([b""]), decode, pa.struct([("n", pa.int32())])).to_pylist()
    assert one == {"decoded": None, "refused": why}


def test_values_of_named_tuples_go_by_their_names() -> None:
    """Those of others go by their order."""
    point = namedtuple("point", "y x")  # as decoders make it
    kind = pa.struct([("p", pa.struct([("x", pa.int64()), ("y", pa.int64())]))])
    for made in (point(y=1, x=2), Row(y=1, x=2), (2, 1), Row(2, 1), {"y": 1, "x": 2}):
        (one,) = decoded(pa.array([0]), pa.array([b""]), lambda _h, _d, made=made: {"p": made}, kind).to_pylist()
        assert one == {"decoded": {"p": {"x": 2, "y": 1}}, "refused": None}
    (one,) = decoded(pa.array([0]), pa.array([b""]), lambda _h, _d: {"p": Row(z=1, x=2)}, kind).to_pylist()
    assert one["decoded"] is None
    assert "'z'" in one["refused"]


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit(), BaseException("panic")])
def test_whatever_a_decoder_ends_with_it_ends_no_run(error: BaseException) -> None:
    def decode(_header: int, _data: bytes) -> dict[str, int]:
        raise error

    (one,) = decoded(pa.array([0]), pa.array([b""]), decode, pa.struct([("n", pa.int32())])).to_pylist()
    assert one["refused"].startswith(type(error).__name__)


def test_who_interrupts_a_decoder_interrupts_the_run() -> None:
    def decode(_header: int, _data: bytes) -> dict[str, int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoded(pa.array([0]), pa.array([b""]), decode, pa.struct([("n", pa.int32())]))


@pytest.mark.parametrize(
    ("made", "unknown"),
    [
        ({"s": {"x": 1}, "l": [{"x": 1}, None], "m": {"k": {"x": 1}, "n": None}, "d": [[{"x": 1}]]}, None),
        ({"s": None, "l": None, "m": None, "d": [None]}, None),
        ({"s": {"x": 1, "y": 2}}, "'y' in s"), ({"l": [{"x": 1}, {"z": 2}]}, "'z' in l"), ({"m": {"k": {"y": 1}}}, "'y' in m"),
        ({"m": [("k", {"y": 1})]}, "'y' in m"), ({"m": [{"key": "k", "value": {"y": 1}}]}, "'y' in m"),
        ({"d": [[{"x": 1}], [{"y": 1}]]}, "'y' in d"), ({"s": [("x", 1), ("y", 2)]}, "'y' in s"), ({"s": (1,)}, None),
        ({"s": {"y": 1}, "r": 1, "q": 1}, "'q', 'r'"), ({"s": {"z": 1, "y": 1}}, "'y', 'z' in s"),
        ({"e": {"s": {"y": 1}}}, "'y' in s in e"), ({"e": {"s": {"x": 1}}}, None), ({"e": ({"y": 1},)}, "'y' in s in e"),
    ],
)  # fmt: skip
def test_a_name_that_the_schema_does_not_have_is_refused_at_any_depth(
    made: dict[str, object], unknown: str | None
) -> None:
    inner = pa.struct([("x", pa.int32())])
    kind = pa.struct([("s", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner)),
                      ("d", pa.list_(pa.list_(inner))), ("e", pa.struct([("s", inner)]))])  # fmt: skip
    (one,) = decoded(pa.array([0]), pa.array([b""]), lambda _h, _d: made, kind).to_pylist()
    wanted = None if unknown is None else f"ValueError: it returned {unknown}, which SCHEMA does not name"
    assert one["refused"] == wanted
    assert (one["decoded"] is None) is (unknown is not None)


def test_what_a_decoder_changes_afterwards_is_no_value_of_before() -> None:
    """One that keeps its values from call to call."""
    tags: list[int] = []
    place: dict[str, int] = {}
    pairs: list[tuple[str, list[int]]] = []
    text = bytearray()
    made = {
        "tags": tags,
        "place": place,
        "more": [tags],
        "by_name": {"t": tags},
        "pairs": pairs,
        "text": text,
        "said": text,
    }

    def decode(header: int, data: bytes) -> dict[str, Any]:
        tags[:] = range(header)
        place["x"] = header
        pairs[:] = [(str(header), tags)]
        text[:] = data
        return made

    numbers = pa.list_(pa.int32())
    kind = pa.struct([
        ("tags", numbers), ("place", pa.struct([("x", pa.int32())])), ("more", pa.list_(numbers)),
        ("by_name", pa.map_(pa.string(), numbers)), ("pairs", pa.map_(pa.string(), numbers)), ("text", pa.binary()),
        ("said", pa.string()),
    ])  # fmt: skip
    found = decoded(pa.array([2, 0, 1]), pa.array([b"a", b"b", b"c"]), decode, kind).to_pylist()
    assert [one["decoded"] for one in found] == [
        {"tags": [*range(n)], "place": {"x": n}, "more": [[*range(n)]], "by_name": [("t", [*range(n)])],
         "pairs": [(str(n), [*range(n)])], "text": said, "said": said.decode()}
        for n, said in ((2, b"a"), (0, b"b"), (1, b"c"))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "made", "value"),
    [
        (pa.list_(pa.string()), {"x": "1"}.values(), ["1"]),
        (pa.list_(pa.string()), {"x": "1"}.keys(), ["x"]),
        (pa.list_(pa.string()), {"x"}, ["x"]),
        (pa.list_(pa.string()), ("x", "y"), ["x", "y"]),
        (pa.list_(pa.int8()), memoryview(b"abc"), [97, 98, 99]),
        (pa.list_(pa.int64()), np.arange(3), [0, 1, 2]),
        (pa.list_(pa.list_(pa.string())), [{"x": "1"}.values()], [["1"]]),
        (pa.map_(pa.string(), pa.string()), [{"key": "x"}], [("x", None)]),
        (pa.map_(pa.string(), pa.string()), {"x": "y"}.items(), [("x", "y")]),
        (pa.map_(pa.string(), pa.int64()), [None], "TypeError"),
        (pa.list_(pa.binary()), b"text", "ArrowTypeError"),
        (pa.list_(pa.string()), 7, "TypeError"),
        (pa.string(), bytearray(b"\xff\xff"), "ArrowInvalid"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, memoryview) else str(one),
)
def test_whatever_holds_values_is_a_list_or_a_map_and_the_rest_is_refused(
    kind: pa.DataType, made: object, value: object
) -> None:
    (one,) = decoded(pa.array([0]), pa.array([b""]), lambda _h, _d: {"a": made}, pa.struct([("a", kind)])).to_pylist()
    if isinstance(value, str):
        assert one["refused"].partition(":")[0] == value
    else:
        assert one == {"decoded": {"a": value}, "refused": None}


def test_a_time_becomes_a_day_only_where_one_begins() -> None:
    def made(value: object) -> object:
        kind = pa.struct([("n", pa.date32())])
        (one,) = decoded(pa.array([0]), pa.array([b""]), lambda _h, _d: {"n": value}, kind).to_pylist()
        return one["refused"] or one["decoded"]["n"]

    assert made(datetime(2026, 1, 1, tzinfo=UTC)) == date(2026, 1, 1)
    pandas = pytest.importorskip("pandas")
    assert made(pandas.Timestamp(2026, 1, 1)) == date(2026, 1, 1)
    assert str(made(pandas.NaT)).startswith("ValueError")
