"""Writes into a run's demand what the nodes of one of its tasks have to be from its next pod on.

It outlives the worker there. As the nodes are a part of the run's, the pool launches others at once, and those of the
other tasks stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_gpu_provider.scaling.apply.reconcile import Reconciler, open_pool
from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import TaskNodes
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.run import Run

_WRITES = 5  # siblings may write the same Lease at the same time


class NotWritten(Exception):
    """Why the nodes stay what they are, as a sentence."""


Choose = Callable[[PoolSnapshot, TaskNodes], TaskNodes]
"""Takes what the task's nodes are now, and returns what they are to be; raises NotWritten if they stay."""


def write_task_nodes(run: Run, owner: Ownership, choose: Choose, *, why: str) -> TaskNodes:
    """Write what the nodes of a task have to be, and return it.

    Raises:
        NotWritten: No block's demand covers the task, `choose` has refused, or others keep changing the demand.
        GpuError: The pool could not be read.
    """
    reconciler = open_pool(run.cluster.pool, owner=owner.writer, holder=run.holder, report=run.log.info)
    for _ in range(_WRITES):
        if found := _written(reconciler, run, owner, choose, why):
            return found
    raise NotWritten("The run's demand was changed again and again by others.")


def _written(reconciler: Reconciler, run: Run, owner: Ownership, choose: Choose, why: str) -> TaskNodes | None:
    """Try to write it; None if somebody else was first to change the demand."""
    snapshot = reconciler.snapshot()
    lease = next((each for each in snapshot.leases if each.key == owner.key and each.live(snapshot.now)), None)
    if lease is None:
        raise NotWritten("No block's demand covers the task, so that nothing can be kept for its next pod.")
    task = (owner.task_id, owner.map_index)
    none = TaskNodes(task_id=owner.task_id, map_index=owner.map_index, iteration=owner.iteration, times=0)
    before = lease.task_nodes_of(*task, owner.iteration) or none
    chosen = replace(choose(snapshot, before), nodes=run.settings.nodes)
    # Also of an earlier iteration of its loop, which has ended: what that has would be taken from the run's nodes.
    others = tuple(each for each in lease.task_nodes if (each.task_id, each.map_index) != task)
    after = replace(lease, task_nodes=(*others, chosen))
    outcome = reconciler.amend(DemandChange(before=lease, after=after, why=why))
    for line in outcome.log_lines:
        run.log.info("%s", line)
    written = any(each.key == owner.key and chosen in each.task_nodes for each in outcome.snapshot.leases)
    return chosen if written else None
