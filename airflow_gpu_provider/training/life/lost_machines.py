"""What follows where a try loses machines: its next pods run elsewhere, and after two losses on demand.

Where this package sizes the groups, the pool itself prefers others to a group that has lost machines; what is here
is for the try. A provisioner chooses by the pods: they prefer other zones than those that the try has lost nodes in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from airflow_gpu_provider.clouds.backoff import OFF_LIMITS
from airflow_gpu_provider.cluster.api.nodes import read_node
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.money.prices import too_dear
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import TaskNodes
from airflow_gpu_provider.training.life.hook import PoolHook
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.run import Run
from airflow_gpu_provider.training.life.task_nodes import NotWritten, write_task_nodes

LOSSES = 2
"""After so many in one try it goes on demand."""


@dataclass(frozen=True, kw_only=True)
class LostNode:
    """The node of a preempted pod, as far as it is known.

    Attributes:
        machine: The cloud's name for its machine; the node's name where that is not known.
        zone: Where the next pods prefer not to run; empty where the pool decides that, or the node stays.
    """

    machine: str
    zone: str = ""

    @classmethod
    def of(cls, error: GpuError, cluster: PoolHook) -> Self:
        """Return the node that a pod's end names; it may have left the cluster already."""
        name, machine = str(error.details.get("node") or ""), str(error.details.get("machine") or "")
        try:
            node = read_node(cluster.api, name) if name else None
        except GpuError:
            node = None
        if node is None:
            return cls(machine=machine or name)
        pool = cluster.pool
        chooses = pool.nodes_come_with_pods and not pool.is_autoscaled and bool(node.leaving or not node.ready)
        return cls(machine=machine or node.machine, zone=node.zone if chooses else "")


def go_on_demand(run: Run, owner: Ownership, machines: Iterable[str]) -> None:
    """Have the task's next pods on demand if the cloud took at least LOSSES of these machines, its try's, back.

    Nothing changes where the spec has no machines on demand, or they cost more than the pool pays; nor with an
    autoscaler, which chooses by itself. A task that no demand covers stays where the pool prefers.
    """
    tried = Counter(filter(None, machines))
    pool = run.cluster.pool
    if tried.total() < LOSSES or pool.is_autoscaled or not pool.spot_labels:
        return

    def on_demand(snapshot: PoolSnapshot, before: TaskNodes) -> TaskNodes:
        spot = [group for group in snapshot.groups if group.candidate.market == "SPOT"]
        lost = Counter(loss.machine for group in spot for loss in group.losses)
        # Compute Engine makes another instance under the name of the one that it took.
        if before.market or (lost & tried).total() < LOSSES:
            raise NotWritten("")
        candidates = [group.candidate for group in snapshot.groups if group.status not in OFF_LIMITS]
        after = replace(before, market="ON_DEMAND")
        there = [each for each in candidates if after.are_served_by(each.instance_type, each.market)]
        if there and len(too_dear(snapshot.prices, there)) == len(there):
            raise NotWritten(f"machines on demand cost more than max_price_per_hour={pool.max_price_per_hour}")
        if not there:
            raise NotWritten("")
        return after

    try:
        write_task_nodes(run, owner, on_demand, why=f"{owner.task_id} lost {LOSSES} machines in one try")
    except NotWritten as why:
        if text := str(why):
            run.log.info("The next pod may be on a spot machine again: %s", text)
    except GpuError as error:
        run.log.warning("The next pod may be on a spot machine again: %s", error)
    else:
        run.log.info("The cloud took %s machines of this try back: its next pods run on demand.", LOSSES)
