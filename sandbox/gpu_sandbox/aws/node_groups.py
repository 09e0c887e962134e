"""A managed node group: its states, its updates, and what an update changes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.eks.models import Cluster, Nodegroup
from moto.moto_api._internal import mock_random

from gpu_sandbox.aws.interface import AwsTimings
from gpu_sandbox.aws.node_images import ebs_mib, image_disk_gib, image_disk_mib
from gpu_sandbox.aws.registration import Registration, kubernetes_taint

Status = Literal["CREATING", "ACTIVE", "UPDATING", "DELETING", "CREATE_FAILED", "DELETE_FAILED", "DEGRADED"]


@dataclass(kw_only=True)
class Update:
    """One update of a node group, found by its id."""

    id: str
    params: list[dict[str, str]]
    created_at: datetime
    done_at: datetime
    status: Literal["InProgress", "Successful", "Failed", "Cancelled"] = "InProgress"
    type: str = "ConfigUpdate"
    errors: list[dict[str, Any]] = field(default_factory=list)

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "status": self.status,
            "type": self.type,
            "params": self.params,
            "createdAt": self.created_at,
            "errors": self.errors,
        }


class NodeGroup(Nodegroup):
    """moto's node group, with states that pass."""

    def __init__(
        self, *, cluster: Cluster, now: datetime, timings: AwsTimings, template: Mapping[str, Any], **fields: Any
    ) -> None:
        super().__init__(**fields)
        self.cluster = cluster
        self.created_at = self.modified_at = now
        self._disk_gib = int(self.disk_size) if self.launch_template is None else None
        self.disk_size = self._disk_gib  # type: ignore[assignment]
        self.use_template(template)
        self.asg_name = f"eks-{self.nodegroup_name}-{self.uuid}"
        self.resources: dict[str, Any] = {}
        self.makes_asg_at = now + timedelta(seconds=timings.nodegroup_create / 2)
        self.health = {"issues": []}
        self.remote_access = fields.get("remote_access")  # type: ignore[assignment]
        self.updates: dict[str, Update] = {}
        self.status: Status = "CREATING"
        self.settles_at = now + timedelta(seconds=timings.nodegroup_create)
        self.gives_up_at = now + timedelta(seconds=timings.nodegroup_create_timeout)

    def use_template(self, data: Mapping[str, Any]) -> None:
        """Give the nodes that are launched from now on what a version of the user's template says; {} for none."""
        mappings = data.get("BlockDeviceMappings") or ()
        sizes = {each.get("DeviceName"): (each.get("Ebs") or {}).get("VolumeSize") for each in mappings}
        volumes = {str(device): int(size) for device, size in sizes.items() if device and size}
        self.image_disk_gib = image_disk_gib(self.ami_type, disk_gib=self._disk_gib, volumes=volumes)
        interfaces = data.get("NetworkInterfaces") or ()
        self.efa_interfaces = sum(str(each.get("InterfaceType")).startswith("efa") for each in interfaces)
        types = [INSTANCE_TYPES.get(name, {}) for name in self.instance_types or ()]
        has_local_disk = bool(types) and all(each.get("InstanceStorageInfo") for each in types)
        ebs = min(map(ebs_mib, types), default=math.inf)
        self.image_disk_mib = image_disk_mib(self.ami_type, data, has_local_disk=has_local_disk, ebs=ebs)

    @property
    def has_asg(self) -> bool:
        """Whether the Auto Scaling group has been made; a while of CREATING passes without one, as in EKS."""
        return bool(self.resources)

    @property
    def update_in_progress(self) -> Update | None:
        return next((u for u in self.updates.values() if u.status == "InProgress"), None)

    def described_labels(self) -> dict[str, str]:
        """What cluster-autoscaler makes labels of: the group's, and fields of DescribeNodegroup's answer."""
        fields = {
            "diskSize": self.disk_size,
            "amiType": self.ami_type,
            "eks.amazonaws.com/capacityType": self.capacity_type,
            "k8sVersion": self.version,
            "eks.amazonaws.com/nodegroup": self.nodegroup_name,
        }
        return {key: str(value) for key, value in fields.items() if value} | dict(self.labels)

    def registration(self) -> Registration:
        return Registration(
            cluster_name=self.cluster_name,
            nodegroup=self.nodegroup_name,
            labels=dict(self.labels),
            taints=tuple(kubernetes_taint(taint) for taint in self.taints),
            ami_type=self.ami_type,
            disk_gib=self.image_disk_gib,
            disk_mib_per_second=self.image_disk_mib,
            efa_interfaces=self.efa_interfaces,
        )


def merged_labels(group: NodeGroup, change: Mapping[str, Any]) -> dict[str, str]:
    """The labels after a change in UpdateNodegroupConfig's form."""
    removed = set(change.get("removeLabels") or [])
    kept = {key: value for key, value in group.labels.items() if key not in removed}
    return kept | (change.get("addOrUpdateLabels") or {})


def merged_taints(group: NodeGroup, change: Mapping[str, Any]) -> list[dict[str, str]]:
    """The taints after a change in UpdateNodegroupConfig's form; key and effect together name a taint."""
    added = list(change.get("addOrUpdateTaints") or [])
    gone = {(t["key"], t.get("effect")) for t in [*added, *(change.get("removeTaints") or [])]}
    return [t for t in group.taints if (t["key"], t.get("effect")) not in gone] + added


def update_params(
    scaling: Mapping[str, int] | None,
    labels: Mapping[str, Any] | None,
    taints: Mapping[str, Any] | None,
    update_config: Mapping[str, Any] | None,
) -> list[dict[str, str]]:
    """What an update changes, in EKS's names of parameters."""
    names = {"minSize": "MinSize", "maxSize": "MaxSize", "desiredSize": "DesiredSize"}
    params = [{"type": names[key], "value": str(value)} for key, value in (scaling or {}).items()]
    changes = {
        "LabelsToAdd": (labels or {}).get("addOrUpdateLabels"),
        "LabelsToRemove": (labels or {}).get("removeLabels"),
        "TaintsToAdd": (taints or {}).get("addOrUpdateTaints"),
        "TaintsToRemove": (taints or {}).get("removeTaints"),
        "MaxUnavailable": (update_config or {}).get("maxUnavailable"),
        "MaxUnavailablePercentage": (update_config or {}).get("maxUnavailablePercentage"),
        "UpdateStrategy": (update_config or {}).get("updateStrategy"),
    }
    return params + [{"type": name, "value": json.dumps(value)} for name, value in changes.items() if value is not None]


def issue(code: str, message: str, asg_name: str) -> dict[str, Any]:
    """A health issue of the group behind."""
    return {"code": code, "message": message, "resourceIds": [asg_name]}


def never_joined(group: NodeGroup) -> dict[str, Any]:
    """What EKS adds about the instances that a failed creation never got."""
    missing = [f"DUMMY_{mock_random.uuid4()}" for _ in range(group.scaling_config["desiredSize"])]
    return not_joined(missing)


def not_joined(instances: list[str]) -> dict[str, Any]:
    """What EKS says of instances that do not register with the cluster."""
    message = "Instances failed to join the kubernetes cluster"
    return {"code": "NodeCreationFailure", "message": message, "resourceIds": instances}
