"""The objects that commands print: their names, keys and the form of their values.

This file is the contract with scripts (schemas: ``docs/schemas``).  Keys are only ever added, at the end; a missing value is
None.  A tuple holds several values, a list holds objects; JSON shows both as arrays.  Checksums are eight lower-case hex
digits, times RFC 3339 in UTC with milliseconds, bytes base64 under a key that ends in ``_b64``; identifiers, offsets and sizes
are numbers (beyond 2^53 some readers of JSON round them).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.engine.columns.column import Object
from waltzctl.engine.columns.finding import FINDING
from waltzctl.engine.columns.plan import PLAN
from waltzctl.exit_status import ExitStatus

if TYPE_CHECKING:
    from waltzctl.engine.durable.manifest import QuarantineEntry
    from waltzctl.engine.errors import WaltzError
    from waltzctl.engine.findings import Finding
    from waltzctl.engine.inspect.outcome import VerifySummary
    from waltzctl.engine.inspect.status import StorageStatus
    from waltzctl.engine.repair.plan import Plan
    from waltzctl.engine.repair.salvage import SalvageReport
    from waltzctl.engine.repair.salvage_control import FoundControl
    from waltzctl.engine.repair.salvage_control_file import SalvagedControl
    from waltzctl.engine.repair.salvage_selection import Place
    from waltzctl.engine.storage.append import AppendResult
    from waltzctl.engine.storage.directory import ClusterResult


def named(name: str, keys: Object) -> Object:
    """An object of its own, with `schema` and `type` in front."""
    return {"schema": f"waltzctl.{name}/1", "type": name, **keys}


def path_text(path: Path | str | None) -> str | None:
    """A path (or the URL of a node) as it was given; bytes that are no UTF-8 stay as lone surrogates."""
    return None if path is None else os.fspath(path)


def error_object(error: WaltzError) -> Object:
    """**error**: why a command ended without its answer.  `findings`: what it found in its way."""
    status = ExitStatus.from_label(error.status)
    return named(
        "error",
        {
            "error": status.label,
            "exit_status": int(status),
            "message": error.message,
            "advice": error.advice,
            "findings": [FINDING.keys(finding) for finding in getattr(error, "findings", ())],
        },
    )


def verify_summary_object(summary: VerifySummary) -> Object:
    """**verify-summary**."""
    return named(
        "verify-summary",
        {
            "status": summary.status,
            "exit_status": int(ExitStatus.from_label(summary.exit_status_name)),
            "partitions": summary.partitions,
            "segments": summary.segments,
            "records": summary.records,
            "bytes": summary.bytes,
            "damage": summary.damage,
            "repairable": summary.repairable,
            "notes": summary.notes,
            "elapsed_seconds": round(summary.elapsed_seconds, 6),
            "modified": False,
            "complete": summary.complete,
            "manifest": summary.manifest,
            "released_starts": summary.released_starts,
        },
    )


def plan_object(plan: Plan) -> Object:
    """**plan**."""
    return PLAN.shown(plan)


def result_object(
    *,
    plan_hash: str,
    applied: bool,
    undo_id: str | None,
    quarantine: Path | None,
    status: str,
    exit_status: ExitStatus,
    findings: Iterable[Finding] = (),
    bytes_freed: int | None = None,
) -> Object:
    """**result**.  `findings`: what is still wrong afterwards; `bytes_freed`, where something was pruned, what came free."""
    return named(
        "result",
        {
            "plan_hash": plan_hash,
            "applied": applied,
            "undo_id": undo_id,
            "quarantine": path_text(quarantine),
            "status": status,
            "exit_status": int(exit_status),
            "findings": [FINDING.keys(finding) for finding in findings],
            **({} if bytes_freed is None else {"bytes_freed": bytes_freed}),
        },
    )


def cluster_object(result: ClusterResult) -> Object:
    """**cluster**.  `opened_by`: the programs that can open directories of that layout."""
    return named(
        "cluster",
        {
            "cluster_key": str(result.cluster_key),
            "num_partitions": result.num_partitions,
            "layout": result.layout.value,
            "directories": [
                {"path": path_text(directory.path), "assigned": tuple(directory.assigned)}
                for directory in result.directories
            ],
            "opened_by": tuple(result.layout.opened_by),
        },
    )


def append_result_object(result: AppendResult) -> Object:
    """**append-result**.  `bytes`: what the records take on disk; the other keys: what was put right before the first one."""
    return named(
        "append-result",
        {
            "partition": result.partition,
            "first_transaction_id": result.first_transaction_id,
            "last_transaction_id": result.last_transaction_id,
            "records": result.records,
            "bytes": result.bytes,
            "mended": [FINDING.keys(finding) for finding in result.mended],
            "undo_ids": result.undo_ids,
            "taken_back": result.taken_back,
        },
    )


def undo_entry_object(entry: QuarantineEntry) -> Object:
    """**undo-entry** (undo --list): what a repair kept and where it stands."""
    return named(
        "undo-entry",
        {
            "id": entry.id,
            "command": entry.command,
            "arguments": tuple(entry.arguments),
            "created": entry.created,
            "state": entry.state.value,
            "plan_hash": entry.plan_hash,
            "quarantine": path_text(entry.path),
            "files": (*(file.path for file in entry.files), *(move.path for move in entry.moves)),
        },
    )


def status_object(status: StorageStatus) -> Object:
    """**status**.  `findings`: what the healths stand for, the directory's own first."""
    return named(
        "status",
        {
            "path": path_text(status.path),
            "cluster_key": None if status.cluster_key is None else str(status.cluster_key),
            "layout": None if status.layout is None else status.layout.value,
            "num_partitions": status.num_partitions,
            "locked_by": status.locked_by,
            "partitions": [
                {
                    "partition": one.partition,
                    "assigned": one.assigned,
                    "readable": one.readable,
                    "writable": one.writable,
                    "session_id": one.session_id,
                    "low_water_mark": one.low_water_mark,
                    "local_low_water_mark": one.local_low_water_mark,
                    "segments": one.segments,
                    "bytes": one.bytes,
                    "records": one.records,
                    "first_transaction_id": one.first_transaction_id,
                    "last_transaction_id": one.last_transaction_id,
                    "last_written": one.last_written,
                    "health": None if one.health is None else str(one.health),
                }
                for one in status.partitions
            ],
            "findings": [
                FINDING.keys(finding)
                for finding in (*status.findings, *(found for one in status.partitions for found in one.findings))
            ],
        },
    )


def _place_keys(place: Place) -> Object:
    return {"path": path_text(place.path), "offset": place.offset, "size": place.size}


def _control_keys(found: FoundControl) -> Object:
    from waltzctl.formats.adapters import format_time

    header = found.control.header
    return {
        "path": path_text(found.path),
        "offset": found.offset,
        "layout": found.control.layout.value,
        "created": format_time(header.created),
        "num_partitions": header.num_partitions,
        "structs": found.structs,
        "used": found.used,
        "reason": found.reason,
    }


def salvaged_control_object(found: SalvagedControl) -> Object:
    """**salvaged-control** (salvage --control).  `findings`: what verify says of the directory then, without notes."""
    return named(
        "salvaged-control",
        {
            "path": path_text(found.path),
            "cluster_key": str(found.cluster_key),
            "num_partitions": found.num_partitions,
            "layout": found.layout.value,
            "exit_status": int(ExitStatus.from_label(found.exit_status_name)),
            "sources": found.sources,
            "bytes": found.bytes,
            "marks_unknown": tuple(found.marks_unknown),
            "controls": [_control_keys(one) for one in found.controls],
            "findings": [FINDING.keys(finding) for finding in found.findings],
        },
    )


def salvage_report_object(report: SalvageReport) -> Object:
    """**salvage-report**.  found = written + duplicates + superseded + doubtful_records + elsewhere."""
    return named(
        "salvage-report",
        {
            "path": path_text(report.path),
            "cluster_key": str(report.cluster_key),
            "num_partitions": report.num_partitions,
            "num_partitions_from": report.num_partitions_from.value,
            "layout": report.layout.value,
            "exit_status": int(ExitStatus.from_label(report.exit_status_name)),
            "sources": report.sources,
            "bytes": report.bytes,
            "headers": report.headers,
            "found": report.found,
            "written": report.written,
            "duplicates": report.duplicates,
            "superseded": report.superseded,
            "doubtful_records": report.doubtful_records,
            "elsewhere": report.elsewhere,
            "missing": report.missing,
            "partitions": [
                {
                    "partition": one.partition,
                    "first_transaction_id": one.first_transaction_id if one.records else None,
                    "last_transaction_id": one.last_transaction_id if one.records else None,
                    "records": one.records,
                    "segments": one.segments,
                    "bytes": one.bytes,
                    "missing": [{"first": gap.first, "last": gap.last} for gap in one.missing],
                    "witnesses": [
                        {"witness": str(name), "records": records} for name, records in one.by_witness.items()
                    ],
                    "session_id": one.marks[0],
                    "low_water_mark": one.marks[1],
                    "local_low_water_mark": one.marks[2],
                    "acknowledged_missing": [
                        {"first": gap.first, "last": gap.last} for gap in (one.acknowledged_missing,) if gap is not None
                    ],
                }
                for one in report.partitions
            ],
            "conflicts": [
                {
                    "partition": one.partition,
                    "transaction_id": one.transaction_id,
                    "kept": _place_keys(one.kept),
                    "others": [_place_keys(other) for other in one.others],
                    "reason": one.reason,
                }
                for one in report.conflicts
            ],
            "doubtful": [
                {
                    "path": path_text(one.path),
                    "offset": one.offset,
                    "length": one.length,
                    "first_transaction_id": one.first_transaction_id,
                    "last_transaction_id": one.last_transaction_id,
                    "records": one.records,
                    "reason": one.reason,
                }
                for one in report.doubtful
            ],
            "unreadable": [
                {"path": path_text(one.path), "offset": one.offset, "length": one.length} for one in report.unreadable
            ],
            "findings": [FINDING.keys(finding) for finding in report.findings],
            "acknowledged_missing": report.acknowledged_missing,
            "marks_unknown": tuple(report.marks_unknown),
            "controls": [_control_keys(one) for one in report.controls],
        },
    )
