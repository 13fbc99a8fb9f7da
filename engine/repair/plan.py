"""Plans: what a repair would do, bound by a hash to the files as they are.

A plan is made read-only: no lock is taken, nothing is written.  Its hash covers the command, its arguments, every step,
every edit, the name, size and time of every file in the partitions looked at, and the SHA-256 of the control file, of every
file that is touched and of every replica file that is read.  A plan whose hash comes out differently is stale.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waltzctl.engine.columns.plan import PLAN
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.edits import Cut, Edit, MoveDirectory, Overwrite, Replace
from waltzctl.engine.durable.execution import check_edits
from waltzctl.engine.durable.manifest import partitions_of
from waltzctl.engine.durable.restore import stamp
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, NotWaltzError, RefusedError, StalePlanError
from waltzctl.engine.findings import Finding, Ran
from waltzctl.engine.storage.accepted_losses import ledger_path
from waltzctl.engine.storage.store import STATE_FILES, interrupted
from waltzctl.engine.storage.view import FileState, resolve
from waltzctl.formats.accepted_losses import AcceptedLoss
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout

if TYPE_CHECKING:
    from waltzctl.engine.repair.reconcile import Agreed
    from waltzctl.engine.repair.set_partition import Chosen

_LIMIT = 64 << 20


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a plan does.

    `action` is a stable word.  Transaction ids are inclusive on both ends; offset and length are in bytes of the file as it is
    before.  What does not apply is None.  `loses_data`: records, marks or bytes that somebody was promised are given up.
    """

    action: str
    path: Path
    partition: int | None
    from_transaction_id: int | None
    to_transaction_id: int | None
    offset: int | None
    length: int | None
    reason: str
    loses_data: bool = False


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a planner was asked for; those that a command does not have keep their defaults.

    `agreed`: what a comparison of all replicas found, for recover; `forget_losses`: that it only makes the ledger of accepted
    losses shorter.  `layout`: to which layout convert brings a control file.  `settings`: what set-partition is to set.
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
        for name in ("agreed", "layout", "settings", "forget_losses"):
            if not found[name]:
                del found[name]
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be done, and what is left for a person to decide."""

    hash: str
    command: str
    path: Path
    arguments: Arguments
    steps: tuple[Step, ...]
    undecided: tuple[Finding, ...]

    @property
    def loses_data(self) -> bool:
        """Whether any step gives something up."""
        return any(step.loses_data for step in self.steps)


@dataclass(frozen=True, slots=True)
class Binding:
    """The state of the files that a plan was made for: (name, size, time in ns) of all, SHA-256 of those that matter."""

    listing: tuple[tuple[str, int, int], ...]
    digests: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Repair:
    """A plan and what it takes to carry it out.

    `partitions`: whose files were looked at.  `sources`: files of replicas that are read.  `roll_back`: the only step is to
    take back an interrupted repair.
    """

    plan: Plan
    storage: Path
    edits: tuple[Edit, ...]
    partitions: tuple[int, ...]
    binding: Binding
    sources: tuple[Path, ...] = ()
    roll_back: bool = False

    def check_current(self) -> None:
        """Raises StalePlanError naming a file when it is not as it was when the plan was made; DiskReadError."""
        now = bind(self.storage, self.partitions, self.edits, self.sources)
        if now == self.binding:
            return
        changed = sorted(
            {one[0] for one in {*self.binding.listing} ^ {*now.listing}}
            | {one[0] for one in {*self.binding.digests} ^ {*now.digests}}
        )
        raise StalePlanError(
            f"{self.storage / changed[0]}: changed since the plan was made; nothing was modified",
            advice="make the plan again",
        )


def bind(storage: Path, partitions: Iterable[int], edits: Iterable[Edit], sources: Iterable[Path] = ()) -> Binding:
    """The state of a storage directory as far as it matters for a plan.  Raises DiskReadError."""
    control = storage / CONTROL_FILE_NAME
    listing = [*_states(storage, [control, ledger_path(storage)])]
    for partition in sorted(set(partitions)):
        directory = storage / str(partition)
        try:
            names = sorted(os.listdir(directory))
        except FileNotFoundError:
            continue
        except NotADirectoryError:  # somebody's file of this name, which verify notes: no part of the partition
            listing += _states(storage, [directory])
            continue
        except OSError as error:
            raise DiskReadError(directory, None, error, doing="list") from error
        listing += _states(storage, [directory / name for name in names])
    matter = {control, *(edit.path for edit in edits)}
    digests = [*_digests(storage, sorted(matter)), *_digests(None, sorted(set(sources)))]
    return Binding(tuple(listing), tuple(digests))


def _states(storage: Path, paths: Iterable[Path]) -> Iterable[tuple[str, int, int]]:
    for path in paths:
        if (state := FileState.of(path)) is not None:
            yield path.relative_to(storage).as_posix(), state.size, state.modified_ns


def _digests(storage: Path | None, paths: Iterable[Path]) -> Iterable[tuple[str, str | None]]:
    for path in paths:
        found = stamp(path)
        name = str(path.resolve()) if storage is None else path.relative_to(storage).as_posix()
        yield name, None if found is None else found.sha256


def _edit_key(storage: Path, edit: Edit) -> list[Any]:
    name = edit.path.relative_to(storage).as_posix()
    if isinstance(edit, Cut):
        return ["cut", name, edit.size]
    if isinstance(edit, Overwrite):
        return ["overwrite", name, edit.offset, hashlib.sha256(edit.data).hexdigest()]
    if isinstance(edit, MoveDirectory):
        return ["move", name, edit.target.relative_to(storage).as_posix()]
    if isinstance(edit, Replace):  # its bytes follow from the files, which the binding covers
        return ["replace", name, edit.size]
    return ["remove", name]


@dataclass(slots=True)
class Draft:
    """A plan in the making: planners add to it, `finish` computes the hash.

    `accepted` and `settled`: losses that enter and leave the ledger with it.
    """

    command: str
    path: Path
    storage: Path
    arguments: Arguments
    steps: list[Step] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    undecided: list[Finding] = field(default_factory=list)
    partitions: set[int] = field(default_factory=set)
    sources: set[Path] = field(default_factory=set)
    roll_back: bool = False
    accepted: list[AcceptedLoss] = field(default_factory=list)
    settled: list[AcceptedLoss] = field(default_factory=list)

    def step(
        self,
        action: str,
        path: Path,
        partition: int | None,
        reason: str,
        *,
        ids: tuple[int, int] | None = None,
        offset: int | None = None,
        length: int | None = None,
        loses_data: bool = False,
    ) -> None:
        """Add a step; `ids` are the first and the last transaction concerned."""
        first, last = ids or (None, None)
        self.steps.append(Step(action, path, partition, first, last, offset, length, reason, loses_data))

    @property
    def ran(self) -> Ran:
        """The command, for what it leaves."""
        return Ran(self.command, self.arguments.options)

    def refuse_interrupted(self) -> None:
        """Raises RefusedError when a repair was interrupted here: its files are neither old nor new.

        `plan_roll_back` comes first; this is for what was interrupted since.
        """
        if left := interrupted(self.storage):
            raise RefusedError(
                f"{self.storage}: the repair {left[0].id} was interrupted", advice="take it back with undo"
            )

    def finish(self) -> Repair:
        """The repair.  Raises DiskReadError, RefusedError where an edit cannot be carried out in its place."""
        check_edits(self.storage, self.edits, STATE_FILES)
        partitions = tuple(sorted(self.partitions))
        sources = tuple(sorted(self.sources))
        binding = bind(self.storage, partitions, self.edits, sources)
        steps = [{**asdict(step), "path": os.path.relpath(step.path, self.storage)} for step in self.steps]
        body = {
            "command": self.command,
            "storage": str(self.storage.resolve()),
            "arguments": self.arguments.as_object(),
            "steps": steps,
            "edits": [_edit_key(self.storage, edit) for edit in self.edits],
            "binding": asdict(binding),
            "roll_back": self.roll_back,
        }
        digest = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        plan = Plan(digest, self.command, self.path, self.arguments, tuple(self.steps), tuple(self.undecided))
        return Repair(plan, self.storage, tuple(self.edits), partitions, binding, sources, self.roll_back)


def load_plan(file: Path) -> Repair:
    """Make the plan that a file holds again, from its path and arguments, and compare hash and steps.

    Raises InvalidRequestError for a file that is no plan, StalePlanError when it is not the one that would be carried out, and
    what the planner raises.
    """
    try:
        body = json.loads(disk.read_range(file, 0, _LIMIT))
        if body["schema"] != PLAN.identity or body["type"] != PLAN.name:
            raise ValueError(f"schema {body['schema']!r}")
        wanted, command, path = (_text(body[key]) for key in ("hash", "command", "path"))
        arguments, steps = _arguments(body["arguments"]), body["steps"]
    except FileNotFoundError as error:
        raise InvalidRequestError(f"{file}: no such file") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidRequestError(
            f"{file}: not a plan: {error}", advice="write one with --dry-run --format json"
        ) from error
    repair = make(command, Path(path), arguments)
    if repair.plan.hash != wanted:
        raise StalePlanError(
            f"{file}: the files of {path} are no longer those that the plan was made for; nothing was modified",
            advice="make the plan again with --dry-run",
        )
    if steps != PLAN.keys(repair.plan)["steps"]:
        raise StalePlanError(
            f"{file}: its steps are not those that would be done; nothing was modified",
            advice="a plan is carried out as a whole: make one with --dry-run, and restrict it with the command's options",
        )
    return repair


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise TypeError("a text is missing")
    return value


def _arguments(value: Any) -> Arguments:
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
    )


def _settings(value: Sequence[Any]) -> tuple[Chosen, ...]:
    """What a plan file says that is to be set.  Raises TypeError."""
    if not value:
        return ()
    from waltzctl.engine.repair.set_partition import Chosen, Setting

    return Setting.of([Chosen(**one) for one in value]).chosen()


def _agreed(value: Sequence[Any]) -> tuple[Agreed, ...]:
    """What a plan file says that the replicas agreed on.  Raises TypeError, ValueError."""
    if not value:
        return ()
    from waltzctl.engine.repair.reconcile import Agreed

    found = [Agreed(**one) for one in value]
    for one in found:
        numbers = [one.partition, one.clean_to, *(() if one.cut_after is None else (one.cut_after,))]
        for first, last in one.outvoted:
            numbers += [first, last]
        if any(type(number) is not int for number in numbers) or type(one.restore_end) is not bool:
            raise TypeError("agreements of the wrong kind")
    return tuple(replace(one, outvoted=tuple((first, last) for first, last in one.outvoted)) for one in found)


def plan_roll_back(command: str, path: Path, arguments: Arguments) -> Repair | None:
    """The plan to take back what was interrupted in the storage directory of a path; None where nothing was.  Read-only.

    It comes before whatever `command` is to do there: the files are neither old nor new, so that nothing else can be planned.
    Raises DamageError for a manifest that cannot be used, DiskReadError.
    """
    try:
        storage = resolve(path).storage
    except NotWaltzError:
        return None  # the planner says what it needs
    entries = () if storage is None else interrupted(storage)
    if storage is None or not entries:
        return None
    draft = Draft(command, path, storage, arguments, roll_back=True)
    for entry in entries:
        touched = partitions_of(entry)
        only = next(iter(touched)) if len(touched) == 1 else None
        draft.step("roll-back", storage, only, f"the repair {entry.id} was interrupted; this comes before {command}")
        draft.partitions |= touched
    return draft.finish()


def make(command: str, path: Path, arguments: Arguments) -> Repair:
    """Run the planner of a command, after `plan_roll_back`.

    Raises InvalidRequestError for an unknown command, and what the planner raises.
    """
    if (first := plan_roll_back(command, path, arguments)) is not None:
        return first
    if command == "rebuild-index":
        from waltzctl.engine.repair.rebuild_index import plan_rebuild_index

        return plan_rebuild_index(path, partitions=arguments.partitions, everything=arguments.everything)
    if command == "truncate" and arguments.partitions is not None and arguments.after is not None:
        from waltzctl.engine.repair.truncate import plan_truncate

        (partition,) = arguments.partitions
        loss = arguments.allow_data_loss
        return plan_truncate(path, partition=partition, after=arguments.after, allow_data_loss=loss)
    if command == "recover" and arguments.forget_losses:
        from waltzctl.engine.repair.recover_ledger import plan_forget

        return plan_forget(path, partitions=arguments.partitions)
    if command == "recover":
        from waltzctl.engine.repair.recover import plan_recover

        return plan_recover(
            path,
            partitions=arguments.partitions,
            replicas=tuple(map(Path, arguments.replicas)),
            allow_data_loss=arguments.allow_data_loss,
            agreed=arguments.agreed,
        )
    if command == "convert" and arguments.layout is not None:
        from waltzctl.engine.repair.convert import plan_convert

        return plan_convert(path, layout=arguments.layout)
    if command == "set-partition" and arguments.partitions is not None and arguments.settings:
        from waltzctl.engine.repair.set_partition import Setting, plan_set_partition

        (partition,) = arguments.partitions
        setting, loss = Setting.of(arguments.settings), arguments.allow_data_loss
        return plan_set_partition(path, partition=partition, setting=setting, allow_data_loss=loss)
    raise InvalidRequestError(f"{command!r} is not a command that makes plans")
