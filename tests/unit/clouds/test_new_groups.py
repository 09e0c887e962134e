"""Groups are scaled whatever the cloud still shows: a new one that the next call does not know, a size of before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.clouds.aws.autoscaling import AutoScaling as Scaling
from airflow_gpu_provider.clouds.aws.node_groups import LastLook
from airflow_gpu_provider.clouds.aws.owned_platform import OwnedEksPlatform
from airflow_gpu_provider.clouds.aws.spec import POOL_TAG
from airflow_gpu_provider.clouds.google.instance_groups import InstanceGroup
from airflow_gpu_provider.clouds.google.instance_groups import InstanceGroups as Managed
from airflow_gpu_provider.clouds.google.owned_platform import OwnedGkePlatform
from airflow_gpu_provider.errors import GroupNotFound
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


class OwnNodeGroups(NodeGroups):
    """Describes its node group once."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        super().__init__(raw)
        self.last_look = LastLook()
        self._answers = [raw]

    def of_pool(self) -> list[str]:
        return [GROUP]

    def describe(self, name: str) -> Any:
        return self._answers.pop() if self._answers else None


class AutoScaling:
    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def now(self) -> datetime:
        return datetime.now(UTC)

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
    platform, scaling = OwnedEksPlatform(pool()), AutoScaling()
    ours = {**NODE_GROUP, "tags": {POOL_TAG: pool().name}}
    platform._eks.__dict__.update(groups=OwnNodeGroups(ours), scaling=scaling)
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
    platform, groups = OwnedGkePlatform(spec), InstanceGroups()
    platform._gke.__dict__.update(node_pools=NodeGroups(NODE_POOL), groups=groups)
    platform.observe()

    platform.grow({GROUP: 1})

    assert groups.sizes == {PATH: 1}


def test_a_group_without_an_auto_scaling_group_says_in_which_state_it_is() -> None:
    class Creating(NodeGroups):
        def describe(self, name: str) -> Any:
            return {**NODE_GROUP, "status": "CREATING", "resources": {}} if name == GROUP else None

    platform = OwnedEksPlatform(pool())
    platform._eks.__dict__.update(groups=Creating(NODE_GROUP), scaling=AutoScaling())
    with pytest.raises(GroupNotFound, match=f"{GROUP} is CREATING and has no .*; node group gone does not exist"):
        platform.grow({GROUP: 1, "gone": 1})


class Shown:
    """Clouds that show a size of 1, whatever it is, and take down what it is set to."""

    def __init__(self) -> None:
        self.set: list[int] = []

    def items(self, operation: str, key: str, **_: Any) -> list[Mapping[str, Any]]:
        return [{"AutoScalingGroupName": "eks-asg", "DesiredCapacity": 1, "Tags": []}]

    def call(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        self.set.append(arguments["DesiredCapacity"])
        return {}

    def get(self, path: str, *, permission: str) -> Mapping[str, Any]:
        return {"targetSize": 1}

    def post(self, path: str, body: Any = None, *, permission: str, **query: Any) -> Mapping[str, Any]:
        self.set.append(query["size"])
        return {"status": "DONE"}


@pytest.mark.parametrize("groups", [Scaling, Managed])
def test_a_size_that_may_be_that_of_before_a_release_is_set_again_and_a_larger_one_is_left(groups: Any) -> None:
    shown = Shown()
    for size in (0, 1, 2):
        groups(shown).grow("eks-asg", size)
    assert shown.set == [1, 2]
