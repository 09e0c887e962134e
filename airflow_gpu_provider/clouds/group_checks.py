"""What is checked of groups on any cloud: of those that this package makes, and of those that others own. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from airflow_gpu_provider.clouds.base import Group, GroupChange
from airflow_gpu_provider.cluster.model.node_requirements import untolerated
from airflow_gpu_provider.errors import PoolDrift, PoolSpecError
from airflow_gpu_provider.pools import Candidate, GpuPool, Taint
from airflow_gpu_provider.pools.workload_placement import tolerations_of

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Offers:
    """The candidates that can have machines, the most preferred first, and a line about each place that is left out."""

    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...]


def compare_offers(
    pool: GpuPool,
    everywhere: Sequence[Candidate],
    offered: Collection[tuple[str, str]],
    *,
    cloud: str,
    hardware: Callable[[str], str] = str,
) -> Offers:
    """Compare a pool's candidates with what the cloud offers.

    Args:
        everywhere: The candidates in all of the pool's zones.
        offered: The zones and machine types that the cloud offers, in pairs.
        cloud: The name of the service that offers them, for people.
        hardware: Returns the name of a machine type, for people. Default: the type itself.

    Raises:
        PoolSpecError: None is offered.
    """
    candidates = tuple(c for c in everywhere if (c.zone, c.instance_type) in offered)
    if not candidates:
        types = dict.fromkeys(hardware(c.instance_type) for c in everywhere)
        zones = dict.fromkeys(c.zone for c in everywhere)
        raise PoolSpecError(
            f"Pool {pool.name}: {cloud} offers {' or '.join(types)} in none of {', '.join(zones)}.",
            "Choose other zones or machine types.",
        )
    left_out = dict.fromkeys((hardware(c.instance_type), c.zone) for c in everywhere if c not in candidates)
    notes = (f"{what} is left out in {zone}: {cloud} does not offer it there" for what, zone in left_out)
    return Offers(candidates=candidates, notes=tuple(notes))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One field in which a group is not as its pool says.

    `update` is what corrects it, in the words of the cloud's own request, None where the cloud cannot; `replaces_nodes`
    says that it recreates the nodes for it, so that it has to wait until there is none.
    """

    field: str
    found: str
    wanted: str
    update: Mapping[str, Any] | None = None
    replaces_nodes: bool = False

    def __str__(self) -> str:
        return f"{self.field} is {self.found}, wanted {self.wanted}"


def taint_texts(taints: Iterable[Mapping[str, str]]) -> list[str]:
    """Return taints, in whichever spelling, as texts in one order, to compare."""
    return sorted(f"{t['key']}={t.get('value') or ''}:{t['effect']}" for t in taints)


def fixed_differences(pairs: Iterable[tuple[str, Any, Any]]) -> list[Difference]:
    """Return those of fields that differ and that the cloud cannot change; each with what is found and wanted."""
    return [Difference(field=name, found=str(found), wanted=str(want)) for name, found, want in pairs if found != want]


def check_fixed(spec: Any, differences: Iterable[Difference], *, differs: str, what: str, command: str) -> None:
    """Refuse a group that differs where the cloud cannot change it.

    `differs` says so of it, `what` is the cloud's word for a group, and `command` deletes it.

    Raises:
        PoolDrift: It is refused.
    """
    fixed = [difference for difference in differences if difference.update is None]
    if fixed:
        raise PoolDrift(
            f"{differs}: {'; '.join(map(str, fixed))}.",
            f"Put the old values back into the pool, give the pool another name, or delete the {what} ({command}); the"
            " next run recreates what is deleted.",
            group=spec.candidate.group,
            fields=[difference.field for difference in fixed],
            command=command,
        )


def check_claim(
    spec: Any,
    group: Mapping[str, Any],
    *,
    cluster: str,
    what: str,
    made_for: str | None,
    owner: str | None,
    is_ours: bool,
    mark: str,
) -> None:
    """Refuse a group that was not made for the pool, or that another writer's spec is on.

    Args:
        cluster: The name of its cluster.
        what: The cloud's word for a group.
        made_for: The pool for which it was made; None where this package did not make it.
        owner: Who wrote it last.
        is_ours: That was the spec's owner, or one with the same spec.
        mark: The tag or label that names the owner.

    Raises:
        PoolDrift: It is refused.
    """
    name, pool = spec.candidate.group, spec.pool
    if made_for != pool.name:
        raise PoolDrift(
            f"Cluster {cluster} has a {what} {name} that this package did not create for pool {pool.name}.",
            f"Give the pool another name, or delete that {what}.",
            group=name,
        )
    if owner and not is_ours:
        ours = spec.owner or "this run"
        raise PoolDrift(
            f"{what.capitalize()} {name} was set up by {owner}, whose spec of pool {pool.name} differs from that of"
            f" {ours}.",
            f"Use one spec for both, or another pool name here; if {owner} no longer exists, remove {mark}.",
            group=name,
            owner=owner,
            other=ours,
            differences=[str(difference) for difference in spec.differences(group)],
        )


def changes_of(specs: Iterable[T], change_of: Callable[[T], GroupChange | None]) -> tuple[GroupChange, ...]:
    """Return what would change in the groups of these specs.

    Raises:
        PoolDrift: Groups are refused; it names all of them.
    """
    found, refused = [], []
    for spec in specs:
        try:
            found.append(change_of(spec))
        except PoolDrift as drift:
            refused.append(drift)
    if refused:
        raise _in_one(refused)
    return tuple(filter(None, found))


def _in_one(refused: Sequence[PoolDrift]) -> PoolDrift:
    """Return one error for all groups: what several have is told of the first of them, with the others' names."""
    alike: dict[str, list[PoolDrift]] = {}
    for each in refused:
        alike.setdefault(each.what.replace(each.details["group"], ""), []).append(each)
    parts = []
    for first, *others in alike.values():
        names = ", ".join(each.details["group"] for each in others)
        parts.append(f"{first.what} The same holds for {names}." if others else first.what)
    first = refused[0]
    commands = " && ".join(each.details["command"] for each in refused if "command" in each.details)
    fixes = dict.fromkeys(
        each.fix.replace(each.details["command"], commands) if "command" in each.details else each.fix
        for each in refused
    )
    details = {**first.details, "groups": [each.details["group"] for each in refused]}
    return PoolDrift(" ".join(parts), " ".join(fixes), **details)


def ordered(pool: GpuPool, groups: Iterable[Group]) -> tuple[Group, ...]:
    """Return a pool's own groups in candidate order.

    Groups of an earlier spec (a zone that the pool no longer names) are there too, so that they reach zero; they come
    last, and their limit is the machines that they have.
    """
    include, rank = pool.preferences.include, pool.preferences.rank
    limited = (each if include(each.candidate) else replace(each, max_size=len(each.live)) for each in groups)
    return tuple(sorted(limited, key=lambda group: rank(group.candidate)))


def by_reason(why: Mapping[str, str]) -> str:
    """Return why each of some groups is of no use: a reason that several have once, in the first one's words."""
    alike: dict[str, list[str]] = {}
    for group, reason in why.items():
        alike.setdefault(reason.replace(group, ""), []).append(group)
    return "; ".join(f"{', '.join(names)}: {why[names[0]].rstrip('.')}" for names in alike.values())


# -- groups that others own and a pool names: what they must have before they are used -----------------------------


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


def check_named(
    pool: GpuPool, nodes: int, groups: Sequence[NamedGroup], *, known_types: Sequence[str]
) -> tuple[str, ...]:
    """Return what people should know of the groups.

    Args:
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
