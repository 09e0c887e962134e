"""ExtendGpuPoolOperator: keeps a run's nodes longer, by time or by money, for a manually triggered DAG."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.values import are_strings, as_tuple, is_template
from airflow_gpu_provider.tasks.pool_operator import PoolOperator, check_pools
from airflow_gpu_provider.tasks.xcom import push

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_gpu_provider.pools import GpuPool


_MOST_HOURS = 8760  # a year


class ExtendGpuPoolOperator(PoolOperator):
    """Keep the nodes of a DAG run longer: extend its demand for a pool, and with it the groups' switches.

    It is for a night that takes longer: a training that runs, tasks still to come. Where a pod that runs ends before
    all the same, by its activeDeadlineSeconds or with its machine, nothing is extended unless `pods_may_end`
    (docs/janitor.md). Either `hours` or `max_cost` is given; with a reason, `hours` are given whatever they cost.

    Who may trigger its DAG may spend what `dag_ids` and `most_hours` allow: the pool's connection does it, and Airflow
    is not asked whether they may edit the DAG of that run.

    Args:
        gpu_pools: The pools to choose from.
        pool_name: The chosen pool; default: the only one given.
        dag_id_of_run, run_id: The run whose nodes are kept.
        hours: How much longer: a number, or a numeric string.
        max_cost: What each block of the run may cost in all, over all of its tries, instead of the `max_cost` that
            its DAG says: more than that, as a number or a numeric string. It does not exceed the pool's `max_runtime`.
        reason: Why. Required for more money, and beyond the pool's `max_runtime`, counted from the run's Ensure;
            `airflow gpu status` shows it.
        block_id: EnsureGpuPoolOperator's. Default: all of the run's blocks on the pool.
        pods_may_end: Extend it for what starts later, although a pod that runs ends before: a bool, or text that reads
            as one. Default False.
        dag_ids: The DAGs whose runs may be extended, as globs like "team-a-*". Not a template. Default: all that use
            the pools.
        most_hours: How many hours all extensions of a block's demand together may add, above 0, those by money
            included. Not a template. Default: the pool's `max_runtime` once more.

    Returns:
        list: `[{"pool", "run", "before", "until", "max_cost"}]`, one for each block, times in ISO 8601; `max_cost` is
        None for one without a limit.

    Its pools are the XCom "extends_pools", `[{"pool", "cluster"}]`, by which the page in the web UI finds this DAG.

    Raises:
        PoolSpecError: No pool is given, or several without pool_name, or `dag_ids` or `most_hours` is not acceptable
            (when the DAG is parsed), or none has this name.
        DemandNotExtended: The run is over or wants no nodes of the pool, `hours`, `max_cost` or `reason` is not
            acceptable, `dag_ids` or `most_hours` does not allow it, or a pod that runs ends before. Nothing is changed.
        PriceUnknown, BudgetExceeded: How long `max_cost` lasts is not known, or it is used already.
    """

    gpu_role = "extend"
    template_fields: Sequence[str] = (
        "gpu_pools",
        "pool_name",
        "dag_id_of_run",
        "run_id",
        "hours",
        "max_cost",
        "reason",
        "block_id",
        "pods_may_end",
    )
    _doing = "extended a run's demand"
    ui_color = "#e6ddf2"

    def __init__(
        self,
        *,
        gpu_pools: Sequence[GpuPool],
        dag_id_of_run: str,
        run_id: str,
        hours: float | str | None = None,
        max_cost: float | str | None = None,
        pool_name: str | None = None,
        reason: str | None = None,
        block_id: str | None = None,
        dag_ids: Sequence[str] | None = None,
        most_hours: float | None = None,
        pods_may_end: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.gpu_pools = gpu_pools
        self.pool_name = pool_name
        self.dag_id_of_run = dag_id_of_run
        self.run_id = run_id
        self.hours = hours
        self.max_cost = self._by_keyword("max_cost", max_cost, None)
        self.reason = reason
        self.block_id = block_id
        self.dag_ids = _globs(dag_ids)
        self.most_hours = _most(most_hours)
        self.pods_may_end = pods_may_end
        check_pools(gpu_pools)
        if pool_name is None and len(gpu_pools) > 1:
            names = ", ".join(pool.name for pool in gpu_pools)
            raise PoolSpecError(f"gpu_pools has {names}.", "Choose one of them: pool_name=.")
        if not gpu_pools:
            raise PoolSpecError("gpu_pools is empty.", "Name the pools that runs use.")

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from airflow_gpu_provider.scaling.end.extension import Allowance, amount, extend_demand, hours
        from airflow_gpu_provider.scaling.state.demand import reason_of
        from airflow_gpu_provider.tasks.run_identity import run_is_over
        from airflow_gpu_provider.times import format_time

        # First of all: the page asks for a DAG that has these pools, not for one that has extended a run.
        pools = [{"pool": each.name, "cluster": each.cluster_identity} for each in self.gpu_pools]
        push(context, "extends_pools", pools)
        pool, reason = self._chosen(), reason_of(self.reason or "")
        done = extend_demand(
            self._open(context, pool),
            dag_id=self.dag_id_of_run,
            run_id=self.run_id,
            run_is_over=partial(run_is_over, context),
            allowance=Allowance(
                dag_ids=self.dag_ids,
                most=None if self.most_hours is None else timedelta(hours=self.most_hours),
            ),
            by=None if (given := _given(self.hours)) is None else hours(given),
            max_cost=None if (most := _given(self.max_cost)) is None else amount(most),
            reason=reason,
            block=self.block_id,
            pods_may_end=str(self.pods_may_end).strip().lower() == "true",
        )
        for each in done:
            for line in each.log_lines:
                self.log.info("%s", line)
            times = (f"{at:%Y-%m-%d %H:%MZ}" for at in (each.until, each.before))
            because = f" ({reason})" if reason else ""
            money = "" if each.max_cost is None else f", or until they have cost {each.max_cost:g} {pool.currency}"
            self.log.info(
                "Pool %s: the nodes of %s are wanted until %s%s; it was until %s%s",
                pool.name,
                each.key,
                next(times),
                "" if most is None else money,
                next(times),
                because,
            )
        return [
            {
                "pool": pool.name,
                "run": str(each.key),
                "before": format_time(each.before),
                "until": format_time(each.until),
                "max_cost": each.max_cost,
            }
            for each in done
        ]

    def _chosen(self) -> GpuPool:
        names = [pool.name for pool in self.gpu_pools]
        if self.pool_name is None and len(names) == 1:
            return self.gpu_pools[0]
        found = [pool for pool in self.gpu_pools if pool.name == self.pool_name]
        if not found:
            raise PoolSpecError(f"There is no pool {self.pool_name!r}.", f"There is {', '.join(names)}.")
        return found[0]


def _globs(dag_ids: Sequence[str] | None) -> tuple[str, ...]:
    """Return dag_ids as a tuple, all DAGs for None; raises PoolSpecError."""
    given = ("*",) if dag_ids is None else as_tuple(dag_ids)
    if not are_strings(given) or not given or not all(each.strip() for each in given) or is_template(given):
        raise PoolSpecError(
            f"dag_ids={dag_ids!r}.", 'Give a list of DAG ids or globs, like ["team-a-*"]; no templates.'
        )
    return tuple(given)


def _most(most_hours: float | None) -> float | None:
    """Return most_hours; raises PoolSpecError where it is no number of hours above 0."""
    is_number = isinstance(most_hours, int | float) and not isinstance(most_hours, bool)
    if most_hours is not None and not (is_number and 0 < most_hours <= _MOST_HOURS):
        raise PoolSpecError(f"most_hours={most_hours!r}.", f"Give a number of hours above 0, at most {_MOST_HOURS}.")
    return most_hours


def _given(value: float | str | None) -> float | str | None:
    """Return an argument; None if it is not given, which a template renders as an empty string, or as "None"."""
    return None if str(value).strip() in ("", "None") else value
