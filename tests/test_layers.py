"""Who may import whom: no module imports itself by a detour, and the shared rooms know nothing of what stands on them.

Counted are the imports inside functions as well; those that only a type checker sees make a graph of their own.
"""

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("layers")  # one process reads the code
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"formats": "waltzctl.formats", "engine": "waltzctl.engine", "waltzctl": "waltzctl"}
Graph = Mapping[str, frozenset[str]]

TYPES_ONLY = {
    frozenset({"waltzctl.engine.net.connection", "waltzctl.engine.net.port"}): "each holds the other for life",
    frozenset(
        {
            "waltzctl.engine.scan.wire_code",
            "waltzctl.engine.scan.wire_compiled",
            "waltzctl.engine.scan.wire_trials",
        }
    ): "the trials are given what the chooser hands out",
}
"""Groups of modules that name one another's types, each with its reason."""
FLOORS = (
    (
        "errors",
        "findings",
        "catalogue",
        "losses",
        "amounts",
        "progress",
        "strict_json",
        "task_executor",
        "freed_memory",
        "descriptor_limit",
        "shell_words",
        "shared_deadline",
    ),
    ("durable", "net", "columns"),
    ("scan", "pages"),
    ("log", "vault"),
    ("storage", "quorum", "metadata", "inspect"),
    ("repair", "stats"),
    ("node", "client"),
    ("compare", "spark", "backup"),
    ("server",),
    ("cluster",),
    ("pipeline",),
)
"""The engine's rooms, from the ground up."""
VIEWS = "waltzctl.render."
"""Rooms of which each view names the table that it is drawn on, and the table its views."""


def modules() -> dict[str, Path]:
    found = {}
    for directory, package in PACKAGES.items():
        for path in sorted((ROOT / directory).glob("**/*.py")):
            name = ".".join((package, *path.relative_to(ROOT / directory).with_suffix("").parts))
            if directory != "waltzctl" or not name.startswith(("waltzctl.engine.", "waltzctl.formats.")):
                found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _imports(tree: ast.AST, *, types: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        if (
            isinstance(node, ast.If)
            and not types
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else str(node.module)
        yield from _imports(node, types=types)


@functools.cache
def graph(*, types: bool) -> Graph:
    return {
        name: frozenset(_imports(tree(path), types=types)) & MODULES.keys() - {name} for name, path in MODULES.items()
    }


def circles(graph: Graph) -> set[frozenset[str]]:
    """Groups of nodes each of which leads to every other (Kosaraju)."""
    order: list[str] = []
    seen: set[str] = set()
    turned: dict[str, set[str]] = {name: set() for name in graph}
    for name, others in graph.items():
        for other in others:
            turned[other].add(name)

    def walk(start: str, edges: Mapping[str, frozenset[str] | set[str]], into: list[str]) -> None:
        seen.add(start)
        stack = [(start, iter(sorted(edges[start])))]
        while stack:
            node, rest = stack[-1]
            following = next((one for one in rest if one not in seen), None)
            if following is None:
                into.append(node)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(sorted(edges[following]))))

    for name in graph:
        if name not in seen:
            walk(name, graph, order)
    seen.clear()
    found = set()
    for name in reversed(order):
        if name not in seen:
            group: list[str] = []
            walk(name, turned, group)
            if len(group) > 1:
                found.add(frozenset(group))
    return found


def test_the_rooms_are_all_looked_at() -> None:
    for name in ("waltzctl.formats.wire.frame", "waltzctl.engine.durable.disk", "waltzctl.commands.verify"):
        assert name in MODULES
    assert "waltzctl.engine.durable.disk" in graph(types=False)["waltzctl.engine.durable.quarantine"]


def test_circles_are_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles({name: frozenset(to) for name, to in edges.items()}) == {frozenset("abc"), frozenset("de")}


def test_no_module_imports_itself_by_a_detour() -> None:
    assert circles(graph(types=False)) == set()


def test_types_are_named_in_a_circle_only_where_it_is_meant() -> None:
    found = {group for group in circles(graph(types=True)) if not all(name.startswith(VIEWS) for name in group)}
    assert found == set(TYPES_ONLY)


def test_a_log_is_read_without_the_engine_that_writes_it() -> None:
    """What looks at evidence on any place stands below what keeps a node's storage."""
    edges = graph(types=True)
    above = {one for room in ("storage", "inspect", "repair", "node") for one in _below(f"waltzctl.engine.{room}")}
    assert {(name, to) for name in _below("waltzctl.engine.log") for to in edges[name] & above} == set()


def test_no_room_imports_one_above_it() -> None:
    """As in `FLOORS`: a room may import what stands on its own floor, and below."""
    floor_of = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
    edges = graph(types=True)
    engine = "waltzctl.engine."
    rooms = {name: name.removeprefix(engine).partition(".")[0] for name in MODULES if name.startswith(engine)}
    upwards = {
        (name, to) for name in rooms for to in edges[name] & rooms.keys() if floor_of[rooms[name]] < floor_of[rooms[to]]
    }
    assert upwards == set()


def _below(package: str) -> list[str]:
    return [name for name in MODULES if name == package or name.startswith(f"{package}.")]


@pytest.mark.parametrize(
    ("room", "known"),
    [
        ("waltzctl.formats", ("waltzctl.formats",)),
        ("waltzctl.engine", ("waltzctl.formats", "waltzctl.engine", "waltzctl")),
        (
            "waltzctl.engine.net",
            (
                "waltzctl.formats",
                "waltzctl.engine.net",
                "waltzctl.engine.errors",
                "waltzctl.engine.amounts",
                "waltzctl.engine.descriptor_limit",
                "waltzctl.engine.shell_words",
            ),
        ),
        (
            "waltzctl.engine.durable",
            (
                "waltzctl.formats.adapters",
                "waltzctl.engine.durable",
                "waltzctl.engine.errors",
                "waltzctl.engine.findings",
                "waltzctl.engine.strict_json",
            ),
        ),
    ],
)
def test_a_room_knows_only_what_it_stands_on(room: str, known: tuple[str, ...]) -> None:
    allowed = {one for name in known for one in (_below(name) if name != "waltzctl" else [name])}
    edges = graph(types=True)
    assert {(name, to) for name in _below(room) for to in edges[name] - allowed} == set()
