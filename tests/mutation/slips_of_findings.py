"""Slips in findings, in the cells of tables, and in records larger than a scan's buffer."""

from __future__ import annotations

from tests.mutation.trial import Slip

FINDINGS: tuple[Slip, ...] = (
    Slip(
        "engine/findings/__init__.py",
        '{word for word in rest if word.startswith("--")} <= self.options',
        '{word for word in rest if word.startswith("--")} & self.options',
        ("tests/inspect/test_finding_values.py",),
        "a command that was run without options is told to be run again",
    ),
    Slip(
        "engine/findings/headers.py",
        "return cls(len(reserved) - len(rest), rest[0]) if rest else None",
        "return cls(len(rest), rest[0]) if rest else None",
        ("tests/inspect/test_finding_values.py",),
        "a reserved byte is told at another place",
    ),
    Slip(
        "engine/findings/control_files.py",
        "        if partitions is None or info.partition in partitions:",
        "        if not partitions or info.partition in partitions:",
        ("tests/inspect/test_finding_values.py",),
        "where no partition is meant the structs of all are told",
    ),
    Slip(
        "engine/findings/control_files.py",
        "    if info.stored_partition != info.partition:\n        yield",
        "    if info.stored_partition > info.partition:\n        yield",
        ("tests/inspect/test_finding_values.py",),
        "an info that stores a smaller id passes for right",
    ),
    Slip(
        "engine/columns/column_kinds.py",
        '    return f"{checksum & 0xFFFFFFFF:08x}"',
        '    return f"{checksum:08x}"',
        ("tests/columns/test_cells.py",),
        "a signed checksum has a minus sign for a digit",
    ),
    Slip(
        "engine/columns/column_kinds.py",
        "    return tuple(known[name] for name in names)",
        "    return tuple(one for name, one in known.items() if name in names)",
        ("tests/columns/test_cells.py",),
        "columns are not in the order in which they are named",
    ),
    Slip(
        "engine/columns/control_columns.py",
        "    return _marks(shown, 1)",
        "    return _marks(shown, 0)",
        ("tests/columns/test_cells.py",),
        "the second struct of a pair is shown as the first",
    ),
    Slip(
        "engine/columns/control_columns.py",
        '    return marks if struct["valid"] else f"{marks} INVALID"',
        "    return marks",
        ("tests/columns/test_cells.py",),
        "a struct whose checksum is wrong is shown as valid",
    ),
    Slip(
        "engine/columns/control_columns.py",
        '    struct = shown["structs"][shown["current"] - 1]',
        '    struct = shown["structs"][shown["current"] - 2]',
        ("tests/columns/test_cells.py",),
        "the flags shown are those of the struct that is not in force",
    ),
    Slip(
        "engine/columns/control_columns.py",
        '    if struct["flags"] is None:\n        return "-"\n',
        "",
        ("tests/columns/test_cells.py",),
        "unknown flags are shown as none",
    ),
    Slip(
        "engine/columns/segment_columns.py",
        '    if last is None:\n        return "-"\n',
        '    if not last:\n        return "-"\n',
        ("tests/columns/test_cells.py",),
        "a segment of transaction 0 alone is shown as empty",
    ),
    Slip(
        "engine/columns/segment_columns.py",
        'f"..{last}" if first is None else',
        'f"..{last}" if not first else',
        ("tests/columns/test_cells.py",),
        "ids from 0 on are shown without their beginning",
    ),
    Slip(
        "engine/scan/walk.py",
        "        if stored != record_sum or values[0] != state[EXPECTED]:",
        "        if stored != record_sum:",
        ("tests/scan/test_walk_bounds.py",),
        "a large record with the id of another is handed out in its place",
    ),
    Slip(
        "engine/scan/walk.py",
        "            return Status.CHECKSUM if stored != record_sum else Status.ORDER",
        "            return Status.ORDER if values[0] != state[EXPECTED] else Status.CHECKSUM",
        ("tests/scan/test_walk_bounds.py",),
        "a large record whose bytes are wrong is said to stand at the wrong place",
    ),
)
