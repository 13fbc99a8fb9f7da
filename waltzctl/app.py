"""The command tree.

A command's file is imported, and its parameters are made into those of a parser, only when it is the one that runs; for the
list in ``--help`` the files are imported as well.  None of them imports the engine at that time.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from waltzctl import __version__
from waltzctl.action_tree import ActionTree, ShownContext, without_braces, write_parameters
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Manual
from waltzctl.outcome import conclude, drop_output, system_failed

FILES = (
    "create_cluster", "status", "verify", "dump", "compare", "stats", "rebuild_index", "truncate", "recover", "undo",
    "convert", "set_partition", "append", "salvage", "serve", "node", "bench", "log_server", "cluster", "log",
    "pages", "backup", "pipeline",
)  # fmt: skip
"""Modules of `waltzctl.commands`, one for each command, in the order in which ``--help`` lists them."""

if TYPE_CHECKING:
    COMMANDS: tuple[ModuleType, ...]
    """The files of all commands."""


def __getattr__(name: str) -> object:
    """`COMMANDS`, imported when somebody asks for all of them."""
    if name == "COMMANDS":
        return tuple(map(_file_of, FILES))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _file_of(name: str) -> ModuleType:
    return importlib.import_module(f"waltzctl.commands.{name}")


HELP = """Create, inspect, repair, extend and serve the storage of a Waltz cluster.

Inspecting (status, verify, dump, compare, stats) never writes, takes no lock, and works on a directory in use; status,
verify and dump also on a running node, waltz://HOST:PORT. What repairs shows its plan first, keeps every byte that it
removes or replaces, and can be undone.

serve runs a storage node; node looks after one that runs, ours or one of release 0.13.2; bench measures it. log-server runs
a log server, and cluster looks after both and the metadata that they share. backup keeps backups of storage directories, live
ones as well, and every command that inspects reads vault:VAULT::ID without restoring it. pipeline keeps the log as tables, by
Spark."""

EPILOG = """\b
Examples:
  waltzctl status /var/lib/waltz
  waltzctl verify /var/lib/waltz
  waltzctl recover /var/lib/waltz --dry-run
  waltzctl serve /var/lib/waltz
  waltzctl node 127.0.0.1:55281 list

\b
Exit status, the same for every command:
""" + "\n".join(f"  {status.value:<4} {status.meaning}" for status in ExitStatus)


class Command(TyperCommand):
    """A command whose help names its arguments the way manuals do: ``PATH...``, without the type they have in the code."""

    context_class = ShownContext

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows the command's name in the usage line."""
        return [without_braces(piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then options, then those under a heading of their own."""
        write_parameters(self.get_params(ctx), ctx, formatter)


class Commands(Mapping[str, Any]):
    """The parsers of the commands by their names, each made when it is asked for."""

    def __init__(self) -> None:
        self._files = {name.replace("_", "-"): name for name in FILES}
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _parser_of(_file_of(self._files[name]))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


PARSERS = Commands()
"""Of this process: to make a parser takes longer than many a command, so whoever runs several makes each once."""


class CommandTree(TyperGroup):
    """The top of the tree, where a command's answer or error becomes the exit status."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: Any = PARSERS

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands with their summaries, which need no parser."""
        with formatter.section("Commands"):
            formatter.write_dl([(manual.name, manual.summary) for manual in map(manual_of, map(_file_of, FILES))])

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        run = super().invoke
        raise typer.Exit(int(conclude(lambda: run(ctx))))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Parse and run; ends in SystemExit.  Help into a closed pipe is no error, onto a full disk it is."""
        try:
            return super().main(
                args, prog_name or "waltzctl", complete_var, standalone_mode, windows_expand_args, **extra
            )
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):
                drop_output()
                raise SystemExit(int(ExitStatus.CLEAN)) from None
            raise
        except OSError as error:  # help and version are written before a command begins
            raise SystemExit(int(system_failed(error))) from None


app = typer.Typer(
    name="waltzctl",
    cls=CommandTree,
    help=HELP,
    epilog=EPILOG,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def manual_of(command: ModuleType) -> Manual:
    """The documentation of a command's file."""
    manual = command.MANUAL
    assert isinstance(manual, Manual)
    return manual


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"waltzctl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def actions_of(command: ModuleType) -> tuple[ModuleType, ...]:
    """The files of a command's actions; none for a command that is one itself."""
    actions = getattr(command, "ACTIONS", ())
    assert isinstance(actions, tuple)
    return actions


def _parser_of(command: ModuleType) -> Any:
    """What parses a command's arguments and runs it; for one with actions, a tree of them."""
    alone = typer.Typer(name=manual_of(command).name, add_completion=False, rich_markup_mode=None)
    _add(alone, command)
    made: Any = get_command(alone)
    return made.commands[manual_of(command).name] if actions_of(command) else made


def _add(tree: typer.Typer, command: ModuleType) -> None:
    manual = manual_of(command)
    actions = actions_of(command)
    if not actions:
        tree.command(manual.name, cls=Command, help=manual.help_text, short_help=manual.summary, epilog=manual.epilog)(
            command.run
        )
        return
    group = typer.Typer(cls=ActionTree, no_args_is_help=True, rich_markup_mode=None)
    group.callback()(command.run)
    for action in actions:
        _add(group, action)
    tree.add_typer(group, name=manual.name, help=manual.help_text, short_help=manual.summary, epilog=manual.epilog)
