"""What EnsureGpuPoolOperator reports: which nodes there are, how long they stay, or why there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.tasks.xcom import push

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_gpu_provider.money.prices import TooDear
    from airflow_gpu_provider.pools import GpuPool
    from airflow_gpu_provider.pools.demand_key import DemandKey
    from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot

_TOO_DEAR = "too_dear"


def bring_nothing(log: Any, pool: str) -> dict[str, Any]:
    log.warning(
        "Pool %s: all tasks of the block have already started or ended, so no nodes are added. Either the DAG file was"
        " changed during the run, or only this task was cleared. A task that is retried requests its own node.",
        pool,
    )
    counts: dict[str, Any] = {"gpus": 0, "wanted": 0, "got": 0}
    return {"pool": pool, "nodes": [], **counts, "tried": [], "plan": [], "timeline": []}


def kept_until(snapshot: PoolSnapshot, key: DemandKey) -> str:
    """Return how long nodes stay that no scale-down releases."""
    from airflow_gpu_provider.scaling.decide.snapshot import own_lease, plural

    lease = own_lease(snapshot, key)
    return (
        f"keep=True, and no ScaleDownSensor is sure to run after this task: {plural(lease.nodes, 'node')} of pool"
        f" {key.pool} {'stays' if lease.nodes == 1 else 'stay'} until {lease.until:%Y-%m-%d %H:%MZ}; once the run is"
        " over, a janitor or `airflow gpu reap` removes what it finds"
    )


def push_too_dear(found: Sequence[TooDear], at: datetime, context: Context) -> None:
    """Push the candidates that are not tried for their price to XCom: the task may go on in another process."""
    from airflow_gpu_provider.scaling.decide.scarce_capacity import not_tried

    if found:
        push(context, _TOO_DEAR, [not_tried(each, at) for each in found])


def too_dear_of(pool: GpuPool, context: Context) -> list[Any]:
    """Return these candidates, as `tried` in a result has them."""
    if pool.max_price_per_hour is None:
        return []
    ti = context["ti"]
    return list(ti.xcom_pull(task_ids=ti.task_id, key=_TOO_DEAR) or [])


def log_nodes(log: Any, pool: GpuPool, result: Mapping[str, Any]) -> None:
    """Log EnsureGpuPoolOperator's result: which nodes, where no capacity was found, and how long each phase took."""
    from airflow_gpu_provider.scaling.decide.scarce_capacity import tried_in_words

    got, wanted = result.get("got", 0), result.get("wanted", 0)
    if wanted:
        names = ", ".join(f"{node['name']}{_type_and_zone(node)}" for node in result["nodes"])
        log.info("Pool %s has its nodes: %s", pool.name, names or "none yet, they come when pods do")
    else:
        least = f" besides its min_nodes={pool.min_nodes}" if pool.min_nodes else ""
        log.info(
            "Pool %s is prepared, and nodes=0 requests none%s: they come when a run or a pod wants some.",
            pool.name,
            least,
        )
    if got < wanted:
        log.warning("Pool %s has %d of %d requested nodes; continuing (at_least).", pool.name, got, wanted)
    for each in result.get("tried", ()):
        where = f"{each['instance_type']} {each['capacity_type']} in {each['zone']}"
        often = tried_in_words(each["times"]) if each["times"] else "not tried"
        log.info("  no %s, %s: %s", where, often, each["why"])
    for phase in result["timeline"]:
        log.info("  %-18s %6.1f s  %s", phase["phase"], phase["seconds"], phase.get("image", ""))


def _type_and_zone(node: Mapping[str, Any]) -> str:
    """Return "" for a node outside a cloud, which has neither."""
    return f" ({node['instance_type']} in {node['zone']})" if node["instance_type"] and node["zone"] else ""
