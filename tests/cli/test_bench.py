"""bench: it says what it is about to do, harms nothing that somebody uses unless told so, and shows what it measured."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests import warm_start
from tests.cli.running import ROOT, Answer, command_line, environment, invoke, on_terminal, run
from tests.reserved_ports import reserved_ports

pytestmark = pytest.mark.turns(10)

PARTITIONS = 12
SHORT = ("--duration", "200ms", "--warm-up", "0", "--plaintext")
SCHEMA = Draft202012Validator(json.loads((ROOT / "docs" / "schemas" / "bench-result.schema.json").read_text()))


@dataclass(frozen=True)
class Served:
    """A node of these tests."""

    address: str
    admin_address: str

    def bench(self, *words: object) -> Answer:
        return invoke("bench", self.address, *SHORT, "--format", "json", *words)

    def last(self, partition: int) -> tuple[int, int | None]:
        """Session in force and last transaction of a partition with records, as a read tells them."""
        (before,) = json.loads(self.bench("--read", "--partition", partition).out)["partitions"]
        return before["session_id"], before["last_transaction_id_after"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A node as a process, with partitions that nothing has used; each test takes its own."""
    place = tmp_path_factory.mktemp("bench")
    made = run("create-cluster", place / "node", "--partitions", PARTITIONS, "--layout", "released")
    assert made.status == 0, made.err
    ready = place / "ready"
    words = ("serve", place / "node", "--port", 0, "--http-port", "off", "--plaintext", "--ready-file", ready)
    process = warm_start.Popen(
        command_line(*words), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()  # what serve prints first, once all ports answer
        assert line, process.stderr.read() if process.stderr else ""
        told = json.loads(ready.read_text())
        yield Served(f"127.0.0.1:{told['port']}", f"127.0.0.1:{told['admin_port']}")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def result(answer: Answer) -> dict[str, Any]:
    """The only object, which its schema accepts."""
    assert answer.status == 0, answer.err
    shown = json.loads(answer.out)
    SCHEMA.validate(shown)
    return dict(shown)


def test_new_partitions_are_loaded_without_asking(node: Served) -> None:
    answer = node.bench("--partition", "0-1", "--batch", 3, "--data-size", 50, "--in-flight", 2)
    shown = result(answer)
    assert (shown["operation"], shown["batch"], shown["data_size"], shown["in_flight"]) == ("append", 3, 50, 2)
    assert shown["transactions"] == 3 * shown["requests"] > 0
    assert shown["data_bytes"] == 50 * shown["transactions"]
    assert sum(row["requests"] for row in shown["histogram"]) == shown["requests"]
    latency = shown["latency_seconds"]
    assert latency["min"] <= latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p999"] <= latency["max"]
    assert [one["partition"] for one in shown["partitions"]] == [0, 1]
    for one in shown["partitions"]:
        assert (one["session_id"], one["last_transaction_id_before"]) == (0, None)
        assert (one["last_transaction_id_after"] + 1) % 3 == 0
    assert "appending transactions to partition 0-1" in answer.err
    assert "they stay there" in answer.err
    assert "shuts out" not in answer.err


def test_a_partition_in_use_is_refused_without_yes_and_stays_as_it_is(node: Served) -> None:
    result(node.bench("--partition", 2))
    before = node.last(2)
    answer = node.bench("--partition", 2)
    assert (answer.status, [one["type"] for one in answer.objects]) == (13, ["error"])
    assert "partition 2: it is in use or was" in answer.err
    assert "shuts out any server that uses the partition (2: 1 after 0)" in answer.err
    assert node.last(2) == before
    (after,) = result(node.bench("--partition", 2, "--yes"))["partitions"]
    assert (after["session_id"], after["last_transaction_id_before"]) == (1, before[1])
    assert after["last_transaction_id_after"] > before[1]


def test_truncate_needs_yes_and_removes_only_what_was_appended(node: Served) -> None:
    answer = node.bench("--partition", 3, "--truncate")
    assert (answer.status, [one["type"] for one in answer.objects]) == (13, ["error"])
    assert "--truncate removes transactions" in answer.err
    result(node.bench("--partition", 3))
    _, last = node.last(3)
    answer = node.bench("--partition", 3, "--truncate", "--yes")
    shown = result(answer)
    assert shown["truncated"]
    assert shown["partitions"][0]["last_transaction_id_after"] > last
    assert "they are removed again at the end" in answer.err
    assert node.last(3) == (1, last)


def test_reading_changes_nothing_and_needs_no_yes(node: Served) -> None:
    result(node.bench("--partition", 4, "--batch", 10))
    before = node.last(4)
    answer = node.bench("--partition", 4, "--read", "--batch", 7)
    shown = result(answer)
    assert (shown["operation"], shown["data_size"], shown["transactions"]) == ("read", None, 7 * shown["requests"])
    assert "nothing is written" in answer.err
    assert node.last(4) == before


def test_reading_lists_longer_than_the_partition_is_refused(node: Served) -> None:
    answer = node.bench("--partition", 5, "--read")
    assert (answer.status, [one["type"] for one in answer.objects]) == (13, ["error"])
    assert "partition 5 holds 0 records, too few for lists of 1" in answer.err


def test_reading_in_a_newer_session_needs_yes(node: Served) -> None:
    result(node.bench("--partition", 6))
    answer = node.bench("--partition", 6, "--read", "--session", 9)
    assert answer.status == 13
    assert "(6: 9 after 0)" in answer.err
    assert node.last(6)[0] == 0
    result(node.bench("--partition", 6, "--read", "--session", 9, "--yes"))
    assert node.last(6)[0] == 9


def test_on_a_terminal_the_number_is_asked_and_bars_are_shown(node: Served) -> None:
    result(node.bench("--partition", 7))
    words = ("bench", node.address, *SHORT, "--partition", 7)
    left = on_terminal(*words, typed=b"no\n", after=b"anything else to leave")
    assert left.status == 13
    assert "not confirmed" in left.out
    agreed = on_terminal(*words, typed=b"7\n", after=b"anything else to leave")
    assert agreed.status == 0
    assert re.search(r"^99 % +[0-9.]+ ms$", agreed.out, re.M)
    assert re.search(r"^up to +[0-9.]+ ms +[0-9,]+  #+$", agreed.out, re.M)
    assert re.search(r"^APPENDED  [0-9,]+ transactions a second\. They stay\.$", agreed.out, re.M)


def test_an_interrupt_still_takes_away_what_was_appended(node: Served) -> None:
    result(node.bench("--partition", 8))
    before = node.last(8)
    words = ("bench", node.address, "--plaintext", "--partition", 8, "--duration", "1h", "--truncate", "--yes", "-v")
    process = warm_start.Popen(
        command_line(*words), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "measuring" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, "")
    assert "what was appended until then was removed again" in err
    assert "interrupted" in err
    assert node.last(8) == (before[0] + 1, before[1])


@pytest.mark.parametrize("form", ["plain", "ndjson"])
def test_the_other_formats_hold_the_same(node: Served, form: str) -> None:
    partition = {"plain": 9, "ndjson": 10}[form]
    answer = invoke("bench", node.address, *SHORT, "--partition", partition, "--format", form)
    assert answer.status == 0
    if form == "ndjson":
        (shown,) = answer.objects
        SCHEMA.validate(shown)
    else:
        kinds = {line.split("\t")[0] for line in answer.out.splitlines() if not line.startswith("#")}
        assert kinds == {"bench-result", "bench-result.partitions", "bench-result.histogram"}


def test_what_cannot_be_meant_is_a_usage_error(node: Served) -> None:
    assert node.bench("--read", "--truncate").status == 2
    assert node.bench("--data-size", "much").status == 2
    assert node.bench("--duration", "0").status == 2
    assert node.bench("--batch", 100_000, "--data-size", "1MiB").status == 2
    assert invoke("bench", "nowhere", *SHORT).status == 2


def test_a_partition_that_the_node_does_not_have(node: Served) -> None:
    answer = node.bench("--partition", PARTITIONS)
    assert (answer.status, [one["type"] for one in answer.objects]) == (13, ["error"])
    assert f"Partition:{PARTITIONS} is not assigned." in answer.err


def test_a_node_that_is_not_there_and_a_port_that_is_another(node: Served, tmp_path: Path) -> None:
    (port,) = reserved_ports(1)
    answer = invoke("bench", f"127.0.0.1:{port}", *SHORT)
    assert (answer.status, answer.out) == (14, "")
    assert f"127.0.0.1:{port}: cannot connect" in answer.err
    answer = invoke("bench", node.admin_address, *SHORT)
    assert (answer.status, answer.out) == (14, "")
    assert "admin port of a storage node" in answer.err
