"""The calls of the Auto Scaling API whose shape moto lacks."""

from __future__ import annotations

from functools import cached_property
from typing import cast

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import autoscaling_backends
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult, EmptyResult

from gpu_sandbox.aws.activities import PAGE_SIZE
from gpu_sandbox.aws.auto_scaling import AutoScaling
from gpu_sandbox.aws.groups import AutoScalingGroup, Member


class AutoScalingApi(AutoScalingResponse):
    """moto's calls, and these."""

    @cached_property
    def autoscaling_backend(self) -> AutoScaling:
        """As the call sees it."""
        backend = cast(AutoScaling, autoscaling_backends[self.current_account][self.region])
        return backend.replicas.auto_scaling_for(self._get_action(), self.access_key) if backend.replicas else backend

    def set_desired_capacity(self) -> ActionResult:
        self.autoscaling_backend.set_desired_capacity(
            self._get_param("AutoScalingGroupName"),
            self._get_int_param("DesiredCapacity"),
            honor_cooldown=self._get_bool_param("HonorCooldown", False),
        )
        return EmptyResult()

    def update_auto_scaling_group(self) -> ActionResult:
        answer = super().update_auto_scaling_group()
        group = self.autoscaling_backend.group(self._get_param("AutoScalingGroupName"))
        group.capacity_rebalance = self._get_bool_param("CapacityRebalance", group.capacity_rebalance)
        return answer

    def delete_auto_scaling_group(self) -> ActionResult:
        self.autoscaling_backend.delete_auto_scaling_group(
            self._get_param("AutoScalingGroupName"), force=self._get_bool_param("ForceDelete", False)
        )
        return EmptyResult()

    def describe_scaling_activities(self) -> ActionResult:
        activities, token = self.autoscaling_backend.describe_scaling_activities(
            group_name=self._get_param("AutoScalingGroupName"),
            activity_ids=self._get_param("ActivityIds", []),
            include_deleted=self._get_bool_param("IncludeDeletedGroups", False),
            max_records=self._get_int_param("MaxRecords", PAGE_SIZE),
            next_token=self._get_param("NextToken"),
        )
        return ActionResult({"Activities": [a.describe() for a in activities], "NextToken": token})

    def terminate_instance_in_auto_scaling_group(self) -> ActionResult:
        activity = self.autoscaling_backend.terminate_instance(
            self._get_param("InstanceId"),
            self._get_bool_param("ShouldDecrementDesiredCapacity", False),
        )
        return ActionResult({"Activity": activity.describe()})

    def complete_lifecycle_action(self) -> ActionResult:
        group, member = self._waiting_member()
        group.complete_terminating(member, self.autoscaling_backend.clock.utc_now())
        return EmptyResult()

    def record_lifecycle_action_heartbeat(self) -> ActionResult:
        group, member = self._waiting_member()
        group.heartbeat(member, self.autoscaling_backend.clock.utc_now())
        return EmptyResult()

    def _waiting_member(self) -> tuple[AutoScalingGroup, Member]:
        instance_id = self._get_param("InstanceId")
        group = self.autoscaling_backend.group(self._get_param("AutoScalingGroupName"))
        member = group.find(instance_id)
        if member is None or member.lifecycle_state != "Terminating:Wait":
            raise ValidationError(f"No active Lifecycle Action found with instance ID {instance_id}")
        return group, member
