"""When the cloud ends machines by itself, and how long they stay, and may cost something, after their pods' end.

By these times a `max_cost` is a ceiling where no task, no trigger and no janitor looks at the pool any more.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_gpu_provider.pools.gpu_pool import GpuPool

TIME_TO_STOP = timedelta(minutes=2)
"""How long machines stay for pods that stop for want of money, as EC2 leaves a spot machine."""

COLLECT_WITHIN = timedelta(minutes=10)
"""How long after its end an uncollected pod holds its node, at least: until its task's next try can have begun."""

SWITCH_MARGIN = timedelta(minutes=15)
"""How long after the last demand ends the cloud scales the groups to zero by itself."""

SWITCH_SLACK = timedelta(minutes=5)
"""A switch that is late by no more than this is not moved."""

_WHOLE_MINUTE = timedelta(minutes=1)  # a switch is set for the next whole minute
# Amazon EC2 Auto Scaling User Guide, "Scheduled scaling": a scheduled action may be delayed by up to two minutes.
_ACTION_IS_LATE = timedelta(minutes=2)


def unwatched_for(pool: GpuPool) -> timedelta:
    """Return how long a machine may run on after SIGTERM of its pods, until the cloud has ended it by itself.

    On EKS that is until the scheduled action has scaled its group to zero. On GKE a machine that came last may live for
    all of its `max_run_duration` (Compute Engine, "Limit the run time of a VM"). Machines that the cloud does not end
    by itself - `min_nodes`, existing ones, and those of a provisioner, which removes them without their pods - have
    the time of their pods to stop.
    """
    if pool.node_lifetime is not None:
        return TIME_TO_STOP + pool.node_lifetime
    if not pool.is_switched_off or pool.min_nodes:
        return TIME_TO_STOP
    return TIME_TO_STOP + SWITCH_MARGIN + _WHOLE_MINUTE + SWITCH_SLACK + _ACTION_IS_LATE
