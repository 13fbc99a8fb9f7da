"""What is wrong with a read is said at ``load()``, and in one line; the errors of others keep their stacks."""

from __future__ import annotations

import gc
import inspect
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql.datasource import CaseInsensitiveDict

from tests.builders import build_directory
from waltzctl.engine.errors import InvalidRequestError, NotWaltzError, UnavailableError, WaltzError
from waltzctl.engine.log import places
from waltzctl.engine.spark.data_source import WaltzDataSource
from waltzctl.engine.spark.plain_errors import HIDING, RefusedStream, plain_errors
from waltzctl.engine.spark.stream_reader import WaltzStreamReader


class Plain:
    def partitions(self, error: BaseException | None) -> int:
        if error is not None:
            raise error
        return 1

    def read(self, error: BaseException | None) -> Iterator[int]:
        yield 1
        if error is not None:
            raise error

    def stop(self, error: BaseException) -> None:
        raise error


def source() -> Plain:
    class Source(Plain):
        partitions, read, stop = Plain.partitions, Plain.read, Plain.stop

    return plain_errors(Source)()


def raised(work: Any, error: BaseException) -> str | None:
    """What Spark would see in its environment when it tells of the error."""
    try:
        work(error)
    except (WaltzError, ValueError):
        return os.environ.get(HIDING)
    raise AssertionError


@pytest.mark.turns(8)
def test_a_stack_is_hidden_as_long_as_there_is_an_error_of_ours() -> None:
    asked = source()
    for work in (asked.partitions, lambda error: list(asked.read(error))):
        assert raised(work, InvalidRequestError("x")) == "1"
        gc.collect()
        assert HIDING not in os.environ
        assert raised(work, ValueError("x")) is None
    assert (asked.partitions(None), list(asked.read(None))) == (1, [1])
    assert raised(asked.stop, InvalidRequestError("x")) is None, "Spark does not tell of it"


@pytest.mark.turns(10)
def test_what_somebody_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDING, "yes")
    assert raised(source().partitions, InvalidRequestError("x")) == "yes"
    gc.collect()
    assert os.environ[HIDING] == "yes"


def test_spark_still_sees_what_a_stream_takes() -> None:
    """It looks at the signature to tell whether batches can be limited."""
    assert list(inspect.signature(WaltzStreamReader.latestOffset).parameters) == ["self", "start", "limit"]


def asked(**options: str) -> WaltzDataSource:
    return WaltzDataSource(CaseInsensitiveDict(options))  # type: ignore[arg-type]


def test_load_tells_what_is_wrong(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 3})
    whole = asked(path=str(storage)).schema()
    assert asked(path=f"file:{storage}").schema() == whole
    for options in (
        {"path": str(tmp_path)},  # a directory of storages
        {"path": str(tmp_path / "s*")},
        {"path": "waltz://127.0.0.1:1", "plaintext": "true"},
        {"metadata": "zk://h:1/x"},
        {"path": str(storage), "startingTransactions": "latest"},
        {"path": str(storage), "storage.key": "x"},
    ):
        assert asked(**options).schema() == whole
    with pytest.raises(NotWaltzError, match="no such file or directory"):
        asked(path=str(tmp_path / "gone")).schema()
    for name, value, words in (
        ("partitions", "x", "option partitions: "),
        ("minTransactionId", "ten", "option minTransactionId is a transaction id, not 'ten'"),
        ("maxTransactionId", "ten", "option maxTransactionId is a transaction id, not 'ten'"),
        ("splitSize", "7", "option splitSize: 7 bytes are too few"),
        ("pushdown", "yes", "option pushdown is true or false, not 'yes'"),
        ("failOnDataLoss", "yes", "option failOnDataLoss is true or false, not 'yes'"),
        ("maxRecordsPerTrigger", "0", "maxRecordsPerTrigger '0': must be"),
        ("startingTransactions", "now", "startingTransactions 'now': "),
        ("upTo", "mark", "upTo 'mark': must be"),
        ("plaintext", "yes", "plaintext 'yes': must be true or false"),
        ("timeout", "soon", "timeout: "),
    ):
        for place in ({"path": str(storage)}, {"metadata": "zk://h:1/x"}):
            with pytest.raises(InvalidRequestError, match=words):
                asked(**place, **{name: value}).schema()
    with pytest.raises(InvalidRequestError, match="format waltz has no option optoin; its options are path"):
        asked(path=str(storage), optoin="x").schema()
    for options in (
        {},
        {"provider": "waltz", "owner": "me", "location": "/w/t", "path": str(storage)},
    ):  # of CREATE TABLE
        with pytest.raises(InvalidRequestError, match="CREATE TEMPORARY VIEW"):
            asked(**options).schema()


def test_a_stream_that_cannot_be_tells_why_when_it_is_asked() -> None:
    made = asked(path="a", optoin="x").streamReader(schema=asked(metadata="m").schema())  # as Spark calls it
    assert isinstance(made, RefusedStream)
    for ask in (
        made.initialOffset,
        made.latestOffset,
        lambda: made.partitions({}, {}),
        lambda: list(made.read(None)),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRequestError, match="no option optoin"):
            ask()
    with pytest.raises(InvalidRequestError, match="no option optoin"):
        pickle.loads(pickle.dumps(made)).initialOffset()
    made.stop()


def test_a_file_system_that_cannot_be_opened_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("Unable to load libjvm\ndlopen(...)\ndlopen(...)")

    monkeypatch.setattr("fsspec.core.url_to_fs", fails)
    with pytest.raises(UnavailableError) as caught:
        places.exists(places.place("hdfs://somewhere/x"))
    assert str(caught.value).startswith("hdfs://somewhere/x: hdfs URLs cannot be read here: Unable to load libjvm")
    assert "\n" not in str(caught.value)
