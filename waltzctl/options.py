"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar

import typer

from waltzctl.values import parse_ranges

Value = TypeVar("Value")
Result = TypeVar("Result")


class Format(enum.StrEnum):
    """Output formats of objects."""

    TABLE = "table"
    PLAIN = "plain"
    JSON = "json"
    NDJSON = "ndjson"


class LayoutName(enum.StrEnum):
    """The two layouts of a control file, by their names in the format modules."""

    DOCUMENTED = "documented"
    RELEASED = "released"


class DumpFormat(enum.StrEnum):
    """Output formats of dump: the usual ones, annotated bytes, and raw bytes."""

    TABLE = "table"
    PLAIN = "plain"
    JSON = "json"
    NDJSON = "ndjson"
    HEXDUMP = "hexdump"
    RAW = "raw"


class What(enum.StrEnum):
    """The parts of a storage that dump shows."""

    RECORDS = "records"
    SEGMENTS = "segments"
    INDEX = "index"
    CONTROL = "control"


class DataForm(enum.StrEnum):
    """Output forms of a record's data."""

    BASE64 = "base64"
    HEX = "hex"
    UTF8 = "utf8"
    JSON = "json"
    NONE = "none"


FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="Form of the output; default: table on a terminal, plain elsewhere."),
]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing on success.")]
VerboseOption = Annotated[
    int, typer.Option("-v", "--verbose", count=True, show_default=False, help="Print more on stderr.")
]
PartitionsOption = Annotated[
    str | None, typer.Option("--partition", metavar="RANGES", help="Only these partitions, for instance 0-3,7.")
]
OnePartitionOption = Annotated[int, typer.Option("--partition", metavar="P", min=0, help="The partition.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Apply the plan without asking.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
PlanOption = Annotated[
    str | None,
    typer.Option("--plan", metavar="FILE", help="Apply a plan of --dry-run --format json, if it is still valid."),
]
StorageArgument = Annotated[str, typer.Argument(metavar="PATH", help="A storage directory.", show_default=False)]


def with_shared(kind: Callable[..., Value], name: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """A decorator that replaces a command's argument `name` by the fields of `kind`, options that several commands share."""
    shared = inspect.signature(kind, eval_str=True).parameters

    def decorate(run: Callable[..., Result]) -> Callable[..., Result]:
        def wrapped(**given: Any) -> Result:
            value = kind(**{field: given.pop(field) for field in shared})
            return run(**given, **{name: value})

        own = inspect.signature(run, eval_str=True).parameters.values()
        placed = [one for stands in own for one in (shared.values() if stands.name == name else (stands,))]
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in placed]
        wrapped.__name__, wrapped.__doc__, wrapped.__module__ = run.__name__, run.__doc__, run.__module__
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {one.name: one.annotation for one in parameters}
        return wrapped

    return decorate


def parsed(option: str, text: str | None, parse: Callable[[str], Value]) -> Value | None:
    """An option's value; None where it was not given.  Raises typer.BadParameter, which is a usage error."""
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


def partitions_of(text: str | None) -> frozenset[int] | None:
    """The partitions of ``--partition``; None for all."""
    numbers = parsed("--partition", text, parse_ranges)
    return None if numbers is None else frozenset(numbers)


def path_of(text: str, *, name: str = "PATH") -> Path:
    """A path of this machine, as it was typed.  Raises typer.BadParameter, for a URL and for a backup as well."""
    from waltzctl.engine.errors import InvalidRequestError
    from waltzctl.engine.log.places import local

    try:
        return local(place_of(text, name=name))
    except InvalidRequestError:
        said = f"{text} is a {'URL' if '://' in text else 'backup'}, and this works on files of this machine"
        raise typer.BadParameter(said, param_hint=f"'{name}'") from None


def place_of(text: str, *, name: str = "PATH") -> PurePath:
    """A path as it was typed, the URL of objects (``s3://bucket/node``), or a backup (``vault:VAULT::ID``).

    Raises typer.BadParameter for the URL of a node, and for empty text, which would mean the current directory.  A path that
    begins like an option or a backup (``./-x``, ``./vault:x``) is made absolute: in a printed remedy it would be parsed as one.
    """
    if not text:
        raise typer.BadParameter("the path is empty", param_hint=f"'{name}'")
    if "://" not in text and not text.startswith("vault:") and "\0" not in text:
        path = Path(text)  # this drops a leading ./
        return path.absolute() if str(path).startswith(("-", "vault:")) else path

    from waltzctl.engine.net.addresses import names_node

    if names_node(text):
        reason = "is a node, and this works on files; for nodes there are verify, dump, status, and waltzctl node"
        raise typer.BadParameter(f"{text} {reason}", param_hint=f"'{name}'")
    if "\0" in text:
        raise typer.BadParameter("the path holds a zero byte", param_hint=f"'{name}'")

    from waltzctl.engine.log.places import place

    return place(text)


def transaction_range(first: int | None, last: int | None) -> None:
    """Raise typer.BadParameter for an invalid range of --from and --to."""
    first, last = transaction_of(first, "--from"), transaction_of(last, "--to")
    if first is not None and last is not None and first > last:
        raise typer.BadParameter(f"{last} lies before --from {first}", param_hint="'--to'")


def transaction_of(number: int | None, option: str) -> int | None:
    """A transaction id.  Raises typer.BadParameter for one that 64 bits cannot hold."""
    from waltzctl.formats.ids import LAST_TRANSACTION_ID

    if number is not None and number > LAST_TRANSACTION_ID:
        raise typer.BadParameter(f"{number}: transaction ids end at {LAST_TRANSACTION_ID}", param_hint=f"'{option}'")
    return number
