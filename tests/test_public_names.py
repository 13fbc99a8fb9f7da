"""What programs import from the package: it is there, is described, and costs nothing until it is used."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import waltzctl
from tests.builders import build_directory
from waltzctl.engine.inspect.status import storage_status

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "python.md").read_text()


@pytest.mark.parametrize("name", waltzctl.__all__)
def test_a_public_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(waltzctl, name)
    assert value.__name__ == name
    assert value.__doc__


def test_the_page_lists_every_public_name_and_no_other() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.M) != []
    assert sorted(re.findall(r"^\| `(\w+)` \|", PAGE, re.M)) == sorted(waltzctl.__all__) == sorted(waltzctl._MODULES)


def test_errors_that_the_pages_name_can_be_caught() -> None:
    pages = PAGE + (ROOT / "docs" / "client.md").read_text()
    named = set(re.findall(r"`(\w+Error)`", pages))
    assert {"DeadlineError", "PeerUnreachableError", "InvalidRequestError"} <= named <= set(waltzctl.__all__)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(waltzctl.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        name.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for name in node.names
    }
    assert imported == waltzctl._MODULES


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'open_store'"):
        waltzctl.open_store  # noqa: B018


def test_nothing_is_loaded_before_it_is_used() -> None:
    code = "import sys, waltzctl; print([n for n in sys.modules if n.startswith(('waltzctl.', 'numpy', 'construct'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_example_of_the_page(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 3})
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names: dict[str, object] = {}
    exec(code, names)  # our own page
    found = names["copy_of"](str(storage))  # type: ignore[operator]
    assert len(found) == 4
    assert found[-1] == b"hello"
    assert storage_status(storage).partitions[0].last_transaction_id == 3


def imported(source: str) -> set[str]:
    """The top-level modules that a source imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.turns(10)
def test_nothing_is_imported_past_the_package() -> None:
    """`engine` and `formats` as modules of their own would be a second copy of everything, and collide with a job's own."""
    rooms = (
        "engine",
        "formats",
        "waltzctl/commands",
        "waltzctl/render",
        "tests",
        "benchmarks",
        "fixtures",
        "demo",
        "man",
        "docs",
    )
    sources = [
        *ROOT.glob("*.py"),
        *ROOT.glob("waltzctl/*.py"),
        *(path for room in rooms for path in ROOT.glob(f"{room}/**/*.py")),
    ]
    assert len(sources) > 500
    texts = {path: path.read_text() for path in sources}
    near = {
        path: text
        for path, text in texts.items()
        if re.search(r"\b(from|import)\s[^\n]*(?<![\w.])(engine|formats)\b", text)
    }
    assert [str(path) for path, text in near.items() if imported(text) & {"engine", "formats"}] == []
