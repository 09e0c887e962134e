"""Admission of gangs: the oldest first, when all of its nodes are free in one zone; never two that hold half each."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.model.node import ZONE_LABEL
from airflow_gpu_provider.cluster.model.pool_pod import GANG_LABEL, RUN_LABEL, Pod
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.apply.admission import WHOLE_WITHIN, GangQueue, admission
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.gang_jobs import ADMITTED_AT, GangJob
from airflow_gpu_provider.scaling.wait.pool_updates import PoolUpdates
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.unit.scaling.pools import EARLIER, NOW, ZONES, A, B, C, key, lease, machine, node, pod, pool, snapshot

ZONE_OF = dict(zip((A, B, C), ZONES, strict=True))
a, b, c = ZONES


def job(name: str = "one", size: int = 2, minutes: float = 0, **fields: Any) -> GangJob:
    usual: dict[str, Any] = {"namespace": "default", "uid": name, "run": key("run").hash, "wants": size}
    at = EARLIER + timedelta(minutes=minutes)
    return GangJob(name=name, size=size, created_at=at, **{**usual, **fields})


def there(*where: str, gpus: int = 1, pods: tuple[Pod, ...] = (), **how: Any) -> PoolSnapshot:
    machines = [machine(number, group) for number, group in enumerate(where, start=1)]
    nodes = [node(number, zone=ZONE_OF[group], gpus=gpus) for number, group in enumerate(where, start=1)]
    return snapshot(*machines, nodes=tuple(nodes), pods=pods, **{"leases": (lease(nodes=2),), **how})


def admitted(found: Any) -> dict[str, str]:
    return {each.name: zone for each, zone in found.admit}


def test_a_gang_starts_where_all_of_its_nodes_are_free_in_one_zone() -> None:
    assert admitted(admission(there(A, B, B), [job()])) == {"one": b}
    found = admission(there(A, B), [job()])
    assert found.is_empty
    assert found.why == {"default/one": f"needs 2 free nodes of one zone, {a} has 1, {b} has 1"}


def test_strictly_the_oldest_first() -> None:
    young, old = job("young", minutes=1), job("old", size=3)
    found = admission(there(A, A), [young, old])
    assert found.is_empty
    assert found.why["default/old"] == f"1st of 2 gangs in the queue; needs 3 free nodes of one zone, {a} has 2"
    assert "2nd of 2 gangs in the queue; needs 2 free nodes of one zone" in found.why["default/young"]
    assert "the older gangs come first" in found.why["default/young"]


def test_several_are_admitted_at_once_where_there_is_room() -> None:
    assert admitted(admission(there(A, A, B, B), [job(), job("two", minutes=1)])) == {"one": a, "two": b}
    assert admitted(admission(there(A, A, A), [job(), job("two", minutes=1)])) == {"one": a}


def test_nodes_that_an_admitted_gang_s_pods_will_use_are_taken() -> None:
    first = job(suspended=False, admitted_at=NOW, zone=a)
    assert admission(there(A, A), [first, job("two", minutes=1)]).is_empty
    half = (pod("one-0", on=1, job="one"), pod("one-1", job="one"))
    assert admission(there(A, A, A, pods=half), [first, job("two", minutes=1)]).is_empty
    assert admitted(admission(there(A, A, A, A, pods=half), [first, job("two", minutes=1)])) == {"two": a}


@pytest.mark.parametrize(
    "on_node",
    [{"phase": "Running"}, {"delete_at": NOW, "phase": "Running"}, {"phase": "Pending"}],
)
def test_a_node_whose_gpus_are_used_is_not_free(on_node: dict[str, Any]) -> None:
    assert admission(there(A, A, pods=(pod("other", on=1, **on_node),)), [job()]).is_empty


def test_a_node_with_enough_gpus_beside_another_pod_is_free() -> None:
    other = (pod("other", on=1, gpus=4),)
    assert admitted(admission(there(A, A, gpus=8, pods=other), [job(gpus=4)])) == {"one": a}
    assert admission(there(A, A, gpus=8, pods=other), [job(gpus=5)]).is_empty


def test_what_has_finished_uses_no_gpu() -> None:
    ended = pod("other", on=1, phase="Succeeded", uncollected=True, finished_at=NOW)
    assert admitted(admission(there(A, A, pods=(ended,)), [job()])) == {"one": a}


@pytest.mark.parametrize(
    "unfit",
    [
        {"ready": False},
        {"cordoned": True},
        {"bad_gpu": "Xid 79"},
        {"gpus": 0},
        {"labelled": False},
        {"leaving": "Karpenter disrupts it"},
    ],
)
def test_a_node_that_no_pod_can_use_is_not_free(unfit: dict[str, Any]) -> None:
    state = there(A, A)
    bad = replace(state.nodes[0], **unfit)
    assert admission(replace(state, nodes=(bad, state.nodes[1])), [job()]).is_empty


def test_a_node_that_is_about_to_go_is_not_free() -> None:
    assert admission(there(A, A), [job()], leaving=["node-1"]).is_empty


def test_an_older_pod_that_waits_takes_a_node_first() -> None:
    waits = pod("single", created_at=EARLIER - timedelta(minutes=1))
    found = admission(there(A, A, pods=(waits,)), [job()])
    assert found.is_empty
    assert "pod default/single, which is older, waits for a node too" in found.why["default/one"]
    assert admitted(admission(there(A, A, A, pods=(waits,)), [job()])) == {"one": a}
    younger = replace(waits, created_at=NOW)
    assert admitted(admission(there(A, A, pods=(younger,)), [job()])) == {"one": a}


def test_an_older_pod_that_fits_nowhere_keeps_no_gang_waiting() -> None:
    waits = pod("single", gpus=8, created_at=EARLIER - timedelta(minutes=1))
    assert admitted(admission(there(A, A, pods=(waits,)), [job()])) == {"one": a}


def test_a_gang_goes_where_its_demand_has_its_nodes() -> None:
    wants = lease(nodes=2, gang=2)
    state = there(A, A, A, B, B, leases=(wants,), pods=(pod("single", on=1),))
    assert admitted(admission(state, [job()])) == {"one": a}


def test_a_zone_that_the_user_gave_stays() -> None:
    own = job(node_selector=((ZONE_LABEL, b),), zone=b)
    assert admission(there(A, A, B), [own]).is_empty
    assert admitted(admission(there(A, A, B, B), [own])) == {"one": b}


def test_a_gang_that_kueue_admits_is_left_to_it() -> None:
    theirs = job(queued_elsewhere=True)
    found = admission(there(A, A), [theirs, job("two", minutes=1)])
    assert admitted(found) == {"two": a}
    running = replace(theirs, suspended=False)
    assert admission(there(A, A), [running, job("two", minutes=1)]).is_empty, "but its nodes are taken"


def test_a_gang_that_a_run_has_left_neither_starts_nor_keeps_others_waiting() -> None:
    left = job("left", run=key("gone").hash)
    found = admission(there(A, A), [left, job(minutes=1)])
    assert admitted(found) == {"one": a}
    assert found.why == {"default/left": "its run wants no nodes any more, and it does not start"}


def late(**fields: Any) -> GangJob:
    return job(suspended=False, zone=a, admitted_at=NOW - WHOLE_WITHIN, active=2, **fields)


def test_a_gang_that_is_not_whole_in_time_is_suspended_again() -> None:
    half = (pod("one-0", on=1, job="one"), pod("one-1", job="one"), pod("thief", on=2))
    assert admission(there(A, A, pods=half), [late()]).suspend == (late(),)
    soon = replace(late(), admitted_at=NOW - WHOLE_WITHIN / 2)
    assert admission(there(A, A, pods=half), [soon]).is_empty
    assert admission(there(A, A, pods=half), [replace(late(), queued_elsewhere=True)]).is_empty


def test_a_whole_gang_stays_and_so_does_one_that_has_failed() -> None:
    whole = (pod("one-0", on=1, job="one"), pod("one-1", on=2, job="one"))
    assert admission(there(A, A, pods=whole), [late()]).is_empty
    assert admission(there(A, A, pods=whole[:1]), [replace(late(), active=1, ended=1)]).is_empty
    assert admission(there(A, A), [replace(late(), active=0, wants=0)]).is_empty, "its pods are being ended"


def test_pods_that_were_never_created_count_as_missing() -> None:
    assert admission(there(A, A, pods=(pod("one-0", on=1, job="one"),)), [replace(late(), active=1)]).suspend


def test_it_queues_anew_once_its_pods_are_gone() -> None:
    again = job(admitted_at=NOW - WHOLE_WITHIN, active=1, zone=a)
    found = admission(there(A, A), [again])
    assert found.is_empty
    assert "was admitted at 01:58:00Z" in found.why["default/one"]
    assert admitted(admission(there(B, B), [replace(again, active=0)])) == {"one": b}


def test_where_pods_bring_the_nodes_one_gang_asks_for_them_at_a_time() -> None:
    state = there(spec=pool(scaling="autoscaler"))
    assert admitted(admission(state, [job(), job("two", minutes=1)])) == {"one": ""}
    first = job(suspended=False, admitted_at=NOW - 2 * WHOLE_WITHIN, active=2)
    waits = tuple(pod(f"one-{n}", job="one") for n in range(2))
    found = admission(replace(state, pods=waits), [first, job("two", minutes=1)])
    assert found.is_empty, "nodes take longer than two minutes to come"


def raw_job(**notes: str) -> dict[str, Any]:
    container = {"name": "base", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    template = {"spec": {"containers": [container], "nodeSelector": {"gpu": "yes", ZONE_LABEL: a}}}
    return {
        "metadata": {
            "namespace": "ml",
            "name": "train",
            "uid": "u",
            "resourceVersion": "7",
            "creationTimestamp": EARLIER.isoformat(),
            "labels": {GANG_LABEL: "2", RUN_LABEL: key("run").hash},
            "annotations": notes,
        },
        "spec": {"suspend": True, "parallelism": 2, "completions": 2, "template": template},
        "status": {"active": 1, "conditions": [{"type": "Failed", "status": "False"}]},
    }


def test_a_job_is_read() -> None:
    found = GangJob.parse(raw_job())
    assert (str(found), found.size, found.gpus, found.suspended, found.over) == ("ml/train", 2, 8, True, False)
    assert found.node_selector == (("gpu", "yes"), (ZONE_LABEL, a))
    ours = GangJob.parse(raw_job(**{"airflow-gpu-provider/zone-chosen": "true", ADMITTED_AT: NOW.isoformat()}))
    assert (ours.node_selector, ours.zone, ours.admitted_at) == ((("gpu", "yes"),), a, NOW)


@dataclass
class Cluster:
    """Nodes, a Job controller and a scheduler that work in any order; looks of keepers come in between."""

    dice: random.Random
    nodes: dict[int, str]
    gpus: int
    spec: GpuPool = field(default_factory=lambda: pool(max_nodes=20))
    jobs: dict[str, GangJob] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    number: int = 0
    minutes: float = 0.0

    def snapshot(self) -> PoolSnapshot:
        found = there(*self.nodes.values(), gpus=self.gpus, spec=self.spec, pods=tuple(self.pods.values()))
        return replace(found, now=NOW + timedelta(minutes=self.minutes))

    def come(self) -> None:
        self.number += 1
        name = f"gang-{self.number}"
        size = self.dice.randint(2, 3)
        gpus = self.dice.randint(1, self.gpus)
        self.jobs[name] = job(name, size, self.number, gpus=gpus)

    def look(self) -> None:
        """A keeper's: what it decides is written at once, for it holds the lock."""
        found = admission(self.snapshot(), self.jobs.values())
        now = NOW + timedelta(minutes=self.minutes)
        for each, zone in found.admit:
            self.jobs[each.name] = replace(each, suspended=False, admitted_at=now, zone=zone)
        for each in found.suspend:
            self.jobs[each.name] = replace(self.jobs[each.name], suspended=True)

    def create_pods(self) -> None:
        for each in self.running():
            for rank in range(each.size):
                name = f"{each.name}-{rank}"
                if name not in self.pods and self.dice.random() < 0.5:
                    self.pods[name] = pod(name, job=each.uid, gpus=each.gpus, node_selector=((ZONE_LABEL, each.zone),))
            mine = sum(one.job == each.uid for one in self.pods.values())
            self.jobs[each.name] = replace(each, active=mine)

    def bind(self) -> None:
        waiting = [each for each in self.pods.values() if each.node is None]
        for each in self.dice.sample(waiting, min(len(waiting), 2)):
            self.bind_one(each)

    def bind_one(self, each: Pod) -> bool:
        used, own = Counter[str](), set()
        for other in self.pods.values():
            used[str(other.node)] += other.gpus
            own |= {other.node} if other.job == each.job else set()
        fits = [
            f"node-{number}"
            for number, group in self.nodes.items()
            if ZONE_OF[group] == dict(each.node_selector)[ZONE_LABEL]
            and used[f"node-{number}"] + each.gpus <= self.gpus
            and f"node-{number}" not in own
        ]
        if fits:
            self.pods[each.name] = replace(each, node=self.dice.choice(fits), phase="Running")
        return bool(fits)

    def end(self) -> None:
        whole = [each for each in self.running() if self.bound(each) == each.size]
        for each in self.dice.sample(whole, min(1, len(whole))):
            self.pods = {name: one for name, one in self.pods.items() if one.job != each.uid}
            del self.jobs[each.name]

    def running(self) -> list[GangJob]:
        return [each for each in self.jobs.values() if not each.suspended]

    def bound(self, each: GangJob) -> int:
        return sum(one.job == each.uid and one.node is not None for one in self.pods.values())

    def settle(self) -> None:
        """Let controller and scheduler finish what they can; no gang is admitted meanwhile."""
        for _ in range(40):
            self.create_pods()
            for each in [each for each in self.pods.values() if each.node is None]:
                self.bind_one(each)


@pytest.mark.parametrize("seed", range(50))
def test_two_gangs_of_two_on_two_nodes_never_hold_half_each(seed: int) -> None:
    cluster = Cluster(random.Random(seed), {1: A, 2: A}, gpus=1)
    cluster.jobs = {name: job(name, 2, minutes) for minutes, name in enumerate(("one", "two"))}
    steps = [cluster.look, cluster.look, cluster.create_pods, cluster.bind]
    for _ in range(30):
        cluster.dice.choice(steps)()
        assert len({each.job for each in cluster.pods.values() if each.node}) <= 1
    cluster.settle()
    assert [each.name for each in cluster.running()] == ["one"]
    assert cluster.bound(cluster.jobs["one"]) == 2


@pytest.mark.parametrize("seed", range(150))
def test_every_admitted_gang_becomes_whole_in_any_order_of_events(seed: int) -> None:
    dice = random.Random(seed)
    nodes = {number: dice.choice(dice.choice([(A,), (A, B, C)])) for number in range(1, dice.randint(3, 8))}
    cluster = Cluster(dice, nodes, gpus=dice.choice((1, 4)))
    steps = [cluster.come, cluster.look, cluster.look, cluster.create_pods, cluster.bind, cluster.end]
    for _ in range(60):
        dice.choice(steps)()
    cluster.settle()
    assert all(cluster.bound(each) == each.size for each in cluster.running())


def test_a_missing_permission_is_told_to_those_whose_gangs_it_keeps_waiting() -> None:
    state = there(A, A, gpus=8)
    server = ApiServer()
    cluster: Any = FakeApiClient(server)
    server.refuse()
    queue = GangQueue(cluster, state, decide(state))
    assert queue.is_empty
    error = PoolUpdates(gang_errors=queue.update.errors).gang_error("ml/train")
    assert isinstance(error, PermissionDenied)

    job = raw_job()
    job["metadata"]["labels"][POOL_LABEL] = state.pool.name
    del job["spec"]["template"]["spec"]["nodeSelector"], job["status"]["active"]
    server.put("apis/batch/v1/namespaces/ml/jobs/train", job)
    server.admit()
    server.refuse("patch")
    queue = GangQueue(cluster, state, decide(replace(state, leases=(lease(nodes=2),))))
    assert not queue.is_empty
    queue.move_on(lambda: None)
    update = PoolUpdates(gang_errors=queue.update.errors)
    assert isinstance(update.gang_error("ml/train"), PermissionDenied)
    assert update.gang_error("ml/another") is None
    assert queue.update.log_lines == ()
