"""The documentation of a command: the only source of its ``--help`` and of its manual page."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from waltzctl.exit_status import ExitStatus


def command_lines(command: str, width: int) -> list[str]:
    """A command line in lines of at most `width` characters, continued with backslashes."""
    lines: list[str] = []
    indent = ""
    while len(indent + command) > width:
        place = command.rfind(" ", 0, width - len(indent) - 1)
        option = max(command.rfind(" -", 0, width - len(indent) - 1), command.rfind(" | ", 0, width - len(indent) - 1))
        place = option if option > width // 3 else place
        if place <= 0:
            break
        lines.append(f"{indent}{command[:place]} \\")
        command, indent = command[place + 1 :], "    "
    return [*lines, indent + command]


@dataclass(frozen=True, slots=True)
class Example:
    """A complete command line, and its purpose."""

    command: str
    purpose: str


@dataclass(frozen=True, slots=True)
class ManualSection:
    """A part of the manual page that ``--help`` leaves out."""

    heading: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manual:
    """A command's documentation.

    `summary`: one line without a full stop.  `description`: the paragraphs after it.  `statuses`: the command's exit statuses.
    `objects`: the names of the JSON objects that it prints.  `page`: the command whose manual page includes this one, if any.
    """

    name: str
    summary: str
    description: tuple[str, ...]
    examples: tuple[Example, ...]
    statuses: tuple[ExitStatus, ...]
    objects: tuple[str, ...]
    sections: tuple[ManualSection, ...] = ()
    page: str | None = None

    @property
    def help_text(self) -> str:
        """The text of ``--help`` between usage and options."""
        return "\n\n".join((f"{self.summary}.", *self.description))

    @property
    def epilog(self) -> str:
        """The text of ``--help`` after the options: examples and exit statuses, in their final layout."""
        lines = ["\b", "Examples:"]
        for example in self.examples:
            lines += [f"  {line}" for line in command_lines(example.command, 74)]
            lines += textwrap.wrap(example.purpose, 72, initial_indent=" " * 6, subsequent_indent=" " * 6)
        lines += ["", "\b", "Exit status:"]
        lines += [f"  {status.value:<4} {status.meaning}" for status in sorted(self.statuses)]
        lines += ["", f"Manual: man waltzctl-{self.page or self.name}; finding codes: man 7 waltzctl-findings"]
        return "\n".join(lines)
