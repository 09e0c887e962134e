"""When EnsureGpuPoolOperator gives up, as far as it is known when the DAG is parsed, and what it releases then."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider.errors import GpuError, PoolSpecError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_gpu_provider.cluster.demand_key import DemandKey
    from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
    from airflow_gpu_provider.pools.prices import TooDear
    from airflow_gpu_provider.scaling.apply.reconcile import Reconciler

_TOO_DEAR = "too_dear"


def check_give_up_after(task_id: str, give_up_after: timedelta, timeout: timedelta, pool: Any) -> None:
    """Refuse a `give_up_after` that is shorter than one attempt, and warn of one that allows no second one.

    Raises:
        PoolSpecError: It is shorter than `timeout`.
    """
    from airflow_gpu_provider.platforms.backoff import FIRST

    if give_up_after < timeout:
        raise PoolSpecError(
            f"give_up_after={give_up_after} is shorter than timeout={timeout}, one attempt's time.",
            "Raise give_up_after, or lower the timeout.",
        )
    if give_up_after <= FIRST and getattr(pool, "scaling", None) == "direct":
        warnings.warn(
            f"Task {task_id}: give_up_after={give_up_after} allows one try of each zone and type: one that has no"
            f" capacity is not tried again for {FIRST}. Raise give_up_after.",
            stacklevel=2,
        )


@contextmanager
def giving_up_on_failure(
    operator: EnsureGpuPoolOperator, reconciler: Reconciler, key: DemandKey, context: Context
) -> Iterator[None]:
    """Withdraw a run's demand when its task fails; a deferral is not a failure."""
    try:
        yield
    except TaskDeferred:
        raise
    except BaseException as error:
        give_up(operator, lambda: reconciler, key)
        push_tried(operator, error, context)
        raise


def push_tried(operator: EnsureGpuPoolOperator, error: BaseException, context: Context) -> None:
    """Push the candidates that had no machine to XCom, for the web UI: a failed task returns nothing."""
    if isinstance(error, GpuError) and (tried := error.details.get("tried")):
        context["ti"].xcom_push(key="tried", value=[*tried, *too_dear_of(operator, context)])


def push_too_dear(found: Sequence[TooDear], at: datetime, context: Context) -> None:
    """Push the candidates that are not tried for their price to XCom: the task may go on in another process."""
    from airflow_gpu_provider.scaling.decide.scarce_capacity import not_tried

    if found:
        context["ti"].xcom_push(key=_TOO_DEAR, value=[not_tried(each, at) for each in found])


def too_dear_of(operator: EnsureGpuPoolOperator, context: Context) -> list[Any]:
    """Return these candidates, as `tried` in a result has them."""
    if operator.gpu_pool.max_price_per_hour is None:
        return []
    return list(context["ti"].xcom_pull(task_ids=operator.task_id, key=_TOO_DEAR) or [])


def give_up(operator: EnsureGpuPoolOperator, opened: Callable[[], Reconciler], key: DemandKey) -> None:
    """Withdraw the demand; an error is only logged, so that it does not replace the task's first one."""
    from airflow_gpu_provider.scaling.end.release_now import WHEN_KILLED, release_quietly

    operator.log.info("Withdrawing this run's demand for nodes.")
    within = WHEN_KILLED if operator._stop.error is not None else None
    release_quietly(opened, key, log=operator.log, within=within)
