"""The Reconciler on a real API server and the sandbox's AWS: machines come, are shared, are kept, and go."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.demand import DemandKey
from airflow_gpu_provider.cluster.leases import DEMAND_NAMESPACE
from airflow_gpu_provider.cluster.nodes import cordon, list_nodes
from airflow_gpu_provider.cluster.pods import RUN_LABEL
from airflow_gpu_provider.cluster.rest import MERGE_PATCH, call
from airflow_gpu_provider.pools import EksGpuPool
from airflow_gpu_provider.pools.base import POOL_LABEL
from airflow_gpu_provider.scaling.decisions import SWITCH_MARGIN
from airflow_gpu_provider.scaling.open_pool import open_pool
from airflow_gpu_provider.scaling.reconcile import Reconciler
from airflow_gpu_provider.scaling.supply import usable_nodes
from airflow_gpu_provider.scaling.writes import Outcome
from gpu_sandbox.faults import Stockout
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually

_names = (f"reconcile-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def env(gpu_sandbox: Sandbox) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in gpu_sandbox.env().items():
            patch.setenv(name, value)
        yield


class Night:
    """A pool of its own for one test, with its groups created, and what runs and people do with it."""

    def __init__(self, sandbox: Sandbox, **fields: Any) -> None:
        spec: dict[str, Any] = {
            "name": next(_names),
            "cluster_name": sandbox.cluster_name,
            "region": sandbox.region,
            "instance_types": ["g6.xlarge"],
            "zones": [sandbox.zones[0]],
            "max_nodes": 2,
        }
        self.pool = EksGpuPool(**{**spec, **fields})
        self.lead = self.reconciler("lead")
        self.lead.platform.apply(self.lead.platform.plan(1), print)
        self.api: Any = self.lead.api
        self._pods: list[str] = []
        eventually(lambda: all(group.status == "active" for group in self.lead.platform.observe()))

    def reconciler(self, holder: str) -> Reconciler:
        return open_pool(self.pool, owner="tests", holder=holder, say=print)

    def key(self, run_id: str, installation: str = "tests") -> DemandKey:
        return DemandKey(installation=installation, dag_id="dag", run_id=run_id, pool=self.pool.name)

    def want(self, run_id: str, nodes: int = 1, seconds: float = 3600) -> Outcome:
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        return self.lead.want(self.key(run_id), nodes, until)

    def until(self, is_so: Callable[[Outcome], bool], seconds: float = 120.0) -> Outcome:
        """Reconcile until something is so."""
        seen: list[Outcome] = []

        def look() -> bool:
            seen[:] = [self.lead.reconcile()]
            # EKS may list a new group once, and then not for a moment.
            return bool(seen[0].snapshot.groups) and is_so(seen[0])

        eventually(look, seconds=seconds)
        return seen[0]

    def until_usable(self, nodes: int) -> Outcome:
        return self.until(lambda outcome: len(usable_nodes(outcome.snapshot)) == nodes)

    def until_gone(self) -> None:
        self.until(lambda outcome: not outcome.snapshot.nodes and not machines(outcome))

    def pod(self, name: str, *, on: str | None = None, run: DemandKey | None = None) -> None:
        """A GPU pod, somebody's own or a run's, which sleeps until it is deleted."""
        container = {
            "name": "main",
            "image": "busybox",
            "command": ["sleep", "600"],
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
        }
        spec: dict[str, Any] = {
            "containers": [container],
            "nodeSelector": {POOL_LABEL: self.pool.name},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
        }
        if on:
            spec["nodeName"] = on
        path = "/api/v1/namespaces/default/pods"
        metadata = {"name": name, "labels": {RUN_LABEL: run.hash} if run else {}}
        call(self.api, "create", path, resource="pods", body={"metadata": metadata, "spec": spec})
        self._pods.append(f"{path}/{name}")

    def delete_pods(self) -> None:
        for path in self._pods:
            try:
                call(self.api, "delete", path, resource="pods")
            except ObjectNotFound:
                continue
        self._pods.clear()

    def close(self) -> None:
        self.delete_pods()
        for lease in self.lead.snapshot().leases:
            self.lead.delete_demand_and_reconcile(lease.key)


@pytest.fixture
def nights(gpu_sandbox: Sandbox, env: None) -> Iterator[Callable[..., Night]]:
    opened: list[Night] = []

    def open_night(**fields: Any) -> Night:
        opened.append(Night(gpu_sandbox, **fields))
        return opened[-1]

    yield open_night
    gpu_sandbox.faults.clear()
    for night in opened:
        night.close()


def machines(outcome: Outcome) -> list[str]:
    return [machine.id for group in outcome.snapshot.groups for machine in group.live]


def test_from_zero_and_back(nights: Callable[..., Night]) -> None:
    night = nights()
    outcome = night.want("one")
    if not outcome.snapshot.groups:  # EKS does not list it yet, once more
        outcome = night.until(lambda outcome: bool(outcome.decision.grow))
    assert outcome.decision.grow == {outcome.snapshot.groups[0].name: 1}
    ready = night.until_usable(1)
    (lease,) = ready.snapshot.leases
    switch_at = ready.snapshot.groups[0].switch_at
    assert switch_at is not None
    assert timedelta(0) <= switch_at - lease.until - SWITCH_MARGIN <= timedelta(minutes=2)
    assert ready.decision.is_empty

    given_up = night.lead.delete_demand_and_reconcile(night.key("one"))
    assert len(given_up.decision.release) == 1
    night.until_gone()
    assert night.lead.snapshot().groups[0].desired == 0


def test_wanting_again_changes_nothing(nights: Callable[..., Night]) -> None:
    night = nights()
    until = datetime.now(UTC) + timedelta(hours=1)
    night.lead.want(night.key("one"), 1, until)
    night.until_usable(1)
    again = night.lead.want(night.key("one"), 1, until)
    assert again.decision.is_empty
    assert again.said == ()


def test_what_two_runs_want_adds_up_and_each_goes_by_itself(nights: Callable[..., Night]) -> None:
    night = nights()
    night.want("one")
    night.want("two")
    night.until_usable(2)
    assert len(night.lead.delete_demand_and_reconcile(night.key("one")).decision.release) == 1
    night.until_usable(1)
    night.lead.delete_demand_and_reconcile(night.key("two"))
    night.until_gone()


def test_an_installation_s_run_ends_without_harm_to_another_s_with_the_same_ids(nights: Callable[..., Night]) -> None:
    night = nights()
    ours, theirs = night.key("nightly", "team-a"), night.key("nightly", "team-b")
    other = night.reconciler("team-b's")
    until = datetime.now(UTC) + timedelta(hours=1)
    night.lead.want(ours, 1, until)
    other.want(theirs, 1, until)
    first, second = usable_nodes(night.until_usable(2).snapshot)
    night.pod(f"ours-{night.pool.name}", on=first.name, run=ours)
    night.pod(f"theirs-{night.pool.name}", on=second.name, run=theirs)

    assert night.lead.delete_run_pods(ours) == [f"default/ours-{night.pool.name}"]
    night.lead.delete_demand_and_reconcile(ours)
    left = night.until(lambda outcome: len(machines(outcome)) == 1).snapshot
    assert [(pod.name, pod.node) for pod in left.pods if not pod.daemon] == [(f"theirs-{night.pool.name}", second.name)]
    night.delete_pods()
    other.delete_demand_and_reconcile(theirs)
    night.until_gone()


def test_runs_that_come_and_go_at_once(nights: Callable[..., Night]) -> None:
    night = nights()

    def a_run(name: str) -> None:
        reconciler = night.reconciler(name)
        reconciler.want(night.key(name), 1, datetime.now(UTC) + timedelta(hours=1))
        eventually(lambda: usable_nodes(reconciler.reconcile().snapshot))
        reconciler.delete_demand_and_reconcile(night.key(name))

    with ThreadPoolExecutor(4) as runs:
        for done in [runs.submit(a_run, f"run-{number}") for number in range(4)]:
            done.result()
    night.until_gone()


def test_a_stranger_s_pod_keeps_its_machine_until_it_ends(nights: Callable[..., Night]) -> None:
    night = nights(max_nodes=1)
    night.want("one")
    (node,) = usable_nodes(night.until_usable(1).snapshot)
    night.pod(f"theirs-{night.pool.name}", on=node.name)
    for _ in range(2):
        assert night.lead.delete_demand_and_reconcile(night.key("one")).decision.release == ()
    night.delete_pods()
    night.until_gone()


def test_a_pod_that_waits_for_the_pool_gets_a_machine_without_a_lease(nights: Callable[..., Night]) -> None:
    night = nights(max_nodes=1)
    night.pod(f"theirs-{night.pool.name}")
    outcome = night.until_usable(1)
    assert outcome.snapshot.groups[0].switch_at is not None
    night.delete_pods()
    night.until_gone()


@pytest.mark.parametrize("code", [None, "InsufficientFreeAddressesInSubnet"])
def test_the_next_zone_after_a_failed_launch(
    gpu_sandbox: Sandbox, nights: Callable[..., Night], code: str | None
) -> None:
    gpu_sandbox.faults.add(Stockout(zone=gpu_sandbox.zones[0], code=code))
    night = nights(zones=list(gpu_sandbox.zones[:2]))
    night.want("one")
    outcome = night.until_usable(1)
    assert usable_nodes(outcome.snapshot)[0].zone == gpu_sandbox.zones[1]
    night.until(lambda outcome: [group.desired for group in outcome.snapshot.groups] == [0, 1])


def test_size_that_never_came_is_taken_back(gpu_sandbox: Sandbox, nights: Callable[..., Night]) -> None:
    gpu_sandbox.faults.add(Stockout())
    night = nights()
    night.want("one")
    night.until(lambda outcome: outcome.snapshot.groups[0].launch_failure is not None)
    night.lead.delete_demand_and_reconcile(night.key("one"))
    night.until(lambda outcome: outcome.snapshot.groups[0].desired == 0)


def test_a_dead_holder_s_cordon_is_finished_or_undone(nights: Callable[..., Night]) -> None:
    night = nights(max_nodes=1)
    night.want("one")
    (node,) = usable_nodes(night.until_usable(1).snapshot)
    cordon(night.api, node, by="somebody who died")
    night.lead.reconcile()
    assert not list_nodes(night.api, night.pool.node_selector)[0].cordoned

    cordon(night.api, node, by="somebody who died")
    night.lead.delete_demand_and_reconcile(night.key("one"))
    night.until_gone()


def test_somebody_s_own_cordon_is_left_alone(nights: Callable[..., Night]) -> None:
    night = nights(max_nodes=1)
    night.want("one")
    (node,) = usable_nodes(night.until_usable(1).snapshot)
    patch = {"spec": {"unschedulable": True}}
    path = f"/api/v1/nodes/{node.name}"
    call(night.api, "patch", path, resource="nodes", body=patch, content_type=MERGE_PATCH)
    outcome = night.lead.delete_demand_and_reconcile(night.key("one"))
    assert outcome.decision.release == ()
    assert any("it was cordoned externally" in line for line in outcome.said)
    call(
        night.api,
        "patch",
        path,
        resource="nodes",
        body={"spec": {"unschedulable": None}},
        content_type=MERGE_PATCH,
    )
    night.until_gone()


def test_after_its_time_a_run_s_machine_goes_without_anybody_giving_it_up(nights: Callable[..., Night]) -> None:
    night = nights(max_nodes=1)
    night.want("one")
    night.until_usable(1)
    night.want("one", seconds=5)
    night.until_gone()


def test_nothing_is_written_when_there_is_nothing_to_do(nights: Callable[..., Night]) -> None:
    night = nights()
    night.want("one")
    night.until_usable(1)
    lock = f"/apis/coordination.k8s.io/v1/namespaces/{DEMAND_NAMESPACE}/leases/lock-{night.pool.name}"
    before = call(night.api, "get", lock, resource="leases")["metadata"]["resourceVersion"]
    assert night.lead.reconcile().decision.is_empty
    assert call(night.api, "get", lock, resource="leases")["metadata"]["resourceVersion"] == before
