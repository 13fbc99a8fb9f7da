"""What contrib/ has for those who look on: alerts over metrics that nodes and servers have, each with a recipe of the README."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.running import ROOT
from waltzctl.engine.net.metrics import Meter
from waltzctl.engine.net.prometheus import exposition
from waltzctl.engine.node.node_collector import NodeCollector, NodeSurroundings
from waltzctl.engine.node.node_metrics import NodeMetrics, PartitionGauges
from waltzctl.engine.node.node_settings import SERVE
from waltzctl.engine.node.readings import NodePartitionReading, NodeReading
from waltzctl.engine.server.server_collector import ServerCollector
from waltzctl.engine.server.server_health import ServerHealthReport
from waltzctl.engine.server.server_metrics import ServerPartitionMetrics, ServerPartitionReading, ServerReading
from waltzctl.engine.server.server_settings import LOG_SERVER

CONTRIB = ROOT / "contrib"
ALERTS = CONTRIB / "prometheus-alerts.yml"
ALERTS_TEST = CONTRIB / "prometheus-alerts.test.yml"
DASHBOARD = CONTRIB / "grafana-dashboard.json"
TEXT = "text/plain; version=0.0.4"
OF_PROMETHEUS = {"cluster", "instance", "job"}
"""Labels that a target has from whoever reads it."""
NUMBERS = {"partition", "le"}
"""Labels with more values than one reading shows."""

Labels = tuple[tuple[str, str], ...]


@cache
def shown() -> Mapping[str, set[Labels]]:
    """Every sample that a node and a server show at `/metrics`: its name, and with which labels."""
    metrics = NodeMetrics()
    node = NodeReading(
        "1", (0,), (NodePartitionReading(0, metrics.partition(0), PartitionGauges(1, 0, 0, 0, 0, 0, 0)),)
    )
    surroundings = NodeSurroundings(healthy=True, connections=[("data", 1), ("admin", 0)], free_bytes=1, journal=True)
    partition = ServerPartitionReading(0, ServerPartitionMetrics(), 1, 1, 0, 0, 0, "", None)
    server = ServerReading("1", "waltz", 1, "s1:55180", (partition,), {}, Meter(), Meter(), (0, 0), 0)
    report = ServerHealthReport(metadata=True, listening=True, partitions=server.partitions, draining=False)
    found: dict[str, set[Labels]] = {}
    for collector in (NodeCollector(node, surroundings), ServerCollector(server, report)):
        body, _ = exposition(collector, TEXT)
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, set()).add(tuple(sorted(sample.labels.items())))
    return found


def mistakes(expression: str) -> Iterator[str]:
    """Metrics and labels of an expression that neither a node nor a server has."""
    for name, matchers in re.findall(r"\b(waltz_\w+|process_\w+)(?:\{(.*?)\})?", expression):
        if name not in shown():
            yield name
            continue
        for label, operator, value in re.findall(r'(\w+)(=~|!~|!=|=)"(.*?)"', matchers):
            values = {dict(labels).get(label) for labels in shown()[name]}
            wrong = operator == "=" and label not in NUMBERS and value not in values
            if label not in OF_PROMETHEUS and (None in values or wrong):
                yield f"{name}{{{label}{operator}{value}}}"
    known = {label for every in shown().values() for labels in every for label, _ in labels} | OF_PROMETHEUS
    for listed in re.findall(r"\b(?:by|on|ignoring|without|group_left|group_right) ?\(([\w, ]*)\)", expression):
        yield from {label.strip() for label in listed.split(",") if label.strip()} - known


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def recipes() -> set[str]:
    """What the README says one can do, as alerts name it: a section, and the row of its table or the incident."""
    found, section = set(), ""
    for line in (ROOT / "README.md").read_text().splitlines():
        if heading := re.match(r"## (.*)", line):
            section = heading[1]
        elif (row := re.match(r"\| (.*?) \|", line)) or (row := re.match(r"\*\*\d+\. (.*?)[.?]\*\*", line)):
            found.add(f"{section}: {row[1]}")
    return found


def test_every_metric_and_label_of_the_alerts_is_shown() -> None:
    for alert in alerts():
        assert [*mistakes(alert["expr"])] == [], alert["alert"]


def test_a_metric_or_label_that_is_not_shown_is_found() -> None:
    assert [*mistakes("waltz_storage_helthy == 0")] == ["waltz_storage_helthy"]
    assert [*mistakes('rate(waltz_server_appends_total{outcome="refused"}[5m])')] == [
        "waltz_server_appends_total{outcome=refused}"
    ]
    assert [*mistakes('waltz_storage_healthy{partition="0"}')] == ["waltz_storage_healthy{partition=0}"]
    assert [*mistakes("sum by (shard) (waltz_storage_available)")] == ["shard"]


def test_every_alert_names_a_recipe_that_the_readme_has() -> None:
    known = recipes()
    for alert in alerts():
        assert alert["annotations"]["recipe"] in known, alert["alert"]
        assert alert["annotations"]["summary"]
        assert alert["labels"]["severity"] in ("critical", "warning")


def test_every_alert_fires_in_the_tests_of_the_rules() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names)
    tests = yaml.safe_load(ALERTS_TEST.read_text())["tests"]
    fired = {
        one["alertname"] for test in tests for one in test.get("alert_rule_test", ()) if one["exp_alerts"]
    } | {
        name
        for test in tests
        for one in test.get("promql_expr_test", ())
        for sample in one["exp_samples"]
        for name in re.findall(r'alertname="(\w+)"', sample["labels"])
    }  # fmt: skip
    assert fired == set(names)


def test_the_series_of_the_tests_are_shown() -> None:
    for test in yaml.safe_load(ALERTS_TEST.read_text())["tests"]:
        for one in test["input_series"]:
            assert [*mistakes(one["series"])] == []


def test_the_targets_in_the_comment_are_the_http_ports() -> None:
    comment = "\n".join(re.findall(r"^# {3}(.*)$", ALERTS.read_text(), re.M))
    jobs = {job["job_name"]: job["static_configs"] for job in yaml.safe_load(comment)["scrape_configs"]}
    ports = {
        job: {target.rpartition(":")[2] for one in static for target in one["targets"]} for job, static in jobs.items()
    }
    node, server = SERVE.build({}).node, LOG_SERVER.build({}).server
    assert ports == {"waltz-storage": {str(node.ports.http)}, "waltz-server": {str(server.http_port)}}
    asked = {name for alert in alerts() for name in re.findall(r'job="([\w-]+)"', alert["expr"])}
    assert asked == set(jobs)


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """What the dashboard asks, with what its variables stand for."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [one.replace("$__rate_interval", "5m").replace("$cluster", ".*").replace("$instance", ".*") for one in found]


def test_every_metric_and_label_of_the_dashboard_is_shown() -> None:
    for one in expressions():
        assert [*mistakes(one)] == []
        assert "$" not in one
    for panel in panels():
        for target in panel["targets"]:
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            known = {
                label
                for name in re.findall(r"waltz_\w+", target["expr"])
                for every in shown()[name]
                for label, _ in every
            }
            assert labels <= known | OF_PROMETHEUS, panel["title"]


def test_the_dashboard_leaves_no_metric_out_that_is_more_than_a_name() -> None:
    asked = set(re.findall(r"waltz_\w+", " ".join(expressions())))
    parts = re.compile(r"_(bucket|count|sum|created)$")
    missing = {parts.sub("", name) for name in shown() if name.startswith("waltz_")} - {
        parts.sub("", one) for one in asked
    }
    names = {"waltz_storage_info", "waltz_server_info", "waltz_server_id"}
    marks = {"waltz_storage_session_id", "waltz_storage_local_low_water_mark"}
    assert missing == names | marks


def test_the_dashboard_has_a_place_for_every_panel() -> None:
    every = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in every)
        for x, y in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) == 23


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=CONTRIB, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


@needs_promtool
def test_prometheus_reads_the_rules_and_they_fire() -> None:
    promtool("check", "rules", ALERTS.name)
    promtool("test", "rules", ALERTS_TEST.name)


@needs_promtool
def test_prometheus_reads_what_the_dashboard_asks(tmp_path: Path) -> None:
    rules = [{"record": f"asked:{number}", "expr": one} for number, one in enumerate(expressions())]
    path = tmp_path / "asked.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", path)
