"""Metrics for Graphite in its plaintext protocol: lines ``name value seconds``, over TCP or UDP.

Names, suffixes and units are those of release 0.13.2: ``PREFIX.GROUP.NAME`` with ``.count``, ``.m1_rate``, ``.p99`` and so on;
rates are per second, durations in milliseconds, fractions have two digits.  Metrics that are no number are left out.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator

from waltzctl.engine.net.metrics import Counter, Gauge, Histogram, Meter, NamedMetric, Rates, Sample, Timer
from waltzctl.engine.net.monitoring_options import GraphiteOptions
from waltzctl.engine.net.single_flight import OverdueError, SingleFlight

TIMEOUT = 10.0
"""Seconds that sending one report may take."""
_QUANTILES = (("p50", 0.5), ("p75", 0.75), ("p95", 0.95), ("p98", 0.98), ("p99", 0.99), ("p999", 0.999))
_MILLISECONDS = 1000.0
_BLANKS = re.compile(r"\s+")


def report_lines(metrics: Iterable[NamedMetric], prefix: str, now: int) -> list[str]:
    """The lines of a report, without line ends.  `now`: seconds since 1970-01-01 UTC."""
    lines = []
    for one in sorted(metrics, key=lambda metric: metric.full_name):
        for suffix, value in _values(one):
            name = ".".join(part for part in (prefix, one.full_name, suffix) if part)
            shown = f"{value:.2f}" if isinstance(value, float) else str(value)
            lines.append(f"{_BLANKS.sub('-', name)} {shown} {now}")
    return lines


def _values(one: NamedMetric) -> Iterator[tuple[str, int | float]]:
    metric = one.metric
    if isinstance(metric, Gauge):
        if isinstance(metric.value, int):
            yield "", metric.value
    elif isinstance(metric, Counter):
        yield "count", metric.count
    elif isinstance(metric, Meter):
        yield from _rates(metric.rates())
    elif isinstance(metric, Timer):
        yield from _sample(metric.sample(), _MILLISECONDS)
        yield from _rates(metric.rates())
    elif isinstance(metric, Histogram):
        yield "count", metric.count
        yield from _sample(metric.sample(), 1.0)


def _rates(rates: Rates) -> Iterator[tuple[str, int | float]]:
    yield "count", rates.count
    yield "m1_rate", rates.one_minute
    yield "m5_rate", rates.five_minutes
    yield "m15_rate", rates.fifteen_minutes
    yield "mean_rate", rates.mean


def _sample(sample: Sample, unit: float) -> Iterator[tuple[str, float]]:
    yield "max", sample.max * unit
    yield "mean", sample.mean * unit
    yield "min", sample.min * unit
    yield "stddev", sample.stddev * unit
    for name, part in _QUANTILES:
        yield name, sample.quantile(part) * unit


def send(options: GraphiteOptions, lines: list[str]) -> None:
    """Send a report; blocks, at most about `TIMEOUT` seconds.  A datagram holds one line, as in the release.  Raises OSError.

    Of a name with several addresses it goes to the first one to which something can be sent from here.
    """
    if not options.udp:
        with socket.create_connection((options.host, options.port), TIMEOUT) as connection:
            connection.sendall("".join(f"{line}\n" for line in lines).encode())
        return
    found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_DGRAM)
    for left, (family, kind, protocol, _, address) in zip(reversed(range(len(found))), found, strict=True):
        try:
            with socket.socket(family, kind, protocol) as sender:
                for line in lines:
                    sender.sendto(line.encode(), address)
            return
        except OSError:
            if not left:
                raise


async def report_for_ever(
    options: GraphiteOptions, read: Callable[[], Iterable[NamedMetric]], log: logging.Logger
) -> None:
    """Report every `GraphiteOptions.interval` seconds until cancelled.

    A series of failures is logged twice: at its first failure, and when a report succeeds again.
    """
    failing = False

    def report() -> None:
        send(options, report_lines(read(), options.prefix, int(time.time())))

    reporting = SingleFlight(report, name="the report to Graphite")
    while True:
        await asyncio.sleep(options.interval)
        try:
            await reporting.result(TIMEOUT * 2)
        except Exception as error:  # of any kind: the next report may succeed
            if not failing:
                trace = None if isinstance(error, (OSError, OverdueError)) else error
                place, why = f"Graphite at {options.host}:{options.port}", str(error) or type(error).__name__
                log.warning("%s: metrics could not be sent: %s", place, why, exc_info=trace)
            failing = True
        else:
            if failing:
                log.info("Graphite at %s:%d: metrics are sent again", options.host, options.port)
            failing = False
