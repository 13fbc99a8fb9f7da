"""Checks of a read at ``load()``, instead of minutes later: unknown options, invalid values, missing paths.

Spark asks for the schema at ``load()``, unless the caller gives one, and the checks run then.  Spark does not tell whether a
batch or a stream will be read, so an option is accepted if either has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.net.addresses import names_node
from waltzctl.engine.spark import read_options, stream_node, stream_reader
from waltzctl.engine.spark.read_options import METADATA
from waltzctl.engine.spark.splits import expand

_OPTIONS = dict.fromkeys((*read_options.KNOWN, *stream_reader.KNOWN, *stream_node.KNOWN, METADATA))
_OF_STREAMS = tuple(name.lower() for name in stream_reader.KNOWN if name != "view")  # a batch has others than records


def check_load(options: Mapping[str, str]) -> None:
    """Check the options of a read, or of ``CREATE TABLE``.

    Raises InvalidRequestError for a table, an unknown option or an invalid value, NotWaltzError and DiskReadError for a missing
    path.
    """
    if "provider" in options:  # a property that only CREATE TABLE passes
        raise InvalidRequestError(
            "CREATE TABLE ... USING waltz makes a table that Spark could not read: it hands its options to no source in Python",
            advice="CREATE TEMPORARY VIEW name USING waltz OPTIONS (path '/data/node-1')",
        )
    read_options.refuse_unknown(options, _OPTIONS)
    read_options.values(options)
    stream_reader.stream_options({name: options[name] for name in _OF_STREAMS if name in options})
    stream_node.access_of(options)
    if METADATA in options or names_node(options.get("path", "")):
        return
    for path in read_options.paths(options):
        expand(path)


def check_sources(sources: Sequence[str], options: Mapping[str, str]) -> None:
    """Check the replicas of a read as `check_load`, and whether the nodes among them answer.

    Raises what `check_load` and a connection raise, for the first failing replica in their order.
    """
    given = {name.lower(): value for name, value in options.items()}
    for source in sources:
        check_load({**given, "path": source})
    nodes = [stream_node.node_access(source, given) for source in sources if names_node(source)]

    async def greet(access: stream_node.NodeAccess) -> None:
        async with await access.reach().admin(access.address):
            pass

    async def greet_all() -> None:
        for outcome in await asyncio.gather(*map(greet, nodes), return_exceptions=True):
            if outcome is not None:
                raise outcome

    asyncio.run(greet_all())
