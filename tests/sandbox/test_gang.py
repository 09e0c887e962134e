"""GpuPodOperator(nodes=N) against a real API server, Job controller and scheduler: how a gang runs, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client
from structlog.testing import capture_logs

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.errors import (
    AdmissionDenied,
    GangHung,
    PodDeadline,
    PodFailed,
    PodPreempted,
    ResourceQuotaExceeded,
    TaskKilled,
)
from airflow_gpu_provider.training.wait.gang_wait import GangWait
from airflow_gpu_provider.training.wait.pod_wait import PodWait
from gpu_sandbox.sandbox import Sandbox
from sandbox.tests.node_checks.checks import UNTIL_TOLD, end, log_of
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.gpu_tasks import gang, running
from tests.sandbox.running import (
    airflow_says,
    context_of,
    copy_of,
    eventually,
    line_of,
    lines_of,
    run,
    told_to_stop,
)
from tests.sandbox.ways import BLOCKING_BY_DAY, BOTH_WAYS, DEFERRED_BY_DAY

FOREVER = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A pool with two nodes of one GPU."""
    return with_nodes(eks_pool(gpu_sandbox, "gangs", max_nodes=2), nodes=2)


pytestmark = pytest.mark.usefixtures("api", "now")


def test_in_a_queue_nobody_but_kueue_admits_it_and_without_kueue_its_place_is_unknown(
    pool: EksGpuPool, api: client.CoreV1Api, batch: client.BatchV1Api
) -> None:
    with capture_logs() as told:
        task = threading.Thread(target=lambda: run(gang(pool, "echo up", queue_name="team-a", deferrable=False)))
        task.start()
        unknown = "waits to be admitted: its place in queue team-a is unknown"
        eventually(lambda: any(unknown in str(each["event"]) for each in [*told]))
        (job,) = batch.list_namespaced_job("default", label_selector="kueue.x-k8s.io/queue-name=team-a").items
        assert job.spec.suspend
        assert not api.list_namespaced_pod("default").items
        batch.patch_namespaced_job(job.metadata.name, "default", {"spec": {"suspend": False}})  # as Kueue does
        task.join(timeout=600)
    lines = [line_of(each) for each in told]
    assert [lines.count(f"[rank {rank}] up") for rank in (0, 1)] == [1, 1]


@BOTH_WAYS
def test_both_ranks_run_and_rank_0_has_the_result(
    pool: EksGpuPool, api: client.CoreV1Api, batch: client.BatchV1Api, deferrable: bool
) -> None:
    script = """
        echo "I am $PET_NODE_RANK of $PET_NNODES, $AIRFLOW_GPU_NODE_RANK at $MASTER_ADDR:$MASTER_PORT"
        echo '{"rank": '$AIRFLOW_GPU_NODE_RANK'}' > /airflow/xcom/return.json
    """
    task = gang(pool, script, do_xcom_push=True, deferrable=deferrable)
    context = context_of(task)
    result, lines = lines_of(lambda: run(task, context))
    assert result == {"rank": 0}
    job = context["ti"].xcoms["job_name"]
    for rank in (0, 1):
        assert lines.count(f"[rank {rank}] I am {rank} of 2, {rank} at {job}-0.{job}:29500") == 1
    phases = [phase["phase"] for phase in context["ti"].xcoms["timeline"]]
    assert phases == ["waited for its turn", "waited for a node", "start", "ran"]
    eventually(lambda: not batch.list_namespaced_job("default").items)
    eventually(lambda: not api.list_namespaced_pod("default").items)
    eventually(lambda: job not in {service.metadata.name for service in api.list_namespaced_service("default").items})


@DEFERRED_BY_DAY
def test_nccl_over_tcp_is_told_once_where_the_machines_have_better(
    pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool
) -> None:
    def call_them(instance_type: str) -> None:
        for node in api.list_node(label_selector=f"airflow-gpu-provider/pool={pool.name}").items:
            labels = {"node.kubernetes.io/instance-type": instance_type}
            api.patch_node(node.metadata.name, {"metadata": {"labels": labels}})

    script = f"{UNTIL_TOLD}; echo 'train:1:1 [0] NCCL INFO Using network Socket'; sleep 3"
    task = gang(pool, script, deferrable=deferrable)
    context = context_of(task)
    try:
        with capture_logs() as told:
            training = threading.Thread(target=lambda: run(task, context))
            training.start()
            pods = eventually(lambda: running(api, 2))
            call_them("p4d.24xlarge")  # its pods require the pool's type, and are bound by now
            for pod in pods:
                end(api, pod.metadata.name)
            training.join(timeout=600)
    finally:
        call_them("g6.xlarge")
    (said,) = [line for line in map(line_of, told) if "NET/Socket" in line]
    assert "p4d.24xlarge has up to 4 EFA interfaces" in said
    assert context["ti"].xcoms["advice"] == [said]


@DEFERRED_BY_DAY
def test_error_is_of_the_rank_that_failed_first_and_all_logs_are_whole(
    pool: EksGpuPool, api: client.CoreV1Api, batch: client.BatchV1Api, deferrable: bool
) -> None:
    script = """
        if [ "$AIRFLOW_GPU_NODE_RANK" = 1 ]; then UNTIL_TOLD; echo loss is NaN; exit 3; fi
        trap 'sleep 5; echo stopped in good order; exit 0' TERM
        n=0; while :; do n=$((n+1)); [ $n -le 20 ] && echo "step $n"; sleep 0.1; done
    """
    task = gang(pool, script.replace("UNTIL_TOLD", UNTIL_TOLD), deferrable=deferrable)

    def fail_once_the_other_has_stepped() -> None:
        pods = {pod.metadata.name.rsplit("-", 2)[1]: pod for pod in eventually(lambda: running(api, 2))}
        eventually(lambda: "step 20" in log_of(api, pods["0"].metadata.name))
        end(api, pods["1"].metadata.name)

    failing = threading.Thread(target=fail_once_the_other_has_stepped)
    failing.start()
    with pytest.raises(PodFailed, match=r"Rank 1: .*exit code 3(.|\n)*loss is NaN") as error, capture_logs() as told:
        run(task)
    failing.join()
    assert type(error.value) is PodFailed
    assert error.value.details["rank"] == 1
    assert error.value.details["exit_code"] == 3
    lines = [line_of(entry) for entry in told]
    assert [lines.count(f"[rank 0] step {n}") for n in range(1, 21)] == [1] * 20
    assert lines.count("[rank 1] loss is NaN") == 1
    assert lines.count("[rank 0] stopped in good order") == 1
    eventually(lambda: not batch.list_namespaced_job("default").items)
    eventually(lambda: not api.list_namespaced_pod("default").items)


@pytest.mark.parametrize(
    ("how", "deferrable"),
    [
        pytest.param("evicted", False, marks=pytest.mark.nightly),
        ("evicted", True),
        ("deleted", False),
        pytest.param("deleted", True, marks=pytest.mark.nightly),
    ],
    ids=["evicted-blocking", "evicted-deferred", "deleted-blocking", "deleted-deferred"],
)
def test_rank_that_is_taken_away_is_a_preemption_of_all(
    pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool, how: str
) -> None:
    script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"
    taking = threading.Thread(target=lambda: take(api, how))
    taking.start()
    try:
        with pytest.raises(PodPreempted, match="Rank 1: ") as error:
            run(gang(pool, script, deferrable=deferrable))
    finally:
        taking.join()
    assert error.value.details["rank"] == 1
    eventually(lambda: not api.list_namespaced_pod("default").items)


def take(api: client.CoreV1Api, how: str) -> None:
    """Have rank 1 taken away when both run."""
    pods = eventually(lambda: running(api, 2))
    name = next(pod.metadata.name for pod in pods if pod.metadata.name.rsplit("-", 2)[1] == "1")
    if how == "deleted":
        api.delete_namespaced_pod(name, "default")
        return
    body = client.V1Eviction(metadata=client.V1ObjectMeta(name=name, namespace="default"))
    api.create_namespaced_pod_eviction(name, "default", body)


@DEFERRED_BY_DAY
def test_gang_of_which_no_rank_prints_is_ended_where_that_is_wanted(
    pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool
) -> None:
    script = "trap 'exit 0' TERM; echo rank $AIRFLOW_GPU_NODE_RANK waits for all; while :; do sleep 0.1; done"
    with pytest.raises(GangHung, match="rank 1: rank 1 waits for all") as error:
        run(gang(pool, script, deferrable=deferrable, hang_timeout=15))
    assert error.value.details["last_lines"] == {"0": "rank 0 waits for all", "1": "rank 1 waits for all"}
    eventually(lambda: not api.list_namespaced_pod("default").items)


@BLOCKING_BY_DAY
def test_log_of_chosen_ranks(pool: EksGpuPool, deferrable: bool) -> None:
    _, lines = lines_of(lambda: run(gang(pool, "echo hello", deferrable=deferrable, log_ranks=1)))
    assert [line for line in lines if "hello" in line] == ["[rank 1] hello"]


# -- kills and tries -------------------------------------------------------------------------------------------------


def test_task_that_is_told_to_stop_deletes_the_gang(
    pool: EksGpuPool, api: client.CoreV1Api, batch: client.BatchV1Api
) -> None:
    task = gang(pool, FOREVER, deferrable=False)
    with told_to_stop(task, lambda: running(api, 2)), pytest.raises(TaskKilled):
        task.execute(context_of(task))
    assert not batch.list_namespaced_job("default").items
    eventually(lambda: not api.list_namespaced_pod("default").items)


@pytest.mark.parametrize(("state", "is_deleted"), [("deferred", False), ("failed", True), (None, True)])
def test_trigger_deletes_the_gang_of_a_task_that_was_ended(
    pool: EksGpuPool, batch: client.BatchV1Api, monkeypatch: pytest.MonkeyPatch, state: str | None, is_deleted: bool
) -> None:
    task = gang(pool, FOREVER)
    context = context_of(task)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context)
    airflow_says(monkeypatch, states={context["run_id"]: {"train": state} if state else {}}, unfinished_runs=1)
    trigger = copy_of(deferral.value.trigger)
    trigger.task_instance = context["ti"]
    asyncio.run(trigger.on_kill())
    assert bool(batch.list_namespaced_job("default").items) is not is_deleted


def test_trigger_that_died_leaves_no_gang(pool: EksGpuPool, batch: client.BatchV1Api) -> None:
    task = gang(pool, FOREVER)
    context = context_of(task)
    with pytest.raises(TaskDeferred):
        task.execute(context)
    with pytest.raises(PodDeadline, match="triggerer"):
        gang(pool, "true").resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    assert not batch.list_namespaced_job("default").items


def test_worker_that_died_is_followed_by_one_that_goes_on_with_the_gang(
    pool: EksGpuPool, batch: client.BatchV1Api
) -> None:
    task = gang(pool, "echo hello")
    context = context_of(task)
    with pytest.raises(TaskDeferred):
        task.execute(context)
    (first,) = batch.list_namespaced_job("default").items
    again = gang(pool, "echo hello")
    _, lines = lines_of(lambda: run(again, context))
    assert f"Continuing with Job {first.metadata.name}, which this try has already created." in lines
    assert [lines.count(f"[rank {rank}] hello") for rank in (0, 1)] == [1, 1]


def test_next_try_ends_the_gang_of_the_one_before(pool: EksGpuPool, batch: client.BatchV1Api) -> None:
    task = gang(pool, FOREVER)
    with pytest.raises(TaskDeferred):
        task.execute(context_of(task))
    (first,) = batch.list_namespaced_job("default").items
    _, lines = lines_of(lambda: run(gang(pool, "true"), try_number=2))
    assert f"Deleting Job {first.metadata.name} of an earlier try or attempt." in lines
    assert not [job for job in batch.list_namespaced_job("default").items if not job.metadata.deletion_timestamp]


@pytest.mark.parametrize(
    ("kind", "deferrable"),
    [
        pytest.param("ResourceQuota", False, marks=pytest.mark.nightly),
        ("ResourceQuota", True),
        ("LimitRange", False),
        pytest.param("LimitRange", True, marks=pytest.mark.nightly),
    ],
    ids=["ResourceQuota-blocking", "ResourceQuota-deferred", "LimitRange-blocking", "LimitRange-deferred"],
)
def test_pods_that_a_quota_or_a_policy_refuses_are_told_and_end_it_typed(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch, deferrable: bool, kind: str
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.training.wait.start_advice.AT_LEAST", timedelta(seconds=3))
    # The refusal's time runs out, and not that of what comes before it.
    monkeypatch.setattr(GangWait, "_admission_deadline", lambda wait, *_: wait.deadline)
    monkeypatch.setattr(PodWait, "_schedule_deadline", lambda wait, *_: wait.deadline)
    meta = client.V1ObjectMeta(name="one-gpu")
    if kind == "ResourceQuota":
        spec = client.V1ResourceQuotaSpec(hard={"requests.nvidia.com/gpu": "1"})
        api.create_namespaced_resource_quota("default", client.V1ResourceQuota(metadata=meta, spec=spec))
        # Before its controller has looked, it refuses everything in other words.
        eventually(lambda: api.read_namespaced_resource_quota("one-gpu", "default").status.hard)
        remove, error, said = (
            api.delete_namespaced_resource_quota,
            ResourceQuotaExceeded,
            "ResourceQuota one-gpu is exhausted",
        )
    else:
        limit = client.V1LimitRangeItem(type="Container", max={"nvidia.com/gpu": "0"})
        body = client.V1LimitRange(metadata=meta, spec=client.V1LimitRangeSpec(limits=[limit]))
        api.create_namespaced_limit_range("default", body)
        remove, error, said = (
            api.delete_namespaced_limit_range,
            AdmissionDenied,
            "maximum nvidia.com/gpu usage per Container",
        )
    try:
        with pytest.raises(error, match=said), capture_logs() as told:
            run(gang(pool, FOREVER, schedule_timeout_seconds=5, deferrable=deferrable))
    finally:
        remove("one-gpu", "default")
    lines = [line_of(entry) for entry in told]
    assert any("the API server refuses its pods: " in line and said in line for line in lines)
    eventually(lambda: not api.list_namespaced_pod("default").items)


@DEFERRED_BY_DAY
def test_gang_has_a_deadline(pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool) -> None:
    with pytest.raises(PodDeadline) as error:
        run(gang(pool, FOREVER, execution_timeout=timedelta(seconds=12), deferrable=deferrable))
    assert "Job train" in error.value.what or "Rank" in error.value.what
    eventually(lambda: not api.list_namespaced_pod("default").items)
