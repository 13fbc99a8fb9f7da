"""Commands with actions: ``node HOST:PORT list``, with an argument for all actions, ``pages verify DIR``, with one for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

_NO_BRACES = str.maketrans("", "", "{}")
_TYPE = re.compile(r" <[^<>]*>$")


def without_braces(piece: str) -> str:
    """A part of a usage line as in manuals."""
    return piece.translate(_NO_BRACES)


def write_parameters(params: Sequence[Any], ctx: Any, formatter: Any) -> None:
    """Arguments, then options, then options with a heading of their own."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for param in params:
        record = param.get_help_record(ctx)
        if record is not None and param.param_type_name == "argument":
            sections["Arguments"].append((_TYPE.sub("", record[0]), record[1]))
        elif record is not None:
            sections.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(record)
    for heading, shown in sections.items():
        if shown:
            with formatter.section(heading):
                formatter.write_dl(shown)


class ShownContext(typer.Context):
    """A context whose command line, in usage lines and errors, has the group's argument before the action."""

    @property
    def command_path(self) -> str:
        """``waltzctl node HOST:PORT list``."""
        return without_braces(super().command_path)


def taking_one_value(parser: Any, ctx: Any) -> Any:
    """Let a parser refuse options that are given with two different values, of which it would take the last without a word.

    ``verify DIR --partition 0 --partition 2`` would say that all is well of a directory whose partition 0 is damaged.
    """
    if not ctx.resilient_parsing:
        for option in (*parser._short_opt.values(), *parser._long_opt.values()):
            option.process = partial(_process_once, type(option).process, option, ctx)
    return parser


def _process_once(process: Callable[..., None], option: Any, ctx: Any, value: Any, state: Any) -> None:
    before = state.opts.get(option.dest)
    process(option, value, state)
    now = state.opts[option.dest]
    if option.action in {"store", "store_const"} and before is not None and now != before:
        param = option.obj
        names = " / ".join((*param.opts, *param.secondary_opts))
        why = "both cannot be meant" if param.is_flag else f"{before} and {now}: it takes one value"
        raise typer.BadParameter(why, ctx=ctx, param_hint=f"'{names}'")


class ActionTree(TyperGroup):
    """The group of the actions.

    Its own options are accepted anywhere on the command line, also after the action.
    """

    context_class = ShownContext

    def make_parser(self, ctx: Any) -> Any:
        """The parser of the group's own options."""
        return taking_one_value(super().make_parser(ctx), ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The part of the usage line after the command's name."""
        pieces = [without_braces(piece) for piece in super().collect_usage_pieces(ctx)]
        return [piece.replace("COMMAND", "ACTION") for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options, then the actions."""
        write_parameters(self.get_params(ctx), ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The actions, with their summaries."""
        width = formatter.width - 6 - max(len(name) for name in self.commands)
        rows = [(name, action.get_short_help_str(width)) for name, action in self.commands.items()]
        with formatter.section("Actions"):
            formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the group's options to the front, then parse.  An action in place of the group's argument gets an explanation."""
        own, rest = self._sorted(args)
        place = next((param.metavar for param in self.params if param.param_type_name == "argument"), None)
        if place is None:  # the group has no argument
            return super().parse_args(ctx, own + rest)
        action = next((word for word in rest[:2] if word in self.commands or word in ctx.help_option_names), "")
        if action in self.commands and self._asks_for_help(ctx, action, rest):
            # asked for before the group's argument is judged, so that a hint which names that as HOST:PORT can be followed
            names = ctx.help_option_names  # click keeps them for the command, for whoever asks it next
            self.commands[action].main(
                ["--help"], prog_name=f"{ctx.command_path} {place} {action}", help_option_names=names
            )
        if rest and rest[0] in self.commands:
            raise typer.BadParameter(
                f"{rest[0]} is an action; what it acts on stands in front of it", param_hint=f"'{place}'"
            )
        return super().parse_args(ctx, own + rest)

    def _asks_for_help(self, ctx: Any, action: str, words: list[str]) -> bool:
        """Whether the help option is among the words, and not only its name, as the value of an option or behind ``--``."""
        command = self.commands[action]
        # resilient: usage errors are told where the action is parsed
        looking = self.context_class(command, parent=ctx, info_name=action, resilient_parsing=True)
        given, _, _ = command.make_parser(looking).parse_args(list(words))
        return "help" in given

    def _sorted(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """The group's own options with their values, and all other arguments, each in the given order."""
        takes_value = {
            name: not getattr(param, "is_flag", False)
            for param in self.params
            if param.param_type_name == "option"
            for name in param.opts
        }
        own: list[str] = []
        rest: list[str] = []
        left = list(args)
        while left:
            word = left.pop(0)
            name, equals, _ = word.partition("=")
            if word == "--":
                return own, [*rest, word, *left]
            if name not in takes_value:
                rest.append(word)
                continue
            own.append(word)
            if takes_value[name] and not equals and left:
                own.append(left.pop(0))
        return own, rest
