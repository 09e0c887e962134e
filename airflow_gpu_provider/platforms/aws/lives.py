"""When instances of Auto Scaling groups ran, read from EC2's and EC2 Auto Scaling's answers. Pure.

EC2 tells an instance's launch, and mostly its end, exactly, and forgets an instance within an hour of its end. Scaling
activities are kept for six weeks: "Verify a scaling activity for an Auto Scaling group" in Auto Scaling's user guide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_gpu_provider.platforms.aws.group_state import instance_of
from airflow_gpu_provider.platforms.base import MachineLife

_ASKED_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
"""In "User initiated (2026-11-22 03:04:05 GMT)", the StateTransitionReason of an instance that somebody ended."""

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
        what, instance_id = str(activity.get("Description", "")), instance_of(activity)
        if instance_id and what.startswith("Launching"):
            launches[instance_id] = activity
        elif instance_id and what.startswith("Terminating"):
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
    """Return the instances that these activities tell of."""
    return {found for activity in activities if (found := instance_of(activity))}


def launched_by(asg: str, instances: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return those of the instances that a group has launched, by id; EC2 Auto Scaling tags them with its name."""
    tag = {"Key": "aws:autoscaling:groupName", "Value": asg}
    return {each["InstanceId"]: each for each in instances if tag in (each.get("Tags") or ())}


def _launched_at(instance: Mapping[str, Any] | None, launch: Mapping[str, Any] | None) -> datetime | None:
    told: datetime | None = (instance or {}).get("LaunchTime") or (launch or {}).get("StartTime")
    return told.astimezone(UTC) if told else None


def _ended_at(instance: Mapping[str, Any] | None, end: Mapping[str, Any] | None) -> datetime | None:
    """Return when an instance was told to end: from then on it is not paid for."""
    if instance is not None:
        if instance["State"]["Name"] not in _ENDED:
            return None
        if asked := _ASKED_AT.search(str(instance.get("StateTransitionReason", ""))):
            return datetime.strptime(asked[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    if end is None:
        return None
    is_gone_before = any(words.lower() in str(end.get("Cause", "")).lower() for words in _FOUND_GONE)
    told: datetime | None = end["StartTime"] if is_gone_before else end.get("EndTime")
    return told.astimezone(UTC) if told else None
