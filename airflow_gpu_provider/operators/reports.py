"""The reports of `airflow gpu status` and `airflow gpu doctor` as tasks, for an Airflow without shell access."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import GpuError, PoolNotUsable
from airflow_gpu_provider.tasks.pool_operator import PoolOperator, check_pools
from airflow_gpu_provider.tasks.xcom import push
from airflow_gpu_provider.untrusted import storable

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_gpu_provider.pools import GpuPool
    from airflow_gpu_provider.reports.status import PoolStatus


class _ReportOperator(PoolOperator):
    """Checks pools and changes nothing."""

    template_fields: Sequence[str] = ("gpu_pools",)
    ui_color = "#e6e6e6"

    def __init__(self, *, gpu_pools: Sequence[GpuPool], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gpu_pools = gpu_pools
        check_pools(gpu_pools)


class GpuPoolStatusOperator(_ReportOperator):
    """Report pools' nodes and GPUs, in use and idle, which runs want nodes, and the cost per hour.

    Args:
        gpu_pools: The pools to check.

    Returns:
        list: What `airflow gpu status --output json` prints. Where a pool cannot be read, that of the others is the
            XCom "return_value", and the task fails with that pool's error.
    """

    gpu_role = "status"

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from airflow_gpu_provider.cluster.api.threads import in_parallel
        from airflow_gpu_provider.reports.status import read_status

        def ask(pool: GpuPool) -> PoolStatus | GpuError:
            try:
                return read_status(self._open(context, pool))
            except GpuError as error:
                return error

        found, errors = list[dict[str, Any]](), list[GpuError]()
        for pool, asked in zip(self.gpu_pools, in_parallel(ask, self.gpu_pools), strict=True):
            if isinstance(asked, GpuError):
                self.log.error("Pool %s could not be read: %s", pool.name, asked)
                errors.append(asked)
                continue
            if not found or found[-1]["where"] != asked.where:
                self.log.info("In %s", asked.where)
            self._log(asked)
            found.append(asked.to_json())
        if errors:
            push(context, "return_value", found)
            raise errors[0]
        return [storable(each) for each in found]

    def _log(self, status: PoolStatus) -> None:
        from airflow_gpu_provider.money.amounts import cost_in_words

        cost = cost_in_words(status.cost_per_hour, status.currency, by=status.price_source)
        self.log.info("Pool %s", status.pool)
        counts = (status.nodes, status.booting, status.out_of_use, status.launching)
        self.log.info("  %d nodes, %d booting, %d out of use, %d launching", *counts)
        self.log.info("  %d of %d GPUs in use; cost an hour: %s", status.gpus_used, status.gpus, cost)
        self.log.info("  %d nodes are wanted by %s", status.wanted, status.wanted_by)
        for line in status.notes:
            self.log.info("  %s", line)
        for gang in status.gangs:
            self.log.info("  gang %s: %s", gang.gang, gang.state)
        for lease in (lease for lease in status.leases if lease.budget):
            most, left = (cost_in_words(lease.budget[name], status.currency) for name in ("max_cost", "left"))
            self.log.info("  of the max_cost of %s, %s: at least %s are left", lease.run, most, left)
        for line in (line for lease in status.leases for line in lease.unreadable):
            self.log.warning("  %s", line)


class GpuPoolDoctorOperator(_ReportOperator):
    """Look for what would stop the next run on pools; fail if there is anything, so that it is known during the day.

    Args:
        gpu_pools: The pools to check.
        pod_namespace: Where their pods run. Default "default".

    Returns:
        list: What `airflow gpu doctor --output json` prints. It is also the XCom "findings", which is pushed even
            if the task fails.

    Raises:
        PoolNotUsable: Something would stop a run; the message says what.
    """

    gpu_role = "doctor"
    template_fields: Sequence[str] = ("gpu_pools", "pod_namespace")

    def __init__(self, *, pod_namespace: str = "default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pod_namespace = pod_namespace

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from airflow_gpu_provider.cluster.api.threads import in_parallel
        from airflow_gpu_provider.reports.doctor import Finding, examine

        def ask(pool: GpuPool) -> tuple[Finding, ...]:
            return examine(pool, partial(self._open, context, pool), pod_namespace=self.pod_namespace)

        findings = [finding for found in in_parallel(ask, self.gpu_pools) for finding in found]
        for each in findings:
            log = self.log.info if each.result == "ok" else self.log.warning
            log("Pool %s: %s: %s: %s %s", each.pool, each.check, each.result, each.message, each.fix)
        records = [each.to_json() for each in findings]
        push(context, "findings", records)
        problems = [each for each in findings if each.result == "problem"]
        if problems:
            raise PoolNotUsable(
                "; ".join(f"Pool {each.pool}, {each.check}: {each.message}" for each in problems),
                problems[0].fix,
                findings=[each.to_json() for each in problems],
            )
        return records
