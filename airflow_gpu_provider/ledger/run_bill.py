"""What a run's nodes did and cost, told: in the task's log, and as Airflow metrics."""

from __future__ import annotations

from typing import Any

from airflow_gpu_provider.money.amounts import UNKNOWN
from airflow_gpu_provider.money.bill import PHASES, Bill, Phase
from airflow_gpu_provider.money.prices import LIST_PRICE
from airflow_gpu_provider.pools.demand_key import DemandKey


def log_bill(log: Any, key: DemandKey, bill: Bill) -> None:
    """Write it to the task's log; idle time that the run's tasks could have left out is a warning, if it is much."""
    what = ", ".join(_phase(bill, phase) for phase in PHASES)
    machines = f"{bill.machines} node{'s' * (bill.machines != 1)}"
    cost = f"{_money(bill.total_cost, bill.currency)}{' at list prices' * (bill.price_source == LIST_PRICE)}"
    total = f"{_hours(bill.total_seconds)} of node time on {machines}: {what}; cost in all: {cost}."
    if bill.at_least:
        log.warning(
            "Run %s used at least %s The true numbers may be higher: %s.", key, total, bill.at_least.rstrip(".")
        )
    else:
        log.info("Run %s used %s", key, total)
    if bill.over_max_cost:
        over = _money(bill.over_max_cost, bill.currency)
        log.warning("Run %s cost %s more than its max_cost; docs/cost.md has what can make it so.", key, over)
    if bill.is_idle:
        log.warning(
            "%.0f %% of the run's node time on pool %s was idle while it still wanted the nodes (%s): no run had a pod"
            " with GPUs there, so also while Airflow started no task. Ask for fewer nodes, start the tasks closer"
            " together, or move tasks without GPUs out of the block.",
            100 * bill.idle_before_release / bill.total_seconds,
            key.pool,
            _hours(bill.idle_before_release),
        )


def measure(key: DemandKey, bill: Bill) -> None:
    """Set the gauges `gpu_provider.node_seconds.<phase>`, and `gpu_provider.cost.<phase>` where the price is known.

    Gauges and not counters: a scale-down that is tried again says the same once more.
    """
    from airflow.providers.common.compat.sdk import Stats

    tags = {"pool": key.pool, "dag_id": key.dag_id}
    for phase in PHASES:
        Stats.gauge(f"gpu_provider.node_seconds.{phase}", bill.seconds[phase], tags=tags)
        cost = bill.cost[phase]
        if cost is not None:
            Stats.gauge(f"gpu_provider.cost.{phase}", cost, tags={**tags, "currency": bill.currency})


def _phase(bill: Bill, phase: Phase) -> str:
    text = f"{_hours(bill.seconds[phase])} {phase} ({_money(bill.cost[phase], bill.currency)})"
    return f"{text}, {bill.computed.in_words()}" if phase == "working" and bill.computed else text


def _hours(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _money(cost: float | None, currency: str) -> str:
    return UNKNOWN if cost is None else f"{cost:.{2 if cost >= 1 or cost == 0 else 4}f} {currency}"
