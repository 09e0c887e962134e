"""What an Auto Scaling group behind a managed node group has and does, read from its API's answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from airflow_gpu_provider.platforms.base import FailureKind, LaunchFailure, Machine, MachineEnd, MachineState

_INSTANCE_ID = re.compile(r"\bi-[0-9a-f]+\b")
OVER = ("Successful", "Failed", "Cancelled")
"""The StatusCode of an activity that has ended."""

# EC2's words for "no machine there now"; groups with a mixed instances policy put the code before the text, others
# have the text alone.
_OUT_OF_STOCK = (
    "InsufficientInstanceCapacity",
    "InsufficientCapacityOnHost",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "ReservationCapacityExceeded",
    "UnfulfillableCapacity",
    "no spot capacity available",
    "do not have sufficient",
    "is not supported in your requested Availability Zone",
)

# A limit of the account: another zone does not help against it, another market or type may.
_OVER_QUOTA = (
    "VcpuLimitExceeded",
    "requested more vCPU capacity than your current vCPU limit",
    "MaxSpotInstanceCountExceeded",
    "Max spot instance count exceeded",
    "InstanceLimitExceeded",
)

# Another try ends the same until somebody changes a permission, an image, a launch template or a key. An instance
# profile is not among them: IAM takes a while to tell EC2 of a new one.
_REFUSED = (
    "UnauthorizedOperation",
    "not authorized to perform",
    "does not exist",
    "InvalidKMSKey",
    "OptInRequired",
)

_ENDING = ("shutting-down", "terminated", "stopping", "stopped")
_TAKEN_BACK = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")
"""EC2's codes of an interrupted spot instance: "Find interrupted Spot Instances" in its user guide."""


def machine_state(lifecycle_state: str) -> MachineState:
    """Return what an instance's LifecycleState means for the pool."""
    if lifecycle_state.startswith(("Terminat", "Detach", "Warmed")):
        return "terminating"
    if lifecycle_state.startswith(("Pending", "Quarantined")):
        return "pending"
    return "running"


def machines(group: str, asg: Mapping[str, Any], activities: Iterable[Mapping[str, Any]] = ()) -> tuple[Machine, ...]:
    """Return the instances of an Auto Scaling group; the activities say when each was launched.

    The activities are read before the group: one that leaves it in between is still on its way out.
    """
    activities = tuple(activities)
    launched = {
        instance_id: _started(activity)
        for activity in activities
        if _is_launch(activity) and (instance_id := instance_of(activity))
    }
    listed = {
        instance["InstanceId"]: machine_state(instance["LifecycleState"]) for instance in asg.get("Instances", [])
    }
    ending = (instance_of(a) for a in activities if _is_end(a) and a["StatusCode"] not in OVER)
    states = dict.fromkeys(filter(None, ending), machine_state("Terminating")) | listed
    return tuple(
        Machine(id=instance_id, group=group, state=state, launched_at=launched.get(instance_id))
        for instance_id, state in states.items()
    )


def instance_end(instance: Mapping[str, Any]) -> MachineEnd | None:
    """Return why EC2 has ended an instance, or is about to; None while it runs. Reads DescribeInstances' answer."""
    state, reason = instance["State"]["Name"], instance.get("StateReason") or {}
    if state not in _ENDING:
        return None
    why = reason.get("Message") or instance.get("StateTransitionReason") or "no reason given"
    return MachineEnd(why=f"EC2 says {state}, {why}", taken_back=reason.get("Code") in _TAKEN_BACK)


def ending_cause(instance_id: str, activities: Iterable[Mapping[str, Any]]) -> str:
    """Return the newest cause for which the group ends an instance; empty where it does not. Newest activity first."""
    for activity in activities:
        if _is_end(activity) and instance_of(activity) == instance_id:
            return str(activity.get("Cause") or "no reason given").rstrip(".")
    return ""


def is_launching(activities: Iterable[Mapping[str, Any]], known: Iterable[Machine]) -> bool:
    """Return True if a launch is in progress whose instance is not among the known ones, nor ended since.

    The activities must have been read before the instances: a launch then shows in the one or in the other.
    """
    activities = tuple(activities)
    seen = {machine.id for machine in known}
    seen.update(instance_of(a) or "" for a in activities if _is_end(a))
    under_way = (a for a in activities if _is_launch(a) and a["StatusCode"] not in OVER)
    return any(instance_of(activity) not in seen for activity in under_way)


def failures(activities: Iterable[Mapping[str, Any]], quota: str | None = None) -> tuple[LaunchFailure, ...]:
    """Return all failed launches, the oldest first; `quota` is the one that such machines count against."""
    failed = (a for a in activities if _is_launch(a) and _has_failed(a))
    return tuple(_failure(activity, quota) for activity in sorted(failed, key=_started))


def launch_failure(activities: Sequence[Mapping[str, Any]], quota: str | None = None) -> LaunchFailure | None:
    """Return the newest launch that is over, if it failed."""
    over = sorted(
        (a for a in activities if _is_launch(a) and (a["StatusCode"] == "Successful" or _has_failed(a))), key=_started
    )
    worked = max((n for n, a in enumerate(over, 1) if a["StatusCode"] == "Successful"), default=0)
    in_a_row = failures(over[worked:], quota)
    if not in_a_row:
        return None
    return replace(in_a_row[-1], earlier=tuple(each.at for each in in_a_row[:-1]))


def last_end(activities: Iterable[Mapping[str, Any]]) -> datetime | None:
    """Return when the group last ended a machine; EC2 counts it until then, in Terminating:Wait too."""
    ended = (a["EndTime"].astimezone(UTC) for a in activities if _is_end(a) and a["StatusCode"] == "Successful")
    return max(ended, default=None)


def failure_kind(message: str) -> FailureKind:
    """Return what EC2's words mean; see `LaunchFailure`."""
    meanings: dict[FailureKind, Sequence[str]] = {
        "out_of_stock": _OUT_OF_STOCK,
        "quota": _OVER_QUOTA,
        "refused": _REFUSED,
    }
    said = message.lower()
    found = (kind for kind, words in meanings.items() if any(each.lower() in said for each in words))
    return next(found, "other")


def _failure(activity: Mapping[str, Any], quota: str | None) -> LaunchFailure:
    message = activity.get("StatusMessage") or activity.get("Description") or "no reason given"
    kind = failure_kind(message)
    return LaunchFailure(
        at=(activity.get("EndTime") or activity["StartTime"]).astimezone(UTC),
        message=message,
        kind=kind,
        quota=quota if kind == "quota" else None,
    )


def _is_launch(activity: Mapping[str, Any]) -> bool:
    return str(activity.get("Description", "")).startswith("Launching")


def _has_failed(activity: Mapping[str, Any]) -> bool:
    """Return True for "Failed or Cancelled", as DescribeScalingActivities' reference has it, with a StatusMessage.

    A launch without a message was cancelled by who set the group's size.
    """
    status = activity["StatusCode"]
    return status == "Failed" or (status == "Cancelled" and bool(activity.get("StatusMessage")))


def _is_end(activity: Mapping[str, Any]) -> bool:
    return str(activity.get("Description", "")).startswith("Terminating")


def instance_of(activity: Mapping[str, Any]) -> str | None:
    """Return the instance that an activity launches or ends; None where it tells of none."""
    match = _INSTANCE_ID.search(str(activity.get("Description", "")))
    return match[0] if match else None


def _started(activity: Mapping[str, Any]) -> datetime:
    started: datetime = activity["StartTime"]
    return started.astimezone(UTC)
