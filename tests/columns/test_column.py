"""One table of columns for each object: every form follows from it, and a column is added in one place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import build_directory
from tests.cli.running import ROOT, environment
from waltzctl.engine.columns.column import Column, Columns, ObjectType, Stands, listed, or_null, struct
from waltzctl.engine.columns.column_kinds import CHECKSUM, COUNT, INT32, PATH, SIZE, TEXT
from waltzctl.objects.all_objects import OBJECTS
from waltzctl.objects.status_objects import PARTITION_STATUS

VIEWED = ("record", "finding", "control", "partition-info", "segment", "index-entry")
MORE = """
import sys
from dataclasses import replace
from waltzctl.engine.columns import record_columns
from waltzctl.engine.columns.column import Column
from waltzctl.engine.columns.column_kinds import SIZE

record_columns.RECORD = replace(record_columns.RECORD, columns=(
    *record_columns.RECORD.columns,
    Column("end", SIZE, "where the next record begins", read=lambda one: one.offset + one.size, title="END"),
))
"""


def run(program: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", MORE + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
        check=True,
    )
    return done.stdout


DUMP = "from waltzctl.__main__ import main; main(sys.argv[1:])"


@pytest.mark.turns(8)
def test_a_column_of_records_is_added_in_one_line(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 2})
    first, second = json.loads(run(DUMP, "dump", storage, "--format", "json", "--data", "none"))
    assert list(first)[-1] == "end"
    assert (first["end"], second["end"]) == (second["offset"], second["offset"] + second["size"])

    head, *rows = run(DUMP, "dump", storage, "--format", "plain", "--data", "none").splitlines()
    assert head.split("\t")[-1] == "end"
    assert rows[0].split("\t")[-1] == str(first["end"])

    head, *rows = run(DUMP, "dump", storage, "--format", "table", "--data", "none").splitlines()
    assert head.split()[-1] == "END"
    assert rows[0].split()[-1] == str(first["end"])

    schema = json.loads(run("import json; print(json.dumps(record_columns.RECORD.schema))"))
    assert schema["properties"]["end"] == {"type": "integer", "minimum": 0}
    assert schema["required"][-1] == "end"

    target = tmp_path / "table"
    run(DUMP, "dump", storage, "--export", "parquet", "-o", target)
    parquet = pytest.importorskip("pyarrow.parquet")
    (file,) = target.iterdir()
    table = parquet.read_table(file)
    assert str(table.schema.field("end").type) == "int64"
    assert table["end"].to_pylist() == [first["end"], second["end"]]


@pytest.mark.parametrize("shown", [*OBJECTS.values(), PARTITION_STATUS], ids=lambda one: one.name)
def test_a_table_of_columns_is_whole(shown: ObjectType) -> None:
    for place in (Stands.OBJECT, Stands.VIEW):
        names = [one.name for one in shown.columns if place in one.stands]
        assert len(names) == len(set(names)), "one column of a name in a place"
    for one in shown.columns:
        assert one.meaning or one.stands is Stands.TABLE_ONLY, one.name
        assert one.title or one.stands is not Stands.TABLE_ONLY, one.name
        assert one.kind.spark or Stands.VIEW not in one.stands or shown.name not in VIEWED, one.name
    assert set(shown.leading) <= {one.name for one in shown.headed}


INNER = Columns((Column("low", INT32), Column("sum", or_null(CHECKSUM))))
OUTER = ObjectType(
    name="example",
    meaning="An example.",
    columns=(
        Column("path", PATH, title="PATH"),
        Column("numbers", listed(COUNT)),
        Column("inner", struct(INNER)),
        Column("both", listed(struct(INNER), exactly=2)),
        Column("length", or_null(SIZE), read=lambda one: one.size, title="BYTES"),
        Column("said", TEXT, given=True, optional=True),
        Column("node", TEXT, given=True, stands=Stands.VIEW),
    ),
    leading=("length",),
)
VALUE = SimpleNamespace(
    path=Path("/a"),
    numbers=[1, 2],
    inner=SimpleNamespace(low=-1, sum=0xAB),
    both=[SimpleNamespace(low=1, sum=None)] * 2,
    size=None,
)


def test_an_object_is_read_by_its_table() -> None:
    keys = OUTER.keys(VALUE)
    assert keys == {
        "path": "/a",
        "numbers": (1, 2),
        "inner": {"low": -1, "sum": "000000ab"},
        "both": [{"low": 1, "sum": None}] * 2,
        "length": None,
    }
    assert type(keys["numbers"]) is tuple, "plain shows values in a column"
    assert type(keys["both"]) is list, "and objects as lines"
    assert list(OUTER.shown(VALUE, said="x")) == ["schema", "type", *keys, "said"]
    assert OUTER.shown(VALUE)["schema"] == "waltzctl.example/1"


def test_the_schema_of_an_object_is_strict() -> None:
    schema = OUTER.schema
    assert schema["required"] == ["schema", "type", "path", "numbers", "inner", "both", "length"]
    assert list(schema["properties"]) == [*schema["required"], "said"], "what stands in views only is no key"
    assert schema["properties"]["both"]["minItems"] == 2
    assert schema["properties"]["inner"] == schema["properties"]["both"]["items"] == INNER.strict
    assert schema["properties"]["length"] == {"anyOf": [SIZE.schema, {"type": "null"}]}


def test_what_spark_and_a_table_are_told() -> None:
    assert [one.kind.spark for one in OUTER.columns][1:4] == [
        "array<bigint>",
        "struct<low:int,sum:string>",
        "array<struct<low:int,sum:string>>",
    ]
    assert [one.title for one in OUTER.headed] == ["BYTES", "PATH"]
