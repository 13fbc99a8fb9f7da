"""The assignment of partitions to log servers: a function of the previous assignment, the live servers and their preferences.

With P partitions and S servers, each server gets P div S partitions, and P mod S servers get one more.  Partitions are placed in
this order: preferred ones; those that stay with their server; the rest in turn.  The generation of a partition is 1 at first, and
increases by one with each change of server.  The last one that the metadata can hold stays: whatever wrote it must not keep all
other partitions from their servers, and it is sessions that shut former servers out.

Differences from release 0.13.2, which

- counts a server that preferences bring to exactly P div S as one of those with one more, so that fewer than P places are left
  and its cluster manager stops for good;
- cannot place a partition that the previous assignment does not name; here it counts as new.

Source: release 0.13.2 (dynamic partition assignment).
"""

from __future__ import annotations

from collections.abc import Sequence

from waltzctl.formats.znodes import (
    LAST_GENERATION,
    AssignedPartition,
    ServerAssignment,
    ServerDescriptor,
    ServerPartitions,
)


def assign(
    before: ServerAssignment, cversion: int, num_partitions: int, servers: Sequence[ServerDescriptor]
) -> ServerAssignment:
    """The next assignment, for the servers as of `cversion`: every partition once; no partitions if there are no servers."""
    generations, owners = {}, {}
    for known in before.servers:
        for one in known.partitions:
            generations[one.partition], owners[one.partition] = one.generation, known.server
    ids = sorted({one.server for one in servers})
    if not ids:
        return ServerAssignment(cversion, num_partitions, ())
    least, more = divmod(num_partitions, len(ids))
    given: dict[int, list[int]] = {number: [] for number in ids}
    left = dict.fromkeys(range(num_partitions))
    for server in sorted(servers, key=lambda server: server.server):
        for partition in server.preferred:
            if partition in left:
                given[server.server].append(partition)
                del left[partition]
    more -= sum(max(0, len(held) - least) for held in given.values())
    # all that is left has a place: `least` on each server, plus `more`, plus what preferences took beyond `least`
    for staying in (True, False):
        for number in ids:
            for partition in [one for one in left if not staying or owners.get(one) == number]:
                if len(given[number]) >= least + (more > 0):
                    break
                more -= len(given[number]) >= least
                given[number].append(partition)
                del left[partition]
    return ServerAssignment(
        cversion,
        num_partitions,
        tuple(
            ServerPartitions(
                number,
                tuple(
                    AssignedPartition(
                        p,
                        generations[p] if owners.get(p) == number else min(generations.get(p, 0) + 1, LAST_GENERATION),
                    )
                    for p in sorted(held)
                ),
            )
            for number, held in given.items()
        ),
    )
