"""Which server gets which partition: a function of the assignment before, the servers that live, and what they prefer.

With P partitions and S servers each gets P div S, and P mod S of them one more.  Preferences go first, then every server keeps
what it has, then what is left is dealt.  A partition's generation grows by one when it goes to another server, and begins at 1.

Release 0.13.2 counts a preference that brings a server to exactly P div S as one of those with one more; then fewer than P places
are left, and its cluster manager stops for good.  Here only what is beyond P div S counts.  It also cannot place a partition that
the assignment before does not name; here that is a new one.

Source: release 0.13.2 (dynamic partition assignment).
"""

from __future__ import annotations

from collections.abc import Sequence

from waltzctl.formats.znodes import AssignedPartition, ServerAssignment, ServerDescriptor, ServerPartitions


def assign(
    before: ServerAssignment, cversion: int, num_partitions: int, servers: Sequence[ServerDescriptor]
) -> ServerAssignment:
    """The next assignment, for the servers as they are at `cversion`; every partition once, none without servers."""
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
    # there is a place for all that is left: S servers of at least `least` each, what preferences take beyond it, and `more`
    for wanted in (True, False):
        for number in ids:
            for partition in [one for one in left if not wanted or owners.get(one) == number]:
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
                    AssignedPartition(p, generations[p] if owners.get(p) == number else generations.get(p, 0) + 1)
                    for p in sorted(held)
                ),
            )
            for number, held in given.items()
        ),
    )
