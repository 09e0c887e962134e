"""What tasks of this package leave in XCom, made by the same functions: nights on one machine, looks of a janitor."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.money.bill import bill
from airflow_gpu_provider.money.run_usage import Computed, MachineUse, RunUsage
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.reports.doctor import Finding
from airflow_gpu_provider.reports.status import HangRow, LeaseRow, MachineRow, PoolStatus
from airflow_gpu_provider.scaling.wait.records import phase
from airflow_gpu_provider.tasks.pool_operator import leave_error
from airflow_gpu_provider.times import format_time
from airflow_gpu_provider.training.wait.gpu_use import GpuUse, Reading, Sample

Conf = dict[str, Any]

CLUSTER = "eks/aws_default/us-west-2/k8s-ml"
"""`GpuPool.cluster_identity` of the pools that looks see, and that extend_run has."""

BOOT, WORK, IDLE = timedelta(minutes=2), timedelta(hours=1), timedelta(seconds=90)


def usage(
    launched: datetime,
    *,
    price: float | None = 1.0,
    at_least: str = "",
    work: timedelta = WORK,
    computed: float | None = None,
) -> Conf:
    """The bill of a night on one machine, which boots for two minutes and is idle for one and a half.

    `computed` is what the GPUs did in the first half of the work, as a share of it; None: nobody asked.
    """
    pool = KubernetesGpuPool(name="train-gpu", max_nodes=1, nodes=["node-1"], price_per_hour=price)
    key = DemandKey(installation="here", dag_id="nightly", run_id="any", pool=pool.name)
    usable = launched + BOOT
    worked, gone = (usable, usable + work), usable + work + IDLE
    machine = MachineUse(
        id=f"i-{launched:%m%d%H}",
        node=f"node-{launched:%m%d%H}",
        group="train-gpu-a",
        market="spot",
        launched_at=launched,
        usable_at=usable,
        seen_until=gone,
    )
    sampled = Computed(node=machine.node, span=(usable, usable + work / 2), gpus=1, share=computed or 0.0)
    run = RunUsage(
        key=key,
        wanted=((launched, gone),),
        worked={machine.node: (worked,)},
        computed={} if computed is None else {"pod": sampled},
    )
    return bill(pool, key, [run], [machine], at_least=at_least).to_json()


def night(pool: str, launched: datetime, bill: Any, *, error: str = "") -> Conf:
    """A run's conf: what each of its tasks leaves. A `bill` that is text is a custom XCom backend's reference."""
    usable = launched + BOOT
    waited = [phase("machine launched", launched, launched + timedelta(seconds=20)), phase("booted", launched, usable)]
    ran = [phase("image pulled", usable, usable + timedelta(seconds=10)), phase("ran", usable, usable + WORK)]
    ensured = {"pool": pool, "nodes": ["node-1"], "timeline": waited}
    use = GpuUse().plus(Sample((Reading(percent=38, memory_mib=72704, power_w=None, limit_w=None),)))
    return {
        f"{pool}.ensure": {"xcoms": {"return_value": ensured}},
        f"{pool}-train": {"xcoms": {"timeline": ran, "utilization": use.to_json()}},
        f"{pool}.scale_down": {"xcoms": {"usage": bill}, "error": error},
    }


def status(pool: str, runs: dict[str, datetime], *, max_cost: float | None = None, **changed: Any) -> Conf:
    """A pool with a node that runs a pod and a machine that boots; `runs` want a node each, until those times.

    Each may cost `max_cost`, of which it has used half a USD.
    """
    at = format_time(datetime.now(UTC))
    limit = {"max_cost": max_cost, "spent": 0.5, "at": at, "left": (max_cost or 0) - 0.5, "per_hour": 1.0, "raised": ""}
    budget = {} if max_cost is None else limit

    def machine(name: str, **of_row: Any) -> MachineRow:
        usual: Conf = {"state": "usable", "gpus": 1, "gpus_used": 0, "pods": (), "age_seconds": 900.0}
        costs = {"cost_per_hour": 1.0, "cost_so_far": 0.25}
        names = {"machine": f"i-{name}", "node": f"node-{name}", "group": f"{pool}-a"}
        return MachineRow(pool=pool, **(names | usual | costs | of_row))

    def lease(run: str, until: datetime) -> LeaseRow:
        is_live = until > datetime.now(UTC)
        times = {"until": format_time(until), "live": is_live}
        return LeaseRow(pool=pool, run=run, installation="here", nodes=1, budget=budget, **times)

    seen: Conf = {
        "cluster": CLUSTER,
        "where": "account 123456789012, cluster k8s-ml",
        "wanted": len(runs),
        "wanted_by": ", ".join(f"{run} (1 node)" for run in runs) or "nobody",
        "nodes": 1,
        "booting": 1,
        "out_of_use": 0,
        "launching": 0,
        "gpus": 1,
        "gpus_used": 1,
        "gpus_idle": 0,
        "cost_per_hour": 2.0,
        "currency": "USD",
        "machines": (
            machine("1", gpus_used=1, pods=("default/train-abc",), runs=tuple(runs)),
            machine("2", node="", state="coming", gpus=0),
        ),
        "leases": tuple(lease(run, until) for run, until in runs.items()),
    }
    return PoolStatus(pool=pool, **(seen | changed)).to_json()


def hang(pool: str, run: str) -> HangRow:
    """A run's training on eight nodes that may hang."""
    return HangRow(
        pool=pool,
        run=run,
        pod="default/train-0",
        pods=8,
        since=format_time(datetime.now(UTC)),
        shown_by="busy at a draw near that of idle ones (70 W of 700 W each)",
    )


def error(task_id: str, ended_by: GpuError) -> Conf:
    """What a task leaves of the error that ended it."""
    left: Conf = {}
    leave_error(
        SimpleNamespace(task_id=task_id, map_index=-1, xcom_push=lambda key, value: left.update(value)), ended_by
    )
    return left


def finding(result: Any, said: str, *, pool: str = "train-gpu", check: str = "quota", fix: str = "") -> Conf:
    return Finding(pool=pool, check=check, result=result, message=said, fix=fix).to_json()


def extends(*pools: str) -> Conf:
    """A run's conf of a DAG that extends runs on these pools: what its task leaves first of all."""
    return {"extend": {"xcoms": {"extends_pools": [{"pool": name, "cluster": CLUSTER} for name in pools]}}}


def look(statuses: Any, findings: list[Conf]) -> Conf:
    """A janitor's run; a doctor that found a problem fails."""
    problems = [each["message"] for each in findings if each["result"] == "problem"]
    return {
        "reap": {"xcoms": {"reaped": []}},
        "doctor": {"xcoms": {"findings": findings}, "error": "; ".join(problems)},
        "status": {"xcoms": {"return_value": statuses}},
    }
