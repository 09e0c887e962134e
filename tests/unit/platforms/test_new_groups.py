"""A group that one call shows and the next does not know yet is scaled all the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.platforms.eks import EksPlatform
from airflow_gpu_provider.platforms.gke import GkePlatform
from airflow_gpu_provider.platforms.gke_instances import InstanceGroup
from tests.unit.scaling.pools import pool

GROUP = "train-gpu-a"
PATH = "projects/p/zones/us-central1-a/instanceGroupManagers/g"
NODE_GROUP = {
    "nodegroupName": GROUP,
    "status": "ACTIVE",
    "instanceTypes": ["g6.xlarge"],
    "scalingConfig": {"minSize": 0, "maxSize": 1, "desiredSize": 0},
    "tags": {},
    "resources": {"autoScalingGroups": [{"name": "eks-asg"}]},
}
NODE_POOL = {
    "name": GROUP,
    "status": "RUNNING",
    "config": {"machine_type": "g2-standard-4"},
    "instance_group_urls": [f"https://www.googleapis.com/compute/v1/{PATH}"],
}


class NodeGroups:
    """Lists a node group, or node pool, that it cannot describe."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw

    def owned(self) -> Mapping[str, Any]:
        return {GROUP: self._raw}

    def describe(self, name: str) -> None:
        return None


class AutoScaling:
    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def activities(self, names: Collection[str]) -> Mapping[str, Any]:
        return {}

    def groups(self, names: Collection[str]) -> Mapping[str, Any]:
        return {}

    def switches(self) -> Mapping[str, Any]:
        return {}

    def left_suspended(self, asgs: Collection[Any]) -> set[str]:
        return set()

    def grow(self, name: str, size: int) -> None:
        self.sizes[name] = size


class InstanceGroups:
    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def read(self, paths: Sequence[str]) -> list[InstanceGroup]:
        return [InstanceGroup(path=path, target=0) for path in paths]

    def grow(self, path: str, size: int) -> None:
        self.sizes[path] = size


def test_of_eks() -> None:
    platform, scaling = EksPlatform(pool()), AutoScaling()
    platform.__dict__.update(_groups=NodeGroups(NODE_GROUP), _scaling=scaling)
    platform.observe()

    platform.grow({GROUP: 1})

    assert scaling.sizes == {"eks-asg": 1}


def test_of_gke() -> None:
    spec = GkeGpuPool(
        name="train-gpu",
        cluster_name="ml",
        project_id="my-project",
        location="us-central1",
        machine_types=("g2-standard-4",),
        max_nodes=1,
    )
    platform, groups = GkePlatform(spec), InstanceGroups()
    platform.__dict__.update(_node_pools=NodeGroups(NODE_POOL), _groups=groups)
    platform.observe()

    platform.grow({GROUP: 1})

    assert groups.sizes == {PATH: 1}
