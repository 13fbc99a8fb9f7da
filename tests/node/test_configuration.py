"""Configuration: the released node's file, environment and command line, merged into one value that explains itself."""

from __future__ import annotations

import contextlib
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.mutation.trial import ROOT
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, RefusedError
from waltzctl.engine.net.configuration import Configuration, Given, Level, load_configuration
from waltzctl.engine.net.loopback import is_loopback
from waltzctl.engine.net.monitoring_options import GraphiteOptions, HttpLimits, LogFormat, LogLevel
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.engine.node.node import RELOADABLE
from waltzctl.engine.node.node_settings import (
    SERVE,
    HealthOptions,
    NodeOptions,
    Ports,
    ServeOptions,
    ServiceOptions,
    ZooKeeperOptions,
)
from waltzctl.engine.storage.storage_options import StorageOptions

RELEASED = """
storage:
  port: 55280
  admin.port: 55281
  jetty:
    port: 55282
  directory: /data/waltz
  segment.size.threshold: 500000
  segment: {cache.capacity: "7"}
  ssl:
    keyStore:
      location: /etc/waltz/key.jks
      password: "secret-one"
    trustStore: {location: /etc/waltz/trust.p12, password: secret-two, type: PKCS12}
    keyManager.algorithm: SunX509
  graphite: {hostname: graphite.example, reportIntervalMs: 30, useUdp: "true"}
zookeeper.connectString: zk1:2181,zk2:2181
zookeeper:
  sessionTimeout: 20000
cluster.root: /waltz_cluster
"""
REQUIRED = "storage: {port: 1001, admin.port: 1002, directory: /d}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(RELEASED)
    return path


def load(path: Path, text: str, **more: object) -> Configuration[ServeOptions]:
    path.write_text(text)
    return load_configuration(SERVE, file=path, **more)  # type: ignore[arg-type]  # the names are right, or this fails


# --- the file ------------------------------------------------------------------------------------------------------------


def test_the_file_of_a_released_node(file: Path) -> None:
    found = load_configuration(SERVE, file=file)
    assert found.options.node == NodeOptions(
        directory=Path("/data/waltz"),
        port=55280,
        admin_port=55281,
        http_port=55282,
        tls=TlsOptions(
            key_store=Path("/etc/waltz/key.jks"),
            key_store_password="secret-one",
            trust_store=Path("/etc/waltz/trust.p12"),
            trust_store_password="secret-two",
            trust_store_type="PKCS12",
        ),
        storage=StorageOptions(segment_size_threshold=500000, cached_segments=7),
        zookeeper=ZooKeeperOptions("zk1:2181,zk2:2181", "/waltz_cluster", 20.0, 10.0),
        graphite=GraphiteOptions("graphite.example", 2003, "waltz", 30.0, True),
    )
    (note,) = found.notes
    assert note.startswith(f"{file}:15: storage.ssl.keyManager.algorithm has no effect: ")
    found.check()


def test_nested_and_dotted_keys_are_the_same(tmp_path: Path) -> None:
    nested = load(tmp_path / "a", "storage:\n  port: 1\n  admin:\n    port: 2\n  directory: /d\n")
    dotted = load(tmp_path / "a", "storage.port: 1\nstorage.admin.port: 2\nstorage.directory: /d\n")
    mixed = load(tmp_path / "a", "storage: {port: 1, admin.port: 2}\nstorage.directory: /d\n")
    assert nested.options.node == dotted.options.node == mixed.options.node


def test_the_defaults_of_the_release_hold_for_what_the_file_leaves_out(tmp_path: Path) -> None:
    options = load(tmp_path / "a", REQUIRED).options.node
    assert options.storage == StorageOptions(1_000_000_000, StorageOptions().max_data_length, 5)
    assert options.ports == Ports(1001, 1002, None)
    assert options.zookeeper is None
    assert options.graphite is None
    assert options.tls == TlsOptions()


def test_without_a_file_there_are_ports_and_http() -> None:
    found = load_configuration(SERVE, given=[Given("directory", "/d")])
    assert found.options.node == NodeOptions(directory=Path("/d"))
    assert found.options.node.ports == Ports(55280, 55281, 55282)
    assert load_configuration(SERVE, given=[Given("port", "0")]).options.node.ports == Ports(0, 0, 0)
    assert NodeOptions(port=7000, admin_port=0, http_port=0).ports == Ports(7000, 0, 0)
    assert load_configuration(SERVE, given=[Given("port", "7000")]).options.node.ports == Ports(7000, 7001, 7002)


@pytest.mark.parametrize("missing", ["port", "admin.port", "directory"])
def test_a_missing_required_key_is_named(tmp_path: Path, missing: str) -> None:
    keys = {"port": "1", "admin.port": "2", "directory": "/d"}
    text = "".join(f"storage.{key}: {value}\n" for key, value in keys.items() if key != missing)
    with pytest.raises(InvalidRequestError, match=re.escape(f"storage.{missing} is missing")):
        load(tmp_path / "a", text)
    name = missing.replace(".", "-")
    assert load(tmp_path / "a", text, given=[Given(name, "3")]).effective(name).level is Level.COMMAND_LINE
    variable = SERVE.by_name[name].variable
    assert load(tmp_path / "a", text, environment={variable: "3"}).effective(name).level is Level.ENVIRONMENT


def test_health_times_and_the_limits_of_the_http_port_are_settings(tmp_path: Path) -> None:
    text = REQUIRED + "waltzctl:\n  health: {deadline: 2s, maxAge: 0}\n  http: {maxConnections: 3, answerSeconds: 1m}\n"
    variables = {"WALTZCTL_SERVE_HEALTH_MAX_STALL": "90s", "WALTZCTL_SERVE_HTTP_MAX_REQUEST_BYTES": "4KiB"}
    options = load(tmp_path / "a", text, environment=variables).options.node
    assert options.health == HealthOptions(deadline=2.0, max_stall=90.0, max_age=0.0)
    assert options.http == HttpLimits(max_connections=3, max_request_bytes=4096, answer_seconds=60.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("waltzctl.health.deadline: 0s", "must be a duration, more than 0s, not 0s"),
        ("waltzctl.health.maxStall: 0s", "must be a duration, more than 0s, not 0s"),
        ("waltzctl.http.maxConnections: 0", "must be a whole number, at least 1, not 0"),
        ("waltzctl.http.maxRequestBytes: 0", "must be a number of bytes, at least 1, not 0"),
        ("waltzctl.http.connectionSeconds: 0s", "must be a duration, more than 0s, not 0s"),
        ("waltzctl.http.answerSeconds: 0s", "must be a duration, more than 0s, not 0s"),
    ],
)
def test_health_times_and_limits_have_bounds(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(f"{text.partition(': ')[0]}: {problem}")):
        load(tmp_path / "a", REQUIRED + text)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("zookeeper.connectString: a:1", "cluster.root"),
        ("cluster.root: /a", "zookeeper.connectString"),
        ("zookeeper.sessionTimeout: 5", "zookeeper.connectString"),
    ],
)
def test_zookeeper_is_configured_whole_or_not_at_all(tmp_path: Path, text: str, missing: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(f"{missing} is missing")):
        load(tmp_path / "a", REQUIRED + text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("storage.port: many", "storage.port: must be a whole number"),
        ("storage.port: 70000", "storage.port: must be a port, 0 to 65535, not 70000"),
        ("storage.port: -1", "storage.port: must be a port, 0 to 65535, not -1"),
        ("storage.port: 1.5", "storage.port: must be a port, not a fraction"),
        ("storage.port: true", "storage.port: must be a port, not a truth value"),
        ("storage.port: [1]", "storage.port: must be a port, not a list"),
        ("storage.port: 2020-01-01", "storage.port: must be a port, not a date"),
        ("storage.ssl.keyStore.password: 123456", "must be a text, not a number; put it in quotation marks"),
        ("storage.directory: 7", "storage.directory: must be a path, not a number"),
        ("storage.directory: ''", "storage.directory: must be a path, not empty"),
        ("waltzctl.host: 10.0.0..7", "waltzctl.host: must be an address or a host name"),
        ("storage.graphite.hostname: .example.com", "storage.graphite.hostname: must be an address or a host name"),
        ("storage.graphite.hostname: ''", "storage.graphite.hostname: must not be empty"),
        ("storage.graphite.useUdp: perhaps", "storage.graphite.useUdp: must be true or false"),
        ("storage.segment.size.threshold: huge", "storage.segment.size.threshold: 'huge' is not understood"),
        ("waltzctl.drain: soon", "waltzctl.drain: 'soon' is not understood"),
        ("waltzctl.log.level: loud", "waltzctl.log.level: must be one of debug, info, warning, error"),
        ("waltzctl.log.format: xml", "waltzctl.log.format: must be one of human, json"),
    ],
)
def test_a_value_that_is_none_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a"
    with pytest.raises(InvalidRequestError, match=re.escape(f"{path}:2: ")) as caught:
        load(path, f"# first line\n{line}\n")
    assert message in str(caught.value)


def test_the_error_about_a_secret_does_not_show_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        load(tmp_path / "a", "storage.ssl.keyStore.password: 123456\n")
    assert "123456" not in str(caught.value)


def test_unknown_keys_are_named_and_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a"
    found = load(path, REQUIRED + "storage.prot: 7\nserver: {port: 1}\n7: x\n")
    assert found.notes == (
        f"{path}:2: storage.prot is no known key and has no effect; was storage.port meant?",
        f"{path}:3: server.port is no known key and has no effect",
        f"{path}:4: 7 is no known key and has no effect",
    )
    assert found.options.node.port == 1001


def test_of_a_key_that_is_given_twice_the_last_holds_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a"
    found = load(path, REQUIRED + "storage.port: 1005\n")
    assert found.value("port") == 1005
    assert found.notes == (f"{path}:2: storage.port stands on line 1 as well; this line holds",)


@pytest.mark.parametrize("line", ["storage.jetty.port:", "storage.jetty.port: ~", "storage: {jetty: {}}"])
def test_a_key_without_a_value_is_a_key_that_is_not_there(tmp_path: Path, line: str) -> None:
    assert load(tmp_path / "a", REQUIRED + line).options.node.http_port is None


@pytest.mark.parametrize("word", ["off", "'off'", "OFF"])
def test_http_can_be_switched_off(tmp_path: Path, word: str) -> None:
    found = load(tmp_path / "a", REQUIRED + f"storage.jetty.port: {word}")
    assert found.options.node.http_port is None
    assert found.effective("http-port").level is Level.FILE


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "the top of the file must be keys with values"),
        ("just words", "the top of the file must be keys with values"),
        ("storage: {port: 1", ":1: expected"),
        ("a: b: c", ":1: mapping values are not allowed here"),
        ("? [a]\n: b", ":1: a key must be a name"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: &x {b: *x}", "nested more than 16 deep"),
        (
            "a0: &a0 {}\n"
            + "".join(f"a{n}: &a{n} {{{', '.join(f'{k}: *a{n - 1}' for k in 'bcdefghij')}}}\n" for n in range(1, 13)),
            "more than 100000 keys, with those of aliases",
        ),
        ("a: 2020-99-99", ":1: a: month must be in 1..12"),
        ("\na: !!bool foo", ":2: a: this is no bool"),
        ("a: !!int ''", ":1: a: this is no int"),
        ("a: {b: !!timestamp foo}", ":1: a.b: this is no timestamp"),
        ("a: [!!timestamp {=: 1}]", ":1: a: this is no seq"),
        ("a: 1" + ":59" * 400 + ".5", ":1: a: int too large"),
        ('a: "\\U00110000"', "chr() arg not in range(0x110000)"),
        ('a: "\\UFFFFFFFF"', "Python int too large"),
        ("a: " + "[" * 3000 + "]" * 3000, "values are nested too deep"),
        ("\0", "special characters are not allowed"),
        ("{a: " * 20 + "1" + "}" * 20, "nested more than 16 deep"),
        (" " * ((1 << 20) + 1), "this is no configuration file"),
    ],
)
def test_what_is_no_configuration_is_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a"
    with pytest.raises(InvalidRequestError, match=re.escape(str(path))) as caught:
        load(path, text)
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, tmp_path / "none" / "deeper"):
        with pytest.raises(InvalidRequestError, match="cannot read the configuration"):
            load_configuration(SERVE, file=path)
    (tmp_path / "latin").write_bytes(b"a: \xe9")
    with pytest.raises(InvalidRequestError, match="not UTF-8 at byte 3"):
        load_configuration(SERVE, file=tmp_path / "latin")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(DiskReadError):
        load_configuration(SERVE, file=tmp_path / "loop")


def test_an_empty_file_lacks_everything(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"storage\.directory, storage\.port, storage\.admin\.port are missing"
    ):
        load(tmp_path / "a", "")


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60))
def test_any_text_is_a_configuration_or_this_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(InvalidRequestError):
        load_configuration(
            SERVE, file=path, given=[Given("port", "1"), Given("admin-port", "2"), Given("directory", "/d")]
        )


# --- who goes before whom ------------------------------------------------------------------------------------------------


def test_command_line_before_environment_before_file_before_default(tmp_path: Path) -> None:
    environment = {"WALTZCTL_SERVE_PORT": "2001", "WALTZCTL_SERVE_ADMIN_PORT": "2002"}
    found = load(tmp_path / "a", REQUIRED, environment=environment, given=[Given("port", "3001")])
    sources = {
        name: (found.value(name), found.effective(name).source) for name in ("port", "admin-port", "directory", "host")
    }
    assert sources == {
        "port": (3001, "--port"),
        "admin-port": (2002, "WALTZCTL_SERVE_ADMIN_PORT"),
        "directory": (Path("/d"), f"{tmp_path / 'a'}:1"),
        "host": ("127.0.0.1", "default"),
    }


def test_every_setting_can_come_from_the_environment() -> None:
    for default in load_configuration(SERVE).settings:
        setting, kind = default.setting, default.setting.kind
        text = (kind.example or "1") if default.value is None else kind.written(default.value)
        found = load_configuration(
            SERVE,
            environment={
                "WALTZCTL_SERVE_ZOOKEEPER": "a:1",
                "WALTZCTL_SERVE_CLUSTER_ROOT": "/r",
                setting.variable: text,
            },
        )
        assert found.effective(setting.name).source == setting.variable
        assert found.notes == ()


def test_names_keys_and_variables_of_settings_are_unique() -> None:
    for names in ([s.key for s in SERVE.listed], [s.name for s in SERVE.listed], [s.variable for s in SERVE.listed]):
        assert len(set(names)) == len(names)


def test_defaults_are_those_of_the_options() -> None:
    assert load_configuration(SERVE, given=[Given("directory", "/d")]).options.node == NodeOptions(directory=Path("/d"))


def test_the_page_of_the_settings_tells_what_holds_here() -> None:
    """Key, options, variables, what is allowed, the default, and whether a running node takes a new value.

    And all defaults together can be meant.
    """
    page = (ROOT / "docs" / "settings.md").read_text().partition("## waltzctl serve\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in page.splitlines() if row.startswith("| `")]
    found = []
    for one in SERVE.listed:
        default = one.unless or ("" if one.default is None else one.kind.written(one.default))
        found.append(
            [
                f"`{one.key}`",
                ", ".join(f"`{option}`" for option in one.on_command_line),
                f"`{one.variable}`" + (f", `{one.variable}_FILE`" if one.secret else ""),
                one.kind.allowed.replace("|", "\\|"),
                "; ".join(filter(None, (default, *one.in_file))),
                one.meaning,
                "yes" if one.reloadable else "",
            ]
        )
    assert found == rows
    NodeOptions(directory=Path("/d"), graphite=GraphiteOptions("g"), zookeeper=ZooKeeperOptions("zk:1", "/w")).check()


@pytest.mark.parametrize(
    ("name", "help_text"),
    [
        ("port", "Data port, 0 takes a free one; 55280 unless given."),
        ("admin-port", "Admin port; data port + 1 unless given."),
        ("plaintext", "No TLS on the data and admin port."),
        ("key", "PEM file: private key of the certificate; the same file unless given."),
        ("trust-store", "Who may connect: certificates that vouch for peers."),
    ],
)
def test_a_sentence_for_help(name: str, help_text: str) -> None:
    assert SERVE.by_name[name].help == help_text


@pytest.mark.parametrize(
    ("text", "more", "notes"),
    [
        (
            "waltzctl.plaintext: true\nwaltzctl.certificate: /c",
            {},
            ["{file}:3: waltzctl.certificate has no effect: plaintext is on"],
        ),
        ("waltzctl.plaintext: false\nwaltzctl.certificate: /c", {}, []),
        ("waltzctl.insecure: true", {}, ["{file}:2: insecure has no effect without plaintext"]),
        ("waltzctl: {insecure: true, plaintext: true}", {}, []),
        (
            "storage.ssl.keyStore.location: /s",
            {"certificate": "/c", "key": "/k"},
            [
                "{file}:2: storage.ssl.keyStore.location has no effect: waltzctl.certificate takes its place (--certificate)"
            ],
        ),
        (
            "waltzctl: {certificate: /c, key: /k}",
            {"key-store": "/s"},
            [
                "{file}:2: waltzctl.certificate has no effect: storage.ssl.keyStore.location takes its place (--key-store)",
                "{file}:2: waltzctl.key has no effect: storage.ssl.keyStore.location takes its place (--key-store)",
            ],
        ),
    ],
)
def test_what_has_no_effect_is_said(tmp_path: Path, text: str, more: dict[str, str], notes: list[str]) -> None:
    found = load(tmp_path / "a", REQUIRED + text, given=[Given(name, value) for name, value in more.items()])
    assert list(found.notes) == [note.format(file=tmp_path / "a") for note in notes]


@pytest.mark.parametrize(
    ("text", "message", "advice"),
    [
        (
            "storage.port: 1",
            "{file}: storage.directory, storage.admin.port are missing",
            "add storage.directory, or give PATH or WALTZCTL_SERVE_DIRECTORY",
        ),
        (
            "storage: {port: 1, directory: /d}",
            "{file}: storage.admin.port is missing",
            "add storage.admin.port, or give --admin-port or WALTZCTL_SERVE_ADMIN_PORT",
        ),
        (
            REQUIRED + "zookeeper.sessionTimeout: 5",
            "{file}:2: zookeeper.sessionTimeout is set, and zookeeper.connectString is missing",
            "add zookeeper.connectString, or leave zookeeper.sessionTimeout out as well",
        ),
        (
            REQUIRED + "cluster.root: /w",
            "{file}:2: cluster.root is set, and zookeeper.connectString is missing",
            "add zookeeper.connectString, or leave cluster.root out as well",
        ),
        (
            REQUIRED + "zookeeper: {connectString: 'a:1', sessionTimeout: 5}",
            "{file}:2: zookeeper.connectString is set, and cluster.root is missing",
            "add cluster.root, or leave zookeeper.connectString out as well",
        ),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(tmp_path: Path, text: str, message: str, advice: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        load(tmp_path / "a", text)
    assert (caught.value.message, caught.value.advice) == (message.format(file=tmp_path / "a"), advice)


def test_where_a_value_comes_from_is_said_of_every_setting(tmp_path: Path) -> None:
    found = load(tmp_path / "a", REQUIRED, environment={"WALTZCTL_SERVE_DRAIN": "5s"}, given=[Given("host", "::1")])
    places = {one.setting.name: (one.place, one.shown, one.level) for one in found.settings}
    assert places["port"] == (f"storage.port: {tmp_path / 'a'}:1", 1001, Level.FILE)
    assert places["drain"] == ("WALTZCTL_SERVE_DRAIN", 5.0, Level.ENVIRONMENT)
    assert places["host"] == ("--host", "::1", Level.COMMAND_LINE)
    assert places["plaintext"] == ("waltzctl.plaintext: default", False, Level.DEFAULT)
    assert places["http-port"] == (
        "storage.jetty.port: default: off, because the file has no storage.jetty.port", None, Level.DEFAULT,
    )  # fmt: skip
    without = load_configuration(SERVE)
    sources = {name: without.effective(name).source for name in ("http-port", "admin-port", "key", "service-workers")}
    assert sources == {
        "http-port": "default: data port + 2",
        "admin-port": "default: data port + 1",
        "key": "default",
        "service-workers": "default",
    }
    assert (without.value("admin-port"), without.value("http-port")) == (55281, 55282)
    with pytest.raises(KeyError):
        without.effective("nothing")


def test_what_contradicts_is_told_with_its_places(tmp_path: Path) -> None:
    found = load(tmp_path / "a", REQUIRED + "waltzctl.certificate: /c", environment={"WALTZCTL_SERVE_KEY_STORE": "/s"})
    found.check()
    same = load(tmp_path / "a", "storage: {port: 7, admin.port: 7, directory: /d}")
    with pytest.raises(InvalidRequestError) as caught:
        same.check()
    assert caught.value.message == (
        f"the data and the admin port are both 7 (storage.port: {tmp_path / 'a'}:1; storage.admin.port: {tmp_path / 'a'}:1)"
    )
    assert caught.value.advice == "the ports must differ"


def test_every_bound_has_a_setting_that_reaches_it() -> None:
    for group, holder in (("limits", PortLimits()), ("service", ServiceOptions())):
        for each in fields(holder):
            name = f"{group}-{each.name.replace('_', '-')}"
            switch = getattr(holder, each.name) is True
            options = load_configuration(SERVE, given=[Given(name, "false" if switch else "12345")]).options.node
            assert getattr(getattr(options, group), each.name) == (False if switch else 12345)


def test_the_environment_can_name_the_file(file: Path) -> None:
    found = load_configuration(SERVE, environment={"WALTZCTL_SERVE_CONFIG": str(file)})
    assert found.file == file
    assert found.value("directory") == Path("/data/waltz")


def test_empty_and_unknown_variables() -> None:
    found = load_configuration(
        SERVE, environment={"WALTZCTL_SERVE_PORT": "", "WALTZCTL_SERVE_PROT": "1", "PATH": "/bin"}
    )
    assert found.value("port") == 55280
    assert found.notes == (
        "WALTZCTL_SERVE_PROT is no known variable and has no effect; was WALTZCTL_SERVE_PORT meant?",
    )


@pytest.mark.parametrize("given", [[Given("port", "x")], [Given("drain", "-1")], [Given("segment-size", "0")]])
def test_a_bad_option_is_named(given: list[Given]) -> None:
    with pytest.raises(InvalidRequestError, match=f"--{given[0].name}: "):
        load_configuration(SERVE, given=given)


def test_amounts_are_written_as_people_do() -> None:
    given = [Given("segment-size", "1MiB"), Given("drain", "2m"), Given("limits-memory", "256MiB")]
    options = load_configuration(SERVE, given=given).options.node
    assert options.storage.segment_size_threshold == 1 << 20
    assert options.drain_seconds == 120.0
    assert options.limits.memory == 256 << 20
    assert load_configuration(SERVE, given=[Given("drain", "0")]).options.node.drain_seconds == 0.0


# --- secrets -------------------------------------------------------------------------------------------------------------


def test_a_password_can_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"from the file\r\nnot this\n")
    by_option = load_configuration(SERVE, given=[Given("key-store-password-file", str(tmp_path / "password"))])
    by_variable = load_configuration(
        SERVE, environment={"WALTZCTL_SERVE_KEY_STORE_PASSWORD_FILE": str(tmp_path / "password")}
    )
    for found in (by_option, by_variable):
        assert found.value("key-store-password") == "from the file"
        assert found.notes == ()


def test_a_password_can_be_empty_but_then_there_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"\n")
    found = load_configuration(SERVE, given=[Given("key-password-file", str(tmp_path / "password"))])
    assert (found.value("key-password"), found.effective("key-password").shown) == ("", "(hidden)")


def test_a_password_and_its_file_contradict_each_other(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("x")
    path = str(tmp_path / "password")
    with pytest.raises(InvalidRequestError, match="--key-password and --key-password-file are both given"):
        load_configuration(SERVE, given=[Given("key-password", "a"), Given("key-password-file", path)])
    with pytest.raises(InvalidRequestError, match="are both set"):
        load_configuration(
            SERVE, environment={"WALTZCTL_SERVE_KEY_PASSWORD": "a", "WALTZCTL_SERVE_KEY_PASSWORD_FILE": path}
        )


@pytest.mark.parametrize("contents", [b"", b"\xff\n", b"x" * 5000])
def test_a_file_without_a_password_is_told(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "password").write_bytes(contents)
    with pytest.raises(InvalidRequestError, match=r"--key-password-file: .*password"):
        load_configuration(SERVE, given=[Given("key-password-file", str(tmp_path / "password"))])
    with pytest.raises(InvalidRequestError, match="cannot read the password"):
        load_configuration(SERVE, given=[Given("key-password-file", str(tmp_path / "none"))])
    with pytest.raises(InvalidRequestError, match=r"^keyPasswordFile: "):  # as whoever gave it calls it
        load_configuration(SERVE, given=[Given("key-password-file", str(tmp_path / "none"), "keyPasswordFile")])


def test_nothing_shows_a_secret(file: Path) -> None:
    found = load_configuration(SERVE, file=file, given=[Given("trust-store-password", "secret-three")])
    shown = [repr(found), repr(found.options.node), repr(Given("key-password", "secret-four")), *found.notes]
    shown += [f"{one!r} {one.shown}" for one in found.settings]
    assert not [text for text in shown if "secret-" in text]
    assert found.effective("key-store-password").shown == "(hidden)"
    assert found.effective("key-password").shown is None


# --- what hangs together -------------------------------------------------------------------------------------------------


def test_a_certificate_of_the_command_line_replaces_the_key_store_of_the_file(file: Path) -> None:
    found = load_configuration(SERVE, file=file, given=[Given("certificate", "/c.pem")])
    assert (found.value("certificate"), found.value("key-store")) == (Path("/c.pem"), None)
    assert any("keyStore.location has no effect" in note for note in found.notes)
    found.check()


def test_a_key_store_of_the_environment_replaces_the_certificate_of_the_file(tmp_path: Path) -> None:
    text = REQUIRED + "waltzctl: {certificate: /c, key: /k}\n"
    found = load(tmp_path / "a", text, environment={"WALTZCTL_SERVE_KEY_STORE": "/s"})
    assert (found.value("certificate"), found.value("key"), found.value("key-store")) == (None, None, Path("/s"))
    found.check()


def test_both_in_one_place_is_a_contradiction(tmp_path: Path) -> None:
    text = REQUIRED + "waltzctl.certificate: /c\nstorage.ssl.keyStore.location: /s\n"
    with pytest.raises(InvalidRequestError, match="both given"):
        load(tmp_path / "a", text).check()


def test_what_plaintext_makes_useless_is_said(tmp_path: Path) -> None:
    found = load(tmp_path / "a", REQUIRED + "storage.ssl.trustStore.location: /t\n", given=[Given("plaintext", "true")])
    assert found.notes == (f"{tmp_path / 'a'}:2: storage.ssl.trustStore.location has no effect: plaintext is on",)
    assert load_configuration(SERVE, given=[Given("insecure", "true")]).notes == (
        "--insecure: insecure has no effect without plaintext",
    )


def test_log_settings() -> None:
    found = load_configuration(SERVE, given=[Given("log-format", "JSON"), Given("log-level", "Debug")])
    assert (found.options.log.format, found.options.log.level) == (LogFormat.JSON, LogLevel.DEBUG)


# --- reading it anew -----------------------------------------------------------------------------------------------------


def test_a_reload_takes_what_can_change_and_names_what_needs_a_restart(tmp_path: Path) -> None:
    old = load(tmp_path / "a", REQUIRED)
    text = "storage: {port: 1009, admin.port: 1002, directory: /d}\nwaltzctl: {drain: 5s, log.level: error}\n"
    reload = old.reload(load(tmp_path / "a", text + "waltzctl.limits.maxConnections: 10\n"))
    assert {one.setting.name for one in reload.changed} == {"drain", "log-level", "limits-max-connections"}
    assert [one.setting.name for one in reload.needs_restart] == ["port"]
    options = reload.configuration.options.node
    assert (options.port, options.drain_seconds, options.limits.max_connections) == (1001, 5.0, 10)
    again = reload.configuration.reload(load_configuration(SERVE, file=tmp_path / "a"))
    assert again.changed == ()
    assert [one.setting.name for one in again.needs_restart] == ["port"]


def test_a_reload_says_of_each_setting_the_value_and_the_place_that_hold_behind_it(tmp_path: Path) -> None:
    old = load(tmp_path / "a", REQUIRED + "waltzctl.drain: 5\nwaltzctl.minFree: 9\n")
    text = "# moved\n" + REQUIRED.replace("1001", "1003") + "waltzctl.drain: 6\nwaltzctl.minFree: 9\n"
    found = old.reload(load(tmp_path / "a", text))
    [changed], [waiting] = found.changed, found.needs_restart
    assert (changed.setting.name, changed.value, changed.source) == ("drain", 6.0, f"{tmp_path / 'a'}:3")
    assert (waiting.setting.name, waiting.value, waiting.source) == ("port", 1003, f"{tmp_path / 'a'}:2")
    told = {name: found.configuration.effective(name) for name in ("drain", "port", "min-free")}
    assert {name: (one.value, one.source) for name, one in told.items()} == {
        "drain": (6.0, f"{tmp_path / 'a'}:3"), "port": (1001, f"{tmp_path / 'a'}:1"), "min-free": (9, f"{tmp_path / 'a'}:4"),
    }  # fmt: skip


def test_a_file_that_is_named_goes_before_one_of_the_environment(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text(REQUIRED + "waltzctl.drain: 1\n")
    other.write_text(REQUIRED + "waltzctl.drain: 2\n")
    environment = {SERVE.file_variable: str(other)}
    found = load_configuration(SERVE, file=one, environment=environment)
    assert (found.value("drain"), found.file, found.notes) == (1.0, one, ())
    found = load_configuration(SERVE, environment=environment)
    assert (found.value("drain"), found.file, found.notes) == (2.0, other, ())


def test_of_a_key_that_stands_there_often_each_place_is_told(tmp_path: Path) -> None:
    found = load(tmp_path / "a", REQUIRED + "".join(f"waltzctl.drain: {n}\n" for n in (1, 2, 3)))
    key = "waltzctl.drain stands on line"
    assert found.notes == tuple(
        f"{tmp_path / 'a'}:{line}: {key} {line - 1} as well; this line holds" for line in (3, 4)
    )
    assert found.value("drain") == 3.0


def test_a_mark_of_the_byte_order_and_what_is_merged_in_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"\xef\xbb\xbf" + REQUIRED.encode() + b"waltzctl: &of {drain: 4}\nother: {<<: *of}\n")
    found = load_configuration(SERVE, file=file)
    assert found.value("drain") == 4.0
    assert [note.split()[1] for note in found.notes] == ["other.drain"]


def test_digits_of_other_scripts_are_no_number(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="must be a whole number"):
        load(tmp_path / "a", REQUIRED + "waltzctl.limits.reads: '\u0663'\n")


def test_what_the_settings_call_reloadable_is_what_a_node_puts_into_force() -> None:
    """Node.reload has code for these; a setting of another field needs code there before it is marked."""
    assert {"tls", "limits", "health", "drain_seconds"} == RELOADABLE
    marked = {setting.path[1] for setting in SERVE.listed if setting.reloadable and setting.path[0] == "node"}
    assert marked == RELOADABLE


# --- the options themselves ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (NodeOptions(), "no storage directory is named"),
        (NodeOptions(Path("/d"), port=5, admin_port=5), "the data and the admin port are both 5"),
        (NodeOptions(Path("/d"), port=5, http_port=6), "the admin and the HTTP port are both 6"),
        (NodeOptions(Path("/d"), port=65535), "storage.admin.port must be a port, 0 to 65535, not 65536"),
        (NodeOptions(Path("/d"), drain_seconds=-1.0), "drain"),
        (
            NodeOptions(Path("/d"), storage=StorageOptions(cached_segments=0)),
            "storage.segment.cache.capacity must be a whole number, at least 1",
        ),
        (NodeOptions(Path("/d"), limits=PortLimits(reads=0)), "reads must be a whole number, at least 1, not 0"),
        (
            NodeOptions(Path("/d"), zookeeper=ZooKeeperOptions(" ", "/r")),
            "zookeeper.connectString must not be empty; write for instance zk1:2181",
        ),
        (NodeOptions(Path("/d"), zookeeper=ZooKeeperOptions("a:1", "r")), "must be a path such as"),
        (NodeOptions(Path("/d"), zookeeper=ZooKeeperOptions("a:1", "/r/")), "must be a path such as"),
        (NodeOptions(Path("/d"), zookeeper=ZooKeeperOptions("a:1", "/r//x")), "without an empty part"),
        (NodeOptions(Path("/d"), zookeeper=ZooKeeperOptions("a:1", "/r/../x")), "without . and .."),
        (NodeOptions(Path("/d"), zookeeper=ZooKeeperOptions("a:1", "/.")), "without . and .."),
        (NodeOptions(Path("/d"), zookeeper=ZooKeeperOptions("a:1", "/r\x1f")), "characters that ZooKeeper takes"),
        (NodeOptions(Path("/d"), zookeeper=ZooKeeperOptions("a:1", "/\U0001f600")), "characters that ZooKeeper takes"),
        (NodeOptions(Path("/d"), zookeeper=ZooKeeperOptions("a:1", "/r", 0.0)), "zookeeper.sessionTimeout must be"),
        (
            NodeOptions(Path("/d"), zookeeper=ZooKeeperOptions("a:1", "/r", 2_147_483.648)),
            "zookeeper.sessionTimeout must be a whole number of milliseconds, more than 0 and at most 2147483647",
        ),
        (NodeOptions(Path("/d"), graphite=GraphiteOptions("")), "hostname must not be empty"),
        (NodeOptions(Path("/d"), graphite=GraphiteOptions("g", 0)), "port must be a port, 1 to 65535, not 0"),
        (
            NodeOptions(Path("/d"), graphite=GraphiteOptions("g", interval=0.0)),
            "reportIntervalMs must be a duration, more than 0s",
        ),
    ],
)
def test_options_that_cannot_be_meant(options: NodeOptions, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        options.check()


def test_plaintext_beyond_loopback_must_be_asked_for_twice() -> None:
    NodeOptions(Path("/d"), plaintext=True).check()
    NodeOptions(Path("/d"), plaintext=True, host="::1").check()
    with pytest.raises(RefusedError, match=r"0\.0\.0\.0: without TLS"):
        NodeOptions(Path("/d"), plaintext=True, host="0.0.0.0").check()
    NodeOptions(Path("/d"), plaintext=True, host="0.0.0.0", insecure=True).check()
    NodeOptions(Path("/d"), host="0.0.0.0").check()


@pytest.mark.parametrize(
    ("host", "only_here"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("localhost", True), ("", False),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("fe80::1%eth0", False), ("no.such.host.invalid", False)],
)  # fmt: skip
def test_what_counts_as_loopback(host: str, only_here: bool) -> None:
    assert is_loopback(host) is only_here
