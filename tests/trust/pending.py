"""Directories with a commit journal in force, damaged by chance: what a node with a journal leaves when its machine dies.

A drawn directory (`tests.trust.damage`) is marked: the journal holds the last records of some partitions, and their segments may
have lost them, as they were never flushed.  The journal's bytes come from the facts of its format, of which not a line is used;
nor has a directory with an interrupted repair a journal, as no repair touches one that has.

``python -m tests.trust.pending SEED...`` tries every rule (`RULES_OF_PENDING`) on the directories of some seeds.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.trust import layout
from tests.trust.damage import Damaged, draw
from tests.trust.injuries_repairs import missing
from tests.trust.judging import LINE, Before, kept_and_true, pairs, shown, sound_answer, true_in_place
from tests.trust.reader import read_directory
from tests.trust.rules import Rule, broken
from tests.trust.running import SHARED_MEMORY, called, killed, watched
from tests.trust.scene import OURS, Log, Scene, Tree, clear, differences, plant, read_tree
from waltzctl.exit_status import ExitStatus

BLOCK = 4096
JOURNAL, STATE = f"{OURS}/commit-journal", f"{OURS}/commit-journal.json"
LOCK = f"{OURS}/lock"
WHOLE, GONE, DAMAGED, UNNAMED = "whole", "gone", "damaged", "unnamed"
COUNT_AT = 28
"""Byte of the control file at which the number of partitions stands."""
_MOST = 12
Part = tuple[int, int, int, bytes]
"""Partition, first id of a segment, offset there, and bytes; a partition that is forgotten has offset -1 and none."""


@dataclass(frozen=True)
class Pending(Damaged):
    """`held`: the ids that the journal holds, by partition.  `fate`: what became of it."""

    held: dict[int, range]
    fate: str

    def __str__(self) -> str:
        again = f"python -m tests.trust.pending {self.seed}"
        return f"{Damaged.__str__(self)}\n  its journal, {self.fate}, holds {self.held}; {again}"


def draw_pending(seed: int) -> Pending | None:
    """The directory of a seed; None where a journal has no place."""
    damaged, rng = draw(seed), random.Random(f"pending.{seed}")
    scene = damaged.scene
    control = scene.files.get(layout.CONTROL)
    count = struct.pack(">i", len(scene.cluster.logs))
    if scene.undone is not None or not isinstance(control, bytes) or control[COUNT_AT : COUNT_AT + 4] != count:
        return None
    tails = {log.number: tail for log in scene.cluster.logs if (tail := _tail(scene, log, rng)) and rng.random() < 0.8}
    if not tails:
        return None
    entries = _entries(scene, tails, rng)
    fate = rng.choices((WHOLE, GONE, DAMAGED, UNNAMED), (7, 1, 1, 1))[0]
    fate = WHOLE if fate == DAMAGED and len(entries) == 1 else fate
    for number, tail in tails.items():
        _lose(scene, number, tail, rng)
    journal_id = uuid.UUID(int=rng.getrandbits(128))
    journal = bytearray(_journal(journal_id, entries))
    if fate == DAMAGED:
        journal[BLOCK + 60] ^= 1
    if fate != GONE:
        scene.files[JOURNAL] = bytes(journal)
    if fate != UNNAMED:
        document = {"version": 1, "path": JOURNAL, "id": str(journal_id), "partitions": None}
        scene.files[STATE] = json.dumps(document).encode()
    turned = struct.pack(">i", ~len(scene.cluster.logs))
    scene.files[layout.CONTROL] = control[:COUNT_AT] + turned + control[COUNT_AT + 4 :]
    return Pending(seed, scene, damaged.injuries, tails, fate)


def _tail(scene: Scene, log: Log, rng: random.Random) -> range | None:
    """Ids that only a journal had to make durable: of the last segment, behind the mark and the last checkpoint."""
    first, count = log.firsts[-1], len(log.records)
    name = layout.name(log.number, first)
    data = scene.files.get(name)
    low = max(first, log.mark + 1, count // 1000 * 1000, count - _MOST)
    if not log.kept or low >= count or not isinstance(data, bytes) or len(data) != len(scene.sound[name]):
        return None
    return range(rng.randrange(low, count), count)


def _place(log: Log, number: int) -> int:
    """Where a record of the last segment stands."""
    return layout.HEADER_SIZE + sum(map(len, log.records[log.firsts[-1] : number]))


def _entries(scene: Scene, tails: dict[int, range], rng: random.Random) -> list[list[Part]]:
    """What was journaled: now and then something that was cut since, and forgotten; then the records, in a few entries."""
    entries: list[list[Part]] = []
    for number, tail in tails.items():
        log = scene.log(number)
        if rng.random() < 0.3:
            cut = layout.Transaction(tail.stop, (7, 7, number, 7), 0, b"was cut since").encode()
            entries += [[(number, log.firsts[-1], _place(log, tail.stop), cut)], [(number, 0, -1, b"")]]
    left = {number: list(tail) for number, tail in tails.items()}
    while any(left.values()):
        entry: list[Part] = []
        for number in [number for number, ids in left.items() if ids and rng.random() < 0.7]:
            log, many = scene.log(number), rng.randrange(1, 4)
            ids, left[number] = left[number][:many], left[number][many:]
            entry.append((number, log.firsts[-1], _place(log, ids[0]), b"".join(log.records[one] for one in ids)))
        entries += [entry] if entry else []
    return entries


def _lose(scene: Scene, number: int, tail: range, rng: random.Random) -> None:
    """The machine dies: of what was never flushed the segment has all, nothing, a part, or zeros; its index likewise."""
    log = scene.log(number)
    data, index = (layout.name(number, log.firsts[-1], suffix) for suffix in (".seg", ".idx"))
    kept, place = scene.read(data), _place(log, tail[0])
    kinds = [kept, kept[:place], kept[: rng.randrange(place, len(kept) + 1)], kept[:place] + bytes(len(kept) - place)]
    scene.files[data] = rng.choice(kinds)
    listed = scene.files.get(index)
    if isinstance(listed, bytes) and listed == scene.sound[index] and rng.random() < 0.5:
        scene.files[index] = listed[: layout.HEADER_SIZE + 8 * (tail[0] - log.firsts[-1])]


def _journal(journal_id: uuid.UUID, entries: Sequence[Sequence[Part]]) -> bytes:
    """A journal in whose first area these entries stand, and nothing in the second."""
    written = b"".join(_entry(journal_id, number, entry) for number, entry in enumerate(entries))
    size = BLOCK + len(written) + BLOCK
    areas = [_area_header(journal_id, size, 1) + written, _area_header(journal_id, size, 0)]
    return b"".join(area.ljust(size, b"\0") for area in areas)


def _area_header(journal_id: uuid.UUID, size: int, epoch: int) -> bytes:
    head = struct.pack(">II16s16sQQQ", 0x575A4A41, 1, journal_id.bytes, bytes(16), size, epoch, 0)
    return (head + struct.pack(">I", zlib.crc32(head))).ljust(BLOCK, b"\0")


def _entry(journal_id: uuid.UUID, sequence: int, parts: Sequence[Part]) -> bytes:
    heads = [struct.pack(">Iiqqq", 1 if at >= 0 else 2, n, first, max(at, 0), len(raw)) for n, first, at, raw in parts]
    payload = b"".join([*heads, *(raw for *_, raw in parts)])
    head = struct.pack(">IIQQQQ", 0x575A4A45, len(parts), len(payload), 1, sequence, sequence)
    whole = head + struct.pack(">I", zlib.crc32(journal_id.bytes + head + payload)) + payload
    return whole.ljust(-(-len(whole) // BLOCK) * BLOCK, b"\0")


# Rules


def _marked(root: Path) -> bool:
    return struct.unpack_from(">i", (root / layout.CONTROL).read_bytes(), COUNT_AT)[0] < 0


def _held(pending: Pending) -> set[tuple[int, int]]:
    return {(number, one) for number, tail in pending.held.items() for one in tail}


def _changed(before: Tree, root: Path) -> list[str]:
    after = read_tree(root, ours=True)
    return differences({**before, LOCK: b""}, {**after, LOCK: b""})


def pending_inspection(damaged: Damaged, place: Path) -> Iterator[str]:
    """What only reads names the journal, changes nothing, and calls nothing clean that neither segments nor journal have."""
    assert isinstance(damaged, Pending)
    root = plant(damaged.scene.files, place / "d")
    tree, before = read_tree(root, ours=True), Before.of(damaged.scene, root)
    said = called("verify", root, "--format", "ndjson")
    for one in (
        said,
        called("verify", root, "--quick", "--format", "ndjson"),
        called("status", root, "--format", "ndjson"),
        called("dump", root, "--what", "control", "--format", "ndjson"),
    ):
        yield from sound_answer(one)
        if one.status == ExitStatus.CLEAN and "journal-pending" not in one.out:  # the mark may be damaged as well
            yield f"{one.command.split()[0]}: clean, and does not tell the journal"
    yield from sound_answer(called("dump", root, "--data", "none", "--format", "ndjson"))
    lost = pairs(missing(damaged.scene, before.reading, before.wanted)) - _held(damaged)
    if said.status == ExitStatus.CLEAN and (lost or damaged.fate in (GONE, UNNAMED)):
        yield f"verify: clean, with its journal {damaged.fate} and lost besides: {shown(lost)}"
    if changed := _changed(tree, root):
        yield f"inspection changed {changed}"


def pending_repairs(damaged: Damaged, place: Path) -> Iterator[str]:
    """No repair touches the records, so that the other rules of repairs have nothing to hold of.

    A control file that could not be read is all that recover mends, and the mark stays.  Where not even its header is whole
    nobody sees the mark: then indexes may be made anew, which any opening does, too, but no data file is touched.
    """
    root = plant(damaged.scene.files, place / "d")
    for words in (
        ("recover",),
        ("recover", "--allow-data-loss"),
        ("truncate", "--partition", "0", "--after", "-1", "--allow-data-loss"),
        ("rebuild-index",),
        ("undo",),
    ):
        tree = read_tree(root, ours=True)
        said = called(words[0], root, *words[1:], "--yes", "--format", "ndjson")
        yield from sound_answer(said)
        changed = _changed(tree, root)
        mended = words[0] == "recover" and any(one.startswith(f"{layout.CONTROL}:") for one in changed)
        if len(damaged.scene.read(layout.CONTROL)) < layout.HEADER_SIZE:
            if data := [one for one in changed if ".seg:" in one]:
                yield f"{' '.join(words)}: changed {data}"
            continue
        if mended and not _marked(root):
            yield f"{' '.join(words)}: takes the mark away"
        if said.status == ExitStatus.CLEAN and not mended:
            yield f"{' '.join(words)}: ends with 0 where a journal is in force"
        if changed and (not mended or any(not one.startswith((layout.CONTROL, OURS)) for one in changed)):
            yield f"{' '.join(words)}: changed {changed}"


def pending_opening(damaged: Damaged, place: Path) -> Iterator[str]:
    """Whoever opens it writes the journal back, also after a kill, and gives no id of it away; or changes nothing."""
    assert isinstance(damaged, Pending)
    scene, rng = damaged.scene, random.Random(f"opening.{damaged.seed}")
    root = plant(scene.files, place / "d")
    tree, before = read_tree(root, ours=True), Before.of(scene, root)
    first = next(iter(damaged.held))
    if damaged.fate == WHOLE and rng.random() < 0.5:
        work = watched("append", plant(scene.files, place / "whole"), "--partition", first)
        if work.changes:
            killed(work.moment(rng), "append", root, "--partition", first)
    for number in range(len(scene.cluster.logs)):
        said = called("append", root, "--partition", number, "--format", "ndjson", given=LINE + b"\n")
        yield from sound_answer(said)
        given = [one["first_transaction_id"] for one in said.only("append-result")]
        if damaged.fate != WHOLE:
            if said.status == ExitStatus.CLEAN or (changed := _changed(tree, root)):
                yield f"append: ends with {said.status}, its journal is {damaged.fate}, and it changed {changed}"
            continue
        floor = max(before.floor(number), damaged.held.get(number, range(0)).stop)
        if given and given[0] is not None and given[0] < floor:
            yield f"append: partition {number} gives id {given[0]} away, below {floor}"
    if damaged.fate != WHOLE:
        return
    after = read_directory(root)
    yield from kept_and_true(scene, before, after, "append", loss=False)
    failed = json.loads((root / STATE).read_bytes())["partitions"] if _marked(root) else []
    if failed is None:  # nobody could open it
        if changed := _changed(tree, root):
            yield f"append: the journal is in force still, and changed {changed}"
        return
    if gone := {one for one in _held(damaged) - true_in_place(scene, after) if one[0] not in failed}:
        yield f"append: what the journal held is not in place ({shown(gone)}), and the journal is not kept for it"
    checked = called("verify", root, "--format", "ndjson")
    yield from sound_answer(checked)
    lost = pairs(missing(scene, after, before.wanted)) | (_held(damaged) - true_in_place(scene, after))
    if checked.status == ExitStatus.CLEAN and lost:
        yield f"append: verify is clean afterwards, and records are lost ({shown(lost)})"


def pending_given_up(damaged: Damaged, place: Path) -> Iterator[str]:
    """A journal that is given up costs what stood in it only, and an undo puts it in force again."""
    scene = damaged.scene
    root = plant(scene.files, place / "d")
    tree, before = read_tree(root, ours=True), Before.of(scene, root)
    said = called("recover", root, "--forget-journal", "--yes", "--format", "ndjson")
    yield from sound_answer(said)
    ids = [one["undo_id"] for one in said.only("result") if one["undo_id"]]
    if not ids:
        if _changed(tree, root):
            yield f"recover --forget-journal: nothing to undo ({said.status}), and changed {_changed(tree, root)}"
        return
    if _marked(root):
        yield "recover --forget-journal: the directory is still marked"
    yield from kept_and_true(scene, before, read_directory(root), "recover --forget-journal", loss=False)
    checked = called("verify", root, "--format", "ndjson")
    yield from sound_answer(checked)
    if "journal-pending" in checked.codes:
        yield "recover --forget-journal: verify still tells the journal"
    undone = called("undo", root, ids[0], "--yes", "--format", "ndjson")
    yield from sound_answer(undone)
    if changed := differences(before.tree, read_tree(root)):
        yield f"undo of recover --forget-journal ({undone.status}): does not give back {changed}"
    if (root / STATE).exists() != (STATE in scene.files):
        yield f"undo of recover --forget-journal ({undone.status}): the journal's state is not as it was"


RULES_OF_PENDING: dict[str, Rule] = {
    one.__name__: one for one in (pending_inspection, pending_repairs, pending_opening, pending_given_up)
}


def main(arguments: Sequence[str]) -> int:
    """Try every rule on the directories of some seeds; the number of those where one is broken."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="waltzctl-pending-", dir=SHARED_MEMORY) as place:
        for word in arguments:
            pending = draw_pending(int(word))
            lines = [
                f"    {name}: {one}"
                for name, rule in RULES_OF_PENDING.items()
                for one in (broken(pending, rule, Path(place)) if pending else ())
            ]
            failed += bool(lines)
            print(
                "\n".join(
                    [str(pending or f"seed {word}: no place for a journal"), *(lines or ["    every rule holds"])]
                )
            )
    clear(Path(place))
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
