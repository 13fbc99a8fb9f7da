"""Write what follows from the tables of columns and from the settings: ``python docs/schemas/generate.py``.

The JSON Schemas of everything that waltzctl prints, each standing alone (2020-12) and strict: a key that is not listed is a
mistake; the page of columns beside them; and the columns in the manual of the Spark data source.  What an object consists of is
said in its table (engine/columns, waltzctl/objects); which settings there are, in their declarations (`engine.net.settings`), of
which docs/settings.md is the page.  ``tests/cli/test_schemas.py`` fails when a file is not what this program
writes, or when a command prints an object that its schema refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from waltzctl.app import COMMANDS, manual_of
from waltzctl.engine.columns.column import Column, Columns, ObjectType
from waltzctl.engine.net.settings import Setting, Settings
from waltzctl.engine.spark.view_schemas import VIEWS
from waltzctl.objects.all_objects import OBJECTS
from waltzctl.setting_options import WithSettings

HERE = Path(__file__).resolve().parent
SPARK = HERE.parent / "spark-data-source.md"
SETTINGS = HERE.parent / "settings.md"
ROWS = {
    "segments": "data file",
    "index": "entry of an index file",
    "control": "partition of a control file",
    "findings": "finding of `waltzctl verify`",
}
"""What a row of a view stands for."""
_MARKED = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def files() -> dict[str, str]:
    """File name to contents."""
    schemas = {f"{name}.schema.json": json.dumps(one.schema, indent=2) + "\n" for name, one in OBJECTS.items()}
    return {**schemas, "columns.md": page()}


def page() -> str:
    """The columns of every object, for people."""
    lines = [
        "# What the objects consist of",
        "",
        "The keys of each object, which are the columns of `--format plain` as well; written by `generate.py`.",
        "How values are written: [README.md](README.md).",
    ]
    for one in OBJECTS.values():
        lines += ["", f"## {one.name}", "", one.meaning, "", *_table(("key", "type", "unit", "meaning"), _keys(one))]
    return "\n".join(lines) + "\n"


def _keys(columns: Columns, front: str = "") -> Iterator[Sequence[str]]:
    for one in columns.printed:
        left_out = " (may be left out)" if one.optional else ""
        yield f"`{front}{one.name}`", one.kind.word, one.kind.unit, one.meaning + left_out
        inner = one.kind.inner
        if inner is not None and not isinstance(inner, ObjectType):
            yield from _keys(inner, f"{front}{one.name}.")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _records() -> list[str]:
    return _table(("column", "type", ""), [(f"`{one.name}`", _spark(one), _told(one)) for one in VIEWS["records"]])


def _spark(column: Column) -> str:
    return column.kind.spark.partition("<")[0]


def _told(column: Column) -> str:
    when = "only when asked for" if column.on_request else ""
    names = [] if column.kind.inner is None else [f"`{one.name}`" for one in column.kind.inner.printed]
    return "; ".join(filter(None, (column.meaning, column.in_view, ", ".join(names), when)))


def _views() -> list[str]:
    rows = [("`records`", "record or damaged place", "above")]
    for view, row in ROWS.items():
        rows.append((f"`{view}`", row, ", ".join(f"`{one.name}`" for one in VIEWS[view])))
    return _table(("view", "one row for each", "columns"), rows)


def manual(text: str) -> str:
    """The manual of the data source with its tables made anew."""
    tables = {"records": _records, "views": _views}
    return _MARKED.sub(lambda found: found[1] + "\n".join(tables[found[2]]()) + "\n" + found[3], text)


def settings_page() -> str:
    """The settings of every process, for people."""
    lines = [
        "# Settings",
        "",
        "Written by `schemas/generate.py` from the declarations. The command line goes before the environment, that before the",
        "configuration file (`--config`, YAML, keys nested or dotted), and that before the defaults. What is marked in the last",
        "column, a running process takes over at `SIGHUP`. Variables and options that end in `FILE` or `-file` name a file",
        "whose first line is the password.",
    ]
    for command in COMMANDS:
        if isinstance(command.run, WithSettings):
            name, declared = manual_of(command).name, command.run.declared()
            lines += [
                "",
                f"## waltzctl {name}",
                "",
                f"The file can be named by `{declared.file_variable}` as well.",
                "",
            ]
            lines += _table(("key", "option", "variable", "value", "default", "", "anew"), _settings(declared))
    return "\n".join(lines) + "\n"


def _settings(declared: Settings[Any]) -> Iterator[Sequence[str]]:
    for one in declared.listed:
        options = ", ".join(f"`{option}`" for option in one.on_command_line)
        variables = f"`{one.variable}`" + (f", `{one.variable}_FILE`" if one.secret else "")
        anew = "yes" if one.reloadable else ""
        cells = (f"`{one.key}`", options, variables, one.kind.allowed, _default(one), one.meaning, anew)
        yield cells


def _default(one: Setting) -> str:
    default = one.unless or ("" if one.default is None else one.kind.written(one.default))
    return "; ".join(filter(None, (default, *one.in_file)))


if __name__ == "__main__":
    for file_name, written in files().items():
        (HERE / file_name).write_text(written)
    SPARK.write_text(manual(SPARK.read_text()))
    SETTINGS.write_text(settings_page())
