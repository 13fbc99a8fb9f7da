"""Writing a new project."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.cluster.synchronisation import admin_address
from waltzctl.engine.durable.new_directory import check_new
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, RefusedError, write_error
from waltzctl.engine.log import places
from waltzctl.engine.metadata.cluster_state import ClusterState, read_cluster_state
from waltzctl.engine.metadata.metadata_location import MetadataLocation
from waltzctl.engine.pipeline.project import FORMATS, check_name
from waltzctl.engine.pipeline.templates import project_files


@dataclass(frozen=True, slots=True)
class CreatedProject:
    """A new project.  `files`: the names of its files, relative to `path`."""

    path: Path
    format: str
    sources: tuple[str, ...]
    metadata: str | None
    files: tuple[str, ...]


def create_project(
    directory: Path,
    sources: Sequence[str],
    table_format: str = FORMATS[0],
    decoder: Path | None = None,
    metadata: str | None = None,
) -> CreatedProject:
    """Write a project into a directory that is new or empty.  Paths among `sources`, and those of vaults, become absolute.

    `metadata`: the cluster's, as ``--metadata`` takes it.

    Raises RefusedError where the directory is not empty, InvalidRequestError for invalid sources or an invalid decoder,
    DiskReadError, DiskWriteError.  What was made before an error is removed.
    """
    directory = directory.absolute()
    named = tuple(_absolute(one) for one in sources)
    if not named:
        raise InvalidRequestError(
            "no source is named", advice="--source PATH_OR_URL, once for each replica, or --metadata WHERE"
        )
    twice = next((one for place, one in enumerate(named) if one in named[:place]), None)
    if twice is not None:
        raise InvalidRequestError(f"{twice} is named twice", advice="--source once for each replica")
    if table_format not in FORMATS:
        raise InvalidRequestError(f"there is no format {table_format!r}", advice=f"it is one of {', '.join(FORMATS)}")
    if ";" in str(directory):
        raise InvalidRequestError(f"{directory}: the name of a project has no semicolon")
    where = None if metadata is None else str(MetadataLocation.parse(metadata).absolute)
    for name in (str(directory), *named, *(() if where is None else (where,))):
        _check_utf8(name)
    check_name(str(directory))
    text = None if decoder is None else _read(decoder)
    check_new(directory, renamed=False, parents=True)
    made = project_files(directory, named, table_format, text, where)
    with contextlib.ExitStack() as taken_back:
        for name, content in made.items():
            target = directory / name
            try:
                _make_directories(target.parent, taken_back)
                # fails where another process has created the file meanwhile
                with open(target, "x", encoding="utf-8") as file:
                    taken_back.callback(_remove, target.unlink)
                    file.write(content)
            except FileExistsError:
                raise RefusedError(
                    f"{target} appeared while the project was written", advice="look, and begin again"
                ) from None
            except OSError as error:
                raise write_error(target, None, error) from error
        taken_back.pop_all()  # the project is whole
    return CreatedProject(directory, table_format, named, where, tuple(made))


def _make_directories(directory: Path, taken_back: contextlib.ExitStack) -> None:
    """Make a directory and those above it where they are missing; `taken_back` removes what was made here."""
    if not directory.is_dir():
        _make_directories(directory.parent, taken_back)
        directory.mkdir(exist_ok=True)
        taken_back.callback(_remove, directory.rmdir)


def _remove(remove: Callable[[], None]) -> None:
    """Remove a part of a project that could not be made whole: with it the next attempt would be refused."""
    with contextlib.suppress(OSError):  # it is told already what went wrong
        remove()


def replicas_of(metadata: str) -> tuple[str, ...]:
    """The storage nodes that hold partitions, as sources.  Raises NotWaltzError where there is no cluster, PeerError."""

    async def read() -> ClusterState:
        async with MetadataLocation.parse(metadata).open() as store:
            return await read_cluster_state(store, ())

    return tuple(admin_address(node).url for node in asyncio.run(read()).nodes if node.partitions)


def _absolute(source: str) -> str:
    if not source.strip() or "\n" in source:
        raise InvalidRequestError("a source is empty or has a line break", advice="name a storage directory or a URL")
    return source if "://" in source else str(places.absolute(places.place(source)))


def _check_utf8(name: str) -> None:
    """Raise InvalidRequestError for a path that is no UTF-8: a project's files and Spark hold text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(
            f"{name}: the name has bytes that are no UTF-8, and Spark knows no such names",
            advice="rename it, or give it a symbolic link with another name",
        ) from None


def _read(decoder: Path) -> str:
    try:
        text = decoder.read_text(encoding="utf-8")
    except OSError as error:
        raise DiskReadError(decoder, None, error) from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{decoder}: it is no Python file: {error}") from error
    try:
        compile(text, str(decoder), "exec")
    except (SyntaxError, ValueError) as error:
        raise InvalidRequestError(f"{decoder}: {error}", advice="mend the decoder first") from error
    return text
