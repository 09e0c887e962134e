"""Groups that others own and a pool names: what they must have before they are used, on any cloud. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_gpu_provider.cluster.node_requirements import untolerated
from airflow_gpu_provider.errors import PoolDrift, PoolSpecError
from airflow_gpu_provider.platforms.base import Group
from airflow_gpu_provider.pools import Candidate, GpuPool, Taint
from airflow_gpu_provider.pools.workload_placement import tolerations_of


@dataclass(frozen=True, kw_only=True)
class NamedGroup:
    """One external group, as its cloud describes it.

    Attributes:
        candidate: Where its machines come from: its zones in one text, and the first of its types.
        types: All types that its machines may have, as far as the cloud tells.
        types_without_gpus: Those of them that have no GPUs for sure.
        taints: What its nodes join with, as far as the cloud tells.
        min_size, max_size: Its own limits.
        made_for: The pool for which this package created it; empty for an external group.
        warnings: What people should know of it.
    """

    name: str
    candidate: Candidate
    types: tuple[str, ...] = ()
    types_without_gpus: tuple[str, ...] = ()
    taints: tuple[Taint, ...] = ()
    min_size: int = 0
    max_size: int
    made_for: str = ""
    warnings: tuple[str, ...] = ()


def check(pool: GpuPool, nodes: int, groups: Sequence[NamedGroup], *, known_types: Sequence[str]) -> tuple[str, ...]:
    """Return what people should know of the groups.

    Args:
        pool: The pool.
        nodes: How many nodes it is to have.
        groups: The groups that it names.
        known_types: The machine types that its spec names, if any.

    Raises:
        PoolDrift: A group is not as the spec says: its taints, its machine types, or who created it.
        PoolSpecError: The groups' own limits are too small, or their machines have no GPUs.
    """
    for group in groups:
        _check_owner(pool, group)
        _check_taints(pool, group)
        _check_types(pool, group, known_types)
    _check_room(pool, nodes, groups)
    return tuple(_notes(pool, groups))


def candidates_with_room(groups: Sequence[Group]) -> tuple[Candidate, ...]:
    """Return where groups can have more machines; where none can, all of them."""
    room = tuple(group.candidate for group in groups if len(group.live) < group.max_size)
    return room or tuple(group.candidate for group in groups)


def _check_owner(pool: GpuPool, group: NamedGroup) -> None:
    if group.made_for:
        raise PoolDrift(
            f"Group {group.name} was created by this package for pool {group.made_for}, and pool {pool.name} names it"
            ' with manage="scale".',
            f'Use the spec of pool {group.made_for}, which has manage="full", or name another group.',
            group=group.name,
            pool=pool.name,
        )


def _check_taints(pool: GpuPool, group: NamedGroup) -> None:
    kept_out = [str(taint) for taint in untolerated(group.taints, tolerations_of(pool))]
    if kept_out:
        raise PoolDrift(
            f"Group {group.name} taints its nodes with {', '.join(kept_out)}, which pool {pool.name} does not name: its"
            " pods could not run there.",
            f"Add {', '.join(map(repr, kept_out))} to the pool's taints; pods then tolerate it.",
            group=group.name,
            pool=pool.name,
            taints=kept_out,
        )


def _check_types(pool: GpuPool, group: NamedGroup, known: Sequence[str]) -> None:
    if group.types_without_gpus:
        raise PoolSpecError(
            f"Pool {pool.name}: machines of group {group.name} have no GPUs: {', '.join(group.types_without_gpus)}.",
            "Name groups whose machines have NVIDIA GPUs.",
        )
    others = [name for name in group.types if known and name not in known]
    if others:
        raise PoolDrift(
            f"Group {group.name} has machines of type {', '.join(others)}, and pool {pool.name} has"
            f" {', '.join(known)}: its GPUs would be miscounted.",
            "Name all types of the groups in the pool, or none, and use nodes= instead of gpus= in the run.",
            group=group.name,
            pool=pool.name,
        )


def _check_room(pool: GpuPool, nodes: int, groups: Sequence[NamedGroup]) -> None:
    room = sum(group.max_size for group in groups)
    if nodes > room:
        raise PoolSpecError(
            f"Pool {pool.name}: {nodes} nodes are requested, and its groups allow {room} in all:"
            f" {', '.join(f'{group.name} at most {group.max_size}' for group in groups)}.",
            "Raise the maximum sizes where the groups are defined, or request fewer nodes.",
        )


def _notes(pool: GpuPool, groups: Sequence[NamedGroup]) -> Iterable[str]:
    room = sum(group.max_size for group in groups)
    if room < pool.max_nodes:
        yield f"max_nodes is {pool.max_nodes}, and the groups' own limits allow {room}"
    for group in groups:
        if group.min_size:
            yield f"{group.name} keeps {group.min_size} without demand: its own minimum size"
        yield from (f"{group.name}: {warning}" for warning in group.warnings)
