"""The machines that Compute Engine took back, or whose host failed soon after their start, by a zone's operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider.clouds.backoff import LOST_SOON
from airflow_gpu_provider.clouds.base import Group, MachineLoss
from airflow_gpu_provider.clouds.google.instance_groups import (
    InstanceGroup,
    InstanceGroups,
    name_of,
    named_after,
    parse_time,
    zone_of,
)
from airflow_gpu_provider.cluster.api.threads import in_parallel
from airflow_gpu_provider.errors import PermissionDenied

# System events: "Preemptible VM instances", and "Troubleshooting VM shutdowns and reboots" in Compute Engine's guides.
_TAKEN = "compute.instances.preempted"
_HOST_FAILED = "compute.instances.hostError"

_READ_BACK = timedelta(days=1)  # a night's, for its record

_Behind = Mapping[str, Sequence[InstanceGroup]]


class MachineLosses:
    """The losses of one pool's groups, as one process sees them."""

    def __init__(self, calls: InstanceGroups) -> None:
        self._calls = calls
        self._read: dict[str, tuple[object, Sequence[Mapping[str, Any]]]] = {}
        """The operations of each zone, with what its groups had when they were read."""

    def on(self, groups: Sequence[Group], behind: _Behind) -> tuple[Group, ...]:
        """Return the groups with the machines that each has lost, where there are spot machines, and a choice.

        Operations are read where the machines of a zone are not as they were; nowhere, where the account may not.
        """
        spot = [one for group in groups if group.candidate.market == "SPOT" for one in behind[group.name]]
        zones = {zone_of(one.path) for one in spot} if len(groups) > 1 else set()
        try:
            self._read_changed({zone: [_members(one) for one in spot if zone_of(one.path) == zone] for zone in zones})
        except PermissionDenied:
            return tuple(groups)
        return tuple(replace(group, losses=self._of(behind[group.name])) for group in groups)

    def _read_changed(self, zones: Mapping[str, object]) -> None:
        since = datetime.now(UTC) - _READ_BACK
        changed = [zone for zone, seen in zones.items() if zone not in self._read or self._read[zone][0] != seen]
        read = in_parallel(lambda zone: self._calls.operations_since(zone, since), changed)
        self._read.update({zone: (zones[zone], found) for zone, found in zip(changed, read, strict=True)})

    def _of(self, parts: Sequence[InstanceGroup]) -> tuple[MachineLoss, ...]:
        read = ((one, self._read.get(zone_of(one.path))) for one in parts)
        found = (loss for one, seen in read if seen is not None for loss in losses(one, seen[1]))
        return tuple(sorted(found, key=lambda loss: loss.at))


def losses(group: InstanceGroup, operations: Sequence[Mapping[str, Any]]) -> tuple[MachineLoss, ...]:
    """Return the instances of a group that were preempted, or whose host failed within LOST_SOON of their start.

    `operations` are those of the group's zone, in any order.
    """
    its = named_after(group.base_name)
    of_group = [each for each in operations if group.base_name and its(_target(each)) and each.get("insertTime")]
    started = {_id(each): parse_time(each["insertTime"]) for each in of_group if each.get("operationType") == "insert"}
    found = []
    for each in of_group:
        at, kind, since = parse_time(each["insertTime"]), str(each.get("operationType")), started.get(_id(each))
        if kind == _TAKEN or (kind == _HOST_FAILED and since is not None and at - since < LOST_SOON):
            why = str(each.get("statusMessage") or kind).rstrip(".")
            found.append(MachineLoss(at=at, machine=_target(each), why=why))
    return tuple(found)


def _id(operation: Mapping[str, Any]) -> str:
    return str(operation.get("targetId", ""))


def _target(operation: Mapping[str, Any]) -> str:
    what, _, name = str(operation.get("targetLink", "")).rpartition("/instances/")
    return name if what else ""


def _members(group: InstanceGroup) -> tuple[object, ...]:
    return tuple((name_of(one), one.get("id"), one.get("instanceStatus")) for one in group.managed)
