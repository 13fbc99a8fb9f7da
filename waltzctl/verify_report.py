"""The output of a verification: findings as they are found, and the summary at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.values import counted, human_bytes, human_duration, verdict

if TYPE_CHECKING:
    from waltzctl.engine.findings import Finding
    from waltzctl.engine.inspect.verification import VerifySummary

REMEDIES = 20
"""Distinct remedies that are listed at the end, at most; every finding has its own."""

_MANIFESTS = {
    "written": "The manifest was written.",
    "not-written": "No manifest was written: that takes a clean directory, read to its end.",
    "matches": "The manifest matches.",
    "differs": "The manifest does not match.",
    "not-compared": "It was not compared with its manifest to the end.",
    "not-believed": "The manifest proves nothing.",
}
"""The sentence about the manifest, by its state in the summary."""


class VerifyReport:
    """Shows findings as they are found, and the summary at the end, which determines the exit status."""

    def __init__(self, console: Console, *, from_outside: bool = False) -> None:
        from waltzctl.engine.inspect.verification import Tally

        self._console = console
        self._from_outside = from_outside
        self._remedies: dict[str, None] = {}
        self._tally = Tally()
        self.status = ExitStatus.CLEAN

    def show(self, seen: Finding | VerifySummary) -> None:
        """Show one item of the stream."""
        from waltzctl.engine.columns.finding_columns import FINDING
        from waltzctl.engine.findings import Finding
        from waltzctl.objects.verify_objects import VERIFY_SUMMARY

        silent = self._console.quiet and self._console.for_people
        if isinstance(seen, Finding):
            self._tally.add(seen)
            self._console.known = ExitStatus.from_label(self._tally.exit_status_name)
            if seen.remedy is not None and len(self._remedies) <= REMEDIES:
                self._remedies[seen.remedy] = None
            if not (silent and seen.severity == "note"):
                self._console.emit(FINDING.shown(seen), flush=True)
            return
        self._console.known = self.status = ExitStatus.from_label(seen.exit_status_name)
        if not (silent and self.status is ExitStatus.CLEAN):
            self._console.emit(VERIFY_SUMMARY.shown(seen), flush=True)
            self._console.sentence(_conclusion(seen, list(self._remedies), self._from_outside))


def _conclusion(summary: VerifySummary, remedies: list[str], from_outside: bool) -> str:
    word = "INCOMPLETE" if summary.status == "clean" and not summary.complete else verdict(summary.status)
    lines = []
    if remedies:
        lines += ["What mends it:", *(f"  {remedy}" for remedy in remedies[:REMEDIES])]
        if len(remedies) > REMEDIES:
            lines.append("  and others; each finding names its own")
    counts = [
        counted(number, noun)
        for number, noun in (
            (summary.damage, "damage finding"),
            (summary.repairable, "repairable finding"),
            (summary.notes, "note"),
        )
        if number
    ]
    extent = counted(summary.partitions, "partition") if from_outside else counted(summary.segments, "segment")
    read = f"{extent} ({counted(summary.records, 'record')}, {human_bytes(summary.bytes)}"
    seen = f"{', '.join(counts) or 'no findings'} in {read}, {human_duration(summary.elapsed_seconds)})."
    partly = "" if summary.complete else " Not everything was read."
    vouched = "" if summary.manifest is None else f" {_MANIFESTS[summary.manifest]}"
    outside = " Seen from outside: files, indexes and record checksums were not." if from_outside else ""
    starts = {True: " Release 0.13.2 starts on it.", False: " Release 0.13.2 does not start on it.", None: ""}
    release = starts[summary.released_starts]
    lines.append(f"{word}  {seen}{partly}{outside}{vouched}{release} Nothing was modified.")
    return "\n".join(lines)
