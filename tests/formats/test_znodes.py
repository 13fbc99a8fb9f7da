"""Payloads of the metadata nodes: the golden values of release 0.13.2, and every value comes back."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import properties
from tests.golden import GOLDEN, needs_golden
from waltzctl.formats.znodes import (
    CLUSTER_MAGIC,
    PARTITION_SCHEMA,
    UNRESOLVED,
    AssignedPartition,
    ClusterParameters,
    IssuedId,
    NodeAssignment,
    NodeConnection,
    NodeConnections,
    NodeGroup,
    NodeGroups,
    NodePartitions,
    PartitionMetadata,
    Payload,
    ReplicaState,
    ServerAssignment,
    ServerDescriptor,
    ServerPartitions,
    StoreParameters,
    ZnodeError,
    ZnodeVersionError,
)

KEY = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
GOLDEN_VALUES: list[tuple[str, Payload]] = [
    ("b4e87347 01 0004 64656d6f 00000002", ClusterParameters("demo", 2)),
    ("03 ffffffff 00000000 00000000", ServerAssignment(-1, 0, ())),
    (
        "03 00000001 00000002 00000001 00000001 00000002 00000000 00000001 00000001 00000001",
        ServerAssignment(1, 2, (ServerPartitions(1, (AssignedPartition(0, 1), AssignedPartition(1, 1))),)),
    ),
    ("01 00000001 0001 68 0000d78c 00000001 00000000", ServerDescriptor(1, "h", 55180, (0,))),
    ("01 0123456789abcdef 0123456789abcdef 00000002", StoreParameters(KEY, 2)),
    ("01 00000001 0007 683a3535323830 00000000", NodeGroups((NodeGroup("h:55280", 0),))),
    (
        "01 00000001 0007 683a3535323830 00000002 00000000 00000001",
        NodeAssignment((NodePartitions("h:55280", (0, 1)),)),
    ),
    ("01 00000001 0007 683a3535323830 0000d7f1", NodeConnections((NodeConnection("h:55280", 55281),))),
    ("01 ffffffff ffffffffffffffff 00000000", PartitionMetadata()),
    (
        "01 00000001 0000000000000007 0000000101 01 00000000 0007 683a3535323830 0000000000000007 8000000000000000",
        PartitionMetadata(1, 7, (ReplicaState(0, "h:55280", 7, UNRESOLVED),)),
    ),
]
KINDS: dict[str, type[Payload]] = {
    "ClusterParams": ClusterParameters,
    "PartitionAssignment": ServerAssignment,
    "ServerDescriptor": ServerDescriptor,
    "StoreParams": StoreParameters,
    "GroupDescriptor": NodeGroups,
    "ReplicaAssignments": NodeAssignment,
    "ConnectionMetadata": NodeConnections,
    "PartitionMetadata": PartitionMetadata,
}

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=12)


def tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(of, max_size=4).map(tuple)


payloads: st.SearchStrategy[Payload] = st.one_of(
    st.builds(ClusterParameters, names, int32),
    st.builds(
        ServerAssignment,
        int32,
        int32,
        tuples(st.builds(ServerPartitions, int32, tuples(st.builds(AssignedPartition, int32, int32)))),
    ),
    st.builds(ServerDescriptor, int32, names, int32, tuples(int32)),
    st.builds(StoreParameters, st.uuids(), int32),
    st.builds(NodeGroups, tuples(st.builds(NodeGroup, names, int32))),
    st.builds(NodeAssignment, tuples(st.builds(NodePartitions, names, tuples(int32)))),
    st.builds(NodeConnections, tuples(st.builds(NodeConnection, names, int32))),
    st.builds(PartitionMetadata, int32, int64, tuples(st.builds(ReplicaState, int32, names, int64, int64))),
)


@pytest.mark.parametrize(("encoded", "value"), GOLDEN_VALUES, ids=lambda one: type(one).__name__)
def test_the_values_that_the_release_writes(encoded: str, value: Payload) -> None:
    data = bytes.fromhex(encoded)
    assert value.encode() == data
    assert type(value).decode(data) == value


@properties
@given(payloads, st.binary(max_size=8))
def test_every_value_comes_back_whatever_follows_it(value: Payload, rest: bytes) -> None:
    assert type(value).decode(value.encode() + rest) == value


@properties
@given(payloads, st.data())
def test_a_value_that_ends_early_is_an_error_that_names_it(value: Payload, data: st.DataObject) -> None:
    encoded = value.encode()
    size = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(ZnodeError, match=type(value).__name__):
        type(value).decode(encoded[:size])


@properties
@given(st.binary(max_size=100), st.sampled_from(sorted(KINDS)))
def test_arbitrary_bytes_give_a_value_or_this_error(data: bytes, kind: str) -> None:
    try:
        value = KINDS[kind].decode(data)
    except ZnodeError:
        return
    assert data.startswith(value.encode())


@pytest.mark.parametrize(("encoded", "value"), GOLDEN_VALUES, ids=lambda one: type(one).__name__)
def test_another_version_is_an_error_of_its_own(encoded: str, value: Payload) -> None:
    data = bytearray.fromhex(encoded)
    data[4 if isinstance(value, ClusterParameters) else 0] += 1
    with pytest.raises(ZnodeVersionError, match="is not known"):
        type(value).decode(bytes(data))


def test_another_version_inside_is_one_as_well() -> None:
    data = bytearray(PartitionMetadata(1, 7, (ReplicaState(0, "h:1", 7),)).encode())
    data[1 + 4 + 8 + 4 + 1] = 9  # the version of the replica's id
    with pytest.raises(ZnodeVersionError, match="version 9"):
        PartitionMetadata.decode(bytes(data))


def test_the_root_of_something_else_is_no_cluster() -> None:
    with pytest.raises(ZnodeError, match="ClusterParameters"):
        ClusterParameters.decode(b"something else altogether")


def fields_of(value: Payload) -> Any:
    """A payload in the words of the golden file."""
    if isinstance(value, ClusterParameters):
        return {"name": value.name, "numPartitions": value.num_partitions}
    if isinstance(value, StoreParameters):
        return {"key": str(value.cluster_key), "numPartitions": value.num_partitions}
    if isinstance(value, ServerDescriptor):
        return {"serverId": value.server, "endpoint": {"host": value.host, "port": value.port},
                "partitions": list(value.preferred)}  # fmt: skip
    if isinstance(value, ServerAssignment):
        assignment = {
            str(one.server): [{"partitionId": p.partition, "generation": p.generation} for p in one.partitions]
            for one in value.servers
        }
        return {"cversion": value.cversion, "numPartitions": value.num_partitions, "numEndpoints": len(value.servers),
                "assignment": assignment}  # fmt: skip
    if isinstance(value, NodeGroups):
        return {"groups": {one.node: one.group for one in value.nodes}}
    if isinstance(value, NodeAssignment):
        return {"replicas": {one.node: list(one.partitions) for one in value.nodes}}
    if isinstance(value, NodeConnections):
        return {"connections": {one.node: one.admin_port for one in value.nodes}}
    assert isinstance(value, PartitionMetadata)
    states = {
        f"ReplicaId({one.partition},{one.node})": {
            "replicaId": {"partitionId": one.partition, "storageNodeConnectString": one.node},
            "sessionId": one.session_id,
            "closingHighWaterMark": one.closing_high_water_mark,
        }
        for one in value.replicas
    }
    return {"generation": value.generation, "sessionId": value.session_id, "replicaStates": states}


@needs_golden
@pytest.mark.parametrize("name", ["cluster-a-live", "cluster-a-after-stop"])
def test_every_node_of_a_real_cluster(name: str) -> None:
    assert GOLDEN is not None
    seen = set()
    for line in (GOLDEN / "zookeeper" / f"{name}.jsonl").read_text().splitlines():
        node = json.loads(line)
        kind = KINDS.get((node.get("type") or "").rpartition(".")[2])
        if node["dataHex"] is None or kind is None:
            continue
        value = kind.decode(bytes.fromhex(node["dataHex"]))
        assert fields_of(value) == node["value"]
        assert value.encode().hex() == node["dataHex"]
        seen.add(kind)
    assert set(KINDS.values()) - seen <= {ServerDescriptor}


def test_why_a_value_is_refused() -> None:
    whole = StoreParameters(KEY, 2).encode()
    with pytest.raises(
        ZnodeError,
        match=r"^StoreParameters: not readable at offset 20 of 20 bytes: "
        r"stream read less than specified amount, expected 4, found 3$",
    ):
        StoreParameters.decode(whole[:-1])
    with pytest.raises(ZnodeError, match=r"^NodeGroups: not readable at offset \d+ of 13 bytes: .*(utf-8|decode)"):
        NodeGroups.decode(bytes.fromhex("01 00000001 0002 c328 00000000"))
    with pytest.raises(ZnodeVersionError, match=r"^StoreParameters: version 2 is not known, only 1$"):
        StoreParameters.decode(b"\x02" + whole[1:])


def test_an_id_that_was_issued_has_no_version() -> None:
    assert IssuedId(258).encode() == b"\0\0\1\2"
    assert IssuedId.decode(b"\0\0\1\2") == IssuedId(258)


def test_the_numbers_of_the_release() -> None:
    assert (CLUSTER_MAGIC, UNRESOLVED) == (0xB4E87347, -(2**63))
    assert (PartitionMetadata(), ReplicaState(0, "h:1", 7)) == (
        PartitionMetadata(-1, -1, ()),
        ReplicaState(0, "h:1", 7, -(2**63)),
    )
    found = PARTITION_SCHEMA.parse(PartitionMetadata(1, 7, (ReplicaState(0, "h:1", 7),)).encode())
    assert (found.version, found.replicas[0].version, found.replicas[0].id_version) == (1, 1, 1)
