"""What placing a workload adds to each of its pod templates, what of the user's it keeps, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, KubernetesGpuPool
from airflow_gpu_provider.cluster.model.pool_pod import TASK_LABEL, WORKLOAD_LABEL, WORKLOAD_PATH
from airflow_gpu_provider.errors import PodUnschedulable, PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.training.place.fit import nodes_needed
from airflow_gpu_provider.training.place.kinds import KINDS, Manifest, PodTemplate, templates_of
from airflow_gpu_provider.training.place.manifest import named, place_workload
from airflow_gpu_provider.training.place.pod_placement import Placement
from tests.unit.clouds.google.test_gke_pool import pool as a_gke_pool
from tests.unit.training.manifests import a

POOL_LABEL = "airflow-gpu-provider/pool"
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists"}


def a_pool(**changes: Any) -> EksGpuPool:
    fields: dict[str, Any] = {
        "name": "train-gpu",
        "cluster_name": "k8s-ml",
        "region": "us-west-2",
        "instance_types": ["p5.48xlarge"],
        "max_nodes": 4,
    }
    return EksGpuPool(**(fields | changes))


def placed(manifest: Manifest, pool: GpuPool | None = None, **more: Any) -> Manifest:
    arguments: dict[str, Any] = {"pool": pool or a_pool(), "gpus": 0, "base_container": ""}
    return place_workload(named(manifest, namespace="ml", prefix="x"), Placement(**(arguments | more)))


def templates(manifest: Manifest) -> dict[str, PodTemplate]:
    return {each.role: each for each in templates_of(manifest)}


@pytest.mark.parametrize("kind", KINDS)
def test_templates_with_gpus_are_placed(kind: str) -> None:
    manifest = placed(a(kind), labels={"run": "r1"}, annotations={"owner": "o1"}, active_deadline_seconds=600)
    training = [each for role, each in templates(manifest).items() if role not in ("driver", "head")]
    for each in training:
        spec = each.template["spec"]
        assert spec["nodeSelector"] == {POOL_LABEL: "train-gpu"}
        assert spec["tolerations"] == [TOLERATION]
        assert spec["volumes"] == [{"name": "gpu-pod-shm", "emptyDir": {"medium": "Memory"}}]
        (container,) = spec["containers"]
        assert container["volumeMounts"] == [{"name": "gpu-pod-shm", "mountPath": "/dev/shm"}]
        assert spec.get("activeDeadlineSeconds") == (None if kind in ("Job", "TrainJob") else 600)
    assert manifest["metadata"]["labels"] == {POOL_LABEL: "train-gpu", "run": "r1"}
    assert manifest["metadata"]["annotations"]["owner"] == "o1"
    assert [each["activeDeadlineSeconds"] for each in KINDS[kind].limits(manifest)]


@pytest.mark.parametrize("kind", KINDS)
def test_all_pods_say_whose_they_are(kind: str) -> None:
    labels = {TASK_LABEL: "t1", "run": "r1"}
    for each in templates(placed(a(kind), labels=labels, annotations={"owner": "o1"})).values():
        assert each.template["metadata"]["labels"] == {POOL_LABEL: "train-gpu", WORKLOAD_LABEL: "t1", **labels}
        annotations = each.template["metadata"]["annotations"]
        assert annotations["owner"] == "o1"
        assert annotations[WORKLOAD_PATH] == f"{KINDS[kind].path.format(namespace='ml')}/train"


@pytest.mark.parametrize(("kind", "role"), [("RayJob", "head"), ("JobSet", "driver")])
def test_a_template_without_gpus_stays_where_it_is(kind: str, role: str) -> None:
    before, after = templates(a(kind))[role].template, templates(placed(a(kind)))[role].template
    assert after["spec"] == before["spec"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_users_manifest_is_not_changed(kind: str) -> None:
    manifest = a(kind)
    placed(manifest, labels={"run": "r1"}, env={"A": "1"})
    assert manifest == a(kind)


def test_pods_that_share_a_gpu_by_mps_are_in_their_host_s_ipc_namespace() -> None:
    shared = a_gke_pool(machine_types=["a3-highgpu-8g"], gpu_sharing={"strategy": "MPS", "max_shared_clients": 4})
    one = templates(placed(a("Job"), pool=shared))
    assert all(each.template["spec"]["hostIPC"] for each in one.values())
    patched = templates(placed(a("TrainJob"), pool=shared))
    assert not any("hostIPC" in each.template["spec"] for each in patched.values())


def test_variables_of_a_train_job_are_its_trainers() -> None:
    manifest = placed(a("TrainJob"), env={"AIRFLOW_GPU_RUN_ID": "r1", "EPOCHS": "9"})
    assert manifest["spec"]["trainer"]["env"] == [
        {"name": "EPOCHS", "value": "3"},
        {"name": "AIRFLOW_GPU_RUN_ID", "value": "r1"},
    ]


def test_a_train_job_whose_runtime_has_the_gpus_is_placed() -> None:
    manifest = a("TrainJob")
    del manifest["spec"]["trainer"]["resourcesPerNode"]
    (node,) = templates(placed(manifest)).values()
    assert node.template["spec"]["nodeSelector"] == {POOL_LABEL: "train-gpu"}
    assert nodes_needed(manifest, a_pool()) is None


def test_other_patches_of_a_train_job_stay() -> None:
    manifest = a("TrainJob")
    manifest["spec"]["runtimePatches"] = [{"manager": "example.com/me"}]
    managers = [patch["manager"] for patch in placed(manifest)["spec"]["runtimePatches"]]
    assert managers == ["example.com/me", "gpu-provider.airflow.apache.org/placement"]


def test_what_the_placement_does_not_know_stays_as_it_is_written() -> None:
    manifest = a("Job")
    spec = manifest["spec"]["template"]["spec"]
    spec |= {"aFieldOfTomorrow": {"x": 1}, "tolerations": [{"key": "team", "operator": "Exists"}], "volumes": []}
    spec["containers"][0] |= {"anotherOne": True, "env": [{"name": "A", "value": "1"}]}
    after = placed(manifest, env={"A": "2", "B": "2"})["spec"]["template"]["spec"]
    assert after["aFieldOfTomorrow"] == {"x": 1}
    assert after["tolerations"] == [{"key": "team", "operator": "Exists"}, TOLERATION]
    assert after["restartPolicy"] == "Never"
    assert after["containers"][0]["anotherOne"] is True
    assert after["containers"][0]["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    assert after["containers"][0]["resources"] == spec["containers"][0]["resources"]


def test_restart_policy_is_the_users() -> None:
    manifest = a("Job")
    manifest["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    assert placed(manifest)["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"


def test_a_shorter_deadline_stays() -> None:
    manifest = a("Job")
    manifest["spec"]["activeDeadlineSeconds"] = 60
    assert placed(manifest, active_deadline_seconds=600)["spec"]["activeDeadlineSeconds"] == 60


def test_nodes_with_broken_gpus_are_avoided() -> None:
    spec = placed(a("Job"), avoid=({"key": "bad", "operator": "DoesNotExist"},))["spec"]["template"]["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [each["key"] for each in term["matchExpressions"]] == ["node.kubernetes.io/instance-type", "bad"]


def _without_gpus(manifest: Manifest) -> Manifest:
    manifest["spec"]["template"]["spec"]["containers"][0]["resources"] = {}
    return manifest


def _with_selector(manifest: Manifest) -> Manifest:
    manifest["spec"]["template"]["spec"]["nodeSelector"] = {POOL_LABEL: "other"}
    return manifest


def _with_two(manifest: Manifest) -> Manifest:
    containers = manifest["spec"]["template"]["spec"]["containers"]
    containers.append({**containers[0], "name": "second"})
    return manifest


def _with_half(manifest: Manifest) -> Manifest:
    manifest["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "half"
    return manifest


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without_gpus, "No pod template of the Job asks for nvidia.com/gpu"),
        (_with_selector, "node selector"),
        (_with_two, "Containers train, second of one pod"),
        (_with_half, "nvidia.com/gpu='half'"),
    ],
)
def test_contradictions_are_refused(change: Any, said: str) -> None:
    with pytest.raises(PoolSpecError, match=said):
        placed(change(a("Job")))


def test_a_pod_that_no_machine_can_take_is_refused() -> None:
    with pytest.raises(PodUnschedulable):
        placed(a("Job"), pool=a_pool(instance_types=["g6.xlarge"]))


@pytest.mark.parametrize(
    ("kind", "nodes"), [("Job", 2), ("JobSet", 4), ("TrainJob", 2), ("RayJob", 2), ("PyTorchJob", 4)]
)
def test_nodes_that_the_pods_fill(kind: str, nodes: int) -> None:
    assert nodes_needed(a(kind), a_pool()) == nodes


def test_small_pods_share_a_node() -> None:
    manifest = a("Job")
    manifest["spec"] |= {"completions": 9, "parallelism": 9}
    manifest["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 2
    assert nodes_needed(manifest, a_pool()) == 3
    unknown = KubernetesGpuPool(name="lab", node_selector_labels={"a": "b"}, max_nodes=9)
    assert nodes_needed(manifest, unknown) == 9


def test_nodes_are_not_known_of_what_is_still_to_be_rendered() -> None:
    manifest = a("Job")
    manifest["spec"]["parallelism"] = "{{ params.nodes }}"
    assert nodes_needed(manifest, a_pool()) is None


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_nobody_collects_goes_a_day_after_its_end_where_its_controller_can_delete_it(kind: str) -> None:
    manifest = placed(a(kind))
    policy = manifest["spec"].get("runPolicy", manifest["spec"])
    has_one = kind in ("Job", "JobSet", "PyTorchJob")
    assert policy.get("ttlSecondsAfterFinished") == (24 * 3600 if has_one else None)
    for given, stays in ((0, 3600), (60, 3600), (7200, 7200)) if has_one else ():  # it has to be collected first
        policy["ttlSecondsAfterFinished"] = given
        again = placed(manifest)["spec"]
        assert again.get("runPolicy", again)["ttlSecondsAfterFinished"] == stays


def test_pods_of_a_job_without_indexes_take_turns_on_the_nodes_that_the_pool_can_have() -> None:
    manifest = a("Job")
    manifest["spec"] |= {"parallelism": 6, "completions": 6}
    assert nodes_needed(manifest, a_pool()) == 6
    del manifest["spec"]["completionMode"]
    assert nodes_needed(manifest, a_pool()) == 4
