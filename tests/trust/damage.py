"""Draws a damaged directory from a seed; the same one every time.

``python -m tests.trust.damage SEED DIRECTORY``, in the project's directory, writes it to ``DIRECTORY/damaged``, what it was before to
``DIRECTORY/sound`` and a replica to ``DIRECTORY/replica``, and says what was done and what the independent reader makes of it.
``python -m tests.trust.damage --list`` names every injury, and ``--only NAME`` strikes with that one alone.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.trust import injuries_control, injuries_files, injuries_records, injuries_repairs  # noqa: F401  # they register
from tests.trust.injuries import REGISTER, Injury
from tests.trust.reader import read_directory
from tests.trust.scene import NotHereError, Scene, draw_scene, plant

TRIES = 60
"""Draws of an injury that finds its place before a scene is left as it is."""


@dataclass(frozen=True)
class Damaged:
    """A scene after its injuries."""

    seed: int
    scene: Scene
    injuries: tuple[Injury, ...]

    @property
    def mends(self) -> bool:
        """Whether a sound replica brings back all that was destroyed."""
        return all(one.mends for one in self.injuries)

    def __str__(self) -> str:
        told = "; then ".join(self.scene.told) or "nothing was done to it"
        return f"seed {self.seed} ({self.scene.cluster.layout}): {told}\n  python -m tests.trust.damage {self.seed} DIRECTORY"


def draw(seed: int, only: Sequence[str] = ()) -> Damaged:
    """The directory of a seed; with `only` those injuries strike, in that order, instead of drawn ones."""
    rng = random.Random(f"trust.{seed}")
    scene = draw_scene(rng)
    pool = list(REGISTER.values())
    weights = [one.weight for one in pool]
    wanted = rng.choices((0, 1, 2, 3), (3, 40, 37, 20))[0]
    done: list[Injury] = []
    for name in only:
        _strike(scene, REGISTER[name], done)
    tries = 0
    while not only and len(done) < wanted and tries < TRIES and not (done and done[-1].last):
        tries += 1
        one = rng.choices(pool, weights)[0] if tries > 1 else pool[seed % len(pool)]  # each in its turn, then by chance
        if one.last and len(done) + 1 < wanted:
            continue
        try:
            _strike(scene, one, done)
        except NotHereError:
            continue
    return Damaged(seed, scene, tuple(done))


def _strike(scene: Scene, one: Injury, done: list[Injury]) -> None:
    before = dict(scene.files)
    try:
        told = one.strike(scene)
    except NotHereError:
        scene.files = before
        raise
    done.append(one)
    scene.told.append(f"{one.name}: {told}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write one, or list the injuries."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.damage", description="Build a damaged directory.")
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this injury; may be repeated")
    parser.add_argument("--list", action="store_true", help="name every injury and the codes that it shows")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        for one in REGISTER.values():
            print(f"{one.name:50} {' '.join(sorted(one.shows))}")
        return
    if chosen.seed is None or chosen.directory is None:
        parser.error("SEED and DIRECTORY are needed")
    damaged = draw(chosen.seed, chosen.only)
    root = plant(damaged.scene.files, chosen.directory / "damaged")
    plant(damaged.scene.sound, chosen.directory / "sound")
    plant(damaged.scene.replica.files(), chosen.directory / "replica")
    print(damaged)
    for line in read_directory(root).complaints() or ["nothing that the reader could say is wrong"]:
        print(f"  {line}")


if __name__ == "__main__":
    main(sys.argv[1:])
