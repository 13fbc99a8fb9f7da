"""The configuration of a process: what file, environment and command line say, merged into one value that can be explained.

The command line goes before the environment, that before the file, and that before the defaults.  Which settings there are is
declared (`engine.net.settings`); the file is that of release 0.13.2 (`engine.net.configuration_file`).

No message and no representation holds a secret.
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
    """Who said it; a higher one holds."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    COMMAND_LINE = 3


@dataclass(frozen=True, slots=True)
class Given:
    """A value of the command line: the setting's name (a secret's with ``-file``: the file that holds it), and its text.

    The name may be another spelling of its option.  `source`: what it was called, where that was no option.
    """

    name: str
    text: str = field(repr=False)
    source: str = ""


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting, the value that holds, and where that was said: for people, and as a level."""

    setting: Setting
    value: Any = field(repr=False)
    level: Level
    source: str

    @property
    def place(self) -> str:
        """Who said it, with the key where that does not tell which setting it is."""
        named = self.level in (Level.ENVIRONMENT, Level.COMMAND_LINE)
        return self.source if named else f"{self.setting.key}: {self.source}"

    @property
    def shown(self) -> Value:
        """The value as programs are told it, unless it is secret."""
        if self.value is None:
            return None
        shown: Value = "(hidden)" if self.setting.secret else self.setting.kind.shown(self.value)
        return shown


@dataclass(frozen=True, slots=True)
class Reload(Generic[Options]):
    """What a running process takes over from a configuration read anew: `configuration`, of it what changed, and what waits."""

    configuration: Configuration[Options]
    changed: tuple[Effective, ...]
    needs_restart: tuple[Effective, ...]


@dataclass(frozen=True, slots=True)
class Configuration(Generic[Options]):
    """Every setting with the value that holds.

    `options`: the same as what the process is started with; not checked yet (`check`).  `notes`: what somebody should know, a
    sentence each.  `file`: what was read.
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
        """Refuse what cannot be meant; raises as `check` of the options, and says where the values come from."""
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
        """What of another configuration a process that runs with this one can take over, and what it cannot."""
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

    `file`: unless given, the one that the environment names, if any.  `environment`: none unless given.  Raises
    InvalidRequestError (a value that is not allowed, a required key that is missing; both named with their place) and
    DiskReadError.
    """
    variables = {name: text for name, text in (environment or {}).items() if text}
    if file is None and declared.file_variable in variables:
        file = Path(variables[declared.file_variable])
    notes: list[str] = []
    said: dict[str, Effective] = {}
    for each in (
        *_from_file(declared, file, notes),
        *_from_environment(declared, variables, notes),
        *_from_command_line(declared, given),
    ):
        said[each.setting.name] = each
    _check_required(declared, file, said)
    _check_groups(declared, said)
    _settle_rivals(declared, said, notes)
    if file is not None:
        _add_left_out(declared, said)
    options = declared.build({one.setting.path: one.value for one in said.values()})
    settings = tuple(said.get(one.name) or _by_default(one, options) for one in declared.listed)
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
            notes.append(f"{place}: {entry.key} is no known key and has no effect{_meant(entry.key, declared.by_key)}")


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
            meant = _meant(variable, [*known, declared.file_variable])
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


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 1, 0.8)
    return f"; was {near[0]} meant?" if near else ""


# --- what hangs together -------------------------------------------------------------------------------------------------


def _check_required(declared: Settings[Any], file: Path | None, said: Mapping[str, Effective]) -> None:
    missing = [one for one in declared.listed if one.declared.required and one.name not in said]
    if file is not None and missing:
        first = missing[0]
        raise InvalidRequestError(
            f"{file}: {', '.join(one.key for one in missing)} {'is' if len(missing) == 1 else 'are'} missing",
            advice=f"add {first.key}, or give {first.option} or {first.variable}",
        )


def _check_groups(declared: Settings[Any], said: Mapping[str, Effective]) -> None:
    """A group of which something is said has to be said as far as it has no defaults."""
    for path, group in declared.optional_groups.items():
        members = [declared.by_path[(*path, name)] for name in group.wanted_by]
        wanting = [said[one.name] for one in members if one.name in said]
        for name in needed(group.kind):
            missing = declared.by_path[(*path, name)]
            if wanting and missing.name not in said:
                raise InvalidRequestError(
                    f"{wanting[0].source}: {wanting[0].setting.key} is set, and {missing.key} is missing",
                    advice=f"add {missing.key}, or leave {wanting[0].setting.key} out as well",
                )


def _settle_rivals(declared: Settings[Any], said: dict[str, Effective], notes: list[str]) -> None:
    """What was said at a higher level replaces its rivals of a lower one, whichever of them that is."""
    for winner in tuple(said.values()):
        for field_name in winner.setting.declared.replaces:
            loser = said.get(declared.by_path[(*winner.setting.path[:-1], field_name)].name)
            if loser is not None and loser.level < winner.level:
                del said[loser.setting.name]
                taker = f"{winner.setting.key} takes its place ({winner.source})"
                notes.append(f"{loser.source}: {loser.setting.key} has no effect: {taker}")


def _add_left_out(declared: Settings[Any], said: dict[str, Effective]) -> None:
    """What the file means by what it leaves out."""
    for one in declared.listed:
        for value in one.left_out:
            source = f"default: {one.kind.written(value)}, because the file has no {one.key}"
            said.setdefault(one.name, Effective(one, value, Level.DEFAULT, source))


def _by_default(setting: Setting, options: Any) -> Effective:
    """What the options make of a setting that nobody said."""
    value = options
    for step in setting.path:
        value = getattr(value, step, setting.default)
    derived = setting.unless if value != setting.default else ""
    return Effective(setting, value, Level.DEFAULT, f"default: {derived}" if derived else "default")


def _remarks(configuration: Configuration[Any]) -> Iterator[str]:
    """What is allowed, and probably not meant."""
    for one in configuration.settings:
        declared = one.setting.declared
        if one.value and one.level is not Level.DEFAULT:
            for name in declared.moots:
                moot = configuration.effective(name)
                if moot.value is not None:
                    yield f"{moot.source}: {moot.setting.key} has no effect: {one.setting.name} is on"
            if declared.needs and not configuration.value(declared.needs):
                yield f"{one.source}: {one.setting.name} has no effect without {declared.needs}"
