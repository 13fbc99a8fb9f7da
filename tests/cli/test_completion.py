"""Shell completion: commands, options and the values of an option, for the three shells."""

from __future__ import annotations

import subprocess

import pytest

from tests.cli.running import command_line, environment


def complete(shell: str, words: str) -> str:
    changes = {"_WALTZCTL_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        changes |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    else:
        changes |= {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run(command_line(), capture_output=True, env=environment(**changes), check=True, text=True)
    return done.stdout


@pytest.mark.turns(12)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_options_and_values_are_completed(shell: str) -> None:
    assert "rebuild-index" in complete(shell, "waltzctl re")
    assert "recover" in complete(shell, "waltzctl re")
    assert "verify" not in complete(shell, "waltzctl re")
    assert "--allow-data-loss" in complete(shell, "waltzctl recover --al")
    values = complete(shell, "waltzctl dump --format ")
    for value in ("table", "plain", "json", "ndjson", "hexdump", "raw"):
        assert value in values
    assert "released" in complete(shell, "waltzctl create-cluster --layout re")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str) -> None:
    done = subprocess.run(
        command_line(),
        capture_output=True,
        env=environment(_WALTZCTL_COMPLETE=f"source_{shell}"),
        check=True,
        text=True,
    )
    assert "_WALTZCTL_COMPLETE" in done.stdout
    assert "waltzctl" in done.stdout
