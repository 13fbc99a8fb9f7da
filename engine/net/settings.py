"""Settings of a process with ports: each is declared once, as a field of a dataclass, and everything else follows from that.

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
what the engine gets  `Settings.build`: the dataclass, its bounds kept (`check_bounds`)
``--show-config``     the value that holds and who says so; a secret's never
reload                whether a running process takes a new value
docs/settings.md      a row (docs/schemas/generate.py), and an entry of the manual page (man/generate.py)
====================  =================================================================================================

Nothing here opens a file, and nothing heavy is imported: ``--help`` reads declarations.
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
"""The fields that lead to a value, from the top of the options."""

OURS = "waltzctl."
"""What keys begin with that the release does not have; they are the same in every process."""
_DECLARED = "declared"
_SAME: Any = object()


@dataclass(frozen=True, slots=True)
class Option:
    """How a setting stands on the command line.

    `metavar`: instead of its kind's.  `also`: another spelling, without the dashes.  `argument`: it is no option but a place in
    the command line, which its metavar names.  `only_file`: a secret that is not taken itself, only the file that holds it.
    """

    metavar: str = ""
    also: str = ""
    argument: bool = False
    only_file: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
    """What a field says of its setting; see `setting`."""

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
    left_out: Value = _SAME,
    needs: str = "",
    moots: tuple[str, ...] = (),
) -> Any:
    """A field of a dataclass that is a setting.

    `meaning`: what it is, for people, without a capital or a full stop.  `default`: what holds when nobody says anything; a field
    without one is needed.  `unless`: that, for people, where the default does not tell it.  `key`: of the configuration file; the
    field's name unless given.  `name`: from which option and variable follow; the field's name unless given.

    `required`: a configuration file without it, and nothing else that says it, is an error.  `left_out`: what such a file means
    instead of the default.  `secret`: never shown.  `reloadable`: a running process takes a new value.

    `replaces`: fields beside this one that it takes out of force where they were said by who has less to say.  Worth a remark is
    one that says something while `needs`, another setting's name, is off, and those named in `moots` while this one is on.
    """
    declared = Declared(
        meaning, kind, key, name, unless, option, required, secret, reloadable, replaces, left_out, needs, moots
    )
    return field(default=default, repr=not secret, metadata={_DECLARED: declared})


@dataclass(frozen=True, slots=True)
class Group:
    """Settings that a dataclass of its own declares; see `group`."""

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
    """A field whose value is a dataclass with settings of its own.

    `key`, `name`: put before theirs, but for keys that are ours.  `reloadable`: all of them.  `wanted_by`: the value is None
    unless one of these fields was said, and then every field without a default has to be.
    """
    made = Group(kind, key, name, reloadable, wanted_by)
    metadata = {_DECLARED: made}
    return field(default=None, metadata=metadata) if wanted_by else field(default_factory=kind, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a command, with everything that follows from its declaration."""

    path: FieldPath
    key: str
    name: str
    variable: str
    default: Value
    reloadable: bool
    declared: Declared

    @property
    def kind(self) -> SettingKind:
        """What its values are."""
        return self.declared.kind

    @property
    def meaning(self) -> str:
        """What it is, for people."""
        return self.declared.meaning

    @property
    def secret(self) -> bool:
        """Whether it is never shown."""
        return self.declared.secret

    @property
    def is_argument(self) -> bool:
        """Whether it is no option but a place in the command line."""
        return self.declared.option is not None and self.declared.option.argument

    @property
    def option(self) -> str:
        """As it is called on the command line; a setting without an option has a name all the same."""
        how = self.declared.option
        return how.metavar if how is not None and how.argument else f"--{self.name}"

    @property
    def file_option(self) -> str:
        """The option that names the file of a secret."""
        return f"--{self.name}-file"

    @property
    def on_command_line(self) -> tuple[str, ...]:
        """All its options there, as they are typed; none for one that has no `Option`."""
        how = self.declared.option
        if how is None:
            return ()
        return (*(() if how.only_file else (self.option,)), *((self.file_option,) if self.secret else ()))

    @property
    def left_out(self) -> tuple[Value, ...]:
        """What a configuration file without it means; nothing where that is the default."""
        return () if self.declared.left_out is _SAME else (self.declared.left_out,)

    @property
    def in_file(self) -> tuple[str, ...]:
        """What a configuration file without it means, for people, where that is not the default."""
        if self.declared.required:
            return ("required in a file",)
        return tuple(f"{self.kind.written(value)} in a file without it" for value in self.left_out)

    @property
    def unless(self) -> str:
        """What holds unless it is given, for people; empty where nothing does."""
        if self.declared.unless or self.default is None or self.kind.metavar == "":
            return self.declared.unless
        return self.kind.written(self.default)

    @property
    def help(self) -> str:
        """A sentence for ``--help``."""
        told = f"{self.meaning}; {self.unless} unless given" if self.unless else self.meaning
        return f"{told[0].upper()}{told[1:]}."


@dataclass(frozen=True)
class Settings(Generic[Options]):
    """All settings of a command.  `ignored`: keys that mean nothing here and are no mistake, and why."""

    command: str
    kind: type[Options]
    ignored: Mapping[str, str] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """What its environment variables begin with."""
        return f"WALTZCTL_{_shouted(self.command)}_"

    @property
    def file_variable(self) -> str:
        """The environment variable that names the configuration file."""
        return f"{self.prefix}CONFIG"

    @cached_property
    def listed(self) -> tuple[Setting, ...]:
        """In the order of their declaration."""
        return tuple(self._of(self.kind, (), Group(self.kind, "", "", False, ())))

    @cached_property
    def by_key(self) -> Mapping[str, Setting]:
        """By their keys in the configuration file."""
        return {one.key: one for one in self.listed}

    @cached_property
    def by_name(self) -> Mapping[str, Setting]:
        """By their names."""
        return {one.name: one for one in self.listed}

    @cached_property
    def by_option(self) -> Mapping[str, Setting]:
        """By their names, and by other spellings of their options."""
        also = {
            one.declared.option.also: one for one in self.listed if one.declared.option and one.declared.option.also
        }
        return {**also, **self.by_name}

    @cached_property
    def by_path(self) -> Mapping[FieldPath, Setting]:
        """By the fields that lead to them."""
        return {one.path: one for one in self.listed}

    @cached_property
    def optional_groups(self) -> Mapping[FieldPath, Group]:
        """The groups that may be left out as a whole, by the fields that lead to them."""
        return {path: one for path, one in _groups(self.kind, ()) if one.wanted_by}

    def _of(self, kind: type, path: FieldPath, around: Group) -> Iterator[Setting]:
        for each in fields(kind):
            declared = _declared(each)
            here = (*path, each.name)
            if isinstance(declared, Group):
                key, name = _joined(around.key, declared.key), around.name + declared.name
                reloadable = around.reloadable or declared.reloadable
                inner = Group(declared.kind, key, name, reloadable, declared.wanted_by)
                yield from self._of(declared.kind, here, inner)
            elif isinstance(declared, Declared):
                name = around.name + (declared.name or each.name.replace("_", "-"))
                yield Setting(
                    path=here,
                    key=_joined(around.key, declared.key or camel_case(each.name)),
                    name=name,
                    variable=self.prefix + _shouted(name),
                    default=None if each.default is MISSING else each.default,
                    reloadable=around.reloadable or declared.reloadable,
                    declared=declared,
                )

    def build(self, values: Mapping[FieldPath, Any]) -> Options:
        """The options with these values, by the fields that lead to them, and defaults for the others."""
        made: Options = _built(self.kind, values, ())
        return made


def needed(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that have no default."""
    return tuple(one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING)


def _built(kind: type, values: Mapping[FieldPath, Any], path: FieldPath) -> Any:
    given = {}
    for each in fields(kind):
        declared = _declared(each)
        here = (*path, each.name)
        if not isinstance(declared, Group):
            if here in values:
                given[each.name] = values[here]
        elif all(values.get((*here, one)) is not None for one in needed(declared.kind)):
            given[each.name] = _built(declared.kind, values, here)
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


def _joined(front: str, key: str) -> str:
    return key if key.startswith(OURS) else front + key


def camel_case(name: str) -> str:
    """``maxBody`` from ``max_body`` or ``max-body``."""
    first, *rest = name.replace("-", "_").split("_")
    return first + "".join(word.capitalize() for word in rest)


def _shouted(name: str) -> str:
    return name.upper().replace("-", "_")


# --- what the options themselves are asked -------------------------------------------------------------------------------


def check_bounds(options: Any) -> None:
    """Raise InvalidOptionsError for a field of `options`, a dataclass, whose value its kind does not allow."""
    for each in fields(options):
        declared, value = _declared(each), getattr(options, each.name)
        if isinstance(declared, Declared) and value is not None:
            try:
                declared.kind.judge(value)
            except ValueError as error:
                raise InvalidOptionsError(f"{declared.key or each.name} {error}", options, each.name) from None


def check_groups(options: Any) -> None:
    """Let each group of `options`, a dataclass, that is not left out judge itself; raises what its `check` raises."""
    for each in fields(options):
        if isinstance(_declared(each), Group) and (value := getattr(options, each.name)) is not None:
            value.check()


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Fields of a process's options that differed: those that are in force now, and those that need a restart."""

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


def reload_fields(old: Instance, new: Instance, reloadable: frozenset[str]) -> tuple[Instance, Reloaded]:
    """The options of a process that takes over from `new` the fields named `reloadable`, and what became of those that differ."""
    differing = [one.name for one in fields(old) if getattr(old, one.name) != getattr(new, one.name)]
    merged = replace(old, **{name: getattr(new, name) for name in reloadable})
    changed = tuple(name for name in differing if name in reloadable)
    return merged, Reloaded(changed, tuple(name for name in differing if name not in reloadable))


def reloadable_fields(kind: type) -> frozenset[str]:
    """The fields of a dataclass of which a running process takes a new value, whole groups included."""
    known = Settings("", kind).listed
    return frozenset(one.path[0] for one in known) - {one.path[0] for one in known if not one.reloadable}
