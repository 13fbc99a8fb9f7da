"""salvage on the command line."""

from __future__ import annotations

from pathlib import Path

from tests.builders import KEY, build_directory, digest
from tests.cli.damage import damage_record, segment_of
from tests.cli.running import invoke


def test_a_clean_directory_comes_out_whole(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 60, 2: 5})
    before = digest(storage)
    answer = invoke("salvage", storage, "--to", tmp_path / "new", "--layout", "released", "--format", "json")
    (report,) = answer.objects
    assert answer.status == 0
    assert (report["found"], report["written"], report["missing"], report["cluster_key"]) == (65, 65, 0, str(KEY))
    assert [one["partition"] for one in report["partitions"]] == [0, 2]
    assert invoke("verify", tmp_path / "new").status == 0
    assert digest(storage) == before


def test_a_damaged_segment_alone_loses_one_record(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 50})
    lost = damage_record(segment_of(storage), 10)
    answer = invoke("salvage", segment_of(storage), "--to", tmp_path / "new", "--key", KEY, "--partition", 0,
                    "--partitions", 4, "--format", "ndjson")  # fmt: skip
    (report,) = answer.objects
    assert answer.status == 5
    assert report["written"] == 49
    assert report["num_partitions"] == 4
    assert report["partitions"][0]["missing"] == [{"first": lost, "last": lost}]


def test_people_get_a_sentence(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 50})
    damage_record(segment_of(storage), 10)
    out = invoke("salvage", storage, "--to", tmp_path / "new", "--format", "table").out
    assert "missing: 10" in out
    assert out.splitlines()[-1] == (
        f"SALVAGED IN PART  49 records written to {tmp_path / 'new'}; 1 missing. The sources were not modified."
    )
    assert invoke("salvage", storage, "--to", tmp_path / "quiet", "-q").out != ""


def test_what_cannot_be_done(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 5})
    (tmp_path / "noise").write_bytes(bytes(5000))
    assert invoke("salvage", tmp_path / "noise", "--to", tmp_path / "new").status == 10
    assert invoke("salvage", tmp_path / "missing", "--to", tmp_path / "new").status in (2, 10)
    assert invoke("salvage", storage).status == 2
    assert invoke("salvage", storage, "--to", tmp_path / "new", "--key", "x").status == 2
    assert invoke("salvage", storage, "--to", storage).status in (2, 13)
    assert not (tmp_path / "new").exists()
