"""What a run's nodes did and cost, told: in the task's log, and as Airflow metrics."""

from __future__ import annotations

from typing import Any

from airflow_gpu_provider.cluster.demand import DemandKey
from airflow_gpu_provider.scaling.bill import MUCH_IDLE, PHASES, Bill, Phase
from airflow_gpu_provider.scaling.cost import UNKNOWN


def log_bill(log: Any, key: DemandKey, bill: Bill) -> None:
    """Say it in the task's log; too much idle time is a warning."""
    what = ", ".join(_phase(bill, phase) for phase in PHASES)
    machines = f"{bill.machines} node{'s' * (bill.machines != 1)}"
    total = f"{_hours(bill.total_seconds)} of node time on {machines}: {what}; cost in all: {_money(bill.total_cost)}."
    if bill.at_least:
        log.warning("Run %s used at least %s It may be more: %s.", key, total, bill.at_least.rstrip("."))
    else:
        log.info("Run %s used %s", key, total)
    if bill.idle_share > MUCH_IDLE:
        log.warning(
            "%.0f %% of the run's node time on pool %s was idle (%s, cost %s): no run had a pod with GPUs there."
            " Want fewer nodes, or let tasks start sooner after one another.",
            100 * bill.idle_share,
            key.pool,
            _hours(bill.seconds["idle"]),
            _money(bill.cost["idle"]),
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
            Stats.gauge(f"gpu_provider.cost.{phase}", cost, tags=tags)


def _phase(bill: Bill, phase: Phase) -> str:
    said = f"{_hours(bill.seconds[phase])} {phase} ({_money(bill.cost[phase])})"
    return f"{said}, {bill.computed.in_words()}" if phase == "working" and bill.computed else said


def _hours(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _money(cost: float | None) -> str:
    return UNKNOWN if cost is None else f"{cost:.2f}" if cost >= 1 or cost == 0 else f"{cost:.4f}"
