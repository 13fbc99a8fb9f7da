"""The control file: two layouts, pairs of structs, and which of a pair is in force."""

from __future__ import annotations

import struct
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import properties
from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import (
    CONTROL_HEADER_SCHEMA,
    CONTROL_VERSION,
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    MAX_PARTITIONS,
    Choice,
    ControlFile,
    ControlHeader,
    Layout,
    PartitionInfo,
    PartitionStruct,
    _likely_layout,
    _serial_newer,
    choose_current,
    convert_info,
    decode_control,
    initial_control,
    initial_info,
    layout_of,
)

KEY = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
strange_counts = int32.filter(lambda count: not 0 < ~count <= MAX_PARTITIONS)
"""Numbers of partitions but for those that say that a commit journal is in force."""
layouts = st.sampled_from(list(Layout))


def released(sequence: int = 0, *, session: int = -1, valid: bool = True) -> PartitionStruct:
    return replace(PartitionStruct(session, -1, -1, FLAG_AVAILABLE, sequence).sealed(), valid=valid)


def documented(session: int, low: int = -1, local: int = -1, *, valid: bool = True) -> PartitionStruct:
    return replace(PartitionStruct(session, low, local).sealed(), valid=valid)


@st.composite
def structs(draw: st.DrawFn, layout: Layout) -> PartitionStruct:
    extra = (draw(int32), draw(int32)) if layout is Layout.RELEASED else (None, None)
    return PartitionStruct(draw(int64), draw(int64), draw(int64), *extra).sealed()


@st.composite
def headers(draw: st.DrawFn) -> ControlHeader:
    journaled = draw(st.booleans())
    count = draw(st.integers(1, MAX_PARTITIONS) if journaled else strange_counts)
    reserved = draw(st.binary(min_size=96, max_size=96))
    return ControlHeader(draw(int32), draw(int64), draw(st.uuids()), count, reserved, journaled)


@properties
@given(headers())
def test_header_is_what_the_schema_says(header: ControlHeader) -> None:
    raw = header.encode()
    assert ControlHeader.decode(raw) == header
    parsed = CONTROL_HEADER_SCHEMA.parse(raw)
    for name in ("version", "created", "cluster_key", "reserved"):
        assert parsed[name] == getattr(header, name)
    assert parsed["num_partitions"] == (~header.num_partitions if header.journaled else header.num_partitions)


@properties
@given(layouts, st.data())
def test_struct_is_what_the_schema_says(layout: Layout, data: st.DataObject) -> None:
    one = data.draw(structs(layout))
    raw = one.encode()
    assert len(raw) == {Layout.DOCUMENTED: 28, Layout.RELEASED: 36}[layout]
    assert one.checksum == crc32(raw[:-4]) == struct.unpack(">I", raw[-4:])[0]
    assert (one.layout, one.valid) == (layout, True)
    assert PartitionStruct.decode(layout, b"xx" + raw, 2) == one
    parsed = layout.struct_schema.schema.parse(raw)
    names = ["session_id", "low_water_mark", "local_low_water_mark", "checksum"]
    names += ["flags", "sequence"] if layout is Layout.RELEASED else []
    for name in names:
        assert parsed[name] == getattr(one, name)


@properties
@given(layouts, st.data())
def test_a_flipped_bit_makes_a_struct_invalid(layout: Layout, data: st.DataObject) -> None:
    raw = bytearray(data.draw(structs(layout)).encode())
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << (bit % 8)
    assert not PartitionStruct.decode(layout, raw).valid


@properties
@given(layouts, st.integers(0, 100), int32, st.data())
def test_info_round_trip(layout: Layout, partition: int, stored: int, data: st.DataObject) -> None:
    pair = data.draw(structs(layout)), data.draw(structs(layout))
    raw = struct.pack(">i", stored) + pair[0].encode() + pair[1].encode()
    info = PartitionInfo.decode(layout, partition, b"???" + raw, 3)
    assert info.structs == pair
    assert (info.partition, info.stored_partition) == (partition, stored)
    assert (info.current, info.choice) == choose_current(*pair)
    assert info.encode() == raw == layout.info_schema.schema.build(layout.info_schema.schema.parse(raw))


def test_flags_are_known_only_in_the_released_layout() -> None:
    one = PartitionStruct(flags=FLAG_ASSIGNED, sequence=0)
    assert (one.available, one.assigned) == (False, True)
    assert (PartitionStruct().available, PartitionStruct().assigned) == (None, None)


class TestWhichStructIsCurrent:
    """One valid struct wins; of two, the newer one; of equals there is no telling."""

    @pytest.mark.parametrize("make", [released, documented])
    @pytest.mark.parametrize(
        ("first", "second", "expected"),
        [
            (True, False, (1, Choice.ONLY_VALID)),
            (False, True, (2, Choice.ONLY_VALID)),
            (False, False, (None, Choice.NONE_VALID)),
        ],
    )
    def test_an_invalid_struct_is_never_current(self, make, first, second, expected) -> None:  # type: ignore[no-untyped-def]
        """Not even when its values look newer."""
        assert choose_current(make(9, valid=first), make(9, valid=second)) == expected
        assert choose_current(make(1, valid=first), make(9, valid=second)) == expected
        assert choose_current(make(9, valid=first), make(1, valid=second)) == expected

    @pytest.mark.parametrize(
        ("first", "second", "current"),
        [
            (-1, 0, 2),
            (1, 0, 1),
            (1, 2, 2),
            (2**31 - 1, 2**31 - 2, 1),
            (2**31 - 1, -(2**31), 2),  # wrapped: the signed comparison of release 0.13.2 picks the older one here
            (-(2**31), 2**31 - 1, 1),
            (-(2**31) + 1, -(2**31), 1),
        ],
    )
    def test_released_compares_sequence_numbers_which_may_wrap(self, first: int, second: int, current: int) -> None:
        assert choose_current(released(first), released(second)) == (current, Choice.NEWER)

    def test_released_sequence_beats_session(self) -> None:
        assert choose_current(released(1, session=9), released(2, session=3))[0] == 2

    def test_released_equal_sequences_are_a_tie_even_with_equal_values(self) -> None:
        assert choose_current(released(4), released(4)) == (None, Choice.TIE)

    @pytest.mark.parametrize(
        ("first", "second", "expected"),
        [
            ((-1, -1, -1), (-1, -1, -1), (1, Choice.SAME)),
            ((3, 10, 10), (3, 10, 10), (1, Choice.SAME)),
            ((4, 10, 10), (3, 90, 90), (1, Choice.NEWER)),
            ((3, 10, 10), (4, 10, 10), (2, Choice.NEWER)),
            ((3, 10, 10), (3, 11, 10), (2, Choice.NEWER)),
            ((3, 11, 11), (3, 11, 10), (1, Choice.NEWER)),
            ((3, 11, 10), (3, 10, 11), (None, Choice.TIE)),
        ],
    )
    def test_documented_takes_the_larger_session_then_the_marks_that_only_rise(self, first, second, expected) -> None:  # type: ignore[no-untyped-def]
        assert choose_current(documented(*first), documented(*second)) == expected

    @properties
    @given(layouts, st.data())
    def test_the_choice_does_not_depend_on_the_order_of_the_pair(self, layout: Layout, data: st.DataObject) -> None:
        first, second = data.draw(structs(layout)), data.draw(structs(layout))
        one, why = choose_current(first, second)
        other, why_other = choose_current(second, first)
        assert why == why_other
        if why is not Choice.SAME:
            assert (one, other) in {(1, 2), (2, 1), (None, None)}

    @properties
    @given(int32)
    def test_an_update_is_always_newer_than_what_it_follows(self, sequence: int) -> None:
        pair = released(sequence), released(sequence - 1 if sequence > -(2**31) else 2**31 - 1)
        info = PartitionInfo(0, 0, pair, *choose_current(*pair))
        for _ in range(3):
            number, written = info.updated(session_id=5)
            assert number != info.current
            info = info.with_struct(number, written)
            assert info.current == number


@properties
@given(layouts, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_rising_marks_survive_every_update_and_the_older_struct_stays(layout: Layout, steps) -> None:  # type: ignore[no-untyped-def]
    """After each update the newest values are in force and the other struct still holds those before."""
    info = initial_info(layout, 0)
    session, low, local = info.current_struct.marks if info.current_struct else (-1, -1, -1)
    for step in steps:
        before = info.current_struct
        session, low, local = session + step[0], low + step[1], local + step[2]
        number, written = info.updated(session_id=session, low_water_mark=low, local_low_water_mark=local)
        info = info.with_struct(number, written)
        assert info.current_struct is not None
        assert info.current_struct.marks == (session, low, local)
        assert before in info.structs


def test_nothing_can_be_updated_when_no_struct_is_valid() -> None:
    info = PartitionInfo.decode(Layout.RELEASED, 3, bytes(76))
    assert (info.current, info.current_struct, info.choice) == (None, None, Choice.NONE_VALID)
    with pytest.raises(ValueError, match="partition 3"):
        info.updated(session_id=1)


@properties
@given(layouts, st.integers(1, 50), st.uuids(), int64)
def test_initial_control_file(layout: Layout, partitions: int, key: uuid.UUID, created: int) -> None:
    file = initial_control(layout, key, partitions, created)
    raw = file.encode()
    assert len(raw) == layout.file_size(partitions) == file.size
    assert decode_control(raw) == file
    for number, info in enumerate(file.partitions):
        assert (info.stored_partition, info.current_struct is not None) == (number, True)
        assert raw[layout.info_offset(number) :][:4] == struct.pack(">i", number)
        for which in (1, 2):
            offset = layout.struct_offset(number, which)
            assert PartitionStruct.decode(layout, raw, offset) == info.structs[which - 1]


@pytest.mark.parametrize("count", [0, -1, MAX_PARTITIONS + 1])
def test_impossible_partition_counts_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="number of partitions"):
        initial_control(Layout.RELEASED, KEY, count, 0)


class TestLayoutBySize:
    """The file's length divides the two layouts; a damaged count must not decide."""

    @properties
    @given(layouts, st.integers(1, 10_000))
    def test_length_tells_the_layout(self, layout: Layout, partitions: int) -> None:
        assert layout_of(layout.file_size(partitions), partitions) is layout

    @pytest.mark.parametrize(
        ("size", "partitions"),
        [
            (128, 0),
            (280, 3),
            (279, 2),
            (248 + 1, 2),
            (128, -1),
            (127, 1),
            (128 + 76 * (MAX_PARTITIONS + 1), MAX_PARTITIONS + 1),
        ],
    )
    def test_other_lengths_fit_nothing(self, size: int, partitions: int) -> None:
        assert layout_of(size, partitions) is None

    @pytest.mark.parametrize("layout", Layout)
    @pytest.mark.parametrize("count", [0, 1, 4, 6, -1, 2**31 - 1, -(2**31)])
    def test_damaged_count_costs_no_partition_info(self, layout: Layout, count: int) -> None:
        """With a wrong count in the header the layout follows from the checksums, and all five infos are read."""
        whole = initial_control(layout, KEY, 5, 1)
        raw = replace(whole.header, num_partitions=count).encode() + whole.encode()[128:]
        read = decode_control(raw)
        assert (read.size_fits, read.layout, len(read.partitions)) == (False, layout, 5)
        assert read.partitions == whole.partitions

    def test_a_count_that_makes_the_other_layout_fit(self) -> None:
        """19 documented infos are exactly as long as 15 released ones: then the count in the header has the say."""
        fits_both = [n for n in range(1, 40) if (60 * n) % 76 == 0]
        assert fits_both == [19, 38]
        whole = initial_control(Layout.DOCUMENTED, KEY, 19, 1).encode()
        assert layout_of(len(whole), 19) is Layout.DOCUMENTED
        assert layout_of(len(whole), 15) is Layout.RELEASED

    @pytest.mark.parametrize("layout", Layout)
    @pytest.mark.parametrize("cut", [1, 30, 59, 75])
    def test_a_short_file_gives_every_complete_info(self, layout: Layout, cut: int) -> None:
        raw = initial_control(layout, KEY, 5, 1).encode()[:-cut]
        read = decode_control(raw)
        complete = (len(raw) - 128) // layout.info_schema.size
        assert (read.size_fits, read.layout, len(read.partitions), read.size) == (False, layout, complete, len(raw))

    def test_a_file_shorter_than_its_header_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least 128 bytes"):
            decode_control(bytes(127))

    @properties
    @given(st.binary(min_size=128, max_size=600))
    def test_no_bytes_make_decoding_fail(self, raw: bytes) -> None:
        read = decode_control(raw)
        assert len(read.partitions) <= (len(raw) - 128) // read.layout.info_schema.size
        assert read.size == len(raw)


def filled(layout: Layout, partitions: int, marks: int = 9) -> ControlFile:
    """A control file of which every pair has seen a session."""
    file = initial_control(layout, KEY, partitions, 1)
    infos = [info.with_struct(*info.updated(session_id=4, low_water_mark=marks)) for info in file.partitions]
    return replace(file, partitions=tuple(infos))


def extended(file: ControlFile) -> bytearray:
    """The file as release 0.13.2 leaves it."""
    return bytearray(file.encode().ljust(Layout.RELEASED.file_size(file.header.num_partitions), b"\0"))


def invalidate(raw: bytearray, layout: Layout, partition: int, *numbers: int) -> None:
    for number in numbers:
        raw[layout.struct_offset(partition, number)] ^= 1


class TestExtendedByARelease:
    """A file of the documented layout with zeros behind it is told from one of the released layout, either way."""

    @pytest.mark.parametrize("make", [filled, lambda layout, count: initial_control(layout, KEY, count, 1)])
    @pytest.mark.parametrize("count", [1, 2, 3, 8, 15, 19, 1000])
    def test_it_is_read_in_the_documented_layout_as_before(self, make, count: int) -> None:  # type: ignore[no-untyped-def]
        file = make(Layout.DOCUMENTED, count)
        read = decode_control(extended(file))
        assert (read.layout, read.extended, read.size_fits) == (Layout.DOCUMENTED, True, True)
        assert read.size == Layout.RELEASED.file_size(count)
        assert (read.header, read.partitions) == (file.header, file.partitions)
        assert read.encode() == file.encode()
        assert not decode_control(file.encode()).extended

    @pytest.mark.parametrize("count", [1, 2, 8])
    def test_any_byte_behind_that_is_not_zero_speaks_against_it(self, count: int) -> None:
        raw = extended(filled(Layout.DOCUMENTED, count))
        for place in range(Layout.DOCUMENTED.file_size(count), len(raw)):
            raw[place] = 1
            read = decode_control(raw)
            assert (read.extended, read.layout) == (False, Layout.RELEASED)
            raw[place] = 0
        assert decode_control(raw).extended

    def test_a_byte_more_or_less_is_another_length(self) -> None:
        raw = extended(filled(Layout.DOCUMENTED, 5))
        for other in (raw[:-1], raw + b"\0"):
            read = decode_control(other)
            assert (read.extended, read.size_fits) == (False, False)

    def test_a_damaged_struct_or_pair_is_named_and_hides_no_other(self) -> None:
        file = filled(Layout.DOCUMENTED, 3)
        raw = extended(file)
        invalidate(raw, Layout.DOCUMENTED, 1, 1, 2)
        invalidate(raw, Layout.DOCUMENTED, 2, 1)
        read = decode_control(raw)
        assert read.extended
        assert [info.current is None for info in read.partitions] == [False, True, False]
        assert read.partitions[0] == file.partitions[0]

    def test_a_struct_that_is_right_as_a_released_one_speaks_against_it(self) -> None:
        """Also where another one is right as a documented one, and nothing but zeros stands behind the documented infos."""
        raw = bytearray(ControlHeader(0, 1, KEY, 3).encode().ljust(Layout.RELEASED.file_size(3), b"\0"))
        last = Layout.DOCUMENTED.struct_offset(2, 2)
        raw[last : last + 28] = documented(9, 8, 7).encode()
        assert decode_control(bytes(raw)).extended
        first = Layout.RELEASED.struct_offset(0, 1)
        raw[first : first + 36] = PartitionStruct(3, 2, 1, 5, 6).encode()
        found = decode_control(bytes(raw))
        assert (found.extended, found.layout, found.size_fits) == (False, Layout.RELEASED, True)
        assert found.partitions[0].structs[0] == PartitionStruct(3, 2, 1, 5, 6).sealed()

    def test_without_a_single_valid_struct_nothing_tells(self) -> None:
        raw = extended(filled(Layout.DOCUMENTED, 1))
        invalidate(raw, Layout.DOCUMENTED, 0, 1)
        assert decode_control(raw).extended
        invalidate(raw, Layout.DOCUMENTED, 0, 2)
        assert not decode_control(raw).extended
        assert not decode_control(filled(Layout.RELEASED, 4).header.encode() + bytes(4 * 76)).extended

    @pytest.mark.turns(10)
    @properties
    @given(st.data(), st.integers(1, 12))
    def test_no_released_file_with_anything_intact_is_taken_for_one(self, data: st.DataObject, count: int) -> None:
        """Not even when its end is zeros and its damage anywhere."""
        file = initial_control(Layout.RELEASED, KEY, count, 1)
        infos = [replace(info, structs=(data.draw(structs(Layout.RELEASED)), data.draw(structs(Layout.RELEASED))))
                 for info in file.partitions]  # fmt: skip
        raw = bytearray(replace(file, partitions=tuple(infos)).encode())
        if data.draw(st.booleans()):
            raw[Layout.DOCUMENTED.file_size(count) :] = bytes(16 * count)
        kept = data.draw(st.integers(0, count - 1)), data.draw(st.integers(1, 2))
        one = data.draw(structs(Layout.RELEASED)).encode()
        place = Layout.RELEASED.struct_offset(*kept)
        raw[place : place + len(one)] = one
        read = decode_control(raw)
        assert (read.layout, read.extended) == (Layout.RELEASED, False)
        assert read.partitions[kept[0]].structs[kept[1] - 1].valid

    @properties
    @given(st.data(), st.integers(1, 12))
    def test_every_documented_file_is_known_again(self, data: st.DataObject, count: int) -> None:
        file = initial_control(Layout.DOCUMENTED, KEY, count, 1)
        infos = [replace(info, structs=(data.draw(structs(Layout.DOCUMENTED)), data.draw(structs(Layout.DOCUMENTED))))
                 for info in file.partitions]  # fmt: skip
        raw = replace(file, partitions=tuple(infos)).encode()
        read, again = decode_control(raw), decode_control(raw.ljust(Layout.RELEASED.file_size(count), b"\0"))
        assert (read.extended, again.extended) == (False, True)
        assert again.partitions == read.partitions


def test_sequence_numbers_half_the_circle_apart_are_compared_as_the_release_does() -> None:
    high = PartitionStruct(flags=5, sequence=0).sealed()
    low = PartitionStruct(flags=5, sequence=-(2**31)).sealed()
    assert choose_current(high, low) == (1, Choice.NEWER)
    assert choose_current(low, high) == (2, Choice.NEWER)


def test_a_pair_without_a_struct_in_force_can_neither_go_on_nor_be_renewed() -> None:
    torn = PartitionStruct.decode(Layout.DOCUMENTED, bytes(Layout.DOCUMENTED.struct_schema.size - 1) + b"\x01")
    info = PartitionInfo(3, 3, (torn, torn), *choose_current(torn, torn))
    tied = PartitionStruct(flags=5, sequence=7).sealed()
    both = PartitionInfo(3, 3, (tied, tied), *choose_current(tied, tied))
    for one, choice in ((info, Choice.NONE_VALID), (both, Choice.TIE)):
        assert one.choice is choice
        with pytest.raises(ValueError, match=rf"partition 3: no struct of its pair is in force \({choice}\)"):
            one.updated(session_id=1)
        with pytest.raises(ValueError, match=rf"partition 3: no struct of its pair is in force \({choice}\)"):
            one.renewed()


def _pair(marks: tuple[int, int, int], beside: tuple[int, int, int]) -> PartitionInfo:
    """In the released layout, the first struct in force."""
    structs = (
        PartitionStruct(*marks, FLAG_AVAILABLE, 1).sealed(),
        PartitionStruct(*beside, FLAG_AVAILABLE, 0).sealed(),
    )
    return PartitionInfo(0, 0, structs, *choose_current(*structs))


@pytest.mark.parametrize(
    ("marks", "beside", "kept"),
    [
        ((3, 9, 9), (3, 5, 5), (3, 5, 5)),
        ((3, 5, 5), (3, 9, 9), (3, 5, 5)),
        ((3, 5, 5), (3, 4, 6), (3, 5, 5)),
        ((3, 5, 5), (3, 5, 5), (3, 5, 5)),
    ],
)
def test_a_mark_that_fell_stays_as_low_in_the_documented_layout(
    marks: tuple[int, int, int], beside: tuple[int, int, int], kept: tuple[int, int, int]
) -> None:
    found = convert_info(_pair(marks, beside), Layout.DOCUMENTED, available=True, assigned=True)
    assert found.current_struct is not None
    assert found.current_struct.marks == marks
    assert found.structs[1].marks == kept


@pytest.mark.parametrize("current", [1, 2])
def test_where_the_higher_marks_win_a_rewritten_pair_says_the_same_twice(current: int) -> None:
    pair = (documented(3, 9, 9), documented(3, 5, 5))[:: 3 - 2 * current]
    info = PartitionInfo(4, 4, pair, *choose_current(*pair))
    assert info.current == current
    found = info.rewritten(low_water_mark=6)
    assert found == PartitionInfo(4, 4, (documented(3, 6, 9),) * 2, 1, Choice.SAME)


def test_where_the_sequence_wins_a_rewritten_pair_keeps_what_was_in_force() -> None:
    info = _pair((3, 9, 9), (3, 5, 5))
    written = PartitionStruct(3, 6, 9, FLAG_AVAILABLE, 2).sealed()
    assert info.rewritten(low_water_mark=6) == PartitionInfo(0, 0, (info.structs[0], written), 2, Choice.NEWER)


def test_a_pair_with_one_struct_that_is_not_valid_is_renewed_from_the_other() -> None:
    whole = _pair((3, 9, 9), (3, 5, 5))
    assert whole.renewed() == whole
    torn = whole.with_struct(2, replace(whole.structs[1], valid=False))
    renewed = torn.renewed()
    assert [one.valid for one in renewed.structs] == [True, True]
    assert renewed.current_struct == whole.current_struct
    assert renewed.structs[1].marks == (3, 9, 9)


def test_who_opens_which_layout() -> None:
    assert Layout.RELEASED.opened_by == ("waltzctl", "waltz 0.13.2")
    assert Layout.DOCUMENTED.opened_by == ("waltzctl",)


def test_the_numbers_of_the_format() -> None:
    assert (CONTROL_VERSION, FLAG_AVAILABLE, FLAG_ASSIGNED, MAX_PARTITIONS) == (0, 1, 4, 1_000_000)
    header = ControlHeader(0, 1, KEY, 1)
    assert ControlHeader.decode(header.encode()) == header
    assert header.reserved == bytes(96)
    assert PartitionStruct() == PartitionStruct(-1, -1, -1, None, None, 0, True)
    for layout, info, struct_size in ((Layout.DOCUMENTED, 60, 28), (Layout.RELEASED, 76, 36)):
        assert [layout.file_size(count) for count in (0, 1, 3)] == [128, 128 + info, 128 + 3 * info]
        assert [layout.info_offset(partition) for partition in (0, 2)] == [128, 128 + 2 * info]
        places = [layout.struct_offset(2, number) for number in (1, 2)]
        assert places == [128 + 2 * info + 4, 128 + 2 * info + 4 + struct_size]


def test_a_partition_that_was_never_assigned() -> None:
    info = initial_info(Layout.RELEASED, 7)
    assert (info.partition, info.stored_partition, info.current, info.choice) == (7, 7, 2, Choice.NEWER)
    assert [(one.marks, one.flags, one.sequence) for one in info.structs] == [((-1, -1, -1), 1, n) for n in (-1, 0)]
    info = initial_info(Layout.DOCUMENTED, 7)
    assert (info.current, info.choice) == (1, Choice.SAME)
    assert [(one.marks, one.flags, one.sequence) for one in info.structs] == [((-1, -1, -1), None, None)] * 2
    file = initial_control(Layout.RELEASED, KEY, 2, 9)
    assert file.header == ControlHeader(0, 9, KEY, 2)
    assert (file.size_fits, file.extended) == (True, False)


@pytest.mark.parametrize(
    ("first", "second", "newer"),
    [
        (0, 0, False),
        (-(2**31), -(2**31), False),
        (1, 0, True),
        (0, 1, False),
        (2**30, -(2**30) + 1, True),  # one short of half the circle
        (2**30, -(2**30), True),  # half the circle: the larger one
        (-(2**30), 2**30, False),
        (2**30, -(2**30) - 1, False),  # one beyond it
        (-(2**31), 2**31 - 1, True),
        (2**31 - 1, -(2**31), False),
    ],
)
def test_sequence_numbers_one_step_to_each_side(first: int, second: int, newer: bool) -> None:
    assert _serial_newer(first, second) is newer


@pytest.mark.parametrize(("sequence", "before"), [(0, -1), (1, 0), (-(2**31), 2**31 - 1), (2**31 - 1, 2**31 - 2)])
def test_the_struct_before_and_the_struct_behind_wrap(sequence: int, before: int) -> None:
    one = PartitionStruct(3, 2, 1, 5, sequence).sealed()
    assert one.preceding() == PartitionStruct(3, 2, 1, 5, before).sealed()
    later = PartitionStruct(3, 2, 1, 5, before).sealed()
    number, written = PartitionInfo(0, 0, (later, replace(later, valid=False)), 1, Choice.ONLY_VALID).updated()
    assert (number, written) == (2, one)
    assert documented(3, 2, 1).preceding() == documented(3, 2, 1)


@pytest.mark.parametrize("current", [1, 2])
@pytest.mark.parametrize("available", [False, True])
@pytest.mark.parametrize("assigned", [False, True])
class TestConversion:
    """The struct in force stays where it is; flags are as they are asked for, sequence numbers as in a new pair."""

    def test_to_the_released_layout(self, current: int, available: bool, assigned: bool) -> None:
        pair = (documented(3, 5, 5), documented(4, 9, 7))[:: 1 if current == 2 else -1]
        info = PartitionInfo(6, 6, pair, *choose_current(*pair))
        assert info.current == current
        found = convert_info(info, Layout.RELEASED, available=available, assigned=assigned)
        flags = 1 * available + 4 * assigned
        expected = PartitionStruct(3, 5, 5, flags, -1).sealed(), PartitionStruct(4, 9, 7, flags, 0).sealed()
        assert found.structs == expected[:: 1 if current == 2 else -1]
        assert (found.partition, found.stored_partition, found.current, found.choice) == (6, 6, current, Choice.NEWER)

    def test_within_the_released_layout(self, current: int, available: bool, assigned: bool) -> None:
        old, new = PartitionStruct(3, 5, 5, 5, 40).sealed(), PartitionStruct(4, 9, 7, 5, 41).sealed()
        pair = (new, old) if current == 1 else (old, new)
        info = PartitionInfo(6, 6, pair, *choose_current(*pair))
        found = convert_info(info, Layout.RELEASED, available=available, assigned=assigned)
        flags = 1 * available + 4 * assigned
        assert found.structs == tuple(replace(one, flags=flags).sealed() for one in pair)
        assert (found.current, found.choice) == (current, Choice.NEWER)

    def test_to_the_documented_layout(self, current: int, available: bool, assigned: bool) -> None:
        old, new = PartitionStruct(3, 5, 5, 5, 40).sealed(), PartitionStruct(4, 9, 7, 5, 41).sealed()
        pair = (new, old) if current == 1 else (old, new)
        info = PartitionInfo(6, 6, pair, *choose_current(*pair))
        found = convert_info(info, Layout.DOCUMENTED, available=available, assigned=assigned)
        assert found.structs == tuple(documented(*one.marks) for one in pair)
        assert (found.current, found.choice) == (current, Choice.NEWER)

    def test_of_two_equal_structs_the_second_one_stays(self, current: int, available: bool, assigned: bool) -> None:
        """And where only one is valid its values stand in both."""
        pair = documented(4, 9, 7), documented(4, 9, 7)
        found = convert_info(
            PartitionInfo(6, 6, pair, *choose_current(*pair)), Layout.RELEASED, available=available, assigned=assigned
        )
        assert [one.sequence for one in found.structs] == [-1, 0]
        assert found.current == 2
        torn = (documented(4, 9, 7), documented(1, valid=False))[:: 1 if current == 1 else -1]
        info = PartitionInfo(6, 6, torn, *choose_current(*torn))
        found = convert_info(info, Layout.DOCUMENTED, available=available, assigned=assigned)
        assert found.structs == (documented(4, 9, 7),) * 2


def test_the_likely_layout_is_that_of_more_right_checksums() -> None:
    """Of as many in either, the released one; and a file of thousands of partitions is looked at no longer than needed."""
    for layout in Layout:
        whole = initial_control(layout, KEY, 3, 1).encode()
        assert _likely_layout(whole[: 128 + layout.info_schema.size]) is layout
        assert _likely_layout(whole + b"\xff" * 30) is layout
        for end in (128, 129, 128 + 59):
            assert _likely_layout(whole[:end]) is Layout.RELEASED
    one_each = bytearray(128 + 2 * 76)
    for layout, partition in ((Layout.DOCUMENTED, 0), (Layout.RELEASED, 1)):
        raw = PartitionStruct(1, 2, 3, *((1, 0) if layout is Layout.RELEASED else ())).encode()
        place = layout.struct_offset(partition, 2)
        one_each[place : place + len(raw)] = raw
    assert _likely_layout(one_each) is Layout.RELEASED
    raw = PartitionStruct(4, 4, 4).encode()
    one_each[132 : 132 + len(raw)] = raw
    assert _likely_layout(one_each) is Layout.DOCUMENTED


@pytest.mark.parametrize("layout", Layout)
def test_bytes_behind_the_stated_infos_are_none_unless_something_in_them_is_valid(layout: Layout) -> None:
    raw = initial_control(layout, KEY, 3, 0).encode()
    size = layout.info_schema.size
    assert decode_control(raw).infos == decode_control(raw).partitions
    assert len(decode_control(raw[:-size]).infos) == 2, "the header says more than there are"
    longer = decode_control(raw + bytes(2 * size))
    assert (len(longer.partitions), len(longer.infos)) == (5, 3)
    assert len(decode_control(raw + bytes(size) + initial_info(layout, 4).encode()).infos) == 5
    for stated in (0, -7):
        assert len(decode_control(raw[:28] + stated.to_bytes(4, "big", signed=True) + raw[32:]).infos) == 3
