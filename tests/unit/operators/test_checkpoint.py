"""Where a checkpoint may be kept, and what the training is told about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kubernetes.client import models as k8s

from airflow_gpu_provider.errors import CheckpointUnusable, PoolSpecError
from airflow_gpu_provider.operators.checkpoint import check_location, check_outlives_pod, environment
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.pools import EksGpuPool, GpuPool, KubernetesGpuPool
from tests.unit.operators.test_pod_placement import a_pod, a_pool

CLAIM = {"persistent_volume_claim": k8s.V1PersistentVolumeClaimVolumeSource(claim_name="c")}
HOST = {"host_path": k8s.V1HostPathVolumeSource(path="/mnt/disk")}
EMPTY = {"empty_dir": k8s.V1EmptyDirVolumeSource()}


def check(
    path: str,
    mounts: dict[str, dict[str, Any]],
    *markets: str,
    pool: GpuPool | None = None,
    of_others: Callable[[], set[str]] = set,
) -> None:
    """Check a checkpoint at `path` in a pod with volumes at these mount paths."""
    volumes = [k8s.V1Volume(name=f"v{index}", **source) for index, source in enumerate(mounts.values())]
    mounted = [k8s.V1VolumeMount(name=f"v{index}", mount_path=at) for index, at in enumerate(mounts)]
    pod = a_pod(spec={"volumes": volumes}, volume_mounts=mounted)
    check_outlives_pod(path, pod, "base", pool or a_pool(capacity_types=list(markets or ("SPOT",))), of_others)


@pytest.mark.parametrize("location", ["s3://bucket/folder", "gs://bucket", "/checkpoints", "/checkpoints/digits/"])
def test_locations(location: str) -> None:
    check_location(location)


@pytest.mark.parametrize("location", ["", "checkpoints", "s3:/bucket", "://x", "s3://", "file:///checkpoints"])
def test_what_is_no_location_is_refused_when_the_dag_is_parsed(location: str) -> None:
    with pytest.raises(PoolSpecError, match="checkpoint="):
        GpuPodOperator(task_id="train", gpu_pool=a_pool(), checkpoint=location)


def test_a_jinja_expression_is_looked_at_later() -> None:
    GpuPodOperator(task_id="train", gpu_pool=a_pool(), checkpoint="{{ var.value.checkpoints }}")


def test_variables() -> None:
    assert environment(checkpoint="s3://bucket/digits/", run_id="r1", attempt=2) == {
        "AIRFLOW_GPU_ATTEMPT": "2",
        "AIRFLOW_GPU_RUN_ID": "r1",
        "AIRFLOW_GPU_CHECKPOINT": "s3://bucket/digits/r1",
    }
    assert "AIRFLOW_GPU_CHECKPOINT" not in environment(checkpoint=None, run_id="r1", attempt=1)


def test_claims_and_urls_outlive_the_pod() -> None:
    check("/checkpoints/digits", {"/checkpoints": CLAIM})
    check("s3://bucket/folder", {})


def test_the_innermost_mount_counts() -> None:
    check("/data/checkpoints", {"/data": EMPTY, "/data/checkpoints": CLAIM})
    with pytest.raises(CheckpointUnusable, match="v1 is deleted with the pod"):
        check("/data/checkpoints", {"/data": CLAIM, "/data/checkpoints/": EMPTY})


@pytest.mark.parametrize("path", ["/checkpoints", "/database/checkpoints"])
def test_the_containers_own_disk_does_not(path: str) -> None:
    with pytest.raises(CheckpointUnusable, match="own disk"):
        check(path, {"/data": CLAIM})


def test_a_nodes_disk_is_refused_on_spot_only() -> None:
    check("/checkpoints", {"/checkpoints": HOST}, "ON_DEMAND")
    for markets in (["SPOT"], ["ON_DEMAND", "SPOT"]):
        with pytest.raises(CheckpointUnusable, match="hostPath"):
            check("/checkpoints", {"/checkpoints": HOST}, *markets)


def test_a_nodes_disk_is_refused_where_a_provisioner_takes_nodes_away() -> None:
    pool = KubernetesGpuPool(name="p", node_selector_labels={"karpenter.sh/nodepool": "gpu"}, provisioner="karpenter")
    with pytest.raises(CheckpointUnusable, match="karpenter takes idle and spot nodes away"):
        check("/checkpoints", {"/checkpoints": HOST}, pool=pool)
    check("/checkpoints", {"/checkpoints": HOST}, pool=KubernetesGpuPool(name="bare-metal", nodes=["n1"]))


def test_groups_of_others_are_asked_for_their_market_and_only_for_a_nodes_disk() -> None:
    asked: list[str] = []

    def of_others() -> set[str]:
        asked.append("asked")
        return {"ON_DEMAND", "SPOT"}

    pool = EksGpuPool(name="p", cluster_name="ml", region="us-west-2", manage="scale", asg_names=["g"], max_nodes=1)
    check("/checkpoints", {"/checkpoints": CLAIM}, pool=pool, of_others=of_others)
    assert asked == []
    with pytest.raises(CheckpointUnusable, match="a spot node"):
        check("/checkpoints", {"/checkpoints": HOST}, pool=pool, of_others=of_others)
