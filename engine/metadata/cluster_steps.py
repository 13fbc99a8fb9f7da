"""The steps of a change of a cluster's metadata, and whether they are only planned, or applied as agreed."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from waltzctl.engine.errors import StalePlanError

ATTEMPTS = 20
"""Attempts for a change that concurrent writers may defeat."""


class MetadataAction(enum.StrEnum):
    """A kind of change to the metadata."""

    ADD_NODE = "add-node"
    REMOVE_NODE = "remove-node"
    ASSIGN = "assign"
    UNASSIGN = "unassign"
    DELETE_CLUSTER = "delete-cluster"


@dataclass(frozen=True, slots=True)
class ClusterStep:
    """One step of a change; `node`, `partition`: None if it concerns all of them."""

    action: MetadataAction
    node: str | None
    partition: int | None
    reason: str
    loses_data: bool = False
    rests_on: str = ""
    """A hash of what the step depends on, if the other fields do not determine it: a changed one makes a plan stale."""


Steps = tuple[ClusterStep, ...]


@dataclass(frozen=True, slots=True)
class Mode:
    """Whether a change is planned or applied.

    `plan_only`: read and check, and write nothing, not even the lock.  `agreed`: the steps that the operator confirmed; if the
    change would take other steps by now, nothing is done and StalePlanError is raised.
    """

    plan_only: bool = False
    agreed: Steps | None = None

    def check(self, where: str, steps: Steps) -> None:
        """Raise StalePlanError if `steps` are not the agreed ones."""
        if self.agreed is not None and steps != self.agreed:
            raise StalePlanError(
                f"{where}: the metadata has changed since the plan was made; nothing was done",
                advice="look at it again",
            )


PLAN_ONLY, APPLY = Mode(plan_only=True), Mode()
