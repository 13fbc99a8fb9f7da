"""Injuries that repairs leave: one that was killed, and losses that an operator has accepted.

These need the program under test; what is lost by them is told by the independent reader, before and after.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.trust.injuries import injury
from tests.trust.injuries_files import index_cut, index_entry, last_data_gone
from tests.trust.injuries_records import cut, flipped
from tests.trust.reader import Reading, read_directory
from tests.trust.running import SHARED_MEMORY, called, killed, watched
from tests.trust.scene import NotHereError, Scene, plant, read_tree


def provable(scene: Scene, reading: Reading) -> dict[int, set[int]]:
    """The true ids that a directory proves to have existed, by partition."""
    return {
        number: {one for one in scene.truth.get(number, {}) if one < partition.proven}
        for number, partition in reading.partitions.items()
    }


def missing(scene: Scene, reading: Reading, wanted: dict[int, set[int]]) -> dict[int, set[int]]:
    """Of some true ids those whose true record is not in place."""
    lost = {}
    for number, ids in wanted.items():
        here = reading.partitions[number].in_place if number in reading.partitions else {}
        gone = {one for one in ids if scene.truth[number][one] not in here.get(one, ())}
        if gone:
            lost[number] = gone
    return lost


@injury("losses accepted before", "loss-accepted", weight=2)
def accepted(scene: Scene) -> str:
    """Records are damaged, and recover --allow-data-loss gives them up."""
    what = scene.rng.choice((flipped, cut, last_data_gone))(scene)
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as place:
        root = plant(scene.files, Path(place) / "d")
        wanted = provable(scene, read_directory(root))
        answer = called("recover", root, "--yes", "--allow-data-loss", "--format", "ndjson")
        if not any(one["applied"] for one in answer.only("result")):
            raise NotHereError
        for number, ids in missing(scene, read_directory(root), wanted).items():
            scene.given_up.setdefault(number, set()).update(ids)
        scene.files = read_tree(root, ours=True)
    return f"{what}; given up: {scene.given_up}"


@injury("ledger of accepted losses is junk", "accepted-losses-damaged")
def junk_ledger(scene: Scene) -> str:
    """Who cannot read what was given up says so."""
    scene.files[".waltzctl/accepted-losses"] = scene.rng.randbytes(scene.rng.choice((0, 1, 50, 300)))
    return "written"


@injury("state files of a node are junk", "state-file-damaged")
def junk_state(scene: Scene) -> str:
    """No node opens the directory, and no record is affected."""
    name = scene.rng.choice(("availability.json", "sessions"))
    scene.files[f".waltzctl/{name}"] = scene.rng.randbytes(scene.rng.choice((0, 1, 50, 300)))
    return name


@injury("a repair that was killed", "repair-interrupted", last=True, weight=2)
def interrupted(scene: Scene) -> str:
    """Killed after some change; where that is before the first file was touched, nothing is said of it."""
    what = scene.rng.choice((index_cut, index_entry))(scene)
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as place:
        whole = plant(scene.files, Path(place) / "whole")
        work = watched("recover", whole, "--yes")
        if not work.changes:
            raise NotHereError
        root = plant(scene.files, Path(place) / "d")
        moment = work.moment(scene.rng)
        if not killed(moment, "recover", root, "--yes"):
            raise NotHereError
        scene.undone = {name: node for name, node in scene.files.items() if not name.startswith(".waltzctl")}
        scene.files = read_tree(root, ours=True)
    return f"{what}; killed after change {moment} of {len(work.changes)}"
