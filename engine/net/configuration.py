"""The configuration of a process: defaults, file, environment and command line, merged; each value with its source.

Precedence, highest first: command line, environment, file, defaults (`Level`).  Settings are declared in dataclasses
(`engine.net.settings`); the file has the format of release 0.13.2 (`engine.net.configuration_file`).

No message and no ``repr`` contains a secret.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

from waltzctl.engine.errors import InvalidOptionsError, InvalidRequestError
from waltzctl.engine.net.configuration_file import FileEntry, read_entries
from waltzctl.engine.net.setting_kinds import Value
from waltzctl.engine.net.settings import Options, Setting, Settings, needed
from waltzctl.engine.net.small_file import read_first_line


class Level(enum.IntEnum):
    """The kind of a value's source, in ascending precedence."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    COMMAND_LINE = 3


@dataclass(frozen=True, slots=True)
class Given:
    """A value of the command line.

    `name`: of the setting, or its option's other spelling; with ``-file`` appended where `text` is the path of the file that
    holds a secret.  `text`: the value.  `source`: how the command line names the value, if not by the setting's option.
    """

    name: str
    text: str = field(repr=False)
    source: str = ""


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting, its effective value, and the value's source: as a level, and as text."""

    setting: Setting
    value: Any = field(repr=False)
    level: Level
    source: str

    @property
    def place(self) -> str:
        """The source as text, with the setting's key if the source does not name the setting."""
        named = self.level in (Level.ENVIRONMENT, Level.COMMAND_LINE)
        return self.source if named else f"{self.setting.key}: {self.source}"

    @property
    def shown(self) -> Value:
        """The value for machine-readable output; a placeholder for a secret."""
        if self.value is None:
            return None
        shown: Value = "(hidden)" if self.setting.secret else self.setting.kind.shown(self.value)
        return shown


@dataclass(frozen=True, slots=True)
class Reload(Generic[Options]):
    """The outcome of `Configuration.reload`.

    `configuration`: the one to run with from now on.  `changed`: its settings with new values.  `needs_restart`: new values that
    were not taken over.
    """

    configuration: Configuration[Options]
    changed: tuple[Effective, ...]
    needs_restart: tuple[Effective, ...]


@dataclass(frozen=True, slots=True)
class Configuration(Generic[Options]):
    """Every setting with its effective value.

    `options`: the values as the dataclass that the process is started with; not checked yet (`check`).  `notes`: remarks for the
    operator, a sentence each.  `file`: the configuration file that was read.
    """

    declared: Settings[Options]
    settings: tuple[Effective, ...]
    options: Options
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

    def check(self) -> None:
        """Check the options; raises what their `check` raises, with the sources of the values in the message."""
        options: Any = self.options
        try:
            options.check()
        except InvalidOptionsError as error:
            places = "; ".join(one.place for one in self._settings_in(error))
            raise InvalidRequestError(f"{error.message} ({places})", advice=error.advice) from None

    def _settings_in(self, error: InvalidOptionsError) -> Iterator[Effective]:
        for one in self.settings:
            *path, last = one.setting.path
            owner: Any = self.options
            for step in path:
                owner = getattr(owner, step, None)
            if owner is error.owner and last in error.fields:
                yield one

    def reload(self, read_anew: Configuration[Options]) -> Reload[Options]:
        """Split the changes of a configuration that was read again into those a running process takes over, and the others."""
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
        options = self.declared.build({one.setting.path: one.value for one in kept})
        merged = replace(read_anew, settings=tuple(kept), options=options)
        return Reload(merged, tuple(changed), tuple(waiting))


def load_configuration(
    declared: Settings[Options],
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given: Sequence[Given] = (),
) -> Configuration[Options]:
    """Read and merge everything.

    `file`: None: the one that the environment names, if any.  `environment`: None: empty.  `given`: the command line.  Raises
    InvalidRequestError (an invalid value, a missing required key; the message names the source) and DiskReadError.
    """
    variables = {name: text for name, text in (environment or {}).items() if text}
    if file is None and declared.file_variable in variables:
        file = Path(variables[declared.file_variable])
    notes: list[str] = []
    found: dict[str, Effective] = {}
    for each in (
        *_from_file(declared, file, notes),
        *_from_environment(declared, variables, notes),
        *_from_command_line(declared, given),
    ):
        found[each.setting.name] = each
    _check_required(declared, file, found)
    _check_groups(declared, found)
    _drop_replaced(declared, found, notes)
    if file is not None:
        _add_file_defaults(declared, found)
    options = declared.build({one.setting.path: one.value for one in found.values()})
    settings = tuple(found.get(one.name) or _default_of(one, options) for one in declared.listed)
    configuration = Configuration(declared, settings, options, (), file)
    return replace(configuration, notes=(*notes, *_remarks(configuration)))


# --- sources -------------------------------------------------------------------------------------------------------------


def _from_file(declared: Settings[Any], path: Path | None, notes: list[str]) -> Iterable[Effective]:
    if path is None:
        return
    seen: dict[str, int] = {}
    for entry in read_entries(path):
        place = f"{path}:{entry.line}"
        if entry.key in seen:
            notes.append(f"{place}: {entry.key} stands on line {seen[entry.key]} as well; this line holds")
        seen[entry.key] = entry.line
        setting = declared.by_key.get(entry.key)
        if setting is not None:
            yield Effective(setting, _value_of_file(place, entry, setting), Level.FILE, place)
        elif entry.key in declared.ignored:
            notes.append(f"{place}: {entry.key} has no effect: {declared.ignored[entry.key]}")
        else:
            notes.append(
                f"{place}: {entry.key} is no known key and has no effect{_suggestion(entry.key, declared.by_key)}"
            )


def _value_of_file(place: str, entry: FileEntry, setting: Setting) -> Any:
    try:
        return setting.kind.read(entry.value)
    except ValueError as error:
        raise InvalidRequestError(f"{place}: {entry.key}: {error}") from None


def _from_environment(declared: Settings[Any], variables: Mapping[str, str], notes: list[str]) -> Iterable[Effective]:
    known = {one.variable: one for one in declared.listed}
    secrets = {f"{one.variable}_FILE": one for one in declared.listed if one.secret}
    for variable, text in sorted(variables.items()):
        if not variable.startswith(declared.prefix) or variable == declared.file_variable:
            continue
        if variable in known:
            if f"{variable}_FILE" in secrets and f"{variable}_FILE" in variables:
                raise InvalidRequestError(f"{variable} and {variable}_FILE are both set; leave one of them out")
            yield _of_text(known[variable], text, Level.ENVIRONMENT, variable)
        elif variable in secrets:
            yield _of_secret_file(secrets[variable], text, Level.ENVIRONMENT, variable)
        else:
            meant = _suggestion(variable, [*known, declared.file_variable])
            notes.append(f"{variable} is no known variable and has no effect{meant}")


def _from_command_line(declared: Settings[Any], given: Sequence[Given]) -> Iterable[Effective]:
    names = {each.name for each in given}
    for each in given:
        setting = declared.by_option.get(each.name)
        if setting is not None:
            source = each.source or (setting.option if setting.is_argument else f"--{each.name}")
            yield _of_text(setting, each.text, Level.COMMAND_LINE, source)
            continue
        secret = declared.by_option[each.name.removesuffix("-file")]
        if secret.name in names:
            raise InvalidRequestError(f"{secret.option} and {secret.file_option} are both given; leave one of them out")
        yield _of_secret_file(secret, each.text, Level.COMMAND_LINE, each.source or f"--{each.name}")


def _of_text(setting: Setting, text: str, level: Level, source: str) -> Effective:
    try:
        return Effective(setting, setting.kind.read_text(text), level, source)
    except ValueError as error:
        raise InvalidRequestError(f"{source}: {error}") from None


def _of_secret_file(setting: Setting, path: str, level: Level, source: str) -> Effective:
    return Effective(setting, read_first_line(Path(path), source), level, source)


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 1, 0.8)
    return f"; was {near[0]} meant?" if near else ""


# --- dependencies between settings ----------------------------------------------------------------------------------------


def _check_required(declared: Settings[Any], file: Path | None, found: Mapping[str, Effective]) -> None:
    missing = [one for one in declared.listed if one.declared.required and one.name not in found]
    if file is not None and missing:
        first = missing[0]
        raise InvalidRequestError(
            f"{file}: {', '.join(one.key for one in missing)} {'is' if len(missing) == 1 else 'are'} missing",
            advice=f"add {first.key}, or give {first.option} or {first.variable}",
        )


def _check_groups(declared: Settings[Any], found: Mapping[str, Effective]) -> None:
    """Refuse an optional group of which some but not all required settings are given."""
    for path, group in declared.optional_groups.items():
        members = [declared.by_path[(*path, name)] for name in group.wanted_by]
        wanting = [found[one.name] for one in members if one.name in found]
        for name in needed(group.kind):
            missing = declared.by_path[(*path, name)]
            if wanting and missing.name not in found:
                raise InvalidRequestError(
                    f"{wanting[0].source}: {wanting[0].setting.key} is set, and {missing.key} is missing",
                    advice=f"add {missing.key}, or leave {wanting[0].setting.key} out as well",
                )


def _drop_replaced(declared: Settings[Any], found: dict[str, Effective], notes: list[str]) -> None:
    """Drop given settings that a given setting of a higher level replaces (`replaces` of `settings.setting`)."""
    for winner in tuple(found.values()):
        for field_name in winner.setting.declared.replaces:
            loser = found.get(declared.by_path[(*winner.setting.path[:-1], field_name)].name)
            if loser is not None and loser.level < winner.level:
                del found[loser.setting.name]
                taker = f"{winner.setting.key} takes its place ({winner.source})"
                notes.append(f"{loser.source}: {loser.setting.key} has no effect: {taker}")


def _add_file_defaults(declared: Settings[Any], found: dict[str, Effective]) -> None:
    """Add the values of settings that the file leaves out (`left_out` of `settings.setting`)."""
    for one in declared.listed:
        for value in one.left_out:
            source = f"default: {one.kind.written(value)}, because the file has no {one.key}"
            found.setdefault(one.name, Effective(one, value, Level.DEFAULT, source))


def _default_of(setting: Setting, options: Any) -> Effective:
    """A setting that was not given, with the value that it has in the options."""
    value = options
    for step in setting.path:
        value = getattr(value, step, setting.default)
    derived = setting.unless if value != setting.default else ""
    return Effective(setting, value, Level.DEFAULT, f"default: {derived}" if derived else "default")


def _remarks(configuration: Configuration[Any]) -> Iterator[str]:
    """Remarks about settings that are allowed and have no effect."""
    for one in configuration.settings:
        declared = one.setting.declared
        if one.value and one.level is not Level.DEFAULT:
            for name in declared.moots:
                moot = configuration.effective(name)
                if moot.value is not None:
                    yield f"{moot.source}: {moot.setting.key} has no effect: {one.setting.name} is on"
            if declared.needs and not configuration.value(declared.needs):
                yield f"{one.source}: {one.setting.name} has no effect without {declared.needs}"
