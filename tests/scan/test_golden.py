"""Every record that the released Waltz wrote, value by value."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.golden import GOLDEN, needs_golden
from tests.scan.oracle import split
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.scan.scanner import scan_records

EXPECTED = sorted((GOLDEN / "expected" / "cluster-a").glob("*/partition-*.jsonl")) if GOLDEN else []


@pytest.mark.turns(10)
@needs_golden
@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
def test_values_of_the_release(compiled: bool) -> None:
    assert GOLDEN is not None
    for listing in EXPECTED:
        segments: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in listing.read_text().splitlines():
            entry = json.loads(line)
            segments[entry["segment"]].append(entry)
        directory = GOLDEN / "cluster-a" / listing.parent.name / listing.stem.removeprefix("partition-")
        for name, entries in segments.items():
            with FileSource(directory / name) as source:
                first = int(Path(name).stem)
                rows, damages = split(scan_records(source, first_transaction_id=first, compiled=compiled))
            assert damages == []
            assert [(*row[:2], row[2] % 2**64, row[3] % 2**64, *row[4:]) for row in rows] == [
                (
                    entry["offset"],
                    entry["transactionId"],
                    int(entry["reqIdMsb"], 16),
                    int(entry["reqIdLsb"], 16),
                    entry["header"],
                    entry["dataLength"],
                    int(entry["dataCrc32"], 16),
                    int(entry["recordCrc32"], 16),
                    True,
                )
                for entry in entries
            ]
