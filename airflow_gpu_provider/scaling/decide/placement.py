"""Where missing nodes come from: which groups, in the pool's order, skipping those without capacity. Pure.

Of two pools that name one external group, the earlier demand keeps it. A task that has run out of GPU memory gets the
pool's next larger machine type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_gpu_provider.clouds.backoff import OFF_LIMITS, LossesThere, losses_there, passed_over, preferred
from airflow_gpu_provider.errors import PoolDrift
from airflow_gpu_provider.money.prices import UNKNOWN_PRICE, equally_cheap, too_dear
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.decide.other_specs import is_one_of
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import DemandLease

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.base import Group
    from airflow_gpu_provider.pools import Candidate


def scalable(group: Group) -> bool:
    """Return True if the group's size can be set now. This package never removes external machines."""
    return group.when_idle == "remove" and group.status in ("active", "updating", "degraded")


def place_machines(
    groups: Sequence[Group],
    missing: int,
    now: datetime,
    gangs: Mapping[str, int] | None = None,
    near: Mapping[str, int] | None = None,
    costs: Mapping[str, float] | None = None,
) -> Counter[str]:
    """Spread `missing` nodes over groups, given in candidate order; a group that is being created or upgraded can be
    chosen.

    Sizes that are already requested stay, unless their group is passed over, or lost machines again and again. The
    rest is placed on the best market and
    instance type with a zone that is not passed over, evenly over such zones. If every group is passed over, nothing
    is placed until the first one may be tried again. `gangs` are already placed, and are in the result. As many as
    `near` says for a zone go there first, among those on the best market and instance type. With `costs`
    (`PoolSnapshot.node_costs`) the best are among those that are equally cheap.
    """
    over = passed_over(groups, now)
    open_groups = [group for group in groups if group.status not in OFF_LIMITS and group.name not in over]
    open_groups = [group for group in open_groups if not (group.reserved and group.reserved.why_not)]
    placed: Counter[str] = Counter(gangs or {})
    total, losses = missing + placed.total(), losses_there(groups, now)
    for group in _keep_requests(open_groups, losses):
        placed[group.name] += max(0, min(group.unfilled - placed[group.name], total - placed.total()))
    _spread(open_groups, total, placed, Counter(near or {}), costs or {}, losses)
    return +placed


def _keep_requests(groups: Sequence[Group], losses: Mapping[str, LossesThere]) -> list[Group]:
    """Return the groups whose requested sizes stay: not one with several losses, where others have room."""
    with_room = preferred([group for group in groups if group.has_room], losses, candidate_of)
    names = {group.name for group in with_room}
    return [g for g in groups if g.name in names or g.name not in losses or not losses[g.name].is_repeated]


def candidate_of(group: Group) -> Candidate:
    return group.candidate


def _spread(
    groups: Sequence[Group],
    total: int,
    placed: Counter[str],
    near: Counter[str],
    costs: Mapping[str, float],
    losses: Mapping[str, LossesThere],
) -> None:
    while placed.total() < total:
        open_groups = [group for group in groups if len(group.live) + placed[group.name] < group.max_size]
        if not open_groups:
            return
        open_groups = preferred(open_groups, losses, candidate_of)
        open_groups = equally_cheap(open_groups, lambda group: costs.get(group.name, UNKNOWN_PRICE))
        best = _tier(open_groups[0])
        tier = [group for group in open_groups if _tier(group) == best]
        close = [group for group in tier if near[group.candidate.zone] > 0]
        emptiest = min(close or tier, key=lambda group: len(group.live) + placed[group.name])
        near[emptiest.candidate.zone] -= 1
        placed[emptiest.name] += 1


def _tier(group: Group) -> tuple[str, str]:
    return group.candidate.market, group.candidate.instance_type


def claimed(
    pool: GpuPool, groups: Iterable[Group], leases: Iterable[DemandLease], now: datetime
) -> dict[str, DemandLease]:
    """Return the external groups that another pool's demand had before this pool's, by name.

    `leases` are the demand of all pools, including this one.
    """
    live = sorted((lease for lease in leases if lease.live(now)), key=lambda lease: (lease.created_at, lease.key.hash))
    first: dict[str, DemandLease] = {}
    for lease in live:
        for name in lease.groups:
            first.setdefault(name, lease)
    names = [group.name for group in groups if not group.owned]
    return {name: first[name] for name in names if name in first and first[name].key.pool != pool.name}


def check_group_claims(snapshot: PoolSnapshot) -> None:
    """Raise PoolDrift while another pool has a group that this pool names: its new demand is rejected."""
    for name, lease in snapshot.claimed.items():
        raise PoolDrift(
            f"Group {name} is scaled by pool {lease.key.pool}, for {lease.key} until {lease.until:%Y-%m-%d %H:%M}Z,"
            f" and pool {snapshot.pool.name} names it too.",
            "Name each group in one pool only; let runs that share a group use the same pool.",
            group=name,
            pool=snapshot.pool.name,
            other=lease.key.pool,
        )


def larger_type(snapshot: PoolSnapshot, than: str, *, gpus: int) -> str | None:
    """Return the pool's machine type with the least memory per GPU above that of `than`; None if there is none.

    Of several, the one that the pool prefers. Types that its spec does not name, if it names any, are left out; so is
    what costs more than the pool pays, machines that the catalogue of GPUs does not know, and those with fewer GPUs
    than the task's pods ask for.
    """
    pool = snapshot.pool
    has = pool.gpus_of(than)
    if has is None:
        return None
    groups = [group for group in snapshot.groups_by_cost if group.status not in OFF_LIMITS]
    dear = {each.candidate for each in too_dear(snapshot.prices, [group.candidate for group in groups])}
    offered = [group.candidate.instance_type for group in groups if group.candidate not in dear]
    there = [node.instance_type for node in snapshot.nodes if node.usable]
    named = frozenset(pool.allowed.types)
    larger: dict[str, int] = {}
    for name in (each for each in (*offered, *there) if is_one_of(named, each)):
        found = pool.gpus_of(name)
        if found is not None and found.gpu.memory_gib > has.gpu.memory_gib and found.gpus >= gpus:
            larger.setdefault(name, found.gpu.memory_gib)
    return min(larger, key=lambda name: larger[name], default=None)


def memory_of(pool: GpuPool, instance_type: str) -> str:
    """Return a machine type with the memory of each of its GPUs, for people: "g6e.xlarge (48 GiB)"."""
    found = pool.gpus_of(instance_type)
    return f"{instance_type} ({found.gpu.memory_gib} GiB)" if found is not None else instance_type
