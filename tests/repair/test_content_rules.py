"""Contents made of pieces: every part, splice and read gives the bytes that the plain way gives, and the edits make them."""

from __future__ import annotations

from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from waltzctl.engine.durable.edits import Cut, Edit, Overwrite, Replace
from waltzctl.engine.repair import content as contents
from waltzctl.engine.repair.content import Content, FileSpan, LiteralBytes, Piece

BYTES = b"abcdefghij"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(BYTES)
    return path


def pieces_of(file: Path) -> tuple[Piece, ...]:
    """``X``, ``cde`` of the file, nothing, ``YZ`` in two literals, ``h`` of the file: seven bytes in all."""
    return (
        LiteralBytes(b"X"),
        FileSpan(file, 2, 5),
        LiteralBytes(b""),
        LiteralBytes(b"Y"),
        LiteralBytes(b"Z"),
        FileSpan(file, 7, 8),
    )


WHOLE = b"XcdeYZh"


def test_neighbours_become_one_piece_and_empty_ones_none(file: Path) -> None:
    made = Content("name", pieces_of(file))
    assert made.pieces == (LiteralBytes(b"X"), FileSpan(file, 2, 5), LiteralBytes(b"YZ"), FileSpan(file, 7, 8))
    other = file.with_name("other")
    spans = (
        FileSpan(file, 0, 2),
        FileSpan(file, 2, 3),
        FileSpan(file, 4, 5),
        FileSpan(other, 5, 6),
        FileSpan(other, 6, 6),
        FileSpan(other, 6, 7),
    )
    assert Content("", spans).pieces == (FileSpan(file, 0, 3), FileSpan(file, 4, 5), FileSpan(other, 5, 7))
    assert (made.name, made.size(), Content.of_file(file, 10).pieces) == ("name", 7, (FileSpan(file, 0, 10),))


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_parts_reads_and_splices_are_those_of_the_bytes(
    file: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "CHUNK", chunk)
    made = Content("name", pieces_of(file))
    assert b"".join(made.chunks()) == WHOLE
    assert all(0 < len(one) <= chunk for one in made.chunks())
    for start, stop in combinations_with_replacement(range(8), 2):
        wanted = WHOLE[start:stop]
        assert Content("", made.part(start, stop)).read(0, 100) == wanted
        assert b"".join(made.chunks(start, stop)) == wanted
        assert made.read(start, stop - start) == wanted
        buffer = bytearray(b"." * 9)
        assert made.read_into(start, memoryview(buffer)[: stop - start + 1]) == min(stop - start + 1, 7 - start)
        assert bytes(buffer) == WHOLE[start : stop + 1].ljust(9, b".")
        spliced = made.spliced(start, stop, (LiteralBytes(b"--"),))
        assert (spliced.read(0, 100), spliced.size()) == (WHOLE[:start] + b"--" + WHOLE[stop:], 9 - (stop - start))
    assert made.spliced(7, 7, ()).pieces == made.pieces


def test_a_span_is_never_read_beyond_its_end(file: Path) -> None:
    span = FileSpan(file, 2, 5)
    assert (len(span), span.read(0, 9), span.read(1, 1), span.read(2, 9)) == (3, b"cde", b"d", b"e")
    assert (span.slice(1, 2), LiteralBytes(b"abc").slice(1, 2)) == (FileSpan(file, 3, 4), LiteralBytes(b"b"))
    assert (len(LiteralBytes(b"abc")), LiteralBytes(b"abc").read(1, 1)) == (3, b"b")


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_equal_contents_hold_the_same_bytes_in_whatever_pieces(
    file: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "CHUNK", chunk)
    made = Content("", pieces_of(file))
    assert made.equals(Content("other", (LiteralBytes(WHOLE),)))
    for place in range(len(WHOLE)):
        other = WHOLE[:place] + b"?" + WHOLE[place + 1 :]
        assert not made.equals(Content("", (LiteralBytes(other),)))
    assert not made.equals(Content("", (LiteralBytes(WHOLE[:-1]),)))
    assert not made.equals(Content("", (LiteralBytes(WHOLE + b"?"),)))
    assert Content("", ()).equals(Content("", ()))
    assert not Content("", ()).equals(made)


def plain(edits: list[Edit]) -> list[object]:
    """Edits as values."""
    return [
        ("cut", one.size) if isinstance(one, Cut)
        else (one.offset, one.data) if isinstance(one, Overwrite)
        else ("new", b"".join(one.parts()), one.size) if isinstance(one, Replace)
        else one
        for one in edits
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pieces", "size", "edits"),
    [
        (["0-10"], 10, []),
        (["0-10"], None, [("new", BYTES, 10)]),
        (["0-7"], 10, [("cut", 7)]),
        (["0-10"], 12, [("cut", 10)]),
        (["0-3", "X", "4-10"], 10, [(3, b"X")]),
        (["X", "1-10"], 10, [(0, b"X")]),
        (["0-10", "XY"], 10, [(10, b"XY")]),
        (["0-3", "X", "4-6", "YZ"], 10, [(3, b"X"), (6, b"YZ"), ("cut", 8)]),
        (["0-3", "X", "other", "8-10"], 10, [("new", b"abcXOTHERij", 11)]),
        (["0-3", "X", "oth", "7-10"], 10, [(3, b"XOTH")]),
        (["1-10"], 10, [("new", BYTES[1:], 9)]),
        (["0-3", "4-10"], 10, [("new", b"abcefghij", 9)]),
        (["0-3", "X", "3-10"], 10, [("new", b"abcXdefghij", 11)]),
        (["X"], 10, [(0, b"X"), ("cut", 1)]),
        ([], 10, [("cut", 0)]),
        ([], 0, []),
        ([], None, [("new", b"", 0)]),
    ],
)
def test_a_file_is_edited_in_place_where_every_byte_that_stays_keeps_its_offset(
    file: Path, pieces: list[str], size: int | None, edits: list[object]
) -> None:
    other = file.with_name("other")
    other.write_bytes(b"OTHER")
    made: list[Piece] = []
    for one in pieces:
        if one[0].isdigit():
            made.append(FileSpan(file, *map(int, one.split("-"))))
        elif one.islower():
            made.append(FileSpan(other, 0, len(one)))
        else:
            made.append(LiteralBytes(one.encode()))
    assert plain(Content("", tuple(made)).edits(file, size)) == edits


@pytest.mark.parametrize(("limit", "in_place"), [(2, False), (3, True), (4, True)])
def test_a_file_of_which_much_is_new_is_made_anew(
    file: Path, limit: int, *, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "IN_PLACE_LIMIT", limit)
    made = Content("", (LiteralBytes(b"X"), FileSpan(file, 1, 5), LiteralBytes(b"YZ"), FileSpan(file, 7, 10)))
    assert plain(made.edits(file, 10)) == ([(0, b"X"), (5, b"YZ")] if in_place else [("new", b"XbcdeYZhij", 10)])
