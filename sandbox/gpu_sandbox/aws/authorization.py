"""What IAM is asked about each API call: the action's resources, their tags, and the service's condition keys.

After the Service Authorization Reference, whose data sandbox/tests/unit/test_aws_authorization.py holds this table to;
what EKS checks in the caller's name when a node group is made is in EKS's user guide (node role, launch templates) and
in the errors that people report of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moto.iam.models import IAMBackend

from gpu_sandbox.aws.auto_scaling import AutoScaling
from gpu_sandbox.aws.conditions import UnsupportedPolicy
from gpu_sandbox.aws.ec2 import Ec2Backend
from gpu_sandbox.aws.eks import Eks
from gpu_sandbox.aws.launch_authorization import as_eks_asks, launched
from gpu_sandbox.aws.node_group_creation import OWN_ROLE, OWN_SERVICE
from gpu_sandbox.aws.policies import Request

Parameters = Mapping[str, Any]
_EVERY_CALL = frozenset({"aws:requestedregion", "aws:principalarn"})

WITHOUT_RESOURCE = {
    "autoscaling": {
        "DescribeAccountLimits",
        "DescribeAutoScalingGroups",
        "DescribeAutoScalingInstances",
        "DescribeLaunchConfigurations",
        "DescribeLifecycleHooks",
        "DescribeScalingActivities",
        "DescribeScheduledActions",
        "DescribeTags",
    },
    "ec2": {
        "DescribeAvailabilityZones",
        "DescribeCapacityReservations",
        "DescribeImages",
        "DescribeInstanceTypeOfferings",
        "DescribeInstanceTypes",
        "DescribeInstances",
        "DescribeLaunchTemplateVersions",
        "DescribeLaunchTemplates",
        "DescribePlacementGroups",
        "DescribeRouteTables",
        "DescribeSecurityGroups",
        "DescribeSpotPriceHistory",
        "DescribeSubnets",
        "DescribeVpcs",
        "GetInstanceTypesFromInstanceRequirements",
    },
    "eks": {"ListClusters"},
    "pricing": {"GetProducts"},
}
"""Actions that have no resource but everything."""

ON_GROUPS = {
    "AttachInstances",
    "CreateAutoScalingGroup",
    "CreateOrUpdateTags",
    "DeleteAutoScalingGroup",
    "DeleteScheduledAction",
    "DeleteTags",
    "DetachInstances",
    "PutScheduledUpdateGroupAction",
    "ResumeProcesses",
    "SetDesiredCapacity",
    "SuspendProcesses",
    "TerminateInstanceInAutoScalingGroup",
    "UpdateAutoScalingGroup",
}
"""Auto Scaling's actions on a group."""

ON_CLUSTERS = {
    "CreateNodegroup",
    "DeleteCluster",
    "DescribeCluster",
    "ListNodegroups",
    "UpdateClusterConfig",
    "UpdateClusterVersion",
}
ON_NODE_GROUPS = {
    "DeleteNodegroup",
    "DescribeNodegroup",
    "UpdateNodegroupConfig",
    "UpdateNodegroupVersion",
}
ON_TEMPLATES = {"CreateLaunchTemplate", "CreateLaunchTemplateVersion", "DeleteLaunchTemplate"}
"""EC2's actions on a launch template."""
ON_PLACEMENT_GROUPS = {"CreatePlacementGroup", "DeletePlacementGroup"}
ON_UPDATES = {"DescribeUpdate", "ListUpdates"}
"""On a node group or a cluster, whichever is named."""
TAGGING = {"ListTagsForResource", "TagResource", "UntagResource"}
_TAG_KEYS = {"aws:requesttag/", "aws:tagkeys"}
_LIMITS = {"autoscaling:maxsize", "autoscaling:minsize"}
KEYS = {
    "autoscaling:CreateAutoScalingGroup": {
        "aws:requesttag/",
        "aws:tagkeys",
        "autoscaling:maxsize",
        "autoscaling:minsize",
    },
    "autoscaling:CreateOrUpdateTags": _TAG_KEYS,
    "autoscaling:DeleteTags": _TAG_KEYS,
    "autoscaling:PutScheduledUpdateGroupAction": _LIMITS,
    "autoscaling:UpdateAutoScalingGroup": _LIMITS,
    "ec2:CreateLaunchTemplate": _TAG_KEYS,
    "ec2:CreatePlacementGroup": _TAG_KEYS,
    "ec2:CreateTags": {"aws:requesttag/", "aws:tagkeys", "ec2:createaction"},
    "ec2:RunInstances": {"ec2:islaunchtemplateresource", "ec2:launchtemplate", "ec2:owner"},
    "eks:CreateNodegroup": _TAG_KEYS,
    "eks:TagResource": _TAG_KEYS,
    "eks:UntagResource": {"aws:tagkeys"},
    "iam:CreateServiceLinkedRole": {"iam:awsservicename"},
    "iam:PassRole": {"iam:passedtoservice"},
    "servicequotas:GetServiceQuota": {"servicequotas:service"},
}
"""The condition keys of each action that the sandbox can tell, in lower case; the tags of resources are not here."""


@dataclass(frozen=True, kw_only=True)
class _Resource:
    arn: str
    tags: Mapping[str, str] = field(default_factory=dict)


_EVERYTHING = _Resource(arn="*")


class Authorization:
    """Knows the account's resources, and so which of them a call is about."""

    def __init__(
        self,
        *,
        region: str,
        account_id: str,
        auto_scaling: AutoScaling,
        eks: Eks,
        ec2: Ec2Backend,
        iam: IAMBackend,
    ) -> None:
        self._region = region
        self._ec2 = ec2
        self._account_id = account_id
        self._auto_scaling = auto_scaling
        self._eks = eks
        self._iam = iam

    def requests(self, action: str, parameters: Parameters, *, caller: str) -> list[Request]:
        """All that must be allowed for this call: the action itself first, then what is checked in the caller's name.

        None for an instance that is in no group: the service has nothing to ask about, and says that itself.
        UnsupportedPolicy if the sandbox does not know the action's resources.
        """
        service, _, operation = action.partition(":")
        if operation in WITHOUT_RESOURCE.get(service, ()):
            return [self._request(action, _EVERYTHING, caller)]
        if service == "autoscaling" and operation in ON_GROUPS:
            return self._of_groups(action, parameters, caller)
        if service == "ec2" and operation in ON_TEMPLATES | ON_PLACEMENT_GROUPS:
            return self._of_what_is_beside_groups(action, parameters, caller)
        if action == "ec2:RunInstances":
            return self._of_launch(parameters, caller)
        if service == "eks":
            return self._of_eks(action, parameters, caller)
        arns: dict[str, Callable[[Parameters], str]] = {
            "iam:SimulatePrincipalPolicy": lambda given: str(given["PolicySourceArn"]),
            "servicequotas:GetServiceQuota": self._quota,
            "ssm:GetParameter": lambda given: f"arn:aws:ssm:{self._region}::parameter{given['Name']}",
            "sts:AssumeRole": lambda given: str(given["RoleArn"]),
        }
        if action not in arns:
            raise UnsupportedPolicy(f"the sandbox does not know the resources of {action}, which a policy names")
        context = {"servicequotas:service": parameters["ServiceCode"]} if service == "servicequotas" else {}
        return [self._request(action, _Resource(arn=arns[action](parameters)), caller, context)]

    def _request(
        self, action: str, resource: _Resource, caller: str, context: Mapping[str, Any] | None = None
    ) -> Request:
        """The question, with the tags of the resource under each name that its service gives them."""
        service = action.partition(":")[0]
        names = {"aws:resourcetag", *({"autoscaling:resourcetag"} if service == "autoscaling" else ())}
        tags = {f"{name}/{key}".lower(): [value] for name in names for key, value in resource.tags.items()}
        given = {key.lower(): as_values(value) for key, value in (context or {}).items() if value is not None}
        known = _EVERY_CALL | KEYS.get(action, set()) | {f"{name}/" for name in names}
        always = {"aws:requestedregion": [self._region], "aws:principalarn": [caller]}
        return Request(action=action, resource=resource.arn, context={**always, **tags, **given}, known=known)

    def _quota(self, parameters: Parameters) -> str:
        code = f"{parameters['ServiceCode']}/{parameters['QuotaCode']}"
        return f"arn:aws:servicequotas:{self._region}:{self._account_id}:{code}"

    # Auto Scaling

    def _of_groups(self, action: str, parameters: Parameters, caller: str) -> list[Request]:
        limits = {f"autoscaling:{name}": parameters.get(name) for name in ("MaxSize", "MinSize")}
        of_action = {key: value for key, value in limits.items() if key.lower() in KEYS.get(action, ())}
        requests = []
        for name in self._group_names(action, parameters):
            tags = [tag for tag in parameters.get("Tags", ()) if tag.get("ResourceId", name) == name]
            context = {**of_action, **_of_tags({tag["Key"]: tag.get("Value", "") for tag in tags})}
            requests.append(self._request(action, self._group(name), caller, context))
        return requests

    def _group_names(self, action: str, parameters: Parameters) -> Iterable[str]:
        if "AutoScalingGroupName" in parameters:
            return [parameters["AutoScalingGroupName"]]
        if action.endswith("Tags"):
            return dict.fromkeys(tag["ResourceId"] for tag in parameters.get("Tags", ()))
        found = self._auto_scaling.find_member(parameters["InstanceId"])
        return [found[0].name] if found else []

    def _group(self, name: str) -> _Resource:
        group = self._auto_scaling.find_group(name)
        if group is None:
            place = f"arn:aws:autoscaling:{self._region}:{self._account_id}"
            return _Resource(arn=f"{place}:autoScalingGroup:*:autoScalingGroupName/{name}")
        return _Resource(arn=group.arn, tags={tag["Key"]: tag["Value"] for tag in group.tags})

    # EC2

    def _of_what_is_beside_groups(self, action: str, parameters: Parameters, caller: str) -> list[Request]:
        """What is tagged as it is made needs ec2:CreateTags too: "Grant permission to tag resources"."""
        operation = action.partition(":")[2]
        found = self._placement_group(parameters) if operation in ON_PLACEMENT_GROUPS else self._template(parameters)
        if operation not in ("CreateLaunchTemplate", "CreatePlacementGroup"):
            return [self._request(action, found, caller)]
        new = _Resource(arn=found.arn)
        specifications = parameters.get("TagSpecifications") or ()
        tags = _of_tags({tag["Key"]: tag["Value"] for each in specifications for tag in each.get("Tags", ())})
        named = {**tags, "ec2:CreateAction": operation}
        tagging = [self._request("ec2:CreateTags", new, caller, named)] if tags else []
        return [self._request(action, new, caller, tags), *tagging]

    def _placement_group(self, parameters: Parameters) -> _Resource:
        name = str(parameters["GroupName"])
        found = self._ec2.placement_groups.get(name)
        arn = f"arn:aws:ec2:{self._region}:{self._account_id}:placement-group/{name}"
        return _Resource(arn=arn, tags=found.tags if found else {})

    def _template(self, parameters: Parameters) -> _Resource:
        wanted = parameters.get("LaunchTemplateId"), parameters.get("LaunchTemplateName")
        for template in self._ec2.launch_templates.values():
            if template.id == wanted[0] or template.name == wanted[1]:
                arn = f"arn:aws:ec2:{self._region}:{self._account_id}:launch-template/{template.id}"
                return _Resource(arn=arn, tags={tag["key"]: tag["value"] for tag in template.get_tags()})
        return _Resource(arn=f"arn:aws:ec2:{self._region}:{self._account_id}:launch-template/{wanted[0] or '*'}")

    def _of_launch(self, parameters: Parameters, caller: str) -> list[Request]:
        image = self._ec2.amis.get(str(parameters.get("ImageId")))
        owner = str(image.owner_id) if image else self._account_id
        named = {"ec2:CreateAction": "RunInstances"}
        instance = _Resource(arn=f"arn:aws:ec2:{self._region}:{self._account_id}:instance/*")
        tagging = (
            [self._request("ec2:CreateTags", instance, caller, named)] if "TagSpecifications" in parameters else []
        )
        return [*self._of_launched(parameters, parameters.get("LaunchTemplate"), owner, caller), *tagging]

    def _of_launched(
        self, parameters: Parameters, reference: Parameters | None, owner: str, caller: str
    ) -> list[Request]:
        """What a machine is made of, and the launch template that it is made from."""
        place, own = f"arn:aws:ec2:{self._region}:{self._account_id}", []
        data: Parameters = {}
        template = _Resource(arn="")
        if reference is not None:
            template, data = self._template(reference), self._template_data(reference)
            own = [self._request("ec2:RunInstances", template, caller, {"ec2:LaunchTemplate": template.arn})]
        found = launched(parameters, template=data, template_arn=template.arn, place=place, owner=owner)
        made_of = [self._request("ec2:RunInstances", _Resource(arn=each.arn), caller, each.context) for each in found]
        return [*own, *made_of]

    def _template_data(self, reference: Parameters) -> Parameters:
        """The data of a version; empty where there is none, which the service itself says."""
        arn = self._template(reference).arn
        template = self._ec2.launch_templates.get(arn.rpartition("/")[2])
        if template is None:
            return {}
        version = str(reference.get("Version") or "$Default")
        number = {"$Default": template.default_version_number, "$Latest": template.latest_version_number}.get(version)
        found = {each.number: each.data for each in template.versions}
        data: Parameters = found.get(int(version) if number is None else number, {})
        return data

    # EKS

    def _of_eks(self, action: str, parameters: Parameters, caller: str) -> list[Request]:
        operation = action.partition(":")[2]
        tags = _of_tags(parameters.get("tags") or {})
        if operation in ON_CLUSTERS:
            cluster = self._cluster(str(parameters.get("name") or parameters.get("clusterName")))
            first = self._request(action, cluster, caller, tags)
            return [first, *(self._of_new_node_group(parameters, caller) if operation == "CreateNodegroup" else ())]
        if operation in ON_UPDATES:
            return [self._request(action, self._updated(parameters), caller)]
        if operation in ON_NODE_GROUPS:
            first = self._request(action, self._node_group(parameters), caller)
            template = parameters.get("launchTemplate")
            return [first, *(self._of_launch_template(template, caller) if template else ())]
        if operation in TAGGING:
            keys = {"aws:TagKeys": parameters["tagKeys"]} if "tagKeys" in parameters else tags
            return [self._request(action, self._tagged(str(parameters["resourceArn"])), caller, keys)]
        raise UnsupportedPolicy(f"the sandbox does not know the resources of {action}, which a policy names")

    def _cluster(self, name: str) -> _Resource:
        cluster = self._eks.clusters.get(name)
        if cluster is None:
            return _Resource(arn=f"arn:aws:eks:{self._region}:{self._account_id}:cluster/{name}")
        return _Resource(arn=cluster.arn, tags=cluster.tags or {})

    def _node_group(self, parameters: Parameters) -> _Resource:
        name, cluster = parameters["nodegroupName"], parameters["clusterName"]
        for group in self._eks.node_groups():
            if (group.cluster_name, group.nodegroup_name) == (cluster, name):
                return _Resource(arn=group.arn, tags=group.tags or {})
        return _Resource(arn=f"arn:aws:eks:{self._region}:{self._account_id}:nodegroup/{cluster}/{name}/*")

    def _updated(self, parameters: Parameters) -> _Resource:
        name = str(parameters["name"])
        group = parameters.get("nodegroupName")
        return self._node_group({"clusterName": name, "nodegroupName": group}) if group else self._cluster(name)

    def _tagged(self, arn: str) -> _Resource:
        found: list[Any] = [*self._eks.clusters.values(), *self._eks.node_groups()]
        return next((_Resource(arn=arn, tags=one.tags or {}) for one in found if one.arn == arn), _Resource(arn=arn))

    def _of_new_node_group(self, parameters: Parameters, caller: str) -> list[Request]:
        """What EKS checks in the caller's name.

        The service that a node's role is passed to is EKS by one page of the documents and EC2 by another: here it is
        both.
        """
        role = _Resource(arn=str(parameters["nodeRole"]))
        own = _Resource(arn=f"arn:aws:iam::{self._account_id}:role/aws-service-role/{OWN_SERVICE}/{OWN_ROLE}")
        passed = [{"iam:PassedToService": f"{service}.amazonaws.com"} for service in ("eks", "ec2")]
        requests = [self._request("iam:PassRole", role, caller, context) for context in passed]
        requests += [self._request(f"iam:{read}", role, caller) for read in ("GetRole", "ListAttachedRolePolicies")]
        requests.append(self._request("iam:GetRole", own, caller))
        if not any(one.arn == own.arn for one in self._iam.roles.values()):
            named = {"iam:AWSServiceName": OWN_SERVICE}
            requests.append(self._request("iam:CreateServiceLinkedRole", own, caller, named))
        if parameters.get("tags"):
            tags = _of_tags(parameters["tags"])
            requests.append(self._request("eks:TagResource", self._node_group(parameters), caller, tags))
        if parameters.get("launchTemplate"):
            requests += self._of_launch_template(parameters["launchTemplate"], caller)
        return requests

    def _of_launch_template(self, template: Parameters, caller: str) -> list[Request]:
        """EKS tries a launch by the template in the caller's name, with an image of AWS's where it names none."""
        names = {"id": "LaunchTemplateId", "name": "LaunchTemplateName", "version": "Version"}
        reference = {names[key]: value for key, value in template.items() if value}
        asked = as_eks_asks(self._template_data(reference))
        owner = "amazon" if "ImageId" in asked else self._account_id
        instance = _Resource(arn=f"arn:aws:ec2:{self._region}:{self._account_id}:instance/*")
        return [
            *(self._request(f"ec2:{read}", _EVERYTHING, caller) for read in sorted(_TEMPLATE_READS)),
            *self._of_launched(asked, reference, owner, caller),
            self._request("ec2:CreateTags", instance, caller, {"ec2:CreateAction": "RunInstances"}),
        ]


_TEMPLATE_READS = {"DescribeLaunchTemplateVersions", "DescribeLaunchTemplates"}


def as_values(value: Any) -> list[str]:
    """The value of a condition key as IAM has it: always a list of text."""
    return [str(one) for one in value] if isinstance(value, (list, tuple, set)) else [str(value)]


def _of_tags(tags: Mapping[str, str]) -> dict[str, Any]:
    if not tags:
        return {}
    return {**{f"aws:RequestTag/{key}": value for key, value in tags.items()}, "aws:TagKeys": list(tags)}
