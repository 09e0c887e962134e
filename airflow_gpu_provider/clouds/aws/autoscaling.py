"""Calls to Amazon EC2 Auto Scaling: sizes, single instances, the switch, and shrinking to what exists."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider.clouds.answers import has_code, message_of
from airflow_gpu_provider.clouds.aws.clients import AwsService
from airflow_gpu_provider.clouds.aws.group_state import OVER, ending_cause, is_launching, machine_state, machines
from airflow_gpu_provider.cluster.api.leases import create_lease, delete_lease, list_leases
from airflow_gpu_provider.cluster.api.rest import ApiClient
from airflow_gpu_provider.cluster.api.threads import in_parallel
from airflow_gpu_provider.cluster.model.lease import lease_manifest
from airflow_gpu_provider.errors import CloudError, GpuError
from airflow_gpu_provider.pools.values import time_of
from airflow_gpu_provider.times import format_time
from airflow_gpu_provider.untrusted import NotParsed, read

SWITCH = "airflow-gpu-provider-switch"
_STALE_SUSPENSION = timedelta(minutes=1)
_SHRINK_SECONDS = 10.0
_LOOK_AGAIN = 0.5  # seconds
_NAMES_PER_CALL = 50
_MOST_LATE = 5  # minutes: what the switch may be late (scaling.decide.decisions.SWITCH_SLACK)
_NEWEST_ACTIVITIES = 100


class AutoScaling:
    """The Auto Scaling groups of one region. Every method makes fresh calls."""

    def __init__(self, service: AwsService, marks: SuspensionMarks | None = None) -> None:
        self._service = service
        self._marks = marks or TagMarks(service)

    # -- reading ---------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """Return AWS's time, by its last answer."""
        return self._service.now()

    def groups(self, names: Collection[str]) -> dict[str, Mapping[str, Any]]:
        """Return DescribeAutoScalingGroups' answers by name, of those that exist."""
        wanted = sorted(names)
        found: dict[str, Mapping[str, Any]] = {}
        for start in range(0, len(wanted), _NAMES_PER_CALL):
            some = wanted[start : start + _NAMES_PER_CALL]
            items = self._service.items("describe_auto_scaling_groups", "AutoScalingGroups", AutoScalingGroupNames=some)
            found.update((asg["AutoScalingGroupName"], asg) for asg in items)
        return found

    def activities(self, names: Collection[str]) -> dict[str, Sequence[Mapping[str, Any]]]:
        """Return the newest activities of each group, the newest first."""
        wanted = sorted(names)
        return dict(zip(wanted, in_parallel(self._activities, wanted), strict=True))

    def activities_since(self, name: str, since: datetime) -> Sequence[Mapping[str, Any]]:
        """Return the activities of a group back to `since`, in AWS' order: those under way, then the newest first."""
        found = []
        try:
            for activity in self._service.items("describe_scaling_activities", "Activities", AutoScalingGroupName=name):
                found.append(activity)
                if activity["StatusCode"] in OVER and activity["StartTime"] < since:
                    break
        except CloudError as error:
            if not _is_not_found(error):
                raise
        return found

    def switches(self) -> dict[str, datetime]:
        """Return when each group of the region, by name, is set to zero by our scheduled action."""
        actions = self._service.items(
            "describe_scheduled_actions", "ScheduledUpdateGroupActions", ScheduledActionNames=[SWITCH]
        )
        return {a["AutoScalingGroupName"]: a["StartTime"].astimezone(UTC) for a in actions if a.get("StartTime")}

    def why_ending(self, instance_id: str) -> str:
        """Return for which cause a group ends an instance that still runs (drained, say); empty where none does."""
        answer = self._service.call("describe_auto_scaling_instances", InstanceIds=[instance_id])
        for instance in answer["AutoScalingInstances"]:
            if machine_state(instance["LifecycleState"]) == "terminating":
                return ending_cause(instance_id, self._activities(instance["AutoScalingGroupName"]))
        return ""

    def _activities(self, name: str) -> Sequence[Mapping[str, Any]]:
        try:
            answer = self._service.call(
                "describe_scaling_activities", AutoScalingGroupName=name, MaxRecords=_NEWEST_ACTIVITIES
            )
        except CloudError as error:
            if _is_not_found(error):
                return ()
            raise
        return sorted(answer["Activities"], key=lambda activity: activity["StartTime"], reverse=True)

    # -- sizes -----------------------------------------------------------------------------------------------

    def grow(self, name: str, size: int) -> None:
        """Set a group's size, unless it is larger already; a suspension that a dead process left ends first.

        One that is shown to be just that large is set, too: it may be the size of before a machine was released.
        """
        asg = self._group(name)
        if self._marks.read([asg]):
            self.resume(name)
        if size >= asg["DesiredCapacity"]:
            self._set_size(name, size)

    def terminate(self, instance_id: str) -> bool:
        """Remove one instance and shrink its group by one; fine if the instance is gone or on its way.

        Returns False where AWS does not end it yet: while an activity of the instance is under way, its launch as a
        rule, TerminateInstanceInAutoScalingGroup answers ScalingActivityInProgress.

        Raises:
            CloudError: The group may not shrink below its minimum size, or AWS failed.
        """
        try:
            self._service.call(
                "terminate_instance_in_auto_scaling_group",
                InstanceId=instance_id,
                ShouldDecrementDesiredCapacity=True,
            )
        except CloudError as error:
            if _is_not_found(error):
                return True
            if has_code(error, "ScalingActivityInProgress", "ScalingActivityInProgressFault"):
                return self._is_terminating(instance_id)
            if "min size" in message_of(error):
                raise CloudError(
                    f"Instance {instance_id} cannot be released: its Auto Scaling group would fall below its minimum"
                    f" size ({message_of(error)}).",
                    "Somebody raised the group's minimum: set it to 0, or let EnsureGpuPoolOperator repair the group.",
                    **error.details,
                ) from error
            raise
        return True

    def shrink_to_existing(self, name: str) -> int | None:
        """Set a group to the instances that it has, launches suspended meanwhile so that none comes in between.

        Returns the new size; None where nothing was changed: nothing is unfilled, or a launch is under way. A group
        that is not shown as suspended yet is looked at again, for seconds: what is shown is of before.
        """
        with self._launches_suspended(name):
            give_up_at = time.monotonic() + _SHRINK_SECONDS
            while True:
                started = time.monotonic()
                # In this order: a launch that the activities no longer show has an instance by now.
                activities = self._activities(name)
                asg = self._group(name)
                if _is_suspended(asg) or time.monotonic() + _LOOK_AGAIN > give_up_at:
                    break
                time.sleep(_LOOK_AGAIN)
            size = _size_of_existing(asg, activities)
            # A process that stalled here must not write what it read long ago.
            if size is None or time.monotonic() - started > _SHRINK_SECONDS:
                return None
            self._set_size(name, size)
            return size

    def left_suspended(self, asgs: Collection[Mapping[str, Any]]) -> set[str]:
        """Return the names of groups whose launches a process suspended, and then died over."""
        marks = self._marks.read(asgs)
        return {name for name, since in marks.items() if self._service.now() - since > _STALE_SUSPENSION}

    def resume(self, name: str) -> None:
        """End a suspension of this package's; fine where there is none."""
        self._service.call("resume_processes", AutoScalingGroupName=name, ScalingProcesses=["Launch"])
        self._marks.clear(name)

    @contextmanager
    def _launches_suspended(self, name: str) -> Iterator[None]:
        asg = self._group(name)
        if _is_suspended(asg) and not self._marks.read([asg]):
            yield  # another writer's suspension serves as well, and is not ours to end
            return
        # The mark comes first: if this process dies after it, another one finds the mark.
        self._marks.set(name, self._service.now())
        try:
            self._service.call("suspend_processes", AutoScalingGroupName=name, ScalingProcesses=["Launch"])
            yield
        finally:
            self.resume(name)

    def _set_size(self, name: str, size: int) -> None:
        self._service.call("set_desired_capacity", AutoScalingGroupName=name, DesiredCapacity=size, HonorCooldown=False)

    def _group(self, name: str) -> Mapping[str, Any]:
        asg = self.groups([name]).get(name)
        if asg is None:
            raise CloudError(
                f"The Auto Scaling group {name} does not exist.",
                "It was deleted externally. Delete its node group too; the next run recreates both.",
            )
        return asg

    def _is_terminating(self, instance_id: str) -> bool:
        found = self._service.call("describe_auto_scaling_instances", InstanceIds=[instance_id])
        states = [instance["LifecycleState"] for instance in found["AutoScalingInstances"]]
        return all(state.startswith("Terminat") for state in states)

    # -- tags ------------------------------------------------------------------------------------------------

    def put_tags(self, name: str, tags: Mapping[str, str], *, for_instances: Mapping[str, str]) -> None:
        """Put tags on a group: for itself, and for the instances that it launches from now on too."""
        entries = [
            {**_tag(name, key), "Value": value, "PropagateAtLaunch": is_for_instances}
            for each, is_for_instances in ((tags, False), (for_instances, True))
            for key, value in each.items()
        ]
        if entries:
            self._service.call("create_or_update_tags", Tags=entries)

    def remove_tags(self, name: str, keys: Collection[str]) -> None:
        """Take tags off a group; fine where they are gone."""
        if keys:
            self._service.call("delete_tags", Tags=[_tag(name, key) for key in keys])

    # -- the switch ------------------------------------------------------------------------------------------

    def schedule_scale_to_zero(self, name: str, at: datetime, *, size: int = 0) -> None:
        """Set the group to zero, or another size, at `at`, in place of an earlier time for it.

        Two actions of one group may not start at the same time, so it is the first minute from there on in which no
        other action does. EKS has one for a Capacity Block's group, 40 minutes before the block ends, which is not to
        be edited ("Create a managed node group with Capacity Blocks" in its user guide).
        """
        taken = self._minutes_of_others(name)
        free = (at + timedelta(minutes=late) for late in range(_MOST_LATE))
        start = next((each for each in free if _minute(each) not in taken), at)
        self._service.call(
            "put_scheduled_update_group_action",
            AutoScalingGroupName=name,
            ScheduledActionName=SWITCH,
            StartTime=_whole_second(start),
            DesiredCapacity=size,
        )

    def _minutes_of_others(self, name: str) -> set[datetime]:
        actions = self._service.items(
            "describe_scheduled_actions", "ScheduledUpdateGroupActions", AutoScalingGroupName=name
        )
        return {_minute(a["StartTime"]) for a in actions if a["ScheduledActionName"] != SWITCH and a.get("StartTime")}

    def cancel_scale_to_zero(self, name: str) -> None:
        """Take the switch off; fine where there is none."""
        try:
            self._service.call("delete_scheduled_action", AutoScalingGroupName=name, ScheduledActionName=SWITCH)
        except CloudError as error:
            if not _is_not_found(error):
                raise


def _size_of_existing(asg: Mapping[str, Any], activities: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the size to set, or None where the group must be left as it is."""
    found = machines("", asg)
    if not _is_suspended(asg) or is_launching(activities, found):
        return None
    live = sum(machine.state != "terminating" for machine in found)
    size = max(live, int(asg["MinSize"]))
    return size if size < asg["DesiredCapacity"] else None


def _is_suspended(asg: Mapping[str, Any]) -> bool:
    return any(process["ProcessName"] == "Launch" for process in asg.get("SuspendedProcesses", []))


def _is_not_found(error: GpuError) -> bool:
    return has_code(error, "ValidationError") and "not found" in message_of(error).lower()


def _tag(name: str, key: str) -> dict[str, str]:
    return {"ResourceId": name, "ResourceType": "auto-scaling-group", "Key": key}


def _minute(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(second=0, microsecond=0)


def _whole_second(at: datetime) -> datetime:
    """Round up: AWS keeps no fractions, and a switch must not fire early."""
    return at if at.microsecond == 0 else at.replace(microsecond=0) + timedelta(seconds=1)


# -- who suspended a group's launches: marks by which the next one to come resumes them, should one die ------------

SUSPENDED_TAG = "airflow-gpu-provider/launch-suspended"
"""On an Auto Scaling group whose launches this package has suspended, and when."""

_ASG = "airflow-gpu-provider/asg"


class TagMarks:
    """A tag on the group: for groups that this package owns. `LeaseMarks` keeps the same elsewhere."""

    def __init__(self, service: AwsService) -> None:
        self._service = service

    def read(self, asgs: Collection[Mapping[str, Any]]) -> dict[str, datetime]:
        """Return the marks of these groups (DescribeAutoScalingGroups' answers), by name."""
        return {
            asg["AutoScalingGroupName"]: datetime.fromisoformat(tag["Value"])
            for asg in asgs
            for tag in asg.get("Tags", [])
            if tag["Key"] == SUSPENDED_TAG
        }

    def set(self, name: str, at: datetime) -> None:
        """Mark a group, in place of an earlier mark."""
        tag = {**_tag(name, SUSPENDED_TAG), "Value": at.isoformat(timespec="seconds"), "PropagateAtLaunch": False}
        self._service.call("create_or_update_tags", Tags=[tag])

    def clear(self, name: str) -> None:
        """Take a group's mark off; fine where there is none."""
        self._service.call("delete_tags", Tags=[_tag(name, SUSPENDED_TAG)])


class LeaseMarks:
    """A Lease in the cluster: external groups are not tagged. The caller holds the pool's lock."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def read(self, asgs: Collection[Mapping[str, Any]]) -> dict[str, datetime]:
        """Return the marks of these groups, by name; a Lease that somebody broke is none."""
        names = {asg["AutoScalingGroupName"] for asg in asgs}
        marks = dict[str, datetime]()
        for raw in list_leases(self._api, "suspension"):
            with suppress(NotParsed):
                name, at = read(raw, _mark)
                marks[name] = at
        return {name: at for name, at in marks.items() if name in names}

    def set(self, name: str, at: datetime) -> None:
        self.clear(name)
        spec = {"acquireTime": format_time(at)}
        notes = {_ASG: name}
        create_lease(self._api, lease_manifest(_lease_name(name), "suspension", labels={}, notes=notes, spec=spec))

    def clear(self, name: str) -> None:
        delete_lease(self._api, _lease_name(name))


def _mark(lease: Mapping[str, Any]) -> tuple[str, datetime]:
    return lease["metadata"]["annotations"][_ASG], time_of(lease["spec"]["acquireTime"])


SuspensionMarks = TagMarks | LeaseMarks
"""Where it is kept which groups' launches this package suspended, and when."""


def _lease_name(asg_name: str) -> str:
    return f"suspension-{hashlib.sha256(asg_name.encode()).hexdigest()[:20]}"
