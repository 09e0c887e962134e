"""Who suspended an Auto Scaling group's launches: marks by which the next one to come resumes them, should one die."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from airflow_gpu_provider.cluster.clock import format_time
from airflow_gpu_provider.cluster.leases import LEASES, PART_OF, create_lease, delete_lease
from airflow_gpu_provider.cluster.rest import list_items
from airflow_gpu_provider.platforms.aws.clients import AwsService

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

SUSPENDED_TAG = "airflow-gpu-provider/launch-suspended"
"""On an Auto Scaling group whose launches this package has suspended, and when."""

_KIND = "airflow-gpu-provider/kind"
_ASG = "airflow-gpu-provider/asg"


class SuspensionMarks(Protocol):
    """Where it is kept which groups' launches this package suspended, and when."""

    def read(self, asgs: Collection[Mapping[str, Any]]) -> dict[str, datetime]:
        """Return the marks of these groups (DescribeAutoScalingGroups' answers), by name."""

    def set(self, name: str, at: datetime) -> None:
        """Mark a group, in place of an earlier mark."""

    def clear(self, name: str) -> None:
        """Take a group's mark off; fine where there is none."""


class TagMarks:
    """A tag on the group: for groups that this package owns."""

    def __init__(self, service: AwsService) -> None:
        self._service = service

    def read(self, asgs: Collection[Mapping[str, Any]]) -> dict[str, datetime]:
        return {
            asg["AutoScalingGroupName"]: datetime.fromisoformat(tag["Value"])
            for asg in asgs
            for tag in asg.get("Tags", [])
            if tag["Key"] == SUSPENDED_TAG
        }

    def set(self, name: str, at: datetime) -> None:
        tag = {**_tag(name), "Value": at.isoformat(timespec="seconds"), "PropagateAtLaunch": False}
        self._service.call("create_or_update_tags", Tags=[tag])

    def clear(self, name: str) -> None:
        self._service.call("delete_tags", Tags=[_tag(name)])


class LeaseMarks:
    """A Lease in the cluster: external groups are not tagged. The caller holds the pool's lock."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def read(self, asgs: Collection[Mapping[str, Any]]) -> dict[str, datetime]:
        names = {asg["AutoScalingGroupName"] for asg in asgs}
        found = list_items(self._api, LEASES, resource="leases", labelSelector=f"{_KIND}=suspension")
        marks = {raw["metadata"]["annotations"][_ASG]: raw["spec"]["acquireTime"] for raw in found}
        return {name: datetime.fromisoformat(marks[name]) for name in names if name in marks}

    def set(self, name: str, at: datetime) -> None:
        self.clear(name)
        metadata = {
            "name": _lease_name(name),
            "labels": {**PART_OF, _KIND: "suspension"},
            "annotations": {_ASG: name},
        }
        spec = {"acquireTime": format_time(at)}
        manifest = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        create_lease(self._api, manifest)

    def clear(self, name: str) -> None:
        delete_lease(self._api, _lease_name(name))


def _tag(name: str) -> dict[str, str]:
    return {"ResourceId": name, "ResourceType": "auto-scaling-group", "Key": SUSPENDED_TAG}


def _lease_name(asg_name: str) -> str:
    return f"suspension-{hashlib.sha256(asg_name.encode()).hexdigest()[:20]}"
