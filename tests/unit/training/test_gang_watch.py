"""What the watch of a gang asks of an API server, and what it concludes, however many ranks there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from airflow_gpu_provider.cluster.api import informer
from airflow_gpu_provider.cluster.api.informer import Change, Feed
from airflow_gpu_provider.cluster.api.watched import gang_pods, gangs, pool_nodes
from airflow_gpu_provider.errors import PodDeadline, PodFailed, PodPreempted, PodUnschedulable
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.wait.records import Narrator, Progress
from airflow_gpu_provider.training.wait.gang_wait import GangWait
from airflow_gpu_provider.training.watch.gang_view import GangView, OneGang
from airflow_gpu_provider.training.watch.watch_loop import watch
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeAsyncApi
from tests.unit.training.test_pod_placement import a_pool
from tests.unit.training.test_pod_watch import raw_node
from tests.unit.training.test_pod_watch_orders import DONE_WITHIN

POOL = replace(a_pool(), max_nodes=64)
JOB = "apis/batch/v1/namespaces/ml/jobs/train"
WORKLOADS = "apis/kueue.x-k8s.io/v1beta2/namespaces/ml/workloads"


class Cluster:
    """A gang of played pods, all of which run."""

    def __init__(self, ranks: int) -> None:
        self.server = ApiServer()
        self.server.serve("kueue.x-k8s.io", "v1beta2")
        self.lines: list[str] = []
        self.ranks = ranks
        self.queue = ""
        labels = {POOL_LABEL: POOL.name, "airflow-gpu-provider/gang": str(ranks)}
        meta = {"namespace": "ml", "name": "train", "uid": "j1", "labels": labels}
        meta = {**meta, "creationTimestamp": stamp(0)}
        self.server.put(JOB, {"metadata": meta, "spec": {}})
        for rank in range(ranks):
            node = raw_node(f"n{rank}")
            node["metadata"]["labels"] = {POOL_LABEL: POOL.name}
            self.server.put(f"api/v1/nodes/n{rank}", node)
            self.set_rank(rank, {"running": {"startedAt": stamp(2)}}, labels=labels)

    def set_rank(self, rank: int, state: dict[str, Any], **changes: Any) -> None:
        path = f"api/v1/namespaces/ml/pods/train-{rank}-abcde"
        if "labels" in changes:
            meta = {
                "namespace": "ml",
                "name": f"train-{rank}-abcde",
                "uid": f"u{rank}",
                "creationTimestamp": stamp(1),
                "labels": {**changes["labels"], "batch.kubernetes.io/job-name": "train"},
                "annotations": {"batch.kubernetes.io/job-completion-index": str(rank)},
                "ownerReferences": [{"kind": "Job", "uid": "j1"}],
            }
            scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(1)}
            pod = {"metadata": meta, "spec": {"nodeName": f"n{rank}"}, "status": {"conditions": [scheduled]}}
        else:
            pod = deepcopy(self.server.read(path))
        pod["status"] |= {"phase": "Running", "containerStatuses": [{"name": "base", "state": state, "image": "i"}]}
        self.server.put(path, pod)

    def suspend(self) -> None:
        self.server.put(JOB, {**self.server.read(JOB), "spec": {"suspend": True}})

    def wait(self, now: datetime) -> GangWait:
        return GangWait(
            namespace="ml",
            name="train",
            uid="j1",
            nodes=self.ranks,
            queue=self.queue,
            base_container="base",
            started=now,
            schedule_seconds=600,
            start_seconds=600,
            deadline=now + timedelta(hours=5),
        )

    async def watch(self) -> Progress:
        now = datetime.now(UTC)
        narrator = Narrator(self.lines.append, started=now)
        kind = OneGang(self.wait(now))
        return await watch(kind, POOL, owner="o", narrator=narrator, open_access=cast("Any", None))

    async def says(self, text: str) -> None:
        while not any(text in line for line in self.lines):  # noqa: ASYNC110 - what is said tells of no event
            await asyncio.sleep(0.001)


def stamp(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


START = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1)


def run(
    ranks: int, what: Callable[[Cluster], Any], queue: str = "", *, suspended: bool = False, may_read: bool = False
) -> tuple[Cluster, Progress]:
    async def go() -> tuple[Cluster, Progress]:
        cluster = Cluster(ranks)
        cluster.queue = queue
        if suspended:
            cluster.suspend()
        if not may_read:
            cluster.server.refuse(path=WORKLOADS)

        async def opened(open_access: Any) -> Any:
            return FakeAsyncApi(cluster.server)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(informer, "_open", opened)
            async with asyncio.timeout(DONE_WITHIN):
                watch = asyncio.create_task(cluster.watch())
                await what(cluster)
                return cluster, await watch

    return asyncio.run(go())


def ended(code: int, at: float = 30) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "startedAt": stamp(2), "finishedAt": stamp(at)}}


def test_64_ranks_cost_the_requests_of_one_pod_and_of_its_job() -> None:
    async def what(cluster: Cluster) -> None:
        await cluster.says("64 of 64 ranks run")
        for rank in range(64):
            cluster.set_rank(rank, ended(0))

    cluster, progress = run(64, what)
    assert progress.done
    # A pod's wait lists and watches three collections: pods, events, nodes.
    assert len(cluster.server.requests) <= 2 * 6
    assert len(cluster.lines) <= 5, cluster.lines


def test_gang_is_late_for_its_nodes_only_once_they_are_known() -> None:
    """They have a watch of their own, which may be later than the Jobs': there may be as many as it needs."""
    cluster = Cluster(2)
    cluster.suspend()
    (nodes,) = pool_nodes(POOL.node_selector)
    long_ago, now = START - timedelta(hours=1), datetime.now(UTC)
    meta = {**cluster.server.read(JOB)["metadata"], "creationTimestamp": f"{long_ago:%Y-%m-%dT%H:%M:%SZ}"}
    job = {"metadata": meta, "spec": {"suspend": True}}
    wait = cluster.wait(now)
    view = GangView(wait, POOL, cast("Feed", None))
    view.take([Change(resource=gangs("ml"), kind="present", raw=job)], now)
    assert wait.step(view.snapshot(now), now).error is None
    view.take([Change(resource=nodes, kind="synced")], now)
    assert type(wait.step(view.snapshot(now), now).error) is PodDeadline


def test_the_first_failure_is_found_among_many() -> None:
    async def what(cluster: Cluster) -> None:
        await cluster.says("8 of 8 ranks run")
        for rank in range(8):
            cluster.set_rank(rank, ended(3, at=29) if rank == 5 else ended(1))

    _, progress = run(8, what)
    assert type(progress.error) is PodFailed
    assert progress.error.details["rank"] == 5
    assert progress.error.details["exit_code"] == 3


def test_gang_that_kueue_takes_back_is_preempted_also_where_its_workloads_may_not_be_read() -> None:
    async def what(cluster: Cluster) -> None:
        await cluster.says("2 of 2 ranks run")
        cluster.suspend()

    _, progress = run(2, what, queue="team-a")
    assert type(progress.error) is PodPreempted
    assert "was evicted from queue team-a: it is suspended again" in str(progress.error)


def test_gang_that_waits_says_that_its_place_is_unknown_and_is_not_preempted() -> None:
    async def what(cluster: Cluster) -> None:
        await cluster.says("its place in queue team-a is unknown: The cluster denies permission to list")
        cluster.server.put(JOB, {**cluster.server.read(JOB), "spec": {}})
        await cluster.says("2 of 2 ranks run")
        for rank in range(2):
            cluster.set_rank(rank, ended(0))

    cluster, progress = run(2, what, queue="team-a", suspended=True)
    assert progress.done
    assert not any("PermissionDenied" in line for line in cluster.lines), cluster.lines


def evicted(*, admitted_before: bool) -> dict[str, Any]:
    said = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "For one that is more important."}
    meta = {"name": "job-train", "uid": "w1", "creationTimestamp": stamp(0), "ownerReferences": [{"uid": "j1"}]}
    admitted = [{"type": "Admitted", "status": "False", "reason": "NoReservation"}] if admitted_before else []
    return {"metadata": meta, "spec": {"queueName": "team-a"}, "status": {"conditions": [said, *admitted]}}


def test_gang_that_kueue_took_back_while_nobody_looked_is_preempted_and_one_that_never_began_is_not() -> None:
    async def what(cluster: Cluster) -> None:
        cluster.server.put(f"{WORKLOADS}/job-train", evicted(admitted_before=False))
        await cluster.says("1st of 1 in queue team-a")
        cluster.server.put(f"{WORKLOADS}/job-train", evicted(admitted_before=True))

    _, progress = run(2, what, queue="team-a", suspended=True, may_read=True)
    assert type(progress.error) is PodPreempted
    assert "queue team-a: Preempted: For one that is more important" in str(progress.error)


@pytest.mark.parametrize(
    ("said", "zone", "passed_over"),
    [
        ('0/2 nodes are available: persistentvolumeclaim "none" not found.', "a", True),
        ("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", "a", False),
        ('0/2 nodes are available: persistentvolumeclaim "none" not found.', "b", False),  # no node of its zone yet
    ],
)
def test_rank_that_free_nodes_of_its_zone_do_not_take_is_no_matter_of_capacity(
    said: str, zone: str, passed_over: bool
) -> None:
    now = START + timedelta(seconds=620)
    wait = GangWait(
        namespace="ml",
        name="train",
        uid="j1",
        nodes=2,
        base_container="base",
        started=START,
        schedule_seconds=600,
        start_seconds=600,
        deadline=now + timedelta(hours=5),
    )
    cluster = Cluster(2)
    pod = deepcopy(cluster.server.read("api/v1/namespaces/ml/pods/train-0-abcde"))
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    pod["spec"] = {"nodeSelector": {"zone": zone}}
    pod["status"] = {"phase": "Pending", "conditions": [condition]}
    node = raw_node("n1")
    node["metadata"]["labels"] = {POOL_LABEL: POOL.name, "zone": "a"}
    (nodes,) = pool_nodes(POOL.node_selector)
    view = GangView(wait, POOL, Feed(cast("Any", None)))
    told = {gangs("ml"): cluster.server.read(JOB), nodes: node, gang_pods("ml"): pod}
    view.take([Change(resource=resource, kind="present", raw=raw) for resource, raw in told.items()], now)
    assert view.snapshot(now).pods[0].passed_over is passed_over
    error = wait.step(view.snapshot(now), now).error
    assert type(error) is (PodUnschedulable if passed_over else PodDeadline)
    assert not passed_over or "Create the claim, or correct its name" in str(error)


def test_rank_whose_end_is_seen_only_with_the_kubelets_last_delete_was_deleted_before_it() -> None:
    cluster = Cluster(1)
    view = GangView(cluster.wait(START), POOL, Feed(cast("Any", None)))
    asked = deepcopy(cluster.server.read("api/v1/namespaces/ml/pods/train-0-abcde"))
    asked["metadata"] |= {"deletionTimestamp": stamp(60), "deletionGracePeriodSeconds": 30}
    last = deepcopy(asked)
    last["metadata"] |= {"deletionTimestamp": stamp(37), "deletionGracePeriodSeconds": 0}
    last["status"]["containerStatuses"] = [{"name": "base", "state": ended(0, at=36)}]
    view.take([Change(resource=gang_pods("ml"), kind="present", raw=raw) for raw in (asked, last)], START)
    pod = view.snapshot(START).pods[0].pod
    assert pod is not None
    assert pod.deletion_asked_at == START + timedelta(seconds=30)
