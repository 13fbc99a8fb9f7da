"""The command tree.

A command's module is imported, and its parser built, only when the command runs; for the list in ``--help`` all modules are
imported.  None of them imports the engine when it is imported.
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
from waltzctl.action_tree import ActionTree, ShownContext, taking_one_value, without_braces, write_parameters
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
    """The modules of all commands."""


def __getattr__(name: str) -> object:
    """`COMMANDS`, imported at its first use."""
    if name == "COMMANDS":
        return tuple(map(_command_module, FILES))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _command_module(name: str) -> ModuleType:
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
    """A command whose help names its arguments as manuals do: ``PATH...``, without their Python type."""

    context_class = ShownContext

    def make_parser(self, ctx: Any) -> Any:
        """The parser of the command's options."""
        return taking_one_value(super().make_parser(ctx), ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The part of the usage line after the command's name."""
        return [without_braces(piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then options, then options with a heading of their own."""
        write_parameters(self.get_params(ctx), ctx, formatter)


class Commands(Mapping[str, Any]):
    """The parsers of the commands by name, each built at its first use."""

    def __init__(self) -> None:
        self._files = {name.replace("_", "-"): name for name in FILES}
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _parser_of(_command_module(self._files[name]))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


PARSERS = Commands()
"""A cache for this process, as building a parser may take longer than its command runs."""


class CommandTree(TyperGroup):
    """The root of the tree, where a command's return value or exception becomes the exit status."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: Any = PARSERS

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands with their summaries, without building their parsers."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(manual.name, manual.summary) for manual in map(manual_of, map(_command_module, FILES))]
            )

    def invoke(self, ctx: Any) -> Any:
        """Run the given command."""
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
        """Parse and run; raises SystemExit.  A closed pipe during ``--help`` is no error; a full disk is one."""
        try:
            return super().main(
                args, prog_name or "waltzctl", complete_var, standalone_mode, windows_expand_args, **extra
            )
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):
                drop_output()
                raise SystemExit(int(ExitStatus.CLEAN)) from None
            raise
        # from printing help, version or what is wrong with the arguments, before a command runs
        except OSError as error:
            failed = int(system_failed(error))
            # on stderr, which changes no exit status, what is wrong with the arguments was to be printed
            raise SystemExit(getattr(error.__context__, "exit_code", failed)) from None


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
    """The documentation of a command's module."""
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
    """The modules of a command's actions; none for a command without actions."""
    actions = getattr(command, "ACTIONS", ())
    assert isinstance(actions, tuple)
    return actions


def _parser_of(command: ModuleType) -> Any:
    """The parser of a command, which also runs it; for a command with actions, the tree of these."""
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
