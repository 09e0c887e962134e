"""ReapGpuPoolsOperator: the janitor of GPU pools, for a scheduled DAG."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import PoolNotReleased, PoolSpecError
from airflow_gpu_provider.tasks.pool_operator import PoolOperator, check_pools, duration
from airflow_gpu_provider.tasks.xcom import push

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_gpu_provider.pools import GpuPool
    from airflow_gpu_provider.scaling.end.janitor import Reaped


class ReapGpuPoolsOperator(PoolOperator):
    """Find what no live run wants in GPU pools, report what it has cost, and remove it.

    That is: demand of DAG runs that are over, their pods, machines that no run wants, and group
    size that is requested in vain. Airflow is asked whether a run is over, for runs of this installation; demand of
    others lasts until it expires. Everything is removed under the pool's lock, as ScaleDownSensor does.

    Args:
        gpu_pools: The pools to check.
        others: Also check pools not among them that this package has used in the same clusters through the same
            connections, such as those of deleted DAGs; with external groups only if `gpu_pools` names these groups,
            too. The log has what is left out, and why. Default True.
        dry_run: Only report. Default False.
        timeout: How long each pool's pods and machines may take to go. Default 5 minutes; the rest is left to the next
            run.

    Returns:
        list: `[{"pool", "where", "named", "leftovers": [...], "left": [...], "cost", "currency", "error"}]`; `cost` is
        what the unwanted machines have cost so far, by the pool's `price_per_hour`, or "unknown". It is also the XCom
        "reaped", which is pushed even if the task fails.

    Raises:
        PoolSpecError: No pool is given; when the DAG is parsed.
        PoolNotReleased: Something is left.
        GpuError: The first error that prevented a pool from being checked; the others were checked.
    """

    gpu_role = "reap"
    template_fields: Sequence[str] = ("gpu_pools", "others", "plan_only")
    _doing = "looked for leftovers"
    ui_color = "#f2d9d9"

    def __init__(
        self,
        *,
        gpu_pools: Sequence[GpuPool],
        others: bool = True,
        dry_run: bool = False,
        timeout: float | timedelta = timedelta(minutes=5),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.gpu_pools = gpu_pools
        self.others = others
        self.plan_only = dry_run
        self.wait_timeout = duration("timeout", timeout)
        check_pools(gpu_pools)
        if not gpu_pools:
            raise PoolSpecError("gpu_pools is empty.", "Name the pools to look at.")

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from airflow_gpu_provider.scaling.end.janitor import reap_pools
        from airflow_gpu_provider.tasks.run_identity import installation_id, pool_opener, run_is_over

        reaped = reap_pools(
            self.gpu_pools,
            pool_opener(context, self.log.info),
            installation=installation_id(),
            run_is_over=partial(run_is_over, context),
            dry_run=bool(self.plan_only),
            others=bool(self.others),
            timeout=self.wait_timeout,
            report=self.log.info,
        )
        self._tell(reaped)
        records = [each.to_json() for each in reaped]
        push(context, "reaped", records)
        if not self.plan_only:
            self._check(reaped)
        for each in reaped:
            if each.error:
                raise each.error
        return records

    def _tell(self, reaped: Sequence[Reaped]) -> None:
        from airflow_gpu_provider.money.amounts import cost_in_words

        for each in reaped:
            if not each.leftovers and not each.error:
                self.log.info("Pool %s: nothing is left over.", each.pool)
            for leftover in each.leftovers:
                so_far = cost_in_words(leftover.cost, each.currency, by=each.price_source)
                cost = f", cost so far {so_far}" if leftover.kind == "machine" else ""
                self.log.warning("Pool %s: %s %s: %s%s", each.pool, leftover.kind, leftover.name, leftover.why, cost)

    def _check(self, reaped: Sequence[Reaped]) -> None:
        left = [f"{leftover.name} ({each.pool})" for each in reaped for leftover in each.left]
        if left:
            raise PoolNotReleased(
                f"After {self.wait_timeout} there still are: {', '.join(left)}.",
                "The next retry continues. Look at these in the cloud's console and with kubectl describe.",
            )
