"""What contrib/ holds fits the command: options, keys, variables, ports, and how a service manager is told."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.cli.running import ROOT
from waltzctl.app import app
from waltzctl.commands.serve import MANUAL
from waltzctl.engine.net.configuration import Level, load_configuration
from waltzctl.engine.node.node_settings import SERVE
from waltzctl.exit_status import ExitStatus

CONTRIB = ROOT / "contrib"
UNIT = CONTRIB / "waltzctl.service"
SAMPLE = CONTRIB / "waltz-storage.yaml"
CONTAINER = CONTRIB / "Containerfile"
VARIABLES = {setting.variable for setting in SERVE.listed} | {SERVE.file_variable}
VARIABLES |= {f"{setting.variable}_FILE" for setting in SERVE.listed if setting.secret}


def parse(command: list[str]) -> dict[str, Any]:
    """The arguments of a command line of ours, as the command would get them.  Raises for an option that is none."""
    tree: Any = get_command(app)
    name, *arguments = command
    top = tree.make_context("waltzctl", [], resilient_parsing=True)
    parameters: dict[str, Any] = tree.commands[name].make_context(name, arguments, parent=top).params
    return parameters


def unit() -> configparser.SectionProxy:
    class Repeating(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            if isinstance(value, list) and key in self:
                self[key].extend(value)
            else:
                super().__setitem__(key, value)

    parser = configparser.RawConfigParser(dict_type=Repeating, strict=False, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names are as they are
    parser.read(UNIT)
    return parser["Service"]


def commented(path: Path) -> str:
    """A file with what is commented out taken in; prose has one blank after its mark."""
    return re.sub(r"(?m)^(\s*)#(?! \S)", r"\1", path.read_text())


def test_the_unit_starts_the_real_command() -> None:
    program, *command = shlex.split(unit()["ExecStart"])
    assert program.endswith("/waltzctl")
    parameters = parse(command)
    assert parameters["config"].endswith(SAMPLE.name)
    assert parameters["ready_file"].startswith("/run/" + unit()["RuntimeDirectory"])


def test_the_unit_is_told_what_it_asks_for() -> None:
    service = unit()
    assert service["Type"] == "notify"
    assert "HUP" in service["ExecReload"]
    assert int(service["WatchdogSec"]) > 0
    prevented = {ExitStatus(int(number)) for number in service["RestartPreventExitStatus"].split()}
    assert prevented <= set(MANUAL.statuses)
    assert not prevented & {ExitStatus.CLEAN, ExitStatus.INTERNAL, ExitStatus.IO_ERROR, ExitStatus.LOCKED}


def test_every_variable_that_contrib_names_is_known() -> None:
    for path in (UNIT, SAMPLE, CONTAINER):
        named = set(re.findall(r"WALTZCTL_SERVE_[A-Z_]+", path.read_text()))
        assert named
        assert named <= VARIABLES, path.name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "waltzctl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/usr/bin/waltzctl", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert complaints == []


def test_the_sample_is_read_without_a_remark_and_says_what_holds_anyway() -> None:
    found = load_configuration(SERVE, file=SAMPLE)
    assert found.notes == ()
    options = found.options.node
    options.check()
    assert not options.beyond_loopback
    for one in found.settings:
        if one.level is Level.FILE and not one.setting.declared.required and one.setting.name != "http-port":
            assert one.value == one.setting.default, one.setting.key


def test_what_the_sample_has_commented_out_is_right_as_well(tmp_path: Path) -> None:
    path = tmp_path / SAMPLE.name
    path.write_text(commented(SAMPLE))
    found = load_configuration(SERVE, file=path)
    assert found.notes == ()
    options = found.options.node
    options.check()
    assert options.zookeeper is not None
    assert options.graphite is not None
    assert options.tls.key_store is not None
    assert options.tls.trust_store is not None


def test_the_sample_shows_every_key_of_the_release() -> None:
    text = commented(SAMPLE)
    for key in SERVE.by_key:
        if not key.startswith("waltzctl.") and not key.endswith("password"):
            assert key.rpartition(".")[2] in text, key


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", CONTAINER.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_container_runs_the_real_command_on_its_own_ports() -> None:
    found = dict(instructions())
    entry, command = json.loads(found["ENTRYPOINT"]), json.loads(found["CMD"])
    assert entry == ["waltzctl"]
    assert parse(command)["directory"] == found["VOLUME"]
    ports = load_configuration(
        SERVE, environment=dict(re.findall(r"(WALTZCTL_\w+)=(\S+)", found["ENV"]))
    ).options.node.ports
    assert found["EXPOSE"].split() == [str(ports.data), str(ports.admin), str(ports.http)]
    assert f":{ports.http}/health" in found["HEALTHCHECK"]
    assert found["USER"] not in ("0", "root")


def test_the_container_names_no_host_to_fetch_from() -> None:
    images = [argument for name, argument in instructions() if name in ("FROM", "ARG")]
    assert images
    for image in images:
        assert "/" not in image
    assert "://" not in CONTAINER.read_text().replace("http://127.0.0.1", "")


def test_every_command_line_in_the_comments_can_be_typed() -> None:
    for path in (UNIT, SAMPLE, CONTAINER):
        for words in re.findall(r"^#.*?waltzctl (create-cluster .*|serve .*)$", path.read_text(), re.M):
            parse(shlex.split(words.replace("...", "file")))
