"""Names of the files of a page store."""

from __future__ import annotations

import pytest

from waltzctl.formats.pages.names import LogName, blob_name, parse_blob_name, parse_log_name


def test_name_parsing() -> None:
    assert parse_log_name("log_1_0") == LogName(1, 0)
    assert parse_log_name("log_4294967295_1") == LogName(2**32 - 1, 1)
    assert str(LogName(12, 1)) == "log_12_1"
    assert LogName(12, 1).is_checkpoint
    assert not LogName(12, 0).is_checkpoint
    assert parse_blob_name(blob_name(17)) == 17


@pytest.mark.parametrize(
    "name",
    [
        "log_0_0",
        "log_01_0",
        "log_1_2",
        "log_1",
        "log_1_0_0",
        ".temp.log_1_1",
        "log_4294967296_0",
        "log_-1_0",
        "log_١_0",
        "",
    ],
)
def test_names_that_are_no_log(name: str) -> None:
    assert parse_log_name(name) is None


@pytest.mark.parametrize(
    "name", ["blobfile_0", "blobfile_01", "blobfile_", "blobfile_1x", "blobfile_2147483648", "blob_1"]
)
def test_names_that_are_no_blob_file(name: str) -> None:
    assert parse_blob_name(name) is None


def test_ordering() -> None:
    """By number, a checkpoint behind the log that it holds."""
    names = ["log_10_0", "log_2_1", "log_9_0", "log_2_0"]
    assert sorted(filter(None, map(parse_log_name, names))) == [(2, 0), (2, 1), (9, 0), (10, 0)]
