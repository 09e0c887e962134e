"""What GpuWorkloadOperator refuses when the DAG is parsed, and how it reads its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.training.place.kinds import KINDS
from tests.unit.clouds.google.test_gke_pool import FLEX_START
from tests.unit.clouds.google.test_gke_pool import pool as gke_pool
from tests.unit.training.manifests import a

GPU = "nvidia.com/gpu"
POOL = EksGpuPool(
    name="train-gpu", cluster_name="k8s-ml", region="us-west-2", instance_types=["p5.48xlarge"], max_nodes=4
)
TEMPLATED = yaml.safe_dump(a("Job")).replace("name: train\n", "name: train-{{ ts_nodash | lower }}\n", 1)


def workload(manifest: Any, **arguments: Any) -> GpuWorkloadOperator:
    return GpuWorkloadOperator(task_id="train", manifest=manifest, **({"gpu_pool": POOL} | arguments))


def queued(manifest: Any, queue: str) -> Any:
    return {**manifest, "metadata": {**manifest["metadata"], "labels": {"kueue.x-k8s.io/queue-name": queue}}}


def with_limits(manifest: Any, *limits: dict[str, Any]) -> Any:
    """The Job with one container for each of these limits."""
    containers = manifest["spec"]["template"]["spec"]["containers"]
    names = [containers[0]["name"], "second"]
    manifest["spec"]["template"]["spec"]["containers"] = [
        {**containers[0], "name": name, "resources": {"limits": own}} for name, own in zip(names, limits, strict=False)
    ]
    return manifest


def of_job(**spec: Any) -> Any:
    return {**a("Job"), "spec": {**a("Job")["spec"], **spec}}


def with_restart_policy(policy: str | None) -> Any:
    manifest = a("Job")
    manifest["spec"]["template"]["spec"]["restartPolicy"] = policy
    return manifest


def with_containers(containers: Any) -> Any:
    manifest = a("Job")
    manifest["spec"]["template"]["spec"]["containers"] = containers
    return manifest


@pytest.mark.parametrize("kind", KINDS)
def test_manifest_is_a_dict_or_yaml(kind: str) -> None:
    for manifest in (a(kind), yaml.safe_dump(a(kind))):
        task = workload(manifest)
        assert task.named_manifest["metadata"] == {"name": "train", "namespace": "default"}
        assert task.nodes > 1


def test_manifest_is_read_from_a_file_next_to_the_dag(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(a("JobSet")))
    with DAG("night", template_searchpath=[str(tmp_path)]) as dag:
        task = workload("train.yaml")
    dag.resolve_template_files()
    assert (task.nodes, task.named_manifest["kind"]) == (4, "JobSet")


def test_nodes_of_a_template_are_not_known_before_the_run() -> None:
    assert workload(TEMPLATED).nodes == 0


@pytest.mark.parametrize(
    ("manifest", "arguments", "said"),
    [
        ({"apiVersion": "apps/v1", "kind": "Deployment"}, {}, "Known are Job"),
        ("a: [", {}, "not valid YAML"),
        ("kind: Job\n---\nkind: Job\n", {}, "2 objects"),
        ([a("Job")], {}, "Give a dict"),
        ({**a("Job"), "spec": {**a("Job")["spec"], "suspend": True}}, {}, "nothing would ever start it"),
        (a("Job"), {"queue_name": "Team A"}, "LocalQueue"),
        (queued(a("Job"), "b"), {"queue_name": "a"}, "is 'b'"),
        ({**a("Job"), "metadata": ["train"]}, {}, "Task train: The Job's metadata is not a mapping"),
        ({**a("Job"), "metadata": {"labels": ["team"]}}, {}, "metadata.labels is not a mapping"),
        ({**a("Job"), "metadata": {"name": "My training"}}, {}, "metadata.name is 'My training'"),
        ({**a("Job"), "metadata": {"name": 7}}, {}, "metadata.name is 7"),
        ({**a("Job"), "metadata": {"namespace": "a.b"}}, {}, "metadata.namespace is 'a.b'"),
        ({**a("Job"), "spec": {"template": None}}, {}, "pod template is not a mapping"),
        (with_containers({"train": {}}), {}, "containers is not a list"),
        (with_containers(["busybox"]), {}, r"containers\[0\] is not a mapping"),
        (with_containers([{"image": "busybox"}]), {}, r"containers\[0\] has no name"),
        (
            with_containers([{"name": "train", "resources": []}, {"name": "b", "resources": [1]}]),
            {},
            r"\[1\].resources is",
        ),
        (with_containers([{"name": "train", "resources": {"limits": [1]}}]), {}, "resources.limits is not a mapping"),
        (with_limits(a("Job"), {GPU: 1.5}), {}, "nvidia.com/gpu=1.5"),
        (with_limits(a("Job"), {GPU: -1}), {}, "nvidia.com/gpu=-1"),
        (with_limits(a("Job"), {GPU: 16}), {}, "gpus=16, but the largest machine of pool train-gpu has 8"),
        (of_job(parallelism=0), {}, "The Job would never create a pod with GPUs"),
        (of_job(completions=0), {}, "The Job would never create a pod with GPUs"),
        (with_restart_policy("Always"), {}, "restartPolicy is 'Always'"),
        (with_restart_policy(None), {}, "restartPolicy is None"),
        (with_limits(a("Job"), {}), {}, "No pod template of the Job asks for nvidia.com/gpu"),
        (with_limits(a("Job"), {GPU: 1}, {GPU: 1}), {}, "Containers train, second of one pod"),
        (with_limits(a("Job"), {GPU: "half"}), {}, "nvidia.com/gpu='half'"),
        ({**a("Job"), "metadata": {"namespace": "ml"}}, {"namespace": "other"}, "namespace is ml"),
        (a("Job"), {"on_finish_action": "keep"}, "on_finish_action='keep'"),
        (a("Job"), {"on_preemption": "stop"}, "on_preemption='stop'"),
        (a("Job"), {"checkpoint": "models"}, "checkpoint='models'"),
    ],
)
def test_refused_when_the_dag_is_parsed(manifest: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(PoolSpecError, match=said):
        workload(manifest, **arguments)


def test_file_that_is_not_there_is_refused_when_the_dag_is_parsed() -> None:
    with DAG("night") as dag:
        workload("no-such.yaml")
    with pytest.raises(PoolSpecError, match=r"no-such\.yaml was not found"):
        dag.resolve_template_files()


@pytest.mark.parametrize("kind", KINDS)
def test_queue_name_is_a_label_and_suspends(kind: str) -> None:
    manifest = workload(a(kind), queue_name="team-a").named_manifest
    assert manifest["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-a"}
    assert KINDS[kind].is_suspended(manifest)
    assert not KINDS[kind].is_suspended(a(kind))


def test_object_without_a_name_gets_one_from_its_task() -> None:
    manifest = {key: value for key, value in a("Job").items() if key != "metadata"}
    task = workload(manifest, namespace="ml")
    name = task.named_manifest["metadata"]["name"]
    assert name.startswith("train-")
    assert task.named_manifest["metadata"] == {"name": name, "namespace": "ml"}


@pytest.mark.parametrize(
    "limits", [[{GPU: "{{ params.gpus }}"}], [{GPU: "{{ params.a }}"}, {GPU: "{{ params.b }}"}], [{GPU: 1}, {}]]
)
def test_what_is_still_to_be_rendered_is_not_judged(limits: list[dict[str, Any]]) -> None:
    manifest = with_limits(a("Job"), *limits)
    manifest["metadata"]["namespace"] = "{{ params.team }}"
    workload(manifest, namespace="ml")


def test_nodes_that_come_by_requests_are_not_for_workloads_but_in_a_queue() -> None:
    requested = gke_pool(**FLEX_START, queued_provisioning=True, machine_types=["a3-highgpu-8g"])
    with pytest.raises(
        PoolSpecError, match=r"^Task train: The task has no queue_name, .* come only by ProvisioningRequests"
    ):
        workload(a("Job"), gpu_pool=requested)
    workload(a("Job"), gpu_pool=requested, queue_name="team-a")
    workload(queued(a("Job"), "team-a"), gpu_pool=requested)
