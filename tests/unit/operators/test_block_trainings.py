"""What Ensure says of the namespaces that a block's trainings name, before it brings a node for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, InstallDevicePluginOperator, gpu_nodes
from airflow_gpu_provider.cluster.api.access_review import check_namespace
from airflow_gpu_provider.errors import GpuError, NamespaceTerminating, PermissionDenied, ReferenceNotFound
from airflow_gpu_provider.operators import tasks_after_ensure
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.operators.training_namespaces import check_namespaces
from tests.sandbox.running import context_of
from tests.unit.operators.test_ensure import Pool

POOL = EksGpuPool(name="gpu", cluster_name="ml", region="us-west-2", instance_types=("g6.xlarge",), max_nodes=2)
CONTAINER = {"name": "train", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": 1}}}
JOB: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"namespace": "jobs"},
    "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}},
}


def answer(status: int, message: str) -> Callable[..., Any]:
    """What an API server answers to a dry run."""
    from kubernetes.client.exceptions import ApiException

    def call_api(path: str, method: str, **how: Any) -> Any:
        assert (method, dict(how["query_params"])) == ("POST", {"dryRun": "All"})
        name = path.split("/")[4]
        if name == "default":
            return {}
        error = ApiException(status=status, reason="no")
        error.body = json.dumps({"message": message.replace("NAME", name)})
        raise error

    return call_api


class Api:
    def __init__(self, status: int, message: str) -> None:
        self.asked: list[str] = []
        self._answer = answer(status, message)

    def call_api(self, path: str, method: str, **how: Any) -> Any:
        self.asked.append(path.split("/")[4])
        return self._answer(path, method, **how)


NONE_THERE = (404, 'namespaces "NAME" not found')
MAY_NOT = (
    403,
    'pods is forbidden: User "airflow" cannot create resource "pods" in API group "" in the namespace "NAME"',
)
ENDING = (
    403,
    'pods "x" is forbidden: unable to create new content in namespace NAME because it is being terminated',
)


def ensure_of(dag: DAG) -> Any:
    return dag.get_task("gpu.ensure")


def said_of(dag: DAG, api: Any) -> list[str]:
    said: list[str] = []
    check_namespaces(ensure_of(dag), api, said.append)
    return said


def nightly(**training: Any) -> DAG:
    with DAG("nightly", schedule=None) as dag, gpu_nodes(POOL):
        GpuPodOperator(task_id="train", image="busybox", cmds=["true"], **training)
    return dag


@pytest.mark.parametrize(
    ("says", "cls", "words"),
    [
        (NONE_THERE, ReferenceNotFound, "there is no namespace ml"),
        (MAY_NOT, PermissionDenied, "in namespace ml, if there is one of that name"),
        (ENDING, NamespaceTerminating, "being terminated"),
    ],
)
def test_a_namespace_that_takes_no_pods_is_an_error(says: tuple[int, str], cls: type[GpuError], words: str) -> None:
    with pytest.raises(cls, match=words):
        said_of(nightly(namespace="ml"), Api(*says))


def test_ensure_asks_before_it_plans_and_wants_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    ensure, pool = ensure_of(nightly(namespace="ml")), Pool()
    pool.api = Api(*NONE_THERE)  # type: ignore[assignment]
    monkeypatch.setattr(EnsureGpuPoolOperator, "_open", lambda self, context, _: pool)
    monkeypatch.setattr(tasks_after_ensure, "check_scale_down_is_to_come", lambda *_: None)
    monkeypatch.setattr(tasks_after_ensure, "work_is_to_come", lambda *_: True)
    with pytest.raises(ReferenceNotFound):
        ensure.execute(context_of(ensure))
    assert pool.calls == []


@pytest.mark.parametrize("names", [{}, {"namespace": "{{ params.team }}"}])
def test_what_the_file_does_not_name_is_not_asked_for(names: dict[str, str]) -> None:
    api = Api(*NONE_THERE)
    assert said_of(nightly(**names), api) == []
    assert api.asked == []


def test_mapped_trainings_gangs_and_workloads_are_asked_for_too() -> None:
    with DAG("nightly", schedule=None) as dag, gpu_nodes(POOL):
        common: dict[str, Any] = {"image": "busybox", "cmds": ["true"]}
        GpuPodOperator.partial(task_id="sweep", namespace="default", **common).expand(arguments=[["1"], ["2"]])
        GpuPodOperator(task_id="gang", namespace="default", nodes=2, **common)
        GpuWorkloadOperator(task_id="workload", manifest=JOB)
    api = Api(*NONE_THERE)
    with pytest.raises(ReferenceNotFound, match="there is no namespace jobs"):
        said_of(dag, api)
    assert api.asked == ["default", "default", "jobs"]


def test_who_creates_jobs_only_needs_no_permission_for_pods() -> None:
    with DAG("nightly", schedule=None) as dag, gpu_nodes(POOL):
        GpuPodOperator(task_id="gang", namespace="ml", nodes=2, image="busybox", cmds=["true"])
        GpuWorkloadOperator(task_id="job", manifest=JOB)
    assert said_of(dag, Api(*MAY_NOT)) == []


@pytest.mark.parametrize("namespace", ["airflow-gpu-device-plugins", "plugins"])
def test_the_namespace_of_a_device_plugin_is_not_a_training_s(namespace: str) -> None:
    """Its task creates the default one."""
    with DAG("nightly", schedule=None):
        ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL, nodes=0)
        ensure >> InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=POOL, namespace=namespace)
    api, said = Api(*NONE_THERE), list[str]()
    check_namespaces(ensure, api, said.append)  # type: ignore[arg-type]
    assert (said, api.asked) == ([], [])


def test_a_task_that_comes_before_may_create_it() -> None:
    with DAG("nightly", schedule=None) as dag:
        create = EmptyOperator(task_id="create_namespace")
        with gpu_nodes(POOL):
            create >> GpuPodOperator(task_id="train", namespace="ml", image="busybox", cmds=["true"])
    (said,) = said_of(dag, Api(*NONE_THERE))
    assert said.startswith("task train is going to run in namespace ml, and now could not: Cannot create pods")


@pytest.mark.parametrize(
    "says",
    [
        (403, 'pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1'),
        (403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest"'),
        (404, 'error looking up service account NAME/default: serviceaccount "default" not found'),
        (500, "Internal error occurred: failed calling webhook"),
    ],
)
def test_what_the_dry_run_alone_is_refused_for_is_nobody_s_concern(says: tuple[int, str]) -> None:
    check_namespace(Api(*says), "ml", creates_pods=True)  # type: ignore[arg-type]


def test_task_gpu_names_a_namespace_too() -> None:
    with DAG("nightly", schedule=None) as dag, gpu_nodes(POOL):

        @task.gpu(image="python:3.12", namespace="ml")
        def train() -> None:
            pass

        train()
    with pytest.raises(ReferenceNotFound):
        said_of(dag, Api(*NONE_THERE))
