"""A stream from a node: the same rows as from its directory, through its admin port."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records
from tests.net.certificates import PASSWORD, Authority
from tests.reserved_ports import reserved_ports
from tests.spark.nodes import served
from tests.spark.streaming import Query, as_row, findings, ids, open_stream, row_value, segment_path
from waltzctl.engine.client.inspect import UNREADABLE_IN_A_ROW
from waltzctl.engine.errors import InvalidRequestError, PeerError, RefusedError, StalePlanError
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.engine.spark import stream_node
from waltzctl.engine.spark.view_schemas import RECORD_COLUMNS


def _directory(tmp_path: Path, records: int, size: int | None = None) -> Path:
    return build_directory(tmp_path / "d", {0: records, 1: records}, num_partitions=3, size=size, per_segment=100)


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
def test_every_record_of_a_node_comes_once_with_its_bytes(tmp_path: Path, tls: bool) -> None:
    options = {} if tls else {"plaintext": "true"}
    with served(_directory(tmp_path, 60), plaintext=not tls) as node:
        query = Query(node.url, maxRecordsPerTrigger="25", **options)
        query.run()
        query.restart()
        assert query.step() is None
        query.reader.stop()
    for number in (0, 1):
        found = [row_value(row) for row in query.rows if row["partition"] == number]
        assert found == [as_row(one) for one in make_records(60, partition=number)]
    assert max(map(len, query.batches)) <= 25
    row = query.rows[0]
    assert set(row) == {one.name for one in RECORD_COLUMNS}
    assert row["node"] == node.url
    assert (row["segment"], row["offset"], row["record_checksum"], row["finding"]) == (None, None, None, None)
    assert row["size"] == 40 + row["data_length"]


def test_what_is_appended_to_a_live_node_comes(tmp_path: Path) -> None:
    with served(_directory(tmp_path, 5)) as node:
        query = Query(node.url, plaintext="true")
        query.run()
        node.append(0, make_records(7, first=5))
        query.restart()
        assert ids(query.step() or []) == list(range(5, 12))
        assert query.step() is None
        query.reader.stop()


def test_a_checkpoint_of_a_directory_goes_on_at_its_node(tmp_path: Path) -> None:
    with served(_directory(tmp_path, 40)) as node:
        query = Query(tmp_path / "d", maxRecordsPerTrigger="33")
        query.step()
        query.place, query.options = node.url, {"plaintext": "true"}
        query.restart()
        query.run()
        query.reader.stop()
    assert ids(query.rows) == list(range(40))
    assert ids(query.rows, 1) == list(range(40))


@pytest.mark.parametrize("starting", ["latest", '{"0": 7}'])
def test_a_query_of_a_node_begins_where_it_is_told(tmp_path: Path, starting: str) -> None:
    with served(_directory(tmp_path, 10)) as node:
        query = Query(node.url, plaintext="true", startingTransactions=starting)
        query.run()
        assert ids(query.rows) == ([] if starting == "latest" else [7, 8, 9])
        assert ids(query.rows, 1) == ([] if starting == "latest" else list(range(10)))
        query.reader.stop()


def test_up_to_the_low_water_mark_of_a_node(tmp_path: Path) -> None:
    with served(_directory(tmp_path, 41)) as node:
        query = Query(node.url, plaintext="true", upTo="low-water-mark", maxRecordsPerTrigger="7")
        query.run()
        assert ids(query.rows) == list(range(21))  # the marks stand in the middle
        query.reader.stop()


def test_large_ranges_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_node, "RANGE_RECORDS", 7)
    monkeypatch.setattr(stream_node, "_BATCH_ROWS", 3)
    with served(_directory(tmp_path, 60)) as node:
        query = Query(node.url, plaintext="true")
        query.run()
        query.reader.stop()
    assert ids(query.rows) == list(range(60))
    assert [row_value(row)[1] for row in query.rows if row["partition"] == 1] == [
        one.data for one in make_records(60, partition=1)
    ]


def _damage(path: Path, number: int) -> None:
    entries = (path / "0" / "0000000000000000000.idx").read_bytes()[128:]
    offset = int.from_bytes(entries[8 * number :][:8], "big")
    file = path / "0" / "0000000000000000000.seg"
    raw = bytearray(file.read_bytes())
    raw[offset + 38] ^= 1
    file.write_bytes(raw)


@pytest.mark.turns(10)
@pytest.mark.parametrize("limit", ["1000", "1"])
def test_a_record_that_a_node_does_not_give_out_is_told_once(tmp_path: Path, limit: str) -> None:
    with served(_directory(tmp_path, 30, size=20)) as node:
        for number in (9, 10, 20):
            _damage(tmp_path / "d", number)
        query = Query(node.url, plaintext="true", maxRecordsPerTrigger=limit)
        query.run()
        query.reader.stop()
    assert ids(query.rows) == [one for one in range(30) if one not in (9, 10, 20)]
    assert findings(query.rows) == [(0, number, "record-checksum") for number in (9, 10, 20)]
    assert [row["missing"] for row in query.rows if row["finding"]] == [1, 1, 1], "each row tells of one"


def test_a_truncated_partition_of_a_node_stops_the_query(tmp_path: Path) -> None:
    with served(_directory(tmp_path, 30)) as node:
        query = Query(node.url, plaintext="true")
        query.run()
        node.truncate(0, 20)
        with pytest.raises(StalePlanError, match="ends at 20 now"):
            query.step()
        node.append(0, make_records(20, first=21, seed=3))
        query.restart()
        with pytest.raises(StalePlanError, match="transaction 29 is not the one that was read"):
            query.step()
        query.reader.stop()


@pytest.mark.turns(8)
@pytest.mark.parametrize("rest", [0, 5])
def test_a_long_bad_stretch_is_told_record_by_record(tmp_path: Path, rest: int) -> None:
    """Longer than what a walk puts up with (`inspect.UNREADABLE_IN_A_ROW`), at the end or in front of intact ones."""
    count = UNREADABLE_IN_A_ROW + 2
    directory = build_directory(tmp_path / "d", {0: 10 + count + rest}, size=10, per_segment=2 * count)
    with served(directory) as node:
        data = bytearray(segment_path(directory, 0).read_bytes())
        for number in range(10, 10 + count):
            data[128 + 50 * number + 35] ^= 1
        segment_path(directory, 0).write_bytes(data)
        query = Query(node.url, plaintext="true")
        query.run()
        query.reader.stop()
    assert ids(query.rows) == [*range(10), *range(10 + count, 10 + count + rest)]
    assert findings(query.rows) == [(0, number, "record-checksum") for number in range(10, 10 + count)]


@pytest.mark.turns(10)
@pytest.mark.parametrize("limit", ["1000", "4"])
@pytest.mark.parametrize("read", [0, 17, 25])
def test_of_a_partition_whose_end_is_damaged_what_is_in_front_comes_and_the_damage_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: int, limit: str
) -> None:
    """More damage than is looked behind for the last intact record: a bad stretch of a disk holds thousands of small ones."""
    monkeypatch.setattr(stream_node, "_SEARCH_BACK", 3)
    with served(_directory(tmp_path, 25, size=20)) as node:
        query = Query(node.url, plaintext="true", partitions="0", maxRecordsPerTrigger=str(max(1, read)))
        if read:
            query.step()
        query.options["maxRecordsPerTrigger"] = limit
        node.append(0, make_records(5, first=25, size=20))
        for number in range(25, 30):
            _damage(tmp_path / "d", number)
        query.restart()
        query.run()
        assert ids(query.rows) == list(range(25))
        assert findings(query.rows) == [(0, number, "record-checksum") for number in range(25, 30)]
        node.append(0, make_records(2, first=30, size=20))
        query.run()
        assert ids(query.rows) == [*range(25), 30, 31]
        assert len(findings(query.rows)) == 5
        query.reader.stop()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_partition_that_was_truncated_and_filled_up_again_stops_the_query_at_once(
    tmp_path: Path, restarted: bool
) -> None:
    """It ends with the same id as before; a query that remembers what stood there would wait for the next one."""
    with served(_directory(tmp_path, 30)) as node:
        query = Query(node.url, plaintext="true")
        query.run()
        node.truncate(0, 20)
        node.append(0, make_records(9, first=21, seed=3))
        if restarted:
            query.restart()
        with pytest.raises(StalePlanError, match="transaction 29 is not the one that was read"):
            query.step()
        query.reader.stop()


def test_a_node_that_is_gone_is_an_error_and_one_that_came_back_is_asked_again(tmp_path: Path) -> None:
    path = _directory(tmp_path, 3)
    port, admin_port = reserved_ports(2)
    with served(path, port=port, admin_port=admin_port) as node:
        query = Query(node.url, plaintext="true", timeout="5s")
        query.run()
    with pytest.raises(PeerError):
        query.step()
    with served(path, port=port, admin_port=admin_port) as node:
        node.append(0, make_records(2, first=3))
        assert ids(query.step() or []) == [3, 4]
    query.reader.stop()


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("waltz://127.0.0.1", {}, "address"),
        ("waltz://127.0.0.1:1", {"plaintext": "perhaps"}, "plaintext"),
        ("waltz://127.0.0.1:1", {"plaintext": "true", "trustStore": "/x"}, "certificates"),
        ("waltz://127.0.0.1:1", {"timeout": "soon"}, "timeout"),
        ("waltz://127.0.0.1:1", {"upto": "now"}, "upTo"),
        ("waltz://127.0.0.1:1", {"maxrecordspertrigger": "0"}, "maxRecordsPerTrigger"),
        ("waltz://127.0.0.1:1", {"partitions": "3-1"}, "partitions"),
        ("waltz://127.0.0.1:1", {"speed": "high"}, "speed"),
        ("waltz://127.0.0.1:1", {"view": "segments"}, "view"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_at_once(url: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        open_stream(url, **options)


def test_plain_text_off_the_loopback_needs_to_be_said_twice() -> None:
    reader = open_stream("waltz://192.0.2.1:55281", plaintext="true")
    with pytest.raises(RefusedError, match="loopback"):
        reader.initialOffset()
    reader.stop()


def test_a_trust_store_decides_whom_a_stream_believes_and_passwords_come_from_files(tmp_path: Path) -> None:
    path = _directory(tmp_path, 4)
    ours, other = Authority("ours"), Authority("other")
    (tmp_path / "password").write_text(f"{PASSWORD}\nnot this line\n")
    key_store = ours.issue("node", "localhost").write(tmp_path, "PKCS12")
    trust_store = ours.write(tmp_path, "PKCS12")
    stranger = other.write(tmp_path, "JKS")
    tls = TlsOptions(
        key_store=key_store, key_store_password=PASSWORD, trust_store=trust_store, trust_store_password=PASSWORD
    )
    passwords = {name: str(tmp_path / "password") for name in ("trustStorePasswordFile", "keyStorePasswordFile")}
    with served(path, plaintext=False, tls=tls) as node:
        url = node.url.replace("127.0.0.1", "localhost")
        query = Query(url, trustStore=str(trust_store), keyStore=str(key_store), **passwords)
        query.run()
        assert ids(query.rows) == [0, 1, 2, 3]
        query.reader.stop()
        for options in ({"trustStore": str(stranger), "keyStore": str(key_store)}, {"trustStore": str(trust_store)}):
            reader = open_stream(url, **options, **passwords)
            with pytest.raises(PeerError):
                reader.initialOffset()
            reader.stop()
    missing = open_stream(url, trustStore=str(trust_store), trustStorePasswordFile=str(tmp_path / "nowhere"))
    with pytest.raises(InvalidRequestError, match=r"trustStorePasswordFile: .*nowhere: cannot read the password"):
        missing.initialOffset()
    missing.stop()
