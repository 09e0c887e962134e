"""GpuPodOperator against a real API server and scheduler: placement, results, every way to end, and being killed."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.callbacks import KubernetesPodOperatorCallback
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from kubernetes import client
from kubernetes.client import models as k8s
from kubernetes.utils.quantity import parse_quantity
from structlog.testing import capture_logs

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.errors import (
    DriverMissing,
    GpuOutOfMemory,
    PodDeadline,
    PodFailed,
    PodImageError,
    PodOutOfMemory,
    PodPreempted,
    PodUnschedulable,
)
from airflow_gpu_provider.training.wait.pod_wait import PodWait
from airflow_gpu_provider.training.wait.pull import LASTS
from gpu_sandbox.sandbox import Sandbox
from sandbox.tests.node_checks.checks import UNTIL_TOLD, end
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.gpu_tasks import FOREVER, pod, pods, running_pod
from tests.sandbox.running import context_of, copy_of, eventually, first_event, line_of, meanwhile, run, run_and_act
from tests.sandbox.ways import BLOCKING_BY_DAY, BOTH_WAYS, DEFERRED_BY_DAY


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A pool with one node of four GPUs."""
    return with_nodes(eks_pool(gpu_sandbox, "pods", instance_types=["g6.12xlarge"]))


pytestmark = pytest.mark.usefixtures("api", "now")


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
    assert kept.spec.active_deadline_seconds is None, "its task ends it, or the switch: an extension reaches both"
    assert kept.metadata.annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert kept.metadata.labels["airflow-gpu-provider/pool"] == "pods"


@DEFERRED_BY_DAY
def test_kept_pod_no_longer_holds_its_node(pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool) -> None:
    run(pod(pool, on_finish_action="keep_pod", deferrable=deferrable))
    (kept,) = pods(api)
    assert "airflow-gpu-provider/uncollected" not in kept.metadata.annotations


@DEFERRED_BY_DAY
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


@DEFERRED_BY_DAY
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


@DEFERRED_BY_DAY
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


@DEFERRED_BY_DAY
def test_failure_with_result_is_still_a_failure(pool: EksGpuPool, deferrable: bool) -> None:
    script = "echo 1 > /airflow/xcom/return.json; exit 4"
    with pytest.raises(PodFailed, match="exit code 4"):
        run(pod(pool, "sh", "-c", script, deferrable=deferrable, do_xcom_push=True))


def test_exit_code_that_skips(pool: EksGpuPool) -> None:
    with pytest.raises(AirflowSkipException):
        run(pod(pool, "sh", "-c", "exit 9", skip_on_exit_code=9))


@DEFERRED_BY_DAY
def test_out_of_memory_names_the_limit(pool: EksGpuPool, deferrable: bool) -> None:
    hog = ["python", "-c", "import time; x = bytearray(400 * 2**20); time.sleep(600)"]
    limits = k8s.V1ResourceRequirements(limits={"memory": "200Mi"})
    with pytest.raises(PodOutOfMemory, match="200Mi"):
        run(pod(pool, *hog, image="python:3.12", container_resources=limits, deferrable=deferrable))


@DEFERRED_BY_DAY
def test_image_that_does_not_exist_fails_once_that_lasts(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    monkeypatch.setitem(LASTS, "absent", timedelta(seconds=1))
    started = time.monotonic()
    with pytest.raises(PodImageError, match=r"nowhere\.example/train:1"):
        run(pod(pool, image="nowhere.example/train:1", deferrable=deferrable))
    assert time.monotonic() - started < 120
    eventually(lambda: not pods(api))


@DEFERRED_BY_DAY
def test_evicted_pod_is_preempted_even_if_it_ends_well(
    pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool
) -> None:
    def evict() -> None:
        eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name=running_pod(api).metadata.name))
        api.create_namespaced_pod_eviction(eviction.metadata.name, "default", eviction)

    polite = "trap 'echo checkpoint saved; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    with pytest.raises(PodPreempted, match=r"Evict|deleted"):
        run_and_act(pod(pool, "sh", "-c", polite, deferrable=deferrable), evict)


@BLOCKING_BY_DAY
def test_deleted_pod_is_preempted(pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool) -> None:
    def delete() -> None:
        api.delete_namespaced_pod(running_pod(api).metadata.name, "default", grace_period_seconds=0)

    forever = "echo begun; while :; do sleep 0.1; done"
    with pytest.raises(PodPreempted, match="deleted"):
        run_and_act(pod(pool, "sh", "-c", forever, deferrable=deferrable), delete)


def test_pod_that_is_lost_during_a_callback_is_preempted(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    """It is watched meanwhile; a wait that began after the callback would find it gone, and not know its end."""

    class Deletes(KubernetesPodOperatorCallback):
        @staticmethod
        def on_pod_starting(*, pod: k8s.V1Pod, **_: Any) -> None:
            assert pod.status.phase == "Running"
            asyncio.run(asyncio.sleep(0))  # as a hook may: it is not called within the wait's event loop
            api.delete_namespaced_pod(pod.metadata.name, "default", grace_period_seconds=0)
            eventually(lambda: not pods(api))

    with pytest.raises(PodPreempted, match="deleted"):
        run(pod(pool, *FOREVER, deferrable=False, callbacks=Deletes))


@BLOCKING_BY_DAY
def test_pod_over_its_deadline(pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool) -> None:
    with pytest.raises(PodDeadline):
        run(pod(pool, *FOREVER, active_deadline_seconds=2, termination_grace_period=1, deferrable=deferrable))
    eventually(lambda: not pods(api))


@BLOCKING_BY_DAY
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


# -- the API server goes away: last, because scheduler and controllers take their time to find it again ---------------


@DEFERRED_BY_DAY
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


def test_training_outlives_a_time_in_which_no_token_is_accepted(
    pool: EksGpuPool, api: client.CoreV1Api, gpu_sandbox: Sandbox
) -> None:
    def refuse_until_it_has_ended() -> None:
        name = running_pod(api).metadata.name
        gpu_sandbox.faults.token_seconds = 0
        try:
            gpu_sandbox.restart_apiserver()  # it would take a token that it has just seen for 20 s more
            eventually(lambda: any("does not accept the credentials" in str(entry["event"]) for entry in [*told]))
            end(api, name)
            eventually(lambda: api.read_namespaced_pod(name, "default").status.phase == "Succeeded")
        finally:
            gpu_sandbox.faults.token_seconds = None

    with capture_logs() as told:
        thread = meanwhile(refuse_until_it_has_ended)
        assert run(pod(pool, "sh", "-c", UNTIL_TOLD, deferrable=True)) is None
        thread.join()
