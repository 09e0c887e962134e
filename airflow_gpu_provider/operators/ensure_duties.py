"""What EnsureGpuPoolOperator does beside nodes: it has images prefetched, and withdraws its demand when it fails."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.operators.ensure_arguments import check_names
from airflow_gpu_provider.tasks.xcom import push

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_gpu_provider.clouds.base import Plan
    from airflow_gpu_provider.cluster.demand_key import DemandKey
    from airflow_gpu_provider.cluster.pod_state import Json
    from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
    from airflow_gpu_provider.pools.prices import TooDear
    from airflow_gpu_provider.scaling.apply.reconcile import Reconciler


def apply_plan(
    ensure: EnsureGpuPoolOperator, reconciler: Reconciler, plan: Plan, nodes: int, over_quota: Collection[str]
) -> None:
    """Bring the groups to the plan; if that fails midway, to a new plan from there."""
    plans, platform, report = [plan], reconciler.platform, ensure.log.info
    ensure._call_with_retries(
        lambda: platform.apply(plans.pop() if plans else platform.plan(nodes), report, over_quota)
    )
    if any(change.action == "upgrade" for change in plan.changes):
        ensure._call_with_retries(lambda: reconciler.upgrade(report))


def begin_prefetch(ensure: EnsureGpuPoolOperator, reconciler: Reconciler, key: DemandKey) -> None:
    """Have the nodes pull the images as they join, once their demand is written; it fails nothing."""
    from airflow_gpu_provider.addons.prefetch import prefetch

    if not ensure.prefetch:
        return
    try:
        check_names(prefetch=ensure.prefetch, prefetch_secrets=ensure.prefetch_secrets)  # as they are rendered
        prefetch(reconciler.api, ensure.gpu_pool, key, ensure.prefetch, ensure.prefetch_secrets)
    except GpuError as error:
        ensure.log.warning("No image is pulled before the trainings do so: %s", error)
    else:
        ensure.log.info("The nodes pull %s as soon as they join.", ", ".join(ensure.prefetch))


def prefetched(
    ensure: EnsureGpuPoolOperator,
    opened: Callable[[], Reconciler],
    result: Mapping[str, Any],
    context: Context,
) -> list[Json]:
    """Return the pulls that are over as phases of the timeline, which overlap the others; say which are not.

    Those that an earlier try has waited beside are not among them.
    """
    from airflow_gpu_provider.addons.prefetch import pulls
    from airflow_gpu_provider.tasks.run_identity import run_key

    if not ensure.prefetch:
        return []
    key = run_key(context, ensure.gpu_pool.name, ensure.block_id)
    try:
        phases, left = pulls(opened().api, key, [node["name"] for node in result["nodes"]])
    except GpuError as error:
        ensure.log.warning("How far the images are pulled is not known: %s", error)
        return []
    for image, why in left.items():
        if why:
            ensure.log.warning("The nodes cannot pull image %s for prefetch: %s", image, why)
        else:
            ensure.log.info("The nodes still pull image %s; the run goes on meanwhile.", image)
    since = min((each["at"] for each in result["timeline"]), default="")
    return [each for each in phases if each["at"] >= since]


_TOO_DEAR = "too_dear"


@contextmanager
def giving_up_on_failure(
    operator: EnsureGpuPoolOperator, opened: Callable[[], Reconciler], key: DemandKey, context: Context
) -> Iterator[None]:
    """Withdraw a run's demand when its task fails; a deferral is not a failure.

    An error of the withdrawal is only logged. The candidates that had no machine are pushed to XCom, for the web UI: a
    failed task returns nothing.
    """
    from airflow_gpu_provider.scaling.end.release_now import WHEN_KILLED, release_quietly

    try:
        yield
    except TaskDeferred:
        raise
    except BaseException as error:
        operator.log.info("Withdrawing this run's demand for nodes.")
        within = WHEN_KILLED if operator._stop.error is not None else None
        release_quietly(opened, key, log=operator.log, within=within)
        if isinstance(error, GpuError) and (tried := error.details.get("tried")):
            push(context, "tried", [*tried, *too_dear_of(operator, context)])
        raise


def push_too_dear(found: Sequence[TooDear], at: datetime, context: Context) -> None:
    """Push the candidates that are not tried for their price to XCom: the task may go on in another process."""
    from airflow_gpu_provider.scaling.decide.scarce_capacity import not_tried

    if found:
        push(context, _TOO_DEAR, [not_tried(each, at) for each in found])


def too_dear_of(operator: EnsureGpuPoolOperator, context: Context) -> list[Any]:
    """Return these candidates, as `tried` in a result has them."""
    if operator.gpu_pool.max_price_per_hour is None:
        return []
    return list(context["ti"].xcom_pull(task_ids=operator.task_id, key=_TOO_DEAR) or [])
