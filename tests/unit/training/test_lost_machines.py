"""What a try remembers of the machines that it lost, and what its next pods have to be for that."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider.clouds.base import MachineLoss
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.errors import CloudError, PodPreempted
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import DemandLease, TaskNodes
from airflow_gpu_provider.training.life import lost_machines, task_nodes
from airflow_gpu_provider.training.life.lost_machines import LostNode, go_on_demand
from airflow_gpu_provider.training.life.run import AttemptRecord
from tests.unit.scaling.pools import EARLIER, LATER, NOW, pool, snapshot
from tests.unit.training.pod_life import OWNER, Life

SPOT_A = "train_a_g6_xlarge_spot"
GOT = TaskNodes(task_id="train", map_index=-1, market="ON_DEMAND", times=0)


def lease(**fields: Any) -> DemandLease:
    return DemandLease(**{"key": OWNER.key, "nodes": 2, "until": LATER, "created_at": EARLIER, **fields})


class Demand:
    """A pool whose zone a has lost these machines, and the demand that covers the task."""

    def __init__(self, *lost: str, spec: Any = None, **fields: Any) -> None:
        self.lease = lease(**fields)
        self._spec = spec or pool(capacity_types=("SPOT", "ON_DEMAND"))
        at = NOW - timedelta(minutes=3)
        self._losses = tuple(MachineLoss(at=at, machine=each, why="spot") for each in lost)

    def snapshot(self) -> PoolSnapshot:
        groups: dict[str, Any] = {SPOT_A: {"losses": self._losses}}
        return snapshot(leases=(self.lease,), spec=self._spec, **groups)

    def amend(self, change: Any) -> Any:
        self.lease = change.after
        return SimpleNamespace(log_lines=(), snapshot=self.snapshot())


def gone(monkeypatch: pytest.MonkeyPatch, demand: Demand, *machines: str, spec: GpuPool | None = None) -> None:
    monkeypatch.setattr(task_nodes, "open_pool", lambda *_, **__: demand)
    life = Life()
    life.cluster.pool = spec or pool(capacity_types=("SPOT", "ON_DEMAND"))
    go_on_demand(life.run, OWNER, machines)


def test_two_losses_of_a_try_have_its_task_s_nodes_on_demand_and_the_others_where_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    demand = Demand("i-1", "i-2")
    gone(monkeypatch, demand, "i-1", "i-2")
    assert demand.lease.task_nodes == (GOT,)
    assert DemandLease.parse(demand.lease.manifest()).task_nodes == (GOT,)
    assert decide(demand.snapshot()).grow == {"train-a-g6-xlarge": 1, "train-b-g6-xlarge-spot": 1}


def test_a_name_that_comes_again_is_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    demand = Demand("gke-x", "gke-x")
    gone(monkeypatch, demand, "gke-x", "gke-x")
    assert demand.lease.task_nodes == (GOT,)
    demand = Demand("gke-x")
    gone(monkeypatch, demand, "gke-x", "gke-x")
    assert not demand.lease.task_nodes


def test_a_larger_gpu_stays_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    larger = TaskNodes(task_id="train", map_index=-1, instance_type="g6.xlarge")
    demand = Demand("i-1", "i-2", task_nodes=(larger,))
    gone(monkeypatch, demand, "i-1", "i-2")
    assert demand.lease.task_nodes == (replace(larger, market="ON_DEMAND"),)


@pytest.mark.parametrize(
    ("lost", "tried", "spec"),
    [
        (("i-1",), ("i-1", "i-2"), None),
        (("i-1", "i-2"), ("i-1", ""), None),
        (("i-1", "i-2"), ("i-1", "i-2"), pool(capacity_types=("SPOT",))),
        (
            ("i-1", "i-2"),
            ("i-1", "i-2"),
            pool(
                capacity_types=("SPOT", "ON_DEMAND"),
                price_per_hour={"SPOT": 0.3, "ON_DEMAND": 0.9},
                max_price_per_hour=0.5,
            ),
        ),
    ],
)
def test_what_was_not_lost_or_is_not_to_be_had_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, lost: tuple[str, ...], tried: tuple[str, ...], spec: Any
) -> None:
    demand = Demand(*lost, spec=spec)
    gone(monkeypatch, demand, *tried, spec=spec)
    assert not demand.lease.task_nodes


def test_a_pool_that_cannot_be_read_costs_no_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise CloudError("no", "again")

    monkeypatch.setattr(task_nodes, "open_pool", lambda *_, **__: SimpleNamespace(snapshot=fails))
    life = Life()
    life.cluster.pool = pool(capacity_types=("SPOT", "ON_DEMAND"))
    go_on_demand(life.run, OWNER, ("i-1", "i-2"))


def node(**fields: Any) -> Node:
    return Node(
        **{
            "name": "n1",
            "machine": "i-1",
            "ready": True,
            "ready_changed_at": NOW,
            "created_at": NOW,
            "gpus": 1,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("found", "provisioned", "lost"),
    [
        (node(zone="a", leaving="Karpenter disrupts it"), True, LostNode(machine="i-1", zone="a")),
        (node(zone="a", ready=False), True, LostNode(machine="i-1", zone="a")),
        (node(zone="a"), True, LostNode(machine="i-1")),
        (node(zone="a", ready=False), False, LostNode(machine="i-1")),
        (None, True, LostNode(machine="n1")),
    ],
)
def test_which_node_was_lost_and_what_zone_its_provisioner_is_to_leave(
    monkeypatch: pytest.MonkeyPatch, found: Node | None, provisioned: bool, lost: LostNode
) -> None:
    def read(*_: object) -> Node:
        if found is None:
            raise CloudError("gone", "again")
        return found

    monkeypatch.setattr(lost_machines, "read_node", read)
    its_pool = SimpleNamespace(nodes_come_with_pods=provisioned, is_autoscaled=False)
    cluster: Any = SimpleNamespace(api=None, pool=its_pool)
    assert LostNode.of(PodPreempted("gone", "again", node="n1"), cluster) == lost


def test_the_record_of_an_attempt_keeps_each_loss_and_travels() -> None:
    record = AttemptRecord().without("i-1", "a").without("", "").without("i-2", "a").without("i-3", "b")
    assert (record.machines, record.zones) == (("i-1", "i-2", "i-3"), ("a", "b"))
    assert AttemptRecord.from_record(record.to_record()) == record
    after = record.following(deadline=LATER, phases=())
    assert (after.number, after.machines, after.zones) == (2, record.machines, record.zones)
