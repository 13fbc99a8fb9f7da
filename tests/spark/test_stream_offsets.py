"""Offsets, starting places and the sharing of a limit: functions of values."""

from __future__ import annotations

import contextlib
import json
import uuid
from dataclasses import replace

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from hypothesis import given
from hypothesis import strategies as st

from waltzctl.engine.errors import InvalidRequestError, StalePlanError
from waltzctl.engine.spark.offsets import (
    BEGINNING,
    EARLIEST,
    LATEST,
    Anchor,
    StreamOffset,
    check_same_cluster,
    history_changed,
    only_wanted,
    parse_starting,
    share,
)
from waltzctl.formats.request_id import RequestId

INT32 = st.integers(-(2**31), 2**31 - 1)
PLACE = st.integers(0, 2**63 - 1)
ANCHORS = st.builds(
    Anchor,
    st.integers(-1, 2**63 - 1),
    st.none() | st.builds(RequestId, INT32, INT32, INT32, INT32),
    st.none() | st.integers(0, 2**32 - 1),
    st.none() | PLACE,
    st.none() | PLACE,
    st.none() | PLACE,
)
OFFSETS = st.builds(
    StreamOffset, st.dictionaries(st.integers(0, 2**31 - 1), ANCHORS, max_size=6), st.none() | st.uuids()
)


@given(OFFSETS)
def test_an_offset_comes_back_from_its_json_and_equal_offsets_have_equal_text(offset: StreamOffset) -> None:
    text = json.dumps(offset.to_json())
    again = StreamOffset.from_json(json.loads(text))
    assert again == offset
    shuffled = StreamOffset(dict(reversed(list(offset.partitions.items()))), offset.cluster_key)
    assert json.dumps(shuffled.to_json()) == text


def test_an_offset_as_it_is_written() -> None:
    """A checksum has eight digits, as everywhere else, and partitions are in their order."""
    text = json.dumps(StreamOffset({2: Anchor(5, None, 0x1F, 0, 128, 60), 0: BEGINNING}, None).to_json())
    assert '"record_checksum": "0000001f"' in text
    assert text.index('"0": {') < text.index('"2": {')


@given(OFFSETS, st.data())
def test_an_offset_that_was_changed_is_read_as_another_value_or_refused(
    offset: StreamOffset, data: st.DataObject
) -> None:
    value = offset.to_json()
    value[data.draw(st.sampled_from(["version", "cluster_key", "partitions"]))] = data.draw(
        st.sampled_from([None, 7, "x", [], {"-1": {}}, {"0": {"transaction_id": -2}}])
    )
    with contextlib.suppress(InvalidRequestError):
        assert StreamOffset.from_json(value).to_json() == value


@pytest.mark.parametrize(
    "value", [{}, [], None, {"logOffset": 3}, {"version": 2, "cluster_key": None, "partitions": {}}]
)
def test_an_offset_of_something_else_is_refused_with_advice(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="checkpoint"):
        StreamOffset.from_json(value)


@given(st.dictionaries(st.integers(0, 50), st.integers(0, 1000), max_size=12), st.integers(0, 5000))
def test_a_limit_is_used_up_never_passed_and_shared_without_starving_anybody(
    available: dict[int, int], limit: int
) -> None:
    shares = share(available, limit)
    assert shares.keys() == available.keys()
    assert all(0 <= shares[n] <= available[n] for n in available)
    assert sum(shares.values()) == min(limit, sum(available.values()))
    unsatisfied = [shares[n] for n in available if shares[n] < available[n]]
    if unsatisfied:  # whoever wants more got as much as anybody, but for what division leaves over
        assert max(shares.values()) - min(unsatisfied) <= 1


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        (None, EARLIEST, EARLIEST),
        (" Latest ", LATEST, LATEST),
        ('{"0": 12}', 12, EARLIEST),
        ('{"0": "latest", "1": 7}', LATEST, 7),
    ],
)
def test_where_a_query_begins(text: str | None, first: int | str, second: int | str) -> None:
    starting = parse_starting(text)
    assert (starting.of(0), starting.of(1)) == (first, second)


@pytest.mark.parametrize("text", ["", "soon", "[1]", '{"0": -1}', '{"a": 1}', '{"0": 1.5}', '{"0": true}', "{"])
def test_where_a_query_cannot_begin(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="startingTransactions"):
        parse_starting(text)


def test_another_cluster_is_told_and_an_unknown_one_is_not() -> None:
    known = StreamOffset({}, uuid.UUID(int=1))
    check_same_cluster(known, uuid.UUID(int=1), "here")
    check_same_cluster(known, None, "here")
    check_same_cluster(StreamOffset(), uuid.UUID(int=2), "here")
    with pytest.raises(StalePlanError, match="here"):
        check_same_cluster(known, uuid.UUID(int=2), "here")


def test_the_error_about_a_changed_history_names_partition_transaction_and_what_to_do() -> None:
    anchor = Anchor(41, RequestId(1, 2, 3, 4), 0xABCD)
    other = Anchor(41, RequestId(9, 2, 3, 4), 0xABCE)
    assert not anchor.is_record(other)
    for found, last, said in ((other, None, "9.2.3.4"), (None, 40, "ends at 40"), (None, 99, "no intact record")):
        text = str(history_changed("/data", 3, anchor, found, last))
        assert "/data, partition 3" in text
        assert "transaction 41" in text
        assert said in text
        assert "startingTransactions" in text
    assert BEGINNING.end is None


@given(ANCHORS, ANCHORS)
def test_a_record_is_the_same_where_id_request_id_and_checksum_are(one: Anchor, other: Anchor) -> None:
    """Wherever it stands; each of the three alone makes it another one."""
    moved = replace(one, segment=other.segment, offset=other.offset, size=other.size)
    assert one.is_record(moved)
    assert not one.is_record(replace(moved, transaction_id=one.transaction_id + 1))
    for changed in (
        replace(moved, record_checksum=(one.record_checksum or 0) ^ 1),
        replace(moved, request_id=RequestId(1, 2, 3, 4) if one.request_id is None else None),
    ):
        assert not one.is_record(changed)
        assert not changed.is_record(one)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("transaction_id", -2),
        ("transaction_id", 2**63),
        ("transaction_id", None),
        ("transaction_id", True),
        ("segment", -1),
        ("offset", -1),
        ("offset", 2**63),
        ("size", -1),
        ("size", 1.0),
        ("request_id", "1.2.3"),
        ("request_id", f"{2**31}.0.0.0"),
        ("record_checksum", "xyz"),
    ],
)
def test_a_place_one_step_out_of_bounds_is_refused(name: str, value: object) -> None:
    """And the bounds themselves are taken."""
    least = {"transaction_id": -1, "request_id": None, "record_checksum": None, "segment": 0, "offset": 0, "size": 0}
    most = least | {"transaction_id": 2**63 - 1, "segment": 2**63 - 1, "offset": 2**63 - 1, "size": 2**63 - 1}
    offset = {"version": 1, "cluster_key": None}
    for one in (least, most):
        assert StreamOffset.from_json(offset | {"partitions": {"0": one}}).to_json()["partitions"] == {"0": one}
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        StreamOffset.from_json(offset | {"partitions": {"0": least | {name: value}}})


@pytest.mark.parametrize("text", ["-1", "", "a", "1.0", "\u0661"])
def test_what_is_no_number_of_a_partition_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="is no partition"):
        StreamOffset.from_json({"version": 1, "cluster_key": None, "partitions": {text: {}}})


def test_where_a_record_ends_and_whether_it_can_be_told_from_another() -> None:
    known = Anchor(7, RequestId(1, 2, 3, 4), 0, 0, 10, 5)
    assert known.end == 15
    assert replace(known, offset=None).end is None
    assert replace(known, size=None).end is None
    assert known.identified
    assert not replace(known, request_id=None).identified
    assert not replace(known, record_checksum=None).identified


def test_an_offset_is_restricted_to_the_partitions_that_are_wanted() -> None:
    one, two = Anchor(1), Anchor(2)
    offset = StreamOffset({1: one, 2: two})
    assert only_wanted(offset, None) == {1: one, 2: two}
    assert only_wanted(offset, {2, 3}) == {2: two}
    assert only_wanted(offset, ()) == {}
    assert (offset.at(2), offset.at(3)) == (two, Anchor(-1))


@pytest.mark.parametrize(
    ("available", "limit", "shares"),
    [
        ({0: 5, 1: 5}, -1, {0: 0, 1: 0}),
        ({0: 5, 1: 9, 2: 7}, 2, {0: 0, 1: 1, 2: 1}),
        ({1: 5, 0: 5}, 1, {1: 1, 0: 0}),
        ({0: 1, 1: 9}, 6, {0: 1, 1: 5}),
    ],
)
def test_shares_are_equal_and_the_longest_queue_comes_first(
    available: dict[int, int], limit: int, shares: dict[int, int]
) -> None:
    assert share(available, limit) == shares


def test_a_truncated_partition_is_told_by_its_last_transaction() -> None:
    anchor = Anchor(41, RequestId(1, 2, 3, 4), 0xABCD)
    for last, said in ((40, "ends at 40 now"), (41, "no intact record"), (None, "no intact record")):
        assert said in str(history_changed("here", 3, anchor, None, last))
    changed = str(history_changed("here", 3, anchor, Anchor(41, RequestId(1, 2, 3, 4)), None))
    assert "checksum unknown stands there now" in changed
    assert "checksum 0000abcd" in changed
