"""The mutator changes what it says, each place once, and what is judged equivalent is still a mutant."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.mutation.collected import Collected, replacements
from tests.mutation.covering import Reach
from tests.mutation.equivalent import EQUIVALENT, MADE_UP, TUNED, why_equivalent
from tests.mutation.measure import ROOMS
from tests.mutation.mutants import Mutant, compiles, mutants_of, sampled
from tests.mutation.server import Answer
from tests.mutation.trial import ROOT

pytestmark = pytest.mark.turns(10)


def _made(text: str) -> set[str]:
    source = text.encode()
    return {mutant.made_in(source).decode() for mutant in mutants_of("a.py", source)}


@pytest.mark.parametrize(
    ("text", "mutants"),
    [
        ("a < b", {"a <= b", "a < (b) - 1"}),
        ("a >= 5", {"a > 5", "a >= 4"}),
        ("a is not None", {"a is None"}),
        ("a not in b", {"a in b"}),
        ("(a) == (b)", {"(a) != (b)"}),
        ("a < b < c", {"a <= b < c", "a < (b) - 1 < c", "a < b <= c", "a < b < (c) - 1"}),
        ("a and b", {"a or b", "True and b", "a and True"}),
        (
            "(a  # \u00e4 and b\n and b)",
            {
                f"({one})"
                for one in ("a  # \u00e4 and b\n or b", "True  # \u00e4 and b\n and b", "a  # \u00e4 and b\n and True")
            },
        ),
        ("not (a or b)", {"(a or b)", "not (a and b)", "not (False or b)", "not (a or False)"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("x = sorted(a, key=b)", {"x = list(a)"}),
        ("x = a + 1", {"x = a - 1", "x = a + 2", "x = a + 0"}),
        ("a.sync()", {"pass"}),
        ("log.info(1)", set()),
        ("x = zip(a, b, strict=True)", set()),
        ("a.b = c", {"pass"}),
        ("a += b", {"a -= b", "pass"}),
        ("raise A", {"pass"}),
        ("if a:\n    b", {"if False:\n    b"}),
        ("x: dict[int, 1] = True", {"x: dict[int, 1] = False"}),
        ('x = f"{1}"', set()),
        ("def f() -> bool:\n    return a", {"def f() -> bool:\n    return True", "def f() -> bool:\n    return False"}),
        ("def f() -> int:\n    return a", {"def f() -> int:\n    return (a) + 1"}),
        ("def f() -> str:\n    return a", {"def f() -> str:\n    return None"}),
        ("for a in b:\n    break", {"for a in b:\n    continue"}),
    ],
)
def test_a_place_is_changed_in_every_way_that_there_is(text: str, mutants: set[str]) -> None:
    assert _made(text) == mutants


def test_a_mutant_keeps_its_lines_and_is_told_from_an_equal_one() -> None:
    source = "é = 1\ndef f():\n    x = 'ß' if a else b\n    c()\n    c()\n".encode()
    dropped = [one for one in mutants_of("a.py", source) if one.old == "c()"]
    assert [(one.function, one.line, one.new, one.nth) for one in dropped] == [("f", 4, "pass", 1), ("f", 5, "pass", 2)]
    assert dropped[1].made_in(source).decode().endswith("    c()\n    pass\n")


def test_a_sample_stays_when_other_code_changes() -> None:
    source = "\n".join(f"x{at} = {at}" for at in range(50)).encode()
    before = sampled(mutants_of("a.py", source), 7)
    after = sampled(mutants_of("a.py", b"y = 3\n" + source), 7)
    assert [one.key for one in before] == [one.key for one in after if not one.old.startswith("y")]
    assert [one.key for one in before] != [one.key for one in sampled(before, 8)]


def test_a_line_that_moved_is_found_again() -> None:
    reach = Reach({"a.py": {2: ["t::slow", "t::quick"]}}, {"t::slow": 2.0, "t::quick": 1.0}, {"a.py": "a\nb\nc\n"})
    assert reach.tests("a.py", 2, "a\nb\nc\n") == ["t::quick", "t::slow"]
    assert reach.tests("a.py", 4, "a\nx\ny\nb\nc\n") == ["t::quick", "t::slow"]
    assert reach.tests("a.py", 1, "a\nb\nc\n") == []


def test_a_default_is_reached_by_the_tests_of_its_function() -> None:
    text = "def f(\n    a=1,\n    b=2,\n):\n    c\n    d\ne\n"
    reach = Reach({"a.py": {1: [""], 5: ["t::one"], 6: ["t::other"], 7: ["t::far"]}}, {}, {"a.py": text})
    assert reach.tests("a.py", 3, text) == ["t::one", "t::other"]
    assert reach.tests("a.py", 4, text) == ["t::one", "t::other"]
    assert reach.tests("a.py", 7, text) == ["t::far"]
    reach.lines["a.py"][3] = ["", "t::imports"]
    assert reach.tests("a.py", 3, text) == ["t::one", "t::other"], "importing it is not calling it"


def test_what_runs_at_import_is_reached_by_all_and_first_by_quick_tests_that_reach_the_file() -> None:
    text = "x = 1\ndef f():\n    y\n    z\n"
    lines = {"a.py": {1: ["", "t::imports"], 3: ["t::near", "t::slow"], 4: ["", "t::near"]}, "b.py": {1: ["t::far"]}}
    seconds = {"t::far": 0.01, "t::near": 0.1, "t::slow": 3.0, "t::imports": 2.0, "t::other": 1.0}
    reach = Reach(lines, seconds, {})
    by_all = ["t::near", "t::far", "t::imports", "t::slow", "t::other"]
    assert reach.tests("a.py", 1, text) == by_all, "also what imports it once more"
    assert reach.tests("a.py", 4, text) == by_all, "what a function did at import is kept"
    assert reach.tests("a.py", 9, text) == []
    assert [line for line in (1, 3, 4) if reach.at_import("a.py", line, text)] == [1, 4]


def test_every_room_has_sources_and_tests() -> None:
    for room in ROOMS.values():
        assert room.files(ROOT)
        assert room.test_files(ROOT)


@pytest.mark.turns(1)  # each day, as the slips: whoever changes the code is to hear of it
def test_what_is_judged_equivalent_is_a_mutant_and_says_why() -> None:
    """Where the code changed, so does the judgement."""
    assert len({one.key for one in EQUIVALENT}) == len(EQUIVALENT)
    found: set[tuple[str, str, str, str, int]] = set()
    for file in {one.file for one in EQUIVALENT}:
        source = (ROOT / file).read_bytes()
        named = {one.key for one in EQUIVALENT if one.file == file}
        mutants = [mutant for mutant in mutants_of(file, source) if mutant.key in named]
        found |= {mutant.key for mutant in mutants if compiles(mutant, source)}
    assert [one for one in EQUIVALENT if one.key not in found] == []
    assert all(one.reason for one in EQUIVALENT)


def test_constants_that_only_size_a_piece_are_there_and_zero_is_no_size() -> None:
    for file, names in TUNED.items():
        source = (ROOT / file).read_bytes()
        mutants = [mutant for mutant in mutants_of(file, source) if not mutant.function]
        for name in names:
            ours = [mutant for mutant in mutants if re.match(rf"{name}\b.*=", mutant.old)]
            assert any(why_equivalent(mutant) for mutant in ours), f"{file}: {name}"
    assert not why_equivalent(replace(ours[0], new=f"{name} = 0"))


def test_other_numbers_are_other_input_where_input_is_made_up_and_other_calls_are_not() -> None:
    for file, functions in MADE_UP.items():
        for function in functions:
            ours = [mutant for mutant in mutants_of(file, (ROOT / file).read_bytes()) if mutant.function == function]
            assert any(why_equivalent(mutant) for mutant in ours), f"{file}: {function}"
            assert not any(why_equivalent(mutant) for mutant in ours if mutant.new == "pass"), f"{file}: {function}"


def test_mutants_of_the_program_compile() -> None:
    source = (ROOT / "formats/segment.py").read_bytes()
    mutants = mutants_of("formats/segment.py", source)
    assert len(mutants) > 50
    broken: list[Mutant] = [mutant for mutant in mutants if not compiles(mutant, source)]
    assert broken == []
    assert all(ast.dump(ast.parse(one.made_in(source))) != ast.dump(ast.parse(source)) for one in mutants[:10])


def _module(text: str) -> tuple[CodeType, dict[str, Any]]:
    names: dict[str, Any] = {}
    code = compile(text, "a.py", "exec", dont_inherit=True)
    exec(code, names)
    return code, names


_TEXT = """\
def decorated(limit):
    def inner(value=1):
        return [one for one in range(value) if one < limit]
    return inner

class Held:
    size = 8
    def bytes(self):
        return self.size * 2

f = decorated(5)
"""


@pytest.mark.parametrize(
    ("old", "new", "functions"),
    [
        ("self.size * 2", "self.size // 2", {"Held.bytes"}),
        ("one < limit", "one <= limit", {"decorated", "decorated.<locals>.inner"}),
        (
            "return inner",
            "return None",
            {"decorated"},
        ),  # only who calls it behind the import; `at_import` tells of others
        ("one < limit", "one < LIMIT", {"decorated", "decorated.<locals>.inner"}),
        ("size = 8", "size = 9", None),
        ("value=1", "value=2", {"decorated"}),
        ("decorated(5)", "decorated(6)", None),
    ],
)
def test_a_change_is_made_in_the_functions_that_have_it(old: str, new: str, functions: set[str] | None) -> None:
    code, names = _module(_TEXT)
    live = {one.__code__: one for one in (names["decorated"], names["f"], names["Held"].bytes)}
    changed = replacements(code, compile(_TEXT.replace(old, new), "a.py", "exec", dont_inherit=True), live)
    assert (None if changed is None else {one.co_qualname for one in changed}) == functions
    if changed == {}:
        return
    for before, after in (changed or {}).items():
        assert before.co_qualname == after.co_qualname
        assert before != after


def test_tests_that_are_collected_once_answer_for_one_mutant_after_the_other(tmp_path: Path) -> None:
    """Each in a process of its own, with the mutant in memory; what ran at import is left to others."""
    (tmp_path / "code_of.py").write_text(source := "LIMIT = 1 + 1\ndef f(a):\n    return a < LIMIT\n")
    (tmp_path / "test_of.py").write_text(
        "import time\nimport code_of\ndef test_one(tmp_path):\n    assert code_of.f(1)\ndef test_two():\n"
        "    assert not code_of.f(2)\ndef test_slow():\n    time.sleep(0 if code_of.f(0) else 60)\n"
    )
    collected = Collected(tmp_path, ["test_of.py"])
    tests = [f"test_of.py::test_{name}" for name in ("one", "two", "slow")]

    def tried(new: str, *tests: str, timeout: float = 60.0) -> Answer | None:
        mutant = next(one for one in mutants_of("code_of.py", source.encode()) if one.new == new)
        (tmp_path / "code_of.py").write_bytes(mutant.made_in(source.encode()))
        return collected.run(mutant, source.encode(), tests, timeout)

    try:
        for _ in range(2):
            assert (answer := tried("return a <= LIMIT", *tests)) is not None
            assert answer.failed == "test_of.py::test_two"
            assert (answer := tried("return None", tests[2], timeout=1.0)) is not None
            assert answer.how == "too long"
            assert (answer := tried("return a <= LIMIT", tests[0])) is not None
            assert not answer.noticed
            assert tried("LIMIT = 1 - 1", *tests) is None
            assert (answer := collected.run(None, b"", tests, 60.0)) is not None
            assert not answer.noticed
    finally:
        collected.close()
