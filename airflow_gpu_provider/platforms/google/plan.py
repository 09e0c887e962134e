"""What would change in a pool's node pools, and when that is refused. Pure: no call is made here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_gpu_provider.errors import PoolDrift
from airflow_gpu_provider.platforms.base import Change
from airflow_gpu_provider.platforms.google.spec import (
    OWNER_LABEL,
    POOL_LABEL,
    SPEC_LABEL,
    Difference,
    NodePoolSpec,
    labels_of,
)
from airflow_gpu_provider.pools import GkeGpuPool

FAILED = ("ERROR",)
GONE_SOON = ("STOPPING",)


def changes(
    specs: Iterable[NodePoolSpec], found: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]
) -> tuple[Change, ...]:
    """Compare the specs with the node pools that exist, by name; `sizes` are their machines.

    Raises:
        PoolDrift: A node pool is not ours, is another writer's with another spec, or differs where it cannot be
            changed.
    """
    all_changes = (_change(spec, found.get(spec.candidate.group), sizes) for spec in specs)
    return tuple(change for change in all_changes if change)


def issues(node_pool: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what GKE says is wrong with a node pool."""
    conditions = [str(c.get("message") or c.get("code")) for c in node_pool.get("conditions") or ()]
    return tuple(conditions) or tuple(filter(None, [str(node_pool.get("status_message") or "")]))


def autoscaling_notes(pool: GkeGpuPool, found: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Say what the cluster's first autoscaled node pool does to it ("Autoscaling a cluster"); nothing where it has one.

    Args:
        pool: The spec.
        found: All node pools of the cluster.
    """
    if not pool.is_autoscaled or any((each.get("autoscaling") or {}).get("enabled") for each in found):
        return ()
    return (
        "no node pool of the cluster is autoscaled yet: with the first one the control plane may be away for some"
        " minutes, so run Ensure once ahead of the first night",
    )


def possible_now(differences: Iterable[Difference], size: int) -> list[Difference]:
    """Return those that can be corrected now: what replaces nodes waits until there is none."""
    return [each for each in differences if each.update and not (each.replaces_nodes and size)]


def _change(spec: NodePoolSpec, found: Mapping[str, Any] | None, sizes: Mapping[str, int]) -> Change | None:
    name = spec.candidate.group
    if found is None:
        kind, count = spec.pool.accelerator_of(spec.candidate.instance_type)
        detail = f"{spec.candidate}, {count} x {kind}, at most {spec.pool.max_nodes}, created empty"
        return Change(action="create", group=name, detail=detail)
    _check_claim(spec, found)
    if found.get("status") in GONE_SOON:
        return Change(action="create", group=name, detail="is being deleted; created anew once it is gone")
    if found.get("status") in FAILED and not sizes.get(name):
        why = "; ".join(issues(found)) or "no reason given"
        return Change(action="update", group=name, detail=f"GKE could not create it ({why}): deleted and created anew")
    return _repair(spec, found, sizes.get(name, 0))


def _repair(spec: NodePoolSpec, found: Mapping[str, Any], size: int) -> Change | None:
    differences = spec.differences(found)
    fixed = [difference for difference in differences if difference.update is None]
    pool, name = spec.pool, spec.candidate.group
    if fixed:
        raise PoolDrift(
            f"Node pool {name} differs where it cannot be changed in place: {_listed(fixed)}.",
            "Put the old values back into the pool, give the pool another name, or delete the node pool"
            f" (gcloud container node-pools delete {name} --cluster {pool.cluster_name} --location {pool.location});"
            " the next run creates it anew.",
            group=name,
            fields=[difference.field for difference in fixed],
        )
    now = possible_now(differences, size)
    details = [str(difference) for difference in now]
    if len(now) == len(differences) and spec.missing_labels(found):
        details.append("labels of its machines")
    return Change(action="update", group=name, detail="; ".join(details)) if details else None


def _check_claim(spec: NodePoolSpec, found: Mapping[str, Any]) -> None:
    labels = labels_of(found)
    name, pool = spec.candidate.group, spec.pool
    if labels.get(POOL_LABEL) != pool.name:
        raise PoolDrift(
            f"Cluster {pool.cluster_name} has a node pool {name} that this package did not create for pool"
            f" {pool.name}.",
            "Give the pool another name, or delete that node pool.",
            group=name,
        )
    owner = labels.get(OWNER_LABEL)
    if owner and owner != spec.owner_label and labels.get(SPEC_LABEL) != pool.spec_hash:
        ours = spec.owner or "this run"
        raise PoolDrift(
            f"Node pool {name} was set up by {owner}, whose spec of pool {pool.name} differs from that of {ours}.",
            f"Use one spec for both, or another pool name here; if {owner} is no more, remove the resource label"
            f" {OWNER_LABEL}.",
            group=name,
            owner=owner,
            other=ours,
            differences=[str(difference) for difference in spec.differences(found)],
        )


def _listed(differences: Iterable[Difference]) -> str:
    return "; ".join(str(difference) for difference in differences)
