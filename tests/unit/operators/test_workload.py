"""What GpuWorkloadOperator refuses when the DAG is parsed, and how it reads its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.workload import GpuWorkloadOperator
from airflow_gpu_provider.pools import EksGpuPool
from airflow_gpu_provider.workloads.kinds import KINDS
from tests.unit.workloads.manifests import a

POOL = EksGpuPool(
    name="train-gpu", cluster_name="k8s-ml", region="us-west-2", instance_types=["p5.48xlarge"], max_nodes=4
)
TEMPLATED = yaml.safe_dump(a("Job")).replace("name: train\n", "name: train-{{ ts_nodash | lower }}\n", 1)


def workload(manifest: Any, **arguments: Any) -> GpuWorkloadOperator:
    return GpuWorkloadOperator(task_id="train", manifest=manifest, **({"gpu_pool": POOL} | arguments))


def queued(manifest: Any, queue: str) -> Any:
    return {**manifest, "metadata": {**manifest["metadata"], "labels": {"kueue.x-k8s.io/queue-name": queue}}}


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
        ("a: [", {}, "no YAML"),
        ("kind: Job\n---\nkind: Job\n", {}, "2 objects"),
        ([a("Job")], {}, "Give a dict"),
        ({**a("Job"), "spec": {**a("Job")["spec"], "suspend": True}}, {}, "nothing would let it begin"),
        (a("Job"), {"queue_name": "Team A"}, "LocalQueue"),
        (queued(a("Job"), "b"), {"queue_name": "a"}, "is 'b'"),
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


def test_two_namespaces_are_refused() -> None:
    manifest = {**a("Job"), "metadata": {"name": "train", "namespace": "ml"}}
    with pytest.raises(PoolSpecError, match="namespace"):
        _ = workload(manifest, namespace="other").named_manifest
