"""Whether quotas have room for more nodes, before any is asked for; what is the same on all clouds. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_gpu_provider.errors import QuotaExceeded
from airflow_gpu_provider.pools import Candidate, GpuPool


@dataclass(frozen=True, kw_only=True)
class Quota:
    """One quota of an account.

    Attributes:
        name: What the cloud calls it.
        limit, used: What it allows, and what is used of that.
        words: Both for people.
        request: How a higher one is asked for.
        code: The cloud's code of it, where it has one.
    """

    name: str
    limit: float
    used: float
    words: str
    request: str
    code: str = ""

    @property
    def room(self) -> float:
        """How much more it allows."""
        return max(0.0, self.limit - self.used)


@dataclass(frozen=True, kw_only=True)
class Limited:
    """A candidate, and the quotas that its machines count against.

    Attributes:
        candidate: Where a machine can come from.
        units: What one machine takes of each quota.
        either: Quotas one of which a machine counts against; empty where none is known.
        everywhere: Another one that each machine counts against.
    """

    candidate: Candidate
    units: int
    either: Sequence[Quota]
    everywhere: Quota | None = None

    @property
    def met_first(self) -> Sequence[Quota]:
        """The quotas that limit it: `either`, or that for everywhere; empty where none is known."""
        limits = [each for each in (self.either, [self.everywhere] if self.everywhere else []) if each]
        return min(limits, key=self.fitting, default=())

    @property
    def room(self) -> float:
        """For how many nodes there is room."""
        return self.fitting(self.met_first) if self.met_first else math.inf

    def fitting(self, either: Iterable[Quota]) -> float:
        """Return how many nodes fit into the larger of quotas."""
        return max(quota.room // self.units for quota in either)

    def words(self, missing: int) -> str:
        """Return its quotas, what is used of them and how much is needed, for people."""
        met = " and ".join(quota.words for quota in self.met_first)
        return f"{met}, {missing * self.units} more are needed" if met else "the quota is unknown"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The groups whose quota is too small for them to be tried, and a line about each such quota."""

    over_quota: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def judge_all(pool: GpuPool, missing: int, limited: Sequence[Limited], *, whose: str) -> Verdict:
    """Say which candidates cannot have the missing nodes.

    Where no quota has room for all of them, those that have room for some are used together.

    Args:
        limited: Its candidates, the most preferred first; none where external groups do not exist, which a plan names.
        whose: Whose quotas they are, for people.

    Raises:
        QuotaExceeded: All quotas together have too little room.
    """
    if not limited:
        return Verdict()
    if _together(limited) < missing:
        lines = dict.fromkeys(f"{each.candidate.machine}: {each.words(missing)}" for each in limited)
        quota = limited[0].met_first[0]  # a candidate without one has room
        raise QuotaExceeded(
            f"Pool {pool.name} needs {missing} more node{'s' * (missing > 1)}, and {whose} have no room:"
            f" {'; '.join(lines)}.",
            f"Request a higher {quota.request}, or use fewer GPUs.",
            quota=quota.name,
            limit=quota.limit,
            used=quota.used,
            needed=missing * limited[0].units,
            **({"code": quota.code} if quota.code else {}),
        )
    words = {each.candidate: each.words(missing) for each in limited}
    return pass_over([*words], missing, {each.candidate.group: each.room for each in limited}, words.__getitem__)


def _together(limited: Sequence[Limited]) -> float:
    """Return for how many nodes there is room in all quotas: candidates of one quota share it."""
    by_quota: dict[Quota | None, float] = {}
    for each in limited:
        for quota in each.either or (None,):
            fits = each.fitting([quota]) if quota else math.inf
            by_quota[quota] = max(by_quota.get(quota, 0.0), fits)
    total = sum(by_quota.values())
    everywhere = limited[0].everywhere
    return min(total, everywhere.room // min(each.units for each in limited)) if everywhere else total


def pass_over(
    candidates: Sequence[Candidate], missing: int, room: Mapping[str, float], words: Callable[[Candidate], str]
) -> Verdict:
    """Pass over the candidates without room for all missing nodes; where none has, those without room for one.

    Args:
        room: For how many nodes of each candidate its quotas have room, by its group's name.
        words: Returns, for people, what a candidate's quota is, how much is used and how much is needed.
    """
    enough = missing if max(room.values()) >= missing else 1
    short = [candidate for candidate in candidates if room[candidate.group] < enough]
    lines = dict.fromkeys(f"{candidate.machine} is not tried: {words(candidate)}" for candidate in short)
    return Verdict(over_quota=frozenset(candidate.group for candidate in short), notes=tuple(lines))
