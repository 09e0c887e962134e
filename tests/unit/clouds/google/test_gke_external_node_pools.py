"""External node pools of a pool on GKE: one group for each zone, with the node pool's own limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.clouds.google.external_platform import ExternalGkePlatform, _warnings
from airflow_gpu_provider.clouds.google.instance_groups import InstanceGroup
from airflow_gpu_provider.errors import GroupNotFound

POOL = GkeGpuPool(
    name="train",
    cluster_name="ml",
    project_id="my-project",
    location="us-central1",
    manage="scale",
    node_pools=["wide", "narrow", "gone"],
    max_nodes=5,
)


def path(zone: str, name: str) -> str:
    return f"projects/my-project/zones/us-central1-{zone}/instanceGroupManagers/{name}"


def node_pool(name: str, *paths: str, **fields: Any) -> dict[str, Any]:
    urls = [f"https://www.googleapis.com/compute/v1/{each}" for each in paths]
    config = {"machine_type": "g2-standard-4", "spot": name == "narrow"}
    return {"name": name, "status": "RUNNING", "config": config, "instance_group_urls": urls} | fields


class NodePools:
    def read(self) -> Mapping[str, Any]:
        limit = {"autoscaling": {"enabled": True, "max_node_count": 2}}
        return {
            "narrow": node_pool("narrow", path("a", "n"), **limit),
            "wide": node_pool("wide", path("b", "wb"), path("a", "wa")),
            "another": node_pool("another", path("a", "x")),
        }


class InstanceGroups:
    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def read(self, paths: Sequence[str]) -> list[InstanceGroup]:
        return [InstanceGroup(path=each, target=0) for each in paths]

    def operations_since(self, zone: str, since: datetime) -> list[Mapping[str, Any]]:
        return []

    def grow(self, path: str, size: int) -> None:
        self.sizes[path] = size


def test_each_zone_is_a_group_in_the_spec_s_order() -> None:
    platform, groups = ExternalGkePlatform(POOL), InstanceGroups()
    platform._gke.__dict__.update(node_pools=NodePools(), groups=groups)

    found = platform.observe()

    assert [(group.name, group.max_size, group.candidate.market) for group in found] == [
        ("wide/us-central1-a", 5, "ON_DEMAND"),
        ("wide/us-central1-b", 5, "ON_DEMAND"),
        ("narrow", 2, "SPOT"),
    ]
    assert not any(group.owned or group.has_switch or group.keeps for group in found)

    platform.grow({"wide/us-central1-b": 1, "narrow": 2})

    assert groups.sizes == {path("b", "wb"): 1, path("a", "n"): 2}
    with pytest.raises(GroupNotFound, match="gone"):
        platform.grow({"gone": 1})


def test_a_node_pool_whose_nodes_nothing_would_request_is_warned_of() -> None:
    limited = {"config": {"max_run_duration": "86400s"}}
    assert list(_warnings(node_pool("plain", **limited), POOL)) == []
    (warning,) = _warnings(node_pool("queued", **limited, queued_provisioning={"enabled": True}), POOL)
    assert "come only by ProvisioningRequests" in warning
