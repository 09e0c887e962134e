"""Auto Scaling: moto's, with groups that take time, a schedule that fires, and AWS's refusals."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from moto.autoscaling.exceptions import AutoscalingClientError, ValidationError
from moto.autoscaling.models import AutoScalingBackend

from gpu_sandbox.aws.activities import Activity, at, page
from gpu_sandbox.aws.groups import AutoScalingGroup, Member, Surroundings
from gpu_sandbox.aws.scheduled_actions import (
    Schedule,
    ScheduledAction,
    check_sizes,
    check_times,
    next_occurrence,
)

if TYPE_CHECKING:
    from gpu_sandbox.aws.replicas import Replicas

_USER_SET_CAPACITY = "a user request explicitly set group desired capacity"


class _Groups(OrderedDict[str, Any]):
    """Groups by name, which answer for one that is not there as AWS does."""

    def __missing__(self, name: str) -> Any:
        raise ValidationError(f"AutoScalingGroup name not found - AutoScalingGroup {name} not found")


class AutoScaling(AutoScalingBackend):
    """moto's Auto Scaling with `AutoScalingGroup`s and a schedule that fires."""

    def __init__(self, region_name: str, account_id: str, *, surroundings: Surroundings) -> None:
        super().__init__(region_name, account_id)
        self.autoscaling_groups = _Groups()
        self.schedule = Schedule(surroundings.faults)
        self.replicas: Replicas | None = None
        """Which read calls see, where they do not see everything."""
        self.clock = surroundings.clock
        self._around = surroundings

    def reset(self) -> None:
        """Backends live as long as their AwsCloud; moto's reset throws them away whole."""

    def seen(
        self, groups: Mapping[str, Any], actions: Mapping[tuple[str, str], ScheduledAction], then: datetime
    ) -> AutoScaling:
        """Auto Scaling as it stood at that time, with these groups and scheduled actions; to be read only."""
        seen = copy(self)
        seen.autoscaling_groups = _Groups(groups)
        seen.schedule = self.schedule.with_actions(actions)
        seen._around = replace(self._around, activities=self._around.activities.as_of(then))
        return seen

    def groups(self) -> list[AutoScalingGroup]:
        return [group for group in self.autoscaling_groups.values() if isinstance(group, AutoScalingGroup)]

    def find_group(self, name: str) -> AutoScalingGroup | None:
        # moto's own groups, which are in the account too, are not ours to move on.
        group = self.autoscaling_groups.get(name)
        return group if isinstance(group, AutoScalingGroup) else None

    def group(self, name: str) -> AutoScalingGroup:
        """ValidationError if there is no such group."""
        return cast(AutoScalingGroup, self.autoscaling_groups[name])

    def find_member(self, instance_id: str) -> tuple[AutoScalingGroup, Member] | None:
        for group in self.groups():
            member = group.find(instance_id)
            if member is not None:
                return group, member
        return None

    def advance(self, now: datetime) -> None:
        """The clock: fire what is due, then move every group on."""
        for action in self.schedule.take_due(now):
            self._fire(action, now)
        for group in self.groups():
            group.advance(now)
            if group.deleting and not group.members:
                self._forget(group)

    # Groups

    def create_auto_scaling_group(  # type: ignore[override]
        self, name: str, **fields: Any
    ) -> AutoScalingGroup:
        if name in self.autoscaling_groups:
            raise AutoscalingClientError(
                "AlreadyExists",
                f"AutoScalingGroup by this name already exists - A group with the name {name} already exists",
            )
        given = [fields.get(k) for k in ("launch_config_name", "launch_template", "mixed_instances_policy")]
        fields.pop("instance_id", None)
        if len([one for one in given if one]) != 1:
            raise ValidationError(
                "Valid requests must contain either LaunchTemplate, LaunchConfigurationName, InstanceId or "
                "MixedInstancesPolicy parameter."
            )
        min_size, max_size = int(fields["min_size"]), int(fields["max_size"])
        desired = fields.get("desired_capacity")
        desired = min_size if desired is None else int(desired)
        _check_capacity(min_size=min_size, max_size=max_size, desired=desired)
        fields["health_check_period"] = fields.get("health_check_period") or 300
        group = AutoScalingGroup(  # type: ignore[abstract]  # moto instantiates its own the same way
            surroundings=self._around,
            now=self.clock.utc_now(),
            name=name,
            autoscaling_backend=self,
            ec2_backend=self.ec2_backend,
            **(fields | {"min_size": min_size, "max_size": max_size, "desired_capacity": desired}),
        )
        self.autoscaling_groups[name] = group
        return group

    def update_auto_scaling_group(  # type: ignore[override]
        self, name: str, *, desired_capacity: int | None, **fields: Any
    ) -> AutoScalingGroup:
        group, now = self.group(name), self.clock.utc_now()
        min_size = group.min_size if fields["min_size"] is None else int(fields["min_size"])
        max_size = group.max_size if fields["max_size"] is None else int(fields["max_size"])
        desired = desired_capacity
        if desired is None:
            desired = min(max(group.size, min_size or 0), max_size or 0)
        _check_capacity(min_size=min_size or 0, max_size=max_size or 0, desired=desired)
        policy = group.mixed_instances_policy
        group.update(desired_capacity=group.size, **fields)
        if fields.get("mixed_instances_policy") is None and not fields.get("launch_template"):
            group.mixed_instances_policy = policy
        constraints = f"min: {min_size}, max: {max_size}, desired: {desired}"
        group.resize(desired, now=now, cause=f"a user request update of AutoScalingGroup constraints to {constraints}")
        return group

    def delete_auto_scaling_group(self, group_name: str, *, force: bool = False) -> None:
        group = self.group(group_name)
        if group.members and not force:
            raise AutoscalingClientError(
                "ResourceInUse",
                "You cannot delete an AutoScalingGroup while there are instances or pending Spot instance "
                "request(s) still in the group.",
            )
        self.close(group, now=self.clock.utc_now())

    def close(self, group: AutoScalingGroup, *, now: datetime) -> None:
        """End a group's instances, then the group."""
        group.deleting = True
        group.min_size = 0
        group.resize(0, now=now, cause="a user request deleted the AutoScalingGroup")
        for member in group.members:
            member.protected_from_scale_in = False
        if not group.members:
            self._forget(group)

    def _forget(self, group: AutoScalingGroup) -> None:
        self.autoscaling_groups.pop(group.name, None)
        self.schedule.forget_group(group.name)
        for key, hook in list(self.lifecycle_hooks.items()):
            if hook.auto_scaling_group_name == group.name:
                del self.lifecycle_hooks[key]

    # Size

    def set_desired_capacity(
        self, group_name: str, desired_capacity: int | None, *, honor_cooldown: bool = False
    ) -> None:
        group, now, desired = self.group(group_name), self.clock.utc_now(), int(desired_capacity or 0)
        if desired > (group.max_size or 0):
            raise ValidationError(
                f"New SetDesiredCapacity value {desired} is above max value {group.max_size} for the AutoScalingGroup."
            )
        if desired < (group.min_size or 0):
            raise ValidationError(
                f"New SetDesiredCapacity value {desired} is below min value {group.min_size} for the AutoScalingGroup."
            )
        in_progress = group.activity_in_progress()
        if honor_cooldown and (in_progress or group.in_cooldown(now)):
            blocking = in_progress or self._around.activities.of_group(group_name)[0]
            raise AutoscalingClientError(
                "ScalingActivityInProgress",
                f"Scaling activity {blocking.activity_id} is in progress and blocks this action",
            )
        group.resize(desired, now=now, cause=_USER_SET_CAPACITY)

    def terminate_instance(  # type: ignore[override]
        self, instance_id: str, should_decrement: bool
    ) -> Activity:
        """Refused while the instance is launched or ended, as AutoSpotting#354 and kops#6900 tell of the real one."""
        found, now = self.find_member(instance_id), self.clock.utc_now()
        if found is None:
            raise ValidationError(f"Instance Id not found - No managed instance found for instance ID: {instance_id}")
        group, member = found
        if not member.activity.over:
            raise AutoscalingClientError(
                "ScalingActivityInProgress",
                f"Scaling activity {member.activity.activity_id} is in progress and blocks this action",
            )
        size = group.size
        if should_decrement and size - 1 < (group.min_size or 0):
            raise ValidationError(
                f"Currently, desiredSize equals minSize ({group.min_size}). Terminating instance without "
                "replacement will violate group's min size constraint. Either set shouldDecrementDesiredCapacity "
                "flag to false or lower group's min size."
            )
        cause = f"{at(now)} instance {instance_id} was taken out of service in response to a user request"
        if should_decrement:
            group.resize(size - 1, now=now, cause="a user request")
            cause += f", shrinking the capacity from {size} to {size - 1}"
        return group.terminate(member, now=now, cause=f"{cause}.")

    def instance_ended_outside(self, instance_id: str, *, cause: str = "", reason: str | None = None) -> None:
        """EC2 took an instance without asking its group, if it has one."""
        found, now = self.find_member(instance_id), self.clock.utc_now()
        if found is not None:
            group, member = found
            why = cause or "in response to an EC2 health check indicating it has been terminated or stopped."
            text = f"{at(now)} an instance was taken out of service {why}"
            group.ended_outside(member, now=now, cause=text, reason=reason)

    def notify_terminate_instances(self, instance_ids: list[str]) -> None:
        for instance_id in instance_ids:
            self.instance_ended_outside(instance_id)

    def detach_instances(  # type: ignore[override]
        self, group_name: str, instance_ids: list[str], should_decrement: bool
    ) -> list[dict[str, Any]]:
        group, now = self.group(group_name), self.clock.utc_now()
        members = [self._member_of(group, instance_id) for instance_id in instance_ids]
        size = group.size
        if should_decrement and size - len(members) < (group.min_size or 0):
            raise ValidationError(
                f"You asked to detach {len(members)} instances with decrement, which the group's min size "
                f"{group.min_size} does not allow"
            )
        activities = [group.detach(member, now=now) for member in members]
        if should_decrement:
            group.resize(size - len(members), now=now, cause="a user request")
        return [activity.describe() for activity in activities]

    def attach_instances(self, group_name: str, instance_ids: list[str]) -> None:
        group, now = self.group(group_name), self.clock.utc_now()
        size = group.size + len(instance_ids)
        if size > (group.max_size or 0):
            raise ValidationError(
                f"AutoScalingGroup {group_name} cannot take {len(instance_ids)} more instances: its max size is "
                f"{group.max_size}"
            )
        instances = self.ec2_backend.get_multi_instances_by_id(instance_ids)
        group.resize(size, now=now, cause="a user request")
        for instance in instances:
            group.attach(instance, now=now)

    def _member_of(self, group: AutoScalingGroup, instance_id: str) -> Member:
        member = group.find(instance_id)
        if member is None:
            raise ValidationError(f"The instance {instance_id} is not part of Auto Scaling group {group.name}.")
        return member

    # Scheduled actions

    def put_scheduled_update_group_action(  # type: ignore[override]
        self,
        name: str,
        *,
        scheduled_action_name: str,
        desired_capacity: int | None,
        max_size: int | None,
        min_size: int | None,
        start_time: datetime | None,
        end_time: datetime | None,
        recurrence: str | None,
        timezone: str | None,
    ) -> ScheduledAction:
        group, now = self.group(name), self.clock.utc_now()
        before = self.schedule.get(name, scheduled_action_name)
        new = ScheduledAction(
            group_name=name,
            group_arn=group.arn,
            name=scheduled_action_name,
            min_size=_int(min_size),
            max_size=_int(max_size),
            desired_capacity=_int(desired_capacity),
            start_time=_aware(start_time),
            end_time=_aware(end_time),
            recurrence=recurrence,
            time_zone=timezone,
        )
        action = new if before is None else _unspecified_stays(new, before)
        self._check_action(action, new, group, now)
        if action.start_time is None and action.recurrence:
            following = next_occurrence(action.recurrence, action.time_zone, now)
            action = replace(action, start_time=following)
        self.schedule.put(action, now)
        return action

    def _check_action(
        self, action: ScheduledAction, new: ScheduledAction, group: AutoScalingGroup, now: datetime
    ) -> None:
        if action.min_size is action.max_size is action.desired_capacity is None:
            raise ValidationError("At least one of min size, max size or desired capacity should be given")
        check_times(replace(action, start_time=new.start_time or action.start_time), now)
        if action.recurrence:
            next_occurrence(action.recurrence, action.time_zone, now)
        min_size = group.min_size if action.min_size is None else action.min_size
        max_size = group.max_size if action.max_size is None else action.max_size
        if action.desired_capacity is not None:
            check_sizes(min_size=min_size or 0, max_size=max_size or 0, desired=action.desired_capacity)
        elif (min_size or 0) > (max_size or 0):
            check_sizes(min_size=min_size or 0, max_size=max_size or 0, desired=min_size or 0)

    def delete_scheduled_action(self, auto_scaling_group_name: str, scheduled_action_name: str) -> None:
        self.group(auto_scaling_group_name)
        self.schedule.delete(auto_scaling_group_name, scheduled_action_name)

    def describe_scheduled_actions(  # type: ignore[override]
        self, autoscaling_group_name: str | None = None, scheduled_action_names: list[str] | None = None
    ) -> list[dict[str, Any]]:
        actions = self.schedule.select(group_name=autoscaling_group_name or None, names=scheduled_action_names or [])
        return [action.describe() for action in actions]

    def _fire(self, action: ScheduledAction, now: datetime) -> None:
        group = self.find_group(action.group_name)
        if group is None or group.deleting or group.is_suspended("ScheduledActions"):
            return
        min_size = int((group.min_size if action.min_size is None else action.min_size) or 0)
        max_size = int((group.max_size if action.max_size is None else action.max_size) or 0)
        wanted = group.size if action.desired_capacity is None else action.desired_capacity
        desired = min(max(wanted, min_size), max_size)
        group.min_size, group.max_size = min_size, max_size
        group.resize(
            desired,
            now=now,
            cause=f"a scheduled action update of AutoScalingGroup constraints to min: {min_size}, max: {max_size}, "
            f"desired: {desired}",
        )

    # Activities

    def describe_scaling_activities(
        self,
        *,
        group_name: str | None,
        activity_ids: list[str],
        include_deleted: bool,
        max_records: int,
        next_token: str | None,
    ) -> tuple[list[Activity], str | None]:
        if group_name and not include_deleted:
            self.group(group_name)
        activities = self._around.activities.select(
            group_name=group_name, groups=list(self.autoscaling_groups), activity_ids=activity_ids
        )
        try:
            return page(activities, max_records=max_records, next_token=next_token)
        except ValueError as error:
            raise AutoscalingClientError("InvalidNextToken", "The token is not valid.") from error


def _check_capacity(*, min_size: int, max_size: int, desired: int) -> None:
    if min_size > max_size:
        raise ValidationError(f"Min size {min_size} is greater than max size {max_size}")
    if not min_size <= desired <= max_size:
        raise ValidationError(
            f"Desired capacity:{desired} must be between the specified min size:{min_size} and max size:{max_size}"
        )


def _unspecified_stays(new: ScheduledAction, before: ScheduledAction) -> ScheduledAction:
    """What an update of a scheduled action leaves out keeps its value."""
    fields = ("min_size", "max_size", "desired_capacity", "start_time", "end_time", "recurrence", "time_zone")
    kept = {name: getattr(before, name) for name in fields if getattr(new, name) is None}
    return replace(new, **kept)


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def _aware(moment: Any) -> datetime | None:
    if moment is None or moment == "":
        return None
    known = moment if isinstance(moment, datetime) else datetime.fromisoformat(str(moment))
    return known.replace(tzinfo=UTC) if known.tzinfo is None else known.astimezone(UTC)
