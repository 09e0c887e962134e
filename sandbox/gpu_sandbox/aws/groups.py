"""One Auto Scaling group and its instances: how size becomes launches and terminations, step by step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from moto.autoscaling.models import FakeAutoScalingGroup, InstanceState, LifecycleHook
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Instance as Ec2Instance

from gpu_sandbox.aws.activities import Activity, ActivityLog, StatusCode, at
from gpu_sandbox.aws.ec2 import Ec2Backend, end, market_of, set_state, shut_down
from gpu_sandbox.aws.interface import AwsTimings, Instance
from gpu_sandbox.aws.launches import CapacityPool, Ec2Capacity, LaunchPlan, plan_of
from gpu_sandbox.aws.registration import (
    Registration,
    describe_instance,
    kubelet_starts,
    self_managed_registration,
)
from gpu_sandbox.aws.replacements import Replacement, uneven
from gpu_sandbox.aws.user_data import boots, text_of
from gpu_sandbox.aws.vpc import reaches_outside
from gpu_sandbox.clock import Clock
from gpu_sandbox.cloud_events import Outbox
from gpu_sandbox.faults import Faults

Process = Literal["Launch", "Terminate", "ReplaceUnhealthy", "ScheduledActions", "AZRebalance"]
_TERMINATING_HOOK = "autoscaling:EC2_INSTANCE_TERMINATING"
_FAILURES: tuple[StatusCode, ...] = ("Failed", "Failed", "Cancelled")
_BY_DIFFERENCE = "in response to a difference between desired and actual capacity"


@dataclass(kw_only=True)
class Surroundings:
    """What the groups of a region share."""

    region: str
    timings: AwsTimings
    ec2: Ec2Backend
    capacity: Ec2Capacity
    activities: ActivityLog
    outbox: Outbox[Instance]
    faults: Faults
    clock: Clock
    random: random.Random = field(default_factory=lambda: random.Random(0))


class Member(InstanceState):
    """An instance in a group, and where it is in its life there."""

    def __init__(
        self, instance: Ec2Instance, *, group: AutoScalingGroup, activity: Activity, deadline: datetime
    ) -> None:
        super().__init__(
            instance,
            lifecycle_state="Pending",
            protected_from_scale_in=group.new_instances_protected_from_scale_in,
            autoscaling_group=group,
        )
        self.activity = activity
        self.deadline: datetime | None = deadline
        """When the present lifecycle state is over; None for one that lasts."""
        self.announced: Instance | None = None
        """As `instance_launched` told it; None for one that will never reach the cluster."""
        self.in_service_since: datetime | None = None
        self.has_joined = False
        """Whether its node has joined the cluster."""
        self.end_reason: str | None = None

    @property
    def counts(self) -> bool:
        """Whether it is part of the group's capacity."""
        return self.lifecycle_state in ("Pending", "InService")

    @property
    def terminating(self) -> bool:
        return self.lifecycle_state.startswith("Terminating")


class AutoScalingGroup(FakeAutoScalingGroup):
    """moto's group, whose instances come and go in time.

    `desired_capacity` is only a wish here; `advance`, called by the clock, makes it true.
    """

    def __init__(self, *, surroundings: Surroundings, now: datetime, **fields: Any) -> None:
        self._around = surroundings
        self.registration: Registration | None = None
        """Set by EKS for a managed group; None for one that its user made."""
        self._members: list[Member] = []
        self._retry_at: datetime | None = None
        self._reacts_at = self._reaction(now)
        self._capacity_cause = f"{at(now)} a user request created an AutoScalingGroup."
        self._cooldown_until: datetime | None = None
        self._replacements: list[Replacement] = []
        self._uneven_since: datetime | None = None
        self.deleting = False
        super().__init__(**fields)
        self.created_time = now  # type: ignore[assignment]
        self._capacity_cause = (
            f"{at(now)} a user request created an AutoScalingGroup changing the desired capacity from 0 to {self.size}."
        )

    # moto's ways to change members at once, which are not ours

    @property
    def instance_states(self) -> list[InstanceState]:
        return list(self._members)

    @instance_states.setter
    def instance_states(self, states: list[InstanceState]) -> None:
        self._members = [state for state in states if isinstance(state, Member)]

    def set_desired_capacity(self, new_capacity: int | None) -> None:
        self.desired_capacity = self.min_size if new_capacity is None else new_capacity

    def replace_autoscaling_group_instances(self, count_needed: int, propagated_tags: dict[str, str]) -> None:
        """`advance` launches."""

    # What it is

    @property
    def size(self) -> int:
        """The desired capacity."""
        return int(self.desired_capacity or 0)

    @property
    def members(self) -> list[Member]:
        return list(self._members)

    @property
    def capacity(self) -> list[Member]:
        """The members that count."""
        return [member for member in self._members if member.counts]

    @property
    def satisfied(self) -> bool:
        """Whether every wanted instance is in service, and no other is left."""
        in_service = [m for m in self._members if m.lifecycle_state == "InService"]
        return len(in_service) == len(self._members) == self.size

    def unjoined(self, *, for_seconds: float = 0.0) -> list[Member]:
        """The members in service for so long that cannot reach the cluster."""
        unreached = [m for m in self.capacity if m.in_service_since and m.announced is None]
        return [m for m in unreached if self._has_passed(for_seconds, m.in_service_since)]

    def in_cooldown(self, now: datetime) -> bool:
        return self._cooldown_until is not None and now < self._cooldown_until

    def is_suspended(self, process: Process) -> bool:
        return any(p["ProcessName"] == process for p in self.suspended_processes)

    def find(self, instance_id: str) -> Member | None:
        return next((m for m in self._members if m.instance.id == instance_id), None)

    @property
    def first_instance_type(self) -> str:
        """The type that it launches, the first of several."""
        return self._plan().instance_types[0]

    def activity_in_progress(self) -> Activity | None:
        return next((m.activity for m in self._members if not m.activity.over), None)

    # What may be done to it

    def resize(self, desired: int, *, now: datetime, cause: str) -> None:
        """Wish for another capacity. `cause` is the API's words for who wants it, without time and numbers."""
        if desired == self.size:
            return
        self._capacity_cause = f"{at(now)} {cause} changing the desired capacity from {self.size} to {desired}."
        self.desired_capacity = desired
        self._retry_at = None
        self._reacts_at = self._reaction(now)

    def terminate(self, member: Member, *, now: datetime, cause: str) -> Activity:
        """Begin to end an instance. It no longer counts; the group's hook, if any, is asked first."""
        instance = member.instance
        member.activity = self._activity_of(instance, f"Terminating EC2 instance: {instance.id}", cause, now)
        hook = self._terminating_hook()
        if hook is None or member.announced is None or instance.state != "running":
            self._shut_down(member, now)
        else:
            self._wait_for_hook(member, hook, now)
        return member.activity

    def complete_terminating(self, member: Member, now: datetime) -> None:
        """The lifecycle action is over; does nothing unless the instance waits for one."""
        if member.lifecycle_state == "Terminating:Wait":
            member.deadline = now

    def heartbeat(self, member: Member, now: datetime) -> None:
        """Give the lifecycle action its whole time again."""
        hook = self._terminating_hook()
        if hook is not None and member.lifecycle_state == "Terminating:Wait":
            member.deadline = now + self._hook_time(hook)

    def ended_outside(self, member: Member, *, now: datetime, cause: str, reason: str | None = None) -> None:
        """The instance was taken without asking the group: by EC2's own API, or as spot."""
        if member.terminating and member.lifecycle_state != "Terminating:Wait":
            return
        member.end_reason = reason
        if not member.terminating:
            instance = member.instance
            member.activity = self._activity_of(instance, f"Terminating EC2 instance: {instance.id}", cause, now)
        self._shut_down(member, now)

    def register_as(self, registration: Registration) -> None:
        """What its instances join as from now on; those that are there get the labels and taints too."""
        self.registration = registration
        for member in self._members:
            before = member.announced
            if before is None:
                continue
            after = self._describe(member)
            if (before.labels, before.taints) != (after.labels, after.taints):
                member.announced = after
                self._around.outbox.instance_relabelled(before, after)

    def replace_at_risk(self, member: Member, *, now: datetime) -> None:
        """Capacity rebalancing: have another in its place before it is taken."""
        if member.counts and not self._being_replaced(member):
            why = f"{at(now)} an EC2 instance rebalance recommendation was received for {member.instance.id}."
            self._replacements.append(
                Replacement(
                    old=member,
                    launch_cause=f"{why}  {at(now)} an instance was launched as its replacement.",
                    end_cause=f"{why}  Its replacement is in service.",
                )
            )

    def drain_before_replacement(self, member: Member, *, now: datetime) -> None:
        """Its notice came while its replacement was still on the way: it drains in the time that it has."""
        replacement = self._being_replaced(member)
        if replacement is not None:
            self._replacements.remove(replacement)
            self.terminate(member, now=now, cause=f"{at(now)} an EC2 Spot interruption notice was received.")

    def _being_replaced(self, member: Member) -> Replacement | None:
        return next((each for each in self._replacements if each.old is member), None)

    def detach(self, member: Member, *, now: datetime) -> Activity:
        """Let go of an instance, which runs on."""
        instance = member.instance
        self._members.remove(member)
        del instance.autoscaling_group  # type: ignore[attr-defined]
        activity = self._activity_of(
            instance,
            f"Detaching EC2 instance: {instance.id}",
            f"{at(now)} instance {instance.id} was detached in response to a user request.",
            now,
        )
        activity.end(now)
        return activity

    def attach(self, instance: Ec2Instance, *, now: datetime) -> None:
        """Take in an instance that runs already."""
        activity = self._activity_of(
            instance,
            f"Attaching an existing EC2 instance: {instance.id}",
            f"{at(now)} an instance was attached in response to a user request.",
            now,
        )
        member = Member(instance, group=self, activity=activity, deadline=now)
        self._members.append(member)
        self._enter_service(member, now)

    # The clock

    def advance(self, now: datetime) -> None:
        """Take every step that is due."""
        for member in [m for m in self._members if m.deadline and self._around.clock.reached(m.deadline)]:
            self._next_state(member, now)
        if not self.is_suspended("ReplaceUnhealthy"):
            self._replace_unhealthy(now)
        if not self._around.clock.reached(self._reacts_at):
            return
        if not self.is_suspended("Terminate"):
            self._shrink(now)
        if not self.is_suspended("Launch") and not self.deleting:
            self._grow(now)
            self._even_zones(now)
            self._replace(now)

    def _next_state(self, member: Member, now: datetime) -> None:
        if member.lifecycle_state == "Pending":
            self._enter_service(member, now)
        elif member.lifecycle_state == "Terminating:Wait":
            self._shut_down(member, now, state="Terminating:Proceed")
        else:
            self._remove(member, now)

    def _enter_service(self, member: Member, now: datetime) -> None:
        set_state(member.instance, "running")
        member.lifecycle_state, member.deadline = "InService", None
        member.activity.end(now)
        member.in_service_since = now
        self._cooldown_until = now + timedelta(seconds=self.default_cooldown)
        registers_with = self._registers_with()
        is_up = kubelet_starts(registers_with.labels) and boots(
            text_of(self.user_data), str(registers_with.ami_type or "")
        )
        if is_up and reaches_outside(self._around.ec2, str(member.instance.subnet_id)):
            member.announced = self._describe(member)
            self._around.outbox.instance_launched(member.announced)

    def _registers_with(self) -> Registration:
        managed = self.registration
        return self._own_registration() if managed is None or managed.ami_type == "CUSTOM" else managed

    def _describe(self, member: Member) -> Instance:
        return describe_instance(
            member.instance,
            registration=self.registration or self._own_registration(),
            own=self._own_registration(),
            asg_name=self.name,
            region=self._around.region,
        )

    def _wait_for_hook(self, member: Member, hook: LifecycleHook, now: datetime) -> None:
        member.lifecycle_state = "Terminating:Wait"
        member.deadline = now + self._hook_time(hook)
        member.activity.status_code = "MidTerminatingLifecycleAction"
        if self.registration is not None and member.announced is not None:
            self._around.outbox.drain_requested(member.announced)

    def _shut_down(self, member: Member, now: datetime, *, state: str = "Terminating") -> None:
        member.lifecycle_state = state
        member.deadline = now + timedelta(seconds=self._around.timings.terminate)
        member.activity.status_code = "InProgress"
        shut_down(member.instance, now=now, reason=member.end_reason)

    def _remove(self, member: Member, now: datetime) -> None:
        end(member.instance, now=now, reason=member.end_reason)
        self._members.remove(member)
        member.activity.end(now)
        if member.announced is not None:
            self._around.outbox.instance_terminated(member.announced)

    def _replace_unhealthy(self, now: datetime) -> None:
        for member in self.capacity:
            if member.health_status == "Unhealthy":
                why = "was taken out of service in response to a user health-check."
                self.terminate(member, now=now, cause=f"{at(now)} an instance {why}")

    def _shrink(self, now: datetime) -> None:
        while len(self.capacity) - self._surplus > self.size:
            victim = self._victim()
            if victim is None:
                return
            count = len(self.capacity)
            self.terminate(
                victim,
                now=now,
                cause=f"{self._capacity_cause}  {at(now)} an instance was taken out of service {_BY_DIFFERENCE}, "
                f"shrinking the capacity from {count} to {count - 1}.  {at(now)} instance "
                f"{victim.instance.id} was selected for termination.",
            )

    def _victim(self) -> Member | None:
        """Any unprotected instance of the fullest zone: AWS's default policy, less its further rules."""
        unprotected = [m for m in self.capacity if not m.protected_from_scale_in]
        if not unprotected:
            return None
        in_zones = Counter(m.availability_zone for m in unprotected)
        fullest = max(in_zones.values())
        return self._around.random.choice([m for m in unprotected if in_zones[m.availability_zone] == fullest])

    def _grow(self, now: datetime) -> None:
        if len(self.capacity) - self._surplus >= self.size:
            self._retry_at = None
            return
        if self._waits_to_retry():
            return
        failed_zones: set[str] = set()
        while len(self.capacity) - self._surplus < self.size:
            if not self._launch_one(now, failed_zones):
                self._retry_at = now + timedelta(seconds=self._around.timings.asg_retry)
                return
        self._retry_at = None

    def _launch_one(self, now: datetime, failed_zones: set[str]) -> bool:
        """Launch one instance in the first zone that has capacity; zones that lack it are noted once a round."""
        plan = self._plan()
        market = plan.market(self.size, [market_of(m.instance) for m in self.capacity])
        count = len(self.capacity)
        cause = (
            f"{self._capacity_cause}  {at(now)} an instance was started {_BY_DIFFERENCE}, "
            f"increasing the capacity from {count} to {count + 1}."
        )
        for pools in plan.by_zone(market, [m.availability_zone or "" for m in self.capacity]):
            pool = pools[0]
            if pool.zone in failed_zones:
                continue
            choice = self._around.capacity.choose(pools, plan)
            outcome = self._launch(choice) if isinstance(choice, CapacityPool) else choice
            if isinstance(outcome, Ec2Instance):
                self._take_in(outcome, now, cause)
                return True
            failed_zones.add(pool.zone)
            activity = self._activity(
                "Launching a new EC2 instance", cause, now, subnet_id=pool.subnet_id, zone=pool.zone
            )
            activity.fail(now, outcome, self._around.random.choice(_FAILURES))
        return False

    @property
    def _surplus(self) -> int:
        """The instances above the size, each until the one that it replaces goes."""
        return sum(each.new is not None and each.new.counts and each.old.counts for each in self._replacements)

    def _even_zones(self, now: datetime) -> None:
        """AZRebalance: once zones have been uneven for a while, an instance of the fullest moves to the emptiest."""
        at_rest = self.satisfied and not self._replacements
        suspended = self.is_suspended("AZRebalance") or self.is_suspended("Terminate")
        found = uneven(self.capacity, [zone for _, zone in self._subnets()]) if at_rest and not suspended else None
        if found is None:
            self._uneven_since = None
            return
        self._uneven_since = self._uneven_since or now
        if not self._has_passed(self._around.timings.az_rebalance, self._uneven_since):
            return
        self._uneven_since = None
        member, zone = found
        why = (
            f"{at(now)} instances were launched to balance instances in zones {zone} with other zones resulting in "
            "more than desired number of instances in the group."
        )
        launch_cause = f"{at(now)} an instance was launched to aid in balancing the group's zones."
        self._replacements.append(Replacement(old=member, launch_cause=launch_cause, end_cause=why, zone=zone))

    def _replace(self, now: datetime) -> None:
        for each in list(self._replacements):
            if not each.old.counts:
                self._replacements.remove(each)
            elif each.new is None or not each.new.counts:
                self._launch_replacement(each, now)
            elif each.new.lifecycle_state == "InService" and self._takes_over(each, each.new):
                self._replacements.remove(each)
                cause = f"{each.end_cause}  {at(now)} instance {each.old.instance.id} was selected for termination."
                self.terminate(each.old, now=now, cause=cause)

    def _takes_over(self, replacement: Replacement, new: Member) -> bool:
        """Return True once a replacement does its work: EKS waits until a managed group's has joined as a Ready node.

        "Managed node group capacity types" in the EKS user guide, under Spot.
        """
        is_for_spot = self.registration is not None and replacement.zone is None
        return new.has_joined or not is_for_spot

    def _launch_replacement(self, replacement: Replacement, now: datetime) -> None:
        """Where there is no capacity, spot is tried again later, and zones stay uneven."""
        if self._waits_to_retry():
            return
        plan, old = self._plan(), replacement.old
        zones = [member.availability_zone or "" for member in self.capacity if member is not old]
        for pools in plan.by_zone(market_of(old.instance), zones):
            if replacement.zone not in (None, pools[0].zone):
                continue
            choice = self._around.capacity.choose(pools, plan)
            outcome = self._launch(choice) if isinstance(choice, CapacityPool) else choice
            if isinstance(outcome, Ec2Instance):
                replacement.new = self._take_in(outcome, now, replacement.launch_cause)
                return
        if replacement.zone is not None:
            self._replacements.remove(replacement)
        self._retry_at = now + timedelta(seconds=self._around.timings.asg_retry)

    def _launch(self, pool: CapacityPool) -> Ec2Instance | str:
        """The instance, or why EC2 refuses the request: its template or a security group may be gone."""
        template = self.ec2_launch_template
        version = {"LaunchTemplateId": template.id, "Version": self.launch_template_version} if template else None
        try:
            return self._around.ec2.launch(
                subnet_id=pool.subnet_id,
                zone=pool.zone,
                instance_type=pool.instance_type,
                market=pool.market,
                reserved_by=pool.reservation,
                image_id=self.image_id,
                security_groups=self.security_groups,
                user_data=self.user_data,
                launch_template=version,
                tags=self.get_propagated_tags() | {"aws:autoscaling:groupName": self.name} | self.instance_tags,
            )
        except EC2ClientError as error:
            return f"{error.message} Launching EC2 instance failed."

    def _take_in(self, instance: Ec2Instance, now: datetime, cause: str) -> Member:
        instance.autoscaling_group = self  # type: ignore[attr-defined]
        activity = self._activity_of(instance, f"Launching a new EC2 instance: {instance.id}", cause, now)
        ready = now + timedelta(seconds=self._around.timings.asg_launch)
        member = Member(instance, group=self, activity=activity, deadline=ready)
        self._members.append(member)
        return member

    def _waits_to_retry(self) -> bool:
        return self._retry_at is not None and not self._around.clock.reached(self._retry_at)

    def _has_passed(self, seconds: float, since: datetime | None) -> bool:
        return since is not None and self._around.clock.reached(since + timedelta(seconds=seconds))

    def _reaction(self, now: datetime) -> datetime:
        return now + timedelta(seconds=self._around.timings.asg_reaction)

    def _plan(self) -> LaunchPlan:
        return plan_of(
            subnets=self._subnets(),
            mixed_instances_policy=self.mixed_instances_policy,
            template_type=self.instance_type,
            template=self._template_data(),
        )

    def _template_data(self) -> Mapping[str, Any]:
        template = self.ec2_launch_template
        return template.get_version(self.launch_template_version).data if template else {}

    def _subnets(self) -> list[tuple[str, str]]:
        if not self.vpc_zone_identifier:
            return [("", zone) for zone in self.availability_zones]
        subnet_ids = self.vpc_zone_identifier.split(",")
        return [(subnet_id, self._around.ec2.get_subnet(subnet_id).availability_zone) for subnet_id in subnet_ids]

    def _own_registration(self) -> Registration:
        return self_managed_registration(tags={tag["Key"]: tag["Value"] for tag in self.tags}, user_data=self.user_data)

    def _terminating_hook(self) -> LifecycleHook | None:
        hooks = self.autoscaling_backend.describe_lifecycle_hooks(self.name)
        return next((hook for hook in hooks if hook.lifecycle_transition == _TERMINATING_HOOK), None)

    def _hook_time(self, hook: LifecycleHook) -> timedelta:
        managed = self.registration is not None
        return timedelta(seconds=self._around.timings.drain_timeout if managed else hook.heartbeat_timeout)

    def _activity_of(self, instance: Ec2Instance, description: str, cause: str, now: datetime) -> Activity:
        zone = instance.availability_zone or ""
        return self._activity(description, cause, now, subnet_id=instance.subnet_id, zone=zone)

    def _activity(self, description: str, cause: str, now: datetime, *, subnet_id: str | None, zone: str) -> Activity:
        return self._around.activities.add(
            Activity(
                group_name=self.name,
                group_arn=self.arn,
                description=description,
                cause=cause,
                start_time=now,
                subnet_id=subnet_id,
                zone=zone,
            )
        )
