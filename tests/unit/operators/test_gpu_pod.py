"""GpuPodOperator in a DAG file: its arguments, its pool, and where it refuses."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowSkipException
from kubernetes.client import models as k8s

from airflow_gpu_provider.block import gpu_nodes
from airflow_gpu_provider.errors import PodUnschedulable, PoolSpecError
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.scaling.wait.records import handed_back
from airflow_gpu_provider.training.life.pod_try import PodTry
from airflow_gpu_provider.training.life.run import AttemptRecord
from tests.sandbox.running import context_of
from tests.unit.training.manifests import a
from tests.unit.training.test_pod_placement import a_pool, limits


def test_drop_in_arguments_keep_their_meaning() -> None:
    task = GpuPodOperator(
        task_id="train", gpu_pool=a_pool(), image="train:1", cmds=["python"], env_vars={"A": "1"}, namespace="ml"
    )
    assert isinstance(task, KubernetesPodOperator)
    assert (task.image, task.cmds, task.namespace) == ("train:1", ["python"], "ml")
    assert task.pool == "default_pool"


def test_defaults_are_promises() -> None:
    task = GpuPodOperator(task_id="train", gpu_pool=a_pool())
    assert task.deferrable is True
    assert task.gpus == 1
    assert task.schedule_timeout_seconds == timedelta(minutes=30).total_seconds()
    assert task.startup_timeout_seconds == timedelta(minutes=20).total_seconds()
    assert task.on_finish_action.value == "delete_pod"
    assert "gpu_pool" in task.template_fields


def test_pool_comes_from_the_block() -> None:
    pool = a_pool()
    with DAG("nightly", schedule=None), gpu_nodes(pool):
        task = GpuPodOperator(task_id="train")
        mapped = GpuPodOperator.partial(task_id="sweep").expand(arguments=[["1"], ["2"]])
    assert task.gpu_pool == pool
    assert mapped.partial_kwargs["gpu_pool"] == pool


def test_own_pool_wins_over_the_blocks() -> None:
    own = a_pool(name="own")
    with DAG("nightly", schedule=None), gpu_nodes(a_pool()):
        task = GpuPodOperator(task_id="train", gpu_pool=own)
        mapped = GpuPodOperator.partial(task_id="sweep", gpu_pool=own).expand(arguments=[["1"]])
    assert task.gpu_pool == own
    assert mapped.partial_kwargs["gpu_pool"] == own


def test_mapped_pools() -> None:
    with DAG("nightly", schedule=None):
        mapped = GpuPodOperator.partial(task_id="sweep", image="train:1").expand(gpu_pool=[a_pool(), a_pool(name="b")])
    assert "gpu_pool" not in mapped.partial_kwargs


def test_gpu_pool_in_airflows_pool_is_refused() -> None:
    with pytest.raises(PoolSpecError, match="gpu_pool="):
        GpuPodOperator(task_id="train", pool=a_pool())


def test_more_gpus_than_a_machine_has_is_seen_when_the_dag_is_parsed() -> None:
    with pytest.raises(PoolSpecError, match="has 4"):
        GpuPodOperator(task_id="train", gpu_pool=a_pool(), gpus=8)
    templated = replace(a_pool(), cluster_name="{{ var.value.cluster }}")
    GpuPodOperator(task_id="train", gpu_pool=templated, gpus=8)  # known when it is rendered


def test_more_memory_than_a_machine_has_is_seen_when_the_dag_is_parsed() -> None:
    with pytest.raises(PodUnschedulable, match=r"asks for 1000\.0 GiB of memory, more.*191\.7 GiB"):
        GpuPodOperator(task_id="train", gpu_pool=a_pool(), container_resources=limits(memory="1000Gi"))
    GpuPodOperator(task_id="train", gpu_pool=a_pool(), container_resources=limits(memory="{{ params.memory }}"))
    GpuPodOperator(task_id="train", gpu_pool=a_pool(), container_resources=limits(memory="100Gi"))


TWO_CPUS = k8s.V1ResourceRequirements(requests={"cpu": "2"})
TOO_MUCH = k8s.V1ResourceRequirements(requests={"cpu": "2000"})


def sidecar(resources: k8s.V1ResourceRequirements, **more: Any) -> k8s.V1Container:
    return k8s.V1Container(name="proxy", image="proxy:1", resources=resources, **more)


def full(container: k8s.V1Container | None = None, **spec: Any) -> k8s.V1Pod:
    return k8s.V1Pod(spec=k8s.V1PodSpec(containers=[container or k8s.V1Container(name="base")], **spec))


@pytest.mark.parametrize(
    ("arguments", "cpus"),
    [
        ({"init_containers": [sidecar(TOO_MUCH)]}, 2000),
        ({"init_containers": [sidecar(TOO_MUCH, restart_policy="Always")], "container_resources": TWO_CPUS}, 2002),
        ({"full_pod_spec": full(resources=TOO_MUCH)}, 2000),
        ({"full_pod_spec": full(k8s.V1Container(name="base", resources=TOO_MUCH))}, 2000),
        ({"full_pod_spec": full(init_containers=[sidecar(TOO_MUCH)])}, 2000),
        # The task's own arguments take the place of the spec's.
        ({"full_pod_spec": full(k8s.V1Container(name="base", resources=TOO_MUCH)), "container_resources": TWO_CPUS}, 0),
        ({"full_pod_spec": full(init_containers=[sidecar(TOO_MUCH)]), "init_containers": [sidecar(TWO_CPUS)]}, 0),
        ({"init_containers": [sidecar(k8s.V1ResourceRequirements(requests={"cpu": "{{ params.cpus }}"}))]}, 0),
    ],
)
def test_what_the_whole_pod_asks_for_is_seen_when_the_dag_is_parsed(arguments: dict[str, Any], cpus: int) -> None:
    for make in (GpuPodOperator, GpuPodOperator.partial):
        with pytest.raises(PodUnschedulable, match=f"asks for {cpus} CPUs") if cpus else nullcontext():
            make(task_id="train", gpu_pool=a_pool(), **arguments)


@pytest.mark.parametrize(("operator", "more"), [(GpuPodOperator, {}), (GpuWorkloadOperator, {"manifest": a("Job")})])
def test_without_a_pool_it_is_refused_when_the_dag_is_parsed(operator: Any, more: dict[str, Any]) -> None:
    pool = replace(a_pool(), instance_types=("g6.48xlarge",))
    refused = pytest.raises(PoolSpecError, match=r"Task (train|early|swept) of DAG nightly: No GPU pool is given\.")
    with DAG("nightly", schedule=None), refused:
        operator(task_id="train", **more)
    with DAG("nightly", schedule=None), refused:
        operator(task_id="early", **more)
        with gpu_nodes(pool):  # a task is in the block in which it is made
            GpuPodOperator(task_id="train")
    with DAG("nightly", schedule=None, default_args={"gpu_pool": pool}):
        assert operator(task_id="train", **more).gpu_pool == pool
        mapped = operator.partial(task_id="swept", **more).expand(checkpoint=["s3://b/1"])
    assert mapped.unmap({"checkpoint": "s3://b/1"}).gpu_pool == pool
    with DAG("nightly", schedule=None):
        mapped = operator.partial(task_id="swept", **more).expand(checkpoint=["s3://b/1"])
    with refused:
        mapped.unmap({"checkpoint": "s3://b/1"})


def test_what_is_rendered_and_is_no_pool_is_refused_when_it_runs() -> None:
    task = GpuPodOperator(task_id="train", gpu_pool=cast("Any", "{{ params.pool }}"))
    with pytest.raises(PoolSpecError, match=r"gpu_pool='{{ params.pool }}'\. Give the pool itself"):
        task.dry_run()


def test_dry_run_needs_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    GpuPodOperator(task_id="train", gpu_pool=a_pool(), gpus=2, image="train:1", namespace="ml").dry_run()
    printed = capsys.readouterr().out
    assert "nvidia.com/gpu: '2'" in printed
    assert "airflow-gpu-provider/pool: train-gpu" in printed


def test_a_subclass_changes_the_pod_as_one_of_kubernetespodoperator_does() -> None:
    class Labelled(GpuPodOperator):
        def build_pod_request_obj(self, context: Any = None, **kwargs: Any) -> k8s.V1Pod:
            pod = super().build_pod_request_obj(context, **kwargs)
            pod.metadata.labels["team"] = "vision"
            return pod

    task = Labelled(task_id="train", gpu_pool=a_pool(), image="train:1", namespace="ml")
    task._context = context_of(task)  # type: ignore[assignment]
    pod = task.unplaced_pod()
    assert pod.metadata.labels["team"] == "vision"
    assert task.pod_request_obj is pod


@pytest.mark.parametrize("operator", [GpuPodOperator, InstallDevicePluginOperator])
def test_no_name_of_base_operators_is_taken(operator: type[BaseOperator]) -> None:
    inherited = set(dir(KubernetesPodOperator(task_id="x"))) | set(BaseOperator(task_id="y").__dict__)
    base = inherited if operator is GpuPodOperator else set(dir(BaseOperator(task_id="y")))
    task: Any = operator(task_id="z", gpu_pool=a_pool())  # type: ignore[call-arg]
    new = {name for name in vars(task) if name not in vars(BaseOperator(task_id="y"))}
    if operator is GpuPodOperator:
        new -= set(vars(KubernetesPodOperator(task_id="x")))
    assert not new & base


def test_what_a_trigger_handed_back_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dag.test()` executes one operator again and again: its next try begins with its first pod."""
    numbers: list[int] = []
    monkeypatch.setattr(PodTry, "_known_owner", lambda _: None)
    monkeypatch.setattr(PodTry, "run", lambda self: numbers.append(self.attempt.record.number))
    operator = GpuPodOperator(task_id="train", gpu_pool=a_pool(), image="busybox")
    event = {**handed_back({"version": 99}, 1), "attempt": AttemptRecord(number=3).to_record()}
    operator._resume_here(event, context_of(operator))
    operator.execute(context_of(operator))
    assert numbers == [3, 1]


@pytest.mark.parametrize("exit_code", [3, 99])
def test_pod_is_deleted_whether_or_not_its_result_can_be_pushed(exit_code: int) -> None:
    """KubernetesPodOperator pushes a failed pod's result before it deletes the pod."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("Airflow's API did not answer.")

    ended = k8s.V1ContainerState(terminated=k8s.V1ContainerStateTerminated(exit_code=exit_code))
    base = k8s.V1ContainerStatus(
        name="base", image="train:1", image_id="", ready=False, restart_count=0, state=ended, last_state=None
    )
    pod = k8s.V1Pod(
        metadata=k8s.V1ObjectMeta(name="train", namespace="ml"),
        status=k8s.V1PodStatus(phase="Failed", container_statuses=[base]),
    )
    deleted: list[Any] = []
    task = GpuPodOperator(
        task_id="train", gpu_pool=a_pool(), do_xcom_push=True, multiple_outputs=True, skip_on_exit_code=99
    )
    manager: Any = SimpleNamespace(delete_pod=deleted.append)
    task.pod_manager, task.client = manager, SimpleNamespace(patch_namespaced_pod=refuse)  # type: ignore[misc]
    context: Any = {"ti": SimpleNamespace(xcom_push=refuse)}
    with pytest.raises(AirflowSkipException) if exit_code == 99 else nullcontext():
        task.cleanup(pod, pod, [1], context)
    assert deleted == [pod]
