"""How long EnsureGpuPoolOperator tries: what of `give_up_after` can be said when the DAG is parsed."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

from airflow_gpu_provider.errors import PoolSpecError


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
