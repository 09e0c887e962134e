"""What a DAG run wants for blocks that its DAG does not have any more: the file was changed while the run went on.

Airflow goes on with the newest file. A block that has another pool or another name there has new tasks, and the old
ones, scale-down among them, are removed from the run. What the old ones brought is for the run's other scale-downs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from airflow_gpu_provider.errors import GpuError

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from airflow_gpu_provider.cluster.demand import DemandKey
    from airflow_gpu_provider.platforms.base import Say
    from airflow_gpu_provider.pools import GpuPool
    from airflow_gpu_provider.scaling.reconcile import Reconciler

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
    reconciler: Reconciler, run: DemandKey, blocks: Blocks, *, connect: Callable[[GpuPool], Reconciler], say: Say
) -> None:
    """Give up what the run wants for other blocks than these in the same cluster, and remove the machines.

    A block whose pods are still there is left for the run's next scale-down. No error leaves this function: it would
    hide how the run's own block was released.

    Args:
        reconciler: The pool of a block that the DAG has.
        run: Any of the run's keys.
        blocks: Those that the DAG has.
        connect: Connects to another pool, as `open_pool` does.
        say: Takes lines for the task's log.
    """
    from airflow_gpu_provider.cluster.pods import list_run_pods

    try:
        for pool, key in _former(reconciler, run, blocks, say):
            former = reconciler if pool == reconciler.pool else connect(pool)
            now = former.clock.now()
            if any(pod.holds_node(now) for pod in list_run_pods(former.api, pool.node_selector, key.hash)):
                say(f"pool {pool.name}: pods of {key} are still there, and its nodes stay for them")
                continue
            say(f"pool {pool.name}: gives up the demand of {key}, a block that the DAG no longer has")
            for line in former.delete_demand_and_reconcile(key).said:
                say(f"pool {pool.name}: {line}")
    except GpuError as error:
        say(f"Demand of blocks that the DAG no longer has may be left over: {error}")


def _former(reconciler: Reconciler, run: DemandKey, blocks: Blocks, say: Say) -> Iterator[tuple[GpuPool, DemandKey]]:
    from airflow_gpu_provider.cluster.demand import list_demand
    from airflow_gpu_provider.scaling.janitor import OtherPools

    keys = [lease.key for lease in list_demand(reconciler.api) if _is_former(lease.key, run, blocks)]
    if not keys:
        return
    here = reconciler.pool
    others = OtherPools([here])
    pools = {pool.name: pool for pool in (here, *others.beside(reconciler))}
    for line in others.left_out():
        say(line)
    for key in keys:
        if key.pool in pools:
            yield pools[key.pool], key


def _is_former(key: DemandKey, run: DemandKey, blocks: Blocks) -> bool:
    is_of_run = (key.installation, key.dag_id, key.run_id) == (run.installation, run.dag_id, run.run_id)
    return is_of_run and (key.pool, _without_index(key.block)) not in blocks


def _without_index(block_id: str) -> str:
    return block_id.partition("[")[0]
