"""What a node says of itself is read whole, and nothing in it is taken for granted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import build_directory
from tests.client.nodes import admin_of
from tests.formats.settings import properties
from tests.golden import GOLDEN, needs_golden
from tests.node.running import run, running
from waltzctl.engine.client.partition_readings import PartitionReading, need_assigned, parse_metrics, read_partitions
from waltzctl.engine.errors import InvalidRequestError, ProtocolError

NAME = "waltz-storage.partition-7.session-id"


def gauges(**values: Any) -> str:
    return json.dumps({"gauges": {name: {"value": value} for name, value in values.items()}})


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**31, -1])
def test_a_64_bit_value_is_not_cut(value: int) -> None:
    """T5: the release's tool shows 32 bits of it."""
    (metric,) = parse_metrics(gauges(**{NAME: value}), "h:1")
    assert (metric.name, metric.partition, metric.kind, metric.value) == ("session-id", 7, "gauge", value)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400])
def test_a_longer_value_is_none(value: int) -> None:
    (metric,) = parse_metrics(gauges(**{NAME: value}), "h:1")
    assert metric.value is None
    (metric,) = parse_metrics(gauges(**{NAME: [5, value, True]}), "h:1")
    assert metric.value == (5,)


def test_kinds_units_and_names() -> None:
    document = {
        "gauges": {"waltz-storage.waltz-storage-partition-ids": {"value": [0, 5]}, "other.thing": {"value": "text"}},
        "counters": {"waltz-storage.partition-3.record-request": {"count": 5}},
        "timers": {"waltz-storage.partition-3.append-latency": {
            "count": 2, "meanRate": 0.5, "oneMinuteRate": 1.5, "snapshot": {"median": 2_000_000, "max": 4e9}}},
        "meters": {"waltz-storage.partition-3.append": {"count": 9, "fifteenMinuteRate": 3}},
        "histograms": {"h": {"count": 1, "snapshot": {"min": 4}}},
    }  # fmt: skip
    by_name = {metric.name: metric for metric in parse_metrics(json.dumps(document), "h:1")}
    assert by_name["waltz-storage-partition-ids"].value == (0, 5)
    assert (by_name["other.thing"].value, by_name["other.thing"].partition) == ("text", None)
    assert (by_name["record-request"].count, by_name["record-request"].partition) == (5, 3)
    timer = by_name["append-latency"]
    assert timer.rates is not None
    assert timer.distribution is not None
    assert (timer.rates.mean, timer.rates.one_minute, timer.rates.five_minutes) == (0.5, 1.5, None)
    assert (timer.distribution.p50, timer.distribution.max, timer.distribution.p99) == (0.002, 4.0, None)
    histogram = by_name["h"].distribution
    assert histogram is not None
    assert histogram.min == 4


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "true", '"5"', "[1]", "1e999", "9" * 400])
def test_what_is_no_number_is_none(value: str) -> None:
    text = f'{{"timers": {{"t": {{"count": {value}, "meanRate": {value}, "snapshot": {{"max": {value}}}}}}}}}'
    (timer,) = parse_metrics(text, "h:1")
    assert timer.rates is not None
    assert timer.distribution is not None
    assert (timer.count, timer.rates.mean, timer.distribution.max) == (None, None, None)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"gauges": 5}', "[" * 100_000, '"' * 9])
def test_what_is_no_metrics_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="h:1: the metrics are"):
        parse_metrics(text, "h:1")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.turns(10)
@properties
@given(
    st.dictionaries(
        st.sampled_from([NAME, "x", "waltz-storage.partition-99999999999.a"]),
        st.fixed_dictionaries({}, optional=dict.fromkeys(("value", "count", "snapshot", "meanRate"), values)),
    ),
    st.sampled_from(["gauges", "timers", "counters", "meters", "histograms"]),
)
def test_any_value_of_a_metric_is_understood_or_left_out(named: dict[str, Any], kind: str) -> None:
    for metric in parse_metrics(json.dumps({"gauges": {}, kind: named}), "h:1"):
        assert metric.count is None or isinstance(metric.count, int)
        assert metric.value is None or isinstance(metric.value, (int, float, str, tuple))


@needs_golden
def test_the_metrics_of_a_released_node_are_understood() -> None:
    assert GOLDEN is not None
    lines = (GOLDEN / "wire" / "storage-steps.jsonl").read_text().splitlines()
    (text,) = [one["fields"]["metricsJson"] for line in lines for one in json.loads(line)["responses"]
               if one["name"] == "MetricsResponse"]  # fmt: skip
    found = parse_metrics(text, "h:1")
    values = {(one.partition, one.name): one.value for one in found if one.kind == "gauge"}
    assert values[0, "session-id"] == 100
    assert values[0, "max-transaction-id"] == 5
    (latency,) = [one for one in found if (one.partition, one.name) == (0, "append-latency")]
    assert latency.distribution is not None
    assert latency.distribution.max == pytest.approx(3255283e-9)


def test_the_partitions_of_our_node(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 10, 2: 0}, num_partitions=4)

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client:
            assert await read_partitions(client) == (
                PartitionReading(0, True, True, True, True, 3, 4, 4, 9, 0, truncations=0),
                PartitionReading(2, True, True, True, True, 3, -1, -1, -1, 0, truncations=0),
            )
            await client.set_writable(0, False)
            one, missing = await read_partitions(client, {3, 0})
            assert (one.available, one.readable, one.writable) == (False, None, None)
            assert missing == PartitionReading(3, False, *[None] * 8)
            with pytest.raises(InvalidRequestError, match="not assigned to this node: partition 3"):
                need_assigned([one, missing], "h:1")

    run(work())
