"""What a finding says of itself: the next step for it, and the place in a header."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.inspect.helpers import patch
from waltzctl.engine.findings import Ran
from waltzctl.engine.findings.control_files import control_findings
from waltzctl.engine.findings.headers import ReservedByte
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
