"""What follows where a DAG's file has changed while it runs: the run's demand allows the machines that its pods need.

A pod goes by the spec of the pool in today's file. Without this the machine that Ensure once brought would count for
it, and it would wait for another one in vain. So would a pod that no demand covers, in a pool that is another DAG's
with another spec: it is not created.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from airflow_gpu_provider.scaling.decide.other_specs import of_other_specs
from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange
from airflow_gpu_provider.scaling.state.demand import DemandLease, TaskNodes
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.run import PodDeadlines, Run

_WRITES = 5  # siblings may write the same Lease at the same time


def check_one_spec(run: Run, deadlines: PodDeadlines) -> None:
    """Raise PoolDrift where a pod without demand is for a pool whose nodes another DAG wants by another spec.

    In a block, Ensure has asked. The pool is read only if there may be a reason.
    """
    key, pool = deadlines.key, run.cluster.pool
    if deadlines.own_demand is None and of_other_specs(pool, key, deadlines.live):
        open_pool(pool, owner=key.writer, holder=run.holder, report=run.log.info).check_one_spec(key)


def follow_spec(run: Run, demand: DemandLease | None) -> None:
    """Write into the task's demand what the pool's spec allows today; nothing where it says so, or records nothing.

    Groups of machine types that are new in the spec are made before: this run's Ensure has not.

    Raises:
        GpuError: It could not be written, or a group not be made.
    """
    pool = run.cluster.pool
    if demand is None or demand.allowed is None or demand.allowed == pool.allowed:
        return
    differences = "; ".join(demand.allowed.differences(pool.allowed))
    run.log.info("The spec of pool %s has changed during the run: %s.", pool.name, differences)
    reconciler = open_pool(pool, owner=demand.key.writer, holder=run.holder, report=run.log.info)
    if not {*pool.allowed.types} <= {*demand.allowed.types}:
        reconciler.platform.apply(reconciler.platform.plan(demand.nodes), run.log.info, ())
    lease: DemandLease | None = demand
    for _ in range(_WRITES):
        if lease is None or lease.allowed == pool.allowed:
            return
        after = replace(lease, allowed=pool.allowed)
        outcome = reconciler.amend(DemandChange(before=lease, after=after, why="the pool's spec has changed"))
        for line in outcome.log_lines:
            run.log.info("%s", line)
        lease = next((each for each in list_demand(reconciler.api, pool.name) if each.key == demand.key), None)


def task_nodes_for(run: Run, owner: Ownership, demand: DemandLease | None) -> TaskNodes | None:
    """Return what the task's nodes have to be, of any type where the spec no longer names that machine type."""
    found = demand.task_nodes_of(owner.task_id, owner.map_index, owner.iteration) if demand is not None else None
    types = run.cluster.pool.allowed.types
    is_gone = found is not None and types and found.instance_type not in types
    return replace(found, instance_type="") if found is not None and is_gone else found
