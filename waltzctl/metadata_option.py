"""The option ``--metadata``, the location of a cluster's metadata, and access to the metadata from a command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from waltzctl.connection_options import Connecting
from waltzctl.event_loop import run_async
from waltzctl.options import parsed
from waltzctl.values import parse_duration

if TYPE_CHECKING:
    from waltzctl.engine.metadata.metadata_location import MetadataLocation
    from waltzctl.engine.metadata.metadata_store import MetadataStore

Result = TypeVar("Result")

ZOOKEEPER_USER = (
    "If ZooKeeper requires authentication, set WALTZCTL_ZOOKEEPER_AUTH to USER:PASSWORD, or"
    " WALTZCTL_ZOOKEEPER_AUTH_FILE to a file whose first line is that, for every command, log server and storage node."
    " Nodes of ZooKeeper that they create then belong to that user alone. Without it they are open to anybody, as"
    " programs of release 0.13.2 need it."
)
"""For manual pages: authentication with ZooKeeper."""

MetadataOption = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        metavar="WHERE",
        envvar="WALTZCTL_METADATA",
        show_envvar=False,
        help="zk://HOST:PORT,.../ROOT, or an embedded store's file; default: WALTZCTL_METADATA.",
    ),
]


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """A cluster: the location of its metadata, and the options of connections to its nodes and servers."""

    where: str | None
    connecting: Connecting

    @classmethod
    def of(cls, context: typer.Context) -> ClusterTarget:
        """The target of the command group."""
        target = context.obj
        assert isinstance(target, cls)
        return target

    @property
    def location(self) -> MetadataLocation:
        """The location of the metadata.  Raises typer.BadParameter."""
        return location_of(self.where, self.connecting.timeout)

    def ask(self, work: Callable[[MetadataStore], Awaitable[Result]], *, create: bool = False) -> Result:
        """Run `work` with the metadata store; `create`: create an embedded store where there is none."""
        location = self.location

        async def whole() -> Result:
            async with location.open(create=create) as store:
                return await work(store)

        return run_async(whole())


def location_of(where: str | None, timeout: str | None = None) -> MetadataLocation:
    """Parse ``--metadata``; `timeout`: as it was typed.  Raises typer.BadParameter."""
    seconds = parsed("--timeout", timeout, parse_duration)

    from waltzctl.engine.errors import InvalidRequestError
    from waltzctl.engine.metadata.metadata_location import MetadataLocation
    from waltzctl.engine.metadata.zookeeper_options import ZooKeeperTimeouts

    if where is None:
        raise typer.BadParameter("say where the metadata is, or set WALTZCTL_METADATA", param_hint="'--metadata'")
    try:
        return MetadataLocation.parse(where, None if seconds is None else ZooKeeperTimeouts(connect_timeout=seconds))
    except InvalidRequestError as error:
        raise typer.BadParameter(str(error), param_hint="'--metadata'") from None
