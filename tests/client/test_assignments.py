"""An assignment names what a node should have; a node that it does not name is never taken for one without partitions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import properties
from waltzctl.engine.client.assignments import (
    AssignedNode,
    Assignment,
    read_assignment,
    read_assignment_from_zookeeper,
)
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, PeerUnreachableError
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.net.addresses import Address

ADMIN, DATA = Address("10.0.0.7", 55281), Address("10.0.0.7", 55280)


@pytest.mark.parametrize(
    "text",
    [
        '{"10.0.0.7:55280": [2, 0, 2], "10.0.0.8:55280": []}',
        "10.0.0.7:55280: [2, 0, 2]\n10.0.0.8:55280: []\n",
        '"10.0.0.7:55280":\n  - 2\n  - 0\n  - 2\n"10.0.0.8:55280": []\n',
    ],
    ids=["json", "yaml", "block"],
)
def test_json_and_yaml_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "assignment"
    path.write_text(text)
    found = read_assignment(path)
    assert found.of(ADMIN, DATA) == (0, 2)
    assert found.of(Address("10.0.0.8", 55281), Address("10.0.0.8", 55280)) == ()
    assert found.of(ADMIN, DATA, name="10.0.0.8:55280") == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not an object"),
        ("{}", "not an object"),
        ("[1, 2]", "not an object"),
        ('{"10.0.0.7:55280": 5}', "not a list"),
        ('{"10.0.0.7:55280": ["5"]}', "not a list"),
        ('{"10.0.0.7:55280": [true]}', "not a list"),
        ('{"10.0.0.7:55280": [-1]}', "not a list"),
        ('{"10.0.0.7:55280": [2147483648]}', "not a list"),
        ('{"10.0.0.7": [1]}', "host:port"),
        ("7: [1]", "no address"),
        (
            '{"10.0.0.7:55280": [0, 1], "10.0.0.8:55280": [2], "10.0.0.7:55280": [3]}',
            "10.0.0.7:55280 has more than one",
        ),
        ("10.0.0.7:55280: [0]\n'10.0.0.7:55280': [3]\n", "10.0.0.7:55280 has more than one"),
        ("{", "neither JSON nor YAML"),
        ("a: b: c", "neither JSON nor YAML"),
        ("!!python/object/apply:os.system [true]", "neither JSON nor YAML"),
        ("\x00", "neither JSON nor YAML"),
        ("10.0.0.7:55280: 2020-99-99", "neither JSON nor YAML"),
        ("10.0.0.7:55280: !!bool foo", "neither JSON nor YAML"),
        ("10.0.0.7:55280: !!timestamp foo", "neither JSON nor YAML"),
        ("10.0.0.7:55280: !!timestamp {=: 1}", "neither JSON nor YAML"),
        ('"\\UFFFFFFFF": [0]', "neither JSON nor YAML"),
        ("10.0.0.7:55280: 1" + ":59" * 400 + ".5", "neither JSON nor YAML"),
    ],
)
def test_what_is_no_assignment_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "assignment"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match=why):
        read_assignment(path)


def test_a_key_of_aliases_to_aliases_is_refused_at_once(tmp_path: Path) -> None:
    """Each line doubles what they stand for: written out, the key would have more characters than any memory."""
    path = tmp_path / "assignment"
    lines = ["? - &a0 [x, x]", *(f"  - &a{number + 1} [*a{number}, *a{number}]" for number in range(60)), ": [1]"]
    path.write_text("\n".join(lines))
    with pytest.raises(InvalidRequestError, match="unhashable key"):
        read_assignment(path)


def test_a_file_that_cannot_be_read_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(DiskReadError):
        read_assignment(tmp_path / "missing")


@pytest.mark.parametrize(
    ("node", "found"),
    [
        (AssignedNode("10.0.0.7:55280", None, (1,)), True),
        (AssignedNode("10.0.0.7:55281", None, (1,)), True),
        (AssignedNode("10.0.0.7:7000", 55281, (1,)), True),
        (AssignedNode("10.0.0.7:7000", 55282, (1,)), False),
        (AssignedNode("10.0.0.9:7000", 55281, (1,)), False),
        (AssignedNode("nonsense", 55281, (1,)), False),
    ],
)
def test_a_node_is_found_by_its_ports(node: AssignedNode, found: bool) -> None:
    """ZooKeeper names a node by its data port and keeps its admin port beside it."""
    assignment = Assignment((AssignedNode("elsewhere:1", 2, (9,)), node), "here")
    if found:
        assert assignment.of(ADMIN, DATA) == (1,)
    else:
        with pytest.raises(InvalidRequestError, match=r"here: no entry for 10\.0\.0\.7:55280 .*elsewhere:1"):
            assignment.of(ADMIN, DATA)


def test_two_entries_that_could_be_meant_are_refused() -> None:
    both = Assignment((AssignedNode("10.0.0.7:55280", None, (1,)), AssignedNode("10.0.0.7:55281", None, (2,))), "here")
    with pytest.raises(InvalidRequestError, match="several"):
        both.of(ADMIN, DATA)
    assert both.of(ADMIN, DATA, name="10.0.0.7:55281") == (2,)
    with pytest.raises(InvalidRequestError, match="no entry for other:1"):
        both.of(ADMIN, DATA, name="other:1")


@properties
@given(st.dictionaries(st.integers(1, 65535), st.lists(st.integers(0, 2**31 - 1), max_size=5), min_size=1, max_size=5))
def test_what_is_written_as_json_is_read_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, nodes: dict[int, list[int]]
) -> None:
    path = tmp_path_factory.mktemp("assignment") / "a.json"
    path.write_text(json.dumps({f"h:{port}": partitions for port, partitions in nodes.items()}))
    assert {node.name: list(node.partitions) for node in read_assignment(path).nodes} == {
        f"h:{port}": partitions for port, partitions in nodes.items()
    }


@pytest.mark.turns(10)
def test_zookeeper_that_is_not_there_is_unreachable() -> None:
    options = ZooKeeperOptions("127.0.0.1:1", "/waltz", connect_timeout=0.5)
    with pytest.raises(PeerUnreachableError, match="ZooKeeper"):
        read_assignment_from_zookeeper(options)
