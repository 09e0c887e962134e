"""Calls to Amazon EC2 about the cluster placement groups that this package makes: one for each node group with EFA.

A placement group has the name of its node group's launch template, which names it, and tags by which it is found when a
killed process has left it. It costs nothing, and its machines are near each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_gpu_provider.errors import PermissionDenied, PoolDrift
from airflow_gpu_provider.platforms.answers import unless_answered
from airflow_gpu_provider.platforms.aws.clients import AwsService, tags_of
from airflow_gpu_provider.platforms.aws.spec import CLUSTER_TAG, GROUP_TAG, POOL_TAG
from airflow_gpu_provider.platforms.base import Report
from airflow_gpu_provider.pools import EksGpuPool

_TAKEN, _GONE = "InvalidPlacementGroup.Duplicate", "InvalidPlacementGroup.Unknown"  # "Error codes" of the EC2 API


class PlacementGroups:
    """The placement groups of one pool's node groups. Every method makes fresh calls."""

    def __init__(self, ec2: AwsService, pool: EksGpuPool) -> None:
        self._ec2 = ec2
        self._pool = pool

    def ensure(self, name: str, tags: Mapping[str, str], report: Report) -> None:
        """Make a placement group of this name where there is none.

        Raises:
            PoolDrift: Somebody else has one.
        """
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        for found in self._described({"group-name": name}):
            if tags_of(found).get(POOL_TAG) == self._pool.name:
                return
            raise PoolDrift(
                f"EC2 has a placement group {name} that this package did not make for pool {self._pool.name}.",
                "Delete that placement group, or give the pool another name.",
                placement_group=name,
            )
        with unless_answered(_TAKEN):  # by another run, just now
            self._ec2.call(
                "create_placement_group",
                GroupName=name,
                Strategy="cluster",
                TagSpecifications=[{"ResourceType": "placement-group", "Tags": listed}],
            )
            report(f"created placement group {name}")

    def delete_all_but(self, groups: Collection[str], report: Report) -> None:
        """Delete the pool's placement groups whose node groups are not among these; fine if one is gone.

        Raises:
            CloudError: Machines of it are not gone yet: InvalidPlacementGroup.InUse.
        """
        wanted = {f"tag:{POOL_TAG}": self._pool.name, f"tag:{CLUSTER_TAG}": self._pool.cluster_name}
        try:
            found = self._described(wanted)
        except PermissionDenied:
            return  # who may not list them never made one
        for each in found:
            if tags_of(each).get(GROUP_TAG) not in groups:
                with unless_answered(_GONE):
                    self._ec2.call("delete_placement_group", GroupName=each["GroupName"])
                    report(f"deleted placement group {each['GroupName']}")

    def _described(self, filters: Mapping[str, str]) -> list[Mapping[str, Any]]:
        listed = [{"Name": name, "Values": [value]} for name, value in filters.items()]
        found = self._ec2.call("describe_placement_groups", Filters=listed)["PlacementGroups"]
        return [each for each in found if each.get("State") != "deleted"]
