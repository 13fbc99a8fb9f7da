"""What nobody can mean, given to every command: an answer in few lines, a status of the contract, and never a traceback."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.builders import build_directory
from tests.cli.running import invoke
from waltzctl.app import app
from waltzctl.exit_status import ExitStatus

ROUNDS = 40
"""Command lines for each command."""
ODDITIES = (
    "", "-", "--", ".", "..", ":", "\n", "\udcff", "ünï", "x" * 5000, "-1", "0", "9" * 20, "1e9", "NaN", "0x10", "1:2:3:4", "all",
    "file:", "s3://", "s3:///b/x", "memory://", "memory://b/x", "nosuch://b", "vault:", "vault:x::y", "waltz://",
    "missing/x", "file", "/dev/null", "d", "d/0", "d/0/0000000000000000000.seg", "d/waltz-storage.ctl",
)  # fmt: skip
NOT_HERE = {("serve",), ("log-server",), ("bench",), ("log", "bench"), ("pipeline", "run")}
"""What would go on until it is stopped, put load on something or start Java."""
OF_SPARK = {"--engine", "--master", "--remote", "--conf", "--package"}


def leaves(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Commands that have no others below them, each with what it is called by."""
    if not hasattr(command, "commands"):
        yield names, command
        return
    for name, one in command.commands.items():
        yield from leaves(one, *names, name)


LEAVES = {names: one for names, one in leaves(get_command(app)) if names not in NOT_HERE}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage directory `d` and a file that is nothing of Waltz."""
    place = tmp_path_factory.mktemp("nonsense")
    build_directory(place / "d", {0: 3, 1: 2})
    (place / "file").write_text("nothing of Waltz\n")
    return place


def nonsense(parameters: list[Any], chance: random.Random) -> list[str]:
    """All that is required and some of what is not, of which hardly anything makes sense."""
    words: list[str] = []
    operands: list[str] = []
    for one in parameters:
        if one.param_type_name == "argument":
            operands += chance.choices(ODDITIES, k=1 if one.nargs == 1 else chance.randint(1, 2))
        elif one.opts[0] not in {"--help", *OF_SPARK} and (one.required or chance.random() < 0.15):
            sensible = [str(getattr(value, "value", value)) for value in getattr(one.type, "choices", ())]
            value = chance.choice(sensible if sensible and chance.random() < 0.7 else ODDITIES)
            words += [one.opts[0]] if one.is_flag else [one.opts[0], value]
    return [*words, *operands]


@pytest.mark.turns(8)
@pytest.mark.parametrize("names", LEAVES, ids=" ".join)
def test_nonsense_is_answered(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    for seed in range(ROUNDS):
        place = tmp_path / str(seed)
        shutil.copytree(given, place)
        monkeypatch.chdir(place)
        words = nonsense(LEAVES[names].params, random.Random(f"{' '.join(names)} {seed}"))
        answer = invoke(*names, *words)
        assert answer.status in set(ExitStatus), (words, answer.err)
        assert "internal error" not in answer.err, (words, answer.err)
        if answer.status:
            assert answer.err or answer.out, words


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("dump", "d", "--format", "raw", "--data", "hex"), "--data"),
        (("dump", "d", "--format", "hexdump", "--data", "json"), "--data"),
        (("salvage", "d", "--control", "--to", "e", "--engine", "spark"), "--engine"),
        (("salvage", "d", "--control", "--to", "e", "--master", "local[1]"), "--master"),
        (("undo", "d", "--dry-run", "--yes"), "--yes"),
        (("verify", "d", "--partition", "0", "--partition", "1"), "--partition"),
        (("verify", "d", "--partition=0", "--partition=0-1"), "--partition"),
        (("dump", "d", "-o", "e", "--output", "f"), "--output"),
        (("set-partition", "d", "--partition", "0", "--assigned", "--unassigned"), "--unassigned"),
        (("cluster", "--metadata", "m", "show", "--metadata", "n"), "--metadata"),
        (("undo", "d", "--prune", "--older-than", "1d", "--dry-run", "--yes"), "--yes"),
        (("log", "tail", "--metadata", "m", "--from", "5", "--to", "4"), "--to"),
        (("node", "127.0.0.1:40001", "records", "--partition", "0", "--from", "5", "--to", "4"), "--to"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else one,
)
def test_options_that_cannot_be_meant_together_are_refused_by_name(
    given: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], named: str
) -> None:
    monkeypatch.chdir(given)
    answer = invoke(*words)
    assert (answer.status, answer.out) == (2, "")
    assert named in answer.err


def test_an_option_may_be_repeated_with_the_value_that_it_has(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(given)
    assert invoke("verify", "d", "-q", "--quiet", "-v", "-v", "--partition", "0", "--partition=0").status == 0
