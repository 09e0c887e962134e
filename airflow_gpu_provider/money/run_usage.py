"""What is known of a run's use of a pool, and of one of its machines, as records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Self

from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.pools.demand_key import DemandKey

Span = tuple[datetime, datetime]


@dataclass(frozen=True, kw_only=True)
class MachineUse:
    """What is known of one machine of a pool.

    Attributes:
        launched_at: When the cloud launched it, else when its node was created.
        usable_at: When its node became Ready first; None while nobody has seen it so.
        seen_until: When it was last seen, which is just before it was released; afterwards it is not paid for.
        group: Its group; empty where only a pod's node told of it.
        market: As the group's candidate has it; empty where the group is not known.
        instance_type: As its node says, or the group's candidate; empty where neither is known.
    """

    id: str
    node: str = ""
    group: str = ""
    market: str = ""
    instance_type: str = ""
    launched_at: datetime
    usable_at: datetime | None = None
    seen_until: datetime

    def merged(self, other: MachineUse) -> MachineUse:
        ready = [at for at in (self.usable_at, other.usable_at) if at]
        return replace(
            self,
            node=self.node or other.node,
            group=self.group or other.group,
            market=self.market or other.market,
            instance_type=self.instance_type or other.instance_type,
            launched_at=min(self.launched_at, other.launched_at),
            usable_at=min(ready, default=None),
            seen_until=max(self.seen_until, other.seen_until),
        )


@dataclass(frozen=True, kw_only=True)
class Computed:
    """For which share (0 to 1) of the span the GPUs of a pod computed, by samples."""

    node: str
    span: Span
    gpus: int
    share: float

    @classmethod
    def of_samples(cls, node: str, ran: Span, gpus: int, share: float, *, sampled: timedelta) -> Self:
        """Return what samples that stand for so much of a pod's time say; of the rest nothing is known."""
        since, until = ran
        return cls(node=node, span=(since, min(until, since + sampled)), gpus=gpus, share=round(share, 4))


@dataclass(frozen=True, kw_only=True)
class RunUsage:
    """What is known of one run's use of a pool.

    Attributes:
        wanted: When it wanted nodes. The last span ends at the demand's `until` while it still wants them.
        worked: By node, when pods of its that ask for GPUs ran there; sorted, and not overlapping.
        computed: Those of its pods whose GPUs were sampled, by uid.
        prices: What the cloud listed each time that it asked for nodes.
        max_cost: The most that it may cost, as it was last given; None without a limit.
        is_lost: What was recorded of it could not be read once: it used more than this.
    """

    key: DemandKey
    wanted: tuple[Span, ...] = ()
    open: bool = False
    worked: Mapping[str, tuple[Span, ...]]
    computed: Mapping[str, Computed] = field(default_factory=dict)
    prices: tuple[ListPrices, ...] = ()
    max_cost: float | None = None
    is_lost: bool = False

    @classmethod
    def new(cls, key: DemandKey) -> Self:
        return cls(key=key, worked={})

    def wants(self, now: datetime) -> bool:
        return self.open and now < self.wanted[-1][1]

    def begun(
        self, at: datetime, until: datetime, prices: ListPrices | None = None, max_cost: float | None = None
    ) -> RunUsage:
        """Return it with nodes wanted from `at` to `until`, or longer where it wants some already."""
        known = self.prices if prices is None or prices in self.prices else (*self.prices, prices)
        if self.open:
            wanted = (*self.wanted[:-1], (self.wanted[-1][0], until))
            return replace(self, wanted=wanted, prices=known, max_cost=max_cost)
        wanted = (*self.wanted, (at, until))
        return replace(self, wanted=wanted, open=True, prices=known, max_cost=max_cost)

    def ended(self, at: datetime) -> RunUsage:
        """Return it with nothing wanted from `at` on."""
        if not self.open:
            return self
        since, until = self.wanted[-1]
        return replace(self, wanted=(*self.wanted[:-1], (since, max(since, min(at, until)))), open=False)

    def with_work(self, node: str, span: Span) -> RunUsage:
        return replace(self, worked={**self.worked, node: union((*self.worked.get(node, ()), span))})


def union(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the times that any of the spans covers, sorted and not overlapping; empty spans are left out."""
    found: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return tuple(found)
