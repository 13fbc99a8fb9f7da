"""A setting that is declared once has its key, its variable, its option, its place in --show-config, and its errors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from waltzctl.console import Console
from waltzctl.engine.errors import InvalidOptionsError, InvalidRequestError, WaltzError
from waltzctl.engine.net.configuration import Configuration, load_configuration
from waltzctl.engine.net.setting_kinds import COUNT, FILLED_TEXT, PATH, PORT, SECONDS, SIZE, SWITCH, TEXT
from waltzctl.engine.net.settings import Option, Settings, check_bounds, group, reloadable_fields, setting
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.options import Format, FormatOption
from waltzctl.setting_options import SettingsGiven, show_settings, with_settings


@dataclass(frozen=True, slots=True)
class Bounds:
    clients: int = setting("clients at a time", COUNT, default=100, option=Option(), reloadable=True)
    buffer_size: int = setting("memory for one client", SIZE, default=1 << 20)

    def check(self) -> None:
        check_bounds(self)
        if self.buffer_size < self.clients:
            raise InvalidOptionsError("too little memory", self, "buffer_size", "clients")


@dataclass(frozen=True, slots=True)
class Upstream:
    host: str = setting("where to ask", FILLED_TEXT, option=Option("ADDRESS"))
    token: str = setting("what to ask with", TEXT, option=Option(), secret=True)
    timeout: float = setting("how long to wait", SECONDS, default=5.0)


@dataclass(frozen=True, slots=True)
class LogServer:
    name: str = setting("name of the server", TEXT, default="one", key="server.name", option=Option())
    port: int = setting("port to listen at", PORT, default=55180, key="server.port", option=Option(), required=True)
    work: Path | None = setting("working directory", PATH, default=None, option=Option("DIR", argument=True))
    quick: bool = setting("answer before it is durable", SWITCH, default=False, option=Option())
    tls: TlsOptions = group(TlsOptions, key="server.", reloadable=True)
    bounds: Bounds = group(Bounds, key="waltzctl.limits.", name="limits-")
    upstream: Upstream | None = group(Upstream, key="upstream.", name="upstream-", wanted_by=("host", "token"))

    def check(self) -> None:
        self.bounds.check()


LOG_SERVER = Settings("log-server", LogServer)
app = typer.Typer(add_completion=False, rich_markup_mode=None)
SEEN: list[Configuration[LogServer]] = []


@app.command()
@with_settings(lambda: LOG_SERVER)
def run(settings: SettingsGiven[Any], output_format: FormatOption = None) -> None:
    """Serve the log."""
    configuration = settings.read(name="otherwise")
    SEEN[:] = [configuration]
    if settings.show_config:
        with Console(output_format or Format.NDJSON) as console:
            show_settings(configuration, console)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "server.yaml"
    path.write_text("server: {port: 7000, ssl.trustStore.location: /t}\nwaltzctl.limits.clients: 7\n")
    return path


def call(*arguments: object, **environment: str) -> tuple[str, list[dict[str, Any]]]:
    result = CliRunner().invoke(app, [str(one) for one in arguments], env=environment)
    if isinstance(result.exception, WaltzError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def load(file: Path | None = None, **environment: str) -> Configuration[LogServer]:
    return load_configuration(LOG_SERVER, file=file, environment=environment)


def test_the_file_has_its_key(file: Path) -> None:
    options = load(file).options
    assert options == LogServer(port=7000, tls=TlsOptions(trust_store=Path("/t")), bounds=Bounds(clients=7))


def test_keys_of_a_group_follow_the_process_but_for_ours() -> None:
    keys = {name: one.key for name, one in LOG_SERVER.by_name.items()}
    assert (keys["key-store"], keys["certificate"]) == ("server.ssl.keyStore.location", "waltzctl.certificate")
    assert (keys["limits-buffer-size"], keys["work"]) == ("waltzctl.limits.bufferSize", "work")


def test_the_environment_has_its_variable(file: Path) -> None:
    found = load(file, WALTZCTL_LOG_SERVER_LIMITS_CLIENTS="9", WALTZCTL_LOG_SERVER_LIMITS_BUFFER_SIZE="2MiB")
    assert found.options.bounds == Bounds(9, 2 << 20)
    assert load(WALTZCTL_LOG_SERVER_CONFIG=str(file)).options.port == 7000


def test_the_command_line_has_its_option(file: Path) -> None:
    call("--config", file, "/work", "--port", "0", "--quick", "--limits-clients", "8", WALTZCTL_LOG_SERVER_QUICK="no")
    (found,) = SEEN
    assert (found.options.port, found.options.work, found.options.quick) == (0, Path("/work"), True)
    assert (found.options.bounds.clients, found.effective("limits-clients").source) == (8, "--limits-clients")
    assert (found.effective("work").source, found.options.name) == ("DIR", "otherwise")


def test_help_is_made_of_what_was_declared() -> None:
    text = " ".join(call("--help")[0].split())
    for part in ("DIR Working directory.", "--port PORT Port to listen at; 55180 unless given.", "--config FILE",
                 "--quick Answer before it is durable.", "--limits-clients N Clients at a time; 100 unless given.",
                 "--upstream-host ADDRESS Where to ask.", "--upstream-token TEXT What to ask with; better give a file.",
                 "--upstream-token-file FILE First line: what to ask with.", "--key, --certificate-key FILE",
                 "--key-password-file, --certificate-key-password-file FILE", "--show-config"):  # fmt: skip
        assert part in text
    assert "buffer" not in text
    assert "--key-password " not in text


def test_show_config_says_what_holds_and_who_says_so(file: Path) -> None:
    secret = file.parent / "secret"
    secret.write_text("sesame\n")
    out, shown = call("--config", file, "--upstream-host", "u", "--upstream-token-file", secret, "--show-config",
                      WALTZCTL_LOG_SERVER_UPSTREAM_TIMEOUT="2m")  # fmt: skip
    found = {one["key"]: (one["value"], one["source"]) for one in shown}
    assert "sesame" not in out
    assert list(found) == [one.key for one in LOG_SERVER.listed]
    assert found["server.port"] == (7000, f"{file}:1")
    assert found["upstream.token"] == ("(hidden)", "--upstream-token-file")
    assert found["upstream.timeout"] == (120.0, "WALTZCTL_LOG_SERVER_UPSTREAM_TIMEOUT")
    assert found["waltzctl.limits.bufferSize"] == (1 << 20, "default")
    assert {one["variable"] for one in shown} == {one.variable for one in LOG_SERVER.listed}
    assert SEEN[0].options.upstream == Upstream("u", "sesame", 120.0)
    assert "sesame" not in repr(SEEN[0])


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["--limits-clients", "0"], {}, "--limits-clients: must be a whole number, at least 1, not 0"),
        ([], {"LIMITS_CLIENTS": "many"}, "WALTZCTL_LOG_SERVER_LIMITS_CLIENTS: must be a whole number"),
        (["--port", "65536"], {}, "--port: must be a port, 0 to 65535, not 65536"),
        (
            [],
            {"KEY_STORE_TYPE": "zip"},
            "WALTZCTL_LOG_SERVER_KEY_STORE_TYPE: 'zip': no such type of store; there are JKS",
        ),
        (["--upstream-host", " "], {}, "--upstream-host: must not be empty"),
        (["--upstream-host", "h"], {}, "--upstream-host: upstream.host is set, and upstream.token is missing"),
        (
            ["--show-config", "--limits-clients", "8"],
            {"LIMITS_BUFFER_SIZE": "7"},
            "too little memory (--limits-clients; WALTZCTL_LOG_SERVER_LIMITS_BUFFER_SIZE)",
        ),
    ],
)
def test_errors_name_the_place_and_what_is_allowed(
    arguments: list[str], variables: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        call(*arguments, **{f"WALTZCTL_LOG_SERVER_{name}": text for name, text in variables.items()})
    assert caught.value.message.startswith(message)


def test_contradictions_name_keys_and_lines_of_the_file(file: Path) -> None:
    file.write_text("server.port: 1\nwaltzctl.limits.bufferSize: 99\n")
    with pytest.raises(InvalidRequestError) as caught:
        load(file).check()
    places = f"waltzctl.limits.clients: default; waltzctl.limits.bufferSize: {file}:2"
    assert caught.value.message == f"too little memory ({places})"


def test_errors_in_the_file_name_its_line(file: Path) -> None:
    file.write_text("server.port: 1\nwaltzctl.limits.bufferSize: 0\n")
    with pytest.raises(InvalidRequestError) as caught:
        load(file)
    assert caught.value.message == (
        f"{file}:2: waltzctl.limits.bufferSize: must be a number of bytes, at least 1, not 0"
    )
    file.write_text("waltzctl.limits.clients: 1\n")
    with pytest.raises(
        InvalidRequestError, match=r"server\.port is missing; add server\.port, or give --port or WALTZ"
    ):
        load(file)


@pytest.mark.parametrize("path", ["", "waltz://h:1", "s3://b/c", "a\0b"])
def test_a_path_that_is_none_is_a_usage_error_of_its_option(path: str) -> None:
    for arguments in ([path], ["--key-store", path], ["--upstream-token-file", path]):
        result = CliRunner().invoke(app, arguments)
        assert (result.exit_code, result.exception.__class__) == (2, SystemExit)


def test_a_reload_takes_what_was_declared_reloadable(file: Path) -> None:
    old = load(file)
    again = load(
        file, WALTZCTL_LOG_SERVER_LIMITS_CLIENTS="9", WALTZCTL_LOG_SERVER_PORT="1", WALTZCTL_LOG_SERVER_KEY="/k"
    )
    reload = old.reload(again)
    assert [one.setting.name for one in reload.changed] == ["key", "limits-clients"]
    assert [one.setting.name for one in reload.needs_restart] == ["port"]
    assert reload.configuration.options == LogServer(
        port=7000, tls=TlsOptions(key=Path("/k"), trust_store=Path("/t")), bounds=Bounds(clients=9)
    )
    assert reloadable_fields(LogServer) == {"tls"}


def test_bounds_hold_for_options_that_no_configuration_made() -> None:
    Bounds(1, 1).check()
    with pytest.raises(InvalidRequestError, match="clients must be a whole number, at least 1, not 0"):
        Bounds(0).check()
