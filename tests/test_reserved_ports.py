"""A reserved port is one process's: whoever else asks gets another one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import reserved_ports as ports
from tests.reserved_ports import HOST, candidates, reserved_ports

ROOT = Path(__file__).resolve().parents[1]
ASKING = """
import json, random, sys
from tests import reserved_ports as ports
ports.random.SystemRandom = lambda: random.Random(1)
first, last = map(int, sys.stdin.readline().split())
ports.candidates = lambda: range(first, last)
print(json.dumps([ports.reserved_ports(2) for _ in range(20)]), flush=True)
sys.stdin.read()
"""
"""Takes ports, always looking from the same one on as the others do, and keeps them until it is told to end."""


AMONG = range(9_000, 9_400)
"""Where nobody else asks, with room for another run of this test at the same time."""


def test_two_processes_that_ask_at_the_same_time_never_get_the_same() -> None:
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", ASKING], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in asking:
        assert process.stdin is not None
        process.stdin.write(f"{AMONG.start} {AMONG.stop}\n")
        process.stdin.flush()
    found = []
    for process in asking:
        assert process.stdout is not None
        found += [port for row in json.loads(process.stdout.readline()) for port in row]
    for process in asking:
        assert process.communicate()[0] == ""
    assert len({*found}) == len(found) == 80
    assert {*found} <= {*AMONG}


def test_they_stand_in_a_row_which_the_system_gives_to_nobody() -> None:
    first, second, third = reserved_ports(3)
    assert (second, third) == (first + 1, first + 2)
    assert {first, second, third} <= {*candidates()}
    for port in (first, second, third):
        with socket.create_server((HOST, port)):
            pass


def test_what_somebody_has_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as server:
        taken = server.getsockname()[1]
        (free,) = reserved_ports(1)
        monkeypatch.setattr(ports, "candidates", lambda: [taken, free])
        with pytest.raises(AssertionError, match=rf"no 1 ports in a row are free, of 2 between {taken} and {free}"):
            reserved_ports(1)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("32768\t60999\n", [*range(10_000, 32_768), *range(61_000, 65_536)]),
        ("1024\t65535\n", [*range(10_000, 65_536)]),
        (None, [*range(10_000, 49_152)]),
    ],
    ids=["usual", "all", "untold"],
)
def test_what_the_system_gives_is_left_to_it(
    given: str | None, left: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "range"
    if given is not None:
        file.write_text(given)
    monkeypatch.setattr(ports, "_GIVEN_BY_SYSTEM", file)
    assert [*candidates()] == left
