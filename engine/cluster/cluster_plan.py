"""What is to be changed in a cluster's metadata, as it is shown before it is done."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from waltzctl.engine.metadata.cluster_changes import Steps


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """`command`: the action; `where`: the metadata; `steps`: what `waltzctl.engine.metadata.cluster_changes` would do."""

    command: str
    where: str
    steps: Steps

    @property
    def hash(self) -> str:
        """Another one where the steps, or what they rest on, are others."""
        content = [self.command, self.where, [asdict(step) for step in self.steps]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
