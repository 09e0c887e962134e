"""GpuPodOperator against a real API server and scheduler: placement, results, every way to end, and being killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from kubernetes import client, config
from kubernetes.client import models as k8s
from kubernetes.utils.quantity import parse_quantity
from structlog.testing import capture_logs

from airflow_gpu_provider.cluster.demand import list_demand
from airflow_gpu_provider.errors import (
    BadGpu,
    DriverMissing,
    GpuError,
    GpuOutOfMemory,
    OutOfStock,
    PodDeadline,
    PodFailed,
    PodImageError,
    PodOutOfMemory,
    PodPreempted,
    PodUnschedulable,
    TaskKilled,
)
from airflow_gpu_provider.operators.device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.pods.pull import LASTS
from airflow_gpu_provider.pods.wait import PodWait
from airflow_gpu_provider.pools import EksGpuPool
from airflow_gpu_provider.pools.base import POOL_LABEL
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.faults import Stockout
from gpu_sandbox.sandbox import Sandbox
from sandbox.tests.node_checks.checks import UNTIL_TOLD, end
from tests.sandbox.running import airflow_says, context_of, copy_of, eventually, first_event, line_of, run

BOTH_WAYS = pytest.mark.parametrize("deferrable", [False, True], ids=["blocking", "deferred"])
FOREVER = ["sh", "-c", "while :; do sleep 0.1; done"]


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A pool with one node of four GPUs."""
    pool = EksGpuPool(
        name="pods",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=["g6.12xlarge"],
        zones=[gpu_sandbox.zones[0]],
        node_role=gpu_sandbox.node_role_arn,
        max_nodes=1,
    )
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, deferrable=False))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool))
    return pool


@pytest.fixture
def api(pool: EksGpuPool) -> Iterator[client.CoreV1Api]:
    """The cluster, as its administrator; pods that a test left are deleted."""
    core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
    yield core
    core.delete_collection_namespaced_pod("default", grace_period_seconds=1)
    eventually(lambda: not core.list_namespaced_pod("default").items)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triggers send their events at once: there is no scheduler here to be patient for."""
    monkeypatch.setattr("airflow_gpu_provider.triggers.deferral_delay.SETTLE_SECONDS", 0)


pytestmark = pytest.mark.usefixtures("api", "now")


def pod(pool: EksGpuPool, *cmds: str, **changes: Any) -> GpuPodOperator:
    arguments: dict[str, Any] = {"task_id": "train", "image": "busybox:1.36", "cmds": list(cmds) or ["true"]}
    return GpuPodOperator(gpu_pool=pool, **(arguments | changes))


def pods(api: client.CoreV1Api) -> list[client.V1Pod]:
    return [one for one in api.list_namespaced_pod("default").items if not one.metadata.deletion_timestamp]


def running_pod(api: client.CoreV1Api) -> client.V1Pod:
    return eventually(lambda: next((one for one in pods(api) if one.status.phase == "Running"), None))


def meanwhile(do: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=do)
    thread.start()
    return thread


# -- how it runs -----------------------------------------------------------------------------------------------


@BOTH_WAYS
def test_result_comes_back_and_the_pod_goes(pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool) -> None:
    script = """nvidia-smi -L; echo '{"gpus": "'$CUDA_VISIBLE_DEVICES'"}' > /airflow/xcom/return.json"""
    task = pod(pool, "sh", "-c", script, deferrable=deferrable, do_xcom_push=True, gpus=2)
    context = context_of(task)
    result = run(task, context)
    assert len(result["gpus"].split(",")) == 2
    assert context["ti"].xcoms["pod_name"].startswith("train-")
    assert [phase["phase"] for phase in context["ti"].xcoms["timeline"]] == [
        "waited for a node",
        "start",
        "ran",
    ]
    eventually(lambda: not pods(api))


def test_pod_says_where_it_belongs(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    task = pod(
        pool, on_finish_action="keep_pod", container_resources=k8s.V1ResourceRequirements(limits={"memory": "1Gi"})
    )
    run(task)
    (kept,) = pods(api)
    base = kept.spec.containers[0]
    assert kept.spec.node_selector == {"airflow-gpu-provider/pool": "pods"}
    assert base.resources.limits == {"memory": "1Gi", "nvidia.com/gpu": "1"}
    assert 0 < kept.spec.active_deadline_seconds <= pool.max_runtime.total_seconds()
    assert kept.metadata.annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert kept.metadata.labels["airflow-gpu-provider/pool"] == "pods"


@BOTH_WAYS
def test_kept_pod_no_longer_holds_its_node(pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool) -> None:
    run(pod(pool, on_finish_action="keep_pod", deferrable=deferrable))
    (kept,) = pods(api)
    assert "airflow-gpu-provider/uncollected" not in kept.metadata.annotations


@BOTH_WAYS
def test_sidecar_that_never_ends_holds_nothing(pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool) -> None:
    sidecar = k8s.V1Container(name="exporter", image="busybox:1.36", command=FOREVER)
    spec = k8s.V1Pod(
        metadata=k8s.V1ObjectMeta(),
        spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base"), sidecar], termination_grace_period_seconds=1),
    )
    started = time.monotonic()
    run(pod(pool, full_pod_spec=spec, deferrable=deferrable))
    assert time.monotonic() - started < 120
    eventually(lambda: not api.list_namespaced_pod("default").items)


@BOTH_WAYS
def test_pull_of_an_image_is_a_phase_of_its_own(pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool) -> None:
    image = f"large:{'deferred' if deferrable else 'blocking'}"
    task = pod(pool, "sh", "-c", UNTIL_TOLD, image=image, deferrable=deferrable)
    context = context_of(task)

    def end_once_the_pull_was_told() -> None:
        """The event of the pull and the pod's end are heard by two watches."""
        eventually(lambda: any("pulled image" in str(each) for each in [*told]))
        end(api, running_pod(api).metadata.name)

    with capture_logs() as told:
        thread = meanwhile(end_once_the_pull_was_told)
        run(task, context)
        thread.join()
    (pull,) = [phase for phase in context["ti"].xcoms["timeline"] if phase["phase"] == "image pull"]
    assert pull["image"] == image
    assert 1.5 <= pull["seconds"] < 120


def test_event_comes_at_once_when_the_pod_ends(pool: EksGpuPool) -> None:
    """Some machines are too busy for that, but not all the time."""
    assert any(seconds_to_the_event(pool) < 0.5 for _ in range(24))


def seconds_to_the_event(pool: EksGpuPool) -> float:
    task = pod(pool, "sh", "-c", "sleep 2; date +%s.%N")
    context = context_of(task)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context)

    async def event_and_time() -> tuple[Any, float]:
        return await first_event(copy_of(deferral.value.trigger)), time.time()

    with capture_logs() as told:
        event, heard_at = asyncio.run(event_and_time())
        task.trigger_reentry(context, event)
    lines = [line_of(entry) for entry in told]
    (ended_at,) = [float(line.removeprefix("[base] ")) for line in lines if line.startswith("[base] ")]
    assert [phase["phase"] for phase in event["timeline"]] == ["waited for a node", "start", "ran"]
    return heard_at - ended_at


def test_trigger_row_holds_no_secret(pool: EksGpuPool, gpu_sandbox: Sandbox) -> None:
    task = pod(pool)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context_of(task))
    row = json.dumps(deferral.value.trigger.serialize())
    key = gpu_sandbox.aws.access_key
    assert key.secret_access_key not in row
    assert key.access_key_id not in row
    assert "k8s-aws-v1" not in row


# -- how it ends -----------------------------------------------------------------------------------------------


@BOTH_WAYS
def test_failure_tells_exit_code_and_last_words(pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool) -> None:
    with pytest.raises(PodFailed, match=r"exit code 3(.|\n)*CUDA is sad") as error:
        run(pod(pool, "sh", "-c", "echo CUDA is sad; exit 3", deferrable=deferrable))
    assert type(error.value) is PodFailed
    assert error.value.details["exit_code"] == 3
    eventually(lambda: not pods(api))


@BOTH_WAYS
@pytest.mark.parametrize(
    ("words", "error_type"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", GpuOutOfMemory),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", DriverMissing),
    ],
)
def test_failure_of_gpu_memory_or_driver_has_its_type(
    pool: EksGpuPool, words: str, error_type: type[PodFailed], deferrable: bool
) -> None:
    with pytest.raises(PodFailed, match=words.split(":")[0]) as error:
        run(pod(pool, "sh", "-c", f"echo '{words}'; exit 1", deferrable=deferrable))
    assert type(error.value) is error_type


@BOTH_WAYS
def test_failure_with_result_is_still_a_failure(pool: EksGpuPool, deferrable: bool) -> None:
    script = "echo 1 > /airflow/xcom/return.json; exit 4"
    with pytest.raises(PodFailed, match="exit code 4"):
        run(pod(pool, "sh", "-c", script, deferrable=deferrable, do_xcom_push=True))


def test_exit_code_that_skips(pool: EksGpuPool) -> None:
    with pytest.raises(AirflowSkipException):
        run(pod(pool, "sh", "-c", "exit 9", skip_on_exit_code=9))


@BOTH_WAYS
def test_out_of_memory_names_the_limit(pool: EksGpuPool, deferrable: bool) -> None:
    hog = ["python", "-c", "import time; x = bytearray(400 * 2**20); time.sleep(600)"]
    limits = k8s.V1ResourceRequirements(limits={"memory": "200Mi"})
    with pytest.raises(PodOutOfMemory, match="200Mi"):
        run(pod(pool, *hog, image="python:3.12", container_resources=limits, deferrable=deferrable))


@BOTH_WAYS
def test_image_that_does_not_exist_fails_once_that_lasts(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    monkeypatch.setitem(LASTS, "absent", timedelta(seconds=1))
    started = time.monotonic()
    with pytest.raises(PodImageError, match=r"nowhere\.example/train:1"):
        run(pod(pool, image="nowhere.example/train:1", deferrable=deferrable))
    assert time.monotonic() - started < 120
    eventually(lambda: not pods(api))


@BOTH_WAYS
def test_evicted_pod_is_preempted_even_if_it_ends_well(
    pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool
) -> None:
    def evict() -> None:
        name = running_pod(api).metadata.name
        eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name=name, namespace="default"))
        api.create_namespaced_pod_eviction(name, "default", eviction)

    polite = "trap 'echo checkpoint saved; exit 0' TERM; while :; do sleep 0.1; done"
    thread = meanwhile(evict)
    with pytest.raises(PodPreempted, match=r"Evict|deleted"):
        run(pod(pool, "sh", "-c", polite, deferrable=deferrable))
    thread.join()


@BOTH_WAYS
def test_deleted_pod_is_preempted(pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool) -> None:
    def delete() -> None:
        api.delete_namespaced_pod(running_pod(api).metadata.name, "default", grace_period_seconds=0)

    thread = meanwhile(delete)
    with pytest.raises(PodPreempted, match="deleted"):
        run(pod(pool, *FOREVER, deferrable=deferrable))
    thread.join()


@BOTH_WAYS
def test_pod_over_its_deadline(pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool) -> None:
    with pytest.raises(PodDeadline):
        run(pod(pool, *FOREVER, active_deadline_seconds=2, termination_grace_period=1, deferrable=deferrable))
    eventually(lambda: not pods(api))


def test_execution_timeout_counts_while_deferred(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    with pytest.raises(PodDeadline, match="deadline"):
        run(pod(pool, *FOREVER, execution_timeout=timedelta(seconds=4), termination_grace_period=1))
    eventually(lambda: not pods(api))


@BOTH_WAYS
def test_pod_that_gets_no_node_says_what_it_waited_for(
    pool: EksGpuPool, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    deadline = PodWait._schedule_deadline
    # Not before the scheduler has looked.
    monkeypatch.setattr(
        PodWait,
        "_schedule_deadline",
        lambda wait, pod, seen: deadline(wait, pod, seen) if pod.unschedulable else wait.deadline,
    )
    task = pod(pool, node_selector={"disk": "huge"}, schedule_timeout_seconds=15, deferrable=deferrable)
    # The pool's one node is up and free: the pod is not queued.
    why = r"got no node in 15 s.*no node of the pool has disk=huge.*node affinity/selector"
    with pytest.raises(PodUnschedulable, match=why):
        run(task)


def test_pod_waits_its_turn_for_the_cpus_that_another_pod_has(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The full pool's node has a GPU to spare."""
    (node,) = api.list_node(label_selector="airflow-gpu-provider/pool=pods").items
    cpus = float(parse_quantity(node.status.allocatable["cpu"]))
    greedy: dict[str, Any] = {"name": "c", "image": "busybox:1.36", "command": FOREVER}
    greedy["resources"] = {"requests": {"cpu": f"{cpus * 0.8:.1f}"}}
    spec = {"nodeName": node.metadata.name, "containers": [greedy]}
    api.create_namespaced_pod("default", {"metadata": {"name": "greedy"}, "spec": spec})

    def has_waited() -> bool:
        waiting = [one for one in pods(api) if one.metadata.name.startswith("train-") and not one.spec.node_name]
        return any(datetime.now(UTC) - one.metadata.creation_timestamp > timedelta(seconds=8) for one in waiting)

    deadline, has_room = PodWait._schedule_deadline, threading.Event()
    # The scheduler takes its time once there is room.
    monkeypatch.setattr(
        PodWait, "_schedule_deadline", lambda wait, *seen: wait.deadline if has_room.is_set() else deadline(wait, *seen)
    )

    def make_room() -> None:
        eventually(has_waited)
        has_room.set()
        api.delete_namespaced_pod("greedy", "default", grace_period_seconds=1)

    asks = k8s.V1ResourceRequirements(requests={"cpu": f"{cpus * 0.4:.1f}"})
    made_room = meanwhile(make_room)
    run(pod(pool, schedule_timeout_seconds=2, container_resources=asks))
    made_room.join()


@BOTH_WAYS
@pytest.mark.usefixtures("stock_out_first")
def test_pod_for_which_there_is_no_machine_is_out_of_stock(
    pool: EksGpuPool, gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    """No Ensure has met the stock-out: it came after it, or there is none."""
    monkeypatch.setattr("airflow_gpu_provider.scaling.pool_news.EVERY", 1.0)
    name = f"dry-{'deferred' if deferrable else 'blocking'}"
    dry = EksGpuPool(**{**_fields(pool), "name": name, "instance_types": ["g6.xlarge"]})
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=dry, deferrable=False))
    run(ScaleDownSensor(task_id="zero", gpu_pool=dry))
    gpu_sandbox.faults.add(Stockout(zone=gpu_sandbox.zones[0], instance_type="g6.xlarge"))
    try:
        with pytest.raises(OutOfStock, match=r"got no node in 12 s\. .*No capacity for g6\.xlarge on-demand"):
            run(pod(dry, "true", schedule_timeout_seconds=12, deferrable=deferrable))
    finally:
        gpu_sandbox.faults.clear()


def _fields(pool: EksGpuPool) -> dict[str, Any]:
    spec = pool.serialize()
    return {name: value for name, value in spec.items() if name not in ("kind", "version")}


# -- tries and kills --------------------------------------------------------------------------------------------


def test_next_try_deletes_what_the_last_one_left(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    for number in (1, 2):
        task = pod(pool, *FOREVER, termination_grace_period=1)
        with pytest.raises(TaskDeferred):
            task.execute(context_of(task, try_number=number))
    (left,) = pods(api)
    assert left.metadata.labels["try_number"] == "2"


def test_same_try_goes_on_with_its_pod(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    first, second = pod(pool, *FOREVER), pod(pool, *FOREVER)
    context = context_of(first)
    for task in (first, second):
        with pytest.raises(TaskDeferred):
            task.execute(context)
    assert len(pods(api)) == 1


def test_other_tasks_pods_are_left_alone(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    for ti in ({"map_index": 0}, {"map_index": 1}, {"run_id": "another"}, {"dag_id": "other"}):
        task = pod(pool, *FOREVER)
        with pytest.raises(TaskDeferred):
            task.execute(context_of(task, **ti))
    assert len(pods(api)) == 4


def test_sigterm_deletes_the_pod_and_is_never_green(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    task = pod(pool, *FOREVER, deferrable=False, termination_grace_period=1)

    def worker_is_evicted() -> None:
        running_pod(api)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    thread = meanwhile(worker_is_evicted)
    try:
        with pytest.raises(TaskKilled):
            run(task)
    finally:
        signal.signal(signal.SIGTERM, before)
        thread.join()
    eventually(lambda: not pods(api))


@pytest.mark.parametrize(
    ("state", "is_deleted"), [("deferred", False), ("failed", True), (None, True), ("queued", True)]
)
def test_trigger_deletes_the_pod_of_a_task_that_was_killed(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch, state: str | None, is_deleted: bool
) -> None:
    task = pod(pool, *FOREVER, termination_grace_period=1)
    context = context_of(task)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context)
    airflow_says(monkeypatch, states={context["run_id"]: {"train": state} if state else {}}, unfinished_runs=1)
    trigger = copy_of(deferral.value.trigger)
    trigger.task_instance = context["ti"]
    asyncio.run(trigger.on_kill())
    assert bool(pods(api)) is not is_deleted
    assert list_demand(api.api_client, pool.name)


@pytest.mark.parametrize(("state", "is_deleted"), [("running", False), ("failed", True)])
def test_trigger_that_comes_back_late_leaves_what_has_ended_to_the_worker_that_collects_it(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch, state: str, is_deleted: bool
) -> None:
    """Another triggerer took the wait over while this one stood still, and has sent the event."""
    task = pod(
        pool, "sh", "-c", "echo '[1]' > /airflow/xcom/return.json", do_xcom_push=True, termination_grace_period=1
    )
    context = context_of(task)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context)
    event = asyncio.run(first_event(copy_of(deferral.value.trigger)))
    airflow_says(monkeypatch, states={context["run_id"]: {"train": state}}, unfinished_runs=1)
    late = copy_of(deferral.value.trigger)
    late.task_instance = context["ti"]
    asyncio.run(late.on_kill())
    assert bool(pods(api)) is not is_deleted
    if not is_deleted:
        assert task.trigger_reentry(context, event) == [1]


def test_trigger_takes_the_nodes_along_where_the_run_is_over(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dagrun_timeout skips the scale-down."""
    over = EksGpuPool(**{**_fields(pool), "name": "over", "instance_types": ["g6.xlarge"]})
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=over, deferrable=False))
    task = pod(over, *FOREVER, termination_grace_period=1)
    context = context_of(task)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context)
    airflow_says(monkeypatch, states={context["run_id"]: {"train": "skipped"}}, unfinished_runs=0)
    trigger = copy_of(deferral.value.trigger)
    trigger.task_instance = context["ti"]
    asyncio.run(trigger.on_kill())
    assert not list_demand(api.api_client, over.name)
    eventually(lambda: not api.list_node(label_selector=f"{POOL_LABEL}={over.name}").items)
    assert list_demand(api.api_client, pool.name)


def test_pod_that_no_demand_covers_brings_its_node_and_takes_it_along(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.scaling.pool_news.EVERY", 1.0)
    alone = EksGpuPool(**{**_fields(pool), "name": "alone", "instance_types": ["g6.xlarge"]})
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=alone, deferrable=False))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=alone))
    run(ScaleDownSensor(task_id="zero", gpu_pool=alone))
    run(pod(alone))
    eventually(lambda: not api.list_node(label_selector=f"{POOL_LABEL}={alone.name}").items)


def test_trigger_that_died_leaves_no_pod(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    task = pod(pool, *FOREVER, termination_grace_period=1)
    context = context_of(task)
    with pytest.raises(TaskDeferred):
        task.execute(context)
    with pytest.raises(PodDeadline, match="triggerer"):
        pod(pool).resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    assert not pods(api)


# -- losing the node --------------------------------------------------------------------------------------------


def test_lost_machine_is_a_preemption_and_the_next_pod_gets_another(
    pool: EksGpuPool, api: client.CoreV1Api, gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool is looked after while a pod waits: the machine that Ensure got is gone, and nobody runs Ensure again."""
    monkeypatch.setattr("airflow_gpu_provider.scaling.pool_news.EVERY", 1.0)
    lost = EksGpuPool(**{**_fields(pool), "name": "lost", "instance_types": ["g6.xlarge"]})
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=lost, deferrable=False))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=lost))

    def terminate() -> None:
        node = api.read_node(running_pod(api).spec.node_name)
        boto3.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=node.spec.provider_id.rpartition("/")[2], ShouldDecrementDesiredCapacity=True
        )

    thread = meanwhile(terminate)
    with pytest.raises(GpuError) as error:
        run(pod(lost, *FOREVER, termination_grace_period=1))
    thread.join()
    assert type(error.value) is PodPreempted
    eventually(lambda: not api.list_node(label_selector="airflow-gpu-provider/pool=lost").items)
    assert run(pod(lost, "true")) is None


def test_broken_gpu_is_avoided_and_its_machine_replaced(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.scaling.pool_news.EVERY", 1.0)
    frail = EksGpuPool(**{**_fields(pool), "name": "frail", "instance_types": ["g6.xlarge"]})
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=frail, deferrable=False))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=frail))
    (broken,) = api.list_node(label_selector="airflow-gpu-provider/pool=frail").items
    with pytest.raises(BadGpu, match=broken.metadata.name):
        run(pod(frail, "sh", "-c", "echo 'RuntimeError: CUDA error: uncorrectable ECC error encountered'; exit 1"))
    task = pod(frail, "true", on_finish_action="keep_pod")
    run(task, try_number=2)
    (kept,) = pods(api)
    assert kept.spec.node_name != broken.metadata.name
    eventually(
        lambda: (
            broken.metadata.name
            not in [
                node.metadata.name for node in api.list_node(label_selector="airflow-gpu-provider/pool=frail").items
            ]
        )
    )


# -- tokens are refused: the API server goes on taking one that it has just seen for 20 s ---------------------------


def test_training_outlives_a_time_in_which_no_token_is_accepted(
    pool: EksGpuPool, api: client.CoreV1Api, gpu_sandbox: Sandbox
) -> None:
    def is_refused() -> bool:
        gpu_sandbox.cut_connections()
        time.sleep(1)
        return any("does not accept the credentials" in str(entry["event"]) for entry in [*told])

    def refuse_until_it_has_ended() -> None:
        name = running_pod(api).metadata.name
        gpu_sandbox.faults.token_seconds = 0
        try:
            eventually(is_refused)
            end(api, name)
            eventually(lambda: api.read_namespaced_pod(name, "default").status.phase == "Succeeded")
        finally:
            gpu_sandbox.faults.token_seconds = None

    with capture_logs() as told:
        thread = meanwhile(refuse_until_it_has_ended)
        assert run(pod(pool, "sh", "-c", UNTIL_TOLD, deferrable=True)) is None
        thread.join()


# -- the API server goes away: last, because scheduler and controllers take their time to find it again ---------------


@BOTH_WAYS
def test_api_server_may_restart_meanwhile(
    pool: EksGpuPool, api: client.CoreV1Api, gpu_sandbox: Sandbox, deferrable: bool
) -> None:
    def restart_while_it_runs() -> None:
        name = running_pod(api).metadata.name
        gpu_sandbox.restart_apiserver(down_seconds=3)
        end(api, name)

    thread = meanwhile(restart_while_it_runs)
    assert run(pod(pool, "sh", "-c", UNTIL_TOLD, deferrable=deferrable)) is None
    thread.join()
    again = {"metadata": {"name": "again"}, "spec": {"containers": [{"name": "c", "image": "busybox:1.36"}]}}
    api.create_namespaced_pod("default", again)
    eventually(lambda: api.read_namespaced_pod("again", "default").spec.node_name)
