"""The procedure of every change of a running node or of a cluster: plan, show, confirm, apply, report.

`waltzctl.repair_procedure` is the procedure for files, whose changes can be undone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from waltzctl.console import Console
from waltzctl.event_loop import run_async
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import ManualSection
from waltzctl.repair_procedure import Switches, ask
from waltzctl.values import counted

if TYPE_CHECKING:
    from waltzctl.engine.columns.column import Object
    from waltzctl.engine.findings import Finding


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of a change: what was done, as a sentence, and the findings of the check after it."""

    done: str
    findings: tuple[Finding, ...] = ()

    @property
    def status(self) -> ExitStatus:
        """The exit status."""
        return ExitStatus.DAMAGED if self.findings else ExitStatus.CLEAN


CLUSTER_SAFETY = ManualSection(
    "SAFETY",
    (
        (
            "What changes the metadata shows its plan first. On a terminal it is done after the partition's number, or yes, has"
            " been typed; elsewhere it needs --yes. --dry-run shows the plan and writes nothing, not even a lock. A change is one"
            " transaction: it is made whole or not at all, and not if the metadata has changed by the time of the confirmation"
            " (13). What would leave fewer than a quorum of a partition's last replicas is refused (13)."
        ),
    ),
)

NODE_SAFETY = ManualSection(
    "SAFETY",
    (
        (
            "What changes a node shows its plan first. On a terminal it is done after the partition's number has been typed;"
            " elsewhere it needs --yes. --dry-run shows the plan and changes nothing. If the node has changed by the time of"
            " the confirmation, nothing is done (13). Afterwards the node is asked whether it is as it should be."
        ),
        "A node keeps no copy of what is removed from it: there is no undo over the network.",
    ),
)


class ChangeStep(Protocol):
    """One step of a plan."""

    @property
    def partition(self) -> int | None:
        """The partition that the step changes; None: none."""

    @property
    def loses_data(self) -> bool:
        """Whether the step loses data."""


class ChangePlan(Protocol):
    """A plan of changes."""

    @property
    def hash(self) -> str:
        """A hash of the plan's contents."""

    @property
    def steps(self) -> Sequence[ChangeStep]:
        """The steps, in the order of their execution."""


P = TypeVar("P", bound=ChangePlan)


def change(
    console: Console,
    switches: Switches,
    make: Callable[[], Awaitable[P]],
    apply: Callable[[P], Awaitable[Changed]],
    shown_as: Callable[[P], Object],
    left: Callable[[], ExitStatus] = lambda: ExitStatus.CLEAN,
) -> ExitStatus:
    """Plan with `make`, and `apply` the plan if the user agrees.

    Both open their own connections, so that none is idle while the user is asked.  `left`: called once the plan is made; returns
    the exit status for what the plan cannot cover, which is the command's status unless the change has a worse one.  Raises
    RefusedError without the user's agreement, StalePlanError, and what the two raise.
    """

    async def plan_now() -> P:
        return await make()

    async def apply_now() -> Changed:
        return await apply(plan)

    plan = run_async(plan_now())
    shown = shown_as(plan)
    console.detail(f"plan {plan.hash}: {in_words(plan)}")
    if switches.dry_run:
        console.emit(shown, flush=True)
        console.sentence(f"PLANNED  {in_words(plan)} Nothing was modified.")
        return left()
    if not plan.steps:
        return _nothing_to_do(console, plan, shown, left())
    if switches.yes:
        if console.for_people and not console.quiet:
            console.emit(shown, flush=True)
    else:
        ask(console, shown, {step.partition for step in plan.steps if step.partition is not None})
    changed = run_async(apply_now())
    status = left() if changed.status is ExitStatus.CLEAN else changed.status
    _report(console, plan, changed, status)
    if changed.findings:
        console.sentence(f"DAMAGE FOUND  {changed.done}")
    else:
        console.success(f"DONE  {changed.done}")
    return status


def _nothing_to_do(console: Console, plan: ChangePlan, shown: Object, status: ExitStatus) -> ExitStatus:
    """Report that there is no step; where something remains undone (`status`), show the plan, which names it."""
    if status is not ExitStatus.CLEAN and console.for_people:
        console.emit(shown, flush=True)
    _report(console, plan, None, status)
    if status is ExitStatus.CLEAN:
        console.success("NOTHING TO DO. Nothing was modified.")
    else:
        console.sentence("NOTHING THAT CAN BE DONE NOW. Nothing was modified.")
    return status


def _report(console: Console, plan: ChangePlan, changed: Changed | None, status: ExitStatus) -> None:
    from waltzctl.objects.repair_objects import result_object

    shown = result_object(
        plan_hash=plan.hash,
        applied=changed is not None,
        undo_id=None,
        quarantine=None,
        status=status.label,
        exit_status=status,
        findings=() if changed is None else changed.findings,
    )
    console.emit_result(shown, status)


def in_words(plan: ChangePlan) -> str:
    """A plan as a sentence."""
    losing = sum(step.loses_data for step in plan.steps)
    if not plan.steps:
        return "No step."
    return counted(len(plan.steps), "step") + (f", {losing} of them lose data." if losing else ".")
