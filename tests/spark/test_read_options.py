"""The options of a read, as functions of values: what each says, its bounds, and what cannot be meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.spark.read_options import ReadOptions, parse, storage_options, view_options

PATH = {"path": "/data/a"}
HERE = (Path("/data/a"),)


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({}, ReadOptions(HERE, split_size=134217728)),
        ({"view": " Segments "}, ReadOptions(HERE, "segments")),
        ({"columns": " partition,, header "}, ReadOptions(HERE, columns=("partition", "header"))),
        ({"columns": ""}, ReadOptions(HERE, columns=())),
        ({"data": " True "}, ReadOptions(HERE, data=True)),
        ({"data": "false"}, ReadOptions(HERE)),
        ({"partitions": "0-2,7"}, ReadOptions(HERE, partitions=frozenset({0, 1, 2, 7}))),
        ({"minTransactionId": "5", "maxTransactionId": "9"}, ReadOptions(HERE, first=5, last=9)),
        ({"splitSize": "100"}, ReadOptions(HERE, split_size=100)),
        ({"pushdown": " Auto "}, ReadOptions(HERE, pushdown=None)),
        ({"pushdown": "true"}, ReadOptions(HERE, pushdown=True)),
        ({"pushdown": "FALSE"}, ReadOptions(HERE)),
        ({"failOnDataLoss": "true"}, ReadOptions(HERE, fail_on_loss=True)),
        ({"failOnDataLoss": "false", "view": "index"}, ReadOptions(HERE, "index")),
        ({"storage.key": "k"}, ReadOptions(HERE)),
    ],
)
def test_each_option_is_read(options: dict[str, str], read: ReadOptions) -> None:
    assert parse(PATH | options) == read


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"zebra": "1", "Apple": "2"}, "no option apple, zebra"),
        ({"storage.": "1"}, "no option storage."),
        ({"view": "records", "storage": "1"}, "no option storage"),
        ({"view": "rows"}, "no view 'rows'"),
        ({"data": "1"}, "option data is true or false, not '1'"),
        ({"pushdown": "maybe"}, "option pushdown is true or false, not 'maybe'"),
        ({"failOnDataLoss": "true", "view": "index"}, "view index shows what is wrong"),
        ({"partitions": "a"}, "option partitions: 'a'"),
        ({"minTransactionId": "x"}, "minTransactionId is a transaction id, not 'x'"),
        ({"splitSize": "99"}, "99 bytes are too few for a task; the least is 100"),
        ({"splitSize": "much"}, "option splitSize: "),
        ({"paths": "/data/b"}, "option paths is a list in JSON, not '/data/b'"),
        ({"paths": '"/data/b"'}, "option paths is a list in JSON"),  # it read /, d, a and so on
        ({"paths": '["/data/b", 1]'}, "option paths is a list in JSON"),
        ({"paths": '{"/data/b": 1}'}, "option paths is a list in JSON"),
        ({"paths": "[" * 100_000}, "option paths is a list in JSON"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        parse(PATH | options)


def test_paths_are_those_of_a_list_and_the_single_one() -> None:
    both = {"paths": json.dumps(["/data/b", "/data/c"]), **PATH}
    assert parse(both).paths == (Path("/data/b"), Path("/data/c"), *HERE)
    for nothing in ({}, {"path": ""}, {"paths": ""}, {"paths": "[]"}):
        with pytest.raises(InvalidRequestError, match="nothing without a path"):
            parse(nothing)
    with pytest.raises(InvalidRequestError, match="Waltz://n:1 is a node"):
        parse({"paths": json.dumps(["/data/b", "Waltz://n:1"])})


def test_the_view_its_columns_and_the_data_are_read_on_their_own() -> None:
    assert view_options({}) == ("records", None, False)
    assert view_options({"view": "control", "columns": "a", "data": "true"}) == ("control", ("a",), True)


def test_options_of_the_file_system_are_texts_but_for_truth_values_and_json() -> None:
    given = {"a": "True", "b": "false", "c": '{"x": [1]}', "d": "[2]", "e": "{no", "f": "1", "g": "", "h": "truth"}
    options = {f"storage.{name}": text for name, text in given.items()} | {
        "Storage.I": "i",
        "storage.": "",
        "path": "p",
    }
    said = {"a": True, "b": False, "c": {"x": [1]}, "d": [2], "e": "{no", "f": "1", "g": "", "h": "truth", "I": "i"}
    assert storage_options(options) == said
