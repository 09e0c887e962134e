"""Scarce nodes: when fewer suffice, when to release what came and try again later, what was tried, what is reserved.

Pure. What must outlive the waiting process is in the run's demand Lease (its nodes, its attempts, when the next one
starts) and in the cloud's record of failed launches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider.clouds import backoff
from airflow_gpu_provider.clouds.backoff import COMING, OFF_LIMITS
from airflow_gpu_provider.clouds.base import Group, Plan
from airflow_gpu_provider.money.prices import TooDear
from airflow_gpu_provider.pools.candidates import Candidate
from airflow_gpu_provider.scaling.deadlines import longest_runtime, restarted_until
from airflow_gpu_provider.scaling.decide.gangs import gang_of, gang_placements
from airflow_gpu_provider.scaling.decide.placement import place_machines
from airflow_gpu_provider.scaling.decide.snapshot import READY_WITHIN, PoolSnapshot, wanted_nodes
from airflow_gpu_provider.scaling.state.demand import DemandLease

_LEAST_RUNTIME = 0.75
"""Share of the pool's max_runtime that a run still has when its nodes finally come."""

_JITTER = 0.2

_CLOCKS_APART = timedelta(seconds=2)  # a wait's time is the API server's, in whole seconds; a failure's is the cloud's


@dataclass(frozen=True, kw_only=True)
class DemandChange:
    """What a run wants from now on, in place of `before`, and why."""

    before: DemandLease
    after: DemandLease
    why: str


def nothing_can_come(snapshot: PoolSnapshot, lease: DemandLease, missing: int) -> bool:
    """Return True if no machine is being launched and every candidate is passed over for now.

    For a gang, this means every zone that could provide all of its nodes.
    """
    if any(group.launching or group.status in COMING for group in snapshot.groups):
        return False
    machines = snapshot.supply
    if any(each.state == "coming" for each in machines):
        return False
    over = backoff.passed_over(snapshot.groups, snapshot.now)
    if over and gang_of(lease):
        return lease.key not in gang_placements(snapshot, machines).by_key
    return bool(over) and not place_machines(snapshot.groups, missing, snapshot.now)


def fewer(lease: DemandLease, got: int) -> DemandChange:
    """Ask for no more than the nodes that came."""
    why = f"{got} of {lease.nodes} nodes have come; that is enough, so the wait for the others ends"
    return DemandChange(before=lease, after=replace(lease, nodes=got), why=why)


def back_off(snapshot: PoolSnapshot, lease: DemandLease, got: int) -> DemandChange:
    """Ask for nothing for a while: the nodes that came are released, and other runs can use them."""
    attempts = lease.attempts + 1
    resume_at = next_attempt(snapshot, lease, attempts)
    why = (
        f"attempt {attempts}: {got} of {lease.nodes} nodes have come; all or nothing, so they are released, and the"
        f" next attempt is at {resume_at:%H:%M:%S}Z"
    )
    return DemandChange(before=lease, after=replace(lease, nodes=0, attempts=attempts, resume_at=resume_at), why=why)


def try_again(snapshot: PoolSnapshot, lease: DemandLease, nodes: int, latest: datetime | None = None) -> DemandChange:
    """Ask for all nodes again, behind the runs that got theirs meanwhile, and with the full max_runtime.

    `latest` is when the run ends at the latest.
    """
    after = replace(
        lease,
        nodes=nodes,
        until=restarted_until(snapshot.pool, snapshot.now, lease.budget, run_ends_at=latest),
        created_at=snapshot.now,
        attempt_since=snapshot.now,
        resume_at=None,
    )
    return DemandChange(before=lease, after=after, why=f"attempt {lease.attempts + 1} at {nodes} nodes begins")


def more_time(snapshot: PoolSnapshot, lease: DemandLease, latest: datetime | None = None) -> DemandChange | None:
    """Ask for the full max_runtime, or until `latest`, if the wait has used up too much of it."""
    pool, now, budget = snapshot.pool, snapshot.now, lease.budget
    after = replace(lease, until=restarted_until(pool, now, budget, run_ends_at=latest))
    is_enough = lease.until - now >= longest_runtime(pool, budget) * _LEAST_RUNTIME
    if is_enough or after.until <= lease.until:
        return None
    return DemandChange(before=lease, after=after, why=f"the run's time starts again, until {after.until:%H:%M}Z")


def next_attempt(snapshot: PoolSnapshot, lease: DemandLease, attempts: int) -> datetime:
    """Return when to try again after so many attempts.

    Not before a candidate may be tried; and at a different time for each run, or two of them would keep taking each
    other's nodes.
    """
    share = int(lease.key.hash[:8], 16) / 0xFFFFFFFF  # differs from run to run, and is the same after a restart
    own = snapshot.now + backoff.pause(attempts) * (1 + _JITTER * share)
    over = backoff.passed_over(snapshot.groups, snapshot.now)
    if len(over) < len(snapshot.groups):
        return own
    return max(own, min((each.until for each in over.values()), default=own))


def tried_in_words(times: int) -> str:
    return "tried once" if times == 1 else f"tried {times} times"


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The outcome for one candidate in a wait.

    `times` is how many launches failed; 0 if it was skipped because of an earlier failure, or what is reserved for it
    gives no machine (`kind` is then "reserved" where that is for good). `at`, `why` and `reason`, the short form of
    `why`, are those of the newest failure.
    """

    group: Group
    times: int
    at: datetime
    why: str
    reason: str
    kind: str
    quota: str | None

    def __str__(self) -> str:
        if self.is_reserved:
            return f"{self.group.candidate} (not tried)"
        often = tried_in_words(self.times) if self.times else "not tried"
        return f"{self.group.candidate} ({often}, last failed at {self.at:%H:%M}Z)"

    @property
    def is_reserved(self) -> bool:
        """Whether its reservation is why it was not tried."""
        return not self.times and self.group.reserved is not None and self.why == self.group.reserved.why_not

    @property
    def cause(self) -> tuple[str, ...]:
        """A key for failures with the same reason, which the cloud words differently for each zone and type."""
        candidate = self.group.candidate
        reason = self.reason.replace(candidate.zone, "").replace(candidate.instance_type, "")
        return self.kind, self.quota or "", reason

    def to_result(self) -> dict[str, Any]:
        return _result(self.group.name, self.group.candidate, times=self.times, at=self.at, why=self.why)


def not_tried(dear: TooDear, at: datetime) -> dict[str, Any]:
    """Return a candidate that costs too much in the form of `Tried.to_result`."""
    return _result(dear.candidate.group, dear.candidate, times=0, at=at, why=dear.why)


def less_preferred(snapshot: PoolSnapshot) -> list[dict[str, Any]]:
    """Return the candidates that come after others because of their losses, in the form of `Tried.to_result`."""
    losses = backoff.losses_there(snapshot.groups, snapshot.now)
    found = ((group.candidate, losses[group.name]) for group in snapshot.groups if group.name in losses)
    return [_result(each.group, each, times=0, at=there.last.at, why=str(there)) for each, there in found]


def _result(group: str, candidate: Candidate, *, times: int, at: datetime, why: str) -> dict[str, Any]:
    return {
        "group": group,
        "zone": candidate.zone,
        "instance_type": candidate.instance_type,
        "capacity_type": candidate.market,
        "times": times,
        "last": at.isoformat(timespec="seconds"),
        "why": why,
    }


def tried(snapshot: PoolSnapshot, since: datetime) -> tuple[Tried, ...]:
    """Return the candidates that had no machine since then, or that are passed over, in the pool's order."""
    over = backoff.passed_over(snapshot.groups, snapshot.now)
    since -= _CLOCKS_APART
    found = []
    for number, group in enumerate(snapshot.groups):
        failures = [each for each in group.failures if each.at >= since]
        own = [group.launch_failure] if group.launch_failure else []
        remembered = [over[group.name].failure] if group.name in over else []
        newest = next(iter([*failures[-1:], *(each for each in own if each.at >= since), *remembered]), None)
        if newest is None:
            later = any(each.live for each in snapshot.groups[number + 1 :])
            found += [_not_reserved(snapshot, group)] if _gives_none(group) and (later or not group.live) else []
            continue
        times = len(failures) or len([each for each in own if each.at >= since])
        found.append(
            Tried(
                group=group,
                times=times,
                at=newest.at,
                why=newest.message,
                reason=newest.reason,
                kind=newest.kind,
                quota=newest.quota,
            )
        )
    return tuple(found)


def _gives_none(group: Group) -> bool:
    return group.reserved is not None and bool(group.reserved.why_not)


def _not_reserved(snapshot: PoolSnapshot, group: Group) -> Tried:
    reserved = group.reserved
    why, is_over = (reserved.why_not, reserved.is_over) if reserved else ("", True)
    kind = "reserved" if is_over else "out_of_stock"
    return Tried(group=group, times=0, at=snapshot.now, why=why, reason=why, kind=kind, quota=None)


def in_words(found: Sequence[Tried]) -> str:
    """Return what was tried without success, and why: the cloud's message for the first one per cause."""
    alike: dict[tuple[str, ...], list[Tried]] = {}
    for each in found:
        alike.setdefault(each.cause, []).append(each)
    return "; ".join(f"{', '.join(map(str, same))}: {same[0].why.rstrip('.')}" for same in alike.values())


def is_over(snapshot: PoolSnapshot, lease: DemandLease, started: datetime, patience: timedelta) -> bool:
    return snapshot.now >= (lease.attempt_since or started) + patience


# -- reservations --------------------------------------------------------------------------------------------


def awaited(groups: Iterable[Group], by: datetime) -> Group | None:
    """Return the group whose reservation begins by then, if nothing that is preferred to it can have a machine now.

    One that can have none (full, cancelled, expired) is no reason not to wait for the next. What is left of the wait is
    time for a machine to come, there or elsewhere.
    """
    for group in groups:
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
    group = awaited(snapshot.groups, by) if by is not None and lease.nodes else None
    opens_at = group.reserved.opens_at if group and group.reserved else None
    if opens_at is None:
        return lease
    if sum(each.counts for each in snapshot.supply) >= wanted_nodes(snapshot):
        return lease
    resume_at = max(opens_at, snapshot.now)
    return replace(lease, nodes=0, resume_at=resume_at, until=lease.until + (resume_at - snapshot.now))


def reservation_ends(snapshot: PoolSnapshot, lease: DemandLease) -> list[str]:
    """Return which machines a run has that are emptied before its time is over, for its task's log."""
    found = ((group, group.reserved) for group in snapshot.groups if group.reserved and group.live)
    return [
        f"machines of {group.name} are emptied from {reserved.ends_at:%Y-%m-%d %H:%MZ} on, before {reserved.id} ends:"
        " a training that has a checkpoint goes on elsewhere then"
        for group, reserved in found
        if reserved.ends_at and reserved.ends_at < lease.until
    ]


def why_awaited(group: Group) -> str:
    """Return what a wait for a reservation says."""
    why = group.reserved.why_not if group.reserved else ""
    return f"{group.candidate} is waited for: {why}; nothing is requested before"


def with_wait(plan: Plan, waits: timedelta) -> Plan:
    """Return a plan with the wait for a reservation in place of the growth, where `until_it_begins` waits.

    Args:
        plan: The platform's.
        waits: How long the wait for the nodes may take. A reservation that begins later gets a note.
    """
    if plan.read_at is None or not plan.grow:
        return plan
    if group := awaited(plan.order, plan.read_at + waits):
        return replace(plan, grow=(why_awaited(group),))
    later = awaited(plan.order, datetime.max.replace(tzinfo=UTC))
    if later is None or later.reserved is None or later.reserved.opens_at is None:
        return plan
    least = later.reserved.opens_at + READY_WITHIN
    note = (
        f"{later.candidate} is not waited for ({later.reserved.why_not}): that takes a wait until"
        f" {least:%Y-%m-%d %H:%MZ} (give_up_after of EnsureGpuPoolOperator)"
    )
    return replace(plan, notes=(*plan.notes, note))
