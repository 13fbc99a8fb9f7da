"""The offset of the stream of what replicas agree on (`engine.pipeline.agreement_stream`), which is the stream's whole state.

For each partition it has

- `decided`: the id up to which transactions were decided, and
- `seen`: for each replica an anchor of the last record that was compared, which tells whether the replica still has that record.

As JSON, where the anchors are numbered in the order of `places`, and `keys` has the key of each replica's cluster::

    {"version": 1, "partitions": {"0": {"decided": 41, "seen": {"0": ANCHOR}, "places": ["/data/node-1"]}}, "keys": {...}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from waltzctl.engine.pipeline.replica_stream import VERSION, of_checkpoint
from waltzctl.engine.spark.offsets import BEGINNING, Anchor, StreamOffset


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a partition was compared."""

    decided: int
    """The last id that was decided; -1: none."""
    seen: Mapping[str, Anchor]
    """The last record that was compared, by replica."""

    def of(self, place: str) -> Anchor:
        """The last record of a replica that was compared; `BEGINNING` for a new replica."""
        return self.seen.get(place, BEGINNING)


NOTHING = Reached(-1, {})
Offset = dict[int, Reached]
"""By partition."""


def to_json(partitions: Mapping[int, Reached], keys: Mapping[str, str]) -> dict[str, Any]:
    """The offset, in an order that depends on its value alone: Spark compares offsets by their text."""
    return {
        "version": VERSION,
        "partitions": {
            str(number): {
                "decided": one.decided,
                "seen": StreamOffset(dict(enumerate(one.seen[place] for place in sorted(one.seen)))).to_json()[
                    "partitions"
                ],
                "places": sorted(one.seen),
            }
            for number, one in sorted(partitions.items())
        },
        "keys": dict(sorted(keys.items())),
    }


def from_json(offset: Mapping[str, Any] | None) -> tuple[Offset, dict[str, str]]:
    """Partitions, and the keys of the replicas' clusters.  Raises InvalidRequestError."""
    found: Offset = {}
    for number, said in of_checkpoint(offset, "partitions").items():
        anchors = StreamOffset.from_json({"version": 1, "cluster_key": None, "partitions": said["seen"]}).partitions
        found[int(number)] = Reached(
            int(said["decided"]), {place: anchors[at] for at, place in enumerate(said["places"])}
        )
    return found, dict((offset or {}).get("keys", {}))
