"""A name stands for one thing: of public classes, and of files within a package's rooms."""

import ast
from collections import defaultdict

import pytest

from tests.test_layers import MODULES, tree

pytestmark = pytest.mark.xdist_group("layers")  # the process that reads the code anyway

OF_SEVERAL = {
    "AppendRequest": "messages bear their protocols' names, and the protocols share some",
    "FailureResponse": "as above",
    "LastSessionInfoRequest": "as above",
    "LastSessionInfoResponse": "as above",
    "OpenRequest": "as above",
    "RecordListRequest": "as above",
    "RecordListResponse": "as above",
    "SuccessResponse": "as above",
    "Partition": "the design documents call it so, in a storage and in a server",
}
"""Public classes of one name, each with the reason."""


def test_a_class_s_name_is_used_once() -> None:
    places = defaultdict(list)
    for module, path in MODULES.items():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: where for name, where in places.items() if len(where) > 1 and name not in OF_SEVERAL} == {}
    assert sorted(name for name in OF_SEVERAL if len(places[name]) < 2) == []


def test_a_file_s_name_is_used_once() -> None:
    """But for commands: they are called as they are typed, in each group anew."""
    files = defaultdict(list)
    for module, path in MODULES.items():
        if path.name != "__init__.py" and not module.startswith("waltzctl.commands."):
            files[path.name].append(module)
    assert {name: where for name, where in files.items() if len(where) > 1} == {}
