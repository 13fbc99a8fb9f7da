"""The README's recipe for a node does what it says, as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from engine.storage.directory import StorageDirectory
from tests.cli.nodes import unused_ports
from tests.cli.running import ROOT, environment

PATIENCE = 300


def blocks(section: str) -> dict[str, str]:
    """The fenced blocks of a section, by their language."""
    text = (ROOT / "README.md").read_text()
    ((_, body),) = re.findall(rf"^(## {section})\n(.*?)(?=^## )", text, re.M | re.S)
    return dict(re.findall(r"^```(\w+)\n(.*?)^```$", body, re.M | re.S))


def test_the_recipe_for_a_node(tmp_path: Path) -> None:
    found = blocks("A node")
    ports = unused_ports(3)
    (tmp_path / "data").mkdir()
    (tmp_path / "append.py").write_text(found["python"])
    program = tmp_path / "bin" / "waltzctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m waltzctl "$@"\n')
    program.chmod(0o755)
    commands = re.findall(r"^\$ (.*)$", found["console"], re.M)
    assert len(commands) == 8
    script = (
        "\n".join(["set -e", *commands])
        .replace("/data/", f"{tmp_path}/data/")
        .replace("python3 ", f'"{sys.executable}" ')
    )
    script = script.replace("55280", str(ports[0])).replace("55281", str(ports[1]))
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
