"""The partitions that each node should have, read from a file or from ZooKeeper.

A file is JSON or YAML: an object that maps a node's address to its list of partitions.  ZooKeeper holds the same, keyed by the
address of the node's data port, and each node's admin port (release 0.13.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waltzctl.engine.errors import DamageError, DiskReadError, InvalidRequestError, MismatchError
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.net.addresses import Address, parse_address
from waltzctl.engine.net.configuration_file import UNFIT
from waltzctl.engine.node.cluster_metadata import read_znodes
from waltzctl.formats.znodes import (
    ASSIGNMENT_PATH,
    CONNECTION_PATH,
    NodeAssignment,
    NodeConnections,
    ZnodeError,
    ZnodeVersionError,
)

MAX_FILE = 16 << 20
"""Bytes of the longest assignment file that is accepted; a thousand nodes with thousands of partitions need less."""


@dataclass(frozen=True, slots=True)
class AssignedNode:
    """A node's name, its admin port where that is known, and the partitions that it should have."""

    name: str
    admin_port: int | None
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of all nodes.  `source`: the file or znode it was read from, for messages."""

    nodes: tuple[AssignedNode, ...]
    source: str

    def of(self, admin: Address, data: Address, *, name: str | None = None) -> tuple[int, ...]:
        """The partitions of one node: the entry `name`, or else the one with this data port or admin port.

        Raises InvalidRequestError unless exactly one entry matches: a node without an entry must not be taken for a node without
        partitions.
        """
        if name is not None:
            found = [node for node in self.nodes if node.name == name]
        else:
            found = [node for node in self.nodes if _is(node, admin, data)]
        if len(found) == 1:
            return tuple(sorted(set(found[0].partitions)))
        names = ", ".join(node.name for node in self.nodes[:20]) or "none"
        if found:
            raise InvalidRequestError(f"{self.source}: several entries could mean {admin}: {names}", advice="use --as")
        wanted = name or f"{data} (admin port {admin.port})"
        raise InvalidRequestError(
            f"{self.source}: no entry for {wanted}; there are: {names}",
            advice="say with --as which one is meant, or --data-port where the data port is not the admin port - 1",
        )


def _is(node: AssignedNode, admin: Address, data: Address) -> bool:
    try:
        address = parse_address(node.name)
    except InvalidRequestError:
        return False
    if _key(address) in (_key(data), _key(admin)):
        return True
    return node.admin_port is not None and _key(address)[0] == _key(admin)[0] and node.admin_port == admin.port


def _key(address: Address) -> tuple[str, int]:
    return address.host.lower().rstrip("."), address.port


def read_assignment(path: Path) -> Assignment:
    """From a JSON or YAML file.  Raises InvalidRequestError for what is no assignment, DiskReadError."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise DiskReadError(path, None, error) from error
    if len(data) > MAX_FILE:
        raise InvalidRequestError(f"{path}: longer than {MAX_FILE} bytes; that is no assignment")
    return Assignment(tuple(_nodes(_parse(path, data), path)), str(path))


def _parse(path: Path, data: bytes) -> Any:
    import yaml

    try:
        loader = yaml.SafeLoader(data)  # every JSON document is a YAML document
        try:
            top = loader.get_single_node()
            keys = [key for key, _ in top.value] if isinstance(top, yaml.MappingNode) else []
            names = Counter(key.value for key in keys if isinstance(key, yaml.ScalarNode))  # others are no key at all
            if twice := [name for name, count in names.items() if count > 1]:
                # of which the last one would apply: partitions of the others would be taken for removed ones
                raise InvalidRequestError(f"{path}: {twice[0]} has more than one entry")
            return None if top is None else loader.construct_document(top)
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError, *UNFIT) as error:
        place = " ".join(str(error).split())
        raise InvalidRequestError(f"{path}: neither JSON nor YAML: {place}") from None


def _nodes(document: Any, path: Path) -> Iterable[AssignedNode]:
    if not isinstance(document, Mapping) or not document:
        raise InvalidRequestError(f'{path}: not an object such as {{"10.0.0.1:55280": [0, 1, 2]}}')
    for name, partitions in document.items():
        if not isinstance(name, str):
            raise InvalidRequestError(f"{path}: {name!r} is no address of a node; write host:port")
        parse_address(name)
        if not isinstance(partitions, list) or not all(_is_partition(one) for one in partitions):
            raise InvalidRequestError(f"{path}: {name}: not a list of partition numbers")
        yield AssignedNode(name, None, tuple(partitions))


def _is_partition(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def read_assignment_from_zookeeper(options: ZooKeeperOptions) -> Assignment:
    """From the cluster's metadata.  Blocks; raises as `engine.node.cluster_metadata.read_znodes`, and DamageError."""
    assigned, connections = read_znodes(options, (ASSIGNMENT_PATH, CONNECTION_PATH))
    source = f"ZooKeeper at {options.connect_string}, node {options.cluster_root.rstrip('/')}/{ASSIGNMENT_PATH}"
    try:
        nodes = NodeAssignment.decode(assigned).nodes
        ports = {one.node: one.admin_port for one in NodeConnections.decode(connections).nodes}
    except ZnodeVersionError as error:
        raise MismatchError(f"{source}: {error}") from None
    except ZnodeError as error:
        raise DamageError(f"{source}: {error}", advice="check --root; another program may use this path") from None
    found = (AssignedNode(one.node, ports.get(one.node), one.partitions) for one in nodes)
    return Assignment(tuple(found), source)
