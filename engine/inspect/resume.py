"""The state file of a verification that can be interrupted and resumed: the segments that are finished, and their reports."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.log import places
from waltzctl.engine.log.view import FileState

_SCHEMA = "waltzctl.verify-state/1"
_EVERY = 5.0
"""Seconds between two writes of the state file."""


def _finding_to_json(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code.value,
        "severity": finding.severity.value,
        "path": str(finding.path),
        "message": finding.message,
        "partition": finding.partition,
        "segment": finding.segment,
        "transaction_id": finding.transaction_id,
        "offset": finding.offset,
        "length": finding.length,
        "remedy": finding.remedy,
        "missing": finding.missing,
    }  # not what it waits for: that follows from the findings beside it


def _finding_from_json(value: dict[str, Any]) -> Finding:
    return Finding(
        Code(value["code"]),
        Severity(value["severity"]),
        Path(value["path"]),
        value["message"],
        value["partition"],
        value["segment"],
        value["transaction_id"],
        value["offset"],
        value["length"],
        value["remedy"],
        value.get("missing"),
    )


def _stamp(states: tuple[FileState | None, FileState | None]) -> list[list[int] | None]:
    return [None if one is None else [one.size, one.modified_ns, one.inode] for one in states]


class ResumeState:
    """The segments that earlier runs finished.  The state file is replaced by rename, every few seconds and at the end.

    `options`: those of this run; a sample without a seed continues with the seed in the state file.
    """

    def __init__(self, path: PurePath, options: VerifyOptions) -> None:
        """Read the state file if it exists.  Raises InvalidRequestError if it is not a state file, DiskReadError."""
        self.path = Path(os.path.realpath(path))  # a link stays one
        self.options = options.seeded()
        self._segments: dict[str, dict[str, Any]] = {}
        self._written = time.monotonic()
        try:
            self._read(_read_whole(self.path), options)
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidRequestError(
                f"{path}: not the state of an earlier verification", advice="name another file, or remove this one"
            ) from error

    def _read(self, data: bytes, asked: VerifyOptions) -> None:
        value = json.loads(data)
        if value["schema"] != _SCHEMA:
            raise ValueError(value["schema"])
        mode = value["mode"]
        continued = self.options
        if asked.sample is not None and asked.sample_seed is None:
            continued = replace(asked, sample_seed=mode.get("sample_seed"))
        if mode == _mode(continued) and not value["complete"]:
            self.options, self._segments = continued, dict(value["segments"])

    def recall(self, job: SegmentJob) -> SegmentReport | None:
        """The report on a segment that an earlier run finished, if its files are unchanged; None too if the entry is invalid."""
        try:
            return self._recall(job)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def _recall(self, job: SegmentJob) -> SegmentReport | None:
        known = self._segments.get(_key(job))
        states = (FileState.of(job.data_path), FileState.of(job.index_path))
        if known is None or known["files"] != _stamp(states) or known["circumstances"] != _circumstances(job):
            return None
        excess = known["index_excess"]
        return SegmentReport(
            job,
            known["begins"],
            known["next_id"],
            known["accounted"],
            known["uncertain"],
            known["records"],
            tuple(_finding_from_json(one) for one in known["findings"]),
            None if excess is None else _finding_from_json(excess),
            known["index_end"],
            known["last_id"],
            known["torn"],
            states=states,
        )

    def remember(self, report: SegmentReport) -> None:
        """Keep the report of a finished segment.

        A report with an uncertain end, while a process holds the lock, is not kept: its tail may turn out to be torn.
        """
        if report.gone or not report.finished or (report.uncertain and report.job.held):
            return
        self._segments[_key(report.job)] = {
            "files": _stamp(report.states),
            "circumstances": _circumstances(report.job),
            "begins": report.begins,
            "next_id": report.next_id,
            "accounted": report.accounted,
            "uncertain": report.uncertain,
            "records": report.records,
            "findings": [_finding_to_json(one) for one in report.findings],
            "index_excess": None if report.index_excess is None else _finding_to_json(report.index_excess),
            "index_end": report.index_end,
            "last_id": report.last_id,
            "torn": report.torn,
        }
        if time.monotonic() - self._written >= _EVERY:
            self.save(complete=False)

    def save(self, *, complete: bool) -> None:
        """Write the state file; after a `complete` run it has no segments, so that the next run starts over.

        Raises DiskWriteError.
        """
        value = {"schema": _SCHEMA, "mode": _mode(self.options), "complete": complete}
        value["segments"] = {} if complete else self._segments
        disk.write_whole(self.path, json.dumps(value).encode())
        self._written = time.monotonic()


def _mode(options: VerifyOptions) -> dict[str, Any]:
    """What decides which bytes of a segment are read, and how they are judged; a state file with another mode is ignored.

    Another version of the program may judge the same bytes otherwise: what it called whole would stay unseen.
    """
    asked = {"sample": options.sample, "sample_seed": options.sample_seed or 0, "quick": options.quick}
    # imported by name: the package names types of the rooms above this one
    return {"program": importlib.import_module("waltzctl").__version__, **asked}


def _read_whole(path: PurePath) -> bytes:
    state = FileState.of(path)
    if state is None and os.path.lexists(path):
        raise ValueError(f"{path} is no file")
    return disk.read_range(path, 0, 1 if state is None else state.size)


def _key(job: SegmentJob) -> str:
    return places.identity(job.data_path)


def _circumstances(job: SegmentJob) -> list[Any]:
    """The values that a segment's findings depend on besides its files."""
    return [job.last, str(job.cluster_key), job.partition, job.local_low_water_mark, job.durable_to, job.following]


def refuse_inside(path: PurePath, inspected: Iterable[PurePath]) -> None:
    """Raise InvalidRequestError if `path`, a file to be written, is inside of an inspected directory, which is only read."""
    place = os.path.realpath(path)
    for directory in inspected:
        if not places.on_this_machine(directory):
            continue
        root = os.path.realpath(directory)
        if os.path.commonpath([place, root]) == root:
            raise InvalidRequestError(
                f"{path}: lies inside {directory}, which is only read", advice="name a file elsewhere"
            )
