"""Scheduled actions of Auto Scaling groups: what AWS rejects, and when each is due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from croniter import croniter  # type: ignore[import-untyped]
from moto.autoscaling.exceptions import AutoscalingClientError, ValidationError

from gpu_sandbox.faults import Faults


@dataclass(frozen=True, kw_only=True)
class ScheduledAction:
    """One action; sizes that are None stay as they are."""

    group_name: str
    group_arn: str
    name: str
    min_size: int | None = None
    max_size: int | None = None
    desired_capacity: int | None = None
    start_time: datetime | None = None
    """The next time that it is due."""
    end_time: datetime | None = None
    recurrence: str | None = None
    time_zone: str | None = None

    @property
    def arn(self) -> str:
        prefix, _, _ = self.group_arn.partition(":autoScalingGroup:")
        return (
            f"{prefix}:scheduledUpdateGroupAction:00000000-0000-0000-0000-000000000000:"
            f"autoScalingGroupName/{self.group_name}:scheduledActionName/{self.name}"
        )

    def describe(self) -> dict[str, Any]:
        """The action in the API's shape."""
        return {
            "AutoScalingGroupName": self.group_name,
            "ScheduledActionName": self.name,
            "ScheduledActionARN": self.arn,
            "Time": self.start_time,
            "StartTime": self.start_time,
            "EndTime": self.end_time,
            "Recurrence": self.recurrence,
            "TimeZone": self.time_zone,
            "MinSize": self.min_size,
            "MaxSize": self.max_size,
            "DesiredCapacity": self.desired_capacity,
        }

    def after(self, now: datetime) -> ScheduledAction | None:
        """The action as it stands once it has fired; None if that was the last time."""
        if not self.recurrence:
            return None
        following = next_occurrence(self.recurrence, self.time_zone, now)
        if self.end_time is not None and following > self.end_time:
            return None
        return replace(self, start_time=following)


def next_occurrence(recurrence: str, time_zone: str | None, now: datetime) -> datetime:
    """The first moment after `now` that a cron expression names. ValidationError if it or the zone is bad."""
    if not croniter.is_valid(recurrence):
        raise ValidationError(f"Given recurrence string:{recurrence} is invalid")
    try:
        zone = ZoneInfo(time_zone or "Etc/UTC")
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValidationError(f"Given timezone:{time_zone} is invalid") from error
    following: datetime = croniter(recurrence, now.astimezone(zone)).get_next(datetime)
    return following.astimezone(UTC)


def check_sizes(*, min_size: int, max_size: int, desired: int) -> None:
    """ValidationError unless min <= desired <= max."""
    if min_size > max_size:
        raise ValidationError("Min size must be less than or equal to max size")
    if desired < min_size:
        raise ValidationError("Desired capacity must be greater than or equal to min size")
    if desired > max_size:
        raise ValidationError("Desired capacity must be less than or equal to max size")


def check_times(action: ScheduledAction, now: datetime) -> None:
    """ValidationError for times that AWS refuses."""
    if action.start_time is None and not action.recurrence:
        raise ValidationError("Either recurrence, time or start_time should be given")
    if action.start_time is not None and action.start_time <= now:
        raise ValidationError("Given start time is in the past")
    if action.end_time is not None and action.end_time <= (action.start_time or now):
        raise ValidationError("Given end time is before the start time")


class Schedule:
    """All scheduled actions, by group and name. They come due in `Faults.deadline_seconds`."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._actions: dict[tuple[str, str], ScheduledAction] = {}
        self._due: dict[tuple[str, str], float] = {}

    def actions(self) -> dict[tuple[str, str], ScheduledAction]:
        """Those that there are, by group and name."""
        return dict(self._actions)

    def with_actions(self, actions: Mapping[tuple[str, str], ScheduledAction]) -> Schedule:
        """Another schedule with just these, to be read only."""
        other = Schedule(self._faults)
        other._actions = dict(actions)
        return other

    def get(self, group_name: str, name: str) -> ScheduledAction | None:
        return self._actions.get((group_name, name))

    def put(self, action: ScheduledAction, now: datetime) -> None:
        """AlreadyExists if another action of the group has the same start time."""
        for other in self._actions.values():
            same_group = other.group_name == action.group_name and other.name != action.name
            if same_group and other.start_time == action.start_time:
                raise AutoscalingClientError(
                    "AlreadyExists", "A scheduled action with this scheduled start time already exists"
                )
        self._set(action, now)

    def _set(self, action: ScheduledAction, now: datetime) -> None:
        left = ((action.start_time or now) - now).total_seconds()
        self._actions[action.group_name, action.name] = action
        self._due[action.group_name, action.name] = self._faults.deadline_seconds() + left

    def delete(self, group_name: str, name: str) -> None:
        """ValidationError if there is no such action."""
        if self._actions.pop((group_name, name), None) is None:
            raise ValidationError("Scheduled action name not found")

    def forget_group(self, group_name: str) -> None:
        self._actions = {key: a for key, a in self._actions.items() if a.group_name != group_name}

    def select(self, *, group_name: str | None, names: list[str]) -> list[ScheduledAction]:
        return [
            action
            for action in self._actions.values()
            if group_name in (None, action.group_name) and (not names or action.name in names)
        ]

    def take_due(self, now: datetime) -> list[ScheduledAction]:
        """The actions to fire now; each is moved to its next time, or vanishes."""
        due = [action for key, action in self._actions.items() if self._faults.deadline_reached(self._due[key])]
        for action in due:
            following = action.after(now)
            if following is None:
                del self._actions[action.group_name, action.name]
            else:
                self._set(following, now)
        return sorted(due, key=lambda action: (action.start_time or now, action.name))
