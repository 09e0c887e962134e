"""What is left on GKE is found by Google's own names; a list that may not be read says why, and hides no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.clouds.google import remains as of_google
from airflow_gpu_provider.errors import PermissionDenied

ANSWERS = {
    "list_node_pools": {
        "node_pools": [{"name": "accept-train-a-g2-standard-4", "status": "STOPPING"}, {"name": "other"}]
    },
    "get_cluster": {"locations": ["us-central1-a", "us-central1-b"]},
}
GROUPS = {
    "us-central1-a": [{"name": "gke-k8s-ml-accept-train-a-g2-4c1-grp", "targetSize": 2}],
    "us-central1-b": [{"name": "gke-k8s-ml-other-grp"}],
}
INSTANCES = [
    {"name": "gke-k8s-ml-cut-1", "labels": {"goog-k8s-node-pool-name": "accept-train-b"}, "status": "RUNNING"},
    {"name": "bastion", "status": "RUNNING"},
]


def pool(*zones: str) -> GkeGpuPool:
    return GkeGpuPool(
        name="accept-train",
        project_id="acme-ml-1",
        location="us-central1",
        cluster_name="k8s-ml",
        machine_types=["g2-standard-4"],
        node_locations=zones,
        max_nodes=1,
    )


def google_has(monkeypatch: pytest.MonkeyPatch, *, instances: Any) -> None:
    def items(path: str, key: str, *, permission: str) -> Any:
        return instances() if permission == "compute.instances.list" else iter(GROUPS[path.split("/")[3]])

    gke = SimpleNamespace(call=lambda method, *, permission, **which: ANSWERS[method])
    clients = SimpleNamespace(compute=SimpleNamespace(items=items), gke=gke)
    monkeypatch.setattr(of_google, "GoogleClients", lambda **_: clients)


def test_what_the_pool_had_is_found_in_each_zone_of_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    google_has(monkeypatch, instances=lambda: iter(INSTANCES))
    node_pools, groups, machines = of_google.remains("accept-train", pool=pool())
    assert node_pools.left == ("accept-train-a-g2-standard-4: STOPPING",)
    assert groups.left == ("gke-k8s-ml-accept-train-a-g2-4c1-grp: 2 instances",)
    assert machines.left == ("gke-k8s-ml-cut-1: RUNNING",) * 2


def test_a_list_that_may_not_be_read_says_why_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied() -> Any:
        raise PermissionDenied("It may not compute.instances.list.")

    google_has(monkeypatch, instances=denied)
    node_pools, groups, machines = of_google.remains("accept-train", pool=pool("us-central1-b"))
    assert (len(node_pools.left), groups.left) == (1, ())
    assert (machines.left, machines.unasked) == ((), "PermissionDenied: It may not compute.instances.list.")
