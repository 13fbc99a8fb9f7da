"""The arguments of a planner, from the command line or from a plan file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.formats.control import Layout

PAGES_RECOVER = "pages recover"
"""The command's name in plans.  Defined here so that the planners of storage directories do not import page stores."""
MARK_NAMES = {
    "session_id": "session",
    "low_water_mark": "low-water mark",
    "local_low_water_mark": "local low-water mark",
}
"""The names, in messages, of the numeric fields of a control file struct."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What a comparison of all replicas decided about a partition of one replica: transactions up to `clean_to` are kept.

    ===============  ==============================================================================================
    `clean_to`       last transaction that is kept; -1: none
    `cut_after`      the replica is cut after this transaction; None: it is not cut
    `outvoted`       ranges (first, last; inclusive) whose records are replaced by those of the other replicas
    `restore_end`    the replica may have acknowledged everything up to `clean_to`: restore all of it, or nothing
    `missing`        other replicas' directories of the partition that were not there: records are given up only while that is so
    ===============  ==============================================================================================

    With `restore_end`, a partial restore would be wrong: the replica would look like one that never held the rest.
    """

    partition: int
    clean_to: int
    cut_after: int | None = None
    outvoted: tuple[tuple[int, int], ...] = ()
    restore_end: bool = False
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """One field of `PartitionSetting` with its new value, as a plan's arguments hold it."""

    name: str
    value: int | bool


@dataclass(frozen=True, slots=True)
class PartitionSetting:
    """New values for a partition; None leaves a field as it is.  -1 is the file format's own "none"."""

    session_id: int | None = None
    low_water_mark: int | None = None
    local_low_water_mark: int | None = None
    assigned: bool | None = None
    available: bool | None = None

    @classmethod
    def of(cls, chosen: Iterable[Chosen]) -> PartitionSetting:
        """From a plan's arguments.  Raises TypeError for an unknown or repeated name, or a value of the wrong type."""
        values: dict[str, int | bool] = {}
        for one in chosen:
            kind = int if one.name in MARK_NAMES else bool
            if one.name not in cls.__slots__ or one.name in values or type(one.value) is not kind:
                raise TypeError(f"{one.name!r} cannot be set to {one.value!r}")
            values[one.name] = one.value
        return cls(**values)  # type: ignore[arg-type]  # checked above

    def chosen(self) -> tuple[Chosen, ...]:
        """The fields that are not None, for a plan's arguments."""
        return tuple(Chosen(name, value) for name, value in asdict(self).items() if value is not None)

    def check(self) -> None:
        """Raise InvalidRequestError for a value out of range, and when no field is set."""
        if not self.chosen():
            raise InvalidRequestError("nothing is to be set", advice="name what is to change; --help lists it")
        for field, name in MARK_NAMES.items():
            value = getattr(self, field)
            if value is not None and not -1 <= value < 2**63:
                raise InvalidRequestError(f"{name} {value}: they go from -1, which is none, to {2**63 - 1}")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a planner; arguments that a command does not have keep their defaults.

    ================  ==============  =====================================================================
    argument          command         meaning
    ================  ==============  =====================================================================
    `agreed`          recover         what a comparison of all replicas decided, by partition
    `forget_losses`   recover         only remove losses from the ledger of accepted losses
    `forget_journal`  recover         only give up records that exist in a commit journal and nowhere else
    `layout`          convert         the target layout of the control file
    `settings`        set-partition   the values to set
    `mode`            pages recover   which part of a damaged log is kept
    ================  ==============  =====================================================================
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
        """Arguments with `partitions` sorted and without repeats."""
        return cls(None if partitions is None else tuple(sorted(set(partitions))), **others)

    @property
    def options(self) -> frozenset[str]:
        """The names of the given options that let a repair do more than it does by default."""
        given = {"--from": self.replicas, "--allow-data-loss": self.allow_data_loss, "--all": self.everything}
        return frozenset(name for name, value in given.items() if value)

    def as_object(self) -> dict[str, Any]:
        """As a JSON object.  Arguments added in later versions are left out when empty, so that older plans keep their hash."""
        found = asdict(self)
        for name in ("agreed", "layout", "settings", "forget_losses", "mode", "forget_journal"):
            if not found[name]:
                del found[name]
        for one in found.get("agreed", ()):
            if not one["missing"]:
                del one["missing"]
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
    """The settings that a plan file holds.  Raises TypeError."""
    return PartitionSetting.of([Chosen(**one) for one in value]).chosen()


def _agreed(value: Sequence[Any]) -> tuple[Agreed, ...]:
    """The agreements that a plan file holds.  Raises TypeError, ValueError."""
    found = [Agreed(**one) for one in value]
    for one in found:
        numbers = [one.partition, one.clean_to, *(() if one.cut_after is None else (one.cut_after,))]
        for first, last in one.outvoted:
            numbers += [first, last]
        if any(type(number) is not int for number in numbers) or type(one.restore_end) is not bool:
            raise TypeError("agreements of the wrong kind")
        if type(one.missing) not in (list, tuple) or not all(isinstance(name, str) for name in one.missing):
            raise TypeError("agreements of the wrong kind")
    return tuple(
        replace(one, outvoted=tuple((first, last) for first, last in one.outvoted), missing=tuple(one.missing))
        for one in found
    )
