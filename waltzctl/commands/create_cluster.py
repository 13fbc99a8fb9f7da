"""create-cluster: one new storage directory for each path, all with the same cluster key."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.console import Console
from waltzctl.engine.shell_words import shell_quote
from waltzctl.event_loop import run_async
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.metadata_option import ZOOKEEPER_USER, location_of
from waltzctl.options import FormatOption, LayoutName, QuietOption, VerboseOption, parsed, path_of
from waltzctl.values import counted, parse_ranges

if TYPE_CHECKING:
    from waltzctl.engine.metadata.metadata_location import MetadataLocation
    from waltzctl.engine.storage.creation import ClusterResult

MANUAL = Manual(
    name="create-cluster",
    summary="Create the storage directories of a new cluster",
    description=(
        (
            "Creates one storage directory for each DIR, all with the same cluster key, and prints the key. An"
            " existing DIR must be empty; nothing is ever overwritten. Control files are written last: without one a"
            " directory is not a Waltz directory. On an error, or Ctrl-C, everything created is removed; after a kill"
            " remove it by hand."
        ),
        (
            "The layout decides which programs can open the directories. documented: waltzctl only; released: waltzctl and"
            " release 0.13.2. waltzctl convert brings a directory from one layout to the other."
        ),
        (
            "With --metadata the cluster's metadata is written as well, with the same key and number of partitions: to"
            " ZooKeeper, or to an embedded store's file. If there is metadata already, nothing is created. cluster"
            " add-node then adds the storage nodes to it."
        ),
        ZOOKEEPER_USER,
    ),
    examples=(
        Example("waltzctl create-cluster /data/waltz --partitions 4", "One node that holds all four partitions."),
        Example(
            "waltzctl create-cluster /data/n1 /data/n2 /data/n3 --partitions 8 --layout released",
            "Three nodes in the layout that release 0.13.2 can open, too.",
        ),
        Example(
            "waltzctl create-cluster /data/n4 --partitions 8 --assign 0-3 --key 2f1c61c8-5a6e-4a3c-9d0e-0d7e4c9a1b22",
            "One more node of an existing cluster, with half of the partitions.",
        ),
        Example(
            "waltzctl create-cluster /data/n1 /data/n2 /data/n3 --partitions 8 --assign none --metadata /data/waltz.meta",
            "Storage directories and the metadata of a cluster on one machine.",
        ),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.NOT_WALTZ,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("cluster",),
    sections=(
        ManualSection(
            "LAYOUTS",
            (
                (
                    "documented: the control file of the design documents, 60 bytes a partition. It has no flags: a partition"
                    " is assigned when its directory exists."
                ),
                "released: the control file of release 0.13.2, 76 bytes a partition, with flags and a sequence number.",
                "The file's length tells them apart. Segments and indexes are the same in both.",
                (
                    "A released node that is started on the documented layout fails, and extends the control file with"
                    " zeros; waltzctl still reads the file, and recover cuts the zeros off. waltzctl convert brings a"
                    " directory from one layout to the other."
                ),
            ),
        ),
    ),
)


def run(
    directories: Annotated[
        list[str], typer.Argument(metavar="DIR...", help="Directories to create.", show_default=False)
    ],
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", metavar="N", min=1, max=1_000_000, help="Partitions of the cluster.", show_default=False
        ),
    ],
    key: Annotated[str | None, typer.Option("--key", metavar="UUID", help="Cluster key; default: a new one.")] = None,
    layout: Annotated[LayoutName, typer.Option("--layout", help="Layout of the control file.")] = LayoutName.DOCUMENTED,
    assign: Annotated[
        str, typer.Option("--assign", metavar="none|all|RANGES", help="Partitions that each directory holds.")
    ] = "all",
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata", metavar="WHERE", help="Write the metadata as well: zk://HOST:PORT,.../ROOT, or a file."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The cluster's name in the metadata; default waltz."),
    ] = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Create and report."""
    if name is not None and metadata is None:
        raise typer.BadParameter("there is a name only in metadata; give --metadata, too", param_hint="'--name'")
    location = None if metadata is None else location_of(metadata)
    paths = [path_of(text, name="DIR") for text in directories]
    cluster_key = parsed("--key", key, cluster_key_of)
    cluster_name = parsed("--name", name, cluster_name_of) or "waltz"
    assigned = _assigned(assign, partitions)

    from waltzctl.engine.storage.directory import create_cluster
    from waltzctl.formats.control import Layout
    from waltzctl.objects.repair_objects import CLUSTER

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        if location is not None:
            run_async(_refuse_where_something_is(location))
        result = create_cluster(
            paths, num_partitions=partitions, cluster_key=cluster_key, layout=Layout(layout.value), assign=assigned
        )
        if location is not None:
            _write_metadata(location, cluster_name, result)
        console.emit_result(CLUSTER.shown(result))
        console.note(_opened_by(result))
        console.success(f"CREATED  {counted(len(paths), 'storage directory', 'storage directories')}.")


async def _refuse_where_something_is(location: MetadataLocation) -> None:
    from waltzctl.engine.metadata.cluster_creation import refuse_where_something_is

    path = location.path
    # an empty file is accepted: a creation that failed on a full disk leaves one
    if path is None or (path.exists() and not (path.is_file() and not path.stat().st_size)):
        async with location.open() as store:
            await refuse_where_something_is(store)


def _write_metadata(location: MetadataLocation, name: str, made: ClusterResult) -> None:
    from waltzctl.engine.errors import WaltzError
    from waltzctl.engine.metadata.cluster_creation import RootTakenError, create_cluster

    async def write() -> None:
        async with location.open(create=True) as store:
            await create_cluster(store, name=name, num_partitions=made.num_partitions, cluster_key=made.cluster_key)

    try:
        run_async(write())
    except RootTakenError as error:  # what is there by now is not to be deleted
        listed = ", ".join(shell_quote(str(one.path)) for one in made.directories)
        raise RootTakenError(
            f"{location}: there is something already: somebody made a cluster meanwhile, which was left as it is",
            advice=f"the storage directories were made and are of another cluster, {made.cluster_key}:"
            f" remove {listed}, or write their metadata to another place with waltzctl cluster create",
        ) from error
    except WaltzError as error:
        options = (
            f"--metadata {shell_quote(str(location))} --name {shell_quote(name)} --partitions {made.num_partitions}"
            f" --key {made.cluster_key}"
        )
        made_since = f"the storage directories were made; waltzctl cluster create {options} writes the metadata"
        error.advice = f"{error.advice}; {made_since}" if error.advice else made_since
        raise


def _opened_by(result: ClusterResult) -> str:
    """Which programs can open the new directory, with advice where some cannot."""
    from waltzctl.formats.control import RELEASE

    programs = " and ".join(result.layout.opened_by)
    said = f"{result.layout} layout: {programs} can open what was made"
    if RELEASE in result.layout.opened_by:
        return said
    return f"{said}, {RELEASE} cannot; for that there is --layout released, or later waltzctl convert DIR --layout released"


def cluster_key_of(text: str) -> uuid.UUID:
    """A cluster key as it is typed.  Raises ValueError."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a UUID such as 01234567-89ab-cdef-0123-456789abcdef") from None


def cluster_name_of(text: str) -> str:
    """A cluster's name as it is typed.  Raises ValueError where the metadata has no room for it."""
    from waltzctl.formats.java_text import encode_modified_utf8

    encode_modified_utf8(text)
    return text


def _assigned(text: str, partitions: int) -> tuple[int, ...] | None:
    if text == "all":
        return None
    numbers = () if text == "none" else parsed("--assign", text, parse_ranges) or ()
    beyond = [number for number in numbers if number >= partitions]
    if beyond:
        raise typer.BadParameter(
            f"partition {beyond[0]} does not exist: they are 0 to {partitions - 1}", param_hint="'--assign'"
        )
    return numbers
