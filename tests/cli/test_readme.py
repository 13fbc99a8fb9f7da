"""The README's recipes for a node and for backups do what they say, as they stand."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import build_directory, make_records
from tests.cli.nodes import serving, write_config
from tests.cli.running import ROOT, Answer, environment, run
from tests.reserved_ports import reserved_ports
from waltzctl.engine.storage.directory import StorageDirectory

PATIENCE = 300
RECORDS, MARK = 40, 29
"""Of partition 3 of the source: how many there are, and up to which one they are acknowledged."""


def section(heading: str) -> str:
    """What stands under a heading."""
    text = (ROOT / "README.md").read_text()
    ((_, body),) = re.findall(rf"^(## {heading})\n(.*?)(?=^## )", text, re.M | re.S)
    assert isinstance(body, str)
    return body


def blocks(heading: str) -> dict[str, str]:
    """The fenced blocks of a section, by their language."""
    return dict(re.findall(r"^```(\w+)\n(.*?)^```$", section(heading), re.M | re.S))


def commands(text: str) -> list[str]:
    """What is typed in a console, line by line."""
    return re.findall(r"^\$ (.*)$", text, re.M)


@pytest.mark.turns(8)
def test_the_recipe_for_a_node(tmp_path: Path) -> None:
    found = blocks("A node")
    ports = reserved_ports(3)
    (tmp_path / "data").mkdir()
    (tmp_path / "append.py").write_text(found["python"])
    program = tmp_path / "bin" / "waltzctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m waltzctl "$@"\n')
    program.chmod(0o755)
    typed = commands(found["console"])
    assert len(typed) == 9
    script = (
        "\n".join(["set -e", *typed]).replace("/data/", f"{tmp_path}/data/").replace("python3 ", f'"{sys.executable}" ')
    )
    script = script.replace("55280", str(ports[0])).replace("55281", str(ports[1]))
    assert script.count("--duration 2s") == 1
    script = script.replace("--duration 2s", "--duration 100ms --warm-up 10ms")  # all is read over the wire afterwards
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE,
        env=environment(PATH=f"{program.parent}:/usr/bin:/bin"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "data" / "waltz.ready").exists()
    with StorageDirectory.open(tmp_path / "data" / "waltz") as storage:
        assert storage.partition(0).max_transaction_id == 9
        assert storage.partition(0).read(9).data == b"transaction 9"
        assert all(storage.partition(number).max_transaction_id >= 99 for number in (1, 2, 3))
    assert "OK" in done.stdout


@pytest.mark.turns(10)
def test_the_examples_of_what_is_done_to_a_running_node(tmp_path: Path) -> None:
    build_directory(tmp_path / "n1", {3: RECORDS}, num_partitions=4, local_low_water_mark=MARK)
    begun = make_records(RECORDS, partition=3)[:10]
    build_directory(tmp_path / "n2", {3: [begun]}, num_partitions=4, local_low_water_mark=len(begun) - 1)
    free = ("--port", 0, "--http-port", "off")
    with serving(tmp_path / "n1", *free) as source, serving(tmp_path / "n2", *free) as target:
        for line in blocks("A node")["sh"].splitlines():
            words = line.replace("n1:55281", f"127.0.0.1:{source.ready['admin_port']}").split()
            address = f"127.0.0.1:{target.ready['admin_port']}"
            words = [address if word == "n2:55281" else word for word in words]
            answer = run(*words[1:], "--data-port", target.ready["port"])
            assert answer.status == 0, answer.err
        answer = run("dump", f"waltz://{address}", "--partition", 3, "--format", "ndjson")
        assert len(answer.objects) == MARK + 1


@pytest.mark.turns(8)
def test_the_recipes_for_backups(tmp_path: Path) -> None:
    waltz, vault, store = tmp_path / "waltz", tmp_path / "vault", tmp_path / "ca.pem"
    build_directory(waltz, {0: RECORDS, 2: RECORDS}, num_partitions=3, local_low_water_mark=MARK)
    places = {"/backup/waltz": vault, "/var/lib/waltz": waltz, "ca.jks": store, "41000": 30}

    def words(line: str, **others: object) -> list[str]:
        for written, here in (places | others).items():
            line = line.replace(written, str(here))
        return line.split()[1:]

    def done(line: str, **others: object) -> Answer:
        answer = run(*words(line, **others))
        assert answer.status == 0, line + answer.err
        return answer

    free = ("--port", 0, "--admin-port", 0, "--http-port", "off")
    init, create, forget, far, restore, serve, listed, dump, compare = commands(section("Backups"))
    done(init)
    done(create)
    first = run("backup", "list", vault, "--format", "ndjson").objects[0]["id"]
    done(forget)
    with serving(waltz, *free) as node:
        store.write_text(ssl.DER_cert_to_PEM_cert(node.certificate("admin_port")))
        done(far + " --trust-store-type PEM", **{"storage-1:55281": f"127.0.0.1:{node.ready['admin_port']}"})
        assert node.stop() == 0
    shutil.move(waltz, tmp_path / "gone")
    done(restore)
    config = write_config(tmp_path / "waltz.yaml", waltz, [*reserved_ports(3)])
    with serving(*words(serve, **{"/etc/waltz/waltz-storage.yaml": config})[1:]) as node:
        assert node.stop() == 0
    assert first in done(listed).out
    assert len(done(dump + " --format ndjson", **{"3f20": first[:8]}).objects) == 5
    assert "EQUAL" in done(compare, **{"3f20": first[:8]}).out
