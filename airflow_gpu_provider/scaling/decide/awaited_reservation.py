"""Reservations that begin or end in a run's time: whether it waits for one, and what it is told of an end. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from airflow_gpu_provider.platforms.backoff import OFF_LIMITS
from airflow_gpu_provider.platforms.base import Group
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.decide.supply import READY_WITHIN, supply
from airflow_gpu_provider.scaling.decide.wanted import wanted_nodes
from airflow_gpu_provider.scaling.state.demand import DemandLease


def awaited(snapshot: PoolSnapshot, by: datetime) -> Group | None:
    """Return the group whose reservation begins by then, if nothing that is preferred to it can have a machine now.

    One that can have none (full, cancelled, expired) is no reason not to wait for the next. What is left of the wait is
    time for a machine to come, there or elsewhere.
    """
    for group in snapshot.groups:
        if group.status in OFF_LIMITS:
            continue
        if group.reserved is None or not group.reserved.why_not:
            return None
        if group.reserved.opens_at and group.reserved.opens_at <= by - READY_WITHIN:
            return group
    return None


def until_it_begins(snapshot: PoolSnapshot, lease: DemandLease, by: datetime | None) -> DemandLease:
    """Return a run's new demand: of nothing for now if its wait, which lasts until `by`, is for a reservation.

    The time that it has its nodes begins with the reservation. Where the nodes are there already nothing is awaited.
    """
    group = awaited(snapshot, by) if by is not None and lease.nodes else None
    opens_at = group.reserved.opens_at if group and group.reserved else None
    if opens_at is None:
        return lease
    if sum(each.counts for each in supply(snapshot)) >= wanted_nodes(snapshot):
        return lease
    resume_at = max(opens_at, snapshot.now)
    return replace(lease, nodes=0, resume_at=resume_at, until=lease.until + (resume_at - snapshot.now))


def ends(snapshot: PoolSnapshot, lease: DemandLease) -> list[str]:
    """Return which machines a run has that are emptied before its time is over, for its task's log."""
    found = ((group, group.reserved) for group in snapshot.groups if group.reserved and group.live)
    return [
        f"machines of {group.name} are emptied from {reserved.ends_at:%Y-%m-%d %H:%MZ} on, before {reserved.id} ends:"
        " a training that has a checkpoint goes on elsewhere then"
        for group, reserved in found
        if reserved.ends_at and reserved.ends_at < lease.until
    ]


def line(group: Group) -> str:
    """Return what a wait for a reservation says."""
    why = group.reserved.why_not if group.reserved else ""
    return f"{group.candidate} is waited for: {why}; nothing is requested before"
