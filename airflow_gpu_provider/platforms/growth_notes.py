"""What a plan says of nodes that are missing: where they would be asked for first, and what is passed over. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from airflow_gpu_provider.platforms.backoff import passed_over
from airflow_gpu_provider.platforms.base import Group
from airflow_gpu_provider.pools import Candidate, GpuPool

_AT_ONCE = datetime.min.replace(tzinfo=UTC)


def growth_notes(
    pool: GpuPool, nodes: int, candidates: Sequence[Candidate], groups: Iterable[Group], now: datetime
) -> tuple[str, ...]:
    """Return the lines; none where no node is missing, or where others add them."""
    if pool.is_autoscaled:
        return ()
    groups = tuple(groups)
    live = {group.name: len(group.live) for group in groups}
    limits = {group.name: group.max_size for group in groups}
    missing = min(nodes, pool.max_nodes) - sum(live.values())
    if missing <= 0:
        return ()
    over = passed_over(groups, now)
    first = min(candidates, key=lambda each: over[each.group].until if each.group in over else _AT_ONCE)
    when = f", at {over[first.group].until:%H:%M}Z" if first.group in over else ""
    size = live.get(first.group, 0)
    grown = min(size + missing, limits.get(first.group, pool.max_nodes))
    grows = f"{first.group} {size}->{grown} ({first} first{when})"
    return (grows, *(f"not {each}: {over[each.group]}" for each in candidates if each.group in over))
