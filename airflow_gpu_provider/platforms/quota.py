"""Groups that cannot grow because a quota of the account has too little room; what is the same on all clouds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_gpu_provider.platforms.base import Group
from airflow_gpu_provider.pools import Candidate


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The groups whose quota is too small for them to be tried, and a line about each such quota."""

    over_quota: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def pass_over(
    candidates: Sequence[Candidate], missing: int, room: Mapping[str, float], words: Callable[[Candidate], str]
) -> Verdict:
    """Pass over the candidates without room for all missing nodes; where none has, those without room for one.

    Args:
        candidates: Where machines can come from.
        missing: How many nodes.
        room: For how many nodes of each candidate its quotas have room, by its group's name.
        words: Returns, for people, what a candidate's quota is, how much is used and how much is needed.
    """
    enough = missing if max(room.values()) >= missing else 1
    short = [candidate for candidate in candidates if room[candidate.group] < enough]
    lines = dict.fromkeys(f"{candidate.machine} is passed over: {words(candidate)}" for candidate in short)
    return Verdict(over_quota=frozenset(candidate.group for candidate in short), notes=tuple(lines))


def without_room(groups: Iterable[Group], over_quota: Collection[str]) -> tuple[Group, ...]:
    """Return the groups; those that a quota keeps from growing with their live machines as their limit."""
    return tuple(replace(group, max_size=len(group.live)) if group.name in over_quota else group for group in groups)
