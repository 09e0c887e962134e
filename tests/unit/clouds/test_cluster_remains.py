"""What is left in a cluster is found by the pools' label, and a cluster that does not answer hides no cloud's list."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, KubernetesGpuPool
from airflow_gpu_provider.clouds import remains as of_cluster
from airflow_gpu_provider.clouds.aws import remains as of_aws
from airflow_gpu_provider.clouds.remains import Listed, remains
from airflow_gpu_provider.cluster.model.lease import LEASES
from airflow_gpu_provider.errors import ClusterNotFound
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient

LAB = KubernetesGpuPool(name="lab", nodes=["gpu-1"], max_nodes=1)
EKS = EksGpuPool(name="train", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1)
PLUGINS = "apis/apps/v1/namespaces/airflow-gpu-device-plugins/daemonsets"


def reached_by(monkeypatch: pytest.MonkeyPatch, api_client: Any) -> None:
    platform = SimpleNamespace(cluster_access=lambda: SimpleNamespace(api_client=api_client))
    monkeypatch.setattr(of_cluster, "platform_for", lambda pool: platform)


def test_in_a_cluster_all_that_is_labelled_with_the_names_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ApiServer()
    for pool in ("lab", "night", "other-lab-2"):
        metadata = {"labels": {POOL_LABEL: pool}}
        server.put(f"api/v1/nodes/node-of-{pool}", {"metadata": metadata | {"name": f"node-of-{pool}"}})
        server.put(f"{LEASES.strip('/')}/lock-{pool}", {"metadata": metadata | {"name": f"lock-{pool}"}})
        server.put(f"{PLUGINS}/nvidia-{pool}", {"metadata": {"name": f"nvidia-{pool}"}})
    reached_by(monkeypatch, lambda: FakeApiClient(server))
    nodes, leases, plugins = remains("lab", "night", pool=LAB)
    assert nodes.left == ("node-of-lab", "node-of-night")
    assert leases.left == ("lock-lab", "lock-night")
    in_namespace = "airflow-gpu-device-plugins"
    assert plugins.left == (f"{in_namespace}/nvidia-lab", f"{in_namespace}/nvidia-night")
    assert [each.costs for each in (nodes, leases, plugins)] == [True, True, False]


def test_a_cluster_that_is_gone_hides_nothing_that_its_cloud_still_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Iterator[Any]:
        raise ClusterNotFound("There is no EKS cluster k8s-ml.", "Check cluster_name.")

    reached_by(monkeypatch, gone)
    service = SimpleNamespace(
        items=lambda method, key, **_: iter(["train-a"] if method == "list_nodegroups" else ()),
        call=lambda method: {"PlacementGroups": []},
    )
    clients = SimpleNamespace(eks=service, autoscaling=service, ec2=service)
    monkeypatch.setattr(of_aws, "AwsClients", lambda **_: clients)
    of_cloud, in_cluster = remains("train", pool=EKS)[:6], remains("train", pool=EKS)[6:]
    assert [str(each) for each in of_cloud if each.left or each.unasked] == ["node groups, by EKS: train-a"]
    assert [each.unasked for each in in_cluster] == [
        "ClusterNotFound: There is no EKS cluster k8s-ml. Check cluster_name."
    ] * 3
    assert str(Listed(what="nodes", unasked="denied")) == "nodes: unknown: denied"
