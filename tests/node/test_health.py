"""The health check looks: at the disk, the partitions, the queues and the ports; and it always comes back."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.descriptors import let_syncs_fail
from tests.node.running import LOOPS, Answer, Peer, StuckDisk, append, get, run, running
from tests.storage.support import damage, data_path
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.net.monitoring_options import HttpLimits
from waltzctl.engine.net.single_flight import OverdueError, SingleFlight
from waltzctl.engine.node.disk_probe import DiskProbe
from waltzctl.engine.node.node_settings import HealthOptions, ServiceOptions
from waltzctl.formats.wire import storage
from waltzctl.formats.wire.storage import FailureResponse, SuccessResponse

PROBE = "health-probe" + disk.TEMPORARY_SUFFIX


def is_probe(path: Path) -> bool:
    return path.name == PROBE


def unwell(answer: Answer) -> list[str]:
    """The problems of an answer that must say that the node is unwell."""
    assert answer.status == 500
    assert answer.json["storage-health-check"]["healthy"] is False
    assert answer.health["storage"] == "false"
    return list(answer.health["problems"])


# --- well -------------------------------------------------------------------------------------------------------------


@LOOPS
def test_a_node_that_is_well_says_so_and_leaves_no_trace(tmp_path: Path, loop: str) -> None:
    build_directory(tmp_path, {0: 3, 1: 0})

    async def work() -> None:
        async with running(tmp_path) as node:
            answer = await get(node, "/health")
            assert answer.status == 200
            found = answer.health
            assert found["problems"] == []
            assert found["disk"]["healthy"] is True
            assert found["disk"]["free_bytes"] == pytest.approx(disk.free_bytes(tmp_path), rel=0.5)
            assert found["disk"]["write_seconds"] > 0
            assert found["partitions"] == {
                "assigned": [0, 1], "quarantined": [], "failed": [], "out_of_service": {},
            }  # fmt: skip
            assert found["queues"] == {"requests": 0, "stalled_seconds": 0.0}
            assert found["ports"] == {"data": True, "admin": True, "http": True}
            assert not (tmp_path / disk.STATE_DIRECTORY / PROBE).exists()

    run(work(), loop)


def test_partitions_that_are_switched_off_or_that_nobody_assigned_are_no_illness(tmp_path: Path) -> None:
    """A node that has nothing to do, or was told to do nothing, needs no operator."""
    build_directory(tmp_path, {0: 3})

    async def work() -> None:
        async with running(tmp_path) as node:
            node.hosted.set_availability([0], readable=False, writable=False)
            assert (await get(node, "/health")).status == 200
            node.hosted.unassign([0], delete_files=False)
            answer = await get(node, "/health")
            assert answer.status == 200
            assert answer.health["partitions"]["assigned"] == []

    run(work())


# --- partitions, queues, ports ----------------------------------------------------------------------------------------


def test_a_quarantined_partition_is_an_illness(tmp_path: Path) -> None:
    """Damage that was acknowledged as durable: the partition is closed to writes until somebody repairs it."""
    build_directory(tmp_path, {0: 20, 1: 20}, per_segment=100, local_low_water_mark=19)
    damage(data_path(tmp_path), 200)

    async def work() -> None:
        async with running(tmp_path) as node:
            answer = await get(node, "/health")
            [problem] = unwell(answer)
            assert "partition 0 is quarantined" in problem
            assert answer.health["partitions"] == {
                "assigned": [0, 1], "quarantined": [0], "failed": [], "out_of_service": {"0": "quarantined"},
            }  # fmt: skip
            text = (await get(node, "/metrics", Accept="text/plain")).body.decode()
            assert 'waltz_storage_quarantined{partition="0"} 1.0' in text
            assert 'waltz_storage_out_of_service{partition="0"} 1.0' in text
            assert 'waltz_storage_out_of_service{partition="1"} 0.0' in text
            gauges = (await get(node, "/metrics")).json["gauges"]
            assert gauges["waltz-storage.partition-0.out-of-service"] == {"value": "quarantined"}
            assert "waltz-storage.partition-1.out-of-service" not in gauges
            assert "waltz_storage_healthy 0.0" in text

    run(work())


def test_what_a_full_disk_does_not_let_be_mended_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told to be closed because of damage, for which the remedy is a repair."""
    build_directory(tmp_path, {0: 20, 1: 20}, per_segment=100)
    with data_path(tmp_path).open("ab") as file:
        file.write(b"torn")
    real = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if "/quarantine/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)

    async def work() -> None:
        async with running(tmp_path) as node:
            assert node.ready_info.quarantined == ()
            answer = await get(node, "/health")
            assert len(unwell(answer)) == 1
            assert answer.health["partitions"] == {
                "assigned": [0, 1], "quarantined": [], "failed": [0], "out_of_service": {"0": "disk-full"},
            }  # fmt: skip
            text = (await get(node, "/metrics", Accept="text/plain")).body.decode()
            assert 'waltz_storage_quarantined{partition="0"} 0.0' in text

    run(work())


def test_a_failed_flush_is_an_illness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refuses to flush one partition's file, as a dying disk does: the append fails, the partition writes no more,
    and health tells; the other partition and the disk's probe go on."""
    build_directory(tmp_path, {0: 3, 1: 0})
    real = os.fdatasync

    def refuse(descriptor: int) -> None:
        if f"{tmp_path}/0/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    async def work() -> None:
        async with running(tmp_path) as node:
            peer = await Peer.data(node)
            with monkeypatch.context() as patch:
                patch.setattr(os, "fdatasync", refuse)
                assert isinstance(await peer.request(append(3)), FailureResponse)
                assert isinstance(await peer.request(append(0, partition=1)), SuccessResponse)
                answer = await get(node, "/health")
            [problem] = unwell(answer)
            assert problem.startswith("partition 0 accepts no writes after: ")
            assert os.strerror(errno.EIO) in problem
            assert answer.health["disk"]["healthy"] is True
            assert answer.health["partitions"]["failed"] == [0]
            await peer.close()

    run(work())


def test_fences_that_could_not_be_synced_are_an_illness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the node is restarted no partition begins a session; nothing told that, nor what ends it."""
    build_directory(tmp_path, {0: 3})

    def question(session: int) -> storage.LastSessionInfoRequest:
        return storage.LastSessionInfoRequest(session, 7, 0)

    async def work() -> None:
        async with running(tmp_path) as node:
            peer = await Peer.data(node)
            assert isinstance(await peer.request(question(1000)), storage.LastSessionInfoResponse)
            assert not (await node.check()).problems
            with monkeypatch.context() as patch:
                let_syncs_fail(patch, ".waltzctl/sessions")
                assert isinstance(await peer.request(question(1001)), FailureResponse)
            assert isinstance(await peer.request(question(1002)), FailureResponse)
            [problem] = unwell(await get(node, "/health"))
            assert problem.startswith("no partition can begin a session since this failed: ")
            assert problem.endswith("restart the node")
            await peer.close()
        async with running(tmp_path) as node:
            assert not (await node.check()).problems

    run(work())


@LOOPS
def test_a_queue_that_does_not_move_is_an_illness(tmp_path: Path, loop: str) -> None:
    """A flush of one partition hangs; its request waits, health tells, and when the disk comes back all is well again."""
    build_directory(tmp_path, {0: 0, 1: 0})

    async def work() -> None:
        options = HealthOptions(max_stall=1e-6)
        async with running(tmp_path, health=options, service=ServiceOptions(workers=4)) as node:
            peer = await Peer.data(node)
            with StuckDisk(lambda path: path.parent == tmp_path / "0") as stuck:
                peer.writer.write(storage.encode(append(0)))
                await stuck.reached()
                assert isinstance(await peer.request(append(0, partition=1)), SuccessResponse)
                answer = await get(node, "/health")
                [problem] = unwell(answer)
                assert problem.startswith("partition 0 has made no progress for ")
                assert answer.health["queues"]["requests"] == 1
                assert answer.health["queues"]["stalled_seconds"] > 0
            assert await peer.receive() == SuccessResponse(7, 0, 0)
            while (await node.check()).problems:
                await asyncio.sleep(0)  # the answer leaves before the queue is looked at again
            assert (await get(node, "/health")).status == 200
            await peer.close()

    run(work(), loop)


def test_a_port_that_does_not_listen_is_an_illness(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path) as node:
            await node.admin.stop_accepting()
            answer = await get(node, "/health")
            assert unwell(answer) == ["the admin port does not listen; restart the node"]
            assert answer.health["ports"] == {"data": True, "admin": False, "http": True}

    run(work())


# --- the disk ---------------------------------------------------------------------------------------------------------


@LOOPS
def test_a_stuck_disk_is_told_in_time_and_asked_once(tmp_path: Path, loop: str) -> None:
    """The probe's write does not come back.  Each check answers after the deadline of that one write, and begins no other."""
    build_directory(tmp_path, {0: 0})
    options = HealthOptions(deadline=0.2, max_age=0.0)

    async def work() -> None:
        async with running(tmp_path, health=options) as node:
            assert (await get(node, "/health")).status == 200
            with StuckDisk(is_probe) as stuck:
                answers = await asyncio.gather(*(get(node, "/health") for _ in range(5)))
                await stuck.reached()
                for answer in [*answers, await get(node, "/health")]:
                    [problem] = unwell(answer)
                    assert "the disk is stuck" in problem
                    assert answer.health["disk"] == {"healthy": False, "free_bytes": None, "write_seconds": None}
                assert (await get(node, "/ping")).status == 200
                assert (await get(node, "/metrics", Accept="text/plain")).status == 200
                looking = [name for name in threads() if name == "the look at the disk"]
                assert len(looking) == 1
            assert await node.health.close(30)
            assert (await get(node, "/health")).status == 200

    run(work(), loop)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


@pytest.mark.turns(10)
def test_a_node_with_a_stuck_probe_can_be_stopped(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path, health=HealthOptions(deadline=0.1)) as node:
            with StuckDisk(is_probe):
                unwell(await get(node, "/health"))
                await node.stop(5)

    run(work())


def test_little_space_is_an_illness(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path, health=HealthOptions(min_free_bytes=1 << 62)) as node:
            answer = await get(node, "/health")
            [problem] = unwell(answer)
            assert "make room before appends fail" in problem
            assert answer.health["disk"]["free_bytes"] > 0

    run(work())


MOUNTED = """
import asyncio, json, subprocess, sys
from pathlib import Path

case, place = sys.argv[1], Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=True)
from tests.builders import build_directory
from tests.node.running import Peer, append, get, running
from waltzctl.engine.node.node_settings import HealthOptions

build_directory(place, {0: 3})

async def main():
    options = HealthOptions(min_free_bytes=0, max_age=0.0)
    async with running(place, health=options) as node:
        before = (await get(node, "/health")).status
        if case == "full":
            with open(place / "filler", "wb", buffering=0) as filler:
                try:
                    while True:
                        filler.write(bytes(4096))
                except OSError:
                    pass
        else:
            # of a mount on top of it: the files that the node has open stay writable, as after errors of a disk
            subprocess.run(["mount", "-o", "bind", str(place), str(place)], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        ill = await get(node, "/health")
        failed = None
        if case == "full":
            peer = await Peer.data(node)
            failed = await peer.request(append(3, count=50))
            (place / "filler").unlink()
            works = await peer.request(append(3))
            await peer.close()
        else:
            subprocess.run(["mount", "-o", "remount,bind,rw", str(place)], check=True)
            works = None
        after = await get(node, "/health")
        print(json.dumps([before, ill.status, ill.health["problems"], type(failed).__name__, type(works).__name__, after.status]))

asyncio.run(main())
"""


def mounted(case: str, place: Path) -> list[object]:
    """Run a case on a file system of its own, in namespaces of its own; skip where that is not allowed."""
    root = Path(__file__).resolve().parents[2]
    if subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces of one's own on this machine")
    result = subprocess.run(
        [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            sys.executable,
            "-W",
            "error",
            "-c",
            MOUNTED,
            case,
            str(place),
        ],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(found, list)
    return found


@pytest.mark.turns(8)
def test_a_full_disk_is_an_illness_that_passes(tmp_path: Path) -> None:
    """A real file system without a free block: health and an append say so, the node stays up, and goes on when there is room."""
    before, ill, problems, failed, works, after = mounted("full", tmp_path)
    assert (before, ill, after) == (200, 500, 200)
    assert os.strerror(errno.ENOSPC) in str(problems)
    assert (failed, works) == ("FailureResponse", "SuccessResponse")


@pytest.mark.turns(8)
def test_a_read_only_file_system_is_an_illness(tmp_path: Path) -> None:
    """Made read-only under the running node, as a system does after errors of the disk."""
    before, ill, problems, _, _, after = mounted("read-only", tmp_path)
    assert (before, ill, after) == (200, 500, 200)
    assert "read-only" in str(problems).lower()


def test_the_probe_tidies_up_after_a_process_that_ended_in_it(tmp_path: Path) -> None:
    (tmp_path / disk.STATE_DIRECTORY).mkdir()
    probe = DiskProbe(tmp_path, min_free_bytes=0)
    probe.path.write_bytes(b"left behind")
    assert probe.state().problem is None
    assert not probe.path.exists()


def test_a_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    """The disk was unmounted: nothing is thrown at whoever asks."""
    state = DiskProbe(tmp_path / "gone", min_free_bytes=0).state()
    assert state.free_bytes is None
    assert state.problem is not None
    assert os.strerror(errno.ENOENT) in state.problem


def test_a_process_without_a_free_descriptor_is_told(tmp_path: Path) -> None:
    """The limit of open files, the real one: no file can be opened for the probe."""
    (tmp_path / disk.STATE_DIRECTORY).mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno(), hard))
        try:
            state = DiskProbe(tmp_path, min_free_bytes=0).state()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert state.problem is not None
    assert os.strerror(errno.EMFILE) in state.problem


def test_checks_share_a_look_that_is_young_enough(tmp_path: Path) -> None:
    """Many health checks do not load the disk."""
    build_directory(tmp_path, {0: 0})
    writes: list[Path] = []

    async def work() -> None:
        async with running(tmp_path, health=HealthOptions(max_age=60.0), http=HttpLimits(max_connections=64)) as node:
            disk.observer = lambda change: writes.append(change.path) if change.kind == "write" else None
            try:
                answers = await asyncio.gather(*(get(node, "/health") for _ in range(20)))
            finally:
                disk.observer = None
            assert {answer.status for answer in answers} == {200}

    run(work())
    assert [path.name for path in writes] == [PROBE]


@pytest.mark.parametrize(
    "options",
    [
        HealthOptions(min_free_bytes=-1),
        HealthOptions(deadline=0),
        HealthOptions(max_stall=0),
        HealthOptions(max_age=-1),
        HttpLimits(max_connections=0),
        HttpLimits(max_request_bytes=0),
        HttpLimits(connection_seconds=0),
        HttpLimits(answer_seconds=-1),
    ],
)
def test_options_that_cannot_be_meant(options: HealthOptions | HttpLimits) -> None:
    with pytest.raises(InvalidRequestError):
        options.check()


# --- one at a time ----------------------------------------------------------------------------------------------------


@LOOPS
def test_one_run_serves_all_and_errors_reach_everybody(loop: str) -> None:
    go_on, runs = threading.Event(), []

    def fail() -> None:
        runs.append(threading.current_thread())
        go_on.wait()
        raise ValueError("the work's own")

    async def work() -> None:
        job = SingleFlight(fail, name="a job")
        with pytest.raises(OverdueError, match="a job has not come back"):
            await job.result(0.05)
        waiting = [asyncio.create_task(job.result(None)) for _ in range(3)]
        cancelled = asyncio.create_task(job.result(None))
        await asyncio.sleep(0)
        cancelled.cancel()
        go_on.set()
        for one in waiting:
            with pytest.raises(ValueError, match="the work's own"):
                await one
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert len(runs) == 1
        assert not runs[0].is_alive()
        assert await job.idle(0)
        with pytest.raises(ValueError, match="the work's own"):
            await job.result(None)
        assert len(runs) == 2, "an old result is not believed"

    run(work(), loop)
