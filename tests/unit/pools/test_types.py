"""What users write in a DAG file type-checks: lists where a spec keeps tuples, and the spec stays hashable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.pools import GpuPool

POOLS: list[GpuPool] = [
    EksGpuPool(
        name="train",
        cluster_name="ml",
        region="us-west-2",
        instance_types=["g6.xlarge"],
        capacity_types=["SPOT", "ON_DEMAND"],
        zones=["us-west-2a"],
        subnets=["subnet-1"],
        taints=["nvidia.com/gpu=true:NoSchedule"],
        max_nodes=1,
    ),
    EksGpuPool(
        name="of-others",
        cluster_name="ml",
        region="us-west-2",
        manage="scale",
        node_groups=["a"],
        asg_names=["b"],
        max_nodes=1,
    ),
    GkeGpuPool(
        name="train",
        project_id="my-project",
        location="us-central1",
        cluster_name="ml",
        machine_types=["g2-standard-4"],
        node_locations=["us-central1-a"],
        capacity_types=["PREEMPTIBLE"],
        tags=["gpu"],
        impersonation_chain=["a@b.example.com"],
        max_nodes=1,
    ),
    KubernetesGpuPool(name="lab", nodes=["gpu-1"], gpus_per_node=1, taints=["team=ml:NoSchedule"]),
]


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: f"{pool.kind}-{pool.name}")
def test_lists_are_kept_as_tuples(pool: GpuPool) -> None:
    assert not [value for value in vars(pool).values() if isinstance(value, list)]
    assert hash(pool) == hash(type(pool).deserialize(pool.serialize()))
    with pytest.raises(AttributeError):
        pool.name = "another"  # type: ignore[misc]


def test_this_file_type_checks(tmp_path: Path) -> None:
    """Under mypy's strictest: POOLS above, and a mistake that it has to find."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from airflow_gpu_provider import EksGpuPool\n"
        'EksGpuPool(name="a", cluster_name="b", region="us-west-2", instance_types=[1], max_nodes=1)\n'
    )
    cache = ["--cache-dir", str(Path(__file__).parents[3] / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *cache, __file__, str(wrong)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    # By name: what mypy has cached of an equal file has that one's folder.
    assert [Path(line.partition(":")[0]).name for line in said if ": error:" in line] == [wrong.name]
