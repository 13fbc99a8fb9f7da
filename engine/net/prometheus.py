"""Metrics in Prometheus' text formats, encoded by the official client library, from a collector made for each response.

Nothing is registered with the library's global registry, so that several servers in one process are independent.
"""

from __future__ import annotations

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from waltzctl.engine.net.metrics import BUCKETS, BucketCounts


def exposition(collector: Collector, accept: str) -> tuple[bytes, str]:
    """The text and its content type: OpenMetrics if the Accept header asks for it; otherwise, and for an invalid header,
    Prometheus 0.0.4.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that the library cannot parse
        encoder, content_type = choose_encoder("")
    return encoder(registry), content_type


def add_buckets(family: HistogramMetricFamily, label: str, counts: BucketCounts) -> None:
    """Add a timer's buckets to a family with one label."""
    bounds = [*(repr(bound) for bound in BUCKETS), "+Inf"]
    family.add_metric([label], buckets=list(zip(bounds, counts.cumulative, strict=True)), sum_value=counts.sum)


# --- content negotiation ----------------------------------------------------------------------------------------------

_TEXT_TYPES = ("application/openmetrics-text", "text/plain", "text/*")
_JSON_TYPES = ("application/json", "application/*", "*/*")


def prefers_text(accept: str) -> bool:
    """Whether an Accept header prefers Prometheus' text to JSON.

    JSON, which the release answers, is the default: without a header, for ``*/*``, and for equal qualities.
    """
    text = json = 0.0
    for part in accept.lower().split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                try:
                    quality = min(1.0, max(0.0, float(value)))
                except ValueError:
                    quality = 0.0
        if media in _TEXT_TYPES:
            text = max(text, quality)
        elif media in _JSON_TYPES:
            json = max(json, quality)
    return text > json
