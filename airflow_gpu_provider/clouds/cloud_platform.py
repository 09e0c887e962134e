"""CloudPlatform: a platform of a cloud that lists prices and has quotas."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import ClassVar, Generic, TypeVar

from airflow_gpu_provider.clouds.backoff import losses_there
from airflow_gpu_provider.clouds.base import Plan, Platform, Report
from airflow_gpu_provider.clouds.list_prices import Unknown, list_prices
from airflow_gpu_provider.clouds.quota import Verdict
from airflow_gpu_provider.errors import CloudError, GpuError, PermissionDenied, PriceLimitExceeded
from airflow_gpu_provider.money.price_order import order_lines
from airflow_gpu_provider.money.prices import ListPrices, PriceRecord, price_lines, too_dear, too_dear_lines
from airflow_gpu_provider.pools import Candidate, GpuPool

PoolT = TypeVar("PoolT", bound=GpuPool)


class CloudPlatform(Platform, Generic[PoolT]):
    """A pool on a cloud: what each such platform does about prices, the pool's price limit and the cloud's quotas.

    A cloud has a subclass with what is common to its pools, and that has two: for owned groups, which this package
    creates and deletes, and for external ones, which it only sizes.
    """

    quotas_of: ClassVar[str]
    """Whose the cloud's quotas are, for people."""

    def __init__(self, pool: PoolT) -> None:
        self._pool = pool

    @abstractmethod
    def candidates(self) -> tuple[Candidate, ...]:
        """Return where the pool can have machines, the most preferred first.

        Raises:
            PoolSpecError: The cloud offers none of the pool's machine types in its zones.
        """

    @abstractmethod
    def _plan(self, nodes: int, left_out: Collection[str] = ()) -> Plan:
        """Answer `plan`, but for prices; the groups that are left out get no machines, and are not created."""

    def plan(self, nodes: int) -> Plan:
        pool = self._pool
        if not pool.has_list_prices and pool.max_price_per_hour is None and pool.prefer == "order":
            return self._with_losses(self._plan(nodes))
        candidates = self.candidates()
        listed = self._listed(candidates) if pool.has_list_prices else None
        record = PriceRecord.of(pool, [listed])
        dear = too_dear(record, candidates)
        if dear and len(dear) == len(candidates):
            raise PriceLimitExceeded.of(pool.name, too_dear_lines(dear))
        left_out = {each.candidate.group for each in dear}
        plan = self._plan(nodes, left_out)
        kept = [each for each in candidates if each.group not in left_out]
        lines = (*price_lines(record, candidates), *order_lines(record, kept))
        return self._with_losses(replace(plan, prices=lines, too_dear=dear, listed=listed))

    def _with_losses(self, plan: Plan) -> Plan:
        """Return a plan with the losses that change nothing, since an autoscaler chooses the group."""
        if not self._pool.is_autoscaled or not plan.groups:
            return plan
        losses = losses_there(plan.groups, datetime.now(UTC))
        of = {group.name: group.candidate for group in plan.groups}
        notes = (
            f"{of[name]}: {each.lost}; cluster-autoscaler may choose it all the same" for name, each in losses.items()
        )
        return replace(plan, notes=(*plan.notes, *notes))

    def list_prices(self) -> ListPrices | None:
        if not self._pool.has_list_prices:
            return None
        try:
            candidates = self.candidates()
        except GpuError:
            return list_prices((), lambda _: Unknown(why=""))  # which machines there may be is not known
        return self._listed(candidates)

    def _listed(self, candidates: Sequence[Candidate]) -> ListPrices:
        try:
            return self._read_prices(candidates)
        except GpuError as error:
            unknown = Unknown(why=error.what.rstrip("."))
            return list_prices(candidates, lambda _: unknown)

    def _affordable(self, plan: Plan | None) -> tuple[Candidate, ...]:
        """Return the candidates that do not cost more than the pool pays."""
        candidates = self.candidates()
        if plan is None:
            found = too_dear(PriceRecord.of(self._pool, [self.list_prices()]), candidates)
        else:
            found = plan.too_dear
        dear = {each.candidate for each in found}
        return tuple(each for each in candidates if each not in dear)

    def groups_over_quota(self, nodes: int, report: Report, plan: Plan | None = None) -> frozenset[str]:
        groups = self.observe() if plan is None or plan.groups is None else plan.groups
        # Machines on their way out still count against a quota, and what they leave is room for as many.
        missing = min(nodes, self._pool.max_nodes) - sum(len(group.machines) for group in groups)
        if missing <= 0:
            return frozenset()
        candidates = self._affordable(plan)
        try:
            verdict = self._compare_quotas(missing, candidates)
        except (PermissionDenied, CloudError) as error:
            # In a network without a way to the quotas' API, nodes are available all the same.
            report(f"The {self.quotas_of}'s quotas are not checked: {error}")
            return frozenset()
        for note in verdict.notes:
            report(note)
        return verdict.over_quota

    @abstractmethod
    def _read_prices(self, candidates: Sequence[Candidate]) -> ListPrices:
        """Return what the cloud lists for candidates."""

    @abstractmethod
    def _compare_quotas(self, missing: int, candidates: Sequence[Candidate]) -> Verdict:
        """Compare the missing nodes with the account's quotas; raises QuotaExceeded."""
