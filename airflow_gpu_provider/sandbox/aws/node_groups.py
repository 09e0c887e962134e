"""The EKS API: managed node groups with EKS's life cycle, each with a real Auto Scaling group behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.eks.exceptions import InvalidRequestException, ResourceInUseException, ResourceNotFoundException
from moto.eks.models import Cluster, EKSBackend, Nodegroup
from moto.eks.responses import EKSResponse
from moto.iam.models import iam_backends
from moto.moto_api._internal import mock_random

from airflow_gpu_provider.sandbox.aws import node_group_rules as rules
from airflow_gpu_provider.sandbox.aws.auto_scaling import AutoScaling, utc_now
from airflow_gpu_provider.sandbox.aws.groups import AutoScalingGroup, Surroundings
from airflow_gpu_provider.sandbox.aws.registration import Registration, kubernetes_taint

Status = Literal["CREATING", "ACTIVE", "UPDATING", "DELETING", "CREATE_FAILED", "DELETE_FAILED", "DEGRADED"]
DRAIN_HOOK = "Terminate-LC-Hook"
DEFAULT_SCALING = {"minSize": 1, "maxSize": 2, "desiredSize": 2}


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

    def __init__(self, *, cluster: Cluster, now: datetime, timings: Any, **fields: Any) -> None:
        super().__init__(**fields)
        self.cluster = cluster
        self.created_at = self.modified_at = now
        self.disk_size = int(self.disk_size) if self.launch_template is None else None  # type: ignore[assignment]
        self.asg_name = f"eks-{self.nodegroup_name}-{self.uuid}"
        self.resources = {"autoScalingGroups": [{"name": self.asg_name}]}
        self.health = {"issues": []}
        self.remote_access = fields.get("remote_access")  # type: ignore[assignment]
        self.release_version = fields.get("release_version") or f"{self.version}.0-20260101"
        self.updates: dict[str, Update] = {}
        self.status: Status = "CREATING"
        self.settles_at = now + timedelta(seconds=timings.nodegroup_create)
        self.gives_up_at = now + timedelta(seconds=timings.nodegroup_create_timeout)

    @property
    def update_in_progress(self) -> Update | None:
        return next((u for u in self.updates.values() if u.status == "InProgress"), None)

    def registration(self) -> Registration:
        return Registration(
            cluster_name=self.cluster_name,
            nodegroup=self.nodegroup_name,
            labels=dict(self.labels),
            taints=tuple(kubernetes_taint(taint) for taint in self.taints),
        )


class Eks(EKSBackend):
    """moto's EKS with `NodeGroup`s."""

    def __init__(
        self, region_name: str, account_id: str, *, auto_scaling: AutoScaling, surroundings: Surroundings
    ) -> None:
        super().__init__(region_name, account_id)
        self._auto_scaling = auto_scaling
        self._around = surroundings

    def reset(self) -> None:
        """Backends live as long as their AwsCloud; moto's reset throws them away whole."""

    # Finding

    def cluster(self, name: str) -> Cluster:
        """ResourceNotFoundException if there is none."""
        if name not in self.clusters:
            raise _not_found(f"No cluster found for name: {name}.", cluster_name=name)
        return self.clusters[name]

    def node_group(self, cluster_name: str, nodegroup_name: str) -> NodeGroup:
        """ResourceNotFoundException if there is none."""
        group = self.cluster(cluster_name).nodegroups.get(nodegroup_name)
        if not isinstance(group, NodeGroup):
            raise _not_found(
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
        self,
        *,
        cluster_name: str,
        nodegroup_name: str,
        subnets: list[str],
        scaling_config: dict[str, int] | None = None,
        instance_types: list[str] | None = None,
        launch_template: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        taints: list[dict[str, str]] | None = None,
        **fields: Any,
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
        scaling = DEFAULT_SCALING | (scaling_config or {})
        self._check_creation(nodegroup_name, subnets, scaling, instance_types, launch_template, labels, taints, fields)
        group = NodeGroup(
            cluster=cluster,
            now=utc_now(),
            timings=self._around.timings,
            cluster_name=cluster_name,
            nodegroup_name=nodegroup_name,
            subnets=subnets,
            scaling_config=scaling,
            instance_types=instance_types,
            launch_template=launch_template,
            labels=labels,
            taints=taints,
            account_id=self.account_id,
            region_name=self.region_name,
            aws_partition=self.partition,
            **(fields | {"version": fields.get("version") or cluster.version}),
        )
        if launch_template and self._launch_template_data(launch_template).get("InstanceType"):
            group.instance_types = []
        self._create_asg(group)
        cluster.nodegroups[nodegroup_name] = group
        cluster.nodegroup_count += 1
        return group

    def _check_creation(
        self,
        name: str,
        subnets: list[str],
        scaling: dict[str, int],
        instance_types: list[str] | None,
        launch_template: dict[str, str] | None,
        labels: dict[str, str] | None,
        taints: list[dict[str, str]] | None,
        fields: Mapping[str, Any],
    ) -> None:
        rules.check_name(name)
        rules.check_scaling(scaling)
        rules.check_labels(labels or {})
        rules.check_taints(taints or [])
        rules.check_update_config(fields.get("update_config") or {}, max_size=scaling["maxSize"])
        rules.check_instances(
            instance_types=instance_types or [],
            ami_type=fields.get("ami_type"),
            capacity_type=fields.get("capacity_type"),
            disk_size=fields.get("disk_size"),
            catalogue=self._around.ec2.catalogue,
        )
        self._check_node_role(fields["node_role"])
        self._check_subnets(subnets)
        if launch_template:
            data = self._launch_template_data(launch_template)
            rules.check_launch_template(
                disk_size=fields.get("disk_size"),
                remote_access=fields.get("remote_access"),
                has_image=bool(data.get("ImageId")),
                ami_type=fields.get("ami_type"),
            )
            if data.get("InstanceType") and instance_types:
                raise rules.refuse(
                    "You must specify instance types either in the node group or in the launch template, not both"
                )

    def _check_node_role(self, arn: str) -> None:
        roles = iam_backends[self.account_id][self.partition].roles.values()
        role = next((role for role in roles if role.arn == arn), None)
        if role is None:
            raise rules.refuse(f"The role with name {arn.rpartition('/')[2]} cannot be found.")
        if "ec2.amazonaws.com" not in role.assume_role_policy_document:
            raise rules.refuse(
                "Following required service principals [ec2.amazonaws.com] were not found in the trust relationships "
                f"of nodeRole {arn}"
            )

    def _check_subnets(self, subnets: list[str]) -> None:
        if not subnets:
            raise rules.refuse("subnets cannot be empty")
        for subnet_id in subnets:
            try:
                self._around.ec2.get_subnet(subnet_id)
            except EC2ClientError as error:
                raise rules.refuse(
                    f"The subnet ID '{subnet_id}' does not exist (Service: AmazonEC2; Status Code: 400; "
                    "Error Code: InvalidSubnetID.NotFound)"
                ) from error

    def _launch_template_data(self, launch_template: Mapping[str, str]) -> dict[str, Any]:
        named = {"LaunchTemplateId": launch_template.get("id"), "LaunchTemplateName": launch_template.get("name")}
        wanted = {key: value for key, value in named.items() if value}
        try:
            found = self._around.ec2._get_template_from_args(
                wanted | ({"Version": launch_template["version"]} if launch_template.get("version") else {})
            )
        except (EC2ClientError, IndexError, KeyError) as error:
            raise rules.refuse(f"Launch template {launch_template} does not exist") from error
        return found.data

    def _create_asg(self, group: NodeGroup) -> None:
        """The group that EKS makes: a fleet over the node group's types and subnets, drained by a hook."""
        template = self._template_for(group)
        spot = group.capacity_type == "SPOT"
        asg = self._auto_scaling.create_auto_scaling_group(
            group.asg_name,
            availability_zones=[],
            vpc_zone_identifier=",".join(group.subnets),
            desired_capacity=group.scaling_config["desiredSize"],
            min_size=group.scaling_config["minSize"],
            max_size=group.scaling_config["maxSize"],
            launch_config_name=None,
            launch_template=None,
            mixed_instances_policy={
                "LaunchTemplate": {
                    "LaunchTemplateSpecification": template,
                    "Overrides": [{"InstanceType": one} for one in group.instance_types],
                },
                "InstancesDistribution": {
                    "OnDemandAllocationStrategy": "prioritized",
                    "OnDemandBaseCapacity": 0,
                    "OnDemandPercentageAboveBaseCapacity": 0 if spot else 100,
                    "SpotAllocationStrategy": "price-capacity-optimized",
                },
            },
            default_cooldown=300,
            health_check_period=15,
            health_check_type="EC2",
            load_balancers=[],
            target_group_arns=[],
            placement_group=None,
            termination_policies=["AllocationStrategy", "OldestLaunchTemplate", "OldestInstance"],
            tags=[_asg_tag(group.asg_name, key, value) for key, value in _asg_tags(group).items()],
            capacity_rebalance=spot,
        )
        asg.registration = group.registration()
        self._auto_scaling.create_lifecycle_hook(
            DRAIN_HOOK, group.asg_name, "autoscaling:EC2_INSTANCE_TERMINATING", 1800, "CONTINUE"
        )

    def _template_for(self, group: NodeGroup) -> dict[str, str]:
        if group.launch_template:
            return {
                "LaunchTemplateId": group.launch_template["id"],
                "Version": group.launch_template.get("version") or "$Default",
            }
        template = self._around.ec2.create_launch_template(
            f"eks-{group.uuid}",
            "",
            {"ImageId": f"ami-{group.uuid.replace('-', '')[:17]}", "InstanceType": group.instance_types[0]},
            {},
        )
        return {"LaunchTemplateId": template.id, "Version": "1"}

    # Updating

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
        group, now = self.node_group(cluster_name, nodegroup_name), utc_now()
        self._check_updatable(group)
        self._read_size(group)
        new_scaling = group.scaling_config | (scaling_config or {})
        new_labels, new_taints = _merged_labels(group, labels or {}), _merged_taints(group, taints or {})
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
            params=_update_params(scaling_config, labels, taints, update_config),
            created_at=now,
            done_at=now + timedelta(seconds=self._around.timings.nodegroup_update),
        )
        group.updates[update.id] = update
        group.status = "UPDATING"
        return update.describe()

    def _check_updatable(self, group: NodeGroup) -> None:
        if group.status not in ("ACTIVE", "DEGRADED"):
            raise _in_use(
                "Nodegroup cannot be updated as it is currently not in Active State",
                group.cluster_name,
                group.nodegroup_name,
            )

    def _resize(self, group: NodeGroup, scaling: Mapping[str, int], now: datetime) -> None:
        asg = self._asg(group)
        if asg is None:
            return
        asg.registration = group.registration()
        asg.min_size, asg.max_size = scaling["minSize"], scaling["maxSize"]
        constraints = f"min: {scaling['minSize']}, max: {scaling['maxSize']}, desired: {scaling['desiredSize']}"
        asg.resize(
            scaling["desiredSize"],
            now=now,
            cause=f"a user request update of AutoScalingGroup constraints to {constraints}",
        )
        self._read_size(group)

    def update(self, cluster_name: str, nodegroup_name: str, update_id: str) -> Update:
        """ResourceNotFoundException if the group has had no such update."""
        group = self.node_group(cluster_name, nodegroup_name)
        if update_id not in group.updates:
            raise _not_found(
                f"No update found for ID: {update_id}", cluster_name=cluster_name, nodegroup_name=nodegroup_name
            )
        return group.updates[update_id]

    # Deleting

    def delete_nodegroup(self, cluster_name: str, nodegroup_name: str) -> NodeGroup:
        group, now = self.node_group(cluster_name, nodegroup_name), utc_now()
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

    def advance(self, now: datetime) -> None:
        """Move every node group on."""
        for group in self.node_groups():
            if group.status == "DELETING":
                self._finish_deletion(group, now)
            else:
                self._settle(group, now)

    def _finish_deletion(self, group: NodeGroup, now: datetime) -> None:
        if self._asg(group) is None and now >= group.settles_at:
            del group.cluster.nodegroups[group.nodegroup_name]
            group.cluster.nodegroup_count -= 1

    def _settle(self, group: NodeGroup, now: datetime) -> None:
        for update in group.updates.values():
            if update.status == "InProgress" and now >= update.done_at:
                update.status = "Successful"
        if group.status == "CREATE_FAILED":
            return
        group.health = {"issues": self._issues(group)}
        if group.status == "CREATING":
            self._settle_creation(group, now)
        elif group.update_in_progress is None:
            group.status = "DEGRADED" if group.health["issues"] else "ACTIVE"

    def _settle_creation(self, group: NodeGroup, now: datetime) -> None:
        asg = self._asg(group)
        if asg is not None and asg.satisfied and now >= group.settles_at:
            group.status = "ACTIVE"
        elif group.health["issues"] and now >= group.gives_up_at:
            group.status = "CREATE_FAILED"
            group.health["issues"].append(_never_joined(group))

    def _issues(self, group: NodeGroup) -> list[dict[str, Any]]:
        """What is wrong with the group, in EKS's health codes.

        A failed launch stays an issue until another succeeds, even when the group is scaled to zero, as in EKS.
        """
        asg = self._asg(group)
        if asg is None:
            message = (
                f"We couldn't find the Auto Scaling group associated with the managed node group {group.nodegroup_name}"
            )
            return [_issue("AutoScalingGroupNotFound", message, group.asg_name)]
        last = self._around.activities.last_launch(group.asg_name)
        if last is not None and last.status_code == "Failed":
            return [_issue("AsgInstanceLaunchFailures", last.status_message or "", group.asg_name)]
        return []

    # Tags

    def _tagged(self, resource_arn: str) -> dict[str, str]:
        by_arn = {cluster.arn: cluster.tags for cluster in self.clusters.values()}
        by_arn |= {group.arn: group.tags for group in self.node_groups()}
        if resource_arn not in by_arn:
            raise _not_found(f"Resource {resource_arn} was not found")
        return by_arn[resource_arn]

    def tag_resource(self, resource_arn: str, tags: dict[str, str]) -> None:
        self._tagged(resource_arn).update(tags)

    def untag_resource(self, resource_arn: str, tag_keys: list[str]) -> None:
        tags = self._tagged(resource_arn)
        for key in [tag_keys] if isinstance(tag_keys, str) else tag_keys:
            tags.pop(key, None)

    def list_tags_for_resource(self, resource_arn: str) -> dict[str, str]:
        return self._tagged(resource_arn)


def _not_found(
    message: str, *, cluster_name: str | None = None, nodegroup_name: str | None = None
) -> ResourceNotFoundException:
    return ResourceNotFoundException(
        clusterName=cluster_name,
        nodegroupName=nodegroup_name,
        fargateProfileName=None,
        addonName=None,
        message=message,
    )


def _in_use(message: str, cluster_name: str, nodegroup_name: str) -> ResourceInUseException:
    return ResourceInUseException(
        clusterName=cluster_name, nodegroupName=nodegroup_name, addonName=None, message=message
    )


def _issue(code: str, message: str, asg_name: str) -> dict[str, Any]:
    return {"code": code, "message": message, "resourceIds": [asg_name]}


def _never_joined(group: NodeGroup) -> dict[str, Any]:
    missing = [f"DUMMY_{mock_random.uuid4()}" for _ in range(group.scaling_config["desiredSize"])]
    message = "Instances failed to join the kubernetes cluster"
    return {"code": "NodeCreationFailure", "message": message, "resourceIds": missing}


def _asg_tags(group: NodeGroup) -> dict[str, str]:
    return {
        "eks:cluster-name": group.cluster_name,
        "eks:nodegroup-name": group.nodegroup_name,
        "k8s.io/cluster-autoscaler/enabled": "true",
        f"k8s.io/cluster-autoscaler/{group.cluster_name}": "owned",
        f"kubernetes.io/cluster/{group.cluster_name}": "owned",
    }


def _asg_tag(asg_name: str, key: str, value: str) -> dict[str, Any]:
    return {
        "ResourceId": asg_name,
        "ResourceType": "auto-scaling-group",
        "Key": key,
        "Value": value,
        "PropagateAtLaunch": True,
    }


def _merged_labels(group: NodeGroup, change: Mapping[str, Any]) -> dict[str, str]:
    removed = set(change.get("removeLabels") or [])
    kept = {key: value for key, value in group.labels.items() if key not in removed}
    return kept | (change.get("addOrUpdateLabels") or {})


def _merged_taints(group: NodeGroup, change: Mapping[str, Any]) -> list[dict[str, str]]:
    added = list(change.get("addOrUpdateTaints") or [])
    gone = {(t["key"], t.get("effect")) for t in [*added, *(change.get("removeTaints") or [])]}
    return [t for t in group.taints if (t["key"], t.get("effect")) not in gone] + added


def _update_params(
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
    }
    return params + [{"type": name, "value": json.dumps(value)} for name, value in changes.items() if value is not None]


class EksApi(EKSResponse):
    """The calls that moto lacks or cuts short."""

    eks_backend: Eks

    def create_nodegroup(self) -> ActionResult:
        text = {
            "cluster_name": "name",
            "nodegroup_name": "nodegroupName",
            "scaling_config": "scalingConfig",
            "subnets": "subnets",
            "instance_types": "instanceTypes",
            "ami_type": "amiType",
            "remote_access": "remoteAccess",
            "node_role": "nodeRole",
            "labels": "labels",
            "taints": "taints",
            "tags": "tags",
            "client_request_token": "clientRequestToken",
            "launch_template": "launchTemplate",
            "capacity_type": "capacityType",
            "version": "version",
            "release_version": "releaseVersion",
            "update_config": "updateConfig",
            "node_repair_config": "nodeRepairConfig",
        }
        fields = {name: self._get_param(param) for name, param in text.items()}
        fields["disk_size"] = self._get_int_param("diskSize")
        return ActionResult({"nodegroup": self.eks_backend.create_nodegroup(**fields)})

    def list_addons(self) -> ActionResult:
        self.eks_backend.cluster(self._get_param("name"))
        return ActionResult({"addons": []})

    def describe_addon(self) -> ActionResult:
        cluster_name, addon = self._get_param("name"), self._get_param("addonName")
        self.eks_backend.cluster(cluster_name)
        raise _not_found(f"No addon: {addon} found in cluster: {cluster_name}", cluster_name=cluster_name)

    def describe_update(self) -> ActionResult:
        update = self.eks_backend.update(
            self._get_param("name"), self._get_param("nodegroupName"), self._get_param("updateId")
        )
        return ActionResult({"update": update.describe()})

    def list_updates(self) -> ActionResult:
        group = self.eks_backend.node_group(self._get_param("name"), self._get_param("nodegroupName"))
        return ActionResult({"updateIds": list(group.updates)})
