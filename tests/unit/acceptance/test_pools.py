"""The pools of an acceptance: none has the name of the user's, and each is small and ends early."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.acceptance.pools import accepted, with_impossible_first
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import GpuPool

NIGHT = timedelta(minutes=45)


def eks(**changes: Any) -> EksGpuPool:
    fields = {"name": "train", "cluster_name": "c", "region": "us-west-2", "instance_types": ["g6.xlarge"]}
    return EksGpuPool(**{**fields, "max_nodes": 8, "min_nodes": 2, "disk": {"size": 200}, **changes})


def gke(**changes: Any) -> GkeGpuPool:
    fields = {"name": "train", "project_id": "acme-ml-1", "location": "us-central1", "cluster_name": "c"}
    more = {"machine_types": ["g2-standard-4"], "max_nodes": 8, "max_run_duration": timedelta(days=2)}
    return GkeGpuPool(**{**fields, **more, **changes})


@pytest.mark.parametrize(
    "pool", [eks(), gke(), gke(machine_types=["n1-standard-4"], accelerator={"type": "nvidia-tesla-t4"})]
)
def test_it_is_one_node_for_one_night_under_another_name(pool: GpuPool) -> None:
    small = accepted(pool, NIGHT)
    assert (small.name, small.max_nodes, small.min_nodes, small.max_runtime) == ("accept-train", 1, 0, NIGHT)
    fallback = with_impossible_first(small)
    assert fallback.name == "fallback-train"
    assert fallback.machine_types[0] in ("g99.xlarge", "g99-standard-4")
    if isinstance(small, GkeGpuPool):
        assert small.node_lifetime == NIGHT + timedelta(minutes=15)


@pytest.mark.parametrize(
    ("types", "attached", "kept"),
    [
        (["g2-standard-12", "g2-standard-24"], None, ("g2-standard-12",)),
        (["g2-standard-4", "a2-highgpu-1g", "g2-standard-8"], None, ("g2-standard-4", "g2-standard-8")),
        (["g2-standard-4", "n1-standard-4"], "nvidia-tesla-t4", ("g2-standard-4",)),
        (["n1-standard-4", "g2-standard-4"], "nvidia-tesla-t4", ("n1-standard-4",)),
    ],
)
def test_the_fallback_of_a_pool_of_several_kinds_is_to_one_kind(
    types: list[str], attached: str | None, kept: tuple[str, ...]
) -> None:
    mixed = gke(machine_types=types, accelerator={"type": attached})
    assert with_impossible_first(accepted(mixed, NIGHT)).machine_types == ("g99-standard-4", *kept)


@pytest.mark.parametrize(
    ("pool", "what", "fix"),
    [
        (KubernetesGpuPool(name="lab", nodes=["gpu-1"], max_nodes=1), "KubernetesGpuPool", "an EksGpuPool or a Gke"),
        (
            EksGpuPool(name="t", cluster_name="c", region="us-west-2", manage="scale", node_groups=["g"], max_nodes=1),
            "Pool t has external groups (manage='scale')",
            "Name instance_types in place of the groups",
        ),
        (
            gke(machine_types=(), max_run_duration=None, manage="scale", node_pools=["g"]),
            "has external groups (manage='scale')",
            "Name machine_types in place of the groups",
        ),
        (eks(scaling="autoscaler"), "An autoscaler adds the nodes of pool", 'Use the same spec with scaling="direct".'),
    ],
)
def test_only_pools_whose_machines_it_brings_are_accepted(pool: GpuPool, what: str, fix: str) -> None:
    with pytest.raises(PoolSpecError) as error:
        accepted(pool, NIGHT)
    assert what in error.value.what
    assert fix in error.value.fix


def test_long_names_are_cut() -> None:
    assert len(accepted(eks(name="a" * 40), NIGHT).name) <= 24
