"""What a DAG run wants for blocks that its DAG does not have any more: the file was changed while the run went on.

Airflow goes on with the newest file. A block that has another pool or another name there has new tasks, and the old
ones, scale-down among them, are removed from the run. What the old ones brought the run's other scale-downs release.
Nobody bills it: the run's cost is "at least" what its other blocks cost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

from airflow.sdk import DAG
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_gpu_provider.clouds.base import Report
from airflow_gpu_provider.cluster.api.pods import list_run_pods
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.ledger.usage import read_runs
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.end.other_pools import OtherPools
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from airflow_gpu_provider.tasks.roles import OF_A_BLOCK, role_of

Blocks = Collection[tuple[str, str]]
"""Names of pools, and of the blocks on them; without the map index of those in a mapped task group."""


def blocks_of(dag: DAG | None) -> Blocks | None:
    """Return the blocks that a DAG's tasks name; None where that is known only when they run."""
    found = set()
    for task in dag.tasks if dag else ():
        if role_of(task) not in OF_A_BLOCK:
            continue
        arguments = task.partial_kwargs if isinstance(task, MappedOperator) else vars(task)
        pool = arguments.get("gpu_pool")
        if not isinstance(pool, GpuPool) or is_template(pool.name):
            return None
        found.add((pool.name, _without_index(arguments.get("block_id") or "")))
    return found


@dataclass(frozen=True, kw_only=True)
class FormerBlocks:
    """The blocks of a run that its DAG does not have any more, in one cluster.

    Attributes:
        here: The pool of a block that the DAG has.
        key: The demand of that block.
        blocks: Those that the DAG has.
        connect: Connects to another pool, as `open_pool` does.
        report: Takes lines for the task's log.
    """

    here: Reconciler
    key: DemandKey
    blocks: Blocks
    connect: Callable[[GpuPool], Reconciler]
    report: Report

    def release(self) -> None:
        """Give up what the run wants for them, and remove the machines.

        A block whose pods are still there is left for the run's next scale-down. No error leaves this function: it
        would hide how the run's own block was released.
        """
        try:
            for key in [lease.key for lease in list_demand(self.here.api) if self._is_former(lease.key)]:
                if key.pool in self._pools:
                    self._release(key)
        except GpuError as error:
            self.report(f"Demand of blocks that the DAG no longer has may be left over: {error}")

    def _release(self, key: DemandKey) -> None:
        former = self._opened(key)
        of = f"pool {key.pool}"
        now = former.clock.now()
        if any(pod.holds_node(now) for pod in list_run_pods(former.api, former.pool.node_selector, key.hash)):
            self.report(f"{of}: pods of {key} are still there, and its nodes stay for them")
            return
        self.report(f"{of}: withdrawing the demand of {key}, a block that the DAG no longer has")
        for line in former.delete_demand_and_reconcile(key).log_lines:
            self.report(f"{of}: {line}")

    def unbilled(self) -> str:
        """Return what the run's other blocks' bills lack: what it used for these; empty where nothing is recorded."""
        try:
            former = [run.key for run in read_runs(self.here.api, None) if self._is_former(run.key)]
        except GpuError as error:
            return f"whether the run had other blocks, which the DAG no longer has, could not be read ({error})"
        names = sorted(f"block {key.block or 'without a name'} on pool {key.pool}" for key in former)
        return f"the run used {', '.join(names)} too, which the DAG no longer has" if names else ""

    def _is_former(self, key: DemandKey) -> bool:
        mine = self.key
        is_of_run = (key.installation, key.dag_id, key.run_id) == (mine.installation, mine.dag_id, mine.run_id)
        return is_of_run and (key.pool, _without_index(key.block_id)) not in self.blocks

    def _opened(self, key: DemandKey) -> Reconciler:
        pool = self._pools[key.pool]
        return self.here if pool == self.here.pool else self.connect(pool)

    @cached_property
    def _pools(self) -> dict[str, GpuPool]:
        """The pools of the cluster that its connection reaches, by name."""
        here = self.here.pool
        others = OtherPools([here])
        pools = {pool.name: pool for pool in (here, *others.beside(here, self.here.api))}
        for line in others.left_out():
            self.report(line)
        return pools


def _without_index(block_id: str) -> str:
    return block_id.partition("[")[0]
