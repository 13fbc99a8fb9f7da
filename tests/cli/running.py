"""Running the command line from tests: in this process where that is enough, as a process where pipes or signals matter."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from tests import warm_start
from waltzctl.app import app

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The objects of ndjson output."""
        return [json.loads(line) for line in self.out.splitlines()]

    def only(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.objects if one["type"] == kind]


def invoke(*arguments: object, given: str | bytes | None = None) -> Answer:
    """In this process; stdin is no terminal."""
    result = CliRunner().invoke(app, [os.fspath(a) if isinstance(a, Path) else str(a) for a in arguments], input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def parsed(name: str, *arguments: str) -> dict[str, Any]:
    """The arguments of a command or action, as it would get them.  Raises for an option that is none."""
    tree: Any = get_command(app)
    context = tree.make_context("waltzctl", [], resilient_parsing=True)
    parser = tree.commands[name]
    context = parser.make_context(name, list(arguments), parent=context)
    if hasattr(parser, "commands"):
        action, *arguments_of_it = [*context._protected_args, *context.args]
        context = parser.commands[action].make_context(action, arguments_of_it, parent=context)
    parameters: dict[str, Any] = context.params
    return parameters


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES", "TERM")}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm", **changes}


def command_line(*arguments: object) -> list[Any]:
    return [sys.executable, "-m", "waltzctl", *(a if isinstance(a, bytes) else str(a) for a in arguments)]


def run(*arguments: object, given: bytes = b"", **changes: str) -> Answer:
    """As a process of its own, through pipes."""
    done = warm_start.run(command_line(*arguments), given=given, env=environment(**changes), timeout=120)
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


def on_full_disk(*arguments: object, given: bytes = b"") -> Answer:
    """As a process of its own whose stdout takes nothing."""
    with open("/dev/full", "wb") as full:
        done = warm_start.run(
            command_line(*arguments), given=given, stdout=full, stderr=subprocess.PIPE, env=environment()
        )
    return Answer(done.returncode, "", done.stderr.decode())


def on_terminal(
    *arguments: object, typed: bytes = b"", after: bytes = b"", columns: int = 80, **changes: str
) -> Answer:
    """With a terminal for everything; `typed` is entered once `after` has been shown.  All output is in `out`."""
    leader, follower = pty.openpty()
    env = environment(COLUMNS=str(columns), **changes)
    process = warm_start.Popen(
        command_line(*arguments), stdin=follower, stdout=follower, stderr=follower, env=env, controlling=True
    )
    os.close(follower)
    shown = b""
    waiting = typed
    try:
        while True:
            ready, _, _ = select.select([leader], [], [], 120)
            assert ready, "the command shows nothing and does not end"
            try:
                part = os.read(leader, 65536)
            except OSError:  # Linux reports the end of a terminal's other side as an input/output error
                break
            if not part:
                break
            shown += part
            if waiting and after in shown:
                os.write(leader, waiting)
                waiting = b""
        return Answer(process.wait(120), shown.decode(errors="replace").replace("\r\n", "\n"), "")
    finally:
        os.close(leader)
        process.wait()
