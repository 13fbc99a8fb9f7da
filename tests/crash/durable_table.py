"""The table of durable steps: which syncs of the engine are needed, and which two may not change places.

``syncs``: for each place that syncs (`tests.crash.sites`) a verdict.  *needed*: without it a crash of `workload` breaks a
promise.  *kept*: no crash of any workload breaks one, and it stays for the `reason` given.  *untried*: no workload comes there,
for the `reason` given.  ``pairs``: two that follow each other; *ordered*: the other way round a crash of `workload` breaks a
promise; *free*: none does, for the `reason` given.  ``removed``: syncs that were found needless and taken out, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PATH = Path(__file__).with_name("durable_steps.json")
ARROW = " -> "
Entry = dict[str, str]


@dataclass
class Table:
    """See the module."""

    syncs: dict[str, Entry] = field(default_factory=dict)
    pairs: dict[str, Entry] = field(default_factory=dict)
    removed: dict[str, Entry] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Table:
        """As it stands in the tree."""
        return cls(**json.loads(PATH.read_text())) if PATH.exists() else cls()

    def save(self) -> None:
        """Write it back, sorted."""
        body = {name: dict(sorted(getattr(self, name).items())) for name in ("syncs", "pairs", "removed")}
        PATH.write_text(json.dumps(body, indent=1) + "\n")

    @property
    def needed(self) -> frozenset[str | tuple[str, str]]:
        """Syncs and pairs that a workload showed to matter."""
        found: set[str | tuple[str, str]] = {name for name, entry in self.syncs.items() if entry["verdict"] == "needed"}
        for name, entry in self.pairs.items():
            if entry["verdict"] == "ordered":
                first, second = name.split(ARROW)
                found.add((first, second))
        return frozenset(found)

    def add(self, workload: str, syncs: Mapping[str, str | None], pairs: Mapping[tuple[str, str], str | None]) -> None:
        """Take in what a workload showed.  What one showed to matter stays; a reason that somebody wrote stays, too."""
        for name, message in syncs.items():
            if message is not None:
                self.syncs[name] = {"verdict": "needed", "workload": workload}
            elif name not in self.syncs or self.syncs[name]["verdict"] == "untried":
                self.syncs[name] = {"verdict": "needless", "reason": ""}
        for pair, message in pairs.items():
            name = ARROW.join(pair)
            if message is not None:
                self.pairs[name] = {"verdict": "ordered", "workload": workload}
            elif self.pairs.get(name, {}).get("verdict") != "ordered":
                self.pairs[name] = {"verdict": "free", "reason": why_free(*pair)}


_SETTLING = ("settle_", "StorageDirectory.open ", "_open_file ")
_DERIVED = ("_index", "mend ", "create_segment ")


def why_free(first: str, second: str) -> str:
    """The reason for which two steps that broke no promise the other way round may well do that."""
    if first == second:
        return "one for each file or directory of several, in any order"
    if all(any(word in one for word in _SETTLING) for one in (first, second)):
        return "both make durable what an earlier process left, before anything of it is shown"
    if any(word in one for one in (first, second) for word in _DERIVED):
        return "an index is derived, and a new segment is empty: what is missing of either is made again"
    if "journal.py record " in first + second:
        return "the journal's line only counts with the manifest that follows it"
    return "neither is promised, nor acted upon, before both are durable"
