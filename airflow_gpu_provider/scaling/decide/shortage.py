"""No capacity: what prevents the cloud, or an autoscaler, from adding the wanted nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from airflow_gpu_provider.clouds.backoff import COMING
from airflow_gpu_provider.clouds.base import Group, LaunchFailure
from airflow_gpu_provider.errors import GroupFailed, NoCapacity, OutOfStock, QuotaExceeded
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.decide import scarce_capacity
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.scarce_capacity import Tried
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot, wanted_nodes

_RECENT = timedelta(minutes=10)
"""A launch of a provisioner's that failed before explains no wait of now: it would have tried again.

Karpenter's AWS provider leaves out what was out of stock for 3 minutes (pkg/cache/cache.go, UnavailableOfferingsTTL).
"""

WITHOUT_AUTOSCALER = 'or let this package scale: scaling="direct"'
"""What to do without an autoscaler."""


def groups_are_ready(snapshot: PoolSnapshot) -> bool:
    """Return True if the pool's groups exist, with all the tags that the autoscaler needs, and the switch is set."""
    decision = decide(snapshot)
    are_coming = any(group.status in COMING for group in snapshot.groups)
    return bool(snapshot.groups) and not (are_coming or decision.update_tags or decision.switch)


def _autoscaler_lines(snapshot: PoolSnapshot) -> Iterator[str]:
    """Yield what prevents the autoscaler from adding nodes."""
    status = snapshot.autoscaler
    if status is None:
        if snapshot.pool.needs_cluster_autoscaler and any(pod.node is None for pod in snapshot.pods):
            yield "no cluster-autoscaler has ever reported from the cluster: nothing adds nodes"
        return
    if not status.is_fresh(snapshot.now):
        yield f"cluster-autoscaler has not reported since {status.updated_at or 'ever'}: it no longer runs"
    for group in snapshot.groups:
        if group.autoscaler_name in status.backoff:
            yield f"cluster-autoscaler does not try {group.candidate} for now: {status.backoff[group.autoscaler_name]}"


def no_capacity(
    snapshot: PoolSnapshot, found: Sequence[Tried], *, have: str, more_time_by: str = ""
) -> NoCapacity | None:
    """Return the error for the failed candidates; None if neither a stock-out nor a quota was the reason.

    Args:
        have: A sentence about the existing nodes.
        more_time_by: The argument that would give it more time.
    """
    kinds = {each.kind for each in found}
    if "out_of_stock" in kinds or kinds == {"reserved"}:
        return OutOfStock(
            f"{have} No capacity for {scarce_capacity.in_words(found)}.",
            f"{snapshot.pool.how_to_widen}, or give it more time{f' with {more_time_by}' if more_time_by else ''}.",
            pool=snapshot.pool.name,
            tried=[each.to_result() for each in found],
        )
    return quota_exceeded(snapshot, found) if "quota" in kinds else None


# In Karpenter's words: EC2's own for a launch that it refuses (its CreateFleet); nodeclaim/lifecycle/registration.go;
# cluster/model/karpenter.py for what it reads from a NodePool.
_FIXES = (
    (r"Unauthorized|AccessDenied|[Nn]ot authorized|PERMISSION_DENIED|[Ff]orbidden", "Give {who} that permission"),
    (
        r"not registered with cluster",
        "See why that machine does not join the cluster: its console output, and the role, subnets and security groups"
        " of its node class",
    ),
    (r"has no room in its limits", "Raise the limits of that NodePool, or wait until its other machines have gone"),
    (r"it is static \(", "Take replicas out of that NodePool, or select another by node_selector_labels"),
    (r"no controller has set its status", "Start {who}: no controller has looked at that NodePool"),
)


def how_to_have_more(snapshot: PoolSnapshot, since: datetime) -> str:
    """Return what to do for the pods that have waited since then: by what keeps the provisioner, if that is known.

    It is the beginning of a sentence, as the pool's own `how_to_widen`.
    """
    for group in (each for each in snapshot.groups if each.provisioner):
        failure = group.launch_failure
        recent = [failure.message] if failure and failure.at >= since.replace(microsecond=0) else []
        reasons = "\n".join((*(each.lacks for each in group.machines), *recent, *group.issues))
        for pattern, fix in _FIXES:
            if re.search(pattern, reasons):
                return fix.format(who=group.provisioner)
    return snapshot.pool.how_to_widen


def how_to_launch(pool: GpuPool, failure: LaunchFailure) -> str:
    if failure.kind == "quota":
        return "Ask the cloud for a higher quota."
    if failure.kind == "refused":
        return "Correct what this names; the same launch would be refused again."
    return f"{pool.how_to_widen}."


def quota_exceeded(snapshot: PoolSnapshot, found: Sequence[Tried]) -> QuotaExceeded:
    names = list(dict.fromkeys(each.quota for each in found if each.quota))
    which = f"{', '.join(names)} " if names else ""
    return QuotaExceeded(
        f"Pool {snapshot.pool.name}: the account's quota {which}is exhausted: {scarce_capacity.in_words(found)}.",
        f"Ask the cloud for a higher quota {which}or want fewer GPUs.",
        pool=snapshot.pool.name,
        quota=names[0] if names else None,
        tried=[each.to_result() for each in found],
    )


def launches_refused(snapshot: PoolSnapshot, found: Sequence[Tried]) -> GroupFailed:
    return GroupFailed(
        f"Pool {snapshot.pool.name}: the cloud refuses to launch its machines: {scarce_capacity.in_words(found)}.",
        "Correct what this names; the same launch would be refused again.",
        pool=snapshot.pool.name,
        tried=[each.to_result() for each in found],
    )


def missing_for_pods(snapshot: PoolSnapshot, since: datetime) -> NoCapacity | None:
    """Return why pods that have waited since then get no node, if the reason is that the cloud has no machine now.

    None if all wanted machines exist, or one is being launched.
    """
    machines = [each for each in snapshot.supply if each.is_there]
    wanted, there = wanted_nodes(snapshot), sum(each.counts for each in machines)
    if there >= wanted or any(each.state == "coming" for each in machines):
        return None
    have = f"Pool {snapshot.pool.name}: {there} of {wanted} nodes."
    found = scarce_capacity.tried(snapshot, since)
    return no_capacity(snapshot, found, have=have, more_time_by="schedule_timeout_seconds")


def reported_by_autoscaler(snapshot: PoolSnapshot, since: datetime) -> tuple[str, ...]:
    """Return what prevented an autoscaler or a provisioner from adding nodes since then, quoting it and the cloud.

    Nothing for a pool that this package sizes: there each decision logs it, as it does for a machine that a provisioner
    is refused now.
    """
    if not snapshot.pool.nodes_come_with_pods:
        return ()
    lines = []
    for group in snapshot.groups:
        failure = group.launch_failure
        if failure is None or failure.at < since.replace(microsecond=0):  # events' times are in whole seconds
            continue
        if not group.provisioner:
            lines.append(f"no {group.candidate}: {failure.message}")
        elif not _is_past(group, failure, snapshot.now):
            lines.append(f"{group.provisioner} got no machine: {failure.message}")
    return (*lines, *_autoscaler_lines(snapshot))


def _is_past(group: Group, failure: LaunchFailure, now: datetime) -> bool:
    """Return True if a provisioner has tried since, or tries now; what it is refused now each decision tells."""
    return now - failure.at > _RECENT or any(each.lacks.endswith(failure.message) for each in group.machines)
