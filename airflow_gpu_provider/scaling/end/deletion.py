"""Deleting a pool: refuse while it is in use, delete its groups, delete its leases."""

from __future__ import annotations

from contextlib import suppress

from airflow_gpu_provider.clouds.base import Report
from airflow_gpu_provider.cluster.api.leases import read_lease
from airflow_gpu_provider.cluster.api.rest import call
from airflow_gpu_provider.cluster.model.lease import LEASES
from airflow_gpu_provider.cluster.model.refusals import ObjectChanged, ObjectNotFound
from airflow_gpu_provider.errors import PoolInUse
from airflow_gpu_provider.ledger import usage
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand_leases import delete_demand, list_demand
from airflow_gpu_provider.scaling.state.lock import PoolLock


def delete_pool(reconciler: Reconciler, *, force: bool, report: Report) -> tuple[str, ...]:
    """Start to delete the pool's groups, under its lock; return their names. The pool's demand is released.

    Raises:
        PoolInUse: A pod is on its nodes or waits for one, or a run wants nodes; not raised with `force`.
    """
    with PoolLock(reconciler.api, reconciler.pool.name, reconciler.holder, report=report) as lock:
        snapshot = reconciler.snapshot(lock)
        users = _users(snapshot)
        if users and not force:
            raise PoolInUse(
                f"Pool {reconciler.pool.name} is in use by {', '.join(users)}; nothing was deleted.",
                "Wait until they are done, or delete it with force=True.",
                pool=reconciler.pool.name,
                users=users,
            )
        for user in users:
            report(f"{user} uses the pool, and loses its nodes: force=True")
        for lease in snapshot.leases:
            lock.check()
            delete_demand(reconciler.api, lease.key)
        lock.check()
        reconciler.platform.delete(report)
        lock.memo = ""  # this is about the groups being deleted now
        return tuple(group.name for group in snapshot.groups if group.owned)


def delete_pool_records(reconciler: Reconciler, report: Report) -> None:
    """Delete what is left of a pool that is gone, if no run wants it again: its tasks' code, the ledger, the lock's
    Lease, and in the cloud what was made beside its groups.
    """
    if list_demand(reconciler.api, reconciler.pool.name):
        return
    reconciler.platform.delete_remains(report)
    reconciler.delete_code(reconciler.code())
    usage.delete_usage(reconciler.api, reconciler.pool.name)
    lock = PoolLock(reconciler.api, reconciler.pool.name, reconciler.holder)
    found = read_lease(reconciler.api, lock.name)
    if found and not found["spec"].get("holderIdentity"):
        exactly = {"resourceVersion": found["metadata"]["resourceVersion"]}
        with suppress(ObjectNotFound, ObjectChanged):  # another process took it, or it is gone
            path = f"{LEASES}/{lock.name}"
            call(reconciler.api, "delete", path, resource="leases", body={"preconditions": exactly})


def _users(snapshot: PoolSnapshot) -> list[str]:
    pods = (pod for pod in snapshot.pods if not pod.daemon)
    held = [f"pod {pod}" for pod in pods if pod.holds_node(snapshot.now) or (pod.node is None and not pod.finished)]
    return [*(f"the run {lease.key}" for lease in snapshot.live_leases), *held]
