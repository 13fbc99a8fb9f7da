"""Sections of a backup: what is encoded comes back, and what cannot be of a storage directory is refused."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace

import pytest

from waltzctl.formats.vault import (
    SECTION_HEADER,
    BackedFile,
    DerivedIndex,
    Encryption,
    Literal,
    Piece,
    Section,
    Slice,
    VaultConfiguration,
    VaultFormatError,
)

PIECES = (Piece(b"\1" * 32, 100, 60, 7, 2), Piece(b"\2" * 32, 50, 50))
DATA = BackedFile("0/a.seg", 153, 1_600_000_000_000_000_001, 12, (Literal(b"abc"), Slice(0, 0, 150)))
INDEX = BackedFile("0/a.idx", 16, 5, 13, (DerivedIndex("0/a.seg", 16),))
SECTION = Section(("0", "0/b/..c"), (DATA, INDEX), PIECES)


def refused(section: Section, why: str) -> None:
    with pytest.raises(VaultFormatError, match=re.escape(why)):
        Section.decode(section.encode())


@pytest.mark.parametrize("section", [SECTION, Section((), (), ()), Section(("0",), (), PIECES)])
def test_a_section_comes_back_as_it_was(section: Section) -> None:
    assert Section.decode(section.encode()) == section


def test_no_part_of_a_section_is_one() -> None:
    whole = SECTION.encode()
    for size in range(len(whole)):
        with pytest.raises(VaultFormatError):
            Section.decode(whole[:size])


@pytest.mark.parametrize(
    "name", ["", "/", "/0", "..", "../0", "0/..", "0/../../1", ".", "0/./a", "0//a", "0/", "0/a\0"]
)
def test_a_name_that_leads_elsewhere_is_refused_of_directories_as_of_files(name: str) -> None:
    refused(replace(SECTION, directories=("0", name)), f"the name {name!r} leads elsewhere")
    other = BackedFile(name, 0, 0, 0, ())
    refused(replace(SECTION, files=(DATA, INDEX, other)), f"the name {name!r} leads elsewhere")


def test_a_number_that_is_infinite_is_no_size() -> None:
    text = b'{"directories":[],"files":[["a",1e999,0,0,[]]]}'
    with pytest.raises(VaultFormatError, match="no section"):
        Section.decode(SECTION_HEADER.struct.pack(len(text), 0) + text)


@pytest.mark.parametrize("size", [152, 154])
def test_a_file_is_as_long_as_its_parts(size: int) -> None:
    refused(replace(SECTION, files=(replace(DATA, size=size),)), "0/a.seg: its parts are not as long as it is")


@pytest.mark.parametrize(
    ("part", "there"),
    [
        (Slice(0, 0, 150), True),
        (Slice(0, 0, 151), False),
        (Slice(0, 1, 149), True),
        (Slice(0, 1, 150), False),
        (Slice(1, 0, 50), True),
        (Slice(1, 0, 51), False),
        (Slice(1, 50, 0), True),
        (Slice(2, 0, 0), False),
        (Slice(-1, 0, 1), False),
        (Slice(0, -1, 1), False),
    ],
)
def test_a_slice_lies_in_the_pieces(part: Slice, there: bool) -> None:
    section = replace(SECTION, files=(replace(DATA, size=part.size, extents=(part,)),))
    if there:
        assert Section.decode(section.encode()) == section
    else:
        refused(section, "0/a.seg: it is to have bytes of pieces that are not there")


def test_an_index_is_made_of_a_data_file_that_is_there() -> None:
    refused(replace(SECTION, files=(INDEX,)), "0/a.idx: its data file is not there")


def test_a_section_has_the_size_that_it_says() -> None:
    data = SECTION.encode()
    for other in (data[:-1], data + b"\0", data[: SECTION_HEADER.size]):
        with pytest.raises(VaultFormatError, match="another size than it says"):
            Section.decode(other)


@pytest.mark.parametrize(
    ("n", "r", "p"),
    [
        (0, 8, 1),
        (1, 8, 1),
        (3, 8, 1),
        (1 << 22, 8, 1),
        (1 << 24, 2, 1),
        (16, 0, 1),
        (16, 65, 1),
        (16, 8, 0),
        (16, 8, 65),
    ],
)
def test_a_password_takes_no_more_memory_than_is_usual_and_no_number_that_cannot_be(n: int, r: int, p: int) -> None:
    """Whoever made the vault says them: one ended every command with a traceback, another took 137 GB."""

    def made(*numbers: int) -> bytes:
        kept = Encryption(b"s" * 16, *numbers, b"n" * 12, b"k" * 48)
        return VaultConfiguration(uuid.UUID(int=1), 3, kept).encode()

    with pytest.raises(VaultFormatError, match="is not known here"):
        VaultConfiguration.decode(made(n, r, p))
    for whole in ((2, 8, 1), (1 << 17, 8, 1), (1 << 21, 8, 1), (16, 64, 64)):
        assert VaultConfiguration.decode(made(*whole)).encode() == made(*whole)
