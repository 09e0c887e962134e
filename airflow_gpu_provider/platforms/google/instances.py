"""What the managed instance groups behind a node pool have and do, read from Compute Engine's answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from airflow_gpu_provider.platforms.base import FailureKind, LaunchFailure, Machine, MachineState
from airflow_gpu_provider.platforms.google.errors import is_out_of_stock, is_over_quota, quota_name

_CREATES = ("CREATING", "CREATING_WITHOUT_RETRIES", "RECREATING")
_REMOVES = ("DELETING", "ABANDONING")
_BOOTS = ("PROVISIONING", "STAGING", "PENDING", "REPAIRING")
_REFUSED = ("PERMISSIONS_ERROR", "CONDITION_NOT_MET", "VM_EXTERNAL_IP_ACCESS_POLICY_CONSTRAINT", "INVALID_RESERVATION")
"""Codes of launches that end the same in each zone until somebody changes something; cluster-autoscaler's GCE client
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
    if not group.errors:  # they are kept for a while only; an instance that cannot be had still says why
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
