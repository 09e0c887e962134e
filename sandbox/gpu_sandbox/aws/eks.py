"""EKS: moto's, with clusters and managed node groups with EKS's life cycles."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from moto.eks.exceptions import InvalidRequestException, ResourceInUseException, ResourceNotFoundException
from moto.eks.models import Cluster, EKSBackend
from moto.moto_api._internal import mock_random

from gpu_sandbox.aws import node_group_rules as rules
from gpu_sandbox.aws.auto_scaling import AutoScaling
from gpu_sandbox.aws.clusters import ClusterLife
from gpu_sandbox.aws.groups import AutoScalingGroup, Surroundings
from gpu_sandbox.aws.node_group_creation import NodeGroupCreation
from gpu_sandbox.aws.node_groups import (
    NodeGroup,
    Update,
    issue,
    merged_labels,
    merged_taints,
    never_joined,
    not_joined,
    update_params,
)
from gpu_sandbox.aws.node_releases import NodeReleases
from gpu_sandbox.aws.version_updates import VersionUpdate, VersionUpdates

if TYPE_CHECKING:
    from gpu_sandbox.aws.replicas import Replicas

DEFAULT_SCALING = {"minSize": 1, "maxSize": 2, "desiredSize": 2}


class Eks(EKSBackend):
    """moto's EKS with `NodeGroup`s."""

    def __init__(
        self, region_name: str, account_id: str, *, auto_scaling: AutoScaling, surroundings: Surroundings
    ) -> None:
        super().__init__(region_name, account_id)
        self._auto_scaling = auto_scaling
        self.clock = surroundings.clock
        self._around = surroundings
        self._creation = NodeGroupCreation(ec2=surroundings.ec2, auto_scaling=auto_scaling)
        self.releases = NodeReleases()
        self._versions = VersionUpdates(
            creation=self._creation, releases=self.releases, timings=surroundings.timings, clock=surroundings.clock
        )
        self.cluster_life = ClusterLife(ec2=surroundings.ec2, timings=surroundings.timings, clock=surroundings.clock)
        self.max_node_groups = rules.MAX_NODE_GROUPS
        self.replicas: Replicas | None = None
        """Which read calls see, where they do not see everything."""

    def reset(self) -> None:
        """Backends live as long as their AwsCloud; moto's reset throws them away whole."""

    def seen(self, clusters: dict[str, Cluster], auto_scaling: AutoScaling) -> Eks:
        """EKS with these clusters, and sizes as Auto Scaling has them there; to be read only."""
        seen = copy(self)
        seen.clusters, seen._auto_scaling = clusters, auto_scaling
        return seen

    # Clusters

    def create_cluster(self, name: str, *args: Any, **request: Any) -> Cluster:
        """It is CREATING; AwsCloud makes its own ACTIVE at once."""
        if name not in self.clusters:
            self.cluster_life.check_room(self.clusters)
        cluster = super().create_cluster(name, *args, **request)
        cluster.created_at = self.clock.utc_now()
        self.cluster_life.begin(cluster, self.clock.utc_now())
        return cluster

    def delete_cluster(self, name: str) -> Cluster:
        """It is DELETING. ResourceInUseException while it has node groups, or is being made or deleted."""
        cluster = self.cluster(name)
        if not cluster.is_active:
            raise _in_use(f"Cluster {name} is in {cluster.status} state", name)
        super().delete_cluster(name)
        self.clusters[name] = cluster
        self.cluster_life.end(cluster, self.clock.utc_now())
        return cluster

    def update_cluster_version(self, name: str, version: str) -> Update:
        """It is UPDATING. InvalidParameterException while a node group of it is behind."""
        cluster = self.cluster(name)
        if not cluster.is_active:
            raise _in_use(f"Cannot UpdateClusterVersion because cluster {name} is {cluster.status}", name)
        groups = {each.nodegroup_name: str(each.version) for each in self.node_groups() if each.cluster is cluster}
        rules.check_cluster_version(name, present=cluster.version, wanted=version, groups=groups)
        return self.cluster_life.update(cluster, version, self.clock.utc_now())

    # Finding

    def cluster(self, name: str) -> Cluster:
        """ResourceNotFoundException if there is none."""
        if name not in self.clusters:
            raise not_found(f"No cluster found for name: {name}.", cluster_name=name)
        return self.clusters[name]

    def node_group(self, cluster_name: str, nodegroup_name: str) -> NodeGroup:
        """ResourceNotFoundException if there is none."""
        group = self.cluster(cluster_name).nodegroups.get(nodegroup_name)
        if not isinstance(group, NodeGroup):
            raise not_found(
                f"No node group found for name: {nodegroup_name}.",
                cluster_name=cluster_name,
                nodegroup_name=nodegroup_name,
            )
        return group

    def node_groups(self) -> list[NodeGroup]:
        groups = [group for cluster in self.clusters.values() for group in cluster.nodegroups.values()]
        return [group for group in groups if isinstance(group, NodeGroup)]

    def list_nodegroups(self, cluster_name: str, max_results: int, next_token: str | None) -> Any:
        self.cluster(cluster_name)
        return super().list_nodegroups(cluster_name, max_results, next_token)

    def describe_nodegroup(self, cluster_name: str, nodegroup_name: str) -> NodeGroup:
        group = self.node_group(cluster_name, nodegroup_name)
        self._read_size(group)
        return group

    def _asg(self, group: NodeGroup) -> AutoScalingGroup | None:
        return self._auto_scaling.find_group(group.asg_name)

    def _read_size(self, group: NodeGroup) -> None:
        """EKS shows the sizes of the Auto Scaling group, whoever set them."""
        asg = self._asg(group)
        if asg is not None and group.status != "DELETING":
            group.scaling_config = {
                "minSize": asg.min_size or 0,
                "maxSize": asg.max_size or 0,
                "desiredSize": asg.size,
            }

    # Creating

    def create_nodegroup(  # type: ignore[override]
        self, *, cluster_name: str, nodegroup_name: str, **request: Any
    ) -> NodeGroup:
        cluster = self.cluster(cluster_name)
        if nodegroup_name in cluster.nodegroups:
            raise _in_use(
                f"NodeGroup already exists with name {nodegroup_name} and cluster name {cluster_name}",
                cluster_name,
                nodegroup_name,
            )
        if not cluster.is_active:
            raise InvalidRequestException(message=f"Cluster '{cluster_name}' is not in ACTIVE status")
        if len(cluster.nodegroups) >= self.max_node_groups:
            raise rules.ResourceLimitExceeded(
                clusterName=cluster_name,
                nodegroupName=nodegroup_name,
                message=f"A cluster may have {self.max_node_groups} managed node groups",
            )
        scaling = DEFAULT_SCALING | (request["scaling_config"] or {})
        request["version"] = request["version"] or cluster.version
        self._creation.check(nodegroup_name, scaling, request)
        self._creation.make_own_role()
        if request["launch_template"]:
            request["launch_template"] = self._creation.resolved(request["launch_template"])
        template = request["launch_template"]
        data = self._creation.launch_template_data(template) if template else {}
        group = NodeGroup(
            cluster=cluster,
            now=self.clock.utc_now(),
            timings=self._around.timings,
            template=data,
            cluster_name=cluster_name,
            nodegroup_name=nodegroup_name,
            account_id=self.account_id,
            region_name=self.region_name,
            aws_partition=self.partition,
            **(request | {"scaling_config": scaling, "ami_type": self._creation.ami_type(request)}),
        )
        if data.get("InstanceType"):
            group.instance_types = []
        group.release_version = data.get("ImageId") or request["release_version"] or self._newest_release(group)
        cluster.nodegroups[nodegroup_name] = group
        cluster.nodegroup_count += 1
        return group

    def _newest_release(self, group: NodeGroup) -> str:
        return self.releases.newest(group.ami_type, str(group.version))

    # Updating

    def update_nodegroup_version(self, cluster_name: str, nodegroup_name: str, **request: Any) -> VersionUpdate:
        """`request` by the API's names of parameters."""
        group = self.node_group(cluster_name, nodegroup_name)
        if not group.cluster.is_active:
            raise InvalidRequestException(message=f"Cluster '{cluster_name}' is not in ACTIVE status")
        self._check_updatable(group)
        asg = self._asg(group)
        assert asg is not None, "an ACTIVE group has one"
        return self._versions.begin(group, asg, request)

    def update_nodegroup_config(  # type: ignore[override]
        self,
        cluster_name: str,
        nodegroup_name: str,
        labels: dict[str, Any] | None = None,
        taints: dict[str, Any] | None = None,
        scaling_config: dict[str, int] | None = None,
        update_config: dict[str, Any] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        group, now = self.node_group(cluster_name, nodegroup_name), self.clock.utc_now()
        self._check_updatable(group)
        self._read_size(group)
        new_scaling = group.scaling_config | (scaling_config or {})
        new_labels, new_taints = merged_labels(group, labels or {}), merged_taints(group, taints or {})
        rules.check_scaling(new_scaling)
        rules.check_labels((labels or {}).get("addOrUpdateLabels") or {})
        rules.check_taints(new_taints)
        rules.check_update_config(update_config or {}, max_size=new_scaling["maxSize"])
        group.labels, group.taints = new_labels, new_taints
        group.update_config = update_config or group.update_config
        group.node_repair_config = fields.get("node_repair_config") or group.node_repair_config
        group.modified_at = now
        self._resize(group, new_scaling, now)
        update = Update(
            id=str(mock_random.uuid4()),
            params=update_params(scaling_config, labels, taints, update_config),
            created_at=now,
            done_at=now + timedelta(seconds=self._around.timings.nodegroup_update),
        )
        group.updates[update.id] = update
        group.status = "UPDATING"
        return update.describe()

    def _check_updatable(self, group: NodeGroup) -> None:
        """ResourceInUseException unless it is ACTIVE; DEGRADED is not enough (aws/containers-roadmap#2204)."""
        if group.status != "ACTIVE":
            raise _in_use(
                "Nodegroup cannot be updated as it is currently not in Active State",
                group.cluster_name,
                group.nodegroup_name,
            )

    def _resize(self, group: NodeGroup, scaling: Mapping[str, int], now: datetime) -> None:
        asg = self._asg(group)
        if asg is None:
            return
        asg.register_as(group.registration())
        asg.min_size, asg.max_size = scaling["minSize"], scaling["maxSize"]
        constraints = f"min: {scaling['minSize']}, max: {scaling['maxSize']}, desired: {scaling['desiredSize']}"
        asg.resize(
            scaling["desiredSize"],
            now=now,
            cause=f"a user request update of AutoScalingGroup constraints to {constraints}",
        )
        self._read_size(group)

    def updates(self, cluster_name: str, nodegroup_name: str | None) -> dict[str, Update]:
        """A node group's, or the cluster's own, by id."""
        self.cluster(cluster_name)
        if nodegroup_name is None:
            return self.cluster_life.updates
        return self.node_group(cluster_name, nodegroup_name).updates

    def update(self, cluster_name: str, nodegroup_name: str | None, update_id: str) -> Update:
        """ResourceNotFoundException if there was no such update."""
        updates = self.updates(cluster_name, nodegroup_name)
        if update_id not in updates:
            raise not_found(
                f"No update found for ID: {update_id}", cluster_name=cluster_name, nodegroup_name=nodegroup_name
            )
        return updates[update_id]

    # Deleting

    def delete_nodegroup(self, cluster_name: str, nodegroup_name: str) -> NodeGroup:
        group, now = self.node_group(cluster_name, nodegroup_name), self.clock.utc_now()
        if group.status == "DELETING":
            raise _in_use("Nodegroup is already being deleted", cluster_name, nodegroup_name)
        if group.update_in_progress is not None:
            raise _in_use(
                "Nodegroup cannot be deleted as it currently has an update in progress",
                cluster_name,
                nodegroup_name,
            )
        self._read_size(group)
        group.status = "DELETING"
        group.settles_at = now + timedelta(seconds=self._around.timings.nodegroup_delete)
        asg = self._asg(group)
        if asg is not None:
            self._auto_scaling.close(asg, now=now)
        return group

    # The clock

    def advance(self) -> None:
        """Move every cluster and node group on."""
        self.cluster_life.advance(self.clusters)
        for group in self.node_groups():
            if group.status == "DELETING":
                self._finish_deletion(group)
            else:
                self._settle(group)

    def _finish_deletion(self, group: NodeGroup) -> None:
        if not self.clock.reached(group.settles_at) or self._asg(group) is not None:
            return
        if issues := self._creation.role_issues(group):
            group.status, group.health = "DELETE_FAILED", {"issues": issues}
        else:
            del group.cluster.nodegroups[group.nodegroup_name]
            group.cluster.nodegroup_count -= 1

    def _settle(self, group: NodeGroup) -> None:
        for update in group.updates.values():
            if isinstance(update, VersionUpdate):
                self._versions.advance(update, group, self._asg(group))
            elif update.status == "InProgress" and self.clock.reached(update.done_at):
                update.status = "Successful"
        if group.status in ("CREATE_FAILED", "DELETE_FAILED"):
            return
        group.health = {"issues": self._issues(group)}
        if group.status == "CREATING":
            self._settle_creation(group)
        elif group.update_in_progress is None:
            group.status = "DEGRADED" if group.health["issues"] else "ACTIVE"

    def _settle_creation(self, group: NodeGroup) -> None:
        if not group.has_asg and self.clock.reached(group.makes_asg_at):
            network = self.clusters[group.cluster_name].kubernetes_network_config or {}
            has_ipv6_pods = network.get("ipFamily") == "ipv6"
            if issues := self._creation.issues(group, has_ipv6_pods=has_ipv6_pods):
                group.status, group.health = "CREATE_FAILED", {"issues": issues}
                return
            self._creation.create_auto_scaling_group(group)
            self._creation.schedule_the_end_of_its_block(group)
        asg = self._asg(group)
        is_settled, is_given_up = self.clock.reached(group.settles_at), self.clock.reached(group.gives_up_at)
        if asg is not None and asg.satisfied and not asg.unjoined() and is_settled:
            group.status = "ACTIVE"
        elif is_given_up and (group.health["issues"] or (asg is not None and asg.unjoined())):
            group.status = "CREATE_FAILED"
            if not any(issue["code"] == "NodeCreationFailure" for issue in group.health["issues"]):
                group.health["issues"].append(never_joined(group))

    def _issues(self, group: NodeGroup) -> list[dict[str, Any]]:
        """What is wrong with the group, in EKS's health codes.

        A failed launch stays an issue until another succeeds, even when the group is scaled to zero, as in EKS.
        """
        if not group.has_asg:
            return []
        asg = self._asg(group)
        if asg is None:
            message = (
                f"We couldn't find the Auto Scaling group associated with the managed node group {group.nodegroup_name}"
            )
            return [issue("AutoScalingGroupNotFound", message, group.asg_name)]
        last = self._around.activities.last_launch(group.asg_name)
        if last is not None and last.failed:
            return [issue("AsgInstanceLaunchFailures", last.status_message or "", group.asg_name)]
        unjoined = asg.unjoined(for_seconds=self._around.timings.join_timeout)
        return [not_joined([member.instance.id for member in unjoined])] if unjoined else []

    # Tags

    def _tagged(self, resource_arn: str) -> dict[str, str]:
        by_arn = {cluster.arn: cluster.tags for cluster in self.clusters.values()}
        by_arn |= {group.arn: group.tags for group in self.node_groups()}
        if resource_arn not in by_arn:
            raise not_found(f"Resource {resource_arn} was not found")
        return by_arn[resource_arn]

    def tag_resource(self, resource_arn: str, tags: dict[str, str]) -> None:
        self._tagged(resource_arn).update(tags)

    def untag_resource(self, resource_arn: str, tag_keys: list[str]) -> None:
        tags = self._tagged(resource_arn)
        for key in [tag_keys] if isinstance(tag_keys, str) else tag_keys:
            tags.pop(key, None)

    def list_tags_for_resource(self, resource_arn: str) -> dict[str, str]:
        return self._tagged(resource_arn)


def not_found(
    message: str, *, cluster_name: str | None = None, nodegroup_name: str | None = None
) -> ResourceNotFoundException:
    return ResourceNotFoundException(
        clusterName=cluster_name,
        nodegroupName=nodegroup_name,
        fargateProfileName=None,
        addonName=None,
        message=message,
    )


def _in_use(message: str, cluster_name: str, nodegroup_name: str | None = None) -> ResourceInUseException:
    return ResourceInUseException(
        clusterName=cluster_name, nodegroupName=nodegroup_name, addonName=None, message=message
    )
