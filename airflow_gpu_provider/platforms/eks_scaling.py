"""What an Auto Scaling group behind a managed node group has and does, read from its API's answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_gpu_provider.platforms.base import LaunchFailure, Machine, MachineState

_INSTANCE_ID = re.compile(r"\bi-[0-9a-f]+\b")
_OVER = ("Successful", "Failed", "Cancelled")
# EC2's words for "no machine there now"; groups with a mixed instances policy put the code before the text, others
# have the text alone. A limit of the account is none of these: another zone does not help against it.
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


def machine_state(lifecycle_state: str) -> MachineState:
    """Return what an instance's LifecycleState means for the pool."""
    if lifecycle_state.startswith(("Terminat", "Detach", "Warmed")):
        return "terminating"
    if lifecycle_state.startswith(("Pending", "Quarantined")):
        return "pending"
    return "running"


def machines(group: str, asg: Mapping[str, Any], activities: Iterable[Mapping[str, Any]] = ()) -> tuple[Machine, ...]:
    """Return the instances of an Auto Scaling group; the activities say when each was launched."""
    launched = {
        instance_id: _started(activity)
        for activity in activities
        if _is_launch(activity) and (instance_id := _instance_of(activity))
    }
    return tuple(
        Machine(
            id=instance["InstanceId"],
            group=group,
            state=machine_state(instance["LifecycleState"]),
            launched_at=launched.get(instance["InstanceId"]),
        )
        for instance in asg.get("Instances", [])
    )


def is_launching(activities: Iterable[Mapping[str, Any]], known: Iterable[Machine]) -> bool:
    """Say whether a launch is under way whose instance is not among the known ones, nor ended since.

    The activities must have been read before the instances: a launch then shows in the one or in the other.
    """
    activities = tuple(activities)
    seen = {machine.id for machine in known}
    seen.update(_instance_of(a) or "" for a in activities if str(a.get("Description", "")).startswith("Terminating"))
    under_way = (a for a in activities if _is_launch(a) and a["StatusCode"] not in _OVER)
    return any(_instance_of(activity) not in seen for activity in under_way)


def launch_failure(activities: Sequence[Mapping[str, Any]]) -> LaunchFailure | None:
    """Return the newest launch that is over, if it failed."""
    over = (a for a in activities if _is_launch(a) and a["StatusCode"] in ("Successful", "Failed"))
    newest = max(over, key=_started, default=None)
    if newest is None or newest["StatusCode"] == "Successful":
        return None
    message = newest.get("StatusMessage") or newest.get("Description") or "no reason given"
    return LaunchFailure(
        at=(newest.get("EndTime") or newest["StartTime"]).astimezone(UTC),
        message=message,
        out_of_stock=is_out_of_stock(message),
    )


def is_out_of_stock(message: str) -> bool:
    """Say whether EC2's words mean that the cloud has no such machine there now."""
    return any(words.lower() in message.lower() for words in _OUT_OF_STOCK)


def _is_launch(activity: Mapping[str, Any]) -> bool:
    return str(activity.get("Description", "")).startswith("Launching")


def _instance_of(activity: Mapping[str, Any]) -> str | None:
    match = _INSTANCE_ID.search(str(activity.get("Description", "")))
    return match[0] if match else None


def _started(activity: Mapping[str, Any]) -> datetime:
    started: datetime = activity["StartTime"]
    return started.astimezone(UTC)
