"""What an Auto Scaling group behind a managed node group has and does, read from its API's answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_gpu_provider.clouds.backoff import FORGOTTEN_AFTER, LOST_SOON
from airflow_gpu_provider.clouds.base import (
    LaunchFailure,
    Machine,
    MachineEnd,
    MachineLife,
    MachineLoss,
    MachineState,
)
from airflow_gpu_provider.clouds.ec2_launches import failure_kind

_INSTANCE_ID = re.compile(r"\bi-[0-9a-f]+\b")
OVER = ("Successful", "Failed", "Cancelled")
"""The StatusCode of an activity that has ended."""

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


def has_machines(asg: Mapping[str, Any]) -> bool:
    """Return True if an Auto Scaling group has instances, or is to have some."""
    return bool(asg.get("DesiredCapacity") or asg.get("Instances"))


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
    code = reason.get("Code") or ""
    # A block that ends takes its instances; AWS documents no code for it.
    of_block = instance.get("InstanceLifecycle") == "capacity-block" and code.startswith("Server.")
    return MachineEnd(why=f"EC2: {state}, {why}", taken_back=of_block or code in _TAKEN_BACK)


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
    return LaunchFailure.newest(failures(over[worked:], quota))


def last_end(activities: Iterable[Mapping[str, Any]]) -> datetime | None:
    """Return when the group last ended a machine; EC2 counts it until then, in Terminating:Wait too."""
    ended = (a["EndTime"].astimezone(UTC) for a in activities if _is_end(a) and a["StatusCode"] == "Successful")
    return max(ended, default=None)


# -- machines that were lost ---------------------------------------------------------------------------------

# "Capacity Rebalancing" and "Health checks for instances" in EC2 Auto Scaling's user guide. A group finds out by EC2's
# health check too that a person has ended an instance; only EC2 knows who it was.

_IS_TAKEN = ("rebalance recommendation", "spot interruption", "spot instance interruption")
_HEALTH_CHECK = "ec2 health check"
_BY_PEOPLE = "Client."
"""How StateReason's code begins where a user, or the instance itself, has ended it: API reference, StateReason."""


def ends_to_explain(activities: Iterable[Mapping[str, Any]], now: datetime) -> set[str]:
    """Return the instances of whose end a group knows nothing but that a health check has found it, lately."""
    since = now - FORGOTTEN_AFTER
    found = (a for a in activities if _is_end(a) and _cause_has(a, _HEALTH_CHECK) and _started(a) > since)
    return {name for activity in found if (name := instance_of(activity))}


def losses(
    activities: Sequence[Mapping[str, Any]], market: str, end_codes: Mapping[str, str]
) -> tuple[MachineLoss, ...]:
    """Return the instances that AWS took back, or that failed soon after their launch; the oldest first.

    Args:
        market: The group's capacity type.
        end_codes: The code of StateReason by instance, of those of `ends_to_explain`; empty where EC2 forgot it.
    """
    launches = {instance_of(a): _started(a) for a in activities if _is_launch(a)}

    def is_loss(activity: Mapping[str, Any]) -> bool:
        if _cause_has(activity, *_IS_TAKEN):
            return True
        name, at = instance_of(activity) or "", _started(activity)
        code = end_codes.get(name, "")
        if not _cause_has(activity, _HEALTH_CHECK) or code.startswith(_BY_PEOPLE):
            return False
        return market == "SPOT" or at - launches.get(name, datetime.min.replace(tzinfo=UTC)) < LOST_SOON

    found = sorted((a for a in activities if _is_end(a) and is_loss(a)), key=_started)
    return tuple(MachineLoss(at=_started(a), machine=instance_of(a) or "", why=_why_lost(a)) for a in found)


def _why_lost(activity: Mapping[str, Any]) -> str:
    if _cause_has(activity, "rebalance"):
        return "EC2 rebalance recommendation"
    return "Spot interruption" if _cause_has(activity, *_IS_TAKEN) else "EC2 health check"


def _cause_has(activity: Mapping[str, Any], *words: str) -> bool:
    cause = str(activity.get("Cause", "")).lower()
    return any(each in cause for each in words)


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


# -- when instances ran --------------------------------------------------------------------------------------

# EC2 tells an instance's launch, and mostly its end, exactly, and forgets an instance within an hour of its end.
# Scaling activities are kept for six weeks: "Verify a scaling activity for an Auto Scaling group" in its user guide.

_ASKED_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
"""In "User initiated (2026-11-22 03:04:05 GMT)", the StateTransitionReason after TerminateInstances."""

_FOUND_GONE = ("EC2 health check", "Spot Instance interruption")
"""In the cause of an activity by which a group lets go of an instance that EC2 has ended already."""

_ENDED = ("shutting-down", "terminated")


def lives(
    group: str,
    activities: Iterable[Mapping[str, Any]],
    instances: Mapping[str, Mapping[str, Any]],
    since: datetime,
) -> tuple[MachineLife, ...]:
    """Return when the instances of a group ran that these activities tell of, and that ran after `since`.

    Args:
        group: Its name in the pool.
        activities: DescribeScalingActivities' answer.
        instances: DescribeInstances' answer, by instance id; those that EC2 has forgotten are not there.
        since: What ended before is left out.
    """
    launches: dict[str, Mapping[str, Any]] = {}
    ends: dict[str, Mapping[str, Any]] = {}
    for activity in activities:
        instance_id = instance_of(activity)
        if instance_id and _is_launch(activity):
            launches[instance_id] = activity
        elif instance_id and _is_end(activity):
            ends[instance_id] = activity
    found = []
    for each in dict.fromkeys((*launches, *ends, *instances)):
        instance, end = instances.get(each), ends.get(each)
        ended_at = _ended_at(instance, end)
        runs = instance is not None and instance["State"]["Name"] not in _ENDED
        if runs or (ended_at and ended_at > since):
            launched_at = _launched_at(instance, launches.get(each))
            found.append(MachineLife(id=each, group=group, launched_at=launched_at, ended_at=ended_at))
    return tuple(found)


def instance_ids(activities: Iterable[Mapping[str, Any]]) -> set[str]:
    return {found for activity in activities if (found := instance_of(activity))}


def launched_by(asg: str, instances: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return those of the instances that a group has launched, by id; EC2 Auto Scaling tags them with its name."""
    tag = {"Key": "aws:autoscaling:groupName", "Value": asg}
    return {each["InstanceId"]: each for each in instances if tag in (each.get("Tags") or ())}


def _launched_at(instance: Mapping[str, Any] | None, launch: Mapping[str, Any] | None) -> datetime | None:
    at: datetime | None = (instance or {}).get("LaunchTime") or (launch or {}).get("StartTime")
    return at.astimezone(UTC) if at else None


def _ended_at(instance: Mapping[str, Any] | None, end: Mapping[str, Any] | None) -> datetime | None:
    """Return when an instance's termination was requested: from then on it is not charged."""
    if instance is not None:
        if instance["State"]["Name"] not in _ENDED:
            return None
        if match := _ASKED_AT.search(str(instance.get("StateTransitionReason", ""))):
            return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    if end is None:
        return None
    is_gone_before = any(words.lower() in str(end.get("Cause", "")).lower() for words in _FOUND_GONE)
    at: datetime | None = end["StartTime"] if is_gone_before else end.get("EndTime")
    return at.astimezone(UTC) if at else None
