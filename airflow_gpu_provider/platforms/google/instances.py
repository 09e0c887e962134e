"""What the managed instance groups behind a node pool have and do, read from Compute Engine's answers. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from airflow_gpu_provider.platforms.base import FailureKind, LaunchFailure, Machine, MachineLife, MachineState
from airflow_gpu_provider.platforms.google.errors import is_out_of_stock, is_over_quota, quota_name

_CREATES = ("CREATING", "CREATING_WITHOUT_RETRIES", "RECREATING")
_REMOVES = ("DELETING", "ABANDONING")
_BOOTS = ("PROVISIONING", "STAGING", "PENDING", "REPAIRING")
_REFUSED = ("PERMISSIONS_ERROR", "CONDITION_NOT_MET", "VM_EXTERNAL_IP_ACCESS_POLICY_CONSTRAINT", "INVALID_RESERVATION")
"""Codes of launches that end the same in each zone until something changes; cluster-autoscaler's GCE client
names them, and tells them from IP_SPACE_EXHAUSTED, which other machines' end may cure."""


@dataclass(frozen=True, kw_only=True)
class InstanceGroup:
    """One managed instance group, as it was read.

    Attributes:
        path: "projects/P/zones/Z/instanceGroupManagers/NAME".
        target: The size that it works towards.
        managed: listManagedInstances' answer.
        errors: listErrors' answer.
        launched: When its instances were created, by name.
        base_name: With what the names of its instances begin.
    """

    path: str
    target: int
    managed: tuple[Mapping[str, Any], ...] = ()
    errors: tuple[Mapping[str, Any], ...] = ()
    launched: Mapping[str, datetime] = field(default_factory=dict)
    base_name: str = ""

    @property
    def members(self) -> tuple[Mapping[str, Any], ...]:
        """The managed instances that the target counts."""
        return tuple(one for one in self.managed if one.get("currentAction") not in _REMOVES)

    @property
    def unborn(self) -> tuple[Mapping[str, Any], ...]:
        """Those that have no machine behind them."""
        return tuple(one for one in self.members if not has_machine(one))

    @property
    def launching(self) -> bool:
        """Whether a launch is under way that has no machine to show yet, and has not failed either."""
        return self.target > len(self.members) or any(not last_errors(one) for one in self.unborn)


def name_of(managed: Mapping[str, Any]) -> str:
    """Return the instance's name; it is in the URL where nowhere else."""
    return str(managed.get("name") or str(managed.get("instance", "")).rpartition("/")[2])


def has_machine(managed: Mapping[str, Any]) -> bool:
    """Return True if there is a machine, running or about to run, that is not just being replaced by another."""
    status = managed.get("instanceStatus")
    if not status:
        return False
    is_replaced = managed.get("currentAction") == "RECREATING"
    return not (is_replaced and machine_state(managed) == "terminating")


def machine_state(managed: Mapping[str, Any]) -> MachineState:
    """Return what a managed instance means for the pool."""
    status = managed.get("instanceStatus")
    if managed.get("currentAction") in _REMOVES:
        return "terminating"
    if status in _BOOTS:
        return "pending"
    return "running" if status == "RUNNING" else "terminating"


def machines(node_pool: str, groups: Iterable[InstanceGroup]) -> tuple[Machine, ...]:
    """Return the machines of a node pool."""
    return tuple(
        Machine(
            id=name_of(one), group=node_pool, state=machine_state(one), launched_at=group.launched.get(name_of(one))
        )
        for group in groups
        for one in group.managed
        if one.get("instanceStatus")
    )


def last_errors(managed: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return why the last attempt at an instance failed; empty where it did not."""
    attempt = managed.get("lastAttempt") or {}
    return list((attempt.get("errors") or {}).get("errors") or ())


def failures(groups: Sequence[InstanceGroup], now: datetime) -> tuple[LaunchFailure, ...]:
    """Return all failed launches that Compute Engine still tells of, the oldest first."""
    found = (failure for group in groups for failure in _failures(group, now))
    return tuple(sorted(found, key=lambda failure: failure.at))


def not_created(group: InstanceGroup) -> set[str]:
    """Return the names of instances whose creation has failed."""
    failed = ((item.get("instanceActionDetails") or {}).get("instance") for item in group.errors)
    return {str(url).rpartition("/")[2] for url in failed if url} | set(map(name_of, group.unborn))


def launch_failure(groups: Sequence[InstanceGroup], now: datetime) -> LaunchFailure | None:
    """Return the newest failed launch, unless a later one worked."""
    worked = max((at for group in groups for at in group.launched.values()), default=None)
    in_a_row = [failure for failure in failures(groups, now) if worked is None or failure.at >= worked]
    if not in_a_row:
        return None
    return replace(in_a_row[-1], earlier=tuple(each.at for each in in_a_row[:-1]))


def _failures(group: InstanceGroup, now: datetime) -> Iterable[LaunchFailure]:
    for item in group.errors:
        details = item.get("instanceActionDetails") or {}
        if item.get("timestamp") and str(details.get("action", "CREATING")) in _CREATES:
            yield _failure(item.get("error") or {}, parse_time(str(item["timestamp"])))
    if not group.errors:  # they are kept for a while only; an instance that cannot be created still has the reason
        for one in group.unborn:
            for error in last_errors(one)[:1]:
                yield _failure(error, now)


def _failure(error: Mapping[str, Any], at: datetime) -> LaunchFailure:
    code, message = str(error.get("code", "")), str(error.get("message", "")).strip()
    text = message if code in message else f"{code}: {message}".strip(": ")
    kind: FailureKind = "other"
    if is_out_of_stock(f"{code} {message}"):
        kind = "out_of_stock"
    elif is_over_quota(f"{code} {message}"):
        kind = "quota"
    elif code.startswith(_REFUSED):
        kind = "refused"
    quota = quota_name(message) if kind == "quota" else None
    return LaunchFailure(at=at, message=text or "no reason given", kind=kind, quota=quota)


def parse_time(text: str) -> datetime:
    """Read a time as Google writes it."""
    return datetime.fromisoformat(text).astimezone(UTC)


# -- when instances ran, by the operations of their zone ------------------------------------------------------

# Compute Engine keeps operations for 14 days, `gcloud compute operations list` says. What takes an instance away is one
# too, whatever requested it: its own are system events ("Troubleshooting VM shutdowns and reboots"; gcpdiag's
# gce/vm_termination runbook looks for them among the operations). Maintenance of the host ends an instance with GPUs,
# which cannot move, and Compute Engine starts the same one again elsewhere, unless it is a spot one.

_STARTS = ("insert",)
_RESTARTS = ("start", "compute.instances.automaticRestart")
_ENDS = (
    "delete",
    "stop",
    "compute.instances.preempted",
    "compute.instances.baremetalCaretakerPreempted",
    "compute.instances.hostError",
    "compute.instances.terminateOnHostMaintenance",
    "compute.instances.guestTerminate",
    "compute.instances.instanceManagerHaltForRestart",
    "compute.instances.stoppedDueToPdDoubleServe",
)


def lives(
    group: str, base_name: str, operations: Iterable[Mapping[str, Any]], since: datetime
) -> tuple[MachineLife, ...]:
    """Return when the instances of a group ran that these operations tell of, and that ran after `since`.

    Args:
        group: Its name in the pool.
        base_name: The instance group's baseInstanceName, with which its instances' names begin.
        operations: Of the group's zone.
        since: What ended before is left out.
    """
    names: dict[str, str] = {}
    starts: dict[str, list[datetime]] = defaultdict(list)
    restarts: dict[str, list[datetime]] = defaultdict(list)
    ends: dict[str, list[datetime]] = defaultdict(list)
    for operation in operations:
        what, _, name = str(operation.get("targetLink", "")).rpartition("/instances/")
        kind, instance_id = operation.get("operationType"), str(operation.get("targetId", ""))
        if not what or not name.startswith(f"{base_name}-") or operation.get("error"):
            continue
        if kind in _STARTS and operation.get("insertTime"):
            starts[instance_id].append(parse_time(operation["insertTime"]))
        elif kind in _RESTARTS and operation.get("insertTime"):
            restarts[instance_id].append(parse_time(operation["insertTime"]))
        elif kind in _ENDS and operation.get("endTime"):
            ends[instance_id].append(parse_time(operation["endTime"]))
        else:
            continue
        names[instance_id] = name
    found = (
        MachineLife(
            id=name,
            group=group,
            node=name,
            launched_at=min(starts[each], default=None),
            ended_at=_last_run_s_end(ends[each], restarts[each]),
        )
        for each, name in names.items()
    )
    return tuple(life for life in found if life.ended_at is None or life.ended_at > since)


def _last_run_s_end(ends: Sequence[datetime], restarts: Sequence[datetime]) -> datetime | None:
    """Return when an instance ended that may have been restarted in between: the first end after the last restart."""
    return min((end for end in ends if all(end > restart for restart in restarts)), default=None)


def last_end(group: InstanceGroup, operations: Iterable[Mapping[str, Any]]) -> datetime | None:
    """Return when an instance of a group last ended; one that could not be created has not, though it was deleted."""
    never = not_created(group)
    found = lives("", group.base_name, operations, datetime.min.replace(tzinfo=UTC)) if group.base_name else ()
    return max((life.ended_at for life in found if life.ended_at and life.id not in never), default=None)


def ending(group: InstanceGroup, operations: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the instances that are being deleted, and that the group, which was read before, may not list any more."""
    links = (
        str(operation.get("targetLink", "")).partition("/instances/")[2]
        for operation in operations
        if operation.get("operationType") == "delete" and not operation.get("endTime")
    )
    never = not_created(group)
    mine = (name for name in links if group.base_name and name.startswith(f"{group.base_name}-"))
    return tuple(name for name in dict.fromkeys(mine) if name not in never)
