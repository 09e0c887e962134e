"""Where missing nodes are to come from: which groups, in the pool's order, past those that are out of stock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from airflow_gpu_provider.platforms.base import Group

BACKOFF = timedelta(minutes=5)
"""How long a group that was out of stock is passed over; cluster-autoscaler's own first backoff."""

_OFF_LIMITS = ("failed", "deleting")


def out_of_stock(group: Group, now: datetime) -> bool:
    """Say whether the group's newest launch failed for want of capacity, a short time ago."""
    failure = group.launch_failure
    return failure is not None and failure.out_of_stock and now - failure.at < BACKOFF


def scalable(group: Group) -> bool:
    """Say whether the group's size can be set now. Machines that others bring are never this package's to remove."""
    return group.when_idle == "remove" and group.status in ("active", "updating", "degraded")


def place(groups: Sequence[Group], missing: int, now: datetime) -> Counter[str]:
    """Spread `missing` nodes over groups, given in candidate order; a group that is being created can be chosen.

    Sizes that are asked for already stay where they are, unless their group is out of stock. The rest goes to the
    best market and instance type with a zone that is not, evenly over such zones. If every group is out of
    stock, the one whose failure is oldest is tried: it is the likeliest to have capacity again.
    """
    possible = [group for group in groups if group.status not in _OFF_LIMITS]
    in_stock = [group for group in possible if not out_of_stock(group, now)]
    placed: Counter[str] = Counter()
    for group in in_stock:
        placed[group.name] += min(group.unfilled, missing - placed.total())
    if in_stock:
        _spread(in_stock, missing, placed)
    elif possible:
        oldest = min(possible, key=lambda group: group.launch_failure.at if group.launch_failure else now)
        placed[oldest.name] += min(missing, _room(oldest, placed))
    return +placed


def _spread(groups: Sequence[Group], missing: int, placed: Counter[str]) -> None:
    while placed.total() < missing:
        open_groups = [group for group in groups if _room(group, placed) > 0]
        if not open_groups:
            return
        best = _tier(open_groups[0])
        tier = [group for group in open_groups if _tier(group) == best]
        emptiest = min(tier, key=lambda group: len(group.live) + placed[group.name])
        placed[emptiest.name] += 1


def _tier(group: Group) -> tuple[str, str]:
    return group.candidate.market, group.candidate.instance_type


def _room(group: Group, placed: Counter[str]) -> int:
    return group.max_size - len(group.live) - placed[group.name]
