"""What was set offline is what a released node finds; and a manifest goes on vouching when a released node has written on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.clusters import Kind
from tests.interop.conftest import MakeCluster
from tests.interop.released import needs_released
from tests.interop.replicas import expect_clean
from waltzctl.engine.inspect.verification import ManifestRequest, VerifyOptions, VerifySummary
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.set_partition import plan_set_partition

pytestmark = needs_released


def compared(directory: Path, manifest: Path) -> tuple[str | None, set[str]]:
    *findings, summary = verify([directory], VerifyOptions(manifest=ManifestRequest(manifest)))
    assert isinstance(summary, VerifySummary)
    return summary.manifest, {one.code.value for one in findings if not isinstance(one, VerifySummary)}


@pytest.mark.parametrize("first", [Kind.RELEASED, pytest.param(Kind.OURS, marks=pytest.mark.long)])
def test_marks_and_flags_set_offline_hold_in_a_released_node(
    make_cluster: MakeCluster, tmp_path: Path, first: Kind
) -> None:
    cluster = make_cluster(nodes=1, partitions=4)
    cluster.start([first])
    (node,) = cluster.nodes
    client = cluster.client(node)
    for partition in (0, 1, 2):
        client.ask("lwm", 5, partition, -1)
        client.append(5, partition, 0, 200)
    client.close()
    node.stop()
    expect_clean(node.directory)
    manifest = tmp_path / "manifest"
    assert compared(node.directory, manifest) == ("written", set())

    for partition, setting in (
        (0, PartitionSetting(session_id=9, low_water_mark=199, local_low_water_mark=199)),
        (1, PartitionSetting(available=False)),
        (2, PartitionSetting(assigned=False)),
    ):
        assert apply(plan_set_partition(node.directory, partition=partition, setting=setting), arguments=[]).applied

    node.start(Kind.RELEASED)
    client = cluster.client(node)
    assert client.ask("status") == "{0=true, 1=false, 3=true}"
    assert client.session(10, 0) == (9, 199, 199)
    assert client.max_transaction_id(10, 0) == 199
    client.append(10, 0, 200, 100)
    client.close()
    node.stop()
    assert expect_clean(node.directory)["records"] == 700
    outcome, codes = compared(node.directory, manifest)
    assert outcome == "matches"
    assert "manifest-grown" in codes
