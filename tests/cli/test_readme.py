"""The README's recipe for a node does what it says, as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.builders import build_directory, make_records
from tests.cli.nodes import serving
from tests.cli.running import ROOT, environment, run
from tests.reserved_ports import reserved_ports
from waltzctl.engine.storage.directory import StorageDirectory

PATIENCE = 300
RECORDS, MARK = 40, 29
"""Of partition 3 of the source: how many there are, and up to which one they are acknowledged."""


def blocks(section: str) -> dict[str, str]:
    """The fenced blocks of a section, by their language."""
    text = (ROOT / "README.md").read_text()
    ((_, body),) = re.findall(rf"^(## {section})\n(.*?)(?=^## )", text, re.M | re.S)
    return dict(re.findall(r"^```(\w+)\n(.*?)^```$", body, re.M | re.S))


def test_the_recipe_for_a_node(tmp_path: Path) -> None:
    found = blocks("A node")
    ports = reserved_ports(3)
    (tmp_path / "data").mkdir()
    (tmp_path / "append.py").write_text(found["python"])
    program = tmp_path / "bin" / "waltzctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m waltzctl "$@"\n')
    program.chmod(0o755)
    commands = re.findall(r"^\$ (.*)$", found["console"], re.M)
    assert len(commands) == 9
    script = (
        "\n".join(["set -e", *commands])
        .replace("/data/", f"{tmp_path}/data/")
        .replace("python3 ", f'"{sys.executable}" ')
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
