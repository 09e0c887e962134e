"""Which permission each call takes, held to Google's reference of the methods, and the roles of docs/iam to both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from gpu_sandbox.google.permissions import PERMISSIONS, needed_for

IAM = Path(__file__).parents[3] / "docs" / "iam"
_POOLS = "container.projects.locations.clusters.nodePools"
# "Authorization requires the following IAM permission" on the page of each method, as iann0036/iam-dataset collects
# them (gcp/map.json at 2073fa5, 2026-08-22).
REFERENCE = {
    "compute.acceleratorTypes.get": "compute.acceleratorTypes.get",
    "compute.instanceGroupManagers.deleteInstances": "compute.instanceGroupManagers.update",
    "compute.instanceGroupManagers.get": "compute.instanceGroupManagers.get",
    "compute.instanceGroupManagers.listErrors": "compute.instanceGroupManagers.get",
    "compute.instanceGroupManagers.listManagedInstances": "compute.instanceGroupManagers.get",
    "compute.instanceGroupManagers.resize": "compute.instanceGroupManagers.update",
    "compute.instances.delete": "compute.instances.delete",
    "compute.instances.get": "compute.instances.get",
    "compute.machineTypes.get": "compute.machineTypes.get",
    "compute.projects.get": "compute.projects.get",
    "compute.regions.get": "compute.regions.get",
    "compute.zoneOperations.get": "compute.zoneOperations.get",
    "compute.zoneOperations.list": "compute.zoneOperations.list",
    "compute.zoneOperations.wait": "compute.zoneOperations.get",
    "container.projects.locations.clusters.get": "container.clusters.get",
    f"{_POOLS}.create": "container.clusters.update",
    f"{_POOLS}.delete": "container.clusters.update",
    f"{_POOLS}.get": "container.clusters.get",
    f"{_POOLS}.list": "container.clusters.get",
    f"{_POOLS}.setAutoscaling": "container.clusters.update",
    f"{_POOLS}.setManagement": "container.clusters.update",
    f"{_POOLS}.setSize": "container.clusters.update",
    f"{_POOLS}.update": "container.clusters.update",
    "container.projects.locations.operations.get": "container.operations.get",
    "container.projects.locations.operations.list": "container.operations.list",
}
OPERATIONS = {
    "compute:DeleteInstance": "compute.instances.delete",
    "compute:DeleteInstances": "compute.instanceGroupManagers.deleteInstances",
    "compute:GetAcceleratorType": "compute.acceleratorTypes.get",
    "compute:GetInstance": "compute.instances.get",
    "compute:GetInstanceGroupManager": "compute.instanceGroupManagers.get",
    "compute:GetMachineType": "compute.machineTypes.get",
    "compute:GetProject": "compute.projects.get",
    "compute:GetRegion": "compute.regions.get",
    "compute:GetZoneOperation": "compute.zoneOperations.get",
    "compute:ListErrors": "compute.instanceGroupManagers.listErrors",
    "compute:ListManagedInstances": "compute.instanceGroupManagers.listManagedInstances",
    "compute:ListZoneOperations": "compute.zoneOperations.list",
    "compute:Resize": "compute.instanceGroupManagers.resize",
    "compute:WaitZoneOperation": "compute.zoneOperations.wait",
    "container:CreateNodePool": f"{_POOLS}.create",
    "container:DeleteNodePool": f"{_POOLS}.delete",
    "container:GetCluster": "container.projects.locations.clusters.get",
    "container:GetNodePool": f"{_POOLS}.get",
    "container:GetOperation": "container.projects.locations.operations.get",
    "container:ListNodePools": f"{_POOLS}.list",
    "container:ListOperations": "container.projects.locations.operations.list",
    "container:SetNodePoolAutoscaling": f"{_POOLS}.setAutoscaling",
    "container:SetNodePoolManagement": f"{_POOLS}.setManagement",
    "container:SetNodePoolSize": f"{_POOLS}.setSize",
    "container:UpdateNodePool": f"{_POOLS}.update",
}


def methods(service: str) -> set[str]:
    """The ids of a service's methods in the discovery document that google-api-python-client ships."""
    folder = files("googleapiclient") / "discovery_cache" / "documents"
    return set(_ids(json.loads((folder / f"{service}.v1.json").read_text())))


def _ids(part: dict[str, Any]) -> Iterator[str]:
    yield from (method["id"] for method in part.get("methods", {}).values())
    for resource in part.get("resources", {}).values():
        yield from _ids(resource)


@pytest.mark.parametrize("service", ["compute", "container"])
def test_the_methods_are_the_services_own(service: str) -> None:
    assert {one for one in REFERENCE if one.startswith(f"{service}.")} <= methods(service)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_call_takes_the_permission_that_its_reference_says(operation: str) -> None:
    assert PERMISSIONS[operation] == REFERENCE[OPERATIONS[operation]]


@pytest.mark.parametrize("role", sorted(IAM.glob("gke-*.json")), ids=lambda path: path.name)
def test_a_role_has_nothing_that_no_method_takes(role: Path) -> None:
    granted = json.loads(role.read_text())["includedPermissions"]
    assert set(granted) <= {*REFERENCE.values()}
    assert set(granted) <= {one for operation in OPERATIONS for one in needed_for(operation)}
    assert granted == sorted(set(granted))
