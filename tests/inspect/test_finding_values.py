"""What a finding says of itself: the next step for it, and the place in a header."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.inspect.helpers import patch
from waltzctl.engine.findings import Code, Ran, Where, loss_finding, make_finding, told_of_end, without_held
from waltzctl.engine.findings.control_files import control_findings
from waltzctl.engine.findings.headers import ReservedByte
from waltzctl.engine.losses import DataGone
from waltzctl.formats.control import decode_control


@pytest.mark.parametrize(
    ("ran", "remedy", "covered"),
    [
        (Ran("verify"), "verify", True),
        (Ran("verify", frozenset({"--quick"})), "verify", True),
        (Ran("recover"), "recover --allow-data-loss", False),
        (Ran("recover", frozenset({"--allow-data-loss"})), "recover --allow-data-loss", True),
        (Ran("recover", frozenset({"--allow-data-loss"})), "recover --allow-data-loss --strays", False),
        (Ran("verify"), "recover", False),
    ],
)
def test_a_command_did_what_it_was_asked_for_with_every_option(ran: Ran, remedy: str, covered: bool) -> None:
    assert ran.covers(remedy) is covered


@pytest.mark.parametrize("code", [Code.TORN_TAIL, Code.SEGMENT_HEADER_SHORT, Code.SEGMENT_GAP])
@pytest.mark.parametrize(
    ("reached", "told"), [(0, (10, 5)), (10, (10, 5)), (11, (11, 4)), (14, (14, 1)), (15, None), (16, None)]
)
def test_what_is_held_in_front_is_not_missing_behind_an_end(
    code: Code, reached: int, told: tuple[int, int] | None
) -> None:
    one = make_finding(code, Path("/d/0/f"), "", transaction_id=10, missing=5, segment=3)
    nothing = (10, 0) if code is Code.TORN_TAIL else (None, None)
    found = without_held(one, reached)
    if code is Code.SEGMENT_GAP:
        assert found is one
        return
    assert (found.transaction_id, found.missing) == (told or nothing)
    assert (found.severity, found.remedy, found.message) == (one.severity, one.remedy, one.message)
    assert told_of_end([found, one]) == (found.missing or 0) + 5


@pytest.mark.parametrize(("missing", "number"), [(None, 10), (0, 10), (5, None)])
def test_a_finding_about_an_end_that_counts_nothing_stays(missing: int | None, number: int | None) -> None:
    one = make_finding(Code.TORN_TAIL, Path("/d/0/f"), "", transaction_id=number, missing=missing)
    assert without_held(one, 20) is one


@pytest.mark.parametrize(
    ("elsewhere", "told"),
    [([], (10, 5)), ([(5, 10)], (10, 5)), ([(5, 11)], (11, 4)), ([(14, 20)], (10, 4)), ([(9, 15)], (10, 0))],
)
def test_a_loss_is_told_from_the_first_id_that_nobody_else_counts(
    elsewhere: list[tuple[int, int]], told: tuple[int, int]
) -> None:
    where = Where(None, 0, Path("/d/0"))
    found = loss_finding(DataGone(10, 5, 168, ((10, 15),)), where, elsewhere=elsewhere)
    assert (found.transaction_id, found.missing) == told


def test_a_reserved_byte_has_its_place() -> None:
    assert ReservedByte.of(b"\0\0\0\5\0\0\6") == ReservedByte(3, 5)
    assert ReservedByte.of(b"\0" * 7) is None


def test_what_is_wrong_in_a_control_file_is_told_of_the_partitions_that_are_meant(tmp_path: Path) -> None:
    """An info may store a smaller id than its own, or a larger one."""
    path = build_directory(tmp_path / "s", {0: 1, 1: 1, 2: 1}) / "waltz-storage.ctl"
    layout = decode_control(path.read_bytes()).layout
    for partition, stored in ((1, 0), (2, 7)):
        patch(path, layout.info_offset(partition), stored.to_bytes(4, "big"))
    control = decode_control(path.read_bytes())
    for meant, told in ((None, [1, 2]), ((), []), ((1,), [1]), ((0, 2), [2])):
        found = list(control_findings(path, control, None, meant))
        assert [one.partition for one in found if "stores the id" in one.message] == told
