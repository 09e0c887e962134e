"""Compute Engine's API, `compute.googleapis.com/compute/v1`, as far as node pools need it.

Instance groups and their instances, quotas, and what each zone offers. An operation on a group is RUNNING in the answer
to the call that began it, and DONE some moments later; what it set going shows in the group. zoneOperations.wait
answers when the operation is DONE, or after two minutes, scaled (its reference).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gpu_sandbox.google.catalogue import Catalogue
from gpu_sandbox.google.compute_operations import ComputeOperation, ComputeOperations
from gpu_sandbox.google.errors import GoogleApiError, invalid, not_found
from gpu_sandbox.google.http_server import Call, Route, route
from gpu_sandbox.google.instance_groups import InstanceGroup
from gpu_sandbox.google.interface import GoogleTimings
from gpu_sandbox.google.machine_types import ACCELERATORS, MACHINE_TYPES
from gpu_sandbox.google.members import LaunchError, Member
from gpu_sandbox.google.operations import timestamp
from gpu_sandbox.google.quotas import Quotas

_PROJECT = "/compute/v1/projects/{project}"
_ZONE = _PROJECT + "/zones/{zone}"
_GROUP = _ZONE + "/instanceGroupManagers/{group}"
_BASE = "https://www.googleapis.com/compute/v1"
_DEFAULT_PAGE = 500
_MOST_DELETED = 1000


class ComputeApi:
    """Answers for one project and region; every other one is NOT_FOUND."""

    def __init__(
        self,
        *,
        project_id: str,
        catalogue: Catalogue,
        quotas: Quotas,
        groups: Callable[[], Sequence[InstanceGroup]],
        operations: ComputeOperations,
        seen_operations: Callable[[], ComputeOperations],
        timings: GoogleTimings,
        clock: Callable[[], float],
    ) -> None:
        self._project_id = project_id
        self._timings = timings
        self._catalogue = catalogue
        self._quotas = quotas
        self._groups = groups
        self._clock = clock
        self._operations = operations
        self._seen_operations = seen_operations

    def routes(self) -> list[Route]:
        groups = [
            self._route("ListInstanceGroupManagers", "GET", f"{_ZONE}/instanceGroupManagers", self._list_groups),
            self._route("GetInstanceGroupManager", "GET", _GROUP, self._get_group),
            self._route("ListManagedInstances", "POST", f"{_GROUP}/listManagedInstances", self._list_managed),
            self._route("ListErrors", "GET", f"{_GROUP}/listErrors", self._list_errors),
            self._route("DeleteInstances", "POST", f"{_GROUP}/deleteInstances", self._delete_instances),
            self._route("Resize", "POST", f"{_GROUP}/resize", self._resize),
        ]
        instances = [
            self._route("ListInstances", "GET", f"{_ZONE}/instances", self._list_instances),
            self._route("GetInstance", "GET", f"{_ZONE}/instances/{{instance}}", self._get_instance),
            self._route("DeleteInstance", "DELETE", f"{_ZONE}/instances/{{instance}}", self._delete_instance),
        ]
        places = [
            self._route("GetProject", "GET", _PROJECT, self._get_project),
            self._route("GetRegion", "GET", f"{_PROJECT}/regions/{{region}}", self._get_region),
            self._route("ListZones", "GET", f"{_PROJECT}/zones", self._list_zones),
            self._route("GetZone", "GET", _ZONE, lambda call: self._describe_zone(call.path["zone"])),
            self._route("ListMachineTypes", "GET", f"{_ZONE}/machineTypes", self._list_machine_types),
            self._route("GetMachineType", "GET", f"{_ZONE}/machineTypes/{{name}}", self._get_machine_type),
            self._route("ListAcceleratorTypes", "GET", f"{_ZONE}/acceleratorTypes", self._list_accelerators),
            self._route("GetAcceleratorType", "GET", f"{_ZONE}/acceleratorTypes/{{name}}", self._get_accelerator),
        ]
        operations = [
            self._route("ListZoneOperations", "GET", f"{_ZONE}/operations", self._list_operations),
            self._route("GetZoneOperation", "GET", f"{_ZONE}/operations/{{operation}}", self._get_operation),
            replace(
                self._route("WaitZoneOperation", "POST", f"{_ZONE}/operations/{{operation}}/wait", self._get_operation),
                is_held=self._is_running,
            ),
        ]
        return [*groups, *instances, *places, *operations]

    def _route(self, operation: str, method: str, template: str, answer: Callable[[Call], Any]) -> Route:
        """One that first checks the project and, where the path has one, the zone or region."""

        def checked(call: Call) -> Any:
            path = call.path
            if path["project"] != self._project_id:
                raise not_found(f"The resource 'projects/{path['project']}' was not found")
            if "zone" in path and path["zone"] not in self._catalogue.zones:
                raise invalid(f"Invalid value for field 'zone': '{path['zone']}'. Unknown zone.")
            if "region" in path and path["region"] != self._catalogue.region:
                raise invalid(f"Invalid value for field 'region': '{path['region']}'. Unknown region.")
            return answer(call)

        return route(f"compute:{operation}", method, template, checked)

    # Instance groups

    def _list_groups(self, call: Call) -> Any:
        return _page(call, "instanceGroupManager", [_describe_group(group) for group in self._in_zone(call)])

    def _get_group(self, call: Call) -> Any:
        return _describe_group(self._group(call))

    def _list_managed(self, call: Call) -> Any:
        group = self._group(call)
        page = _page(call, None, [_describe_managed(group, member) for member in group.members])
        return {"managedInstances": page.pop("items")} | page

    def _list_errors(self, call: Call) -> Any:
        group = self._group(call)
        newest_first = [_describe_launch_error(group, error) for error in reversed(group.errors)]
        return _page(call, None, newest_first)

    def _delete_instances(self, call: Call) -> Any:
        group = self._group(call)
        urls = call.body.get("instances") or []
        names = [str(url).rpartition("/")[2] for url in urls]
        if not 0 < len(names) <= _MOST_DELETED:
            raise invalid(f"Invalid value for field 'instances': between 1 and {_MOST_DELETED} instances are required.")
        strangers = [name for name in names if group.member(name) is None]
        if strangers and not call.body.get("skipInstancesOnValidationError"):
            raise invalid(
                f"Invalid value for field 'instances': instance '{strangers[0]}' is not a member of '{group.name}'."
            )
        group.delete(names, self._clock())
        return self._done("compute.instanceGroupManagers.deleteInstances", group, call)

    def _resize(self, call: Call) -> Any:
        group = self._group(call)
        size = call.query.get("size", "")
        if not size.isdecimal():
            raise invalid(f"Invalid value for field 'size': '{size}'. Must be greater than or equal to 0")
        group.resize(int(size), self._clock())
        return self._done("compute.instanceGroupManagers.resize", group, call)

    def _in_zone(self, call: Call) -> list[InstanceGroup]:
        return [group for group in self._groups() if group.zone == call.path["zone"]]

    def _group(self, call: Call) -> InstanceGroup:
        for group in self._in_zone(call):
            if group.name == call.path["group"]:
                return group
        where = f"projects/{self._project_id}/zones/{call.path['zone']}"
        raise not_found(f"The resource '{where}/instanceGroupManagers/{call.path['group']}' was not found")

    # Instances

    def _list_instances(self, call: Call) -> Any:
        instances = [
            _describe_instance(group, member)
            for group in self._in_zone(call)
            for member in group.members
            if member.status
        ]
        return _page(call, "instance", instances)

    def _get_instance(self, call: Call) -> Any:
        return _describe_instance(*self._instance(call))

    def _delete_instance(self, call: Call) -> Any:
        group, member = self._instance(call)
        group.delete_instance(member.name, self._clock())
        return self._operations.newest.describe()

    def _instance(self, call: Call) -> tuple[InstanceGroup, Member]:
        for group in self._in_zone(call):
            member = group.member(call.path["instance"])
            if member is not None and member.status:
                return group, member
        where = f"projects/{self._project_id}/zones/{call.path['zone']}"
        raise not_found(f"The resource '{where}/instances/{call.path['instance']}' was not found")

    # Places

    def _get_project(self, call: Call) -> Any:
        return {
            "kind": "compute#project",
            "name": self._project_id,
            "quotas": self._quotas.project_wide(),
            "selfLink": f"{_BASE}/projects/{self._project_id}",
        }

    def _get_region(self, call: Call) -> Any:
        region = self._catalogue.region
        return {
            "kind": "compute#region",
            "name": region,
            "status": "UP",
            "zones": [f"{_BASE}/projects/{self._project_id}/zones/{zone}" for zone in self._catalogue.zones],
            "quotas": self._quotas.regional(),
            "selfLink": f"{_BASE}/projects/{self._project_id}/regions/{region}",
        }

    def _list_zones(self, call: Call) -> Any:
        return _page(call, "zone", [self._describe_zone(zone) for zone in self._catalogue.zones])

    def _describe_zone(self, zone: str) -> dict[str, Any]:
        project = f"{_BASE}/projects/{self._project_id}"
        return {
            "kind": "compute#zone",
            "name": zone,
            "status": "UP",
            "region": f"{project}/regions/{self._catalogue.region}",
            "selfLink": f"{project}/zones/{zone}",
        }

    def _list_machine_types(self, call: Call) -> Any:
        zone = call.path["zone"]
        types = [_describe_machine_type(name, zone) for name in self._catalogue.machine_types_in(zone)]
        return _page(call, "machineType", types)

    def _get_machine_type(self, call: Call) -> Any:
        name, zone = call.path["name"], call.path["zone"]
        if not self._catalogue.has_machine_type(name, zone):
            raise not_found(
                f"The resource 'projects/{self._project_id}/zones/{zone}/machineTypes/{name}' was not found"
            )
        return _describe_machine_type(name, zone)

    def _list_accelerators(self, call: Call) -> Any:
        zone = call.path["zone"]
        types = [_describe_accelerator(name, zone) for name in self._catalogue.accelerators_in(zone)]
        return _page(call, "acceleratorType", types)

    def _get_accelerator(self, call: Call) -> Any:
        name, zone = call.path["name"], call.path["zone"]
        if not self._catalogue.has_accelerator(name, zone):
            raise not_found(
                f"The resource 'projects/{self._project_id}/zones/{zone}/acceleratorTypes/{name}' was not found"
            )
        return _describe_accelerator(name, zone)

    # Operations

    def _done(self, kind: str, group: InstanceGroup, call: Call) -> dict[str, Any]:
        """An operation that is still RUNNING in the answer to the call that began it, as Compute Engine's are."""
        now = self._clock()
        operation = ComputeOperation(
            kind=kind,
            target=group.url,
            target_id=group.id,
            started_at=now,
            ended_at=now + self._timings.group_operation,
            user=call.caller.email,
        )
        return self._operations.add(operation).as_of(now).describe()

    def _is_running(self, call: Call) -> bool:
        return bool(self._get_operation(call)["status"] == "RUNNING")

    def _get_operation(self, call: Call) -> Any:
        operation = self._operations.get(call.path["operation"])
        if operation is None:
            raise not_found(
                f"The resource 'projects/{self._project_id}/operations/{call.path['operation']}' was not found"
            )
        return operation.as_of(self._clock()).describe()

    def _list_operations(self, call: Call) -> Any:
        now = self._clock()
        described = [each.as_of(now).describe() for each in self._seen_operations().in_zone(call.path["zone"])]
        order = call.query.get("orderBy", "name")
        if order == "creationTimestamp desc":
            described.reverse()
        elif order == "name":
            described.sort(key=lambda each: each["name"])
        else:
            raise invalid(f"Invalid value for field 'orderBy': '{order}'.")
        return _page(call, "operation", described)


def _page(call: Call, kind: str | None, items: list[dict[str, Any]]) -> dict[str, Any]:
    """One page of a list: `maxResults` items from `pageToken` on, those that `filter` lets through.

    `kind` is None for the few lists that tell none.
    """
    wanted = [item for item in items if _matches(call.query.get("filter", ""), item)]
    start = int(call.query.get("pageToken") or 0)
    end = start + int(call.query.get("maxResults") or _DEFAULT_PAGE)
    page: dict[str, Any] = ({"kind": f"compute#{kind}List"} if kind else {}) | {"items": wanted[start:end]}
    return page | ({"nextPageToken": str(end)} if end < len(wanted) else {})


def _matches(expression: str, item: dict[str, Any]) -> bool:
    """The one form of filter that is understood: `field = value`, quoted or not."""
    if not expression:
        return True
    name, separator, value = expression.partition("=")
    if not separator or name.strip().endswith(("!", "<", ">")):
        raise GoogleApiError("INVALID_ARGUMENT", f"Invalid value for field 'filter': '{expression}'.")
    return str(item.get(name.strip())) == value.strip().strip("\"'()")


def _describe_group(group: InstanceGroup) -> dict[str, Any]:
    actions = ["none", "creating", "recreating", "deleting"]
    counts = {action: sum(member.action.lower() == action for member in group.members) for action in actions}
    return {
        "kind": "compute#instanceGroupManager",
        "id": group.id,
        "name": group.name,
        "zone": group.url.partition("/instanceGroupManagers/")[0],
        "baseInstanceName": group.name.removesuffix("-grp"),
        "instanceGroup": group.url_of("instanceGroups", group.name),
        "targetSize": group.target_size,
        "currentActions": counts,
        "status": {"isStable": group.stable},
        "creationTimestamp": timestamp(group.created_at),
        "selfLink": group.url,
    }


def _describe_managed(group: InstanceGroup, member: Member) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": member.name,
        "instance": group.url_of("instances", member.name),
        "currentAction": member.action,
    }
    if member.status:
        described |= {"id": member.instance_id, "instanceStatus": member.status}
    if member.error is not None:
        errors = [{"code": member.error.code, "message": member.error.message}]
        described["lastAttempt"] = {"errors": {"errors": errors}}
    return described


def _describe_launch_error(group: InstanceGroup, error: LaunchError) -> dict[str, Any]:
    return {
        "error": {"code": error.code, "message": error.message},
        "instanceActionDetails": {
            "instance": group.url_of("instances", error.instance),
            "action": "CREATING",
        },
        "timestamp": timestamp(error.at),
    }


def _describe_instance(group: InstanceGroup, member: Member) -> dict[str, Any]:
    template = group.template
    described: dict[str, Any] = {
        "kind": "compute#instance",
        "id": member.instance_id,
        "name": member.name,
        "zone": group.url.partition("/instanceGroupManagers/")[0],
        "machineType": group.url_of("machineTypes", template.machine_type),
        "status": member.status,
        "creationTimestamp": timestamp(member.created_at),
        "scheduling": {
            "provisioningModel": "SPOT" if template.market == "spot" else "STANDARD",
            "preemptible": template.market == "spot",
        },
        "selfLink": group.url_of("instances", member.name),
    }
    if member.running_since is not None:
        described["lastStartTimestamp"] = timestamp(member.running_since)
    if template.accelerator:
        kind = group.url_of("acceleratorTypes", template.accelerator)
        described["guestAccelerators"] = [{"acceleratorType": kind, "acceleratorCount": template.accelerator_count}]
    return described


def _describe_machine_type(name: str, zone: str) -> dict[str, Any]:
    machine = MACHINE_TYPES[name]
    described: dict[str, Any] = {
        "kind": "compute#machineType",
        "name": name,
        "zone": zone,
        "guestCpus": machine.vcpus,
        "memoryMb": int(machine.memory_gib * 1024),
    }
    if machine.accelerator:
        described["accelerators"] = [
            {"guestAcceleratorType": machine.accelerator.name, "guestAcceleratorCount": machine.gpus}
        ]
    return described


def _describe_accelerator(name: str, zone: str) -> dict[str, Any]:
    return {
        "kind": "compute#acceleratorType",
        "name": name,
        "zone": zone,
        "description": ACCELERATORS[name].product.replace("-", " "),
    }
