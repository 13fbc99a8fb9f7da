"""A node's configuration: what file, environment and command line say, merged into one value that can be explained.

The command line goes before the environment, that before the file, and that before the defaults.  The file is that of release
0.13.2 (`engine.net.configuration_file`), its required keys are required here, too; only ZooKeeper's may be left out together,
and then the control file says which cluster it is.  Without ``storage.jetty.port`` such a file means no HTTP; without a file
HTTP is on.

No message and no representation holds a secret.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from waltzctl.engine.errors import DiskReadError, InvalidRequestError
from waltzctl.engine.net.configuration_file import FileEntry, read_entries
from waltzctl.engine.net.logs import LogFormat, LogLevel
from waltzctl.engine.net.monitoring_options import GraphiteOptions
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.tls import TlsOptions
from waltzctl.engine.node.health_options import HealthOptions
from waltzctl.engine.node.node_options import NodeOptions, ZooKeeperOptions
from waltzctl.engine.node.service_options import ServiceOptions
from waltzctl.engine.node.settings import (
    BY_KEY,
    BY_NAME,
    ENVIRONMENT_PREFIX,
    IGNORED_KEYS,
    LIMITS,
    OFF,
    SERVICE,
    SETTINGS,
    Setting,
    Value,
)
from waltzctl.engine.storage.storage_options import StorageOptions

CONFIG_VARIABLE = f"{ENVIRONMENT_PREFIX}CONFIG"
_MAX_SECRET = 4096


class Level(enum.IntEnum):
    """Who said it; a higher one holds."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    COMMAND_LINE = 3


@dataclass(frozen=True, slots=True)
class Given:
    """A value of the command line: the setting's name (a secret's with ``-file``: the file that holds it), and its text."""

    name: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting, the value that holds, and where that was said: for people, and as a level."""

    setting: Setting
    value: Value = field(repr=False)
    level: Level
    source: str

    @property
    def shown(self) -> Value:
        """The value, unless it is secret."""
        return "(hidden)" if self.setting.secret and self.value is not None else self.value


@dataclass(frozen=True, slots=True)
class Reload:
    """What a running node takes over from a configuration read anew: `configuration`, of it what changed, and what waits."""

    configuration: Configuration
    changed: tuple[Effective, ...]
    needs_restart: tuple[Effective, ...]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Every setting with the value that holds.  `notes`: what somebody should know, a sentence each.  `file`: what was read."""

    settings: tuple[Effective, ...]
    notes: tuple[str, ...]
    file: Path | None

    def effective(self, name: str) -> Effective:
        """A setting by its name.  Raises KeyError."""
        for each in self.settings:
            if each.setting.name == name:
                return each
        raise KeyError(name)

    def value(self, name: str) -> Any:
        """A setting's value by its name.  Raises KeyError."""
        return self.effective(name).value

    @property
    def log_format(self) -> LogFormat:
        """How log lines are written."""
        return LogFormat(self.value("log-format"))

    @property
    def log_level(self) -> LogLevel:
        """From which severity on."""
        return LogLevel(self.value("log-level"))

    def node_options(self) -> NodeOptions:
        """What a node is started with; not checked yet (`NodeOptions.check`)."""
        value = self.value
        return NodeOptions(
            directory=value("directory"),
            host=value("host"),
            port=value("port"),
            admin_port=value("admin-port"),
            http_port=value("http-port"),
            plaintext=value("plaintext"),
            insecure=value("insecure"),
            tls=TlsOptions(
                certificate=value("certificate"),
                key=value("key"),
                key_password=value("key-password"),
                key_store=value("key-store"),
                key_store_password=value("key-store-password"),
                key_store_type=value("key-store-type"),
                trust_store=value("trust-store"),
                trust_store_password=value("trust-store-password"),
                trust_store_type=value("trust-store-type"),
            ),
            storage=StorageOptions(value("segment-size"), value("max-data-length"), value("segment-cache")),
            limits=PortLimits(*(value(each.name) for each in LIMITS)),
            service=ServiceOptions(*(value(each.name) for each in SERVICE)),
            zookeeper=self._zookeeper(),
            graphite=self._graphite(),
            health=HealthOptions(min_free_bytes=value("min-free")),
            drain_seconds=value("drain"),
        )

    def _zookeeper(self) -> ZooKeeperOptions | None:
        if self.value("zookeeper") is None:
            return None
        return ZooKeeperOptions(
            self.value("zookeeper"),
            self.value("cluster-root"),
            self.value("zookeeper-session-timeout") / 1000,
            self.value("zookeeper-connect-timeout"),
        )

    def _graphite(self) -> GraphiteOptions | None:
        if self.value("graphite-host") is None:
            return None
        names = ("host", "port", "prefix", "interval", "udp")
        return GraphiteOptions(*(self.value(f"graphite-{name}") for name in names))

    def reload(self, read_anew: Configuration) -> Reload:
        """What of another configuration a node that runs with this one can take over, and what it cannot."""
        kept: list[Effective] = []
        changed: list[Effective] = []
        waiting: list[Effective] = []
        for old in self.settings:
            new = read_anew.effective(old.setting.name)
            if new.value == old.value:
                kept.append(new)
            elif old.setting.reloadable:
                kept.append(new)
                changed.append(new)
            else:
                kept.append(old)
                waiting.append(new)
        merged = replace(read_anew, settings=tuple(kept))
        return Reload(merged, tuple(changed), tuple(waiting))


def load_configuration(
    *, file: Path | None = None, environment: Mapping[str, str] | None = None, given: Sequence[Given] = ()
) -> Configuration:
    """Read and merge everything.

    `file`: unless given, the one that ``WALTZCTL_SERVE_CONFIG`` names, if any.  `environment`: none unless given.  Raises
    InvalidRequestError (a value that is none, a required key that is missing; both named with their place) and
    DiskReadError.
    """
    variables = {name: text for name, text in (environment or {}).items() if text}
    if file is None and CONFIG_VARIABLE in variables:
        file = Path(variables[CONFIG_VARIABLE])
    notes: list[str] = []
    said: dict[str, Effective] = {}
    for each in (
        *_from_file(file, notes),
        *_from_environment(variables, notes),
        *_from_command_line(given),
    ):
        said[each.setting.name] = each
    _check_required(file, said)
    _settle_certificate(said, notes)
    settings = tuple(said.get(s.name, Effective(s, s.default, Level.DEFAULT, "default")) for s in SETTINGS)
    settings = tuple(_with_ports(settings, file))
    configuration = Configuration(settings, tuple(notes), file)
    return replace(configuration, notes=(*notes, *_remarks(configuration)))


def read_tls_options(path: Path, prefix: str) -> TlsOptions:
    """The TLS keys of any of the release's files, by their prefix: ``ssl.``, ``server.ssl.``, ``client.ssl.``.

    Raises as `load_configuration`.
    """
    found: dict[str, Any] = {}
    own = "storage.ssl."
    for entry in read_entries(path):
        setting = BY_KEY.get(own + entry.key.removeprefix(prefix)) if entry.key.startswith(prefix) else None
        if setting is not None:
            found[setting.name.replace("-", "_")] = _value_of_file(path, entry, setting)
    return TlsOptions(**found)


# --- sources -------------------------------------------------------------------------------------------------------------


def _from_file(path: Path | None, notes: list[str]) -> Iterable[Effective]:
    if path is None:
        return
    seen: dict[str, int] = {}
    for entry in read_entries(path):
        if entry.key in seen:
            notes.append(f"{path}:{entry.line}: {entry.key} stands on line {seen[entry.key]} as well; this line holds")
        seen[entry.key] = entry.line
        setting = BY_KEY.get(entry.key)
        if setting is not None:
            yield Effective(setting, _value_of_file(path, entry, setting), Level.FILE, f"{path}:{entry.line}")
        elif entry.key in IGNORED_KEYS:
            notes.append(f"{path}:{entry.line}: {entry.key} has no effect: {IGNORED_KEYS[entry.key]}")
        else:
            near = difflib.get_close_matches(entry.key, BY_KEY, 1, 0.8)
            meant = f"; was {near[0]} meant?" if near else ""
            notes.append(f"{path}:{entry.line}: {entry.key} is no known key and has no effect{meant}")


def _value_of_file(path: Path, entry: FileEntry, setting: Setting) -> Value:
    try:
        return setting.kind.read(entry.value)
    except ValueError as error:
        raise InvalidRequestError(f"{path}:{entry.line}: {entry.key}: {error}") from None


def _from_environment(variables: Mapping[str, str], notes: list[str]) -> Iterable[Effective]:
    names = {setting.variable: setting for setting in SETTINGS}
    for variable, text in sorted(variables.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        secret = names.get(variable.removesuffix("_FILE"))
        if variable in names:
            if names[variable].secret and f"{variable}_FILE" in variables:
                raise InvalidRequestError(f"{variable} and {variable}_FILE are both set; leave one of them out")
            yield _read_text(names[variable], text, Level.ENVIRONMENT, variable)
        elif secret is not None and secret.secret and variable.endswith("_FILE"):
            yield Effective(secret, _secret_of(Path(text), variable), Level.ENVIRONMENT, variable)
        else:
            near = difflib.get_close_matches(variable, [*names, CONFIG_VARIABLE], 1, 0.8)
            notes.append(
                f"{variable} is no known variable and has no effect" + (f"; was {near[0]} meant?" if near else "")
            )


def _from_command_line(given: Sequence[Given]) -> Iterable[Effective]:
    names = {each.name for each in given}
    for each in given:
        setting = BY_NAME.get(each.name)
        option = f"--{each.name}"
        if setting is not None:
            yield _read_text(setting, each.text, Level.COMMAND_LINE, "PATH" if each.name == "directory" else option)
            continue
        secret = BY_NAME[each.name.removesuffix("-file")]
        if secret.name in names:
            raise InvalidRequestError(f"{secret.option} and {option} are both given; leave one of them out")
        yield Effective(secret, _secret_of(Path(each.text), option), Level.COMMAND_LINE, option)


def _read_text(setting: Setting, text: str, level: Level, source: str) -> Effective:
    try:
        return Effective(setting, setting.kind.of_text(text), level, source)
    except ValueError as error:
        raise InvalidRequestError(f"{source}: {error}") from None


def _secret_of(path: Path, source: str) -> str:
    """The first line of a file."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_SECRET + 1)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise InvalidRequestError(f"{source}: {path}: cannot read the password: {error.strerror}") from None
    except OSError as error:
        raise DiskReadError(path, None, error, doing="read the password") from error
    line = data.splitlines()[0] if data else b""
    if not line or len(line) > _MAX_SECRET:
        raise InvalidRequestError(f"{source}: {path}: holds no password in its first line")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{source}: {path}: the password is not UTF-8") from None


# --- what hangs together -------------------------------------------------------------------------------------------------


def _check_required(file: Path | None, said: Mapping[str, Effective]) -> None:
    if file is not None:
        missing = [setting for setting in SETTINGS if setting.required and setting.name not in said]
        if missing:
            first = missing[0]
            option = "PATH" if first.name == "directory" else first.option
            raise InvalidRequestError(
                f"{file}: {', '.join(setting.key for setting in missing)} {'is' if len(missing) == 1 else 'are'} missing",
                advice=f"add {first.key}, or give {option} or {first.variable}",
            )
    group = [said[name] for name in ("zookeeper", "cluster-root", "zookeeper-session-timeout") if name in said]
    for name in ("zookeeper", "cluster-root"):
        if group and name not in said:
            missing_key = BY_NAME[name].key
            raise InvalidRequestError(
                f"{group[0].source}: {group[0].setting.key} is set, and {missing_key} is missing",
                advice=f"add {missing_key}, or leave ZooKeeper out altogether",
            )


def _settle_certificate(said: dict[str, Effective], notes: list[str]) -> None:
    """A certificate said at a higher level replaces a key store of a lower one, and the other way round."""
    store, certificate = said.get("key-store"), said.get("certificate")
    if store is None or certificate is None or store.level == certificate.level:
        return
    loser, winner = sorted((store, certificate), key=lambda one: one.level)
    del said[loser.setting.name]
    if loser is certificate:
        said.pop("key", None)
    notes.append(f"{loser.source}: {loser.setting.key} has no effect: {winner.source} names another certificate")


def _with_ports(settings: Iterable[Effective], file: Path | None) -> Iterable[Effective]:
    """The settings, with the ports that follow from the data port."""
    found = tuple(settings)
    port = next(int(one.value) for one in found if one.setting.name == "port" and isinstance(one.value, int))
    for one in found:
        if one.level is not Level.DEFAULT:
            yield one
        elif one.setting.name == "admin-port":
            yield replace(one, value=port + 1 if port else 0, source="default: one more than the data port")
        elif one.setting.name == "http-port" and file is None:
            yield replace(one, value=port + 2 if port else 0, source="default: two more than the data port")
        elif one.setting.name == "http-port":
            yield replace(one, source=f"default: {OFF}, because the file has no {one.setting.key}")
        else:
            yield one


def _remarks(configuration: Configuration) -> Iterable[str]:
    """What is allowed, and probably not meant."""
    if configuration.value("plaintext"):
        for name in ("certificate", "key-store", "trust-store"):
            one = configuration.effective(name)
            if one.value is not None:
                yield f"{one.source}: {one.setting.key} has no effect: plaintext is on"
    if configuration.value("insecure") and not configuration.value("plaintext"):
        yield f"{configuration.effective('insecure').source}: insecure has no effect without plaintext"
