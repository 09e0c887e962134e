"""Snapshots of a pool, said in few words, for the tests of decisions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.base import Group, LaunchFailure, Machine
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import DemandLease

NOW = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
LATER = NOW + timedelta(hours=6)
EARLIER = NOW - timedelta(hours=1)
SWITCH = LATER + timedelta(minutes=15)

ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
A, B, C = "train-a-g6-xlarge", "train-b-g6-xlarge", "train-c-g6-xlarge"


def pool(**fields: Any) -> EksGpuPool:
    spec = {"name": "train", "cluster_name": "ml", "region": "us-west-2", "instance_types": ("g6.xlarge",)}
    return EksGpuPool(**{**spec, "max_nodes": 4, "max_runtime": timedelta(hours=6), **fields})


def key(run_id: str) -> DemandKey:
    return DemandKey(installation="airflow", dag_id="dag", run_id=run_id, pool="train")


def lease(
    run_id: str = "run", nodes: int = 1, until: datetime = LATER, created_at: datetime = EARLIER, **fields: Any
) -> DemandLease:
    return DemandLease(key=key(run_id), nodes=nodes, until=until, created_at=created_at, **fields)


def machine(number: int, group: str = A, state: Any = "running", launched_at: datetime | None = EARLIER) -> Machine:
    return Machine(id=f"i-{number}", group=group, state=state, launched_at=launched_at)


def node(number: int, **fields: Any) -> Node:
    usual = {"ready": True, "ready_changed_at": EARLIER, "gpus": 1, "created_at": EARLIER}
    return Node(name=f"node-{number}", machine=f"i-{number}", **{**usual, **fields})


def pod(name: str, on: int | None = None, run: str | None = None, **fields: Any) -> Pod:
    """A GPU pod, running on node `on`, or pending."""
    return Pod(
        **{
            "namespace": "default",
            "name": name,
            "node": None if on is None else f"node-{on}",
            "phase": "Pending" if on is None else "Running",
            "gpus": 1,
            "run": key(run).hash if run else None,
            "created_at": EARLIER,
            **fields,
        }
    )


def groups(spec: EksGpuPool, *machines: Machine, **fields: dict[str, Any]) -> tuple[Group, ...]:
    """All groups of the pool, active and at the size of their machines; `fields` changes single groups by name."""
    found = []
    for candidate in spec.candidates(ZONES):
        mine = tuple(each for each in machines if each.group == candidate.group)
        live = sum(each.state != "terminating" for each in mine)
        usual = {"status": "active", "desired": live, "max_size": spec.max_nodes, "switch_at": SWITCH if mine else None}
        changed = fields.get(candidate.group.replace("-", "_"), {})
        found.append(Group(name=candidate.group, candidate=candidate, machines=mine, **{**usual, **changed}))
    return tuple(found)


def dry(minutes_ago: float = 1) -> LaunchFailure:
    at = NOW - timedelta(minutes=minutes_ago)
    return LaunchFailure(at=at, message="InsufficientInstanceCapacity", kind="out_of_stock")


def snapshot(
    *machines: Machine,
    leases: tuple[DemandLease, ...] = (),
    nodes: tuple[Node, ...] | None = None,
    pods: tuple[Pod, ...] = (),
    spec: EksGpuPool | None = None,
    at: datetime = NOW,
    **changed_groups: dict[str, Any],
) -> PoolSnapshot:
    """Take a snapshot; where no nodes are given, each machine has a Ready one."""
    spec = spec or pool()
    if nodes is None:
        nodes = tuple(node(int(each.id.removeprefix("i-"))) for each in machines)
    return PoolSnapshot(
        now=at, pool=spec, leases=leases, nodes=nodes, pods=pods, groups=groups(spec, *machines, **changed_groups)
    )
