"""Pools whose groups others own: what names them, what is refused next to it, and that they survive their JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import GpuPool

names = st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}", fullmatch=True), max_size=4, unique=True)


def eks(**fields: Any) -> EksGpuPool:
    of_pool = {"name": "train", "cluster_name": "k8s-ml", "region": "us-west-2", "max_nodes": 4, "manage": "scale"}
    return EksGpuPool(**{**of_pool, **fields})


def gke(**fields: Any) -> GkeGpuPool:
    where = {"project_id": "ml-project", "location": "us-central1", "cluster_name": "k8s-ml"}
    return GkeGpuPool(**{"name": "train", "max_nodes": 4, "manage": "scale", **where, **fields})


@pytest.mark.parametrize(
    ("spec", "fields", "says"),
    [
        (eks, {}, "Name them in node_groups or asg_names."),
        (gke, {}, "Name them in node_pools."),
        (eks, {"node_groups": ["a", "a"]}, "each once"),
        (eks, {"asg_names": [" a"]}, "names of groups"),
        (gke, {"node_pools": [""]}, "names of groups"),
        (eks, {"node_groups": ["a", "b"], "asg_names": ["b"]}, "b is named in node_groups and asg_names"),
        (eks, {"node_groups": ["a"], "manage": "full"}, 'Set manage="scale".'),
        (gke, {"node_pools": ["a"], "manage": "full", "machine_types": ["g2-standard-4"]}, 'Set manage="scale".'),
        (eks, {"manage": "size"}, '"full" or "scale"'),
        (eks, {"asg_names": ["a"], "zones": ["us-west-2a"], "tags": {"a": "b"}}, "zones, tags: with manage"),
        (eks, {"asg_names": ["a"], "capacity_types": ["SPOT"]}, "have theirs already"),
        (gke, {"node_pools": ["a"], "disk": {"size": 50}}, "disk: with manage"),
        (gke, {"node_pools": ["a"], "image_type": "UBUNTU_CONTAINERD"}, "image_type: with manage"),
        (eks, {"asg_names": ["a"], "instance_types": ["m5.large"]}, "not an EC2 instance type with GPUs"),
    ],
)
def test_refuses_what_contradicts_itself(spec: Any, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(PoolSpecError) as raised:
        spec(
            **{"instance_types": ["g6.xlarge"], **fields} if fields.get("manage") == "full" and spec is eks else fields
        )
    assert says in str(raised.value)


@pytest.mark.parametrize("field", ["node_groups", "asg_names"])
def test_without_types_only_nodes_can_be_wanted(field: str) -> None:
    spec = eks(**{field: "gpu"})
    assert getattr(spec, field) == ("gpu",)
    assert (spec.gpus_per_node, spec.gpu_products) == (None, ())
    assert spec.nodes_for(gpus=None, nodes=2) == 2
    with pytest.raises(PoolSpecError, match="Give nodes="):
        spec.nodes_for(gpus=1, nodes=None)


def test_types_tell_how_many_gpus_a_node_has() -> None:
    assert eks(node_groups=["gpu"], instance_types=["g6.12xlarge"]).nodes_for(gpus=6, nodes=None) == 2
    assert gke(node_pools=["gpu"]).gpus_per_node is None
    shared = gke(
        node_pools=["gpu"],
        machine_types=["g2-standard-4"],
        gpu_sharing={"strategy": "MPS", "max_shared_clients": 4},
        driver="daemonset",
    )
    assert shared.gpus_per_node == 4


def test_what_describes_the_nodes_may_be_said() -> None:
    spec = eks(node_groups=["gpu"], ami_type="CUSTOM", taints=["team=ml:NoSchedule"], node_labels={"role": "gpu"})
    assert spec.labels == {"role": "gpu", "airflow-gpu-provider/pool": "train"}


@given(node_groups=names, asg_names=names, node_pools=names, nodes=st.integers(1, 9))
def test_survives_its_own_json(node_groups: list[str], asg_names: list[str], node_pools: list[str], nodes: int) -> None:
    asg_names = [name for name in asg_names if name not in node_groups]
    specs: list[GpuPool] = []
    if node_groups or asg_names:
        specs.append(eks(node_groups=node_groups, asg_names=asg_names, max_nodes=nodes))
    if node_pools:
        specs.append(gke(node_pools=node_pools, max_nodes=nodes))
    for spec in specs:
        again = deserialize_pool(json.loads(json.dumps(spec.serialize())))
        assert again == spec
        assert hash(again) == hash(spec)
        assert again.spec_hash == spec.spec_hash


def test_what_a_template_names_is_checked_once_it_is_known() -> None:
    class Task:
        def __init__(self, groups: str) -> None:
            self._groups = groups

        def render_template(self, content: Any, context: Any) -> Any:
            return json.loads(json.dumps(content).replace("{{ groups }}", self._groups))

    spec = eks(node_groups=["{{ groups }}"], asg_names=["b"])
    assert not spec.is_rendered
    assert spec.resolve({"task": Task("a")}).node_groups == ("a",)
    with pytest.raises(PoolSpecError, match="b is named in node_groups and asg_names"):
        spec.resolve({"task": Task("b")})


def test_a_pool_with_groups_of_its_own_keeps_its_hash() -> None:
    """A release that can name groups of others must not look like another writer of those that are there."""
    spec = EksGpuPool(name="t", cluster_name="c", region="us-west-2", instance_types=("g6.xlarge",), max_nodes=1)
    assert not {"node_groups", "asg_names"} & spec._group_fields().keys()
