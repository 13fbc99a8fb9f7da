"""The `Finding` value: one place where something is wrong, with the catalogue's severity and remedy."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import PurePath

from waltzctl.engine.catalogue import CATALOGUE, Code, Severity
from waltzctl.engine.findings.remedies import Ran, remedy_for


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where something is wrong.

    ================ ============================================================================================
    `path`           the file or directory, or the URL of a node
    `segment`        the first transaction id in the segment's file name
    `offset`         in bytes from the start of the file
    `length`         in bytes
    `remedy`         a command line; None where a person must decide
    `missing`        number of transactions missing from `transaction_id` on, without those that another finding
                     counts; None where the number is unknown or none is missing
    `waits_for`      the code of the finding that has to be mended first (`engine.findings.obstacles`); `remedy` is
                     that one's
    ================ ============================================================================================

    An attribute that does not apply is None.
    """

    code: Code
    severity: Severity
    path: PurePath | str
    message: str
    partition: int | None = None
    segment: int | None = None
    transaction_id: int | None = None
    offset: int | None = None
    length: int | None = None
    remedy: str | None = None
    missing: int | None = None
    waits_for: Code | None = None


def make_finding(
    code: Code,
    path: PurePath | str,
    message: str,
    *,
    severity: Severity | None = None,
    storage_directory: PurePath | None = None,
    partition: int | None = None,
    segment: int | None = None,
    transaction_id: int | None = None,
    offset: int | None = None,
    length: int | None = None,
    ran: Ran | None = None,
    missing: int | None = None,
) -> Finding:
    """A finding with the catalogue's severity, unless `severity` is given, and the catalogue's remedy.

    `ran`: the command after which the finding remains; see `remedy_for`.
    """
    severity = severity or CATALOGUE[code].severity
    return Finding(
        code,
        severity,
        path,
        message,
        partition,
        segment,
        transaction_id,
        offset,
        length,
        remedy_for(code, storage_directory, partition, severity, ran),
        missing,
    )


def left_by(finding: Finding, storage_directory: PurePath, ran: Ran, mended: Collection[int | None] = ()) -> Finding:
    """`finding`, which remained after the command `ran`, with the next step as its remedy.

    `mended`: the partitions that the command changed.  There a finding whose kind is marked `again` keeps its remedy.
    """
    code, severity = finding.code, finding.severity
    if finding.waits_for is not None:
        code, severity = finding.waits_for, CATALOGUE[finding.waits_for].severity
    if CATALOGUE[code].again and finding.partition in mended:
        return finding
    remedy = remedy_for(code, storage_directory, finding.partition, severity, ran)
    return finding if finding.remedy is None else replace(finding, remedy=remedy)


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The gravest severity; None when there is no finding."""
    order = (Severity.DAMAGE, Severity.REPAIRABLE, Severity.NOTE)
    present = {finding.severity for finding in findings}
    return next((severity for severity in order if severity in present), None)


def status_of(severity: Severity | None) -> str:
    """The status word of a summary whose gravest severity is this one: ``damaged``, ``repairable``, else ``clean``."""
    return {Severity.DAMAGE: "damaged", Severity.REPAIRABLE: "repairable"}.get(severity or Severity.NOTE, "clean")


@dataclass(frozen=True, slots=True)
class Where:
    """The partition directory that a finding is about; `storage` is the storage directory that remedies name."""

    storage: PurePath | None
    partition: int | None
    directory: PurePath


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The two files of the segment that a finding is about; `segment` is the first transaction id in their names."""

    where: Where
    segment: int
    data_path: PurePath
    index_path: PurePath

    def finding(
        self,
        code: Code,
        message: str,
        *,
        index: bool = False,
        severity: Severity | None = None,
        transaction_id: int | None = None,
        offset: int | None = None,
        length: int | None = None,
        missing: int | None = None,
    ) -> Finding:
        """A finding about the data file, or with `index` about the index file."""
        return make_finding(
            code,
            self.index_path if index else self.data_path,
            message,
            severity=severity,
            storage_directory=self.where.storage,
            partition=self.where.partition,
            segment=self.segment,
            transaction_id=transaction_id,
            offset=offset,
            length=length,
            missing=missing,
        )
