"""The plan of a change of a cluster's metadata, as shown to the operator before it is applied."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from waltzctl.engine.metadata.cluster_steps import Steps


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """`command`: its name; `where`: the metadata's location; `steps`: from `waltzctl.engine.metadata.cluster_steps`."""

    command: str
    where: str
    steps: Steps

    @property
    def hash(self) -> str:
        """SHA-256 of command, location and steps, including what the steps depend on; hexadecimal."""
        content = [self.command, self.where, [asdict(step) for step in self.steps]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
