"""Where a checkpoint may be kept, and what the training is told about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from airflow.sdk import DAG
from kubernetes.client import CoreV1Api
from kubernetes.client import models as k8s

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.block import gpu_nodes
from airflow_gpu_provider.clouds.base import Group
from airflow_gpu_provider.errors import CheckpointUnusable, PodUnschedulable, PoolSpecError
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.pools import Candidate, GpuPool
from airflow_gpu_provider.training.place.checkpoint import (
    check_claims_reach,
    check_location,
    check_outlives_pod,
    environment,
)
from tests.unit.training.test_pod_placement import a_pod, a_pool

CLAIM = {"persistent_volume_claim": k8s.V1PersistentVolumeClaimVolumeSource(claim_name="c")}
HOST = {"host_path": k8s.V1HostPathVolumeSource(path="/mnt/disk")}
OF_OTHERS = EksGpuPool(name="p", cluster_name="ml", region="us-west-2", manage="scale", asg_names=["g"], max_nodes=1)
OF_KARPENTER = KubernetesGpuPool(
    name="p", node_selector_labels={"karpenter.sh/nodepool": "gpu"}, provisioner="karpenter"
)
EMPTY = {"empty_dir": k8s.V1EmptyDirVolumeSource()}


def check(
    path: str,
    mounts: dict[str, dict[str, Any]],
    *markets: str,
    pool: GpuPool | None = None,
    groups: Callable[[], Sequence[Group]] = tuple,
) -> None:
    """Check a checkpoint at `path` in a pod with volumes at these mount paths."""
    volumes = [k8s.V1Volume(name=f"v{index}", **source) for index, source in enumerate(mounts.values())]
    mounted = [k8s.V1VolumeMount(name=f"v{index}", mount_path=at) for index, at in enumerate(mounts)]
    pod = a_pod(spec={"volumes": volumes}, volume_mounts=mounted)
    check_outlives_pod(path, pod, "base", pool or a_pool(capacity_types=list(markets or ("SPOT",))), groups)


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
    with pytest.raises(CheckpointUnusable, match="karpenter removes idle and spot nodes with their disks"):
        check("/checkpoints", {"/checkpoints": HOST}, pool=OF_KARPENTER)
    check("/checkpoints", {"/checkpoints": HOST}, pool=KubernetesGpuPool(name="bare-metal", nodes=["n1"]))


def a_group(market: Any = "ON_DEMAND", zone: str = "us-west-2a") -> Group:
    candidate = Candidate(group="g", zone=zone, instance_type="g6.xlarge", market=market)
    return Group(name="g", candidate=candidate, status="active", desired=0, max_size=1)


def test_groups_of_others_are_asked_for_their_market_and_only_for_a_nodes_disk() -> None:
    asked: list[str] = []

    def groups() -> list[Group]:
        asked.append("asked")
        return [a_group(), a_group("SPOT")]

    check("/checkpoints", {"/checkpoints": CLAIM}, pool=OF_OTHERS, groups=groups)
    assert asked == []
    with pytest.raises(CheckpointUnusable, match="a spot node"):
        check("/checkpoints", {"/checkpoints": HOST}, pool=OF_OTHERS, groups=groups)
    check("/checkpoints", {"/checkpoints": HOST}, pool=OF_OTHERS, groups=lambda: [a_group()])


# -- what the DAG's file shows already ---------------------------------------------------------------------------

SPOT = a_pool(instance_types=["g6.xlarge"], capacity_types=["SPOT"])


def mounted(source: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    mount = k8s.V1VolumeMount(name="v", mount_path="/checkpoints")
    given = {"volumes": [k8s.V1Volume(name="v", **source)], "volume_mounts": [mount], "checkpoint": "/checkpoints/a"}
    return {"task_id": "train", "image": "train:1", **given, **arguments}


def in_a_block(arguments: dict[str, Any], pool: GpuPool, *, mapped: bool = False) -> None:
    with DAG("nightly", schedule=None), gpu_nodes(pool, nodes=1):
        if mapped:
            GpuPodOperator.partial(**arguments).expand(cmds=[["a"], ["b"]])
        else:
            GpuPodOperator(**arguments)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("source", "pool", "why"),
    [
        (HOST, SPOT, "volume v is a hostPath, and a spot node is removed with its disk"),
        (EMPTY, a_pool(), "volume v is deleted with the pod"),
        (HOST, OF_KARPENTER, "karpenter removes idle"),
    ],
)
def test_a_volume_that_is_lost_is_refused_when_the_dag_is_parsed(
    source: dict[str, Any], pool: GpuPool, why: str, mapped: bool
) -> None:
    with pytest.raises(CheckpointUnusable, match=why):
        in_a_block(mounted(source), pool, mapped=mapped)
    with pytest.raises(CheckpointUnusable, match=why):
        GpuPodOperator(gpu_pool=pool, **mounted(source))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("arguments", "pool"),
    [
        (mounted(CLAIM), SPOT),
        (mounted(HOST), a_pool()),
        (mounted(HOST), OF_OTHERS),
        (mounted(HOST), a_pool(capacity_types=["{{ params.market }}"])),
        (mounted(HOST, checkpoint="{{ var.value.checkpoints }}"), SPOT),
        (mounted({"host_path": k8s.V1HostPathVolumeSource(path="{{ params.path }}")}), SPOT),
        (mounted(HOST, pod_template_file=__file__), SPOT),
        (mounted(HOST, checkpoint="s3://bucket/folder"), SPOT),
        (mounted(HOST, checkpoint="/another"), SPOT),
    ],
)
def test_what_is_right_or_not_known_yet_is_parsed(arguments: dict[str, Any], pool: GpuPool, mapped: bool) -> None:
    in_a_block(arguments, pool, mapped=mapped)


# -- a volume's zone -------------------------------------------------------------------------------------------


class Volumes:
    """A cluster in which the claim `c` is bound to a volume in some zones; none: in no zone."""

    def __init__(self, *zones: str) -> None:
        required = k8s.V1NodeSelectorRequirement(key="topology.kubernetes.io/zone", operator="In", values=[*zones])
        terms = k8s.V1NodeSelector(node_selector_terms=[k8s.V1NodeSelectorTerm(match_expressions=[required])])
        affinity = k8s.V1VolumeNodeAffinity(required=terms) if zones else None
        self._volume = k8s.V1PersistentVolume(
            metadata=k8s.V1ObjectMeta(name="v"), spec=k8s.V1PersistentVolumeSpec(node_affinity=affinity)
        )

    def read_namespaced_persistent_volume_claim(self, name: str, namespace: str) -> k8s.V1PersistentVolumeClaim:
        return k8s.V1PersistentVolumeClaim(spec=k8s.V1PersistentVolumeClaimSpec(volume_name="v"))

    def read_persistent_volume(self, name: str) -> k8s.V1PersistentVolume:
        return self._volume


GKE = GkeGpuPool(
    name="p",
    project_id="ml-project",
    location="us-central1",
    cluster_name="ml",
    machine_types=["g2-standard-4"],
    node_locations=["us-central1-a"],
    max_nodes=1,
)


@pytest.mark.parametrize(
    ("pool", "groups", "refused"),
    [
        (a_pool(zones=["us-west-2a"]), (), "us-west-2a"),
        (GKE, (), "us-central1-a"),
        (a_pool(), (a_group(zone="us-west-2a"), a_group(zone="us-west-2c")), "us-west-2a, us-west-2c"),
        (OF_OTHERS, (a_group(zone="us-west-2a, us-west-2c"),), "us-west-2a, us-west-2c"),
        (OF_OTHERS, (a_group(zone="us-west-2a, us-west-2b"),), None),
        (a_pool(zones=["us-west-2a", "us-west-2b"]), (), None),
        (KubernetesGpuPool(name="bare-metal", nodes=["n1"]), (a_group(zone=""),), None),
        (OF_KARPENTER, (a_group(zone="us-west-2a"),), None),
    ],
    ids=[
        "zones",
        "node_locations",
        "the groups' zones",
        "a wide group",
        "it reaches one",
        "it is one",
        "no zones",
        "karpenter",
    ],
)
def test_a_volume_in_another_zone_is_refused(pool: GpuPool, groups: tuple[Group, ...], refused: str | None) -> None:
    pod = a_pod(spec={"volumes": [k8s.V1Volume(name="v0", **CLAIM)]})
    in_b = cast("CoreV1Api", Volumes("us-west-2b"))
    if refused is None:
        check_claims_reach(pod, pool, in_b, lambda: groups)
    else:
        with pytest.raises(PodUnschedulable, match=f"in us-west-2b, but pool {pool.name} has its nodes in {refused}"):
            check_claims_reach(pod, pool, in_b, lambda: groups)


def test_the_cloud_is_not_asked_for_a_volume_that_is_reached_from_everywhere() -> None:
    def groups() -> Sequence[Group]:
        raise AssertionError

    pod = a_pod(spec={"volumes": [k8s.V1Volume(name="v0", **CLAIM)]})
    check_claims_reach(pod, a_pool(), cast("CoreV1Api", Volumes()), groups)
