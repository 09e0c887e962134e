"""GpuWorkloadOperator against a real API server, Job controller and scheduler: how a Job runs, ends and is let go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client
from structlog.testing import capture_logs

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.cluster.api.pods import list_run_pods
from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL
from airflow_gpu_provider.errors import ObjectRejected, PodDeadline, PodFailed, PodPreempted, TaskKilled
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from gpu_sandbox.sandbox import Sandbox
from sandbox.tests.node_checks.checks import UNTIL_TOLD, end
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.gpu_tasks import running
from tests.sandbox.running import (
    airflow_says,
    context_of,
    copy_of,
    eventually,
    line_of,
    lines_of,
    run,
    run_and_act,
    told_to_stop,
)
from tests.sandbox.ways import BLOCKING_BY_DAY, BOTH_WAYS, DEFERRED_BY_DAY

FOREVER = "trap 'exit 143' TERM; while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A pool with two nodes of one GPU."""
    return with_nodes(eks_pool(gpu_sandbox, "workloads", max_nodes=2), nodes=2)


pytestmark = pytest.mark.usefixtures("api", "now")


def a_job(script: str, pods: int = 2, **spec: Any) -> dict[str, Any]:
    """Return an Indexed Job whose pods have one GPU each."""
    container = {
        "name": "train",
        "image": "busybox:1.36",
        "command": ["sh", "-c", script],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    indexed = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "backoffLimit": 0}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {**indexed, "template": template, **spec}}


def workload(pool: EksGpuPool, manifest: Any, **changes: Any) -> GpuWorkloadOperator:
    return GpuWorkloadOperator(task_id="train", gpu_pool=pool, manifest=manifest, **changes)


@BOTH_WAYS
def test_job_runs_with_all_its_pods_logs_and_is_deleted(
    pool: EksGpuPool, api: client.CoreV1Api, batch: client.BatchV1Api, deferrable: bool
) -> None:
    script = 'for n in 1 2 3; do echo "step $n of $JOB_COMPLETION_INDEX, $AIRFLOW_GPU_ATTEMPT"; done'
    task = workload(pool, a_job(script), deferrable=deferrable)
    context = context_of(task)
    _, lines = lines_of(lambda: run(task, context))
    for index in (0, 1):
        assert [lines.count(f"[pod {index}] step {n} of {index}, 1") for n in (1, 2, 3)] == [1, 1, 1]
    assert context["ti"].xcoms["workload_name"].startswith("train-")
    phases = [phase["phase"] for phase in context["ti"].xcoms["timeline"]]
    assert phases[-2:] == ["start", "ran"]
    eventually(lambda: not batch.list_namespaced_job("default").items)
    eventually(lambda: not api.list_namespaced_pod("default").items)


def lines_while_ending(do: Callable[[], Any], api: client.CoreV1Api, *begun: tuple[str, int]) -> list[str]:
    """Return the lines that it logs; each run of the container ends once its line was logged so often."""

    def end_each() -> None:
        for line, times in begun:
            eventually(partial(has_said, line, times))
            (pod,) = eventually(lambda: running(api, 1))
            end(api, pod.metadata.name, "train")

    def has_said(line: str, times: int) -> bool:
        return [line_of(entry) for entry in [*told]].count(line) >= times

    with capture_logs() as told:
        ending = threading.Thread(target=end_each)
        ending.start()
        do()
        ending.join()
    return [line_of(entry) for entry in told]


@DEFERRED_BY_DAY
def test_container_that_is_started_again_until_its_job_gives_up_has_failed(
    pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool
) -> None:
    """The Job controller deletes the pod then, which is no preemption; each run's lines come, and none is missing."""
    # It gives up at the second restart: at the first one, it might delete the pod before that has run again.
    script = f"trap 'exit 7' TERM; echo begins; {UNTIL_TOLD}; echo loss is NaN; exit 7"
    job = a_job(script, pods=1, backoffLimit=2)
    job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"

    def fails() -> None:
        with pytest.raises(PodFailed, match=r"exit code 7") as error:
            run(workload(pool, job, deferrable=deferrable, on_preemption="resume"))
        assert error.value.details["exit_code"] == 7

    lines = lines_while_ending(fails, api, ("[pod 0] begins", 1), ("[pod 0] begins", 2))
    assert lines.count("[pod 0] loss is NaN") >= 2, lines
    assert not [line for line in lines if "may be missing" in line]


@BLOCKING_BY_DAY
def test_error_is_of_the_pod_that_failed_first(pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool) -> None:
    script = """
        if [ "$JOB_COMPLETION_INDEX" = 1 ]; then sleep 2; echo loss is NaN; exit 3; fi
        trap 'exit 0' TERM; while :; do sleep 0.1; done
    """
    with pytest.raises(PodFailed, match=r"Pod 1: .*exit code 3(.|\n)*loss is NaN") as error:
        run(workload(pool, a_job(script), deferrable=deferrable))
    assert type(error.value) is PodFailed
    assert error.value.details["rank"] == "pod 1"
    assert error.value.details["exit_code"] == 3
    eventually(lambda: not api.list_namespaced_pod("default").items)


def test_what_its_own_controller_restarts_is_no_failure(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    first = f"touch /dev/shm/x; echo first run; {UNTIL_TOLD}; exit 1"
    script = f"[ -e /dev/shm/x ] && {{ echo second run; exit 0; }}; {first}"
    manifest = a_job(script, pods=1, backoffLimit=3)
    manifest["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    lines = lines_while_ending(lambda: run(workload(pool, manifest)), api, ("[pod 0] first run", 1))
    assert all(f"[pod 0] {which} run" in lines for which in ("first", "second"))


def test_pod_that_is_evicted_is_a_preemption_where_the_job_gives_up(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    policy = {"rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    manifest = a_job("trap 'exit 143' TERM; echo up; while :; do sleep 0.1; done", podFailurePolicy=policy)

    with pytest.raises(PodPreempted) as error:
        run_and_act(workload(pool, manifest), lambda: evict_one(api), once=("[pod 0] up", "[pod 1] up"))
    assert error.value.details["rank"].startswith("pod ")


def evict_one(api: client.CoreV1Api) -> None:
    name = eventually(lambda: running(api, 2))[0].metadata.name
    body = client.V1Eviction(metadata=client.V1ObjectMeta(name=name, namespace="default"))
    api.create_namespaced_pod_eviction(name, "default", body)


def test_preempted_workload_resumes_from_its_checkpoint(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    policy = {"rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    script = """
        echo "attempt $AIRFLOW_GPU_ATTEMPT at $AIRFLOW_GPU_CHECKPOINT"; [ "$AIRFLOW_GPU_ATTEMPT" = 2 ] && exit 0
        trap 'exit 143' TERM; while :; do sleep 0.1; done
    """
    taking = threading.Thread(target=lambda: evict_one(api))
    taking.start()
    try:
        _, lines = lines_of(
            lambda: run(workload(pool, a_job(script, podFailurePolicy=policy), checkpoint="s3://models/night"))
        )
    finally:
        taking.join()
    assert any(line.startswith("[pod 1] attempt 2 at s3://models/night/") for line in lines)


def test_deadline_of_the_run_ends_it(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    manifest = a_job("trap 'exit 0' TERM; while :; do sleep 0.1; done", activeDeadlineSeconds=3)
    with pytest.raises(PodDeadline):
        run(workload(pool, manifest))
    eventually(lambda: not api.list_namespaced_pod("default").items)


def test_what_a_run_left_is_deleted_with_its_pods(
    pool: EksGpuPool, api: client.CoreV1Api, batch: client.BatchV1Api
) -> None:
    def release() -> None:
        labels = eventually(lambda: running(api, 2))[0].metadata.labels
        reconciler = open_pool(pool, owner="tests", holder="a test", report=print)
        reconciler.delete_pods(list_run_pods(reconciler.api, pool.node_selector, labels[RUN_LABEL]))

    manifest = a_job("trap 'exit 143' TERM; echo up; while :; do sleep 0.1; done", backoffLimit=6)
    with pytest.raises(PodPreempted, match="was deleted before it had finished"):
        run_and_act(workload(pool, manifest), release, once=("[pod 0] up", "[pod 1] up"))
    assert batch.list_namespaced_job("default").items == []


def test_task_that_is_told_to_stop_deletes_it(
    pool: EksGpuPool, api: client.CoreV1Api, batch: client.BatchV1Api
) -> None:
    task = workload(pool, a_job(FOREVER), deferrable=False)
    with told_to_stop(task, lambda: running(api, 2)), pytest.raises(TaskKilled):
        task.execute(context_of(task))
    assert not batch.list_namespaced_job("default").items
    eventually(lambda: not api.list_namespaced_pod("default").items)


@pytest.mark.parametrize(("state", "is_deleted"), [("deferred", False), ("failed", True)])
def test_trigger_deletes_what_a_task_that_was_ended_has_run(
    pool: EksGpuPool, batch: client.BatchV1Api, monkeypatch: pytest.MonkeyPatch, state: str, is_deleted: bool
) -> None:
    task = workload(pool, a_job(FOREVER))
    context = context_of(task)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context)
    airflow_says(monkeypatch, states={context["run_id"]: {"train": state}}, unfinished_runs=1)
    trigger = copy_of(deferral.value.trigger)
    trigger.task_instance = context["ti"]
    asyncio.run(trigger.on_kill())
    assert bool(batch.list_namespaced_job("default").items) is not is_deleted


def test_trigger_that_died_leaves_no_job(pool: EksGpuPool, batch: client.BatchV1Api) -> None:
    task = workload(pool, a_job(FOREVER))
    context = context_of(task)
    with pytest.raises(TaskDeferred):
        task.execute(context)
    with pytest.raises(PodDeadline, match="triggerer"):
        workload(pool, a_job(FOREVER)).resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    assert not batch.list_namespaced_job("default").items


def test_worker_that_died_is_followed_by_one_that_goes_on_with_the_job(
    pool: EksGpuPool, batch: client.BatchV1Api
) -> None:
    task = workload(pool, a_job("echo hello"))
    context = context_of(task)
    with pytest.raises(TaskDeferred):
        task.execute(context)
    (first,) = batch.list_namespaced_job("default").items
    _, lines = lines_of(lambda: run(workload(pool, a_job("echo hello")), context))
    assert f"Continuing with Job {first.metadata.name}, which this try has already created." in lines
    assert [lines.count(f"[pod {index}] hello") for index in (0, 1)] == [1, 1]


def test_next_try_ends_the_job_of_the_one_before(pool: EksGpuPool, batch: client.BatchV1Api) -> None:
    task = workload(pool, a_job(FOREVER))
    with pytest.raises(TaskDeferred):
        task.execute(context_of(task))
    (first,) = batch.list_namespaced_job("default").items
    _, lines = lines_of(lambda: run(workload(pool, a_job("true")), try_number=2))
    assert f"Deleting Job {first.metadata.name} of an earlier try or attempt." in lines
    assert not [job for job in batch.list_namespaced_job("default").items if not job.metadata.deletion_timestamp]


def test_kept_job_keeps_its_pods_and_no_node_waits_for_them(pool: EksGpuPool, batch: client.BatchV1Api) -> None:
    run(workload(pool, a_job("echo done"), on_finish_action="keep_pod"))
    (job,) = batch.list_namespaced_job("default").items
    pods = client.CoreV1Api(batch.api_client).list_namespaced_pod("default").items
    assert len(pods) == 2
    assert all("airflow-gpu-provider/uncollected" not in pod.metadata.annotations for pod in pods)
    assert job.status.succeeded == 2


def test_kind_that_the_cluster_does_not_have(pool: EksGpuPool) -> None:
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "spec": {"pytorchReplicaSpecs": {"Worker": {"template": a_job("true")["spec"]["template"]}}},
    }
    with pytest.raises(ObjectRejected, match=r"kubeflow\.org/v1 PyTorchJob"):
        run(workload(pool, manifest))


def test_name_that_another_job_has(pool: EksGpuPool, batch: client.BatchV1Api) -> None:
    manifest = {**a_job("true", pods=1), "metadata": {"name": "taken"}}
    batch.create_namespaced_job("default", manifest)
    with pytest.raises(PodFailed, match="A Job named taken already exists in default: it belongs to another task"):
        run(workload(pool, manifest))
    assert batch.read_namespaced_job("taken", "default").metadata.deletion_timestamp is None
