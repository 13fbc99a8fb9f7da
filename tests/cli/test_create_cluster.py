"""create-cluster: the directories, the object, and what is refused."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.builders import digest
from tests.cli.running import invoke
from waltzctl.engine.metadata.cluster_changes import add_node, assign
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.engine.metadata.zookeeper_store import NotPermittedError
from waltzctl.engine.storage import directory
from waltzctl.engine.storage.directory import ClusterResult
from waltzctl.formats.control import Layout, decode_control


@pytest.mark.parametrize("layout", list(Layout))
def test_every_directory_gets_the_same_key(tmp_path: Path, layout: Layout) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    answer = invoke("create-cluster", *paths, "--partitions", 3, "--layout", layout.value, "--format", "json")
    assert answer.status == 0
    (cluster,) = answer.objects
    assert cluster["type"] == "cluster"
    assert cluster["directories"] == [{"path": str(path), "assigned": [0, 1, 2]} for path in paths]
    for path in paths:
        control = decode_control((path / "waltz-storage.ctl").read_bytes())
        assert (control.layout, control.header.num_partitions) == (layout, 3)
        assert str(control.header.cluster_key) == cluster["cluster_key"]


def test_key_and_assignment_are_taken_as_given(tmp_path: Path) -> None:
    key = "01234567-89ab-cdef-0123-456789abcdef"
    answer = invoke(
        "create-cluster", tmp_path / "a", "--partitions", 8, "--key", key, "--assign", "0-2,5", "--format", "ndjson"
    )
    (cluster,) = answer.objects
    assert cluster["cluster_key"] == key
    assert cluster["directories"][0]["assigned"] == [0, 1, 2, 5]
    assert not (tmp_path / "a" / "3").exists()


def test_no_directory_becomes_a_partition_of_another_one(tmp_path: Path) -> None:
    """In the documented layout a directory that is called by a number is a partition that is assigned."""
    assert invoke("create-cluster", tmp_path / "a", "--partitions", 8, "--assign", "none").status == 0
    before = digest(tmp_path)
    answer = invoke("create-cluster", tmp_path / "b" / ".." / "a" / "7", "--partitions", 1)
    assert (answer.status, "a storage directory" in answer.err) == (13, True)
    answer = invoke("backup", "init", tmp_path / "a" / "7")
    assert (answer.status, "a storage directory" in answer.err) == (2, True)
    assert digest(tmp_path) == before


@pytest.mark.turns(10)
def test_assign_none(tmp_path: Path) -> None:
    answer = invoke("create-cluster", tmp_path / "a", "--partitions", 2, "--assign", "none", "--format", "ndjson")
    assert answer.objects[0]["directories"][0]["assigned"] == []


def test_documented_is_the_default_layout(tmp_path: Path) -> None:
    assert "documented" in invoke("create-cluster", tmp_path / "a", "--partitions", 1).out


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("mine")
    before = digest(tmp_path)
    answer = invoke("create-cluster", tmp_path / "a", "--partitions", 1)
    assert answer.status == 13
    assert "not empty" in answer.err
    assert answer.out == ""
    assert digest(tmp_path) == before


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["DIR"],
        ["DIR", "--partitions", "0"],
        ["DIR", "--partitions", "x"],
        ["DIR", "--partitions", "1000001"],
        ["DIR", "--partitions", "2", "--assign", "2"],
        ["DIR", "--partitions", "2", "--assign", "some"],
        ["DIR", "--partitions", "2", "--key", "short"],
        ["DIR", "--partitions", "2", "--layout", "other"],
        ["", "--partitions", "2"],
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(tmp_path: Path, arguments: list[str]) -> None:
    answer = invoke("create-cluster", *[tmp_path / "a" if word == "DIR" else word for word in arguments])
    assert answer.status == 2
    assert answer.err.startswith("Usage: ")
    assert list(tmp_path.iterdir()) == []


def test_quiet_says_nothing_on_success(tmp_path: Path) -> None:
    answer = invoke("create-cluster", tmp_path / "a", "--partitions", 1, "-q")
    assert (answer.status, answer.out, answer.err) == (0, "", "")


def test_it_says_which_programs_can_open_what_was_made(tmp_path: Path) -> None:
    """The default layout is one that release 0.13.2 fails on, and changes in failing."""
    documented = invoke("create-cluster", tmp_path / "a", "--partitions", 1, "--format", "json")
    assert documented.objects[0]["opened_by"] == ["waltzctl"]
    assert documented.err == (
        "waltzctl: documented layout: waltzctl can open what was made, waltz 0.13.2 cannot; for that there is --layout"
        " released, or later waltzctl convert DIR --layout released\n"
    )
    released = invoke("create-cluster", tmp_path / "b", "--partitions", 1, "--layout", "released", "--format", "json")
    assert released.objects[0]["opened_by"] == ["waltzctl", "waltz 0.13.2"]
    assert released.err == "waltzctl: released layout: waltzctl and waltz 0.13.2 can open what was made\n"
    said = " ".join(invoke("create-cluster", "--help").out.split())
    assert "documented: waltzctl only; released: waltzctl and release 0.13.2" in said


# --- with metadata -------------------------------------------------------------------------------------------------------


def test_directories_and_metadata_are_of_one_cluster(tmp_path: Path) -> None:
    where = tmp_path / "meta"
    made = invoke(
        *("create-cluster", tmp_path / "a", tmp_path / "b", "--partitions", 3, "--metadata", where, "--name", "demo"),
        *("--format", "ndjson"),
    )
    assert made.status == 0
    (cluster,) = made.only("cluster")
    (state,) = invoke("cluster", "show", "--metadata", where, "--format", "ndjson").objects
    assert (state["name"], state["cluster_key"], state["num_partitions"]) == ("demo", cluster["cluster_key"], 3)
    assert invoke("cluster", "key", "--metadata", where).out == f"{cluster['cluster_key']}\n"
    (told,) = invoke("cluster", "key", "--metadata", where, "--format", "json").objects
    assert (told["cluster_key"], told["num_partitions"]) == (cluster["cluster_key"], 3)
    nothing = invoke("cluster", "key", "--metadata", tmp_path / "none")
    assert (nothing.status, nothing.out) == (10, "")


def test_where_there_is_metadata_no_directory_is_made(tmp_path: Path) -> None:
    where = tmp_path / "meta"
    assert invoke("cluster", "create", "--metadata", where, "--partitions", 1).status == 0
    before = where.read_bytes()
    refused = invoke("create-cluster", tmp_path / "a", "--partitions", 3, "--metadata", where)
    assert (refused.status, "something already" in refused.err) == (13, True)
    assert not (tmp_path / "a").exists()
    assert where.read_bytes() == before


def test_metadata_that_cannot_be_written_afterwards_is_told_with_the_key(tmp_path: Path) -> None:
    where = tmp_path / "nowhere" / "meta"
    failed = invoke("create-cluster", tmp_path / "a", "--partitions", 3, "--metadata", where, "--name", "my demo")
    assert failed.status == 14
    where.parent.mkdir()
    advised = re.search(r"waltzctl (cluster create .*) writes the metadata", failed.err)
    assert advised is not None
    assert invoke(*shlex.split(advised[1])).status == 0
    assert invoke("cluster", "show", "--metadata", where, "--format", "ndjson").objects[0]["name"] == "my demo"
    key = re.search(r"--partitions 3 --key ([0-9a-f-]{36})", failed.err)
    assert key is not None
    assert invoke("status", tmp_path / "a", "--format", "ndjson").objects[0]["cluster_key"] == key[1]


def test_what_is_told_then_writes_the_metadata_as_it_was_asked_for(tmp_path: Path) -> None:
    where = tmp_path / "no where" / "meta"
    told = invoke("create-cluster", tmp_path / "a", "--partitions", 3, "--metadata", where, "--name", "the demo").err
    (command,) = re.findall(r"waltzctl (cluster create .*) writes the metadata", told)
    where.parent.mkdir()
    assert invoke(*shlex.split(command)).status == 0
    (state,) = invoke("cluster", "show", "--metadata", where, "--format", "ndjson").objects
    assert (state["name"], state["num_partitions"]) == ("the demo", 3)
    assert state["cluster_key"] in told


def test_metadata_that_somebody_made_meanwhile_is_not_to_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, make = tmp_path / "meta", directory.create_cluster

    def meanwhile(*arguments: Any, **options: Any) -> ClusterResult:
        assert invoke("cluster", "create", "--metadata", where, "--partitions", 5).status == 0
        return make(*arguments, **options)

    monkeypatch.setattr(directory, "create_cluster", meanwhile)
    refused = invoke("create-cluster", tmp_path / "a", "--partitions", 3, "--metadata", where)
    assert (refused.status, "something already" in refused.err) == (13, True)
    assert f"remove {tmp_path / 'a'}" in refused.err
    assert "cluster delete" not in refused.err
    assert "nothing was changed" not in refused.err, "the directory was made"
    assert "writes the metadata" not in refused.err, "that would be refused as well"
    assert invoke("cluster", "show", "--metadata", where, "--format", "ndjson").objects[0]["num_partitions"] == 5


def test_metadata_that_may_not_be_written_is_told_with_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ZooKeeper that lets everybody read, for instance: nobody made anything there, and no directory is to be removed."""
    where = tmp_path / "meta"

    async def create_root(_: EmbeddedStore) -> bool:
        raise NotPermittedError(f"{where}: not permitted", advice="set the variable")

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedStore, "create_root", create_root)
        failed = invoke("create-cluster", tmp_path / "a", "--partitions", 3, "--metadata", where)
    assert (failed.status, "set the variable" in failed.err, "remove" in failed.err) == (13, True, False)
    advised = re.search(r"waltzctl (cluster create .*) writes the metadata", failed.err)
    assert advised is not None
    assert invoke(*shlex.split(advised[1])).status == 0


def test_a_file_that_is_empty_becomes_the_metadata(tmp_path: Path) -> None:
    """One that ``mktemp`` made, or whose first creation met a full disk."""
    where = tmp_path / "meta"
    where.touch()
    assert invoke("create-cluster", tmp_path / "a", "--partitions", 3, "--metadata", where).status == 0
    assert invoke("cluster", "show", "--metadata", where).status == 0


@pytest.mark.parametrize(
    ("options", "status"),
    [
        pytest.param(("create", "--partitions", 1, "--name", "x" * 65535), 0, id="name"),
        pytest.param(("create", "--partitions", 1, "--name", "x" * 65536), 2, id="longer name"),
        pytest.param(("add-node", "h:1", "--yes", "--group", 2**31 - 1), 0, id="group"),
        pytest.param(("add-node", "h:1", "--yes", "--group", 2**31), 2, id="larger group"),
        pytest.param(("auto-assign", "--yes", "--group", 2**31), 2, id="group that none can be in"),
    ],
)
def test_what_the_metadata_has_no_room_for_is_refused(tmp_path: Path, options: tuple[object, ...], status: int) -> None:
    if options[0] != "create":
        assert invoke("cluster", "create", "--metadata", tmp_path / "meta", "--partitions", 1).status == 0
    answer = invoke("cluster", *options, "--metadata", tmp_path / "meta")
    assert answer.status == status
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("name", ["h:01", "h: 1", "h:abc", "h:0"])
def test_a_node_whose_name_only_a_tool_of_the_release_gives_can_be_taken_away(tmp_path: Path, name: str) -> None:
    """It looks at nothing but that there are two parts."""
    where = tmp_path / "meta"
    assert invoke("cluster", "create", "--metadata", where, "--partitions", 1).status == 0

    async def name_it() -> None:
        store = await EmbeddedStore.open(where)
        await add_node(store, name, admin_port=2, group=0)
        await assign(store, name, [0])
        await store.close()

    asyncio.run(name_it())
    refused = invoke("cluster", "remove-node", name, "--metadata", where, "--yes")
    assert refused.status == 13
    (command,) = re.findall(r"waltzctl (cluster unassign .*) --partition \.\.\.", refused.err)
    for words in ([*shlex.split(command), "--partition", 0], ["cluster", "remove-node", name]):
        done = invoke(*words, "--metadata", where, "--timeout", "1s", "--yes")
        assert done.status == 0, done.err
    (state,) = invoke("cluster", "show", "--metadata", where, "--format", "ndjson").objects
    assert state["nodes"] == []


def test_a_name_that_is_too_long_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    answer = invoke(
        *("create-cluster", tmp_path / "a", "--partitions", 1, "--metadata", tmp_path / "meta", "--name", "x" * 65536)
    )
    assert answer.status == 2
    assert [*tmp_path.iterdir()] == []


def test_a_name_without_metadata_is_no_name(tmp_path: Path) -> None:
    assert invoke("create-cluster", tmp_path / "a", "--partitions", 3, "--name", "x").status == 2
