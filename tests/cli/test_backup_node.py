"""``backup create`` of a node that is another process: what is kept, what is refused, what a death on either side costs."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests import warm_start
from tests.builders import KEY, build_directory
from tests.cli.nodes import Served, serving
from tests.cli.running import command_line, environment, invoke


@pytest.fixture
def place(tmp_path: Path) -> Path:
    assert invoke("backup", "init", tmp_path / "vault").status == 0
    return tmp_path / "vault"


def url(served: Served) -> str:
    return f"waltz://127.0.0.1:{served.ready['admin_port']}"


@pytest.mark.turns(8)
def test_the_whole_way_over_tls(tmp_path: Path, place: Path) -> None:
    source = build_directory(tmp_path / "source", {0: 120, 1: 30}, num_partitions=3, per_segment=17)
    with serving(source, "--port", "0", "--admin-port", "0", "--http-port", "0") as served:
        answer = invoke("backup", "create", place, url(served), "--tag", "far", "--format", "ndjson", "-v")
        assert answer.status == 0, answer.err
        assert "taken on trust" in answer.err
        assert "records" in answer.err
        (first,) = answer.objects
        assert {name: first[name] for name in ("source", "tag", "num_partitions", "live", "damaged")} == {
            "source": url(served), "tag": "far", "num_partitions": 3, "live": True, "damaged": 0,
        }  # fmt: skip
        (of_directory,) = invoke("backup", "create", place, source, "--format", "ndjson").objects
        assert (of_directory["new_pages"], of_directory["pages"]) == (0, first["pages"])
        figures = tmp_path / "backup.prom"
        answer = invoke("backup", "create", place, url(served), "--prometheus", figures, "--format", "table")
        assert answer.status == 0
        assert "0 pieces of" in answer.out
        assert f'source="{url(served)}"' in figures.read_text()
        key = ("--key", str(KEY), "--partitions")
        assert invoke("backup", "create", place, url(served), *key, "3").status == 0
        assert invoke("backup", "create", place, url(served), *key, "4").status == 12
        assert invoke("backup", "create", place, url(served), "--plaintext").status == 14
        assert invoke("backup", "create", place, url(served), "--partition", "2").status == 2
        data_port = f"waltz://127.0.0.1:{served.ready['port']}"
        assert invoke("backup", "create", place, data_port).status == 14
        assert str(KEY) not in served.http("/metrics"), "the key is for who may ask for all records"
        assert served.stop() == 0
    assert invoke("backup", "create", place, url(served)).status == 14
    assert invoke("backup", "verify", place).status == 0
    assert invoke("backup", "restore", place, first["id"], "--to", tmp_path / "back").status == 0
    assert invoke("verify", tmp_path / "back", "--for", "released").status == 0
    for path in (tmp_path / "back", f"vault:{place}::{first['id']}"):
        compared = invoke("compare", path, source, "--format", "ndjson").objects
        assert {one["verdict"] for one in compared if one["type"] == "partition-comparison"} == {"equal"}
        statuses = [invoke("status", one, "--format", "ndjson").objects[0]["partitions"] for one in (path, source)]
        for name in ("partition", "assigned", "session_id", "low_water_mark", "local_low_water_mark", "records"):
            assert [one[name] for one in statuses[0]] == [one[name] for one in statuses[1]], name
    with serving(tmp_path / "back", "--port", "0", "--admin-port", "0", "--http-port", "off") as served:
        assert invoke("verify", url(served)).status == 0, "a node serves what was restored"


def test_damage_is_told(tmp_path: Path, place: Path) -> None:
    source = build_directory(tmp_path / "source", {0: 120}, per_segment=50)
    options = ("--port", "0", "--admin-port", "0", "--http-port", "off", "--plaintext")
    with serving(source, *options) as served:
        segment = source / "0" / f"{50:019}.seg"
        data = bytearray(segment.read_bytes())
        data[200] ^= 1
        segment.write_bytes(data)
        answer = invoke("backup", "create", place, url(served), "--plaintext", "--format", "table")
    assert answer.status == 5
    assert "BACKED UP WITH DAMAGE" in answer.out
    assert f"waltzctl verify {url(served)}" in answer.out
    assert invoke("backup", "restore", place, "latest", "--to", tmp_path / "back").status == 5


@pytest.mark.turns(8)
@pytest.mark.parametrize("dies", ["backup", "node"])
def test_killed_at_any_moment(tmp_path: Path, place: Path, dies: str, request: pytest.FixtureRequest) -> None:
    source = build_directory(tmp_path / "source", {0: 20000, 1: 5000}, size=300, per_segment=7000)
    kept = invoke("backup", "create", place, build_directory(tmp_path / "small", {0: 10}), "--format", "ndjson").objects
    options = ("--port", "0", "--admin-port", "0", "--http-port", "off", "--plaintext")
    rounds = 100 if request.config.getoption("--long") else 3
    for number in range(rounds):
        with serving(source, *options) as served:
            words = ("backup", "create", place, url(served), "--plaintext", "--quiet")
            with warm_start.Popen(command_line(*words), env=environment(), stdout=-3, stderr=-3) as process:
                time.sleep(0.2 + 0.6 * number / rounds)
                victim = process.pid if dies == "backup" else served.process.pid
                os.kill(victim, signal.SIGKILL)
                status = process.wait()
            assert status in ((-9, 0) if dies == "backup" else (14, 0))
        assert invoke("backup", "verify", place).status in (0, 3), "at most room that nobody uses yet"
        there = invoke("backup", "list", place, "--format", "ndjson").objects
        assert kept[0]["id"] in {one["id"] for one in there}
        assert len(there) - 1 <= number + 1
    with serving(source, *options) as served:
        assert invoke("backup", "create", place, url(served), "--plaintext").status == 0
    assert invoke("backup", "verify", place).status == 0
    assert invoke("backup", "restore", place, "latest", "--to", tmp_path / "back").status == 0
    assert invoke("compare", tmp_path / "back", source).status == 0
