"""Every command is documented: help, examples that parse, exit statuses, schemas; and all of it fits 80 columns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from tests.cli.running import ROOT, invoke, on_terminal, parsed, run
from waltzctl import __version__
from waltzctl.app import COMMANDS, actions_of, app, manual_of
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import command_lines

TREE: Any = get_command(app)
every_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: manual_of(command).name)
NAMES = (
    "create-cluster",
    "verify",
    "dump",
    "compare",
    "stats",
    "status",
    "rebuild-index",
    "truncate",
    "recover",
    "set-partition",
    "undo",
    "convert",
    "append",
    "salvage",
    "serve",
    "node",
    "bench",
)


def test_every_command_of_the_contract_is_there() -> None:
    assert set(NAMES) <= set(TREE.commands)


@every_command
def test_help_shows_summary_examples_and_exit_statuses(command: ModuleType) -> None:
    manual = manual_of(command)
    answer = invoke(manual.name, "--help")
    assert answer.status == 0
    assert manual.summary in answer.out
    assert manual.examples
    for example in manual.examples:
        assert command_lines(example.command, 74)[0] in answer.out
    assert {ExitStatus.CLEAN, ExitStatus.USAGE} <= set(manual.statuses)
    for status in manual.statuses:
        assert f"  {int(status):<4} {status.meaning}" in answer.out
    assert max(len(line) for line in answer.out.splitlines()) <= 80


def commands_of(command: ModuleType) -> list[Any]:
    """The command, or, where it has actions, each of them."""
    found = TREE.commands[manual_of(command).name]
    return [found.commands[manual_of(action).name] for action in actions_of(command)] or [found]


@every_command
def test_every_option_says_what_it_does(command: ModuleType) -> None:
    for one in (TREE.commands[manual_of(command).name], *commands_of(command)):
        for param in one.params:
            assert param.help, param.name


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    ("command", "action"),
    [(command, action) for command in COMMANDS for action in actions_of(command)],
    ids=lambda module: manual_of(module).name,
)
def test_an_action_has_help_with_examples_and_exit_statuses(command: ModuleType, action: ModuleType) -> None:
    manual = manual_of(action)
    acts_on = any(param.param_type_name == "argument" for param in TREE.commands[manual_of(command).name].params)
    named = [[place, manual.name, "--help"] for place in ("h:2", "h:1", "HOST:PORT")]  # the last is what a hint prints
    for place in (*(named if acts_on else []), [manual.name, "--help"]):
        answer = invoke(manual_of(command).name, *place)
        assert answer.status == 0
        assert manual.summary in answer.out
        for example in manual.examples:
            assert command_lines(example.command, 74)[0] in answer.out
        for status in manual.statuses:
            assert f"  {int(status):<4} {status.meaning}" in answer.out
        assert max(len(line) for line in answer.out.splitlines()) <= 80
    assert set(manual.statuses) <= set(manual_of(command).statuses)
    assert set(manual.objects) <= set(manual_of(command).objects)


@pytest.mark.parametrize("words", ["--trust-store -h", "-o -h", "-- -h", "--from -h"])
def test_the_name_of_the_help_option_as_a_value_asks_for_no_help(words: str) -> None:
    """``node HOST:1 records -o -h`` was a success that wrote nothing."""
    answer = invoke("node", "h:1", "records", "--partition", "0", *words.split())
    assert (answer.status, answer.out) == (ExitStatus.USAGE, "")


def split_at(separator: str, words: list[str]) -> Iterator[list[str]]:
    while separator in words:
        place = words.index(separator)
        yield words[:place]
        words = words[place + 1 :]
    yield words


@every_command
def test_the_examples_can_be_typed_as_they_stand(command: ModuleType) -> None:
    seen = set()
    examples = [example for one in (command, *actions_of(command)) for example in manual_of(one).examples]
    for example in examples:
        for words in split_at("|", shlex.split(example.command)):
            name, *arguments = next(split_at(">", words))[1:] or [""]
            if words[0] == "waltzctl":
                parsed(name, *arguments)
                seen.add(name)
    assert manual_of(command).name in seen


@every_command
def test_every_object_has_a_schema(command: ModuleType) -> None:
    for name in manual_of(command).objects:
        assert (ROOT / "docs" / "schemas" / f"{name}.schema.json").is_file()


@every_command
def test_every_command_has_the_options_of_all(command: ModuleType) -> None:
    for one in commands_of(command):
        options = {option for param in one.params for option in param.opts}
        assert {"--format", "-q", "-v"} <= options


def test_nothing_asked_is_a_usage_error_that_shows_the_help() -> None:
    answer = run()
    assert (answer.status, answer.out) == (2, "")
    assert "Commands:" in answer.err


def test_help_on_a_terminal_of_80_columns() -> None:
    answer = on_terminal("--help")
    assert answer.status == 0
    assert max(len(line) for line in answer.out.splitlines()) <= 80
    for name in NAMES:
        assert f"\n  {name} " in answer.out
    listed = answer.out[answer.out.index("Commands:") :]
    places = [listed.index(f"\n  {manual_of(command).name} ") for command in COMMANDS]
    assert places == sorted(places)


def test_version() -> None:
    assert invoke("--version").out == f"waltzctl {__version__}\n"


@pytest.mark.parametrize("width", [40, 66, 74])
def test_a_long_example_is_continued_as_a_shell_reads_it(width: int) -> None:
    for command in COMMANDS:
        for example in manual_of(command).examples:
            joined = "\n".join(command_lines(example.command, width)).replace(" \\\n    ", " ")
            assert joined == example.command
            if width > 40:
                assert all(len(line) <= width for line in command_lines(example.command, width))
