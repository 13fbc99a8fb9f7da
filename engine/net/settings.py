"""Declarations of settings: each setting is declared once, as a field of a dataclass; the rest is derived from that.

::

    @dataclass(frozen=True, slots=True)
    class Bounds:
        connections: int = setting("connections at a time", COUNT, default=4096, reloadable=True)

    @dataclass(frozen=True, slots=True)
    class ServerOptions:
        host: str = setting("address to listen at", TEXT, default="127.0.0.1", option=Option("ADDRESS"))
        bounds: Bounds = group(Bounds, key="waltzctl.limits.", name="limits-")

    SERVER = Settings("log-server", ServerOptions)

====================  =================================================================================================
configuration file    its key, ``host`` or ``waltzctl.limits.connections`` (`engine.net.configuration` reads and merges)
environment           ``WALTZCTL_LOG_SERVER_LIMITS_CONNECTIONS``; a secret also from the file that ``..._FILE`` names
command line          ``--host ADDRESS`` with its help, where it has an `Option` (waltzctl/setting_options.py)
engine's options      `Settings.build`: an instance of the dataclass; its bounds: `check_bounds`
``--show-config``     the effective value and its source; never the value of a secret
reload                whether a running process takes over a new value
documentation         a row of docs/settings.md (docs/schemas/generate.py), and of the manual page (man/generate.py)
====================  =================================================================================================

This module opens no file and imports nothing slow: ``--help`` is made from declarations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from waltzctl.engine.errors import InvalidOptionsError
from waltzctl.engine.net.setting_kinds import SettingKind, Value

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options")
Instance = TypeVar("Instance", bound="DataclassInstance")
FieldPath = tuple[str, ...]
"""The names of the nested fields that lead to a value, from the outermost dataclass."""

OURS = "waltzctl."
"""Prefix of keys that the release does not have; a group's `key` is not put before such a key."""
_DECLARED = "declared"
_NOT_GIVEN: Any = object()


@dataclass(frozen=True, slots=True)
class Option:
    """A setting on the command line.

    `metavar`: instead of its kind's.  `also`: another spelling, without the dashes.  `argument`: it is a positional argument,
    which the metavar names.  `only_file`: of a secret; only the option for the file that holds it exists.
    """

    metavar: str = ""
    also: str = ""
    argument: bool = False
    only_file: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of a setting; see `setting` for its fields."""

    meaning: str
    kind: SettingKind
    key: str
    name: str
    unless: str
    option: Option | None
    required: bool
    secret: bool
    reloadable: bool
    replaces: tuple[str, ...]
    left_out: Value
    needs: str
    moots: tuple[str, ...]


def setting(
    meaning: str,
    kind: SettingKind,
    *,
    default: Any = MISSING,
    key: str = "",
    name: str = "",
    unless: str = "",
    option: Option | None = None,
    required: bool = False,
    secret: bool = False,
    reloadable: bool = False,
    replaces: tuple[str, ...] = (),
    left_out: Value = _NOT_GIVEN,
    needs: str = "",
    moots: tuple[str, ...] = (),
) -> Any:
    """Declare a setting as a field of a dataclass.

    - `meaning`: description for help and documentation, without initial capital and full stop.
    - `kind`: how values are read and which are allowed.
    - `default`: the value if the setting is not given; a field without a default has to be given.
    - `unless`: text for the default in help, if the default's own text would not explain it.
    - `key`: in the configuration file; default: the field's name in camel case.
    - `name`: of option and environment variable; default: the field's name.
    - `option`: its form on the command line; None: it has no option.
    - `required`: it is an error if there is a configuration file, and neither the file nor another source gives the setting.
    - `left_out`: the value if there is a configuration file that leaves the setting out, instead of the default.
    - `secret`: the value is never shown.
    - `reloadable`: a running process takes over a new value.
    - `replaces`: fields of the same dataclass that are dropped if they were given at a lower level.
    - `needs`: name of another setting, without which a note says that this one has no effect.
    - `moots`: names of settings of which a note says that they have no effect while this one is on.
    """
    declared = Declared(
        meaning, kind, key, name, unless, option, required, secret, reloadable, replaces, left_out, needs, moots
    )
    return field(default=default, repr=not secret, metadata={_DECLARED: declared})


@dataclass(frozen=True, slots=True)
class Group:
    """The declaration of a nested dataclass with settings; see `group` for its fields."""

    kind: type
    key: str
    name: str
    reloadable: bool
    wanted_by: tuple[str, ...]


def group(
    kind: type,
    *,
    key: str = "",
    name: str = "",
    reloadable: bool = False,
    wanted_by: tuple[str, ...] = (),
) -> Any:
    """Declare a field whose value is a dataclass `kind` with settings of its own.

    `key`, `name`: prefixes of the settings' keys (except those that begin with `OURS`) and names.  `reloadable`: all its settings
    are.  `wanted_by`: the group is optional: its value is None unless one of these fields is given, and then every field without
    a default has to be given.
    """
    made = Group(kind, key, name, reloadable, wanted_by)
    metadata = {_DECLARED: made}
    return field(default=None, metadata=metadata) if wanted_by else field(default_factory=kind, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a command, with the properties derived from its declaration."""

    path: FieldPath
    key: str
    name: str
    variable: str
    default: Value
    reloadable: bool
    declared: Declared

    @property
    def kind(self) -> SettingKind:
        """The kind of its values."""
        return self.declared.kind

    @property
    def meaning(self) -> str:
        """Its description."""
        return self.declared.meaning

    @property
    def secret(self) -> bool:
        """Whether its value is never shown."""
        return self.declared.secret

    @property
    def is_argument(self) -> bool:
        """Whether it is a positional argument."""
        return self.declared.option is not None and self.declared.option.argument

    @property
    def option(self) -> str:
        """Its name in messages: ``--name``, or the metavar of an argument; also for a setting without an `Option`."""
        how = self.declared.option
        return how.metavar if how is not None and how.argument else f"--{self.name}"

    @property
    def file_option(self) -> str:
        """The option that names the file of a secret."""
        return f"--{self.name}-file"

    @property
    def on_command_line(self) -> tuple[str, ...]:
        """All its options, as they are typed; empty without an `Option`."""
        how = self.declared.option
        if how is None:
            return ()
        return (*(() if how.only_file else (self.option,)), *((self.file_option,) if self.secret else ()))

    @property
    def left_out(self) -> tuple[Value, ...]:
        """The value if a configuration file leaves it out; empty if that is the default."""
        return () if self.declared.left_out is _NOT_GIVEN else (self.declared.left_out,)

    @property
    def in_file(self) -> tuple[str, ...]:
        """The text for `left_out`, or for a required setting; empty if neither applies."""
        if self.declared.required:
            return ("required in a file",)
        return tuple(f"{self.kind.written(value)} in a file without it" for value in self.left_out)

    @property
    def unless(self) -> str:
        """The text for the default; empty if there is none."""
        if self.declared.unless or self.default is None or self.kind.metavar == "":
            return self.declared.unless
        return self.kind.written(self.default)

    @property
    def help(self) -> str:
        """A sentence for ``--help``."""
        text = f"{self.meaning}; {self.unless} unless given" if self.unless else self.meaning
        return f"{text[0].upper()}{text[1:]}."


@dataclass(frozen=True)
class Settings(Generic[Options]):
    """All settings of a command.  `ignored`: keys of the release that have no effect here, each with the reason."""

    command: str
    kind: type[Options]
    ignored: Mapping[str, str] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """The prefix of its environment variables."""
        return f"WALTZCTL_{_upper_case(self.command)}_"

    @property
    def file_variable(self) -> str:
        """The environment variable that names the configuration file."""
        return f"{self.prefix}CONFIG"

    @cached_property
    def listed(self) -> tuple[Setting, ...]:
        """All settings, in the order of their declaration."""
        return tuple(self._of(self.kind, (), Group(self.kind, "", "", False, ())))

    @cached_property
    def by_key(self) -> Mapping[str, Setting]:
        """The settings by key in the configuration file."""
        return {one.key: one for one in self.listed}

    @cached_property
    def by_name(self) -> Mapping[str, Setting]:
        """The settings by name."""
        return {one.name: one for one in self.listed}

    @cached_property
    def by_option(self) -> Mapping[str, Setting]:
        """The settings by name, and by the other spelling of their option."""
        also = {
            one.declared.option.also: one for one in self.listed if one.declared.option and one.declared.option.also
        }
        return {**also, **self.by_name}

    @cached_property
    def by_path(self) -> Mapping[FieldPath, Setting]:
        """The settings by path."""
        return {one.path: one for one in self.listed}

    @cached_property
    def optional_groups(self) -> Mapping[FieldPath, Group]:
        """The optional groups (`wanted_by`), by path."""
        return {path: one for path, one in _groups(self.kind, ()) if one.wanted_by}

    def _of(self, kind: type, path: FieldPath, around: Group) -> Iterator[Setting]:
        for each in fields(kind):
            declared = _declared(each)
            here = (*path, each.name)
            if isinstance(declared, Group):
                key, name = _full_key(around.key, declared.key), around.name + declared.name
                reloadable = around.reloadable or declared.reloadable
                inner = Group(declared.kind, key, name, reloadable, declared.wanted_by)
                yield from self._of(declared.kind, here, inner)
            elif isinstance(declared, Declared):
                name = around.name + (declared.name or each.name.replace("_", "-"))
                yield Setting(
                    path=here,
                    key=_full_key(around.key, declared.key or camel_case(each.name)),
                    name=name,
                    variable=self.prefix + _upper_case(name),
                    default=None if each.default is MISSING else each.default,
                    reloadable=around.reloadable or declared.reloadable,
                    declared=declared,
                )

    def build(self, values: Mapping[FieldPath, Any]) -> Options:
        """An instance of the dataclass with these values, by path, and defaults for the other fields."""
        made: Options = _build(self.kind, values, ())
        return made


def needed(kind: type) -> tuple[str, ...]:
    """The names of a dataclass's fields without a default."""
    return tuple(one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING)


def _build(kind: type, values: Mapping[FieldPath, Any], path: FieldPath) -> Any:
    given = {}
    for each in fields(kind):
        declared = _declared(each)
        here = (*path, each.name)
        if not isinstance(declared, Group):
            if here in values:
                given[each.name] = values[here]
        elif all(values.get((*here, one)) is not None for one in needed(declared.kind)):
            given[each.name] = _build(declared.kind, values, here)
    return kind(**given)


def _groups(kind: type, path: FieldPath) -> Iterator[tuple[FieldPath, Group]]:
    for each in fields(kind):
        declared = _declared(each)
        if isinstance(declared, Group):
            yield (*path, each.name), declared
            yield from _groups(declared.kind, (*path, each.name))


def _declared(each: Field[Any]) -> Declared | Group | None:
    found: Declared | Group | None = each.metadata.get(_DECLARED)
    return found


def _full_key(front: str, key: str) -> str:
    return key if key.startswith(OURS) else front + key


def camel_case(name: str) -> str:
    """``maxBody`` from ``max_body`` or ``max-body``."""
    first, *rest = name.replace("-", "_").split("_")
    return first + "".join(word.capitalize() for word in rest)


def _upper_case(name: str) -> str:
    return name.upper().replace("-", "_")


# --- checks of options ---------------------------------------------------------------------------------------------------


def check_bounds(options: Any) -> None:
    """Raise InvalidOptionsError if a field of `options`, a dataclass, has a value that its kind does not allow."""
    for each in fields(options):
        declared, value = _declared(each), getattr(options, each.name)
        if isinstance(declared, Declared) and value is not None:
            try:
                declared.kind.judge(value)
            except ValueError as error:
                raise InvalidOptionsError(f"{declared.key or each.name} {error}", options, each.name) from None


def check_groups(options: Any) -> None:
    """Call `check` of each group of `options`, a dataclass, that is not None; raises what it raises."""
    for each in fields(options):
        if isinstance(_declared(each), Group) and (value := getattr(options, each.name)) is not None:
            value.check()


RELOAD_SECONDS = 60.0
"""Seconds, at most, in which a configuration, or certificates, are read again: a disk that does not answer must not prevent the
next reload."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Names of option fields that differed: `changed`: now applied; `needs_restart`: not applied."""

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


def reload_fields(old: Instance, new: Instance, reloadable: frozenset[str]) -> tuple[Instance, Reloaded]:
    """`old` with the fields named in `reloadable` taken from `new`, and the names of the fields that differed."""
    differing = [one.name for one in fields(old) if getattr(old, one.name) != getattr(new, one.name)]
    merged = replace(old, **{name: getattr(new, name) for name in reloadable})
    changed = tuple(name for name in differing if name in reloadable)
    return merged, Reloaded(changed, tuple(name for name in differing if name not in reloadable))


def reloadable_fields(kind: type) -> frozenset[str]:
    """The names of a dataclass's fields that are reloadable; a group only if all its settings are."""
    known = Settings("", kind).listed
    return frozenset(one.path[0] for one in known) - {one.path[0] for one in known if not one.reloadable}
