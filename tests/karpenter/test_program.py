"""The program itself, as a process of the sandbox, and the cloud that it launches machines in."""

from __future__ import annotations

import psutil

from gpu_sandbox.karpenter import MachineCloud, Offering
from tests.karpenter.cluster import NEVER, Cluster
from tests.karpenter.nights import Night


def test_it_listens_nowhere(cluster: Cluster) -> None:
    (process,) = [each for each in psutil.Process().children() if each.cmdline()[1:2] == ["karpenter"]]
    assert [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN] == []


def test_a_launch_takes_a_zone_that_has_such_machines(cluster: Cluster, cloud: MachineCloud) -> None:
    first, *others = cluster.sandbox.zones
    cloud.unavailable = tuple(Offering(zone=zone) for zone in others)
    Night(cluster.node_pool("zonal", disruption=NEVER)).train()
    (node,) = cluster.nodes("zonal")
    assert node.metadata.labels["topology.kubernetes.io/zone"] == first
    assert node.spec.provider_id.startswith(f"aws:///{first}/i-")
    assert cloud.nodes().count(node.metadata.name) == 1
