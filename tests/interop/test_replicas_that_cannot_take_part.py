"""One of three nodes has damage, a flush that failed, or a full disk, under the traffic of released clients.

The released server goes on with the other two, also when it starts anew; a client that begins at the start reads everything;
nothing that was committed is lost, and nothing is there twice.  When the cause is gone the third catches up, until all replicas
are equal.  The disks are real: a small file system in memory, and one on a device that has no room behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.clusters import Cluster, Kind, StorageNode, environment, waltzctl
from tests.interop.conftest import MakeCluster
from tests.interop.processes import HOST, PATIENCE, wait_until
from tests.interop.released import needs_released
from tests.interop.replicas import expect_equal_replicas, wait_until_equal
from tests.interop.traffic import Traffic, expect_nothing_lost_or_doubled
from tests.small_disks import fill, memory_disk, mounted, run_tool

pytestmark = needs_released

PARTITIONS = 2
SOME = 300
"""Transactions in each partition that show that the traffic goes on."""
SERVERS = 8
"""New servers, with empty caches, of which one should ask a certain replica for old records: each chooses for itself."""


def out_of_service(node: StorageNode) -> dict[str, str]:
    """What keeps the node's partitions out of sessions, as its health check tells."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{node.http_port}/health", timeout=PATIENCE) as answer:
            shown = json.load(answer)
    except urllib.error.HTTPError as error:
        shown = json.load(error)
    partitions: dict[str, Any] = json.loads(shown["storage-health-check"]["message"])["partitions"]
    found = partitions["out_of_service"]
    assert isinstance(found, dict)
    return found


def log_of(node: StorageNode) -> str:
    assert node.running is not None
    return node.running.log.read_text()


def segments(node: StorageNode, partition: int) -> list[Path]:
    """Data files, the oldest first."""
    return sorted((node.directory / str(partition)).glob("*.seg"))


def flip(path: Path, offset: int) -> None:
    """Change a byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def run_waltzctl(*arguments: object) -> None:
    done = subprocess.run(
        waltzctl(*arguments),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment()},
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def begin(make_cluster: MakeCluster) -> Cluster:
    """A cluster for three nodes of ours, which are content with little free space."""
    return make_cluster(nodes=3, partitions=PARTITIONS, settings={"waltzctl__minFree": "1MiB"})


def finish(cluster: Cluster, traffic: Traffic) -> None:
    """The traffic ends; all of it is there once, in three equal replicas."""
    wait_until(lambda: all(out_of_service(node) == {} for node in cluster.nodes), "all replicas take part")
    traffic.wait_for(SOME, "the traffic goes on with three")
    traffic.stop()
    wait_until_equal(cluster)
    expect_nothing_lost_or_doubled(cluster, traffic)
    cluster.stop_servers()
    for node in cluster.nodes:
        node.stop()
    assert expect_equal_replicas(cluster.nodes, PARTITIONS) >= sum(map(len, traffic.committed))


def exchange_server(cluster: Cluster) -> None:
    """A new server, with nothing in its caches, begins its sessions in the present state.

    Also behind every stop of a node: a released server may then leave a partition standing still for good, whatever the node is.
    """
    cluster.stop_servers()
    cluster.start_server()


def test_damage_in_the_middle(make_cluster: MakeCluster) -> None:
    """A node that comes back with a quarantined partition stops it for nobody, and takes part again when it is repaired."""
    cluster = begin(make_cluster)
    cluster.start((Kind.OURS,) * 3)
    cluster.start_server()
    traffic = Traffic(cluster)
    victim, witness = cluster.nodes[0], cluster.nodes[1]
    traffic.wait_for(SOME, "there is something to damage")
    wait_until(lambda: 20_000 < segments(victim, 0)[-1].stat().st_size < 120_000, "the last segment has a middle")
    victim.stop()
    last = segments(victim, 0)[-1]
    flip(last, last.stat().st_size // 2)
    victim.start(Kind.OURS)
    assert out_of_service(victim) == {"0": "quarantined"}
    exchange_server(cluster)
    traffic.wait_for(SOME, "the traffic goes on beside a quarantined partition")
    assert out_of_service(victim) == {"0": "quarantined"}

    victim.stop()
    run_waltzctl("recover", victim.directory, "--partition", 0, "--from", witness.directory, "--yes")
    victim.start(Kind.OURS)
    exchange_server(cluster)
    finish(cluster, traffic)


def test_old_damage_is_read_from_another_replica(make_cluster: MakeCluster) -> None:
    """Records that nobody has looked at for long are damaged on one node: who reads from the start gets them from the others."""
    cluster = begin(make_cluster)
    cluster.start((Kind.OURS,) * 3)
    cluster.start_server()
    traffic = Traffic(cluster)
    victim, witness = cluster.nodes[2], cluster.nodes[1]
    wait_until(lambda: len(segments(victim, 0)) >= 4, "there are old segments")
    victim.stop()
    oldest = segments(victim, 0)[0]
    for offset in range(2_000, oldest.stat().st_size, 10_000):
        flip(oldest, offset)
    victim.start(Kind.OURS)
    assert out_of_service(victim) == {}, "nothing was read yet"
    for _ in range(SERVERS):
        exchange_server(cluster)
        traffic.wait_for(SOME, "the traffic goes on")
        expect_nothing_lost_or_doubled(cluster, traffic)
        if out_of_service(victim):
            break
    assert out_of_service(victim) == {"0": "corrupt-record"}
    traffic.wait_for(SOME, "the traffic goes on beside a partition with a corrupt record")

    victim.stop()
    run_waltzctl("recover", victim.directory, "--partition", 0, "--from", witness.directory, "--yes")
    victim.start(Kind.OURS)
    exchange_server(cluster)
    finish(cluster, traffic)


# --- disks ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def disk_without_room_behind_it(place: Path, behind: Path) -> Iterator[None]:
    """A file system on a device whose blocks get their memory when they are first written, from the one at `behind`.

    Writing to it always succeeds; when there is nothing left behind it, flushing fails.
    """
    with memory_disk(behind, "32m"), contextlib.ExitStack() as stack:
        image = behind / "image"
        image.touch()
        os.truncate(image, 256 << 20)
        made = run_tool("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "nodiscard", image)
        device = run_tool("losetup", "--find", "--show", image)
        if made.returncode or device.returncode:
            pytest.skip(f"no device can be made here: {(made.stderr + device.stderr).strip()}")
        stack.callback(run_tool, "losetup", "--detach", device.stdout.strip())
        with mounted(place, device.stdout.strip()):
            (place / "lost+found").rmdir()
            yield


def test_a_full_disk(make_cluster: MakeCluster) -> None:
    """The disk of one node is full: the others go on; when there is room it comes back by itself."""
    cluster = begin(make_cluster)
    victim = cluster.nodes[0]
    with memory_disk(victim.directory, "64m"):
        cluster.start((Kind.OURS,) * 3)
        cluster.start_server()
        traffic = Traffic(cluster)
        traffic.wait_for(SOME, "the traffic has begun")
        filler = fill(victim.directory)
        wait_until(lambda: out_of_service(victim) == {"0": "disk-full", "1": "disk-full"}, "the disk is found full")
        traffic.wait_for(SOME, "the traffic goes on beside a full disk")
        exchange_server(cluster)
        traffic.wait_for(SOME, "a new server begins beside a full disk")
        assert out_of_service(victim) == {"0": "disk-full", "1": "disk-full"}
        filler.unlink()
        wait_until(lambda: out_of_service(victim) == {}, "it comes back by itself")
        assert "takes part in sessions again" in log_of(victim)
        finish(cluster, traffic)


def test_a_failed_flush(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Flushes of one node fail: the others go on; switched off and on, with the disk mended, its partitions take part again."""
    cluster = begin(make_cluster)
    victim = cluster.nodes[0]
    behind = tmp_path / "behind"
    with disk_without_room_behind_it(victim.directory, behind):
        cluster.start((Kind.OURS,) * 3)
        cluster.start_server()
        traffic = Traffic(cluster)
        traffic.wait_for(SOME, "the traffic has begun")
        filler = fill(behind)
        failed = {"0": "sync-failed", "1": "sync-failed"}
        wait_until(lambda: out_of_service(victim) == failed, "the flushes have failed")
        traffic.wait_for(SOME, "the traffic goes on beside failed flushes")
        exchange_server(cluster)
        traffic.wait_for(SOME, "a new server begins beside failed flushes")
        filler.unlink()
        assert out_of_service(victim) == failed, "that there is room again proves nothing"
        for online in ("false", "true"):
            words = ("availability", "--partition", cluster.ranges, "--online", online, "--yes")
            run_waltzctl("node", victim.admin_address, "--data-port", victim.port, *words)
        finish(cluster, traffic)
