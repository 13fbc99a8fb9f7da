"""Every slip of the sample is noticed by the tests that it names; the list itself keeps up with the code."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.mutation.slips import SLIPS
from tests.mutation.trial import ROOT, Scratch, Slip


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    return Scratch.copied(tmp_path_factory.mktemp("slips") / "copy")


@functools.cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text()


def test_every_slip_changes_a_place_that_is_there_once() -> None:
    """Where the code moved, the slip moves with it."""
    found = {slip.name: text_of(slip.file).count(slip.old) for slip in SLIPS}
    assert {name: times for name, times in found.items() if times != 1} == {}
    assert [slip.name for slip in SLIPS if slip.old == slip.new] == []


@pytest.mark.turns(12)
@pytest.mark.parametrize("part", range(6))
def test_what_a_slip_makes_of_a_file_is_code(part: int) -> None:
    for slip in SLIPS[part::6]:
        ast.parse(text_of(slip.file).replace(slip.old, slip.new), slip.file)


def test_no_slip_is_listed_twice_and_each_names_tests_that_are_there() -> None:
    assert len({(slip.file, slip.old, slip.new) for slip in SLIPS}) == len(SLIPS)
    for slip in SLIPS:
        assert slip.harm
        for test in slip.noticed_by:
            file, _, name = test.partition("::")
            text = (ROOT / file).read_text()
            assert not name or f"def {name}(" in text, test


def test_a_scratch_copy_is_as_it_was_behind_a_slip(tmp_path: Path) -> None:
    copy = Scratch(tmp_path)
    file = tmp_path / "engine" / "a.py"
    file.parent.mkdir()
    file.write_text("a = 1\n")
    slip = Slip("engine/a.py", "a = 1", "a = 2", (), "none")
    with copy.slipped(slip):
        assert file.read_text() == "a = 2\n"
    assert file.read_text() == "a = 1\n"
    with pytest.raises(ValueError, match="2 times"), copy.slipped(Slip("engine/a.py", " ", "", (), "none")):
        pass


def test_a_copy_has_every_file_of_the_fixtures(tmp_path: Path) -> None:
    """Storages among them have a directory of their own whose name begins with a dot; without it tests fail of themselves."""
    copied = Scratch.copied(tmp_path / "copy").path

    def files(root: Path) -> set[Path]:
        return {one.relative_to(root) for one in (root / "fixtures").rglob("*") if "__pycache__" not in one.parts}

    assert files(copied) == files(ROOT)
    assert any(".waltzctl" in one.parts for one in files(copied))


@pytest.mark.long
def test_the_tests_that_notice_pass_without_a_slip(scratch: Scratch) -> None:
    """Otherwise they would notice everything."""
    named = sorted({test for slip in SLIPS for test in slip.noticed_by})
    assert scratch.failing(named, patience=None) == ""


@pytest.mark.long
@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.name)
def test_a_slip_is_noticed(scratch: Scratch, slip: Slip) -> None:
    with scratch.slipped(slip):
        assert scratch.failing(slip.noticed_by), f"{slip.name}: nobody notices: {slip.harm}"
