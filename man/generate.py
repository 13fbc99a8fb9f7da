"""Write the manual pages from the command tree and the catalogue of findings: ``python man/generate.py``.

Options come from the commands themselves, settings from their declarations, prose and examples from their `MANUAL`, finding
codes from the engine's catalogue; what only the overview says stands here.  ``tests/cli/test_manual_pages.py`` fails when a
committed page is not what this program writes.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

from typer.main import get_command

from waltzctl import __version__
from waltzctl.app import COMMANDS, actions_of, app, manual_of
from waltzctl.engine.findings import CATALOGUE, Severity
from waltzctl.exit_status import ExitStatus
from waltzctl.formats.fence import FENCE_FILE_NAME
from waltzctl.manual import ManualSection, command_lines
from waltzctl.setting_options import WithSettings

HERE = Path(__file__).resolve().parent
CODE_WIDTH = 66
"""Characters of an unfilled line; with man's indentation it stays within 80 columns."""

OVERVIEW = (
    ".PP",
    (
        "waltzctl works on the storage directory of a Waltz node: a control file, and for each partition a directory of"
        " segments with their indexes. It reads and writes the files of release 0.13.2 and those of the design documents. It"
        " also serves such a directory (serve), and looks after a node that runs, its own or one of release 0.13.2 (node, bench,"
        " and waltz://HOST:PORT instead of a path for verify, dump and status)."
    ),
    ".PP",
    (
        "Commands that inspect open read-only, take no lock and change nothing, not even a time; they work while a node runs."
        " Commands that change something take the directory's lock, show a plan, keep every byte that they remove or replace,"
        " verify afterwards, and can be undone."
    ),
)

FORMATS = (
    ("table", "For people; the default on a terminal. Colours unless NO_COLOR is set."),
    (
        "plain",
        (
            "The default elsewhere. Lines of columns with a tab between them, never shortened. The first column names the"
            " object; lines that begin with # name the columns or are sentences. A missing value, or a list of none, is a"
            " single minus sign."
        ),
    ),
    (
        "json",
        (
            "One document: the object itself where a command answers with exactly one (create-cluster, status, truncate,"
            " rebuild-index, recover, convert, set-partition, undo, append, salvage, serve, bench, node max-transaction-id, and"
            " whatever"
            " changes a node), otherwise an array (verify, dump, compare, stats, undo --list, serve --show-config or --live, and"
            " the rest of node)."
        ),
    ),
    ("ndjson", "One object a line, each with schema and type."),
)

RULES = (
    (
        "Transaction ids, offsets and sizes are numbers; some readers of JSON round beyond 2^53. Checksums are eight hex"
        " digits, times RFC 3339 in UTC with milliseconds, bytes base64 under a key that ends in _b64. A missing value is null."
        " Keys are added, never renamed; docs/schemas holds a JSON Schema for each object."
    ),
    (
        "Results go to standard output, everything else to standard error. A reader that goes away, as head does, ends a"
        " command that only reads quietly, with the status of the worst that it had found by then."
    ),
)

ENVIRONMENT = (
    ("NO_COLOR", "Set to anything: no colours."),
    ("COLUMNS", "Width of tables, where the terminal does not tell."),
)

FILES = (
    ("waltz-storage.ctl", "The control file: cluster key, and for each partition session and low-water marks."),
    ("P/N.seg, P/N.idx", "A segment of partition P that begins at transaction N (19 digits), and its index."),
    (
        ".waltzctl/",
        "What waltzctl keeps: lock, availability marks, quarantine, journal, partitions that were taken away.",
    ),
    (
        ".waltzctl/commit-journal.json",
        (
            "Where the commit journal of serve --journal is. It is there while the control file says that acknowledged records"
            " may stand in the journal only; a release does not start then."
        ),
    ),
    (
        f".waltzctl/{FENCE_FILE_NAME}",
        (
            "For each partition the highest session that a node let in, so that a restart lets no older one in again. The"
            " control file has the session of the last low-water mark. Written by serve; released nodes ignore it."
        ),
    ),
)

COMPLETION = (
    (
        "waltzctl --install-completion sets completion up for the shell it is called from (bash, zsh or fish);"
        " waltzctl --show-completion prints the script instead. Commands, options and the values of --format and the like are"
        " completed."
    ),
)


def escaped(text: str) -> str:
    """Text as roff reads it back: no control line, no escape, hyphens that can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def paragraph(text: str) -> list[str]:
    """A filled paragraph; a sentence a line, as roff wants it."""
    return [".PP", *re.split(r"(?<=[.:]) (?=[A-Z-])", escaped(text))]


def terms(pairs: Any) -> list[str]:
    """A list of terms."""
    lines: list[str] = []
    for term, text in pairs:
        lines += [".TP", f".B {escaped(term)}", escaped(text)]
    return lines


def code(lines: list[str]) -> list[str]:
    """Lines as they stand."""
    return [".PP", ".nf", ".RS 4", *(escaped(line) for line in lines), ".RE", ".fi"]


def head(name: str, section: int, summary: str) -> list[str]:
    """Title and NAME."""
    title = f'.TH {escaped(name).upper()} {section} "" "waltzctl {__version__}" "waltzctl manual"'
    return [
        '.\\" Written by man/generate.py; change the sources instead.',
        title,
        ".nh",
        ".ad l",
        ".SH NAME",
        f"{escaped(name)} \\- {escaped(summary)}",
    ]


def option_terms(tree: Any, command: Any, parent: Any = None) -> tuple[list[str], list[str]]:
    """The arguments and the options of a command, and its usage line's words; `parent`: context of a group it belongs to."""
    top = tree.make_context("waltzctl", [], resilient_parsing=True)
    context = command.make_context(command.name, [], parent=parent or top, resilient_parsing=True)
    lines: list[str] = []
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None:
            name = re.sub(r" <[^<>]*>$", "", record[0]) if param.param_type_name == "argument" else record[0]
            lines += terms([(name.replace("<", "").replace(">", ""), record[1].replace("  [", " ["))])
    return lines, command.collect_usage_pieces(context)


def exit_statuses(statuses: Any) -> list[str]:
    """EXIT STATUS."""
    return [
        ".SH EXIT STATUS",
        *terms((str(int(status)), f"{status.meaning[0].upper()}{status.meaning[1:]}.") for status in sorted(statuses)),
    ]


def examples(command: ModuleType) -> list[str]:
    """EXAMPLES, those of its actions included."""
    lines = [".SH EXAMPLES"]
    shown = [example for one in (command, *actions_of(command)) for example in manual_of(one).examples]
    for example in {example.command: example for example in shown}.values():
        lines += [*paragraph(example.purpose), *code(command_lines(example.command, CODE_WIDTH))]
    return lines


def see_also(name: str) -> list[str]:
    """SEE ALSO."""
    others = [
        "waltzctl(1)",
        *(f"waltzctl-{manual_of(command).name}(1)" for command in COMMANDS),
        "waltzctl-findings(7)",
    ]
    listed = [other for other in others if other.partition("(")[0] != name]
    lines = [".SH SEE ALSO"]
    for place, other in enumerate(listed):
        page, _, section = other.partition("(")
        lines.append(f".BR {escaped(page)} ({section}{'' if place == len(listed) - 1 else ' ,'}")
    return lines


def action_sections(tree: Any, command: ModuleType) -> list[str]:
    """What the actions of a command do, with their options; nothing where it has none."""
    actions = actions_of(command)
    if not actions:
        return []
    group = tree.commands[manual_of(command).name]
    top = tree.make_context("waltzctl", [], resilient_parsing=True)
    context = group.make_context(group.name, [], parent=top, resilient_parsing=True)
    lines = [".SH ACTIONS"]
    shared: dict[str, ManualSection] = {}
    for action in actions:
        manual = manual_of(action)
        options, pieces = option_terms(tree, group.commands[manual.name], context)
        lines += [f".SS {escaped(manual.name)}", f".B {escaped(manual.name)}", escaped(" ".join(pieces))]
        for text in (f"{manual.summary}.", *manual.description):
            lines += paragraph(text)
        lines += options
        shared |= {section.heading: section for section in manual.sections}
    for section in shared.values():
        lines.append(f".SH {escaped(section.heading)}")
        for text in section.paragraphs:
            lines += paragraph(text)
    return lines


def settings(command: ModuleType) -> list[str]:
    """What a process with settings can be told; nothing for any other command."""
    if not isinstance(command.run, WithSettings):
        return []
    lines = [".SH SETTINGS"]
    lines += paragraph(
        "By their keys in the configuration file; each with what is allowed, what holds unless it is given, and its"
        " environment variable. What is read anew changes in a running process."
    )
    for one in command.run.declared().listed:
        facts = [f"Allowed: {one.kind.allowed}", *one.in_file, one.variable, *(["read anew"] if one.reloadable else [])]
        lines += terms([(one.key, f"{one.help} {'; '.join(facts)}.")])
    return lines


def command_page(tree: Any, command: ModuleType) -> str:
    """The page of one command."""
    manual = manual_of(command)
    name = f"waltzctl-{manual.name}"
    options, pieces = option_terms(tree, tree.commands[manual.name])
    lines = head(name, 1, manual.summary[0].lower() + manual.summary[1:])
    lines += [".SH SYNOPSIS", f".B waltzctl {escaped(manual.name)}", escaped(" ".join(pieces)), ".SH DESCRIPTION"]
    for text in manual.description:
        lines += paragraph(text)
    lines += [".SH OPTIONS", *options]
    lines += action_sections(tree, command)
    for section in manual.sections:
        lines.append(f".SH {escaped(section.heading)}")
        for text in section.paragraphs:
            lines += paragraph(text)
    lines += settings(command)
    lines += [".SH OUTPUT", *paragraph(f"Objects: {', '.join(manual.objects)}. Formats and keys: waltzctl(1).")]
    lines += [*exit_statuses(manual.statuses), *examples(command), *see_also(name)]
    return "\n".join(lines) + "\n"


def overview_page() -> str:
    """waltzctl(1)."""
    lines = head("waltzctl", 1, "create, inspect, repair, extend and serve the storage of a Waltz cluster")
    lines += [".SH SYNOPSIS", ".B waltzctl", "COMMAND [OPTIONS] ARGUMENTS...", ".SH DESCRIPTION"]
    lines += [text if text.startswith(".") else escaped(text) for text in OVERVIEW]
    lines += [".SH COMMANDS", *terms((manual_of(c).name, f"{manual_of(c).summary}.") for c in COMMANDS)]
    lines += [".SH OUTPUT FORMATS", *terms(FORMATS)]
    for text in RULES:
        lines += paragraph(text)
    lines += exit_statuses(ExitStatus)
    lines += paragraph(
        "The same for every command. The worst that was found is reported; a number that is not listed means failure."
    )
    lines += [".SH SHELL COMPLETION"]
    for text in COMPLETION:
        lines += paragraph(text)
    lines += [".SH ENVIRONMENT", *terms(ENVIRONMENT), ".SH FILES", *terms(FILES), *see_also("waltzctl")]
    return "\n".join(lines) + "\n"


SEVERITIES = (
    (
        Severity.DAMAGE,
        "Data is lost or doubtful. Exit status 4, or 14 where the only trouble is that a file could not be read.",
    ),
    (Severity.REPAIRABLE, "Nothing is lost; the command that mends it is named. Exit status 3."),
    (Severity.NOTE, "Worth knowing. Exit status 0."),
)


def findings_page() -> str:
    """waltzctl-findings(7)."""
    lines = head("waltzctl-findings", 7, "what each finding of waltzctl means and what to do about it")
    lines += [".SH DESCRIPTION"]
    lines += paragraph(
        "verify, dump, status and recover name what is wrong by codes. A code and its severity never change their meaning;"
        " sentences may. A finding carries, where they apply, path, partition, segment (the first transaction id in the file's"
        " name), transaction id, offset and length in bytes, and a remedy: a command line that can be run as it stands, but for"
        " REPLICA (the storage directory of an intact replica) and DIR (a new directory)."
    )
    lines += [".SH SEVERITY", *terms((severity.value, text) for severity, text in SEVERITIES), ".SH CODES"]
    for kind in CATALOGUE.values():
        lines += [f".SS {escaped(kind.code.value)}", *paragraph(kind.meaning)]
        severity = f"Severity: {kind.severity.value}"
        if kind.when_harmless:
            severity += f"; {Severity.REPAIRABLE.value} if {kind.when_harmless}".replace("if in ", "when it is in ")
        lines += paragraph(f"{severity}.")
        lines += paragraph(f"What to do: {kind.what_to_do}")
        if kind.command:
            lines += paragraph(
                "Command: " + ", then ".join(f"waltzctl {one}" for one in kind.remedies(kind.severity)) + "."
            )
    lines += see_also("waltzctl-findings")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """File name to contents."""
    tree: Any = get_command(app)
    written = {"waltzctl.1": overview_page(), "waltzctl-findings.7": findings_page()}
    for command in COMMANDS:
        manual = manual_of(command)
        written[f"waltzctl-{manual.name}.1"] = command_page(tree, command)
    return written


if __name__ == "__main__":
    for file_name, text in pages().items():
        (HERE / file_name).write_text(text)
