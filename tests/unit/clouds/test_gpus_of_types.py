"""Which GPUs a pool's machines of a type have: its cloud's catalogue answers, for machines of others each cloud's."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.pools import GpuPool

EKS = EksGpuPool(name="gpu", cluster_name="ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=2)
OF_GKE: dict[str, Any] = {
    "name": "gpu",
    "project_id": "my-project",
    "location": "us-central1",
    "cluster_name": "ml",
    "max_nodes": 2,
}
GKE = GkeGpuPool(**OF_GKE, machine_types=["g2-standard-4"])
N1 = GkeGpuPool(**OF_GKE, machine_types=["n1-standard-4"], accelerator={"type": "nvidia-tesla-t4", "count": 2})
OTHERS = KubernetesGpuPool(name="gpu", node_selector_labels={"gpu": "yes"})


@pytest.mark.parametrize(
    ("pool", "machine_type", "found"),
    [
        (EKS, "g6e.12xlarge", ("L40S", 4)),
        (EKS, "g2-standard-4", None),
        (EKS, "g99.xlarge", None),
        (GKE, "a2-highgpu-2g", ("A100", 2)),
        (GKE, "g6.xlarge", None),
        (GKE, "n1-standard-4", None),
        (N1, "n1-standard-4", ("T4", 2)),
        (OTHERS, "g6.xlarge", ("L4", 1)),
        (OTHERS, "g2-standard-24", ("L4", 2)),
        (OTHERS, "e2-standard-4", None),
    ],
)
def test_a_pool_knows_the_gpus_of_its_clouds_machine_types(
    pool: GpuPool, machine_type: str, found: tuple[str, int] | None
) -> None:
    has = pool.gpus_of(machine_type)
    assert (has and (has.gpu.name, has.gpus)) == found
