"""DeleteGpuPoolOperator: deletes a pool's groups, only those that this package created."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import PoolNotReleased
from airflow_gpu_provider.tasks.pool_operator import PoolOperator, duration, given_pool

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_gpu_provider.clouds.base import Group
    from airflow_gpu_provider.pools import GpuPool
    from airflow_gpu_provider.scaling.apply.reconcile import Reconciler

_POLL_SECONDS = 5.0
_TRIES = 3
"""How often a deletion that the cloud gave up is requested again; what it shows may be of before the last one."""


class DeleteGpuPoolOperator(PoolOperator):
    """Delete the groups that this package created for a pool, and its records of the pool in the cluster.

    Groups that others created are left alone. A second run deletes nothing. A pool in use is left as it is: a pod is on
    its nodes, or a run has live demand.

    Args:
        gpu_pool: The pool. (Airflow's own `pool` is a slot pool, and keeps its meaning.)
        force: Delete it even if it is in use; its pods end with their nodes. Default False.
        timeout: How long to wait until the groups are gone. Default 30 minutes.

    Returns:
        dict: `{"pool", "deleted": [group, ...]}`.

    Raises:
        PoolInUse: Pods run there, or a run wants nodes; nothing was deleted.
        PoolNotReleased: The groups are not gone in time, or the cloud cannot delete one, for the reasons that it gives.
    """

    gpu_role = "delete"
    template_fields: Sequence[str] = ("gpu_pool", "force")
    _doing = "deleted pool {pool}"
    ui_color = "#f2d9d9"

    def __init__(
        self,
        *,
        gpu_pool: GpuPool,
        force: bool = False,
        timeout: float | timedelta = timedelta(minutes=30),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.gpu_pool = given_pool(gpu_pool)
        self.force = force
        self.wait_timeout = duration("timeout", timeout)

    def execute(self, context: Context) -> dict[str, Any]:
        from airflow_gpu_provider.scaling.end.deletion import delete_pool, delete_pool_records

        reconciler = self._open(context, self.gpu_pool)
        groups = delete_pool(reconciler, force=bool(self.force), report=self.log.info)
        self._wait(reconciler, groups)
        delete_pool_records(reconciler, self.log.info)
        self.log.info("Pool %s is deleted: %s", self.gpu_pool.name, ", ".join(groups) or "it had no group")
        return {"pool": self.gpu_pool.name, "deleted": list(groups)}

    def _wait(self, reconciler: Reconciler, groups: tuple[str, ...]) -> None:
        """Request again the deletion of each remaining group that is not being deleted.

        EKS refuses to delete one that is being updated, and gives up what it cannot delete: DELETE_FAILED stays until
        somebody deletes again.
        """
        deadline = time.monotonic() + self.wait_timeout.total_seconds()
        given_up: Counter[str] = Counter()
        while left := [group for group in reconciler.platform.observe() if _is_there(group)]:
            given_up.update(group.name for group in left if group.status == "failed")
            self._check(left, given_up)
            if time.monotonic() > deadline:
                names = ", ".join(group.name for group in left)
                raise PoolNotReleased(
                    f"Pool {self.gpu_pool.name}: {names} of {', '.join(groups)} are still there"
                    f" after {self.wait_timeout}.",
                    "Look at them in the cloud's console, and run the task again.",
                    pool=self.gpu_pool.name,
                    groups=[group.name for group in left],
                )
            time.sleep(_POLL_SECONDS)
            if any(group.status != "deleting" for group in left):
                reconciler.platform.delete(self.log.info)

    def _check(self, left: Sequence[Group], given_up: Counter[str]) -> None:
        lost = [group for group in left if group.status == "failed" and given_up[group.name] > _TRIES]
        if lost:
            why = "; ".join(f"{group.name}: {', '.join(group.issues) or 'no reason given'}" for group in lost)
            raise PoolNotReleased(
                f"Pool {self.gpu_pool.name}: the cloud could not delete {why}.",
                "Put back, or let go of, what the reasons name, and run the task again.",
                pool=self.gpu_pool.name,
                groups=[group.name for group in lost],
            )


def _is_there(group: Group) -> bool:
    """Return True if a group is still to be deleted: external groups stay.

    External machines form a group only by their labels; a provisioner removes its own in its own time.
    """
    return group.owned and (group.when_idle == "remove" or (bool(group.machines) and not group.provisioner))
