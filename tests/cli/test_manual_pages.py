"""The manual pages are those that the commands and the catalogue of findings give."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import ROOT
from waltzctl.app import COMMANDS, manual_of
from waltzctl.engine.findings import CATALOGUE
from waltzctl.exit_status import ExitStatus

MAN = ROOT / "man"
PAGES = sorted(path for path in MAN.iterdir() if path.suffix in (".1", ".7"))
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("man_generate", MAN / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_pages_are_those_that_the_generator_writes() -> None:
    written = generator().pages()
    assert {page.name for page in PAGES} == set(written)
    for page in PAGES:
        assert page.read_text() == written[page.name], f"{page.name}: run python man/generate.py"


def test_every_command_has_a_page() -> None:
    for command in COMMANDS:
        assert (MAN / f"waltzctl-{manual_of(command).name}.1").is_file()


def test_every_finding_code_is_explained() -> None:
    text = (MAN / "waltzctl-findings.7").read_text().replace("\\-", "-")
    assert re.findall(r"^\.SS (.*)$", text, re.M) == [code.value for code in CATALOGUE]
    for kind in CATALOGUE.values():
        assert kind.what_to_do.split(". ")[0][:40] in text


def test_every_exit_status_is_explained() -> None:
    text = (MAN / "waltzctl.1").read_text()
    for status in ExitStatus:
        assert f".B {int(status)}\n" in text


@every_page
def test_a_page_is_well_formed(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert lines[1].startswith(".TH WALTZCTL")
    assert ".SH NAME" in lines
    known = {"TH", "SH", "SS", "PP", "TP", "B", "BR", "nf", "fi", "RS", "RE", "nh", "ad"}
    for line in lines:
        assert line.strip(), "an empty line is a fault in roff"
        if line.startswith("."):
            assert line[1:].split()[0] in known or line.startswith('.\\"')
        assert not line.startswith("'")
    assert lines.count(".nf") == lines.count(".fi")
    assert lines.count(".RS 4") == lines.count(".RE")


@every_page
@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_a_page_renders_without_complaint_in_80_columns(page: Path) -> None:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-c", "-rLL=78n", str(page)], capture_output=True, check=True, text=True
    )
    assert done.stderr == ""
    shown = re.sub(r".\x08", "", done.stdout)
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "NAME" in shown


def test_the_page_about_all_names_every_other() -> None:
    text = (MAN / "waltzctl.1").read_text().replace("\\-", "-")
    for page in PAGES:
        if page.name != "waltzctl.1":
            assert f".BR {page.stem} (" in text
