"""Scaling activities: what an Auto Scaling group did and why, as DescribeScalingActivities reports it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

StatusCode = Literal[
    "PreInService",
    "InProgress",
    "MidTerminatingLifecycleAction",
    "WaitingForInstanceWarmup",
    "Successful",
    "Failed",
    "Cancelled",
]
_PROGRESS: dict[str, int] = {"PreInService": 30, "InProgress": 50, "MidTerminatingLifecycleAction": 60}
PAGE_SIZE = 100
_WHY_FAILED = ".  Status Reason: "


def at(moment: datetime) -> str:
    """A moment as the causes of activities spell it."""
    return f"At {moment:%Y-%m-%dT%H:%M:%SZ}"


@dataclass(kw_only=True)
class Activity:
    """One activity. It ends once, by `end` or `fail`."""

    group_name: str
    group_arn: str
    description: str
    cause: str
    start_time: datetime
    subnet_id: str | None
    zone: str
    status_code: StatusCode = "InProgress"
    status_message: str | None = None
    end_time: datetime | None = None
    activity_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def end(self, now: datetime, status_code: StatusCode = "Successful") -> None:
        self.status_code = status_code
        self.end_time = now

    def fail(self, now: datetime, message: str, status_code: StatusCode = "Failed") -> None:
        """End it for a reason; AWS calls a launch that failed Failed or Cancelled (DescribeScalingActivities)."""
        self.end(now, status_code)
        self.status_message = message
        self.description = f"{self.description}{_WHY_FAILED}{message}"

    @property
    def failed(self) -> bool:
        return self.status_code in ("Failed", "Cancelled")

    @property
    def over(self) -> bool:
        return self.end_time is not None

    def as_of(self, then: datetime) -> Activity:
        """The activity as it stood after its begin."""
        if self.end_time is None or self.end_time <= then:
            return self
        words = self.description.partition(_WHY_FAILED)[0]
        return replace(self, end_time=None, status_code="InProgress", status_message=None, description=words)

    def describe(self) -> dict[str, Any]:
        """The activity in the API's shape."""
        details: dict[str, str] = {"Subnet ID": self.subnet_id} if self.subnet_id else {}
        return {
            "ActivityId": self.activity_id,
            "AutoScalingGroupName": self.group_name,
            "AutoScalingGroupARN": self.group_arn,
            "Description": self.description,
            "Cause": self.cause,
            "StartTime": self.start_time,
            "EndTime": self.end_time,
            "StatusCode": self.status_code,
            "StatusMessage": self.status_message,
            "Progress": _PROGRESS.get(self.status_code, 100),
            "Details": json.dumps(details | {"Availability Zone": self.zone}, separators=(",", ":")),
        }


class ActivityLog:
    """Every activity of one account and region, those of deleted groups included."""

    def __init__(self, activities: Iterable[Activity] = ()) -> None:
        self._activities: list[Activity] = []
        self._of_group: dict[str, list[Activity]] = {}
        for activity in activities:
            self.add(activity)

    def add(self, activity: Activity) -> Activity:
        self._activities.append(activity)
        self._of_group.setdefault(activity.group_name, []).append(activity)
        return activity

    def as_of(self, then: datetime) -> ActivityLog:
        """The activities as they stood at that time."""
        return ActivityLog(each.as_of(then) for each in self._activities if each.start_time <= then)

    def of_group(self, group_name: str) -> list[Activity]:
        """Newest first."""
        return list(self._newest_first(group_name))

    def last_launch(self, group_name: str) -> Activity | None:
        launches = (a for a in self._newest_first(group_name) if a.description.startswith("Launching"))
        return next(launches, None)

    def last_failed_launch(self, group_name: str) -> Activity | None:
        return next((a for a in self._newest_first(group_name) if a.failed), None)

    def select(self, *, group_name: str | None, groups: Iterable[str], activity_ids: Iterable[str]) -> list[Activity]:
        """Those of one group, or of all `groups` that are; newest first."""
        ids, wanted = set(activity_ids), set(groups)
        found = (
            self._newest_first(group_name)
            if group_name
            else (a for a in reversed(self._activities) if a.group_name in wanted)
        )
        return [a for a in found if not ids or a.activity_id in ids]

    def _newest_first(self, group_name: str) -> Iterator[Activity]:
        return reversed(self._of_group.get(group_name, []))


def page(activities: list[Activity], *, max_records: int, next_token: str | None) -> tuple[list[Activity], str | None]:
    """One page, and the token of the next: the id of the last activity that this one shows.

    ValueError if the token is unknown.
    """
    start = 0
    if next_token:
        ids = [a.activity_id for a in activities]
        start = ids.index(next_token) + 1
    shown = activities[start : start + min(max_records, PAGE_SIZE)]
    more = start + len(shown) < len(activities)
    return shown, shown[-1].activity_id if more and shown else None
