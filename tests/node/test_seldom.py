"""What seldom happens to a node: a journal that is still wanted, an end amid an answer, a disk that tells nothing."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import numpy as np
import pytest

from tests.node.service_support import LOG
from tests.node.test_commit_passes import Passes
from waltzctl.engine.errors import DamageError, PartitionQuarantinedError, ProtocolError
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.node import cluster_metadata
from waltzctl.engine.node.node import Node
from waltzctl.engine.node.node_settings import NodeOptions
from waltzctl.engine.node.outages import Room
from waltzctl.engine.node.partition_requests import session_info
from waltzctl.engine.node.shared_commit import SharedCommit
from waltzctl.engine.storage.journal_recovery import WrittenBack


def raising(error: BaseException) -> Any:
    def raises(*_: object, **__: object) -> NoReturn:
        raise error

    return raises


@pytest.mark.parametrize(
    ("journal", "failed", "begun"),
    [
        (None, None, False),
        (Path("j"), None, True),
        (Path("j"), {}, True),
        (Path("j"), {3: DamageError("its segment is gone")}, False),
    ],
)
def test_no_journal_is_begun_while_an_earlier_one_is_wanted(
    journal: Path | None, failed: dict[int, Any] | None, begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It would replace what nobody else has; the other partitions are served without one."""
    paths: list[Path] = []

    def begin(path: Path, **_: object) -> SimpleNamespace:
        paths.append(path)
        return SimpleNamespace(path=path)

    written_back = None if failed is None else WrittenBack(Path("old"), failed)
    node = SimpleNamespace(options=SimpleNamespace(journal=journal), _log=LOG)
    Node._begin_journal(cast("Any", node), cast("Any", SimpleNamespace(written_back=written_back, begin_journal=begin)))
    assert paths == ([journal] if begun else [])
    said = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert said == (["appends are not journaled until old could be written back"] if failed else [])


@pytest.mark.parametrize("known", [True, False])
def test_marks_that_are_not_known_are_not_told_as_none(known: bool) -> None:
    """A log server would take the replica for one that was in no session, and cut what it holds."""
    partition = SimpleNamespace(
        marks_known=known,
        path=Path("s/4"),
        number=4,
        findings=(),
        session_id=7,
        low_water_mark=3,
        local_low_water_mark=2,
    )
    if known:
        told = session_info(cast("Any", partition))
        assert (told.session_id, told.low_water_mark, told.local_low_water_mark) == (7, 3, 2)
        return
    with pytest.raises(PartitionQuarantinedError, match="partition 4: its session is not known"):
        session_info(cast("Any", partition))


@pytest.mark.parametrize(
    ("free", "inodes", "other", "space"),
    [(100, True, True, False), (10**9, True, True, True), (10**9, False, True, False), (100, True, False, True)],
)
def test_a_partition_s_own_disk_is_asked_for_room_where_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, inodes: bool, other: bool, space: bool
) -> None:
    from waltzctl.engine.node import outages

    probe = SimpleNamespace(path=tmp_path / "storage" / "probe", min_free_bytes=1000)
    (tmp_path / "storage").mkdir()
    real = os.stat

    def stat(path: Any, *given: Any, **named: Any) -> Any:
        device = 2 if other and Path(path).name == "0" else 1
        return SimpleNamespace(st_dev=device) if Path(path).name in ("0", "storage") else real(path, *given, **named)

    monkeypatch.setattr(outages.os, "stat", stat)
    monkeypatch.setattr(outages.disk, "free_bytes", lambda _: free)
    monkeypatch.setattr(outages, "lacks_inodes", lambda _: not inodes)
    room = Room(cast("Any", probe), max_age=1.0)
    assert room.at(tmp_path / "storage" / "0") is space
    monkeypatch.setattr(outages.disk, "free_bytes", raising(OSError(errno.EIO, "no")))
    assert room.at(tmp_path / "storage" / "0"), "what cannot be found out keeps nobody out"


@pytest.mark.parametrize("leave", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["of the write", "of its answer"])
def test_an_end_of_the_process_amid_failures_is_not_lost(leave: type[BaseException], where: str) -> None:
    """Every other partition of the pass is answered first."""
    failed: list[BaseException] = []
    end = leave()

    def fail(_: object, error: BaseException) -> None:
        failed.append(error)
        if where == "of its answer":
            raise end

    shared = SharedCommit(np.zeros((0, 1), np.int64), LOG)
    error = end if where == "of the write" else OSError("no memory")
    shared.fail(cast("Any", SimpleNamespace(commit=SimpleNamespace(fail=fail), runs=())), error)
    assert (failed, shared.leave) == ([error], end)
    shared.fail(cast("Any", SimpleNamespace(commit=SimpleNamespace(fail=lambda *_: None), runs=())), OSError("other"))
    assert shared.leave is end


def test_a_member_that_has_nothing_small_left_goes_on_by_itself() -> None:
    one = Passes()
    one.schedule("a", waits=False)
    one.schedule("b")
    one.pool.run()
    assert one.done == ["go on a", "begin b", "sync b", "finish b", "go on b"]


@pytest.mark.parametrize("error", [struct.error("short"), ValueError("x"), TypeError("y")])
def test_an_answer_about_a_znode_that_cannot_be_read_is_the_peer_s(error: Exception) -> None:
    asked = SimpleNamespace(get=raising(error))
    client = SimpleNamespace(
        get_async=lambda _: asked, handler=SimpleNamespace(timeout_exception=type("Late", (Exception,), {}))
    )
    options = ZooKeeperOptions(connect_string="h:1", cluster_root="/r", session_timeout=1.0, connect_timeout=1.0)
    with pytest.raises(ProtocolError, match="an answer about node /r/x that cannot be read"):
        cluster_metadata._get(client, "/r/x", options)


def test_ports_that_other_machines_reach() -> None:
    assert not NodeOptions(host="127.0.0.1").beyond_loopback
    assert NodeOptions(host="192.0.2.1").beyond_loopback
