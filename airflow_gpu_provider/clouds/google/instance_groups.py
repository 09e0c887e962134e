"""The managed instance groups behind a node pool: what they have and do, read from Compute Engine's answers, and calls.

All but InstanceGroups, which makes the calls, is pure.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_gpu_provider.clouds.answers import has_code, unless_answered
from airflow_gpu_provider.clouds.base import LaunchFailure, Machine, MachineLife, MachineState
from airflow_gpu_provider.clouds.google.clients import Rest
from airflow_gpu_provider.clouds.google.errors import error_of_operation, is_over_quota, quota_name
from airflow_gpu_provider.clouds.google.launch_errors import kind_of
from airflow_gpu_provider.cluster.api.threads import in_parallel
from airflow_gpu_provider.errors import CloudError

_CREATES = ("CREATING", "CREATING_WITHOUT_RETRIES", "RECREATING")
_REMOVES = ("DELETING", "ABANDONING")
_BOOTS = ("PROVISIONING", "STAGING", "PENDING", "REPAIRING")


@dataclass(frozen=True, kw_only=True)
class InstanceGroup:
    """One managed instance group, as it was read.

    Attributes:
        path: "projects/P/zones/Z/instanceGroupManagers/NAME".
        target: The size that it works towards.
        managed: listManagedInstances' answer.
        errors: listErrors' answer.
        launched: When its instances were created, by name.
        base_name: With what the names of its instances begin.
    """

    path: str
    target: int
    managed: tuple[Mapping[str, Any], ...] = ()
    errors: tuple[Mapping[str, Any], ...] = ()
    launched: Mapping[str, datetime] = field(default_factory=dict)
    base_name: str = ""

    @property
    def members(self) -> tuple[Mapping[str, Any], ...]:
        """The managed instances that the target counts."""
        return tuple(one for one in self.managed if one.get("currentAction") not in _REMOVES)

    @property
    def unborn(self) -> tuple[Mapping[str, Any], ...]:
        """Those that have no machine behind them."""
        return tuple(one for one in self.members if not has_machine(one))

    @property
    def launching(self) -> bool:
        """Whether a launch is under way that has no machine to show yet, and has not failed either."""
        return self.target > len(self.members) or any(not last_errors(one) for one in self.unborn)


def name_of(managed: Mapping[str, Any]) -> str:
    """Return the instance's name; it is in the URL where nowhere else."""
    return str(managed.get("name") or str(managed.get("instance", "")).rpartition("/")[2])


def has_machine(managed: Mapping[str, Any]) -> bool:
    """Return True if there is a machine, running or about to run, that is not just being replaced by another."""
    status = managed.get("instanceStatus")
    if not status:
        return False
    is_replaced = managed.get("currentAction") == "RECREATING"
    return not (is_replaced and machine_state(managed) == "terminating")


def machine_state(managed: Mapping[str, Any]) -> MachineState:
    """Return what a managed instance means for the pool."""
    status = managed.get("instanceStatus")
    if managed.get("currentAction") in _REMOVES:
        return "terminating"
    if status in _BOOTS:
        return "pending"
    return "running" if status == "RUNNING" else "terminating"


def machines(node_pool: str, groups: Iterable[InstanceGroup]) -> tuple[Machine, ...]:
    return tuple(
        Machine(
            id=name_of(one), group=node_pool, state=machine_state(one), launched_at=group.launched.get(name_of(one))
        )
        for group in groups
        for one in group.managed
        if one.get("instanceStatus")
    )


def last_errors(managed: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return why the last attempt at an instance failed; empty where it did not."""
    attempt = managed.get("lastAttempt") or {}
    return list((attempt.get("errors") or {}).get("errors") or ())


def failures(groups: Sequence[InstanceGroup], now: datetime) -> tuple[LaunchFailure, ...]:
    """Return all failed launches that Compute Engine still tells of, the oldest first."""
    found = (failure for group in groups for failure in _failures(group, now))
    return tuple(sorted(found, key=lambda failure: failure.at))


def not_created(group: InstanceGroup) -> set[str]:
    """Return the names of instances whose creation has failed."""
    failed = ((item.get("instanceActionDetails") or {}).get("instance") for item in group.errors)
    return {str(url).rpartition("/")[2] for url in failed if url} | set(map(name_of, group.unborn))


def launch_failure(groups: Sequence[InstanceGroup], now: datetime) -> LaunchFailure | None:
    """Return the newest failed launch, unless a later one worked."""
    worked = max((at for group in groups for at in group.launched.values()), default=None)
    return LaunchFailure.newest([each for each in failures(groups, now) if worked is None or each.at >= worked])


def _failures(group: InstanceGroup, now: datetime) -> Iterable[LaunchFailure]:
    for item in group.errors:
        details = item.get("instanceActionDetails") or {}
        if item.get("timestamp") and str(details.get("action", "CREATING")) in _CREATES:
            yield _failure(item.get("error") or {}, parse_time(str(item["timestamp"])))
    if not group.errors:  # they are kept for a while only; an instance that cannot be created still has the reason
        for one in group.unborn:
            for error in last_errors(one)[:1]:
                yield _failure(error, now)


def _failure(error: Mapping[str, Any], at: datetime) -> LaunchFailure:
    code, message = str(error.get("code", "")), str(error.get("message", "")).strip()
    text = message if code in message else f"{code}: {message}".strip(": ")
    kind = kind_of(code, message, over_quota=is_over_quota(f"{code} {message}"))
    quota = quota_name(message) if kind == "quota" else None
    return LaunchFailure(at=at, message=text or "no reason given", kind=kind, quota=quota)


def parse_time(text: str) -> datetime:
    """Read a time as Google writes it."""
    return datetime.fromisoformat(text).astimezone(UTC)


# -- when instances ran, by the operations of their zone ------------------------------------------------------

# Compute Engine keeps operations for 14 days, `gcloud compute operations list` says. What takes an instance away is one
# too, whatever requested it: its own are system events ("Troubleshooting VM shutdowns and reboots"; gcpdiag's
# gce/vm_termination runbook looks for them among the operations). Maintenance of the host ends an instance with GPUs,
# which cannot move, and Compute Engine starts the same one again elsewhere, unless it is a spot one.

_STARTS = ("insert",)
_RESTARTS = ("start", "compute.instances.automaticRestart")
_ENDS = (
    "delete",
    "stop",
    "compute.instances.preempted",
    "compute.instances.baremetalCaretakerPreempted",
    "compute.instances.hostError",
    "compute.instances.terminateOnHostMaintenance",
    "compute.instances.guestTerminate",
    "compute.instances.instanceManagerHaltForRestart",
    "compute.instances.stoppedDueToPdDoubleServe",
)


def lives(
    group: str, is_its: Callable[[str], bool], operations: Iterable[Mapping[str, Any]], since: datetime
) -> tuple[MachineLife, ...]:
    """Return when the instances of a group ran that these operations tell of, and that ran after `since`.

    Args:
        group: Its name in the pool; empty for instances of groups that are deleted.
        is_its: Whether an instance of this name is the group's.
        operations: Of the group's zone.
        since: What ended before is left out.
    """
    names: dict[str, str] = {}
    starts: dict[str, list[datetime]] = defaultdict(list)
    restarts: dict[str, list[datetime]] = defaultdict(list)
    ends: dict[str, list[datetime]] = defaultdict(list)
    for operation in operations:
        what, _, name = str(operation.get("targetLink", "")).rpartition("/instances/")
        kind, instance_id = operation.get("operationType"), str(operation.get("targetId", ""))
        if not what or not is_its(name) or operation.get("error"):
            continue
        if kind in _STARTS and operation.get("insertTime"):
            starts[instance_id].append(parse_time(operation["insertTime"]))
        elif kind in _RESTARTS and operation.get("insertTime"):
            restarts[instance_id].append(parse_time(operation["insertTime"]))
        elif kind in _ENDS and operation.get("endTime"):
            ends[instance_id].append(parse_time(operation["endTime"]))
        else:
            continue
        names[instance_id] = name
    found = (
        MachineLife(
            id=name,
            group=group,
            node=name,
            launched_at=min(starts[each], default=None),
            ended_at=_last_run_s_end(ends[each], restarts[each]),
        )
        for each, name in names.items()
    )
    return tuple(life for life in found if life.ended_at is None or life.ended_at > since)


def named_after(base_name: str) -> Callable[[str], bool]:
    """Return whether an instance is of the group with this baseInstanceName: its name begins with it."""
    return lambda name: name.startswith(f"{base_name}-")


def _last_run_s_end(ends: Sequence[datetime], restarts: Sequence[datetime]) -> datetime | None:
    """Return when an instance ended that may have been restarted in between: the first end after the last restart."""
    return min((end for end in ends if all(end > restart for restart in restarts)), default=None)


def last_end(group: InstanceGroup, operations: Iterable[Mapping[str, Any]]) -> datetime | None:
    """Return when an instance of a group last ended; one that could not be created has not, though it was deleted."""
    never = not_created(group)
    its, always = named_after(group.base_name), datetime.min.replace(tzinfo=UTC)
    found = lives("", its, operations, always) if group.base_name else ()
    return max((life.ended_at for life in found if life.ended_at and life.id not in never), default=None)


def ending(group: InstanceGroup, operations: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the instances that are being deleted, and that the group, which was read before, may not list any more."""
    links = (
        str(operation.get("targetLink", "")).partition("/instances/")[2]
        for operation in operations
        if operation.get("operationType") == "delete" and not operation.get("endTime")
    )
    never = not_created(group)
    mine = (name for name in links if group.base_name and name.startswith(f"{group.base_name}-"))
    return tuple(name for name in dict.fromkeys(mine) if name not in never)


# -- calls: sizes, single instances, and those that failed --------------------------------------------------------

_READ = "compute.instanceGroupManagers.get"
_WRITE = "compute.instanceGroupManagers.update"
_SHRINK_SECONDS = 10.0
_OPERATION_SECONDS = 10.0
_POLL = (0.25, 1.0)


class InstanceGroups:
    """The instance groups of one project, by their paths. Every method makes fresh calls; times of birth are kept."""

    def __init__(self, compute: Rest) -> None:
        self._compute = compute
        self._launched: dict[tuple[str, str], datetime] = {}

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, paths: Sequence[str]) -> list[InstanceGroup]:
        """Return the groups with their instances, in the order given; one that is gone is empty."""
        return in_parallel(self._read, paths)

    def _read(self, path: str) -> InstanceGroup:
        try:
            found = self._compute.get(path, permission=_READ)
            pages = self._compute.items(
                f"{path}/listManagedInstances", "managedInstances", permission=_READ, method="POST"
            )
            managed = tuple(pages)
            errors = tuple(self._compute.items(f"{path}/listErrors", "items", permission=_READ))
        except CloudError as error:
            if not has_code(error, "NOT_FOUND"):
                raise
            return InstanceGroup(path=path, target=0)
        born = zip(managed, in_parallel(lambda one: self._launched_at(path, one), managed), strict=True)
        launched = {name_of(one): at for one, at in born if at}
        return InstanceGroup(
            path=path,
            target=int(found.get("targetSize", 0)),
            managed=managed,
            errors=errors,
            launched=launched,
            base_name=str(found.get("baseInstanceName", "")),
        )

    def _launched_at(self, path: str, managed: Mapping[str, Any]) -> datetime | None:
        """Return when an instance was created. The id tells it from another that has had its name before."""
        if not has_machine(managed):
            return None
        key = (name_of(managed), str(managed.get("id", "")))
        if key not in self._launched:
            with unless_answered("NOT_FOUND"):
                where = f"{zone_of(path)}/instances/{key[0]}"
                found = self._compute.get(where, permission="compute.instances.get")
                if born := found.get("creationTimestamp") or found.get("lastStartTimestamp"):
                    self._launched[key] = parse_time(str(born))
        return self._launched.get(key)

    def base_name(self, path: str) -> str:
        """Return with what the names of a group's instances begin; empty where the group is gone."""
        with unless_answered("NOT_FOUND"):
            return str(self._compute.get(path, permission=_READ).get("baseInstanceName", ""))
        return ""

    def operations_since(self, zone: str, since: datetime) -> list[Mapping[str, Any]]:
        """Return the operations of a zone ("projects/P/zones/Z") back to `since`, the newest first."""
        found: list[Mapping[str, Any]] = []
        for operation in self._compute.items(
            f"{zone}/operations",
            "items",
            permission="compute.zoneOperations.list",
            orderBy="creationTimestamp desc",
        ):
            if operation.get("insertTime") and parse_time(operation["insertTime"]) < since:
                break
            found.append(operation)
        return found

    # -- sizes -----------------------------------------------------------------------------------------------

    def grow(self, path: str, size: int) -> None:
        """Set a group's size, unless it is larger already.

        One that is shown to be just that large is set, too: it may be the size of before a machine was removed.
        """
        if size >= int(self._compute.get(path, permission=_READ).get("targetSize", 0)):
            self._finish(self._compute.post(f"{path}/resize", permission=_WRITE, size=size), f"set {path} to {size}")

    def remove(self, path: str, names: Sequence[str]) -> None:
        """Delete exactly these instances and lower the group's size by as many; fine if they are gone."""
        zone = zone_of(path)
        body = {
            "instances": [f"{zone}/instances/{name}" for name in names],
            "skipInstancesOnValidationError": True,  # those that are gone, or going already
        }
        answer = self._compute.post(f"{path}/deleteInstances", body, permission=_WRITE)
        self._finish(answer, f"delete {', '.join(names)}")

    def shrink_to_existing(self, paths: Sequence[str]) -> int | None:
        """Delete the managed instances that could not be created, so that the groups stop trying for them.

        Returns the size that is left, all groups together; None where nothing was changed: nothing is unfilled, or a
        launch is under way.

        A launch may succeed between the look and the call. Such a machine is deleted as it is born, long before it
        could join the cluster: nothing runs on it.
        """
        started = time.monotonic()
        groups = self.read(paths)
        if any(group.launching for group in groups) or not any(group.unborn for group in groups):
            return None
        for group in groups:
            # A process that stalled here must not delete what may have come alive since.
            if group.unborn and time.monotonic() - started < _SHRINK_SECONDS:
                self.remove(group.path, [name_of(one) for one in group.unborn])
        return sum(group.target - len(group.unborn) for group in groups)

    def _finish(self, operation: Mapping[str, Any], doing: str) -> None:
        """Wait some seconds for the end of an operation that Compute Engine has taken on, and raise its error.

        One that takes longer is a success: what becomes of it shows in the group. `zoneOperations.wait` is not
        used, for it answers after up to two minutes, which the pool's lock does not last (its reference;
        kubernetes/autoscaler polls, too).
        """
        deadline, pause = time.monotonic() + _OPERATION_SECONDS, _POLL[0]
        path = str(operation.get("selfLink", "")).partition("/compute/v1/")[2]
        while operation.get("status") != "DONE" and time.monotonic() + pause <= deadline:
            time.sleep(pause)
            operation = self._compute.get(path, permission="compute.zoneOperations.get")
            pause = min(pause * 2, _POLL[1])
        errors = (operation.get("error") or {}).get("errors") or ()
        for error in errors:
            raise error_of_operation(str(error.get("code", "")), str(error.get("message", "")), doing=doing)


def zone_of(path: str) -> str:
    """Return the path of an instance group's zone, "projects/P/zones/Z"."""
    return path.partition("/instanceGroupManagers/")[0]


def path_of(url: str) -> str:
    """Return a resource's path, "projects/...", from its URL."""
    return url[url.index("projects/") :]
