"""verify --for released without the release: what it says of what, how grave, with which command; tests/interop compares it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.builders import build_directory, digest
from tests.cli.running import invoke
from tests.inspect.helpers import age, flip, idx, run, seg
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.findings import Finding
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import HEADER_SIZE, SEGMENT_HEADER

SIZE = 20
RECORD = SIZE + 40
DAMAGE, REPAIRABLE = "damage", "repairable"


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build(tmp_path)


def build(tmp_path: Path, layout: Layout = Layout.RELEASED, mark: int = 14) -> Path:
    return build_directory(
        tmp_path / "s", {0: 30, 1: 30}, layout=layout, per_segment=10, size=SIZE, local_low_water_mark=mark
    )


def begin_with(path: Path, first: int) -> None:
    """Write another first transaction id into the header of a data file or an index."""
    raw = bytearray(path.read_bytes())
    place = SEGMENT_HEADER.offset_of("first_transaction_id")
    raw[place : place + 8] = first.to_bytes(8)
    path.write_bytes(raw)


def about_release(storage: Path) -> tuple[bool | None, list[Finding]]:
    findings, summary = run(age(storage), for_released=True)
    return summary.released_starts, [one for one in findings if one.code.startswith("released-")]


def test_a_clean_directory_starts_and_nothing_is_changed(storage: Path) -> None:
    before = digest(storage)
    assert about_release(storage) == (True, [])
    assert digest(storage) == before


def test_nothing_is_said_unless_it_is_asked_for(storage: Path) -> None:
    idx(storage, 0, 10).unlink()
    findings, summary = run(age(storage))
    assert summary.released_starts is None
    assert not [one for one in findings if one.code.startswith("released-")]


def test_the_documented_layout_is_converted(tmp_path: Path) -> None:
    storage = build(tmp_path, Layout.DOCUMENTED)
    starts, (found,) = about_release(storage)
    assert (starts, found.code, found.severity) == (False, "released-refuses", REPAIRABLE)
    assert found.remedy == f"waltzctl convert {storage} --layout released"


@pytest.mark.parametrize("size", [None, 0, HEADER_SIZE - 1])
def test_an_index_that_is_missing_or_short_is_rebuilt(storage: Path, size: int | None) -> None:
    """And then it starts."""
    path = idx(storage, 0, 10)
    if size is None:
        path.unlink()
    else:
        os.truncate(path, size)
    starts, (found,) = about_release(storage)
    assert (starts, found.code, found.severity) == (False, "released-refuses", REPAIRABLE)
    assert found.remedy == f"waltzctl rebuild-index {storage} --partition 0"
    assert invoke(*found.remedy.split()[1:], "--yes").status == 0
    assert about_release(storage) == (True, [])


def test_an_index_of_a_header_is_written_by_the_release_itself(storage: Path) -> None:
    """One step to the other side."""
    os.truncate(idx(storage, 0, 10), HEADER_SIZE)
    assert about_release(storage) == (True, [])


def test_an_empty_last_data_file_is_removed(storage: Path) -> None:
    """What a crash in a roll-over leaves."""
    shutil.copy(idx(storage, 0, 20), idx(storage, 0, 30))
    os.truncate(idx(storage, 0, 30), HEADER_SIZE)
    seg(storage, 0, 30).write_bytes(b"")
    starts, (found,) = about_release(storage)
    assert (starts, found.severity, found.remedy) == (False, REPAIRABLE, f"waltzctl recover {storage} --partition 0")
    assert found.remedy is not None
    assert invoke(*found.remedy.split()[1:], "--yes").status == 0
    assert about_release(storage) == (True, [])


def test_a_data_file_that_lost_its_records_is_damage(storage: Path) -> None:
    os.truncate(seg(storage, 0, 20), 50)
    starts, (found,) = about_release(storage)
    assert (starts, found.code, found.severity, found.remedy) == (False, "released-refuses", DAMAGE, None)


def test_an_unknown_name_is_moved_away_by_a_person(storage: Path) -> None:
    (storage / "0" / "x.seg").write_text("x")
    starts, (found,) = about_release(storage)
    assert (starts, found.severity, found.remedy) == (False, REPAIRABLE, None)


@pytest.mark.parametrize(("mark", "last"), [(14, True), (-1, True), (29, False)])
def test_records_behind_a_bad_one_would_be_gone(tmp_path: Path, mark: int, *, last: bool) -> None:
    """Damage, with the ids; where the scan does not reach the place, it is not noticed."""
    storage = build(tmp_path, mark=mark)
    flip(seg(storage, 0, 20), HEADER_SIZE + RECORD * 4 + 40)
    starts, found = about_release(storage)
    assert starts is True
    assert [(one.code, one.severity, one.transaction_id, one.segment) for one in found] == (
        [("released-loses", DAMAGE, 24, 20)] if last else []
    )
    if found:
        assert "transactions 25 to 29 behind it are good" in found[0].message


@pytest.mark.parametrize("files", [(seg,), (seg, idx)])
def test_all_records_of_a_segment_whose_header_begins_behind_them_would_be_gone(
    storage: Path, files: Sequence[Callable[..., Path]]
) -> None:
    """The release looks for the id of the header where the first record is, and cuts the file in front of it."""
    for file in files:
        begin_with(file(storage, 0, 10), 1001)
    starts, (found,) = about_release(storage)
    assert (starts, found.code, found.severity, found.segment) == (True, "released-loses", DAMAGE, 10)
    assert "in front of transaction 1001 without a word: transactions 10 to 19 behind it are good" in found.message


@pytest.mark.parametrize("damaged", [False, True])
def test_a_wrong_first_id_of_the_data_is_mended_before_an_index_is_built(storage: Path, *, damaged: bool) -> None:
    """`rebuild-index` is refused while the header is wrong.  Without a first record that proves the name, no command is told."""
    begin_with(seg(storage, 0, 20), 11)
    if damaged:
        flip(seg(storage, 0, 20), HEADER_SIZE + 40)
    starts, (found,) = about_release(storage)
    assert starts is False
    if damaged:
        assert (found.severity, found.remedy) == (DAMAGE, None)
        return
    assert (found.severity, found.remedy) == (REPAIRABLE, f"waltzctl recover {storage} --partition 0")
    assert found.remedy is not None
    assert invoke(*found.remedy.split()[1:], "--yes").status == 0
    assert about_release(storage) == (True, [])


def test_without_an_index_too_the_header_is_mended_first(storage: Path) -> None:
    begin_with(seg(storage, 0, 20), 1001)
    idx(storage, 0, 20).unlink()
    starts, (found,) = about_release(storage)
    assert (starts, found.remedy) == (False, f"waltzctl recover {storage} --partition 0")
    assert invoke("recover", storage, "--partition", "0", "--yes").status == 0
    assert about_release(storage) == (True, [])


def test_a_record_that_stands_twice_is_not_gone(storage: Path) -> None:
    raw = seg(storage, 0, 20).read_bytes()
    seg(storage, 0, 20).write_bytes(raw + raw[-RECORD:])
    assert about_release(storage) == (True, [])


@pytest.mark.parametrize(("first", "starts"), [(36, True), (37, False)])
def test_an_index_is_not_cut_in_front_of_its_beginning(storage: Path, first: int, *, starts: bool) -> None:
    """Also where no entry would be written, because the data file holds no record."""
    os.truncate(seg(storage, 0, 20), HEADER_SIZE)
    begin_with(idx(storage, 0, 20), first)
    assert about_release(storage)[0] is starts


def test_the_largest_ids_in_a_header_wrap_as_in_the_release(storage: Path) -> None:
    """The number of the last entry is one below 0 then, and so the scan begins at the beginning."""
    begin_with(idx(storage, 0, 10), 2**63 - 1)
    assert about_release(storage) == (True, [])


@pytest.mark.parametrize(("mark", "told"), [(28, True), (29, True), (27, False)])
def test_an_acknowledged_record_at_the_end_would_be_cut(tmp_path: Path, mark: int, *, told: bool) -> None:
    """Nothing follows it; at the mark the release refuses, in front of it it cuts what nobody was told of."""
    storage = build(tmp_path, mark=mark)
    place = 8 if mark == 28 else 9
    flip(seg(storage, 0, 20), HEADER_SIZE + RECORD * place + 40)
    starts, found = about_release(storage)
    assert bool(found) is told
    assert starts is (not told)


@pytest.mark.parametrize("mark", [19, 20, 29])
@pytest.mark.parametrize("held", [False, True])
def test_what_a_failed_write_left_is_no_record_if_the_next_segment_has_it(
    tmp_path: Path, mark: int, *, held: bool
) -> None:
    storage = build(tmp_path, mark=mark)
    with seg(storage, 0, 10).open("ab") as file:
        file.write(seg(storage, 0, 20).read_bytes()[HEADER_SIZE : HEADER_SIZE + RECORD - 1])
    if not held:
        for one, size in ((seg(storage, 0, 20), HEADER_SIZE), (idx(storage, 0, 20), HEADER_SIZE)):
            os.truncate(one, size)
    starts, found = about_release(storage)
    assert starts is True
    assert ["acknowledged" in one.message for one in found] == ([] if held or mark == 19 else [True])


@pytest.mark.parametrize("entries", [0, 3])
@pytest.mark.parametrize("first", [29, 30, 40])
def test_an_orphan_index_blocks_a_later_roll_over(storage: Path, first: int, entries: int) -> None:
    """Only where a segment may begin yet; one with entries is nothing that a command takes away without loss."""
    kept = idx(storage, 0, 20).read_bytes()
    idx(storage, 0, first).write_bytes(kept[: HEADER_SIZE + 8 * entries])
    starts, found = about_release(storage)
    assert starts is True
    wanted = [("released-blocks", DAMAGE if entries else REPAIRABLE)]
    assert [(one.code, one.severity) for one in found] == ([] if first < 30 else wanted)


def test_a_short_control_file_is_forgotten(storage: Path) -> None:
    """It starts, without any partition."""
    os.truncate(storage / "waltz-storage.ctl", 127)
    starts, (found,) = about_release(storage)
    assert (starts, found.code, found.severity) == (True, "released-loses", DAMAGE)


def test_a_part_of_a_directory_is_no_place_for_a_node(storage: Path) -> None:
    with pytest.raises(InvalidRequestError, match="whole storage directory"):
        run(storage / "0", for_released=True)
    other = Path(shutil.copytree(storage, storage.with_name("other")))
    for paths in ((storage, other / "0"), (storage / "0", other)):
        with pytest.raises(InvalidRequestError, match="whole storage directory"):
            run(*paths, for_released=True)


def test_the_command_tells_it(storage: Path) -> None:
    """Findings, the key of the summary, the sentence, the exit status; --partition does not go with it."""
    answer = invoke("verify", storage, "--for", "released", "--format", "ndjson")
    assert (answer.status, answer.objects[-1]["released_starts"]) == (0, True)
    idx(storage, 0, 10).unlink()
    answer = invoke("verify", age(storage), "--for", "released", "--format", "ndjson")
    assert (answer.status, answer.objects[-1]["released_starts"]) == (3, False)
    assert "Release 0.13.2 does not start on it." in invoke("verify", storage, "--for", "released").out
    assert invoke("verify", storage, "--format", "ndjson").objects[-1]["released_starts"] is None
    assert invoke("verify", storage, "--for", "released", "--partition", "0").status == 2


def test_it_is_not_said_to_refuse_what_it_does_not_open(storage: Path) -> None:
    """An index without its data file: a release does not look at it when it starts."""
    idx(storage, 0, 77).symlink_to("nowhere")
    findings, summary = run(age(storage), for_released=True)
    assert summary.released_starts is True
    assert [one.message for one in findings] == ["it is a link that leads nowhere, not a regular file"]
