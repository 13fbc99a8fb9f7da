"""Findings: one place where something is wrong, with the catalogue's severity and remedy, and the message for a person.

| module               | findings about                                                                      |
|----------------------|-------------------------------------------------------------------------------------|
| `finding`            | the `Finding` value itself, and how one is made                                     |
| `remedies`           | the command line that is the next step                                              |
| `obstacles`          | what has to be mended first, before the remedy of another finding does anything     |
| `partition_losses`   | gaps, overlaps, a log that ends too early, missing files                            |
| `damaged_records`    | damage between records, torn tails, wrong data checksums                            |
| `headers`, `indexes` | headers of data and index files; index entries                                      |
| `control_files`      | the control file and its pairs of structs                                           |
| `directory_contents` | files that do not belong in a directory, or are missing from it                     |

This package chooses code, severity and message; the facts are found elsewhere, for a loss as a value of `engine.losses`.
"""

from __future__ import annotations

from waltzctl.engine.catalogue import CATALOGUE, Code, FindingKind, Severity
from waltzctl.engine.findings.damaged_records import BadData, Tail, Unreadable, damage_finding, tail_finding
from waltzctl.engine.findings.finding import Finding, SegmentFiles, Where, left_by, make_finding, status_of, worst
from waltzctl.engine.findings.partition_losses import counts_beyond_end, loss_finding, told_of_end, without_held
from waltzctl.engine.findings.remedies import MendedInCopy, Ran, remedy_for

__all__ = [
    "CATALOGUE",
    "BadData",
    "Code",
    "Finding",
    "FindingKind",
    "MendedInCopy",
    "Ran",
    "SegmentFiles",
    "Severity",
    "Tail",
    "Unreadable",
    "Where",
    "counts_beyond_end",
    "damage_finding",
    "left_by",
    "loss_finding",
    "make_finding",
    "remedy_for",
    "status_of",
    "tail_finding",
    "told_of_end",
    "without_held",
    "worst",
]
