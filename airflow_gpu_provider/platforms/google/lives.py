"""When instances of managed instance groups ran, read from the operations of their zone. Pure.

Compute Engine keeps operations for 14 days, `gcloud compute operations list` says. What takes an instance away is one
too, whatever requested it: "compute.instances.preempted" is Compute Engine's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_gpu_provider.platforms.base import MachineLife
from airflow_gpu_provider.platforms.google.instances import InstanceGroup, not_created, parse_time

_STARTS = ("insert",)
_ENDS = ("delete", "stop", "compute.instances.preempted")


def lives(
    group: str, base_name: str, operations: Iterable[Mapping[str, Any]], since: datetime
) -> tuple[MachineLife, ...]:
    """Return when the instances of a group ran that these operations tell of, and that ran after `since`.

    Args:
        group: Its name in the pool.
        base_name: The instance group's baseInstanceName, with which its instances' names begin.
        operations: Of the group's zone.
        since: What ended before is left out.
    """
    names: dict[str, str] = {}
    starts: dict[str, list[datetime]] = defaultdict(list)
    ends: dict[str, list[datetime]] = defaultdict(list)
    for operation in operations:
        what, _, name = str(operation.get("targetLink", "")).rpartition("/instances/")
        kind, instance_id = operation.get("operationType"), str(operation.get("targetId", ""))
        if not what or not name.startswith(f"{base_name}-") or operation.get("error"):
            continue
        if kind in _STARTS and operation.get("insertTime"):
            starts[instance_id].append(parse_time(operation["insertTime"]))
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
            ended_at=min(ends[each], default=None),
        )
        for each, name in names.items()
    )
    return tuple(life for life in found if life.ended_at is None or life.ended_at > since)


def last_end(group: InstanceGroup, operations: Iterable[Mapping[str, Any]]) -> datetime | None:
    """Return when an instance of a group last ended; one that could not be created has not, though it was deleted."""
    never = not_created(group)
    found = lives("", group.base_name, operations, datetime.min.replace(tzinfo=UTC)) if group.base_name else ()
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
