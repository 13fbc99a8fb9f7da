"""Which of a client's mounts of a partition counts."""

from __future__ import annotations

import pytest

from waltzctl.engine.server.mounted_clients import MountedClients


class Connection:
    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("generation", "sequence", "counts"), [(2, 5, True), (2, 6, True), (3, 1, True), (2, 4, False), (1, 9, False)]
)
def test_a_later_mount_counts_and_an_earlier_one_only_through_the_same_connection(
    generation: int, sequence: int, counts: bool
) -> None:
    mounts, first, other = MountedClients(), Connection(), Connection()
    assert mounts.register(7, 2, 5, first)
    assert mounts.register(7, generation, sequence, other) is counts
    assert (mounts.is_registered(7, first), mounts.is_registered(7, other)) == (not counts, counts)
    alone = MountedClients()
    assert alone.register(7, 2, 5, first)
    assert alone.register(7, generation, sequence, first), "as in the release"
    assert alone.register(7, 2, 5, other) is (not counts or (generation, sequence) == (2, 5))
