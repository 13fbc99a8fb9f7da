"""Mutants that do what the code does, or nothing that a promise is about; each with the reason.  The measure leaves them out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.mutation.mutants import Mutant


@dataclass(frozen=True)
class Equivalent:
    """A mutant as `Mutant.key` names it, and why no test could notice it, or none should."""

    file: str
    function: str
    old: str
    new: str
    reason: str
    nth: int = 1

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """The key of its mutant."""
        return self.file, self.function, self.old, self.new, self.nth


_COMPARE = (
    Equivalent(
        "engine/compare/directories.py",
        "Directories._member",
        "known = mark is not None or proven > 0",
        "known = mark is not None or proven >= 0",
        "held up to -1 is held up to nothing: no run lies below it, and no border comes of it",
    ),
    Equivalent(
        "engine/compare/reading.py",
        "Reading.damage",
        "return scanned.size, 0",
        "return scanned.size, (-1)",
        "whoever is sent to the end of the file reads nothing more, under whatever id",
    ),
    Equivalent(
        "engine/compare/reading.py",
        "Reading.damage",
        "return scanned.size, 0",
        "return scanned.size, 1",
        "whoever is sent to the end of the file reads nothing more, under whatever id",
    ),
)

_STORAGE = (
    Equivalent(
        "engine/storage/batch.py",
        "parts_of",
        "if 0 < count <= left and size + int(offsets[-1]) <= threshold:  # as nearly every batch",
        "if 0 < count < left and size + int(offsets[-1]) <= threshold:  # as nearly every batch",
        "the quick way and the long one make the same single part of a batch that ends with the checkpoint",
    ),
)
_BOTH = "both structs of a pair are of one layout, so that both have a sequence number or none"
_LINE = "if first.sequence is not None and second.sequence is not None:"
_FORMATS = tuple(
    Equivalent("formats/control.py", "choose_current", _LINE, new, _BOTH)
    for new in (
        "if True and second.sequence is not None:",
        "if first.sequence is not None and True:",
        "if first.sequence is not None or second.sequence is not None:",
    )
)

EQUIVALENT: tuple[Equivalent, ...] = (*_COMPARE, *_FORMATS, *_STORAGE)


_SIZES = "how much is taken at once, or a cost: another number gives the same answers at another speed"
TUNED: dict[str, tuple[str, ...]] = {
    "engine/compare/differences.py": ("_BATCH",),
    "engine/compare/ranges.py": ("RANGE",),
    "engine/durable/disk.py": ("_MOST_PIECES",),
    "engine/inspect/crew_checks.py": ("SHARES",),
    "engine/inspect/digests.py": ("_CHUNK", "_NEAR"),
    "engine/inspect/dump_chunks.py": ("CHUNK",),
    "engine/inspect/index_checks.py": ("CHUNK", "_FARTHEST"),
    "engine/inspect/split_segments.py": ("PART",),
    "engine/inspect/verify.py": ("_WORTH_THREADS", "_AHEAD"),
    "engine/net/port.py": ("_CHUNK", "_ALL_CHUNKS", "_SMALLEST_CHUNK", "_ACCEPTED_AT_ONCE"),
    "engine/repair/content.py": ("CHUNK",),
    "engine/repair/rebuild_index.py": ("_CHUNK",),
    "engine/durable/restore.py": ("CHUNK",),
    "engine/repair/salvage_output.py": ("BLOCK",),
    "engine/repair/salvage_runs.py": ("WINDOW",),
    "engine/repair/salvage_selection.py": ("BLOCK", "CHUNK"),
    "engine/scan/carve.py": ("BATCH_ROWS",),
    "engine/scan/kernels.py": ("LOAD_FROM", "COMPILE_FROM"),
    "engine/scan/native.py": ("TWO_PASSES",),
    "engine/scan/kernel.py": ("_TWO_PASSES",),
    "engine/scan/probe.py": ("GRANULE", "CACHE", "FORGET_AFTER", "CROWD", "FLAT_CHARGE"),
    "engine/scan/resync.py": ("FOLLOW_BLOCK",),
    "engine/scan/scanner.py": ("BATCH_ROWS", "RUN_ROWS", "FIRST_READ"),
    "engine/scan/source.py": ("_LOOK",),
    "engine/scan/transcode.py": ("_FEW",),
    "engine/scan/walk.py": ("PAGE", "BLOCK", "CARRY"),
    "engine/scan/wire_compiled.py": ("_SHORT",),
    "engine/scan/wire_loops.py": ("_TWO_PASSES",),
    "engine/spark/crew.py": ("PACKET", "FLAT", "WAVE"),
    "engine/spark/run_writing.py": ("_FLUSH", "_HELD"),
    "engine/spark/splits.py": ("FLAT",),
    "engine/spark/stream_node.py": ("_ABOUT", "_ROWS", "_BYTES"),
    "engine/spark/stream_places.py": ("SPLIT_BYTES",),
    "engine/spark/stream_reader.py": ("TASK_WEIGHT",),
    "engine/spark/views.py": ("_CHUNK",),
    "engine/storage/append.py": ("DEFAULT_BATCH", "BATCH_BYTES"),
    "engine/storage/evidence.py": ("_CHUNK",),
    "engine/storage/partition_log.py": ("CAREFUL_RECORDS",),
    "engine/storage/partition_recovery.py": ("KNOWN_BEFORE_CUT", "_PIECE"),
    "engine/storage/places.py": ("SMALL", "LARGE"),
    "engine/storage/segment_reader.py": ("READ_AHEAD", "LIST_BYTES"),
    "engine/storage/segment_recovery.py": ("CHECKPOINTS_TRIED",),
}
"""Constants of modules that only say how much is taken at once, or what something is taken to cost."""
_CONSTANT = re.compile(r"(_?[A-Z_]+)(?:: int)? = ([-0-9_() ]+|[-0-9_() ]+(?:<<|>>|\*\*?|//) [-0-9_() ]+?)(?: *#.*)?")


def why_equivalent(mutant: Mutant) -> str:
    """The reason, empty where it is not."""
    known = _BY_KEY.get(mutant.key)
    if known is not None:
        return known.reason
    named = _CONSTANT.fullmatch(mutant.new) if not mutant.function else None
    if named is None or named[1] not in TUNED.get(mutant.file, ()):
        return ""
    return _SIZES if eval(named[2], {"__builtins__": {}}) > 1 else ""


_BY_KEY = {one.key: one for one in EQUIVALENT}
