"""GpuPodOperator(nodes=N) while something is away: a node, a rank, the triggerer, Kubernetes' own processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from typing import Any

import boto3
import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client
from structlog.testing import capture_logs

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.cluster.model.pod_log import POSITIONS
from airflow_gpu_provider.errors import (
    PodPreempted,
)
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from airflow_gpu_provider.training.log.followed_log import REPEATED
from gpu_sandbox.sandbox import Sandbox
from sandbox.tests.node_checks.checks import UNTIL_TOLD, end
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.gpu_tasks import gang, running
from tests.sandbox.running import (
    context_of,
    copy_of,
    eventually,
    first_event,
    line_of,
    lines_of,
    resumption,
    run,
    watched_until,
)
from tests.sandbox.ways import DEFERRED_BY_DAY


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A pool with two nodes of one GPU."""
    return with_nodes(eks_pool(gpu_sandbox, "gang-losses", max_nodes=2), nodes=2)


pytestmark = pytest.mark.usefixtures("api", "now")


@DEFERRED_BY_DAY
def test_lost_node_ends_the_others_soon_and_the_next_gang_has_a_new_one(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY", 1.0)
    script = """
        trap 'date "+rank ended at %s"; exit 0' TERM
        [ "$AIRFLOW_GPU_ATTEMPT" = 2 ] && exec echo all well
        while :; do sleep 0.1; done
    """
    lost_at: list[float] = []

    def lose() -> None:
        pods = eventually(lambda: running(api, 2))
        name = next(pod.spec.node_name for pod in pods if pod.metadata.name.rsplit("-", 2)[1] == "1")
        machine = api.read_node(name).spec.provider_id.rpartition("/")[2]
        lost_at.append(time.time())
        boto3.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=machine, ShouldDecrementDesiredCapacity=True
        )

    thread = threading.Thread(target=lose)
    thread.start()
    task = gang(pool, script, on_preemption="resume", deferrable=deferrable)
    context = context_of(task)
    try:
        _, lines = lines_of(lambda: run(task, context))
    finally:
        thread.join()
    assert [lines.count(f"[rank {rank}] all well") for rank in (0, 1)] == [1, 1]
    attempts = {phase["attempt"] for phase in context["ti"].xcoms["timeline"]}
    assert attempts == {1, 2}
    (said,) = [line for line in lines if line.startswith("[rank 0] rank ended at")]
    # Ten seconds, where the machine has nothing else to do; Kubernetes by itself takes more than five minutes.
    assert float(said.rpartition(" ")[2]) - lost_at[0] < 120


def test_two_gangs_on_two_nodes_take_turns(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY", 1.0)
    ends: list[Any] = []

    def one(number: int) -> None:
        ends.append(run(gang(pool, "sleep 1", task_id=f"train{number}", deferrable=False)))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == [None] * 3


def test_gang_that_no_block_covers_brings_its_nodes_and_takes_them_along(
    gpu_sandbox: Sandbox, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY", 1.0)
    alone = with_nodes(eks_pool(gpu_sandbox, "gang-alone", max_nodes=2))
    run(ScaleDownSensor(task_id="zero", gpu_pool=alone))
    _, lines = lines_of(lambda: run(gang(alone, "echo hello")))
    assert [lines.count(f"[rank {rank}] hello") for rank in (0, 1)] == [1, 1]
    assert not list_demand(api.api_client, alone.name)
    eventually(lambda: not api.list_node(label_selector=f"{POOL_LABEL}={alone.name}").items)


def test_next_triggerer_goes_on_with_all_ranks_logs(
    pool: EksGpuPool, api: client.CoreV1Api, batch: client.BatchV1Api
) -> None:
    task = gang(pool, "n=0; until [ -e /tmp/end ]; do echo line $n; n=$((n+1)); sleep 0.1; done")
    context = context_of(task)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context)

    def positions() -> dict[str, Any]:
        (job,) = batch.list_namespaced_job("default").items
        return dict(json.loads(job.metadata.annotations.get(POSITIONS, "{}")))

    def are_saved() -> bool:
        """Each rank's first lines are; a rank that has said nothing yet has a place too, which is the beginning."""
        saved = [place for containers in positions().values() for place in containers.values()]
        return len(saved) == 2 and all(place[-1] for place in saved)

    _, before = lines_of(lambda: asyncio.run(watched_until(deferral.value, are_saved)))

    def end_once_it_goes_on(told: list[Any]) -> None:
        eventually(lambda: any(REPEATED in str(each) for each in [*told]))
        for pod in running(api, 2):
            end(api, pod.metadata.name)

    with capture_logs() as told:
        ending = threading.Thread(target=end_once_it_goes_on, args=(told,))
        ending.start()
        event = asyncio.run(first_event(copy_of(deferral.value.trigger)))
        ending.join()
    after = [line_of(entry) for entry in told]
    _, rest = lines_of(resumption(task, deferral.value, context, event))
    for rank in (0, 1):
        numbers = [
            [int(line.rsplit(" ")[-1]) for line in part if f"[rank {rank}] line" in line]
            for part in (before, [*after, *rest])
        ]
        assert {*numbers[0], *numbers[1]} == {*range(numbers[1][-1] + 1)}
        assert numbers[1] == [*range(numbers[1][0], numbers[1][-1] + 1)]
        assert 0 < numbers[1][0] <= len(numbers[0])
    assert REPEATED in after


def test_rank_that_is_deleted_while_no_triggerer_runs_is_lost(
    pool: EksGpuPool, api: client.CoreV1Api, batch: client.BatchV1Api
) -> None:
    """Nobody has seen its pod go, and its peer waits for it: without the Job's word the gang would hold its nodes."""
    peer = "[ $AIRFLOW_GPU_NODE_RANK = 0 ] && trap 'exit 143' TERM"
    task = gang(pool, f"{peer}; echo runs; while :; do sleep 0.1; done")
    context = context_of(task)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context)
    asyncio.run(watched_until(deferral.value, lambda: running(api, 2)))
    (lost,) = api.list_namespaced_pod("default", label_selector="batch.kubernetes.io/job-completion-index=1").items
    api.delete_namespaced_pod(lost.metadata.name, "default", grace_period_seconds=1)
    eventually(lambda: batch.list_namespaced_job("default").items[0].status.failed_indexes == "1")
    eventually(lambda: len(api.list_namespaced_pod("default").items) == 1)
    event = asyncio.run(first_event(copy_of(deferral.value.trigger)))
    with pytest.raises(PodPreempted, match="was deleted before it had finished") as error:
        resumption(task, deferral.value, context, event)()
    assert error.value.details["rank"] == 1


def test_job_controller_may_be_away_for_a_while(pool: EksGpuPool, gpu_sandbox: Sandbox) -> None:
    controller = gpu_sandbox.control_plane.pids()["kube-controller-manager"]
    os.kill(controller, signal.SIGSTOP)
    goes_on = threading.Timer(5, os.kill, (controller, signal.SIGCONT))
    goes_on.start()
    try:
        _, lines = lines_of(lambda: run(gang(pool, "echo hello")))
    finally:
        goes_on.join()
    assert [lines.count(f"[rank {rank}] hello") for rank in (0, 1)] == [1, 1]


@DEFERRED_BY_DAY
def test_api_server_may_restart_meanwhile(
    pool: EksGpuPool, api: client.CoreV1Api, gpu_sandbox: Sandbox, deferrable: bool
) -> None:
    def restart_while_they_run() -> None:
        pods = eventually(lambda: running(api, 2))
        gpu_sandbox.restart_apiserver(down_seconds=3)
        for pod in pods:
            end(api, pod.metadata.name)

    thread = threading.Thread(target=restart_while_they_run)
    thread.start()
    _, lines = lines_of(lambda: run(gang(pool, f"{UNTIL_TOLD}; echo hello", deferrable=deferrable)))
    thread.join()
    assert [lines.count(f"[rank {rank}] hello") for rank in (0, 1)] == [1, 1]
