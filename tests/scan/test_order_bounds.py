"""The judgement of ids that are out of order, asked directly: windows, allowances and the places compared, from both sides."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.builders import make_records, segment_header
from waltzctl.engine.scan import order
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.kernel import INTERPRETED
from waltzctl.engine.scan.order import Judgement, OrderJudge
from waltzctl.engine.scan.probe import Probe, SearchBudget
from waltzctl.engine.scan.resync import IndexHint, Resynchroniser
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries

SIZE = 60
REQUEST = make_records(1)[0].request_id


def at(place: int) -> int:
    return HEADER_SIZE + SIZE * place


def file_of(ids: Sequence[int], *, same: Sequence[tuple[int, int]] = ()) -> bytes:
    """Records of 60 bytes under these ids, each with data of its own, but (place, of) with that of another place."""
    data = {place: f"{place:020d}".encode() for place in range(len(ids))} | {
        place: f"{of:020d}".encode() for place, of in same
    }
    header = segment_header(0, 0).encode()
    return header + b"".join(Record.make(number, REQUEST, 0, data[place]).encode() for place, number in enumerate(ids))


def judge(
    data: bytes,
    place: int,
    *,
    expected: int | None = None,
    ceiling: int | None = None,
    indexed: Sequence[int] | None = None,
    stop: int | None = None,
) -> tuple[int, int | None, str]:
    """Where the judged part ends (as a place), the id behind it and the proof."""
    end = len(data) if stop is None else stop
    probe = Probe(BytesSource(data), end, 1 << 20, SearchBudget(2**62))
    source = None
    if indexed is not None:
        source = BytesSource(segment_header(0, 0).encode() + encode_entries(list(indexed)))
    search = Resynchroniser(probe, INTERPRETED, IndexHint(source, 0, HEADER_SIZE), ceiling)
    found = OrderJudge(search, end, ceiling).judge(at(place), place if expected is None else expected)
    assert isinstance(found, Judgement)
    assert (found.end - HEADER_SIZE) % SIZE == 0 or found.end == end
    return (found.end - HEADER_SIZE) // SIZE, found.next_id, found.proof


# --- larger ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("more", "missing"), [(0, True), (1, False)])
def test_how_many_ids_may_be_missing(more: int, missing: bool, last: bool) -> None:
    """As many as could ever have stood in the file, and an allowance."""
    ids = [0, 1, 2, 0] if last else [0, 1, 2, 0, 0, 0]
    size = HEADER_SIZE + SIZE * len(ids)
    far = 3 + size // 40 + 1_000_000 + more
    ids = [*ids[:3], *range(far, far + len(ids) - 3)]
    assert judge(file_of(ids), 3) == ((3, far, "length") if missing else (len(ids), None, "end"))


@pytest.mark.parametrize(
    ("ceiling", "found"),
    [
        (None, (3, 7, "length")),
        (9, (3, 7, "length")),
        (8, (3, 7, "length")),
        (7, (4, None, "end")),
        (4, (4, None, "end")),
        (3, (4, None, "end")),
        (2, (3, 7, "length")),
    ],
)
def test_a_larger_id_is_not_that_of_the_next_segment(ceiling: int | None, found: tuple[int, int | None, str]) -> None:
    """Where the next segment begins at or below the id that is expected it says nothing."""
    assert judge(file_of([0, 1, 2, 7]), 3, ceiling=ceiling) == found


def test_larger_ids_that_rise_one_by_one_are_right() -> None:
    assert judge(file_of([0, 1, 2, 7, 8, 9]), 3) == (3, 7, "length")
    assert judge(file_of([0, 1, 2, 99, 7, 8, 9]), 3) == (4, 7, "length")
    assert judge(file_of([0, 1, 2, 5, 7, 8, 9]), 3) == (3, 5, "length")
    assert judge(file_of([0, 1, 2, 8, 7, 9]), 3) == (3, 8, "length")
    assert judge(file_of([0, 1, 2, 3 + 10**7, 7, 8, 9]), 3) == (4, 7, "length")


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17])
def test_over_how_many_wrong_ids_the_sequence_is_looked_for(count: int) -> None:
    """Each of them a stranger; behind them it goes on in its place, or as if they were not there."""
    strangers = [10**9 + 1000 * n for n in range(count)]
    behind = file_of([0, 1, 2, *strangers, *range(3 + count, 8 + count)])
    goes_on = file_of([0, 1, 2, *strangers, *range(3, 8)])
    if count <= 16:
        assert judge(behind, 3) == (3 + count, 3 + count, "length")
        assert judge(goes_on, 3) == (3 + count, 3, "length")
    else:
        assert judge(behind, 3) != (3 + count, 3 + count, "length")


@pytest.mark.parametrize(("indexed", "found"), [(False, (3, 7, "length")), (True, (4, None, "end"))])
def test_an_index_that_has_a_record_in_the_place_of_the_expected_id_leaves_it_open(
    indexed: bool, found: tuple[int, int | None, str]
) -> None:
    entries = [at(n) for n in range(4)] if indexed else None
    assert judge(file_of([0, 1, 2, 7]), 3, indexed=entries) == found
    longer = [*range(HEADER_SIZE, at(5), SIZE)]
    assert judge(file_of([0, 1, 2, 7]), 3, indexed=longer) == (3, 7, "length")


# --- lower ids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_a_row_of_lower_ids_in_front_of_the_sequence(step: int, count: int) -> None:
    """Followed by the id of its place it has the wrong ids, followed by the expected one it does not belong there."""
    row = [7 - step + n for n in range(count)]
    shifted = judge(file_of([*range(7), *row, *range(7 + count, 12 + count)]), 7)
    assert shifted == (7 + count, 7 + count, "length")
    if count <= step:
        inserted = judge(file_of([*range(7), *row, *range(7, 12)]), 7)
        assert inserted == (7 + count, 7, "length")


@pytest.mark.parametrize("repeated", [True, False])
def test_a_repeat_at_the_end_and_ids_that_go_on_behind_it(repeated: bool) -> None:
    """Byte for byte what stands in front of it, or another version of it."""
    ids = [*range(7), 4, 5, 6, 7, 8]
    same = [(7, 4), (8, 5), (9, 6)] if repeated else []
    assert judge(file_of(ids, same=same), 7) == (10, 7, "length")
    entries = [at(n) for n in range(len(ids))]
    assert judge(file_of(ids, same=same), 7, indexed=entries) == ((10, 7, "length") if repeated else (12, None, "end"))
    one_byte = [(7, 4), (8, 5)] if repeated else []
    assert judge(file_of(ids, same=one_byte), 7, indexed=entries) == (12, None, "end")


@pytest.mark.parametrize(("most", "compared"), [(3 * SIZE, True), (3 * SIZE - 1, False)])
@pytest.mark.parametrize("piece", [1, 59, 60, 61, 180, 1000])
def test_how_much_is_compared_to_tell_a_repeat(
    most: int, compared: bool, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "_MOST_COMPARED", most)
    monkeypatch.setattr(order, "_COMPARED", piece)
    ids = [*range(7), 4, 5, 6, 7, 8]
    entries = [at(n) for n in range(len(ids))]
    data = file_of(ids, same=[(7, 4), (8, 5), (9, 6)])
    assert judge(data, 7, indexed=entries) == ((10, 7, "length") if compared else (12, None, "end"))
    for place in (7, 8, 9):
        same = [(7, 4), (8, 5), (9, 6)]
        same.remove((place, place - 3))
        assert judge(file_of(ids, same=same), 7, indexed=entries) == (12, None, "end")


@pytest.mark.parametrize(
    "change",
    ["nothing", "one entry less", "one entry more", "first elsewhere", "one elsewhere", "last elsewhere"],
)
def test_the_index_must_have_the_row_to_its_very_end(change: str) -> None:
    ids = [*range(7), 4, 5, 6, 7, 8]
    entries = [at(n) for n in range(len(ids))]
    if change == "one entry less":
        entries.pop()
    elif change == "one entry more":
        entries.append(at(12))
    elif change != "nothing":
        entries[{"first": 7, "one": 9, "last": 11}[change.split()[0]]] += 1
    found = judge(file_of(ids), 7, indexed=entries)
    assert found == ((12, None, "end") if change == "nothing" else (10, 7, "length"))


@pytest.mark.parametrize(
    ("ceiling", "found"),
    [
        (12, (12, None, "end")),  # the ids of the places lead to the next segment
        (9, (10, 7, "length")),  # their own do
        (11, (10, 7, "length")),
        (13, (10, 7, "length")),
        (None, (10, 7, "length")),
    ],
)
def test_the_next_segment_tells_whether_lower_ids_are_wrong_up_to_the_end(
    ceiling: int | None, found: tuple[int, int | None, str]
) -> None:
    ids = [*range(7), 4, 5, 6, 7, 8]
    assert judge(file_of(ids, same=[(7, 4), (8, 5), (9, 6)]), 7, ceiling=ceiling) == found


@pytest.mark.parametrize(
    ("ceiling", "found"),
    [(10, (10, None, "end")), (13, (7, 10, "length")), (None, (7, 10, "length")), (14, (7, 10, "length"))],
)
def test_the_next_segment_tells_whether_larger_ids_are_wrong_up_to_the_end(
    ceiling: int | None, found: tuple[int, int | None, str]
) -> None:
    assert judge(file_of([*range(7), 10, 11, 12]), 7, ceiling=ceiling) == found


# --- what changed, and what cannot be told -----------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0, 39, 40, 41])
def test_a_record_that_is_gone_by_now_ends_the_scan_within_the_file(left: int) -> None:
    data = file_of([0, 1, 2])[: at(2)] + b"\xee" * left
    probe = Probe(BytesSource(data), len(data), 1 << 20, SearchBudget(2**62))
    search = Resynchroniser(probe, INTERPRETED, IndexHint(None, 0, HEADER_SIZE))
    found = OrderJudge(search, len(data), None).judge(at(2), 2)
    assert found == Judgement(at(2) + min(left, 40), None, "end")


def test_a_lower_id_at_the_very_end_belongs_to_nothing() -> None:
    assert judge(file_of([0, 1, 2, 1]), 3) == (4, None, "end")
    assert judge(file_of([0, 1, 2, 1, 0]), 3) == (4, None, "end")
    assert judge(file_of([0, 1, 2, 1, 9, 10]), 3)[0] == 4


def test_the_index_proves_where_the_sequence_goes_on() -> None:
    ids = [0, 1, 2, 1, 0, 1, 0, 3, 4, 5]
    assert judge(file_of(ids), 3) == (7, 3, "length")
    strangers = [10**12 + 50 * n * n for n in range(20)]
    ids = [0, 1, 2, *strangers, 3, 4, 5]
    entries = [at(0), at(1), at(2), at(23), at(24), at(25)]
    assert judge(file_of(ids), 3, indexed=entries) == (23, 3, "index")
    assert judge(file_of(ids), 3)[2] != "index"


@pytest.mark.parametrize(("lower", "count"), [(1, 16), (1, 17), (1, 18), (1, 19), (2, 17), (2, 18), (2, 19), (2, 20)])
def test_a_row_of_lower_ids_is_followed_for_sixteen_records_behind_the_id_that_is_expected(
    lower: int, count: int
) -> None:
    """Up to the end, where the next segment says that the ids are wrong; a longer row has begun anew."""
    ids = [*range(7), *range(7 - lower, 7 - lower + count)]
    wanted = (7 + count, None, "end") if count <= lower + 16 else (7 + lower, 7, "length")
    assert judge(file_of(ids), 7, ceiling=7 + count) == wanted


@pytest.mark.parametrize(("more", "compared"), [(0, True), (1, False)])
def test_16_mebibytes_are_compared_to_tell_a_repeat(more: int, *, compared: bool) -> None:
    big = Record.make(3, REQUEST, 0, bytes((16 << 20) - 40 + more)).encode()
    front = file_of([0, 1, 2])
    data = front + big + big + Record.make(4, REQUEST, 0, b"").encode()
    entries = [at(0), at(1), at(2), at(3), at(3) + len(big), at(3) + 2 * len(big)]
    source = BytesSource(segment_header(0, 0).encode() + encode_entries(entries))
    probe = Probe(BytesSource(data), len(data), 1 << 30, SearchBudget(2**62))
    search = Resynchroniser(probe, INTERPRETED, IndexHint(source, 0, HEADER_SIZE))
    found = OrderJudge(search, len(data), None).judge(at(3) + len(big), 4)
    repeat = Judgement(at(3) + 2 * len(big), 4, "length")
    assert found == (repeat if compared else Judgement(len(data), None, "end"))


class _FromZero(BytesSource):
    """Bytes in front of which none may be asked for."""

    def read_into(self, offset: int, buffer: memoryview) -> int:
        assert offset >= 0
        return super().read_into(offset, buffer)


@pytest.mark.parametrize(("more", "repeated"), [(0, True), (1, False), (2, False), (100, False)])
def test_a_repeat_has_something_in_front_of_it_to_repeat(more: int, *, repeated: bool) -> None:
    """Here from the very first byte on, or less than that."""
    first, second = (Record.make(0, REQUEST, 0, bytes(20 + extra)).encode() for extra in (0, more))
    data = first + second + Record.make(1, REQUEST, 0, b"").encode()
    entries = [0, len(first), len(first + second)]
    index = BytesSource(segment_header(0, 0).encode() + encode_entries(entries))
    probe = Probe(_FromZero(data), len(data), 1 << 20, SearchBudget(2**62))
    search = Resynchroniser(probe, INTERPRETED, IndexHint(index, 0, HEADER_SIZE))
    found = OrderJudge(search, len(data), None).judge(len(first), 1)
    assert found == (Judgement(entries[2], 1, "length") if repeated else Judgement(len(data), None, "end"))


@pytest.mark.parametrize(
    ("ids", "every", "found"),
    [
        ([0, 1, 2, 2, 9], False, (4, 9, "length")),
        ([0, 1, 2, 1, 9], False, (4, 9, "length")),
        ([0, 1, 2, 9, 3, 99, 6, 7], False, (6, 6, "length")),  # behind what seems to go on stands the id of its place
        ([0, 1, 2, 9, 3, 99, 98, 97], False, (4, 3, "length")),
        ([0, 1, 2, 9, 1], False, (3, 9, "length")),
        ([0, 1, 2, 9, 1], True, (5, None, "end")),
    ],
)
def test_lower_ids_are_in_no_place_where_they_are_the_first(
    ids: list[int], every: bool, found: tuple[int, int | None, str]
) -> None:
    """`every`: the index has an entry for each place."""
    assert judge(file_of(ids), 3, indexed=[at(n) for n in range(len(ids))] if every else None) == found
