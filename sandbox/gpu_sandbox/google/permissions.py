"""Which IAM permission each call needs, by each method's reference; empty: none."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from gpu_sandbox.google.errors import GoogleApiError
from gpu_sandbox.google.interface import Identity

# Changing node pools is changing the cluster: GKE has no permissions for node pools.
_UPDATE_CLUSTER = "container.clusters.update"
_READ_GROUP = "compute.instanceGroupManagers.get"
_WRITE_GROUP = "compute.instanceGroupManagers.update"

PERMISSIONS: dict[str, str] = {
    "container:ListClusters": "container.clusters.list",
    "container:CreateCluster": "container.clusters.create",
    "container:GetCluster": "container.clusters.get",
    "container:DeleteCluster": "container.clusters.delete",
    "container:GetServerConfig": "container.clusters.get",
    "container:ListOperations": "container.operations.list",
    "container:GetOperation": "container.operations.get",
    "container:CancelOperation": _UPDATE_CLUSTER,
    "container:ListNodePools": "container.clusters.get",
    "container:GetNodePool": "container.clusters.get",
    "container:CreateNodePool": _UPDATE_CLUSTER,
    "container:UpdateNodePool": _UPDATE_CLUSTER,
    "container:DeleteNodePool": _UPDATE_CLUSTER,
    "container:SetNodePoolSize": _UPDATE_CLUSTER,
    "container:SetNodePoolAutoscaling": _UPDATE_CLUSTER,
    "container:SetNodePoolManagement": _UPDATE_CLUSTER,
    "compute:ListInstanceGroupManagers": "compute.instanceGroupManagers.list",
    "compute:GetInstanceGroupManager": _READ_GROUP,
    "compute:ListManagedInstances": _READ_GROUP,
    "compute:ListErrors": _READ_GROUP,
    "compute:DeleteInstances": _WRITE_GROUP,
    "compute:Resize": _WRITE_GROUP,
    "compute:ListInstances": "compute.instances.list",
    "compute:GetInstance": "compute.instances.get",
    "compute:DeleteInstance": "compute.instances.delete",
    "compute:GetProject": "compute.projects.get",
    "compute:GetRegion": "compute.regions.get",
    "compute:ListZones": "compute.zones.list",
    "compute:GetZone": "compute.zones.get",
    "compute:ListMachineTypes": "compute.machineTypes.list",
    "compute:GetMachineType": "compute.machineTypes.get",
    "compute:ListAcceleratorTypes": "compute.acceleratorTypes.list",
    "compute:GetAcceleratorType": "compute.acceleratorTypes.get",
    "compute:GetZoneOperation": "compute.zoneOperations.get",
    "compute:ListZoneOperations": "compute.zoneOperations.list",
    "compute:WaitZoneOperation": "compute.zoneOperations.get",
    "iamcredentials:GenerateAccessToken": "iam.serviceAccounts.getAccessToken",
    "resourcemanager:TestIamPermissions": "",
    "cloudbilling:ListSkus": "",
}


@dataclass(frozen=True, order=True)
class PermissionUse:
    """A permission, and the call that needed it: `container:CreateNodePool`."""

    permission: str
    call: str


# The method's reference asks for the group's permission alone. Whether that on its instances is looked at too is not
# said: here it is.
_ALSO = {"compute:DeleteInstances": "compute.instances.delete"}


def needed_for(operation: str) -> tuple[str, ...]:
    """The permissions that a call takes."""
    return tuple(filter(None, (PERMISSIONS[operation], _ALSO.get(operation))))


class Permissions:
    """What each service account may do: everything, unless it was given less."""

    def __init__(self) -> None:
        self._granted: dict[str, frozenset[str]] = {}
        self._uses: defaultdict[str, set[PermissionUse]] = defaultdict(set)
        self._refused: defaultdict[str, set[PermissionUse]] = defaultdict(set)

    def uses(self, identity: Identity) -> frozenset[PermissionUse]:
        """What the account's permissions were needed for so far."""
        return frozenset(self._uses[identity.email])

    def refused(self, identity: Identity) -> frozenset[PermissionUse]:
        """What it lacked so far, and for which calls."""
        return frozenset(self._refused[identity.email])

    def grant(self, identity: Identity, permissions: frozenset[str]) -> None:
        """Let the account do this and nothing else. ValueError if a permission is unknown here."""
        if unknown := permissions - set(PERMISSIONS.values()):
            raise ValueError(f"no call takes {sorted(unknown)}; known are {sorted(set(PERMISSIONS.values()))}")
        self._granted[identity.email] = permissions

    def is_limited(self, identity: Identity) -> bool:
        """Return True if the account was given less than everything."""
        return identity.email in self._granted

    def allow(self, identity: Identity, permission: str) -> bool:
        """Whether the account has this permission."""
        granted = self._granted.get(identity.email)
        return granted is None or permission in granted

    def check(self, identity: Identity, operation: str, resource: str) -> None:
        """PERMISSION_DENIED, in the service's own words, unless the account may make this call."""
        for needed in needed_for(operation):
            allowed = self.allow(identity, needed)
            (self._uses if allowed else self._refused)[identity.email].add(PermissionUse(needed, operation))
            if not allowed:
                raise _denied(needed, operation, resource)


def _denied(needed: str, operation: str, resource: str) -> GoogleApiError:
    if operation.startswith("container:"):
        return GoogleApiError("PERMISSION_DENIED", f'Required "{needed}" permission(s) for "{resource}".')
    return GoogleApiError("PERMISSION_DENIED", f"Required '{needed}' permission for '{resource}'")
