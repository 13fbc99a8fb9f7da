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


def test_marks_come_from_the_control_file_and_a_loss_behind_the_end_is_told(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 60, 1: 5}, local_low_water_mark=4)
    tail = segment_of(storage, 1)
    tail.write_bytes(tail.read_bytes()[:-1])
    answer = invoke("salvage", storage, "--to", tmp_path / "new", "--format", "json")
    (report,) = answer.objects
    assert answer.status == 5
    assert (report["layout"], report["missing"], report["acknowledged_missing"], report["marks_unknown"]) == (
        "released", 0, 1, []
    )  # fmt: skip
    (control,) = report["controls"]
    assert (control["path"], control["offset"], control["used"]) == (str(storage / "waltz-storage.ctl"), 0, True)
    assert [one["local_low_water_mark"] for one in report["partitions"]] == [4, 4]
    assert [one["acknowledged_missing"] for one in report["partitions"]] == [[], [{"first": 4, "last": 4}]]
    assert "acknowledged-missing" in invoke("verify", tmp_path / "new").out
    out = invoke("salvage", storage, "--to", tmp_path / "again", "--format", "table").out
    assert "missing, though acknowledged: 4..4 (local low-water mark 4)" in out
    assert "1 acknowledged and missing at the end" in out.splitlines()[-1]


def test_without_a_control_file_it_says_that_there_are_no_marks(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 60})
    answer = invoke("salvage", segment_of(storage), "--to", tmp_path / "new")
    assert "no control file was found; every partition has the initial marks" in answer.err
    assert invoke("salvage", segment_of(storage), "--to", tmp_path / "quiet", "-q").err == ""


def test_a_control_file_alone_comes_back(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 60, 2: 5})
    control = storage / "waltz-storage.ctl"
    whole = control.read_bytes()
    (tmp_path / "disk.img").write_bytes(b"x" * 999 + whole + bytes(3000))
    control.unlink()
    answer = invoke("salvage", tmp_path / "disk.img", "--control", "--to", storage, "--format", "json")
    (found,) = answer.objects
    assert (answer.status, found["type"], found["layout"], found["marks_unknown"]) == (
        0, "salvaged-control", "released", []
    )  # fmt: skip
    assert [(one["offset"], one["used"]) for one in found["controls"]] == [(999, True)]
    assert control.read_bytes() == whole
    assert invoke("verify", storage).status == 0
    answer = invoke("salvage", tmp_path / "disk.img", "--control", "--to", storage)
    assert answer.status == 13
    assert "never overwritten" in answer.err
    control.unlink()
    answer = invoke("salvage", tmp_path / "disk.img", "--control", "--to", storage, "--format", "table")
    assert answer.out.splitlines()[-1] == (
        f"SALVAGED  the control file of 3 partitions written to {storage}; verify finds nothing wrong. The sources were not"
        " modified."
    )
    control.unlink()
    quiet = invoke("salvage", tmp_path / "disk.img", "--control", "--to", storage, "-q")
    assert (quiet.status, quiet.out, quiet.err) == (0, "", "")


def test_control_files_that_contradict_each_other_are_named_one_by_one(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 60})
    control = storage / "waltz-storage.ctl"
    other = bytearray(control.read_bytes())
    other[11] ^= 1  # another time of creation
    (tmp_path / "disk.img").write_bytes(control.read_bytes() + bytes(3000) + other)
    control.unlink()
    answer = invoke("salvage", tmp_path / "disk.img", "--control", "--to", storage)
    second = f"{tmp_path / 'disk.img'}:{3000 + len(other)}"
    assert answer.status == 2
    assert second in answer.err
    assert "--control-at" in answer.err
    assert not control.exists()
    assert invoke("salvage", tmp_path / "disk.img", "--control", "--control-at", second, "--to", storage).status == 0
    assert control.read_bytes() == other


def test_what_control_cannot_be_combined_with(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 5})
    for words in (["--partition", "0"], ["--layout", "released"]):
        assert invoke("salvage", storage, "--control", "--to", tmp_path, *words).status == 2
    (tmp_path / "noise").write_bytes(bytes(5000))
    assert invoke("salvage", tmp_path / "noise", "--control", "--to", tmp_path).status == 10


def test_what_cannot_be_done(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 5})
    (tmp_path / "noise").write_bytes(bytes(5000))
    assert invoke("salvage", tmp_path / "noise", "--to", tmp_path / "new").status == 10
    assert invoke("salvage", tmp_path / "missing", "--to", tmp_path / "new").status in (2, 10)
    assert invoke("salvage", storage).status == 2
    assert invoke("salvage", storage, "--to", tmp_path / "new", "--key", "x").status == 2
    assert invoke("salvage", storage, "--to", storage).status in (2, 13)
    assert not (tmp_path / "new").exists()
