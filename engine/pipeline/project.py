"""A pipeline's project directory: the settings of ``spark-pipeline.yml``, and the paths of its parts.

The specification is Spark's own file.  Its ``configuration`` has the settings of the session.  Our settings are there too, with
names that begin with ``waltz.``: Spark accepts unknown settings, so that one file has them all.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from waltzctl.engine.errors import DiskReadError, InvalidRequestError, NotWaltzError
from waltzctl.engine.net.configuration_file import UNFIT
from waltzctl.engine.pipeline.decoding import Decoder, load_decoder
from waltzctl.engine.pipeline.table_formats import TABLE_FORMATS, merges_changes
from waltzctl.engine.shell_words import shell_quote

SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
"""The names that Spark looks for."""
DECODER = "decoder.py"
DEFAULTS = "conf/spark-defaults.conf"
"""Settings that Spark reads only when it starts, and that the specification therefore cannot have."""
COLUMN_CHANGES = ("spark.hadoop.hive.metastore.disallow.incompatible.col.type.changes", "false")
"""For a full refresh after a change of the decoder's SCHEMA: Spark then alters an existing table's columns, and by default Hive's
catalog refuses to change a column's type."""
FORMATS = ("parquet", *TABLE_FORMATS)
SETTINGS = {
    "waltz.sources": "one replica a line: a storage directory, a URL, waltz://HOST:ADMINPORT",
    "waltz.metadata": "the cluster's metadata, zk://HOST:PORT,.../ROOT or an embedded store's file; nothing for none",
    "waltz.format": "of the tables: parquet, delta or iceberg",
    "waltz.options": 'options of format("waltz"), one NAME=VALUE a line',
    "waltz.state.buckets": "files of the table state, with Parquet",
}
TABLES = ("records", "transactions", "quarantine", "tallies", "state", "state_history", "completeness", "activity")
FOLLOWING = {
    "records": ("quarantine", "tallies"),
    "transactions": ("quarantine", "state", "state_history"),
}
"""Streaming tables that are made from another one: a full refresh of it includes them, or they would have every row twice."""

_ENCODED = re.compile(r"""[\x00-\x20"#%<>?\[\\\]^`{|}\x7f]""")
"""Characters that Spark encodes (``%20``) when it creates a checkpoint directory, and not when it looks for it (4.3)."""
_LINE = re.compile(r"^[ \t\f]*[#!].*|((?:\\[\s\S]|[^\\\n])+)", re.MULTILINE)
"""``spark-defaults.conf`` as Java properties: a comment, or (group 1) a logical line, which backslashes continue."""
_CONTINUATION = re.compile(r"(\\.)|\\\n[ \t\f]*")
_SETTING = re.compile(r"((?:\\.|[^\\ \t\f=:])+)(?:[ \t\f]*[=:][ \t\f]*|[ \t\f]+|\Z)(.*)")
"""A logical line: name and value, separated by spaces, tabs, ``=`` or ``:``."""
_ESCAPED = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))")
_CONTROL_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True)
class Project:
    """A project as its files describe it.

    `storage`: the URI of the checkpoints' directory.  `catalog`, `database`: of the tables; None: Spark's default.
    """

    directory: Path
    spec: Path
    name: str
    storage: str
    catalog: str | None
    database: str | None
    configuration: Mapping[str, str]

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The replicas."""
        return _lines(self.configuration.get("waltz.sources", ""))

    @property
    def metadata(self) -> str | None:
        """The cluster's metadata, as ``--metadata`` takes it; None: only the low-water marks tell what is committed."""
        return self.configuration.get("waltz.metadata", "").strip() or None

    @cached_property
    def format(self) -> str:
        """The format of the tables.  Raises InvalidRequestError."""
        said = self.configuration.get("waltz.format", FORMATS[0]).strip()
        if said not in FORMATS:
            raise InvalidRequestError(
                f"{self.spec}: waltz.format is {said!r}", advice=f"it is one of {', '.join(FORMATS)}"
            )
        return said

    @cached_property
    def options(self) -> dict[str, str]:
        """Options of the source.  Raises InvalidRequestError."""
        found = {}
        for line in _lines(self.configuration.get("waltz.options", "")):
            name, equals, value = line.partition("=")
            if not equals:
                raise InvalidRequestError(
                    f"{self.spec}: waltz.options has {line!r}", advice="write NAME=VALUE, one a line"
                )
            found[name.strip()] = value.strip()
        return found

    @cached_property
    def buckets(self) -> int:
        """The number of buckets, and so of files, of ``state``.  Raises InvalidRequestError."""
        said = self.configuration.get("waltz.state.buckets", "8")
        if not said.isdecimal() or not 1 <= int(said) <= 10_000:
            raise InvalidRequestError(
                f"{self.spec}: waltz.state.buckets is {said!r}", advice="a number from 1 to 10000"
            )
        return int(said)

    @cached_property
    def decoder(self) -> Decoder:
        """The project's decoder.  Raises InvalidRequestError."""
        return load_decoder(self.directory / DECODER)

    @cached_property
    def state_in_files(self) -> bool:
        """Whether `state` is a sink with files of our own (`state_files`); else it is a table into which Spark merges changes."""
        return not merges_changes(self.format)

    @property
    def storage_path(self) -> Path | None:
        """The directory of the checkpoints; None where it is not on this machine."""
        parsed = urllib.parse.urlparse(self.storage)
        return Path(parsed.path) if parsed.scheme in ("", "file") else None

    @property
    def namespace(self) -> str:
        """The prefix of a table's name: catalog and database, quoted."""
        return "".join(f"`{one}`." for one in (self.catalog, self.database) if one)


def open_project(directory: Path) -> Project:
    """Read a project.

    Raises NotWaltzError where there is none, InvalidRequestError for an invalid specification, DiskReadError.
    """
    import yaml

    directory = directory.absolute()
    spec = next((directory / name for name in SPEC_NAMES if (directory / name).is_file()), None)
    if spec is None:
        raise NotWaltzError(
            f"{directory}: there is no {SPEC_NAMES[0]}",
            advice=f"waltzctl pipeline init {shell_quote(str(directory))} --source PATH writes one",
        )
    try:
        said: Any = yaml.safe_load(spec.read_text(encoding="utf-8"))
    except OSError as error:
        raise DiskReadError(spec, None, error) from error
    except (yaml.YAMLError, RecursionError, *UNFIT) as error:
        raise InvalidRequestError(f"{spec}: {' '.join(str(error).split())}", advice="mend the file") from error
    if not isinstance(said, dict):
        raise InvalidRequestError(f"{spec}: it is no mapping", advice="compare with what waltzctl pipeline init writes")
    configuration = said.get("configuration") or {}
    if not isinstance(configuration, dict) or not all(isinstance(one, str) for one in chain(*configuration.items())):
        raise InvalidRequestError(
            f"{spec}: the names and values under configuration must be texts", advice='write "2", not 2'
        )
    for name in ("name", "catalog", "database", "schema"):
        if isinstance(said.get(name), (list, dict, set)):  # written out, aliases to aliases would need all memory
            raise InvalidRequestError(f"{spec}: {name} must be a text", advice="mend the file")
    if not isinstance(said.get("storage"), str):
        raise InvalidRequestError(
            f"{spec}: storage is missing", advice=f"for instance storage: {uri_of(directory)}/storage"
        )
    check_name(said["storage"])
    project = Project(
        directory, spec, str(said.get("name", directory.name)), said["storage"], said.get("catalog"),
        said.get("database", said.get("schema")), configuration,
    )  # fmt: skip
    if not project.sources:
        raise InvalidRequestError(f"{spec}: waltz.sources names no replica", advice=SETTINGS["waltz.sources"])
    unknown = sorted(name for name in configuration if name.startswith("waltz.") and name not in SETTINGS)
    if unknown:
        raise InvalidRequestError(
            f"{spec}: there is no setting {', '.join(unknown)}", advice=f"there are {', '.join(SETTINGS)}"
        )
    return project


def uri_of(directory: Path) -> str:
    """The URI of a directory, without percent-encoding: Spark decodes none."""
    return f"file://{directory}"


def check_name(place: str) -> None:
    """Raise InvalidRequestError for a checkpoint directory with a name that Spark would not find again (`_ENCODED`)."""
    if (found := _ENCODED.search(place)) is not None:
        raise InvalidRequestError(
            f"{place}: where a name has {found[0]!r} Spark keeps checkpoints under another one, and a full refresh misses them",
            advice="take a directory with a plain name, or a symbolic link to this one",
        )


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))


def defaults_of(directory: Path) -> dict[str, str]:
    """The settings in ``conf/spark-defaults.conf``; none where there is no such file."""
    path = directory / DEFAULTS
    if not path.is_file():
        return {}
    found = {}
    for line in _LINE.finditer(path.read_text(encoding="utf-8", errors="replace")):  # as Java does
        if (setting := _SETTING.match(_CONTINUATION.sub(r"\1", line[1] or "").strip())) is not None:
            found[_unescape(setting[1])] = _unescape(setting[2]).strip()
    return found


def _unescape(text: str) -> str:
    """Undo the backslash escapes of a Java properties file."""
    return _ESCAPED.sub(
        lambda found: chr(int(found[1], 16)) if found[1] else _CONTROL_CHARACTERS.get(found[2], found[2]), text
    )


def with_following(tables: tuple[str, ...]) -> tuple[str, ...]:
    """These tables, and those that a full refresh of them includes (`FOLLOWING`)."""
    found = dict.fromkeys(tables)
    for one in tables:
        found |= dict.fromkeys(FOLLOWING.get(one, ()))
    return tuple(found)
