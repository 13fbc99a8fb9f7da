"""The planner of each command, and loading a plan file: the plan is made again and compared with the file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

from waltzctl.engine.columns.plan_columns import PLAN
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import InvalidRequestError, NotWaltzError, StalePlanError
from waltzctl.engine.log.places import place
from waltzctl.engine.repair.arguments import PAGES_RECOVER, Arguments, PartitionSetting, arguments_of
from waltzctl.engine.repair.convert import plan_convert
from waltzctl.engine.repair.plan import Repair, plan_roll_back
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.recover_journal import plan_forget_journal
from waltzctl.engine.repair.recover_ledger import plan_forget
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.truncate import plan_truncate

if TYPE_CHECKING:
    from waltzctl.engine.repair.recover_pages import StoreRepair

AnyRepair: TypeAlias = "Repair | StoreRepair"
Planner: TypeAlias = "Callable[[PurePath, Arguments], AnyRepair | None]"
"""Makes the plan of one command; None when the arguments are not possible for that command."""
_LIMIT = 64 << 20


def _rebuild_index(path: PurePath, arguments: Arguments) -> Repair:
    return plan_rebuild_index(path, partitions=arguments.partitions, everything=arguments.everything)


def _single_partition(arguments: Arguments) -> int | None:
    """The partition of a plan for exactly one partition; None for any other number of partitions."""
    partitions = arguments.partitions or ()
    return partitions[0] if len(partitions) == 1 else None


def _truncate(path: PurePath, arguments: Arguments) -> Repair | None:
    partition = _single_partition(arguments)
    if partition is None or arguments.after is None:
        return None
    return plan_truncate(path, partition=partition, after=arguments.after, allow_data_loss=arguments.allow_data_loss)


def _recover(path: PurePath, arguments: Arguments) -> Repair:
    if arguments.forget_journal:
        return plan_forget_journal(path)
    if arguments.forget_losses:
        return plan_forget(path, partitions=arguments.partitions)
    return plan_recover(
        path,
        partitions=arguments.partitions,
        replicas=tuple(map(place, arguments.replicas)),
        allow_data_loss=arguments.allow_data_loss,
        agreed=arguments.agreed,
    )


def _convert(path: PurePath, arguments: Arguments) -> Repair | None:
    return None if arguments.layout is None else plan_convert(path, layout=arguments.layout)


def _set_partition(path: PurePath, arguments: Arguments) -> Repair | None:
    partition = _single_partition(arguments)
    if partition is None or not arguments.settings:
        return None
    setting = PartitionSetting.of(arguments.settings)
    return plan_set_partition(path, partition=partition, setting=setting, allow_data_loss=arguments.allow_data_loss)


def _recover_pages(path: PurePath, arguments: Arguments) -> StoreRepair | None:
    from waltzctl.engine.repair.recover_pages import plan_recover_pages

    return None if arguments.mode is None else plan_recover_pages(path, mode=arguments.mode)


PLANNERS: Mapping[str, Planner] = {
    "rebuild-index": _rebuild_index,
    "truncate": _truncate,
    "recover": _recover,
    "convert": _convert,
    "set-partition": _set_partition,
    PAGES_RECOVER: _recover_pages,
}


def make(command: str, path: PurePath, arguments: Arguments) -> AnyRepair:
    """Run the planner of a command, after `plan_roll_back`.

    Raises InvalidRequestError for an unknown command, and what the planner raises.
    """
    if (first := plan_roll_back(command, path, arguments)) is not None:
        return first
    planner = PLANNERS.get(command)
    repair = None if planner is None else planner(path, arguments)
    if repair is None:
        raise InvalidRequestError(f"{command!r} is not a command that makes plans")
    return repair


def load_plan(file: PurePath) -> AnyRepair:
    """Make a plan file's plan again from its path and arguments, and compare hash and steps with the file.

    Raises InvalidRequestError for a file that is not a plan, StalePlanError when hash or steps differ, and what the planner
    raises.
    """
    try:
        body = json.loads(disk.read_range(file, 0, _LIMIT))
        if body["schema"] != PLAN.identity or body["type"] != PLAN.name:
            raise ValueError(f"schema {body['schema']!r}")
        wanted, command, path = (_text(body[key]) for key in ("hash", "command", "path"))
        arguments, steps = arguments_of(body["arguments"]), body["steps"]
    except FileNotFoundError as error:
        raise InvalidRequestError(f"{file}: no such file") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidRequestError(
            f"{file}: not a plan: {error}", advice="write one with --dry-run --format json"
        ) from error
    try:
        repair = make(command, Path(path), arguments)
    except NotWaltzError as error:
        if not os.path.isabs(path):
            error.advice = f"{file} names its path as it was given: go to where the plan was made, or make it again"
        raise
    if repair.plan.hash != wanted:
        raise StalePlanError(
            f"{file}: the files of {path} are no longer those that the plan was made for; nothing was modified",
            # what the replicas agreed on, no --dry-run of one of them finds out
            advice="compare the replicas again with --plan-dir"
            if arguments.agreed
            else "make the plan again with --dry-run",
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
