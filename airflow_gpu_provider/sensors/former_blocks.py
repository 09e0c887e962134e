"""What a DAG run wants for blocks that its DAG does not have any more: the file was changed while the run went on.

Airflow goes on with the newest file. A block that has another pool or another name there has new tasks, and the old
ones, scale-down among them, are removed from the run. What the old ones brought the run's other scale-downs release,
and bill.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from airflow_gpu_provider.errors import GpuError

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from airflow_gpu_provider.cluster.demand_key import DemandKey
    from airflow_gpu_provider.cost.bill import Bill
    from airflow_gpu_provider.platforms.base import Report
    from airflow_gpu_provider.pools import GpuPool
    from airflow_gpu_provider.scaling.apply.reconcile import Reconciler

Blocks = Collection[tuple[str, str]]
"""Names of pools, and of the blocks on them; without the map index of those in a mapped task group."""


def blocks_of(dag: DAG | None) -> Blocks | None:
    """Return the blocks that a DAG's tasks name; None where that is known only when they run."""
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from airflow_gpu_provider.pools import GpuPool
    from airflow_gpu_provider.pools.values import is_template

    found = set()
    for task in dag.tasks if dag else ():
        if not {"gpu_pool", "block_id"} <= set(task.template_fields):
            continue
        arguments = task.partial_kwargs if isinstance(task, MappedOperator) else vars(task)
        pool = arguments.get("gpu_pool")
        if not isinstance(pool, GpuPool) or is_template(pool.name):
            return None
        found.add((pool.name, _without_index(arguments.get("block_id") or "")))
    return found


def release(
    reconciler: Reconciler, run: DemandKey, blocks: Blocks, *, connect: Callable[[GpuPool], Reconciler], report: Report
) -> None:
    """Give up what the run wants for other blocks than these in the same cluster, and remove the machines.

    A block whose pods are still there is left for the run's next scale-down. No error leaves this function: it would
    hide how the run's own block was released.

    Args:
        reconciler: The pool of a block that the DAG has.
        run: Any of the run's keys.
        blocks: Those that the DAG has.
        connect: Connects to another pool, as `open_pool` does.
        report: Takes lines for the task's log.
    """
    from airflow_gpu_provider.cluster.pods import list_run_pods

    try:
        for pool, key in _former(reconciler, run, blocks, report):
            former = reconciler if pool == reconciler.pool else connect(pool)
            now = former.clock.now()
            if any(pod.holds_node(now) for pod in list_run_pods(former.api, pool.node_selector, key.hash)):
                report(f"pool {pool.name}: pods of {key} are still there, and its nodes stay for them")
                continue
            report(f"pool {pool.name}: withdrawing the demand of {key}, a block that the DAG no longer has")
            for line in former.delete_demand_and_reconcile(key).log_lines:
                report(f"pool {pool.name}: {line}")
    except GpuError as error:
        report(f"Demand of blocks that the DAG no longer has may be left over: {error}")


def bills(
    reconciler: Reconciler, key: DemandKey, blocks: Blocks, *, connect: Callable[[GpuPool], Reconciler], report: Report
) -> tuple[dict[DemandKey, Bill], str]:
    """Return what the run used for other blocks than these, and why that may be too little; empty if it is not.

    Each is billed by the first scale-down of the run that finds it released, whenever that is tried again.

    Args:
        reconciler, blocks, connect, report: As for `release`.
        key: The demand of the block whose scale-down asks.
    """
    from airflow_gpu_provider.cost.usage import read_runs

    found: dict[DemandKey, Bill] = {}
    missing = []
    try:
        used = [run for run in read_runs(reconciler.api, None) if _is_former(run.key, key, blocks)]
        pools = _pools_here(reconciler, report) if used else {}
        for run in used:
            if run.billed_by not in ("", key.hash):
                continue
            if run.wants(now := reconciler.clock.now()):
                missing.append(f"nodes of pool {run.key.pool}, of a block that the DAG no longer has, may still run")
            elif run.key.pool not in pools:
                missing.append(f"what pool {run.key.pool} cost, of a block that the DAG no longer has, cannot be read")
            elif reconciler.ledger.claim(run.key, key):
                pool = pools[run.key.pool]
                former = reconciler if pool == reconciler.pool else connect(pool)
                found[run.key] = former.ledger.bill(run.key, former.platform, now)
    except GpuError as error:
        missing.append(f"what the DAG's former blocks cost could not be read ({error})")
    return found, "; ".join(missing)


def _former(
    reconciler: Reconciler, run: DemandKey, blocks: Blocks, report: Report
) -> Iterator[tuple[GpuPool, DemandKey]]:
    from airflow_gpu_provider.scaling.state.demand import list_demand

    keys = [lease.key for lease in list_demand(reconciler.api) if _is_former(lease.key, run, blocks)]
    pools = _pools_here(reconciler, report) if keys else {}
    for key in keys:
        if key.pool in pools:
            yield pools[key.pool], key


def _pools_here(reconciler: Reconciler, report: Report) -> dict[str, GpuPool]:
    """Return the pools of the cluster that its connection reaches, by name."""
    from airflow_gpu_provider.scaling.state.lock import OtherPools

    here = reconciler.pool
    others = OtherPools([here])
    pools = {pool.name: pool for pool in (here, *others.beside(here, reconciler.api))}
    for line in others.left_out():
        report(line)
    return pools


def _is_former(key: DemandKey, run: DemandKey, blocks: Blocks) -> bool:
    is_of_run = (key.installation, key.dag_id, key.run_id) == (run.installation, run.dag_id, run.run_id)
    return is_of_run and (key.pool, _without_index(key.block_id)) not in blocks


def _without_index(block_id: str) -> str:
    return block_id.partition("[")[0]
