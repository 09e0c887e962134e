"""Groups that this package makes for a pool, on any cloud: where they can be, and what may change in one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_gpu_provider.errors import PoolDrift, PoolSpecError
from airflow_gpu_provider.pools import Candidate, EksGpuPool, GkeGpuPool


@dataclass(frozen=True, kw_only=True)
class Offers:
    """The candidates that can have machines, the most preferred first, and a line about each place that is left out."""

    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...]


def compare_offers(
    pool: EksGpuPool | GkeGpuPool,
    zones: Collection[str],
    offered: Collection[tuple[str, str]],
    *,
    cloud: str,
    hardware: Callable[[str], str] = str,
) -> Offers:
    """Compare a pool's candidates over `zones` with the zones and machine types that the cloud offers.

    `cloud` is what offers them, and `hardware` returns what a machine type is called, both for people.

    Raises:
        PoolSpecError: None is offered.
    """
    everywhere = pool.candidates(zones)
    candidates = tuple(c for c in everywhere if (c.zone, c.instance_type) in offered)
    if not candidates:
        types = dict.fromkeys(hardware(c.instance_type) for c in everywhere)
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
            " next run recreates it.",
            group=spec.candidate.group,
            fields=[difference.field for difference in fixed],
        )


def check_claim(
    spec: Any, group: Mapping[str, Any], *, what: str, made_for: str | None, owner: str | None, is_ours: bool, mark: str
) -> None:
    """Refuse a group that was not made for the pool, or that `owner` wrote last and `is_ours` says is not the spec's.

    `what` is the cloud's word for it, and `mark` the tag or label of it that names the owner.

    Raises:
        PoolDrift: It is refused.
    """
    name, pool = spec.candidate.group, spec.pool
    if made_for != pool.name:
        raise PoolDrift(
            f"Cluster {pool.cluster_name} has a {what} {name} that this package did not create for pool {pool.name}.",
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


def by_reason(why: Mapping[str, str]) -> str:
    """Return why each of some groups is of no use: a reason that several have once, in the first one's words.

    Args:
        why: In the cloud's words, by group.
    """
    alike: dict[str, list[str]] = {}
    for group, reason in why.items():
        alike.setdefault(reason.replace(group, ""), []).append(group)
    return "; ".join(f"{', '.join(names)}: {why[names[0]].rstrip('.')}" for names in alike.values())
