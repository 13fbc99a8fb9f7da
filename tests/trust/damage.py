"""Draws a damaged directory from a seed; the same one every time.

``python -m tests.trust.damage SEED DIRECTORY``, in the project's directory, writes it to ``DIRECTORY/damaged``, the sound one to
``DIRECTORY/sound`` and a replica to ``DIRECTORY/replica``, and says what was done and what the independent reader makes of it.
``python -m tests.trust.damage --list`` names every injury, and ``--only NAME`` strikes with that one alone.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.trust import injuries_control, injuries_files, injuries_records, injuries_repairs  # noqa: F401  # they register
from tests.trust.injuries import REGISTER, Injury
from tests.trust.reader import read_directory
from tests.trust.scene import NotHereError, Scene, draw_scene, plant

SCENES = 1000
"""Scenes that are drawn before it is given up to find a place for an injury: the rarest finds one in every sixteenth."""
TRIES = 60
"""Further injuries that are drawn for each that may strike."""


_OPEN_TOGETHER = (
    {"index too long", "last data file gone, its index not"},  # entries of records that no replica can have
)


@dataclass(frozen=True)
class Damaged:
    """A scene after its injuries."""

    seed: int
    scene: Scene
    injuries: tuple[Injury, ...]

    @property
    def mends(self) -> bool:
        """Whether a sound replica brings back all that was destroyed.

        Not what some of them together leave open (`_OPEN_TOGETHER`).
        """
        names = {one.name for one in self.injuries}
        return all(one.mends for one in self.injuries) and not any(pair <= names for pair in _OPEN_TOGETHER)

    def __str__(self) -> str:
        told = "; then ".join(self.scene.told) or "nothing was done to it"
        return f"seed {self.seed} ({self.scene.cluster.layout}): {told}\n  python -m tests.trust.damage {self.seed} DIRECTORY"


def draw(seed: int, only: Sequence[str] = ()) -> Damaged:
    """The directory of a seed; with `only` those injuries strike, in that order, instead of drawn ones.

    The first injury of a seed is its turn's, so that as many seeds as there are injuries see each of them; the others come by
    chance.  A scene in which the first one finds no place is drawn anew.
    """
    rng = random.Random(f"trust.{seed}")
    pool = list(REGISTER.values())
    count = rng.choices((0, 1, 2, 3), (2, 40, 38, 20))[0]
    wanted = [REGISTER[name] for name in only] or ([pool[seed % len(pool)]] if count else [])
    for _ in range(SCENES):
        damaged = _struck(seed, rng, draw_scene(rng), wanted, 0 if only else count - 1)
        if damaged is not None:
            return damaged
    raise NotHereError(f"seed {seed}: no place for {', '.join(one.name for one in wanted)}")


def _struck(seed: int, rng: random.Random, scene: Scene, wanted: Sequence[Injury], more: int) -> Damaged | None:
    """A scene after some injuries and `more` drawn ones; None where one of the first finds no place."""
    pool = [one for one in REGISTER.values() if not one.last]
    weights = [one.weight for one in pool]
    last = [one for one in wanted if one.last]
    done: list[Injury] = []
    try:
        for one in wanted:
            if not one.last:
                _strike(scene, one, done)
        for one in rng.choices(pool, weights, k=max(more, 0) * TRIES):
            if len(done) + len(last) == len(wanted) + more:
                break
            with contextlib.suppress(NotHereError):
                _strike(scene, one, done)
        for one in last:
            _strike(scene, one, done)
    except NotHereError:
        return None
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
