"""EKS clusters, created and deleted by the API, with their states; one at a time, since there is one control plane."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from moto.eks.models import Cluster
from moto.moto_api._internal import mock_random

from gpu_sandbox.aws.access_entries import set_mode
from gpu_sandbox.aws.ec2 import Ec2Backend
from gpu_sandbox.aws.interface import AwsTimings
from gpu_sandbox.aws.node_group_rules import ResourceLimitExceeded
from gpu_sandbox.aws.node_groups import Update
from gpu_sandbox.clock import Clock


@dataclass(frozen=True, kw_only=True)
class ControlPlaneAddress:
    """Where the one control plane is: its URL, and its certificate authority as base64 of the PEM."""

    endpoint: str
    certificate_authority: str


class ClusterLife:
    """When clusters change their states. Used under the cloud's lock."""

    def __init__(self, *, ec2: Ec2Backend, timings: AwsTimings, clock: Clock) -> None:
        self._ec2 = ec2
        self._timings = timings
        self._clock = clock
        self._settles_at: dict[str, datetime] = {}
        self.updates: dict[str, Update] = {}
        """Of clusters' versions, by id."""
        self.address = ControlPlaneAddress(endpoint="", certificate_authority="")

    def check_room(self, clusters: dict[str, Cluster]) -> None:
        """ResourceLimitExceededException while another cluster has the control plane."""
        if clusters:
            other = next(iter(clusters))
            raise ResourceLimitExceeded(
                clusterName=other,
                nodegroupName=None,
                message=f"The sandbox has one control plane, and cluster {other} has it: delete that one first.",
            )

    def open(self, cluster: Cluster) -> None:
        """It is ACTIVE now."""
        cluster.status = "ACTIVE"
        cluster.endpoint = self.address.endpoint
        cluster.certificate_authority = {"data": self.address.certificate_authority}

    def begin(self, cluster: Cluster, now: datetime) -> None:
        """It is being made: EKS knows no endpoint yet, and fills in which VPC the subnets are of.

        It makes the cluster security group, too, which nodes of managed groups get where no launch template says else.
        """
        cluster.status = "CREATING"
        set_mode(cluster, "CONFIG_MAP")
        cluster.endpoint = None  # type: ignore[assignment]  # left out of the answer
        cluster.certificate_authority = {}
        subnets = self._ec2.describe_subnets(subnet_ids=cluster.resources_vpc_config["subnetIds"])
        vpc_id = cluster.resources_vpc_config.get("vpcId") or subnets[0].vpc_id
        unique = mock_random.get_random_hex(8)
        group = self._ec2.create_security_group(
            f"eks-cluster-sg-{cluster.name}-{unique}", "EKS created security group", vpc_id=vpc_id
        )
        self._admit_itself(group.id)
        made = {"vpcId": vpc_id, "clusterSecurityGroupId": group.id}
        cluster.resources_vpc_config = {**cluster.resources_vpc_config, **made}
        self._settles_at[cluster.name] = now + timedelta(seconds=self._timings.cluster_create)

    def _admit_itself(self, group: str) -> None:
        """The default rules: "View Amazon EKS security group requirements for clusters" of EKS's user guide."""
        itself = [{"GroupId": group}]
        rule: dict[str, Any] = {"ip_protocol": "-1", "from_port": None, "to_port": None, "ip_ranges": []}
        self._ec2.authorize_security_group_ingress(group, **rule, source_groups=itself)
        self._ec2.authorize_security_group_egress(group, **rule, source_groups=itself)

    def update(self, cluster: Cluster, version: str, now: datetime) -> Update:
        """It goes on to another version of Kubernetes: what EKS shows; the one control plane stays what it is."""
        update = Update(
            id=str(mock_random.uuid4()),
            type="VersionUpdate",
            params=[{"type": "Version", "value": version}],
            created_at=now,
            done_at=now + timedelta(seconds=self._timings.cluster_update),
        )
        self.updates[update.id] = update
        cluster.status = "UPDATING"
        self._settles_at[cluster.name] = update.done_at
        return update

    def end(self, cluster: Cluster, now: datetime) -> None:
        """It is being deleted."""
        cluster.status = "DELETING"
        self._settles_at[cluster.name] = now + timedelta(seconds=self._timings.cluster_delete)

    def advance(self, clusters: dict[str, Cluster]) -> None:
        """Open those that have been made, and take away those that have been deleted."""
        for cluster in list(clusters.values()):
            if cluster.name in self._settles_at and not self._clock.reached(self._settles_at[cluster.name]):
                continue
            if cluster.status == "CREATING":
                self.open(cluster)
            elif cluster.status == "UPDATING":
                self._finish(cluster)
            elif cluster.status == "DELETING":
                del clusters[cluster.name]

    def _finish(self, cluster: Cluster) -> None:
        update = next(each for each in self.updates.values() if each.status == "InProgress")
        update.status, cluster.status = "Successful", "ACTIVE"
        cluster.version = update.params[0]["value"]
