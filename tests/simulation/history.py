"""One history: ``python -m tests.simulation.history WORLD SEED`` tells all that happens in it."""

from __future__ import annotations

import logging
import sys
from typing import Any

from tests.simulation import world as partition_world
from tests.simulation.cluster import Cluster
from tests.simulation.storage_world import StorageWorld
from tests.simulation.virtual_time import simulate

WORLDS: dict[str, Any] = {"partition": partition_world.World, "storage": StorageWorld, "cluster": Cluster}


def history(world: str, seed: int) -> Any:
    """Live it; the world as it was at its end.  Raises what is wrong in it."""
    made = WORLDS[world](seed)
    partition_world.LOG.addHandler(made.errors)
    try:
        simulate(made.live())
    finally:
        partition_world.LOG.removeHandler(made.errors)
    return made


def run(world: str, seed: int) -> Any:
    """As `history`, quietly; a failure says how to repeat it."""
    before = partition_world.LOG.level, partition_world.LOG.propagate
    partition_world.LOG.setLevel(logging.ERROR)
    partition_world.LOG.propagate = False
    try:
        return history(world, seed)
    except BaseException as error:
        error.add_note(f"repeat it: python -m tests.simulation.history {world} {seed}")
        raise
    finally:
        partition_world.LOG.setLevel(before[0])
        partition_world.LOG.propagate = before[1]


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG, format="%(message)s")
    history(sys.argv[1], int(sys.argv[2]))
