"""What a planner is asked for: values of the command line, or of a plan file, before anything is looked at."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.formats.control import Layout

PAGES_RECOVER = "pages recover"
"""The command of two words, as plans name it; here, so that who makes other plans imports nothing of page stores."""
MARK_NAMES = {
    "session_id": "session",
    "low_water_mark": "low-water mark",
    "local_low_water_mark": "local low-water mark",
}
"""What people call the numbers of a struct of the control file."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What is kept of a partition: transactions up to `clean_to` (-1: none).

    `cut_after`: what stands behind it here goes; None: nothing.  `outvoted`: transactions (first, last) whose records here are
    to be replaced by those of the other replicas.  `restore_end`: this replica may have acknowledged everything up to
    `clean_to`, so that all of it is restored, or nothing: restored by half, it would look like one that never held the rest.
    """

    partition: int
    clean_to: int
    cut_after: int | None = None
    outvoted: tuple[tuple[int, int], ...] = ()
    restore_end: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """One thing that is to be set, by the name of its field in `PartitionSetting`, as it stands in a plan's arguments."""

    name: str
    value: int | bool


@dataclass(frozen=True, slots=True)
class PartitionSetting:
    """What is to hold from now on; None leaves a thing as it is.  -1 is the format's own "none"."""

    session_id: int | None = None
    low_water_mark: int | None = None
    local_low_water_mark: int | None = None
    assigned: bool | None = None
    available: bool | None = None

    @classmethod
    def of(cls, chosen: Iterable[Chosen]) -> PartitionSetting:
        """From a plan's arguments.  Raises TypeError for a name that there is not or comes twice, or another kind of value."""
        values: dict[str, int | bool] = {}
        for one in chosen:
            kind = int if one.name in MARK_NAMES else bool
            if one.name not in cls.__slots__ or one.name in values or type(one.value) is not kind:
                raise TypeError(f"{one.name!r} cannot be set to {one.value!r}")
            values[one.name] = one.value
        return cls(**values)  # type: ignore[arg-type]  # checked above

    def chosen(self) -> tuple[Chosen, ...]:
        """What is named, for a plan's arguments."""
        return tuple(Chosen(name, value) for name, value in asdict(self).items() if value is not None)

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        if not self.chosen():
            raise InvalidRequestError("nothing is to be set", advice="name what is to change; --help lists it")
        for field, name in MARK_NAMES.items():
            value = getattr(self, field)
            if value is not None and not -1 <= value < 2**63:
                raise InvalidRequestError(f"{name} {value}: they go from -1, which is none, to {2**63 - 1}")


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a planner was asked for; those that a command does not have keep their defaults.

    `agreed`: what a comparison of all replicas found, for recover; `forget_losses`: that it only makes the ledger of accepted
    losses shorter; `forget_journal`: that it only gives up what stands in a commit journal and nowhere else.  `layout`: to which
    layout convert brings a control file.  `settings`: what set-partition is to set.  `mode`: what pages recover takes of a log.
    """

    partitions: tuple[int, ...] | None = None
    everything: bool = False
    after: int | None = None
    replicas: tuple[str, ...] = ()
    allow_data_loss: bool = False
    agreed: tuple[Agreed, ...] = ()
    layout: Layout | None = None
    settings: tuple[Chosen, ...] = ()
    forget_losses: bool = False
    mode: RecoveryMode | None = None
    forget_journal: bool = False

    @classmethod
    def of(cls, partitions: Collection[int] | None = None, **others: Any) -> Arguments:
        """With the partitions in order."""
        return cls(None if partitions is None else tuple(sorted(set(partitions))), **others)

    @property
    def options(self) -> frozenset[str]:
        """The options by name that make a repair go further."""
        given = {"--from": self.replicas, "--allow-data-loss": self.allow_data_loss, "--all": self.everything}
        return frozenset(name for name, value in given.items() if value)

    def as_object(self) -> dict[str, Any]:
        """As an object.  What was added later is left out where there is nothing, as in the plans made before there was any."""
        found = asdict(self)
        for name in ("agreed", "layout", "settings", "forget_losses", "mode", "forget_journal"):
            if not found[name]:
                del found[name]
        return found


def arguments_of(value: Any) -> Arguments:
    """The arguments that a plan file holds.  Raises TypeError, ValueError."""
    known = Arguments(**value)
    numbers: Sequence[Any] = (*(known.partitions or ()), *(() if known.after is None else (known.after,)))
    if any(type(one) is not int for one in numbers) or not all(isinstance(one, str) for one in known.replicas):
        raise TypeError("arguments of the wrong kind")
    partitions = None if known.partitions is None else tuple(known.partitions)
    flags = bool(known.everything), bool(known.allow_data_loss)
    layout = None if known.layout is None else Layout(known.layout)
    agreed, settings = _agreed(known.agreed), _settings(known.settings)
    return Arguments(
        partitions,
        flags[0],
        known.after,
        tuple(known.replicas),
        flags[1],
        agreed,
        layout,
        settings,
        bool(known.forget_losses),
        None if known.mode is None else RecoveryMode(known.mode),
        bool(known.forget_journal),
    )


def _settings(value: Sequence[Any]) -> tuple[Chosen, ...]:
    """What a plan file says that is to be set.  Raises TypeError."""
    return PartitionSetting.of([Chosen(**one) for one in value]).chosen()


def _agreed(value: Sequence[Any]) -> tuple[Agreed, ...]:
    """What a plan file says that the replicas agreed on.  Raises TypeError, ValueError."""
    found = [Agreed(**one) for one in value]
    for one in found:
        numbers = [one.partition, one.clean_to, *(() if one.cut_after is None else (one.cut_after,))]
        for first, last in one.outvoted:
            numbers += [first, last]
        if any(type(number) is not int for number in numbers) or type(one.restore_end) is not bool:
            raise TypeError("agreements of the wrong kind")
    return tuple(replace(one, outvoted=tuple((first, last) for first, last in one.outvoted)) for one in found)
