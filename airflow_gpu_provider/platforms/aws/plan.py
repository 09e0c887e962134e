"""What would change in a pool's node groups, and when that is refused. Pure: no call is made here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from airflow_gpu_provider.errors import PoolDrift, PoolSpecError
from airflow_gpu_provider.platforms.aws.spec import OWNER_TAG, POOL_TAG, SPEC_TAG, GroupSpec
from airflow_gpu_provider.platforms.base import Change
from airflow_gpu_provider.pools import EksGpuPool

GROUP_QUOTA = "Managed node groups per cluster"
GROUP_QUOTA_CODE = "L-6D54EA21"
_GROUPS_BY_DEFAULT = 30  # "Amazon EKS endpoints and quotas" of AWS's General Reference; it can be raised

_LAST_WITH_AL2 = (1, 32)  # "EKS AL2 & AL2-Accelerated AMIs transition guide" in EKS's user guide

GONE_SOON = ("DELETING", "DELETE_FAILED")


def changes(
    specs: Iterable[GroupSpec],
    groups: Mapping[str, Mapping[str, Any]],
    stale_tags: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Change, ...]:
    """Compare the specs with DescribeNodegroup's answers, by group name.

    `stale_tags` is what cluster-autoscaler has to be told of each group by other tags, or not any more.

    Raises:
        PoolDrift: A group is not ours, is another writer's with another spec, or differs where EKS cannot change it.
    """
    names = [(spec, spec.candidate.group) for spec in specs]
    found = (_change(spec, groups.get(name), (stale_tags or {}).get(name, ())) for spec, name in names)
    return tuple(change for change in found if change)


def check_image(pool: EksGpuPool, version: str) -> None:
    """Refuse to create groups whose image EKS does not have for the cluster's Kubernetes, like "1.36".

    Raises:
        PoolSpecError: The image is of Amazon Linux 2, and Kubernetes 1.33 or later.
    """
    if not pool.ami_type.startswith("AL2_") or tuple(map(int, version.split(".")[:2])) <= _LAST_WITH_AL2:
        return
    last = ".".join(map(str, _LAST_WITH_AL2))
    raise PoolSpecError(
        f"Pool {pool.name}: cluster {pool.cluster_name} has Kubernetes {version}, and EKS has images of ami_type"
        f" {pool.ami_type} for {last} and earlier only.",
        "Use the default AL2023_x86_64_NVIDIA, or BOTTLEROCKET_x86_64_NVIDIA.",
        ami_type=pool.ami_type,
    )


def limit_notes(names: Collection[str], changes: Iterable[Change]) -> tuple[str, ...]:
    """Return what to know where the cluster would have more node groups than EKS allows by default.

    `names` are those of the groups that it has.
    """
    new = [change.group for change in changes if change.action == "create" and change.group not in names]
    total = len(names) + len(new)
    if not new or total <= _GROUPS_BY_DEFAULT:
        return ()
    return (
        f"the cluster has {len(names)} managed node groups and would have {total}; EKS allows {_GROUPS_BY_DEFAULT},"
        f" unless quota {GROUP_QUOTA!r} ({GROUP_QUOTA_CODE}) was raised: the pool then does without its least wanted",
    )


def issues(group: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a group's health issues in EKS's words."""
    found = group.get("health", {}).get("issues", [])
    return tuple(f"{issue.get('code')}: {issue.get('message', '')}".strip() for issue in found)


def _change(spec: GroupSpec, group: Mapping[str, Any] | None, stale_tags: Sequence[str]) -> Change | None:
    name = spec.candidate.group
    if group is None:
        size = f"created at size {spec.min_size}" if spec.min_size else "created empty"
        detail = f"{spec.candidate}, {spec.subnet}, at most {spec.pool.max_nodes}, {size}"
        return Change(action="create", group=name, detail=detail)
    _check_claim(spec, group)
    if group["status"] in GONE_SOON:
        return Change(action="create", group=name, detail="is being deleted; created anew once it is gone")
    if group["status"] == "CREATE_FAILED":
        why = "; ".join(issues(group)) or "no reason given"
        return Change(
            action="update",
            group=name,
            detail=f"EKS could not create it ({why}): deleted, created anew by the next run",
        )
    return _repair(spec, group, stale_tags)


def _repair(spec: GroupSpec, group: Mapping[str, Any], stale_tags: Sequence[str]) -> Change | None:
    differences = spec.differences(group)
    fixed = [difference for difference in differences if not difference.mutable]
    if fixed:
        raise PoolDrift(
            f"Node group {spec.candidate.group} differs where EKS cannot change it: {_listed(fixed)}.",
            "Put the old values back into the pool, give the pool another name, or delete the group"
            f" (aws eks delete-nodegroup --cluster-name {spec.pool.cluster_name}"
            f" --nodegroup-name {spec.candidate.group}); the next run creates it anew.",
            group=spec.candidate.group,
            fields=[difference.field for difference in fixed],
        )
    details = [str(difference) for difference in differences]
    tags = spec.missing_tags(group)
    if tags:
        details.append(f"tags {', '.join(sorted(tags))}")
    if stale_tags:
        details.append(f"tags for cluster-autoscaler {', '.join(stale_tags)}")
    return Change(action="update", group=spec.candidate.group, detail="; ".join(details)) if details else None


def _check_claim(spec: GroupSpec, group: Mapping[str, Any]) -> None:
    tags = group.get("tags", {})
    name, pool = spec.candidate.group, spec.pool
    if tags.get(POOL_TAG) != pool.name:
        raise PoolDrift(
            f"Cluster {pool.cluster_name} has a node group {name} that this package did not create for pool"
            f" {pool.name}.",
            "Give the pool another name, or delete that group.",
            group=name,
        )
    owner = tags.get(OWNER_TAG)
    if owner and owner != spec.owner and tags.get(SPEC_TAG) != pool.spec_hash:
        ours = spec.owner or "this run"
        raise PoolDrift(
            f"Node group {name} was set up by {owner}, whose spec of pool {pool.name} differs from that of {ours}.",
            f"Use one spec for both, or another pool name here; if {owner} is no more, remove the group's tag"
            f" {OWNER_TAG}.",
            group=name,
            owner=owner,
            other=ours,
            differences=[str(difference) for difference in spec.differences(group)],
        )


def _listed(differences: Iterable[Any]) -> str:
    return "; ".join(str(difference) for difference in differences)
