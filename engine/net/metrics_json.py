"""The two JSON documents of metrics that a released node shows (release 0.13.2 and its metrics library 2.5.2).

========== ========================= ================================================= ==================
document   answers                   metrics                                           durations
========== ========================= ================================================= ==================
registry   the admin port's request  each twice: under ``metrics`` and under its kind;  nanoseconds
                                     a timer with all its sampled values
report     HTTP's ``/metrics``       by kind; no samples                               seconds
========== ========================= ================================================= ==================

Both have the release's layout, including blanks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from waltzctl.engine.net.metrics import Counter, Gauge, Histogram, Meter, Metric, NamedMetric, Rates, Sample, Timer

REPORT_VERSION = "4.0.0"
"""Version of the report's format."""

Json = Mapping[str, "Json"] | Sequence["Json"] | str | int | float | None
"""A JSON value."""

_KINDS: tuple[tuple[str, type[Metric]], ...] = (
    ("gauges", Gauge),
    ("counters", Counter),
    ("histograms", Histogram),
    ("meters", Meter),
    ("timers", Timer),
)
_NANOSECONDS = 1e9


def registry(metrics: Iterable[NamedMetric]) -> str:
    """The *registry* document, indented."""
    named = sorted(metrics, key=lambda one: one.full_name)
    rendered = {one.full_name: _registry_value(one.metric) for one in named}
    document: dict[str, Json] = {"metrics": rendered}
    document |= _by_kind(named, rendered)
    document["ids"] = [{"group": one.group, "name": one.name, "fullName": one.full_name} for one in named]
    return indented(document)


def report(metrics: Iterable[NamedMetric], *, pretty: bool = False) -> str:
    """The *report* document; `pretty`: indented."""
    named = sorted(metrics, key=lambda one: one.full_name)
    rendered = {one.full_name: _report_value(one.metric) for one in named}
    document: dict[str, Json] = {"version": REPORT_VERSION}
    document |= _by_kind(named, rendered)
    return indented(document) if pretty else compact(document)


def _by_kind(named: Sequence[NamedMetric], rendered: Mapping[str, Json]) -> dict[str, Json]:
    return {
        kind: {one.full_name: rendered[one.full_name] for one in named if isinstance(one.metric, type_)}
        for kind, type_ in _KINDS
    }


def _registry_value(metric: Metric) -> Json:
    match metric:
        case Gauge():
            return {"value": metric.value}
        case Counter():
            return {"count": metric.count}
        case Meter():
            return _registry_rates(metric.rates())
        case Timer():
            return {**_registry_rates(metric.rates()), "snapshot": _snapshot(metric.sample(), _NANOSECONDS)}
        case Histogram():
            return {"count": metric.count, "snapshot": _snapshot(metric.sample(), 1)}


def _registry_rates(rates: Rates) -> dict[str, Json]:
    return {
        "count": rates.count,
        "fifteenMinuteRate": rates.fifteen_minutes,
        "fiveMinuteRate": rates.five_minutes,
        "meanRate": rates.mean,
        "oneMinuteRate": rates.one_minute,
    }


def _snapshot(sample: Sample, scale: float) -> dict[str, Json]:
    def quantile(part: float) -> float:
        return float(round(sample.quantile(part) * scale))

    return {
        "values": [round(value * scale) for value in sample.values],
        "min": round(sample.min * scale),
        "max": round(sample.max * scale),
        "mean": sample.mean * scale,
        "stdDev": sample.stddev * scale,
        "median": quantile(0.5),
        "75thPercentile": quantile(0.75),
        "95thPercentile": quantile(0.95),
        "98thPercentile": quantile(0.98),
        "99thPercentile": quantile(0.99),
        "999thPercentile": quantile(0.999),
    }


def _report_value(metric: Metric) -> Json:
    match metric:
        case Gauge():
            return {"value": metric.value}
        case Counter():
            return {"count": metric.count}
        case Meter():
            rates = metric.rates()
            return {"count": rates.count, **_report_rates(rates), "units": "events/second"}
        case Timer():
            rates = metric.rates()
            return {
                "count": rates.count,
                **_report_sample(metric.sample(), float),
                **_report_rates(rates),
                "duration_units": "seconds",
                "rate_units": "calls/second",
            }
        case Histogram():
            return {"count": metric.count, **_report_sample(metric.sample(), round)}


def _report_sample(sample: Sample, extreme: Callable[[float], float]) -> dict[str, Json]:
    """`extreme`: converts the largest and the smallest value (to a whole number in a histogram)."""
    return {
        "max": extreme(sample.max),
        "mean": sample.mean,
        "min": extreme(sample.min),
        "p50": float(sample.quantile(0.5)),
        "p75": float(sample.quantile(0.75)),
        "p95": float(sample.quantile(0.95)),
        "p98": float(sample.quantile(0.98)),
        "p99": float(sample.quantile(0.99)),
        "p999": float(sample.quantile(0.999)),
        "stddev": sample.stddev,
    }


def _report_rates(rates: Rates) -> dict[str, Json]:
    return {
        "m15_rate": rates.fifteen_minutes,
        "m1_rate": rates.one_minute,
        "m5_rate": rates.five_minutes,
        "mean_rate": rates.mean,
    }


# --- the release's layout ---------------------------------------------------------------------------------------------


def compact(value: Json) -> str:
    """One line without blanks."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def indented(value: Json, depth: int = 0) -> str:
    """Indented by two blanks per level, blanks around colons, arrays on one line, as the release's JSON library does."""
    if isinstance(value, Mapping):
        if not value:
            return "{ }"
        inner = "  " * (depth + 1)
        members = ",\n".join(f"{inner}{compact(name)} : {indented(one, depth + 1)}" for name, one in value.items())
        return f"{{\n{members}\n{'  ' * depth}}}"
    if isinstance(value, (list, tuple)):
        if value and all(type(one) is int for one in value):  # a timer's thousand values, each of which would be a call
            return f"[ {', '.join(map(str, value))} ]"
        return f"[ {', '.join(indented(one, depth) for one in value)} ]" if value else "[ ]"
    return compact(value)
