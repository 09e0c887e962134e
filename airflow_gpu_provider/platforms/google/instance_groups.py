"""Calls to Compute Engine about managed instance groups: sizes, single instances, and those that failed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_gpu_provider.cluster.threads import in_parallel
from airflow_gpu_provider.errors import CloudError
from airflow_gpu_provider.platforms.answers import has_code, unless_answered
from airflow_gpu_provider.platforms.google.clients import Rest
from airflow_gpu_provider.platforms.google.errors import error_of_operation
from airflow_gpu_provider.platforms.google.instances import InstanceGroup, has_machine, name_of, parse_time

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
