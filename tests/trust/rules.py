"""What must hold of every damaged directory, whatever was done to it.

Each function takes a damaged directory and an empty place to work in, runs commands there, and yields one sentence for each rule
that was broken; none where all hold.  ``python -m tests.trust.rules SEED...`` tries all of them on the directories of some seeds.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.trust.damage import Damaged, draw
from tests.trust.injuries_repairs import missing
from tests.trust.judging import LINE, Before, kept_and_true, pairs, shown, sound_answer, true_in_place
from tests.trust.reader import Reading, ranges, read_directory
from tests.trust.running import SHARED_MEMORY, HangingError, Said, called, killed, watched
from tests.trust.scene import Scene, Special, Tree, clear, differences, plant, read_tree
from waltzctl.exit_status import ExitStatus

Rule = Callable[[Damaged, Path], Iterator[str]]


# Inspection


def unclean_ends(reading: Reading) -> Iterator[tuple[int, str]]:
    """Partitions whose last data file goes on behind its last record, with nothing wrong before: what a quick look must see."""
    for number, partition in reading.partitions.items():
        last = max(
            (one for one in partition.members if one.suffix == ".seg"), key=lambda one: one.first or 0, default=None
        )
        if last is None or last.foreign or not last.records or any(one.offset >= last.end for one in last.records):
            continue
        if last.end < last.size:
            yield number, f"{last.path} goes on for {last.size - last.end} bytes behind its last record"


def inspection(damaged: Damaged, place: Path) -> Iterator[str]:
    """verify is never clean where something is lost; what only reads ends properly and changes nothing."""
    scene = damaged.scene
    root = plant(scene.files, place / "d")
    all_before, before = read_tree(root, ours=True), Before.of(scene, root)
    said = called("verify", root, "--format", "ndjson")
    yield from sound_answer(said)
    lost = pairs(missing(scene, before.reading, before.wanted))
    if said.status == ExitStatus.CLEAN and lost:
        yield f"verify: clean, but records are lost ({shown(lost)})"
    elif said.status == ExitStatus.CLEAN and before.reading.complaints():
        yield f"verify: clean, but {'; '.join(before.reading.complaints())}"
    if not damaged.injuries and said.status != ExitStatus.CLEAN:
        yield f"verify: {said.status} for a directory that nobody damaged"
    if said.status == ExitStatus.REPAIRABLE and lost and scene.undone is None:
        yield f"verify: only repairable, but records are lost ({shown(lost)})"
    quick, status = (
        called("verify", root, "--quick", "--format", "ndjson"),
        called("status", root, "--format", "ndjson"),
    )
    yield from sound_answer(quick)
    yield from sound_answer(status)
    health = {one["partition"]: one["health"] for found in status.only("status") for one in found["partitions"]}
    for number, end in unclean_ends(before.reading):
        if quick.status == ExitStatus.CLEAN:
            yield f"verify --quick: clean, but {end}"
        if health.get(number) == "ok":
            yield f"status: partition {number} is ok, but {end}"
    dumped = called("dump", root, "--data", "none", "--format", "ndjson")
    yield from sound_answer(dumped)
    if dumped.status == ExitStatus.CLEAN:
        there = {(one["partition"], one["transaction_id"]) for one in dumped.only("record")}
        if hidden := true_in_place(scene, before.reading) - there:
            yield f"dump: ends with 0, and does not show {shown(hidden)}"
    if changed := differences(all_before, read_tree(root, ours=True)):
        yield f"inspection changed {changed}"


# Recovery


@dataclass
class Recovered:
    """A directory after `recover`: everything that it said (more than once where a repair had to be taken back first)."""

    root: Path
    said: list[Said]
    undo_ids: list[str]

    @property
    def status(self) -> int:
        return self.said[-1].status


def recovered(root: Path, *options: object) -> Recovered:
    """recover, and again as long as it only took back what was interrupted."""
    done = Recovered(root, [], [])
    for _ in range(3):
        said = called("recover", root, "--yes", "--format", "ndjson", *options)
        done.said.append(said)
        results = said.only("result")
        done.undo_ids += [one["undo_id"] for one in results if one["undo_id"]]
        if not any(one["applied"] and not one["undo_id"] for one in results):
            break
    return done


def _recovery(damaged: Damaged, place: Path, *options: object, what: str, loss: bool = False) -> Iterator[str]:
    scene = damaged.scene
    root = plant(scene.files, place / "d")
    before = Before.of(scene, root)
    done = recovered(root, *options)
    for said in done.said:
        yield from sound_answer(said)
    after = read_directory(root)
    yield from kept_and_true(scene, before, after, what, loss=loss)
    checked = called("verify", root, "--format", "ndjson")
    yield from sound_answer(checked)
    wanted = before.borne_out if "--from" in options else before.wanted
    lost = pairs(missing(scene, after, wanted)) - (before.disputed if loss else set())
    if done.status == ExitStatus.CLEAN and lost:
        yield f"{what}: ends with 0, and records are lost ({shown(lost)})"
    elif done.status == ExitStatus.CLEAN and after.complaints():
        yield f"{what}: ends with 0, but {'; '.join(after.complaints())}"
    if checked.status == ExitStatus.CLEAN and lost:
        yield f"{what}: verify is clean afterwards, and records are lost ({shown(lost)})"
    if (done.status == ExitStatus.CLEAN) != (checked.status == ExitStatus.CLEAN):
        yield f"{what}: ends with {done.status}, and verify says {checked.status} afterwards"
    if "--from" in options and damaged.mends and lost:
        yield f"{what}: a sound replica has them, and they are not restored ({shown(lost)})"
    yield from _undone(damaged, done, before, what)
    clear(root)


def _undone(damaged: Damaged, done: Recovered, before: Before, what: str) -> Iterator[str]:
    undone = damaged.scene.undone
    for one in reversed(done.undo_ids):
        said = called("undo", done.root, one, "--yes", "--format", "ndjson")
        yield from sound_answer(said)
        if not any(result["applied"] for result in said.only("result")):
            yield f"{what}: undo of what it did ends with {said.status}: {said.err.strip()[:300]}"
    found = read_tree(done.root)
    if (changed := _differ(before.tree, found)) and (undone is None or _differ(undone, found)):
        yield f"{what}: undo does not give back {changed}"


def _differ(expected: Tree, found: Tree) -> list[str]:
    """Differences of two trees; a directory is there in both where one of them has only a file in it."""
    return differences(_with_directories(expected), _with_directories(found))


def _with_directories(tree: Tree) -> Tree:
    whole = dict(tree)
    for name in tree:
        if "/" in name:
            whole.setdefault(name.split("/")[0], Special("directory"))
    return whole


def recovery(damaged: Damaged, place: Path) -> Iterator[str]:
    """recover --yes loses nothing, lets nothing in, tells the truth, and can be undone."""
    yield from _recovery(damaged, place, what="recover")


def recovery_with_loss(damaged: Damaged, place: Path) -> Iterator[str]:
    """The same where losses are accepted: what is given up stays named, and nothing else goes."""
    yield from _recovery(damaged, place, "--allow-data-loss", what="recover --allow-data-loss", loss=True)


def recovery_from_replica(damaged: Damaged, place: Path) -> Iterator[str]:
    """The same with a sound replica: it brings back everything that is proven to have been here."""
    replica = plant(damaged.scene.replica.files(), place / "replica")
    yield from _recovery(damaged, place, "--from", replica, what="recover --from")
    if differences(
        damaged.scene.replica.files(), {k: v for k, v in read_tree(replica).items() if isinstance(v, bytes)}
    ):
        yield "recover --from: the replica was changed"
    clear(replica)


# Appending


def appending(damaged: Damaged, place: Path) -> Iterator[str]:
    """No id is issued twice, before a repair and after one; no partition but the one asked for is touched."""
    scene = damaged.scene
    ways: list[tuple[str, tuple[str, ...] | None]] = [("append", None)]
    if damaged.seed % 2:
        ways.append(("append after recover --allow-data-loss", ("--allow-data-loss",)))
    for what, options in ways:
        root = plant(scene.files, place / "d")
        before = Before.of(scene, root)
        if options is not None:
            recovered(root, *options)
        taken_back = False
        for number in range(len(scene.cluster.logs)):
            taken_back |= yield from _append(scene, root, before, number, what)
        after = read_directory(root)
        if options is None:
            stood = before
            if (
                taken_back and scene.undone is not None
            ):  # what stood in its place before the repair that was interrupted
                stood = Before.of(scene, plant(scene.undone, place / "undone"))
                clear(place / "undone")
            yield from kept_and_true(scene, stood, after, what, loss=False)
        lost = pairs(missing(scene, after, before.wanted)) - (before.disputed if options else set())
        said = called("verify", root, "--format", "ndjson")
        yield from sound_answer(said)
        if said.status == ExitStatus.CLEAN and lost:
            yield f"{what}: verify is clean afterwards, and records are lost ({shown(lost)})"
        clear(root)


def _append(scene: Scene, root: Path, before: Before, number: int, what: str) -> Generator[str, None, bool]:
    """Append a line to a partition; whether that took an interrupted repair back first, and said so."""
    tree = read_tree(root)
    said = called("append", root, "--partition", number, "--format", "ndjson", given=LINE + b"\n")
    yield from sound_answer(said)
    taken_back = "was interrupted; it was taken back first" in said.err
    if scene.undone is not None and taken_back:
        tree = scene.undone  # an interrupted repair comes first, whatever partition it was of
    given = [
        one["first_transaction_id"] for one in said.only("append-result") if one["first_transaction_id"] is not None
    ]
    floor = before.floor(number)
    if given and given[0] < floor:
        yield f"{what}: partition {number} gives id {given[0]} away, and transactions up to {floor - 1} have been there"
    changed = _differ(tree, read_tree(root))
    if said.status != ExitStatus.CLEAN and not given and changed:
        yield f"{what}: refused ({said.status}) for partition {number}, and changed {changed}"
    elsewhere = [
        one
        for one in changed
        if not one.startswith((f"{number}/", f"{number}:", "waltz-storage.ctl:", "elsewhere.bin:"))
    ]
    if given and elsewhere:
        yield f"{what}: of partition {number}, and changed {elsewhere}"
    return taken_back


def undoing(damaged: Damaged, place: Path) -> Iterator[str]:
    """A repair is taken back over what was appended since, or the undo is refused: what was appended stays."""
    scene, rng = damaged.scene, random.Random(f"undoing.{damaged.seed}")
    root = plant(scene.files, place / "d")
    number = rng.choice([log.number for log in scene.cluster.logs if log.kept])
    if rng.random() < 0.6:
        what, after = "truncate", rng.randrange(-1, max(1, len(scene.log(number).records)))
        options = ("--partition", number, "--after", after, "--yes", "--allow-data-loss")
        said = called("truncate", root, *options, "--format", "ndjson")
        yield from sound_answer(said)
        done = any(one["undo_id"] for one in said.only("result"))
    else:
        what, done = "recover", bool(recovered(root, "--allow-data-loss").undo_ids)
    if not done:
        return
    lines = b"".join(LINE + b" %d\n" % place for place in range(5))
    size = ("--segment-size", rng.choice((200, 1000, 10**9)))
    said = called("append", root, "--partition", number, *size, "--format", "ndjson", given=lines)
    yield from sound_answer(said)
    between, tree = read_directory(root), read_tree(root)
    undone = called("undo", root, "--yes", "--format", "ndjson")
    yield from sound_answer(undone)
    if not any(result["applied"] for result in undone.only("result")):
        if changed := differences(tree, read_tree(root)):
            yield f"undo of {what} is refused ({undone.status}), and changed {changed}"
        return
    after_undo = read_directory(root)
    gone = appended_in(between, number) - appended_in(after_undo, number)
    if gone:
        yield f"undo of {what}: {ranges(gone)} of partition {number}, appended since, are gone"
    checked = called("verify", root, "--partition", number, "--format", "ndjson")
    yield from sound_answer(checked)
    if what == "truncate" and undone.status == ExitStatus.CLEAN and checked.status != ExitStatus.CLEAN:
        yield f"undo of {what}: ends with 0, and verify with {checked.status} for partition {number}"


def appended_in(reading: Reading, number: int) -> set[int]:
    """Ids of the records that the test has appended to a partition."""
    partition = reading.partitions.get(number)
    here = {} if partition is None else partition.in_place
    return {one for one, forms in here.items() if any(form[36:].startswith(LINE) for form in forms)}


# Kills


def kills(damaged: Damaged, place: Path) -> Iterator[str]:
    """recover, or its undo, killed after any change: the next command puts it right."""
    scene = damaged.scene
    if any(name.startswith(".waltzctl/quarantine/") for name in scene.files):
        return  # what undo takes back then would depend on how far the repair had come
    rng = random.Random(f"kills.{damaged.seed}")
    option = rng.choice(((), ("--allow-data-loss",)))
    root = plant(scene.files, place / "whole")
    before = Before.of(scene, root)
    work = watched("recover", root, "--yes", "--format", "ndjson", *option)
    if not any(one["undo_id"] for one in work.said.only("result")):
        return
    whole = root
    if rng.random() < 0.6:
        next_command = rng.choice(("recover", "undo", "append"))
        moment = work.moment(rng)
        root = plant(scene.files, place / "d")
        if killed(moment, "recover", root, "--yes", *option):
            what = f"recover killed after change {moment} of {len(work.changes)}, then {next_command}"
            yield from _put_right(scene, root, before, whole, next_command, option, what)
        return
    repaired = read_tree(root, ours=True)
    undoing = watched("undo", root, "--yes", "--format", "ndjson")
    moment = undoing.moment(rng)
    root = plant(repaired, place / "d")
    if killed(moment, "undo", root, "--yes"):
        yield from sound_answer(called("undo", root, "--yes"))
        if changed := _differ(before.tree, read_tree(root)):
            yield f"undo killed after change {moment} of {len(undoing.changes)}, then undo: {changed}"


def _put_right(
    scene: Scene, root: Path, before: Before, whole: Path, command: str, option: tuple[str, ...], what: str
) -> Iterator[str]:
    said = called("verify", root, "--format", "ndjson")
    yield from (f"{what}: {one}" for one in sound_answer(said))
    if command == "recover":
        done = recovered(root, *option)
        yield from (f"{what}: {one}" for answer in done.said for one in sound_answer(answer))
        found = read_tree(root)
        if changed := _differ(read_tree(whole), found):
            recovered(whole, *option)  # killed when nothing was left to do: the recover after it was the second one
            if _differ(read_tree(whole), found):
                yield f"{what}: not as without the kill: {changed}"
    elif command == "undo":
        said = called("undo", root, "--yes")
        yield from (f"{what}: {one}" for one in sound_answer(said))
        if changed := _differ(before.tree, read_tree(root)):
            yield f"{what}: not as before: {changed}"
    else:
        for number in range(len(scene.cluster.logs)):
            said = called("append", root, "--partition", number, "--format", "ndjson", given=LINE + b"\n")
            yield from (f"{what}: {one}" for one in sound_answer(said))
            given = [one["first_transaction_id"] for one in said.only("append-result")]
            if given and given[0] is not None and given[0] < before.floor(number):
                yield f"{what}: partition {number} gives id {given[0]} away, below {before.floor(number)}"
        yield from kept_and_true(scene, before, read_directory(root), what, loss=bool(option))


RULES: dict[str, Rule] = {
    one.__name__: one
    for one in (inspection, recovery, recovery_with_loss, recovery_from_replica, appending, undoing, kills)
}


def broken(damaged: Damaged, rule: Rule, place: Path) -> list[str]:
    """Every broken rule of one kind; a command that waits for ever is one of them."""
    found: list[str] = []
    try:
        found.extend(rule(damaged, place))
    except HangingError as hanging:
        frame = hanging.__traceback__
        names = []
        while frame is not None:
            names.append(frame.tb_frame.f_code.co_name)
            frame = frame.tb_next
        found.append(f"hangs in {' > '.join(names[-4:])}")
    finally:
        for one in place.iterdir():
            clear(one)
    return found


def main(arguments: Sequence[str]) -> int:
    """Try every rule on the directories of some seeds; the number of those where one is broken."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="waltzctl-trust-", dir=SHARED_MEMORY) as place:
        for word in arguments:
            damaged = draw(int(word))
            lines = [f"    {name}: {one}" for name, rule in RULES.items() for one in broken(damaged, rule, Path(place))]
            failed += bool(lines)
            print("\n".join([str(damaged), *(lines or ["    every rule holds"])]))
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
