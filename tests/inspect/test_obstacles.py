"""What has to be mended before the remedy of another finding does anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.inspect.helpers import age, idx
from waltzctl.engine.findings import Code, Finding, Ran, left_by, make_finding
from waltzctl.engine.findings.obstacles import Obstacles, held_back
from waltzctl.engine.inspect.dump import dump_segments
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.segment import index_name, segment_name

STORAGE = Path("/d")
RECOVER = "waltzctl recover /d --partition 0"
FROM = f"{RECOVER} --from REPLICA"
FORGET = f"{RECOVER} --forget-losses"
SALVAGE = "waltzctl salvage /d --to DIR"
GIVE_UP = frozenset({"--allow-data-loss"})


def found(code: Code, segment: int | None = 8, partition: int | None = 0, *, index: bool = False) -> Finding:
    path = STORAGE / CONTROL_FILE_NAME
    if segment is not None:
        path = STORAGE / "0" / (index_name(segment) if index else segment_name(segment))
    return make_finding(code, path, "", storage_directory=STORAGE, partition=partition, segment=segment)


@pytest.mark.parametrize("header", [Code.SEGMENT_KEY, Code.SEGMENT_PARTITION, Code.SEGMENT_NAME, Code.UNKNOWN_VERSION])
@pytest.mark.parametrize(
    ("code", "segment", "waits"),
    [
        (Code.RECORD_ORDER, 8, True),
        (Code.RECORD_ORDER, 7, False),
        (Code.RECORD_ORDER, 9, False),
        (Code.INDEX_SHORT, 8, True),
        (Code.INDEX_SHORT, 9, False),
        (Code.SEGMENT_OVERLAP, 8, True),
        (Code.SEGMENT_OVERLAP, 0, True),
        (Code.SEGMENT_OVERLAP, 16, True),
        (Code.ACKNOWLEDGED_MISSING, 7, True),
        (Code.DURABLE_MISSING, 8, True),
        (Code.ACKNOWLEDGED_MISSING, 9, False),
        (Code.SEGMENT_GAP, 9, False),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_of_a_file_that_may_be_nobodys_nothing_else_is_mended(
    header: Code, code: Code, segment: int, *, waits: bool, together: bool
) -> None:
    obstacles, first, one = Obstacles(), found(header), found(code, segment)
    told = list(obstacles.together([one, first]) if together else map(obstacles.behind, [first, one]))
    behind = told[0] if together else told[1]
    assert first in told
    assert (behind.remedy, behind.waits_for) == ((RECOVER, header) if waits else (one.remedy, None))
    after = left_by(behind, STORAGE, Ran("recover", frozenset({"--from"})))
    if waits:
        assert after.remedy is None, "what gives records up would do nothing"


@pytest.mark.parametrize("code", [Code.RECORD_ORDER, Code.SEGMENT_OVERLAP])
def test_another_partition_waits_for_nothing(code: Code) -> None:
    obstacles, one = Obstacles(), found(code, 8, 1)
    assert [obstacles.behind(each) for each in (found(Code.SEGMENT_KEY), one)][1] == one


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (Code.CONTROL_FILE_MISSING, SALVAGE),
        (Code.CONTROL_FILE_SIZE, "waltzctl recover /d"),
        (Code.SPECIAL_FILE, None),
        (Code.JOURNAL_PENDING, None),
    ],
)
def test_everything_waits_for_the_control_file(code: Code, remedy: str | None) -> None:
    obstacles = Obstacles()
    first = obstacles.behind(found(code, None, None))
    assert (first.remedy, first.waits_for) == (remedy, None)
    obstacles.note(found(Code.JOURNAL_PENDING if code is Code.SPECIAL_FILE else Code.SPECIAL_FILE, None, None))
    for one in (found(Code.RECORD_ORDER), found(Code.INDEX_SHORT, index=True)):
        behind = obstacles.behind(one)
        assert (behind.remedy, behind.waits_for) == (remedy, code), "of two the first"
    for one in (found(Code.RESERVED_NOT_ZERO), found(Code.REPAIR_INTERRUPTED, None, None)):
        assert obstacles.behind(one) == one, "nothing that this keeps from being done"


@pytest.mark.parametrize(
    "one",
    [
        found(Code.RESERVED_NOT_ZERO, None, None),
        found(Code.CONTROL_FILE_EXTENDED, None, None),
        found(Code.UNKNOWN_VERSION, None, None),
        make_finding(Code.SPECIAL_FILE, STORAGE / "pipe", "", storage_directory=STORAGE),
        found(Code.UNKNOWN_VERSION, index=True),
    ],
    ids=str,
)
def test_what_keeps_no_repair_from_a_place(one: Finding) -> None:
    obstacles = Obstacles()
    assert obstacles.behind(one) == one
    for behind in (found(Code.RECORD_ORDER), found(Code.SEGMENT_OVERLAP), found(Code.ACKNOWLEDGED_MISSING, None)):
        assert obstacles.behind(behind) == behind


def test_of_several_headers_a_finding_waits_for_that_of_its_own_segment() -> None:
    obstacles, of_index = Obstacles(), found(Code.UNKNOWN_VERSION, index=True)
    for one in (found(Code.SEGMENT_KEY, 16), found(Code.UNKNOWN_VERSION, 8)):
        assert obstacles.behind(one) == one
    told = [obstacles.behind(found(Code.SEGMENT_OVERLAP, segment)).waits_for for segment in (0, 8, 16)]
    assert told == [Code.SEGMENT_KEY, Code.UNKNOWN_VERSION, Code.SEGMENT_KEY]
    assert obstacles.behind(of_index) == of_index, "the next step is the same for both"


@pytest.mark.parametrize("header", [0, 8])
@pytest.mark.parametrize("code", [Code.SEGMENT_OVERLAP, Code.ACKNOWLEDGED_MISSING])
def test_of_a_lost_end_of_a_partition_without_segments_any_header_may_have_it(code: Code, header: int) -> None:
    obstacles = Obstacles()
    obstacles.note(found(Code.SEGMENT_KEY, header))
    assert obstacles.behind(found(code, 16 if code is Code.SEGMENT_OVERLAP else None)).waits_for is Code.SEGMENT_KEY


def test_a_copy_goes_its_own_way() -> None:
    """Each task of a Spark job has the obstacles of the storage directory, and notes those of its segments."""
    first, one = Obstacles(), found(Code.RECORD_ORDER)
    first.special(0)
    first.note(found(Code.SEGMENT_KEY, 0))
    copied = first.copy()
    assert copied == first
    copied.special(1)
    copied.note(found(Code.SEGMENT_KEY))
    assert first.behind(one).waits_for is Code.SPECIAL_FILE
    assert copied.behind(one).waits_for is Code.SEGMENT_KEY
    copied.note(found(Code.JOURNAL_PENDING, None, None))
    assert first.copy() == first != copied.copy() == copied


@pytest.mark.parametrize(
    ("one", "least"),
    [
        (found(Code.SEGMENT_OVERLAP), 0),
        (found(Code.DURABLE_MISSING), 8),
        (found(Code.ACKNOWLEDGED_MISSING, None), 0),
        (found(Code.SEGMENT_GAP), None),
        (make_finding(Code.SEGMENT_OVERLAP, STORAGE / "0" / segment_name(8), "", partition=0, segment=8), None),
    ],
)
def test_which_headers_may_keep_a_finding_from_being_mended(one: Finding, least: int | None) -> None:
    obstacles = Obstacles()
    assert obstacles.headers_from(one) == least
    obstacles.note(found(Code.JOURNAL_PENDING, None, None))
    assert obstacles.headers_from(one) is None, "that one is mended first"


def test_beside_a_special_file_only_indexes_are_mended() -> None:
    obstacles = Obstacles()
    obstacles.special(0)
    behind = [obstacles.behind(found(one)) for one in (Code.RECORD_ORDER, Code.INDEX_SHORT)]
    assert [one.remedy for one in behind] == [None, "waltzctl rebuild-index /d --partition 0"]
    assert left_by(behind[0], STORAGE, Ran("recover")).remedy is None


def test_what_gives_records_up_keeps_the_replica_that_was_named() -> None:
    """It may hold a part of them, which was given up as well."""
    one = found(Code.DURABLE_MISSING)
    assert one.remedy == FROM
    assert left_by(one, STORAGE, Ran("recover", frozenset({"--from"}))).remedy == f"{FROM} --allow-data-loss"
    assert left_by(one, STORAGE, Ran("recover", frozenset({"--from"}) | GIVE_UP)).remedy is None


@pytest.mark.parametrize("forgot", ["--forget-losses", "--forget-journal"])
def test_what_only_forgets_has_mended_nothing(forgot: str) -> None:
    """Behind it --from was named, and not the command that comes first."""
    ran = Ran("recover", frozenset({forgot}))
    assert left_by(found(Code.SEGMENT_PARTITION), STORAGE, ran).remedy == RECOVER
    assert left_by(found(Code.RECORD_ORDER), STORAGE, ran).remedy == FROM
    assert left_by(found(Code.LOSS_ACCEPTED), STORAGE, Ran("recover", frozenset({"--from"}))).remedy == FORGET
    both = Ran("recover", frozenset({"--from", "--forget-losses"}))
    assert left_by(found(Code.LOSS_ACCEPTED), STORAGE, both).remedy is None


@pytest.mark.parametrize("header", [Code.SEGMENT_KEY, Code.SEGMENT_PARTITION, Code.SEGMENT_NAME, Code.UNKNOWN_VERSION])
@pytest.mark.parametrize("ran", [Ran("recover"), Ran("recover", frozenset({"--from"}))])
def test_beside_a_file_that_may_be_anothers_nothing_is_given_up(header: Code, ran: Ran) -> None:
    """Its place, or it, may tell of what would be: an index went that alone proved transactions, and so did the ledger."""
    obstacle = left_by(found(header), STORAGE, ran)
    codes = (Code.SEGMENT_GAP, Code.SEGMENT_OVERLAP, Code.LOSS_ACCEPTED, Code.INDEX_LONG)
    first = [left_by(found(code, 16), STORAGE, ran) for code in codes]
    other = left_by(found(Code.SEGMENT_GAP, 16, 1), STORAGE, ran)
    alone = left_by(found(Code.ACCEPTED_LOSSES_DAMAGED, None, None), STORAGE, Ran("recover"))
    told = held_back([*first, obstacle, other, alone])
    assert told[-3:] == (obstacle, other, alone)
    gives_up = [
        one for one in first if one.remedy is not None and ("--allow" in one.remedy or "--forget" in one.remedy)
    ]
    assert bool(gives_up) == bool(ran.options)
    for one, was in zip(told, first, strict=False):
        assert one == (replace(was, remedy=obstacle.remedy, waits_for=header) if was in gives_up else was)
    assert held_back([*first, other]) == (*first, other), "no file is in doubt"


def test_every_command_knows_what_keeps_a_directory_from_being_repaired(tmp_path: Path) -> None:
    """Only verify did, and dump named a command that does nothing there."""
    storage = build_directory(tmp_path / "d", {0: 20, 1: 10}, per_segment=10)
    (storage / CONTROL_FILE_NAME).unlink()
    idx(storage, 0, 10).unlink()
    told = [one for one in dump_segments(age(storage)) if isinstance(one, Finding)]
    assert [(one.code, one.remedy, one.waits_for) for one in told] == [
        (Code.INDEX_MISSING, f"waltzctl salvage {storage} --to DIR", Code.CONTROL_FILE_MISSING)
    ]
