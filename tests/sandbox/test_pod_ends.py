"""A pod's end is its own: whatever becomes of those who watch it, of its name, its log, its result or its node."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from airflow.providers.cncf.kubernetes.callbacks import KubernetesPodOperatorCallback
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client, config
from kubernetes.client import models as k8s
from structlog.testing import capture_logs

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.errors import (
    ClusterUnreachable,
    EndUnknown,
    GpuOutOfMemory,
    PodFailed,
    PodPreempted,
    PodResultInvalid,
)
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.triggers import pod as pod_trigger
from gpu_sandbox.sandbox import Sandbox
from sandbox.tests.node_checks.checks import UNTIL_TOLD, end
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.running import context_of, copy_of, eventually, first_event, line_of, resumption, run
from tests.sandbox.ways import BLOCKING_BY_DAY, BOTH_WAYS

FOREVER = ["sh", "-c", "while :; do sleep 0.1; done"]
AWAY = ClusterUnreachable("The API server was away.")


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A pool with one node of four GPUs."""
    return with_nodes(eks_pool(gpu_sandbox, "ends", instance_types=["g6.12xlarge"]))


@pytest.fixture
def core(pool: EksGpuPool, monkeypatch: pytest.MonkeyPatch) -> Iterator[client.CoreV1Api]:
    """The cluster, as its administrator; pods that a test left are deleted. Nobody here is to be patient for."""
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
    yield core
    core.delete_collection_namespaced_pod("default", grace_period_seconds=0)
    eventually(lambda: not core.list_namespaced_pod("default").items)


pytestmark = pytest.mark.usefixtures("core")


def training(pool: EksGpuPool, *cmds: str, **changes: Any) -> GpuPodOperator:
    arguments: dict[str, Any] = {"task_id": "train", "image": "busybox:1.36", "cmds": list(cmds) or ["true"]}
    return GpuPodOperator(gpu_pool=pool, **(arguments | changes))


def container(name: str, script: str) -> k8s.V1Container:
    return k8s.V1Container(name=name, image="busybox:1.36", command=["sh", "-c", script])


def spec_of(*others: k8s.V1Container, first: tuple[k8s.V1Container, ...] = ()) -> k8s.V1Pod:
    spec = k8s.V1PodSpec(
        containers=[k8s.V1Container(name="base"), *others],
        init_containers=[*first],
        termination_grace_period_seconds=1,
    )
    return k8s.V1Pod(metadata=k8s.V1ObjectMeta(), spec=spec)


def deferred(task: GpuPodOperator, context: dict[str, Any]) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context)  # type: ignore[arg-type]
    return deferral.value


def said(log: list[Any]) -> list[str]:
    """What was logged, each message as a line."""
    return [line_of(one) for one in log]


def phase_of(core: client.CoreV1Api, context: dict[str, Any]) -> str:
    return str(core.read_namespaced_pod(context["ti"].xcoms["pod_name"], "default").status.phase)


# -- who watches -----------------------------------------------------------------------------------------------


def test_success_outranks_the_error_of_the_trigger(pool: EksGpuPool, core: client.CoreV1Api) -> None:
    task = training(pool)
    context = context_of(task)
    deferral = deferred(task, context)
    eventually(lambda: phase_of(core, context) == "Succeeded")
    wait = deferral.trigger.record["wait"]  # type: ignore[attr-defined]
    event = {**{key: wait[key] for key in ("name", "namespace", "uid")}, "saw_end": False, "error": AWAY.to_record()}
    assert resumption(task, deferral, context, event)() is None


def test_cluster_that_cannot_be_opened_at_first_is_opened_later(
    pool: EksGpuPool, core: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = pod_trigger.cluster_access
    failures = [AWAY, AWAY]

    def open_at_last(pool: Any) -> Any:
        if failures:
            raise failures.pop()
        return opened(pool)

    task = training(pool, "sleep", "1")
    context = context_of(task)
    deferral = deferred(task, context)
    monkeypatch.setattr(pod_trigger, "cluster_access", open_at_last)
    event = asyncio.run(first_event(copy_of(deferral.trigger)))
    assert (event["saw_end"], event["error"]) == (True, None)
    assert not failures
    assert resumption(task, deferral, context, event)() is None


def test_pod_that_runs_is_watched_again_however_often_that_failed(pool: EksGpuPool, core: client.CoreV1Api) -> None:
    task = training(pool, *FOREVER)
    context = context_of(task)
    deferral = deferred(task, context)
    pauses = []
    for _ in range(5):
        record = deferral.trigger.record  # type: ignore[attr-defined]
        failed = {"saw_end": False, "error": AWAY.to_record(), **record["extra"]}
        event = {**failed, **{key: record["wait"][key] for key in ("name", "namespace", "uid")}}
        with pytest.raises(TaskDeferred) as again:
            resumption(training(pool, *FOREVER), deferral, context, event)()
        deferral = again.value
        pauses.append(deferral.trigger.record["pause"])  # type: ignore[attr-defined]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1]
    assert [one.metadata.deletion_timestamp for one in core.list_namespaced_pod("default").items] == [None]


def test_worker_that_cannot_reach_the_cluster_has_the_pod_watched_again(
    pool: EksGpuPool, core: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collected is what has ended well, not trained again."""
    task = training(pool, "sh", "-c", "echo '[7]' > /airflow/xcom/return.json", do_xcom_push=True)
    context = context_of(task)
    deferral = deferred(task, context)
    event = asyncio.run(first_event(copy_of(deferral.trigger)))
    resumed = training(pool, do_xcom_push=True)
    with monkeypatch.context() as away:
        away.setattr("airflow_gpu_provider.training.life.store.TaskPods.read", _unreachable)
        with pytest.raises(TaskDeferred) as again:
            resumption(resumed, deferral, context, event)()
    event = asyncio.run(first_event(copy_of(again.value.trigger)))
    assert resumption(training(pool, do_xcom_push=True), again.value, context, event)() == [7]


def _unreachable(*_: Any, **__: Any) -> Any:
    raise AWAY


def test_pod_of_another_task_that_took_the_name_is_left_alone(pool: EksGpuPool, core: client.CoreV1Api) -> None:
    task = training(pool, *FOREVER, name="train", random_name_suffix=False)
    context = context_of(task)
    deferral = deferred(task, context)
    core.delete_namespaced_pod("train", "default", grace_period_seconds=0)
    eventually(lambda: not core.list_namespaced_pod("default").items)
    event = asyncio.run(first_event(copy_of(deferral.trigger)))
    other = {"metadata": {"name": "train"}, "spec": {"containers": [{"name": "c", "image": "busybox:1.36"}]}}
    core.create_namespaced_pod("default", other)
    with pytest.raises(EndUnknown):
        resumption(task, deferral, context, event)()
    assert core.read_namespaced_pod("train", "default").metadata.deletion_timestamp is None


# -- its result ------------------------------------------------------------------------------------------------


@BOTH_WAYS
@pytest.mark.parametrize(
    ("script", "error_type"),
    [
        ("exit 3", PodFailed),
        ("echo torch.OutOfMemoryError: CUDA out of memory.; exit 1", GpuOutOfMemory),
        ("exit 0", PodResultInvalid),
    ],
)
def test_half_written_result_hides_no_end(
    pool: EksGpuPool, script: str, error_type: type[PodFailed], deferrable: bool
) -> None:
    half = """printf '{"loss": 0.1' > /airflow/xcom/return.json; """
    with pytest.raises(PodFailed) as error:
        run(training(pool, "sh", "-c", half + script, deferrable=deferrable, do_xcom_push=True))
    assert type(error.value) is error_type
    if error_type is PodResultInvalid:
        assert "return.json" in str(error.value)
        assert '{"loss": 0.1' in str(error.value)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (r"""printf '{"a": 1}\0'""", "is not valid JSON"),
        ("""echo '{"loss": NaN}'""", "cannot be stored by Airflow"),
        ("yes 1 | head -c 5000000", "is longer than 4 MiB"),
    ],
)
def test_a_result_that_airflow_cannot_store_is_told_in_one_try(
    pool: EksGpuPool, written: str, problem: str, deferrable: bool
) -> None:
    script = f"{written} > /airflow/xcom/return.json"
    with pytest.raises(PodResultInvalid, match=problem):
        run(training(pool, "sh", "-c", script, deferrable=deferrable, do_xcom_push=True))


@BOTH_WAYS
def test_texts_of_a_result_are_plain(pool: EksGpuPool, deferrable: bool) -> None:
    script = r"""printf '{"a": "\\u001b[31mred\\u202e"}' > /airflow/xcom/return.json"""
    assert run(training(pool, "sh", "-c", script, deferrable=deferrable, do_xcom_push=True)) == {"a": "red"}


def test_node_that_is_lost_with_the_result_is_a_preemption_and_resumes(
    pool: EksGpuPool, core: client.CoreV1Api, gpu_sandbox: Sandbox
) -> None:
    lost = with_nodes(eks_pool(gpu_sandbox, "lost-result"))
    task = training(lost, "sh", "-c", "echo 1 > /airflow/xcom/return.json", do_xcom_push=True)
    context = context_of(task)
    deferral = deferred(task, context)
    read_at_once = asyncio.run(first_event(copy_of(deferral.trigger)))
    assert read_at_once["result"].strip() == "1"
    event = {**read_at_once, "result": None}  # as if it was too large for the event
    (left,) = core.list_namespaced_pod("default").items
    node = core.read_node(left.spec.node_name)
    boto3.client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=node.spec.provider_id.rpartition("/")[2], ShouldDecrementDesiredCapacity=True
    )
    eventually(lambda: not core.list_node(label_selector="airflow-gpu-provider/pool=lost-result").items)
    with pytest.raises(PodPreempted, match="before its result was read"):
        resumption(task, deferral, context, event)()
    resuming = training(lost, do_xcom_push=True, on_preemption="resume")
    with pytest.raises(TaskDeferred) as again:
        resumption(resuming, deferral, context, event)()
    assert again.value.trigger.record["extra"]["attempt"]["number"] == 2  # type: ignore[attr-defined]
    assert resumption(training(lost, do_xcom_push=True), deferral, context, read_at_once)() == 1


# -- its log ---------------------------------------------------------------------------------------------------


@BOTH_WAYS
@pytest.mark.parametrize("logs", [True, None], ids=["with its log", "without"])
def test_init_container_that_fails_is_heard(pool: EksGpuPool, logs: Any, deferrable: bool) -> None:
    spec = spec_of(first=(container("prepare", "echo no such bucket; exit 5"),))
    task = training(pool, full_pod_spec=spec, init_container_logs=logs, deferrable=deferrable)
    with capture_logs() as log, pytest.raises(PodFailed, match=r"prepare ended with exit code 5(.|\n)*no such bucket"):
        run(task)
    assert said(log).count("[prepare] no such bucket") == (1 if logs else 0)


class Slow(KubernetesPodOperatorCallback):
    """A callback that is slower than the pod, for longer than the rest of a log used to be waited for."""

    @staticmethod
    def progress_callback(*, line: str, **_: Any) -> None:
        time.sleep(0.1)


def test_log_of_a_blocking_task_is_read_to_its_end_as_long_as_that_takes(pool: EksGpuPool) -> None:
    task = training(
        pool,
        "sh",
        "-c",
        "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done",
        deferrable=False,
        callbacks=Slow,
    )
    with capture_logs() as log:
        run(task)
    assert [one for one in said(log) if one.startswith("[base] line")] == [f"[base] line {n}" for n in range(200)]


def test_sidecar_that_never_ends_holds_up_no_log_and_no_end(pool: EksGpuPool, core: client.CoreV1Api) -> None:
    side = container("side", "while :; do echo beside; sleep 0.2; done")
    task = training(
        pool,
        "sh",
        "-c",
        f"for i in 1 2 3; do echo epoch $i; done; {UNTIL_TOLD}",
        full_pod_spec=spec_of(side),
        container_logs=["side", "base"],
        deferrable=False,
    )

    def end_it() -> None:
        eventually(lambda: "[side] beside" in said([*log]))
        end(core, core.list_namespaced_pod("default").items[0].metadata.name)

    started = time.monotonic()
    with capture_logs() as log:
        ending = threading.Thread(target=end_it)
        ending.start()
        run(task)
        ending.join()
    lines = said(log)
    assert time.monotonic() - started < 120
    assert [line for line in lines if line.startswith("[base]")] == [f"[base] epoch {n}" for n in (1, 2, 3)]
    (deleted,) = [index for index, line in enumerate(lines) if line.startswith("Deleting pod")]
    assert "[side] beside" in lines[:deleted]
    assert "[side] beside" not in lines[deleted:]


def test_failure_at_once_tells_its_timeline_once(pool: EksGpuPool) -> None:
    with capture_logs() as log, pytest.raises(PodFailed):
        run(training(pool, "sh", "-c", "exit 3", deferrable=False))
    assert len([line for line in said(log) if line.strip().startswith("waited for a node")]) == 1


# -- the next pod ----------------------------------------------------------------------------------------------


@BLOCKING_BY_DAY
def test_next_pod_waits_until_the_last_one_is_gone(pool: EksGpuPool, core: client.CoreV1Api, deferrable: bool) -> None:
    """Its handler of SIGTERM writes a checkpoint, which the next one is to find."""
    slow = ["sh", "-c", "trap 'sleep 5; exit 143' TERM; while :; do sleep 0.1; done"]
    first = training(pool, *slow, termination_grace_period=30)
    deferred(first, context_of(first))
    eventually(lambda: [pod.status.phase for pod in core.list_namespaced_pod("default").items] == ["Running"])
    together: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            pods = core.list_namespaced_pod("default").items
            # The kubelet says that a pod has ended, and then deletes it.
            together.append(sum(pod.status.phase not in ("Succeeded", "Failed") for pod in pods))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        with capture_logs() as log:
            run(training(pool, "sleep", "1", deferrable=deferrable), try_number=2)
    finally:
        over.set()
        thread.join()
    assert max(together) == 1
    assert any("Waiting" in line and "to end" in line for line in said(log))
