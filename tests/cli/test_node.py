"""``waltzctl node`` against a node that runs as a process: what looks, changes nothing and tells the truth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders import KEY, build_directory, digest, make_records
from tests.cli.damage import damage_record, segment_of
from tests.cli.nodes import Served, serving
from tests.cli.running import Answer, invoke, on_terminal, run
from tests.cli.test_schemas import VALIDATORS
from tests.net.certificates import PASSWORD, Authority
from tests.reserved_ports import reserved_ports

LARGE = 2**40 + 5


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partition 0 holds 300 transactions, 1 none, 2 is not assigned; session ids need more than 32 bits."""
    path = tmp_path_factory.mktemp("node") / "storage"
    return build_directory(path, {0: 300, 1: 0}, num_partitions=3, session=LARGE, per_segment=100)


@pytest.fixture(scope="module")
def served(storage: Path) -> Iterator[Served]:
    with serving(storage, "--port", 0, "--http-port", "off") as node:
        yield node


def at(served: Served) -> tuple[object, ...]:
    return (f"127.0.0.1:{served.ready['admin_port']}", "--data-port", served.ready["port"])


def node(served: Served, *words: object, status: int = 0, form: str = "ndjson") -> list[dict[str, Any]]:
    """The objects that an action prints, checked against their schemas."""
    answer = invoke("node", *at(served), *words, "--format", form)
    assert answer.status == status, answer.err
    return checked(answer, form)


def checked(answer: Answer, form: str) -> list[dict[str, Any]]:
    objects = answer.objects if form == "ndjson" else json.loads(answer.out)
    for shown in objects if isinstance(objects, list) else [objects]:
        VALIDATORS[shown["type"]].validate(shown)
    return objects if isinstance(objects, list) else [objects]


def test_list_shows_whole_values(served: Served) -> None:
    """T5 and T6: 64 bits, and for machines."""
    for form in ("ndjson", "json"):
        zero, one = node(served, "list", form=form)
        assert (zero["partition"], zero["session_id"], zero["last_transaction_id"]) == (0, LARGE, 299)
        assert (zero["assigned"], zero["available"], zero["readable"], zero["writable"]) == (True,) * 4
        assert (zero["low_water_mark"], zero["local_low_water_mark"], zero["queued_requests"]) == (149, 149, 0)
        assert (one["partition"], one["last_transaction_id"]) == (1, -1)
    *_, two = node(served, "list", "--partition", "0-2")
    assert (two["partition"], two["assigned"], two["session_id"]) == (2, False, None)


def test_session_and_last_transaction(served: Served) -> None:
    found = node(served, "session")
    assert [(one["partition"], one["session_id"], one["low_water_mark"]) for one in found] == [
        (0, LARGE, 149),
        (1, LARGE, -1),
    ]
    (one,) = node(served, "session", "--partition", "1")
    assert one["partition"] == 1
    (last,) = node(served, "max-transaction-id", "--partition", 0)
    assert (last["max_transaction_id"], last["session_id"], last["offline"]) == (299, LARGE, False)
    answer = invoke("node", *at(served), "max-transaction-id", "--partition", 0, "--offline")
    assert answer.status == 13
    assert "cannot run offline recovery while partition is online" in answer.err
    answer = invoke("node", *at(served), "session", "--partition", 2)
    assert answer.status == 13
    assert "Partition:2 is not assigned." in answer.err
    assert "add-partition" in answer.err


def test_max_transaction_id_of_several_partitions(served: Served) -> None:
    for form in ("ndjson", "json"):
        found = node(served, "max-transaction-id", "--partition", "0-1", form=form)
        assert [(one["partition"], one["max_transaction_id"]) for one in found] == [(0, 299), (1, -1)]
    alone = json.loads(invoke("node", *at(served), "max-transaction-id", "--partition", 0, "--format", "json").out)
    assert alone["max_transaction_id"] == 299, "one partition is one object, as ever"
    answer = invoke("node", *at(served), "max-transaction-id", "--partition", "1-2", "--format", "ndjson")
    assert answer.status == 13
    *told, error = answer.objects
    assert [one["partition"] for one in told] == [1], "those in front of the one that fails are told"
    assert (error["type"], error["error"]) == ("error", "refused")
    assert "Partition:2 is not assigned." in answer.err
    answer = invoke("node", *at(served), "max-transaction-id", "--partition", "0-x")
    assert answer.status == 2
    assert "write for instance 0-3,7" in answer.err


def test_records(served: Served) -> None:
    made = make_records(300)
    shown = node(served, "records", "--partition", 0, "--from", 98, "--to", 101, "--data", "hex")
    assert [(one["transaction_id"], one["data_hex"]) for one in shown] == [
        (record.transaction_id, record.data.hex()) for record in made[98:102]
    ]
    assert [(one["segment"], one["offset"], one["record_checksum"]) for one in shown] == [(None, None, None)] * 4
    assert all(one["size"] == 40 + one["data_length"] for one in shown)
    assert len(node(served, "records", "--partition", "0-1", "--limit", 7, "--data", "none")) == 7
    assert invoke("node", *at(served), "records", "--partition", 0, "--from", 9, "--to", 8).status == 2
    assert invoke("node", *at(served), "records", "--partition", 2).status == 2


def test_metrics(served: Served) -> None:
    found = node(served, "metrics")
    by_name = {(one["partition"], one["name"]): one for one in found}
    assert by_name[0, "session-id"]["value"] == LARGE
    assert by_name[None, "waltz-storage-num-partitions"]["value"] == 2
    assert by_name[None, "waltz-storage-partition-ids"]["value"] == [0, 1]
    assert by_name[0, "append-latency"]["kind"] == "timer"
    only = node(served, "metrics", "--partition", 1)
    assert {one["partition"] for one in only} == {1}


def test_validate(served: Served) -> None:
    data, admin = node(served, "validate", "--key", KEY, "--partitions", 3)
    assert [(one["port"], one["ok"], one["tls"], one["code"]) for one in (data, admin)] == [
        ("data", True, True, None), ("admin", True, True, None)]  # fmt: skip
    node(served, "validate")
    both = node(served, "validate", "--key", KEY, "--partitions", 4, status=12)
    assert [(one["ok"], one["code"]) for one in both] == [(False, "mismatch")] * 2
    assert invoke("node", *at(served), "validate", "--key", KEY).status == 2
    assert invoke("node", *at(served), "validate", "--key", "x", "--partitions", 3).status == 2
    admin_port = served.ready["admin_port"]
    answer = invoke("node", f"127.0.0.1:{admin_port}", "--data-port", admin_port, "validate", "--format", "ndjson")
    assert answer.status == 14
    data, admin = checked(answer, "ndjson")
    assert (data["ok"], admin["ok"]) == (False, True)
    assert "this is the admin port" in data["message"]


def test_looking_changes_nothing(served: Served, storage: Path) -> None:
    before = digest(storage)
    url = f"waltz://127.0.0.1:{served.ready['admin_port']}"
    for words in (["list"], ["session"], ["max-transaction-id", "--partition", 0], ["records", "--partition", "0"], ["metrics"],
                  ["validate"], ["add-partition", "--partition", 2, "--dry-run"],
                  ["remove-partition", "--partition", 0, "--delete-storage-files", "--dry-run"]):  # fmt: skip
        assert invoke("node", *at(served), *words).status == 0
    for command in ("verify", "dump", "status"):
        assert invoke(command, url).status == 0
    assert digest(storage) == before


def test_verify_dump_and_status_of_a_url(served: Served, storage: Path) -> None:
    url = f"waltz://127.0.0.1:{served.ready['admin_port']}"
    answer = invoke("verify", url, "--format", "ndjson")
    assert answer.status == 0
    note, summary = checked(answer, "ndjson")
    assert (note["code"], note["severity"], note["path"]) == ("seen-from-outside", "note", url)
    assert (summary["status"], summary["records"], summary["partitions"], summary["complete"]) == (
        "clean",
        300,
        2,
        True,
    )
    shown = checked(invoke("dump", url, "--partition", 0, "--format", "json"), "json")
    local = json.loads(invoke("dump", storage, "--partition", 0, "--format", "json").out)
    unseen = dict.fromkeys(("segment", "offset", "record_checksum"))
    assert shown == [{**one, **unseen} for one in local]
    (status,) = checked(invoke("status", url, "--format", "json"), "json")
    assert (status["path"], status["cluster_key"], status["layout"]) == (url, None, None)
    assert [(one["partition"], one["health"], one["last_transaction_id"]) for one in status["partitions"]] == [
        (0, None, 299), (1, None, None)]  # fmt: skip
    table = invoke("status", url, "--format", "table").out
    assert url in table
    assert "None" not in table
    raw = invoke("dump", url, "--partition", 0, "--to", 9, "--format", "raw")
    assert raw.status == 0


def test_dump_of_a_url_into_a_file(served: Served, tmp_path: Path) -> None:
    url = f"waltz://127.0.0.1:{served.ready['admin_port']}"
    out = tmp_path / "records.ndjson"
    answer = invoke("dump", url, "--partition", 0, "--limit", 5, "--format", "ndjson", "-o", out)
    assert (answer.status, answer.out) == (0, "")
    assert len(out.read_text().splitlines()) == 5
    assert f"{out}: 5 records." in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ["verify", "waltz://h:2", "/data"],
        ["verify", "waltz://h"],
        ["verify", "waltz://h:2", "--quick"],
        ["verify", "waltz://h:2", "--sample", "10%"],
        ["verify", "waltz://h:2", "--resume", "f"],
        ["dump", "waltz://h:2", "--what", "index"],
        ["dump", "waltz://h:2", "--reverse"],
        ["dump", "waltz://h:2", "--format", "hexdump"],
        ["verify", "/data", "--plaintext"],
        ["dump", "/data", "--trust-store", "f"],
        ["status", "/data", "--insecure"],
        ["status", "waltz://h:2", "--plaintext", "--key-store", "f"],
        ["status", "waltz://h:2", "--timeout", "soon"],
        ["node", "h", "list"],
        ["node", "h:0", "list"],
        ["node", "::1:5", "list"],
        ["node", "h:1", "list"],
        ["node", "h:2", "list", "--partition", "x"],
        ["node", "list"],
        ["node", "h:2", "nonsense"],
        ["node", "h:2", "records"],
        ["node", "h:2", "--certificate-key", "f", "list"],
        ["recover", "waltz://h:2"],
        ["serve", "Waltz://h:2"],
        ["salvage", "waltz://h:2", "--to", "/data"],
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(words: list[str]) -> None:
    answer = invoke(*words)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err
    assert "{" not in answer.err


def test_a_data_port_that_nobody_named_is_said_to_be_assumed(served: Served) -> None:
    port, other = reserved_ports(2)
    admin = f"127.0.0.1:{served.ready['admin_port']}"
    answer = invoke("node", admin, "--data-port", port, "max-transaction-id", "--partition", 0)
    assert answer.status == 14
    assert f"127.0.0.1:{port}: cannot connect" in answer.err
    assert "--data-port" not in answer.err
    answer = invoke("node", f"127.0.0.1:{other}", "validate")
    assert answer.status == 14
    assert answer.err.count("--data-port says which it is") == 1


def test_the_options_of_the_connection_stand_anywhere(served: Served) -> None:
    address, option, port = at(served)
    for words in (
        [option, port, address, "list"],
        [address, option, port, "list"],
        [address, "list", option, port],
        [address, "list", f"{option}={port}", "--timeout", "9s"],
        ["--timeout", "9s", address, "max-transaction-id", "--partition", 0, option, port],
    ):
        answer = invoke("node", *words)
        assert answer.status == 0, answer.err


def test_a_wrong_way_to_connect_is_explained(served: Served) -> None:
    admin = f"127.0.0.1:{served.ready['admin_port']}"
    answer = invoke("node", admin, "--plaintext", "--timeout", "20s", "list")
    assert answer.status == 14
    assert "does the port expect TLS" in answer.err
    answer = invoke("node", f"127.0.0.1:{served.ready['port']}", "list")
    assert answer.status == 14
    assert "this is the data port of a storage node" in answer.err
    answer = invoke("node", "192.0.2.1:55281", "--plaintext", "list")
    assert answer.status == 13
    assert "--insecure" in answer.err
    answer = invoke("node", "127.0.0.1:1", "--data-port", 2, "list")
    assert answer.status == 14
    assert "connection refused" in answer.err


def test_trust_on_the_loopback_is_said_on_stderr_unless_quiet(served: Served) -> None:
    assert "taken on trust" in invoke("node", *at(served), "list").err
    assert invoke("node", *at(served), "list", "-q").err == ""


@pytest.mark.turns(10)
def test_a_trust_store_and_a_client_certificate(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "storage", {0: 3})
    authority = Authority()
    own = authority.issue("node", "localhost").write(tmp_path, "PKCS12")
    trusted = authority.write(tmp_path, "PEM")
    client = tmp_path / "client"
    client.mkdir()
    store = authority.issue("operator").write(client, "JKS")
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    with serving(
        storage, "--port", 0, "--http-port", "off", "--key-store", own, "--key-store-password-file", password,
        "--trust-store", trusted, "--trust-store-type", "PEM",
    ) as node:  # fmt: skip
        address = f"localhost:{node.ready['admin_port']}"
        trust = ("--trust-store", trusted, "--trust-store-type", "PEM")
        show = ("--key-store", store, "--key-store-password-file", password)
        answer = run("node", address, *trust, *show, "list", "--format", "ndjson")
        assert answer.status == 0, answer.err
        assert [one["partition"] for one in answer.objects] == [0]
        assert answer.err == ""
        answer = run("node", address, *trust, "list", "--timeout", "20s")
        assert answer.status == 14
        other = run("node", f"127.0.0.1:{node.ready['admin_port']}", *trust, *show, "list")
        assert other.status == 14
        assert "not accepted" in other.err


def test_on_a_terminal_tables_are_shown(served: Served) -> None:
    answer = on_terminal("node", *at(served), "list", columns=120)
    assert answer.status == 0
    assert str(LARGE) in answer.out
    assert "ONLINE" in answer.out


def test_a_damaged_record_is_found_through_the_wire(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "storage", {0: 60}, per_segment=100)
    with serving(storage, "--port", 0, "--http-port", "off", "--plaintext") as node:
        damage_record(segment_of(storage), 30)
        url = f"waltz://127.0.0.1:{node.ready['admin_port']}"
        answer = run("verify", url, "--plaintext", "--format", "ndjson")
        assert answer.status == 4
        _, found, summary = checked(answer, "ndjson")
        assert (found["code"], found["transaction_id"], found["path"]) == ("record-checksum", 30, url)
        assert (summary["status"], summary["exit_status"]) == ("damaged", 4)
        dumped = run("dump", url, "--plaintext", "--format", "ndjson", "--from", 29, "--to", 31)
        assert dumped.status == 4
        assert [one["type"] for one in checked(dumped, "ndjson")] == ["record", "finding", "record"]
        people = run("verify", url, "--plaintext", "--format", "table")
        assert "FAILED" in people.out
        assert "Seen from outside" in people.out
