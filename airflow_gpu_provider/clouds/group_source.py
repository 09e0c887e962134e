"""CloudPlatform: what every cloud's platform does by its GroupSource, and what its cloud lists of prices.

Prices are asked for once for all waits of a process, and never at the cost of a run: they are for reports and limits.
Where the cloud refuses to say one, is slow, or has none, it is unknown for a while, with the reason, and everything
else goes on.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Generic, TypeVar

from airflow_gpu_provider.clouds.base import Group, Plan, Platform, Report
from airflow_gpu_provider.clouds.quota import Verdict
from airflow_gpu_provider.errors import CloudError, GpuError, PermissionDenied, PriceLimitExceeded
from airflow_gpu_provider.pools import Candidate, GpuPool
from airflow_gpu_provider.pools.prices import ListPrices, PriceRecord, price_lines, too_dear, too_dear_lines

KEPT_FOR = timedelta(minutes=15)
"""How long a process holds a price for the present one; spot prices change some times a day."""

ASKED_AGAIN_AFTER = timedelta(minutes=5)
"""How long it does not ask again where the cloud did not say."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """Why there is no price."""

    why: str


Price = float | Unknown


class Kept(Generic[T]):
    """What a process has asked a cloud, by a key that says what and as whom; thread-safe.

    Of threads that ask for the same at one time, one does and the others wait for it.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._found: dict[Hashable, tuple[float, T | Unknown]] = {}
        self._took: dict[Hashable, float] = {}

    def get(self, key: Hashable, read: Callable[[], T]) -> T | Unknown:
        """Return what `read` returned lately, or now; for its error, why there is nothing."""
        with self._lock:
            until, found = self._found.get(key, (float("-inf"), Unknown(why="")))
            if (began := self._monotonic()) >= until:
                try:
                    found = read()
                except GpuError as error:
                    found = Unknown(why=error.what.rstrip("."))
                except Exception as error:  # noqa: BLE001 - no form of an answer may stop a run
                    found = Unknown(why=f"the answer could not be read ({error!r})")
                self._took[key] = self._monotonic() - began
                held = ASKED_AGAIN_AFTER if isinstance(found, Unknown) else KEPT_FOR
                self._found[key] = self._monotonic() + held.total_seconds(), found
            return found

    def seconds(self, key: Hashable) -> float:
        """Return how long it took to read what there is; 0 before that."""
        return self._took.get(key, 0.0)

    def forget(self) -> None:
        """Ask again for all."""
        with self._lock:
            self._found.clear()


def list_prices(candidates: Iterable[Candidate], price: Callable[[Candidate], Price]) -> ListPrices:
    """Return the prices of candidates; `price` returns that of one."""
    found: Mapping[str, Price] = {each.group: price(each) for each in candidates}
    return ListPrices(
        at=datetime.now(UTC).replace(microsecond=0),
        per_hour={group: each for group, each in found.items() if not isinstance(each, Unknown)},
        unknown={group: each.why for group, each in found.items() if isinstance(each, Unknown)},
    )


class GroupSource(ABC):
    """A pool's groups: owned ones, which this package creates and deletes, or external ones, which it only sizes."""

    @abstractmethod
    def candidates(self) -> tuple[Candidate, ...]:
        """Return where the pool can have machines, the most preferred first.

        Raises:
            PoolSpecError: The cloud offers none of the pool's machine types in its zones.
        """

    @abstractmethod
    def plan(self, nodes: int, left_out: Collection[str] = ()) -> Plan:
        """Answer `Platform.plan`; the groups that are left out get no machines, and are not created."""

    @abstractmethod
    def apply(self, plan: Plan, report: Report, over_quota: Collection[str]) -> None:
        """Do what `Platform.apply` promises."""

    def upgrade(self, report: Report, check: Callable[[], None]) -> tuple[str, ...]:
        """Do what `Platform.upgrade` promises."""
        return ()

    @abstractmethod
    def observe(self) -> tuple[Group, ...]:
        """Return the groups that exist, the most preferred first."""

    @abstractmethod
    def delete(self, report: Report) -> None:
        """Delete the groups that this package created."""

    def delete_remains(self, report: Report) -> None:  # noqa: B027
        """Do what `Platform.delete_remains` promises."""


PoolT = TypeVar("PoolT", bound=GpuPool)
SourceT = TypeVar("SourceT", bound=GroupSource)


class CloudPlatform(Platform, Generic[PoolT, SourceT]):
    """A pool on a cloud, whose groups are its source's to plan, create, read and delete."""

    quotas_of: ClassVar[str]
    """Whose the cloud's quotas are, for people."""

    def __init__(self, pool: PoolT, source: SourceT) -> None:
        self._pool = pool
        self._source = source

    def plan(self, nodes: int) -> Plan:
        pool = self._pool
        if not pool.has_list_prices and pool.max_price_per_hour is None:
            return self._source.plan(nodes)
        candidates = self._source.candidates()
        record = self._prices_of(candidates)
        dear = too_dear(record, candidates)
        if dear and len(dear) == len(candidates):
            raise PriceLimitExceeded.of(pool.name, too_dear_lines(dear))
        plan = self._source.plan(nodes, {each.candidate.group for each in dear})
        return replace(plan, prices=price_lines(record, candidates), too_dear=dear)

    def list_prices(self) -> ListPrices | None:
        if not self._pool.has_list_prices:
            return None
        try:
            candidates = self._source.candidates()
        except GpuError:
            return list_prices((), lambda _: Unknown(why=""))  # which machines there may be is not known
        return self._listed(candidates)

    def _listed(self, candidates: Sequence[Candidate]) -> ListPrices:
        try:
            return self._read_prices(candidates)
        except GpuError as error:
            unknown = Unknown(why=error.what.rstrip("."))
            return list_prices(candidates, lambda _: unknown)

    def _prices_of(self, candidates: Sequence[Candidate]) -> PriceRecord:
        """Return what is known of the candidates' prices now."""
        return PriceRecord.of(self._pool, [self._listed(candidates)] if self._pool.has_list_prices else [])

    def _affordable(self) -> tuple[Candidate, ...]:
        """Return the candidates that do not cost more than the pool pays."""
        candidates = self._source.candidates()
        dear = {each.candidate for each in too_dear(self._prices_of(candidates), candidates)}
        return tuple(each for each in candidates if each not in dear)

    def apply(self, plan: Plan, report: Report, over_quota: Collection[str] = ()) -> None:
        self._source.apply(plan, report, over_quota)

    def upgrade(self, report: Report, check: Callable[[], None]) -> tuple[str, ...]:
        return self._source.upgrade(report, check)

    def observe(self) -> tuple[Group, ...]:
        return self._source.observe()

    def delete(self, report: Report) -> None:
        self._source.delete(report)

    def delete_remains(self, report: Report) -> None:
        self._source.delete_remains(report)

    def groups_over_quota(self, nodes: int, report: Report) -> frozenset[str]:
        # Machines on their way out still count against a quota, and what they leave is room for as many.
        missing = min(nodes, self._pool.max_nodes) - sum(len(group.machines) for group in self.observe())
        if missing <= 0:
            return frozenset()
        candidates = self._affordable()
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
