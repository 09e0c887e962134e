"""Creating a managed node group: what EKS checks first, and the Auto Scaling group that it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import timedelta
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.launch_templates import LaunchTemplateVersion
from moto.iam.models import Role, iam_backends
from moto.moto_api._internal import mock_random

from gpu_sandbox.aws import node_group_rules as rules
from gpu_sandbox.aws.auto_scaling import AutoScaling
from gpu_sandbox.aws.capacity_reservations import target_of
from gpu_sandbox.aws.ec2 import Ec2Backend, check_version
from gpu_sandbox.aws.groups import AutoScalingGroup
from gpu_sandbox.aws.node_groups import NodeGroup
from gpu_sandbox.aws.user_data import refusal, text_of
from gpu_sandbox.aws.vpc import lacks_addresses, lacks_ipv6

OWN_SERVICE = "eks-nodegroup.amazonaws.com"
OWN_ROLE = "AWSServiceRoleForAmazonEKSNodegroup"
DRAIN_HOOK = "Terminate-LC-Hook"


class NodeGroupCreation:
    """EKS's hands in EC2 and Auto Scaling."""

    def __init__(self, *, ec2: Ec2Backend, auto_scaling: AutoScaling) -> None:
        self._ec2 = ec2
        self._auto_scaling = auto_scaling

    def check(self, name: str, scaling: Mapping[str, int], request: Mapping[str, Any]) -> None:
        """InvalidParameterException for what EKS would not create.

        `request` is by moto's names of parameters, with the version of Kubernetes that the nodes will have.
        """
        rules.check_name(name)
        rules.check_scaling(scaling)
        rules.check_labels(request.get("labels") or {})
        rules.check_taints(request.get("taints") or [])
        rules.check_update_config(request.get("update_config") or {}, max_size=scaling["maxSize"])
        rules.check_instances(
            instance_types=request.get("instance_types") or [],
            ami_type=request.get("ami_type"),
            capacity_type=request.get("capacity_type"),
            disk_size=request.get("disk_size"),
            version=request["version"],
            catalogue=self._ec2.catalogue,
        )
        self._check_node_role(request["node_role"])
        self._check_subnets(request["subnets"])
        self._check_launch_template(request)

    def _check_launch_template(self, request: Mapping[str, Any]) -> None:
        if not request.get("launch_template"):
            if request.get("capacity_type") == "CAPACITY_BLOCK":
                raise rules.refuse("A launch template is required for capacity type CAPACITY_BLOCK")
            return
        version, replicas = self._template_version(request["launch_template"]), self._ec2.replicas
        if replicas is not None and not replicas.knows("eks", version.template.create_time):
            raise rules.refuse(f"Launch template {version.template.id} with version {version.number} was not found.")
        data = version.data
        rules.check_launch_template(
            disk_size=request.get("disk_size"),
            remote_access=request.get("remote_access"),
            has_image=bool(data.get("ImageId")),
            ami_type=request.get("ami_type"),
        )
        rules.check_template_data(data)
        if request.get("capacity_type") == "CAPACITY_BLOCK":
            rules.check_template_of_a_block(data)
        if data.get("InstanceType") and request.get("instance_types"):
            raise rules.refuse(
                "You must specify instance types either in the node group or in the launch template, not both"
            )

    def _check_node_role(self, arn: str) -> None:
        role = self._role(arn)
        if role is None:
            raise rules.refuse(f"The role with name {arn.rpartition('/')[2]} cannot be found.")
        if "ec2.amazonaws.com" not in role.assume_role_policy_document:
            raise rules.refuse(
                "Following required service principals [ec2.amazonaws.com] were not found in the trust relationships "
                f"of nodeRole {arn}"
            )

    def _role(self, arn: str) -> Role | None:
        roles = iam_backends[self._ec2.account_id][self._ec2.partition].roles.values()
        return next((role for role in roles if role.arn == arn), None)

    def role_issues(self, group: NodeGroup) -> list[dict[str, Any]]:
        """What keeps EKS from deleting a group: here, that the nodes' role is gone; botocore's NodegroupIssueCode."""
        if self._role(group.node_role):
            return []
        message = f"Role {group.node_role} of node group {group.nodegroup_name} cannot be found."
        return [{"code": "IamNodeRoleNotFound", "message": message, "resourceIds": [group.node_role]}]

    def _check_subnets(self, subnets: Sequence[str]) -> None:
        if not subnets:
            raise rules.refuse("subnets cannot be empty")
        for subnet_id in subnets:
            try:
                self._ec2.get_subnet(subnet_id)
            except EC2ClientError as error:
                raise rules.refuse(
                    f"The subnet ID '{subnet_id}' does not exist (Service: AmazonEC2; Status Code: 400; "
                    "Error Code: InvalidSubnetID.NotFound)"
                ) from error

    def issues(self, group: NodeGroup, *, has_ipv6_pods: bool) -> list[dict[str, Any]]:
        """What EKS finds out once it makes the group, and then does not."""
        return self._subnet_issues(group, has_ipv6_pods=has_ipv6_pods) or self._template_issues(group)

    def _template_issues(self, group: NodeGroup) -> list[dict[str, Any]]:
        if not group.launch_template:
            return []
        user_data = text_of(self.launch_template_data(group.launch_template).get("UserData"))
        why = refusal(user_data, str(group.ami_type))
        there = [group.launch_template["id"]]
        return [{"code": "Ec2LaunchTemplateInvalidConfiguration", "message": why, "resourceIds": there}] if why else []

    def _subnet_issues(self, group: NodeGroup, *, has_ipv6_pods: bool) -> list[dict[str, Any]]:
        """What EKS finds out about the subnets once it makes the group: botocore's NodegroupIssueCode has the codes."""
        without_ipv6 = [subnet for subnet in group.subnets if has_ipv6_pods and lacks_ipv6(self._ec2, subnet)]
        if without_ipv6:
            message = (
                f"Subnets [{', '.join(without_ipv6)}] do not assign IPv6 addresses to instances launched into them."
            )
            return [{"code": "Ec2SubnetMissingIpv6Assignment", "message": message, "resourceIds": without_ipv6}]
        lacking = [subnet for subnet in group.subnets if lacks_addresses(self._ec2, subnet)]
        if not lacking or group.launch_template:
            return []
        message = (
            f"One or more Amazon EC2 Subnets of [{', '.join(lacking)}] for node group {group.nodegroup_name} does not "
            "automatically assign public IP addresses to instances launched into it. If you want your instances to be "
            "assigned a public IP address, then you need to enable auto-assign public IP address for the subnet."
        )
        return [{"code": "Ec2SubnetInvalidConfiguration", "message": message, "resourceIds": lacking}]

    def launch_template_data(self, launch_template: Mapping[str, str]) -> dict[str, Any]:
        """What the named version of a user's template says. InvalidParameterException if there is none."""
        data: dict[str, Any] = self._template_version(launch_template).data
        return data

    def _template_version(self, launch_template: Mapping[str, str]) -> LaunchTemplateVersion:
        named = {"LaunchTemplateId": launch_template.get("id"), "LaunchTemplateName": launch_template.get("name")}
        wanted = {key: value for key, value in named.items() if value}
        try:
            if launch_template.get("version"):
                wanted["Version"] = launch_template["version"]
                check_version(wanted["Version"], launch_template.get("id"))
            return self._ec2._get_template_from_args(wanted)
        except (EC2ClientError, IndexError, KeyError) as error:
            raise rules.refuse(f"Launch template {launch_template} does not exist") from error

    def resolved(self, launch_template: Mapping[str, str]) -> dict[str, str]:
        """Return what EKS says of the template that a group was made with: id, name, and the version as a number."""
        version = self._template_version(launch_template)
        template = version.template
        return {"id": template.id, "name": template.name, "version": str(version.number)}

    def ami_type(self, request: Mapping[str, Any]) -> str:
        """Return what EKS says of a group: CUSTOM where the template names the AMI, by default AL2023 without GPUs."""
        template = request.get("launch_template")
        if template and self.launch_template_data(template).get("ImageId"):
            return "CUSTOM"
        return request.get("ami_type") or "AL2023_x86_64_STANDARD"

    def create_auto_scaling_group(self, group: NodeGroup) -> None:
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
        group.resources = {"autoScalingGroups": [{"name": group.asg_name}]}
        self._auto_scaling.create_lifecycle_hook(
            DRAIN_HOOK, group.asg_name, "autoscaling:EC2_INSTANCE_TERMINATING", 1800, "CONTINUE"
        )

    def schedule_the_end_of_its_block(self, group: NodeGroup) -> None:
        """EKS's own scheduled action on a block's group: "Create a managed node group with Capacity Blocks"."""
        data = self.launch_template_data(group.launch_template) if group.launch_template else {}
        block = self._ec2.capacity_reservations.find(target_of(data))
        at = block.end - timedelta(minutes=40) if block is not None and block.end is not None else None
        if group.capacity_type == "CAPACITY_BLOCK" and at is not None and at > self._ec2.clock.utc_now():
            self._auto_scaling.put_scheduled_update_group_action(
                group.asg_name,
                scheduled_action_name="Amazon EKS Node Group Capacity Scaledown Before Reservation End",
                desired_capacity=0,
                max_size=None,
                min_size=0,
                start_time=at,
                end_time=None,
                recurrence=None,
                timezone=None,
            )

    def use_version(self, group: NodeGroup, asg: AutoScalingGroup, template: Mapping[str, str] | None) -> None:
        """Have a group's next machines made from another version of its template: the user's, or EKS's own."""
        if template:
            group.use_template(self.launch_template_data(template))
        own = asg.ec2_launch_template
        policy = deepcopy(asg.mixed_instances_policy)
        if own is None or policy is None:
            return
        version = template["version"] if template else ""
        if not version:
            image = f"ami-{mock_random.get_random_hex(17)}"
            version = str(own.create_version({**own.latest_version().data, "ImageId": image}, "").number)
        specification = {"LaunchTemplateId": own.id, "Version": version}
        policy["LaunchTemplate"]["LaunchTemplateSpecification"] = specification
        asg.mixed_instances_policy = policy
        asg._set_launch_configuration(None, None, policy)  # type: ignore[arg-type]  # as moto's own update does

    def make_own_role(self) -> None:
        """EKS's service-linked role, which the account's first managed node group brings."""
        iam = iam_backends[self._ec2.account_id][self._ec2.partition]
        if not any(role.name == OWN_ROLE for role in iam.roles.values()):
            path = f"/aws-service-role/{OWN_SERVICE}/"
            iam.create_role(OWN_ROLE, "{}", path, None, description="", tags=[], max_session_duration="3600")

    def _template_for(self, group: NodeGroup) -> dict[str, str]:
        if group.launch_template:
            return {
                "LaunchTemplateId": group.launch_template["id"],
                "Version": group.launch_template.get("version") or "$Default",
            }
        template = self._ec2.create_launch_template(
            f"eks-{group.uuid}",
            "",
            {"ImageId": f"ami-{group.uuid.replace('-', '')[:17]}", "InstanceType": group.instance_types[0]},
            {},
        )
        return {"LaunchTemplateId": template.id, "Version": "1"}


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
