"""What contrib/ holds fits the command: options, keys, variables, ports, and how a service manager is told."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders import build_directory
from tests.cli.running import ROOT, invoke, parsed
from waltzctl.commands.log_server import MANUAL as LOG_SERVER_MANUAL
from waltzctl.commands.serve import MANUAL as SERVE_MANUAL
from waltzctl.engine.net.configuration import Configuration, Level, load_configuration
from waltzctl.engine.net.settings import Settings
from waltzctl.engine.node.node_settings import SERVE
from waltzctl.engine.server.server_settings import LOG_SERVER, METADATA_VARIABLE
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Manual

CONTRIB = ROOT / "contrib"
CONTAINER = CONTRIB / "Containerfile"
COMPOSE = CONTRIB / "compose.yml"


@dataclass(frozen=True)
class Process:
    """What contrib/ has for one of the two that run: its settings, manual, unit and sample of a configuration."""

    settings: Settings[Any]
    manual: Manual
    unit: Path
    sample: Path

    def options(self, found: Configuration[Any]) -> Any:
        """What the process itself is told, without the log's options."""
        return found.options.node if self.settings is SERVE else found.options.server

    def service(self) -> configparser.SectionProxy:
        """The unit's section of the service."""
        return unit(self.unit)

    def variables(self) -> set[str]:
        """Every variable that it reads."""
        listed = self.settings.listed
        files = {f"{setting.variable}_FILE" for setting in listed if setting.secret}
        return {setting.variable for setting in listed} | {self.settings.file_variable} | files


NODE = Process(SERVE, SERVE_MANUAL, CONTRIB / "waltzctl.service", CONTRIB / "waltz-storage.yaml")
SERVER = Process(LOG_SERVER, LOG_SERVER_MANUAL, CONTRIB / "waltzctl-log-server.service", CONTRIB / "waltz-server.yaml")
both = pytest.mark.parametrize("process", [NODE, SERVER], ids=["node", "server"])


def unit(path: Path) -> configparser.SectionProxy:
    class Repeating(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            if isinstance(value, list) and key in self:
                self[key].extend(value)
            else:
                super().__setitem__(key, value)

    parser = configparser.RawConfigParser(dict_type=Repeating, strict=False, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names are as they are
    parser.read(path)
    return parser["Service"]


def commented(path: Path) -> str:
    """A file with what is commented out taken in; prose has one blank after its mark."""
    return re.sub(r"(?m)^(\s*)#(?! \S)", r"\1", path.read_text())


@both
def test_the_unit_starts_the_real_command(process: Process) -> None:
    service = process.service()
    program, *command = shlex.split(service["ExecStart"])
    assert program.endswith("/waltzctl")
    assert command[0] == process.settings.command
    parameters = parsed(*command)
    assert parameters["config"].endswith(process.sample.name)
    assert parameters["ready_file"].startswith(f"/run/{service['RuntimeDirectory']}/")


@both
def test_the_unit_is_told_what_it_asks_for(process: Process) -> None:
    service = process.service()
    assert service["Type"] == "notify"
    assert "HUP" in service["ExecReload"]
    assert int(service["WatchdogSec"]) > 0
    prevented = {ExitStatus(int(number)) for number in service["RestartPreventExitStatus"].split()}
    assert prevented <= set(process.manual.statuses)
    assert not prevented & {ExitStatus.CLEAN, ExitStatus.INTERNAL, ExitStatus.IO_ERROR, ExitStatus.LOCKED}


@both
def test_the_unit_lets_the_process_read_what_it_asks_the_kernel(process: Process) -> None:
    """The node what others write (/proc/meminfo), the server of a cluster in one file the boot id (/proc/sys)."""
    assert process.service().get("ProcSubset", "all") == "all"


def test_both_units_may_run_on_one_machine() -> None:
    node, server = NODE.service(), SERVER.service()
    assert node["RuntimeDirectory"] != server["RuntimeDirectory"], (
        "the first to stop would remove the other's ready file"
    )


@both
def test_every_variable_that_contrib_names_is_known(process: Process) -> None:
    for path in (process.unit, process.sample):
        named = set(re.findall(r"WALTZCTL_[A-Z_]+_[A-Z]+", path.read_text())) - {METADATA_VARIABLE}
        assert named
        assert named <= process.variables(), path.name


def test_every_variable_that_the_container_names_is_known() -> None:
    named = set(re.findall(r"WALTZCTL_[A-Z_]+", CONTAINER.read_text()))
    assert named
    assert named <= NODE.variables() | SERVER.variables()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@both
def test_systemd_finds_nothing_wrong_with_the_unit(process: Process, tmp_path: Path) -> None:
    program = tmp_path / "waltzctl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / process.unit.name
    copy.write_text(process.unit.read_text().replace("/usr/bin/waltzctl", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if process.unit.name in line]
    assert complaints == []


@both
def test_the_sample_is_read_without_a_remark_and_says_what_holds_anyway(process: Process) -> None:
    found = load_configuration(process.settings, file=process.sample)
    assert found.notes == ()
    found.check()
    assert not process.options(found).beyond_loopback
    for one in found.settings:
        if one.level is Level.FILE and one.setting.name not in ("http-port", "zookeeper", "cluster-root"):
            assert one.setting.declared.required or one.value == one.setting.default, one.setting.key


@both
def test_what_the_sample_has_commented_out_is_right_as_well(process: Process, tmp_path: Path) -> None:
    path = tmp_path / process.sample.name
    path.write_text(commented(process.sample))
    found = load_configuration(process.settings, file=path)
    assert found.notes == ()
    found.check()
    options = process.options(found)
    assert options.zookeeper is not None
    assert options.graphite is not None
    assert options.tls.key_store is not None
    assert options.tls.trust_store is not None


@both
def test_the_sample_shows_every_key_of_the_release(process: Process) -> None:
    text = commented(process.sample)
    for key in process.settings.by_key:
        if not key.startswith("waltzctl.") and not key.endswith("password"):
            assert key.rpartition(".")[2] in text, key


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", CONTAINER.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def variables_of_the_image() -> dict[str, str]:
    return dict(re.findall(r"(WALTZCTL_\w+)=(\S+)", dict(instructions())["ENV"]))


def test_the_container_runs_the_real_command_on_its_own_ports() -> None:
    found = dict(instructions())
    entry, command = json.loads(found["ENTRYPOINT"]), json.loads(found["CMD"])
    assert entry == ["waltzctl"]
    assert parsed(*command)["directory"] == found["VOLUME"]
    ports = load_configuration(SERVE, environment=variables_of_the_image()).options.node.ports
    server = load_configuration(LOG_SERVER, environment=variables_of_the_image()).options.server
    exposed = [ports.data, ports.admin, ports.http, server.port, server.http_port]
    assert found["EXPOSE"].split() == [str(port) for port in exposed]
    assert f":{ports.http}/health" in found["HEALTHCHECK"]
    assert found["USER"] not in ("0", "root")


def test_the_container_names_no_host_to_fetch_from() -> None:
    images = [argument for name, argument in instructions() if name in ("FROM", "ARG")]
    assert images
    for image in images:
        assert "/" not in image
    assert "://" not in CONTAINER.read_text().replace("http://127.0.0.1", "")


def test_every_command_line_in_the_comments_can_be_typed() -> None:
    for path in (NODE.unit, NODE.sample, SERVER.unit, SERVER.sample, CONTAINER):
        for words in re.findall(r"^#.*?waltzctl (create-cluster .*|serve .*|log-server .*)$", path.read_text(), re.M):
            parsed(*shlex.split(words.replace("...", "file")))


# --- a backup every night ---------------------------------------------------------------------------------------------


def test_the_nightly_backup_is_commands_that_there_are(tmp_path: Path) -> None:
    """Run as they stand, but for the places."""
    text = (CONTRIB / "waltzctl-backup.service").read_text()
    source = build_directory(tmp_path / "source", {0: 20})
    vault, figures = tmp_path / "vault", tmp_path / "figures"
    figures.mkdir()
    assert invoke("backup", "init", vault).status == 0
    commands = re.findall(r"(?m)^ExecStart=/usr/bin/waltzctl (.+)$", text)
    assert [line.split()[1] for line in commands] == ["create", "forget", "verify"]
    for line in commands:
        words = [
            word.replace("/backup/waltz", str(vault))
            .replace("/var/lib/node_exporter/textfile_collector", str(figures))
            .replace("/var/lib/waltz", str(source))
            .replace("%%", "%")
            for word in shlex.split(line)
        ]
        assert invoke(*words).status == 0, line
    assert (figures / "waltz_backup.prom").exists()
    assert "waltzctl-backup.timer" in text
    assert "OnCalendar=" in (CONTRIB / "waltzctl-backup.timer").read_text()


def test_the_hourly_pipeline_is_a_command_that_there_is() -> None:
    text = (CONTRIB / "waltzctl-pipeline.service").read_text()
    (line,) = re.findall(r"(?m)^ExecStart=/usr/bin/waltzctl (.+)$", text)
    parameters = parsed(*shlex.split(line))
    assert (parameters["directory"], parameters["master"], parameters["require"]) == (
        "/lake/waltz",
        "local[2]",
        "complete",
    )
    assert f"ReadWritePaths={parameters['directory']}" in text
    assert "waltzctl-pipeline.timer" in text
    assert "OnCalendar=" in (CONTRIB / "waltzctl-pipeline.timer").read_text()


# --- a cluster of containers ------------------------------------------------------------------------------------------


def services() -> dict[str, dict[str, Any]]:
    """The services of the composition that are ours."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return {name: service for name, service in found.items() if service["image"] == "waltzctl"}


def running(kind: str) -> dict[str, dict[str, Any]]:
    """Those that run a node or a log server, by the name of its command."""
    return {
        name: service
        for name, service in services().items()
        if "entrypoint" not in service and service.get("command", [""])[0] == kind
    }


def typed(script: str) -> list[list[str]]:
    """The command lines of ours in a script or comment, without what the shell makes of them."""
    lines = re.findall(r"waltzctl (.+?)(?:$| \|\|)", script, re.M)
    return [shlex.split(line.replace("$$n", "1")) for line in lines]


def test_the_composition_is_three_nodes_two_servers_and_their_metadata() -> None:
    everything = yaml.safe_load(COMPOSE.read_text())
    assert everything["services"]["zookeeper"]["image"] == "zookeeper:3.9"
    assert set(running("serve")) == {"node-1", "node-2", "node-3"}
    assert set(running("log-server")) == {"server-1", "server-2"}
    mounted = [volume for service in everything["services"].values() for volume in service.get("volumes", ())]
    assert sorted(volume.partition(":")[0] for volume in mounted) == sorted(everything["volumes"]), "each has its own"
    for service in services().values():
        assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == CONTAINER
        assert set(service.get("depends_on", {})) <= set(everything["services"])


@pytest.mark.parametrize("name", [*running("serve"), *running("log-server")])
def test_a_process_of_the_composition_is_told_what_can_be_meant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = services()[name]
    for variable, value in {**variables_of_the_image(), **service["environment"]}.items():
        monkeypatch.setenv(variable, value)
    answer = invoke(*service["command"], "--show-config", "--format", "ndjson")
    assert answer.status == 0, answer.err
    assert "warning" not in answer.err
    told = {one["key"]: one["value"] for one in answer.only("setting")}
    assert told["waltzctl.host"] == "0.0.0.0"  # inside of its container
    assert told.get("waltzctl.advertisedHost", name) == name, "others have to find it"
    inside = told.get("storage.jetty.port") or told["server.jetty.port"]
    (published,) = service["ports"]
    address, _, port = published.rpartition(":")
    assert address.startswith("127.0.0.1:")
    assert int(port) == inside
    if "healthcheck" in service:
        assert f":{inside}/health" in service["healthcheck"]["test"][-1]


def test_nodes_and_servers_of_the_composition_meet_at_one_metadata_and_on_no_port() -> None:
    places = {service["environment"]["WALTZCTL_METADATA"] for name, service in services().items() if name[:4] != "node"}
    for service in running("serve").values():
        asked = service["environment"]
        places.add(f"zk://{asked['WALTZCTL_SERVE_ZOOKEEPER']}{asked['WALTZCTL_SERVE_CLUSTER_ROOT']}")
        assert service["volumes"][0].partition(":")[2] == service["command"][1]
    assert len(places) == 1
    published = [port.split(":")[1] for service in services().values() for port in service.get("ports", ())]
    assert len(set(published)) == len(published) == 5


def test_every_command_of_the_composition_can_be_typed() -> None:
    scripts = [service["command"][-1] for service in services().values() if "entrypoint" in service]
    comment = re.findall(r"^# .*? tool (.*?)(?:  .*)?$", COMPOSE.read_text(), re.M)
    lines = [words for script in scripts for words in typed(script)] + [shlex.split(line) for line in comment]
    assert len(lines) == 7
    for words in lines:
        answer = invoke(*words, "--help")
        assert answer.status == 0, answer.err
    script = services()["assignment"]["command"][-1]
    told = {f"node-{n}:55280" for n in re.findall(r"\d", re.findall(r"for n in ([\d ]+);", script)[0])}
    assert told == {f"{name}:{SERVE.build({}).node.ports.data}" for name in running("serve")}
