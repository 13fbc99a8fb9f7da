"""pages recover: the plan of `engine.pages.page_recovery` as a `Plan`, like that of every other repair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath

from waltzctl.engine.durable.edits import Edit
from waltzctl.engine.log.places import local
from waltzctl.engine.pages.page_recovery import PageRecovery, plan_recovery
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.repair.arguments import PAGES_RECOVER, Arguments
from waltzctl.engine.repair.plan import Plan, Step


@dataclass(frozen=True, slots=True)
class StoreRepair:
    """A plan for a page store, with the recovery that carries it out."""

    plan: Plan
    recovery: PageRecovery

    @property
    def storage(self) -> Path:
        """The store's directory."""
        return self.recovery.path

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The planned changes to the store's files."""
        return self.recovery.edits

    @property
    def roll_back(self) -> bool:
        """Whether the only step is to take back an interrupted repair."""
        return self.recovery.roll_back


def plan_recover_pages(path: PurePath, *, mode: RecoveryMode) -> StoreRepair:
    """Plan to recover a page store in place, or to roll back its interrupted repair.  Raises what `plan_recovery` raises."""
    recovery = plan_recovery(local(path), mode)
    steps = tuple(
        Step(step.action, step.path, None, None, None, step.offset, step.length, step.reason, step.loses_data)
        for step in recovery.steps
    )
    return StoreRepair(Plan(recovery.hash, PAGES_RECOVER, path, Arguments(mode=mode), steps, ()), recovery)
