"""Whether an identity may change in AWS what a run changes, by IAM's policy simulator, so that nothing is tried.

The simulator takes no resource from anywhere: each question brings the resources and the condition keys that the call
itself would have. It knows the identity's policies, permission boundary and organization, not a session's own policy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_gpu_provider.clouds.answers import Refusals
from airflow_gpu_provider.clouds.aws.autoscaling import SUSPENDED_TAG
from airflow_gpu_provider.clouds.aws.clients import AwsService
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.aws.spec import POOL_TAG
from airflow_gpu_provider.errors import CloudError, CredentialsError, PermissionDenied, QuotaExceeded

_SIZES = (
    "autoscaling:SetDesiredCapacity",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
    "autoscaling:PutScheduledUpdateGroupAction",
    "autoscaling:DeleteScheduledAction",
    "autoscaling:SuspendProcesses",
    "autoscaling:ResumeProcesses",
)
_CHANGES = ("eks:TagResource", "eks:UpdateNodegroupConfig", "eks:UpdateNodegroupVersion")
_TAGS = ("autoscaling:CreateOrUpdateTags", "autoscaling:DeleteTags")
_NEW_VERSION = "ec2:CreateLaunchTemplateVersion"
_RESOURCE_TAG = re.compile(r"\w+:ResourceTag/", re.IGNORECASE)
_SESSION = re.compile(r"arn:(?P<partition>[\w-]+):sts::(?P<account>\d+):assumed-role/(?P<role>[^/]+)/.+")


KeyValue = str | bool | tuple[str, ...]
"""The value of a condition key; of one with many, such as aws:TagKeys, all of them."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """May these actions be done to each of these resources? `context` has the condition keys that the calls have.

    With `has_all_tags` it has each tag of the resources, and one that a policy looks for beyond these is not there.
    """

    actions: tuple[str, ...]
    resources: tuple[str, ...]
    context: Mapping[str, KeyValue] = field(default_factory=dict)
    has_all_tags: bool = False


def questions(
    pool: EksGpuPool, *, cluster_arn: str, node_role: str, groups: Sequence[Mapping[str, Any]]
) -> tuple[Question, ...]:
    """Return what has to be asked. Pure.

    Args:
        node_role: Of the new nodes; not needed for external groups.
        groups: The Auto Scaling groups that exist behind the pool's groups, as DescribeAutoScalingGroups shows them.
    """
    if pool.manage == "scale":
        return tuple(_size_question(group) for group in groups)
    _, partition, _, region, account, _ = cluster_arn.split(":")
    arns = tuple(group["AutoScalingGroupARN"] for group in groups)
    managed = f"arn:{partition}:eks:{region}:{account}:nodegroup/{pool.cluster_name}/{pool.name}-new/0"
    group_name = f"autoScalingGroupName/eks-{pool.name}-new"
    new = f"arn:{partition}:autoscaling:{region}:{account}:autoScalingGroup:0:{group_name}"
    tagged = _tagged(pool)
    behind = {
        "aws:ResourceTag/eks:cluster-name": pool.cluster_name,
        "aws:ResourceTag/eks:nodegroup-name": f"{pool.name}-new",
    }
    keys = {"aws:TagKeys": (POOL_TAG, SUSPENDED_TAG, *pool.tags)}
    return (
        Question(actions=("eks:CreateNodegroup",), resources=(cluster_arn,), context=tagged),
        Question(actions=_CHANGES, resources=(managed,), context=tagged),
        Question(
            actions=("iam:PassRole",), resources=(node_role,), context={"iam:PassedToService": "eks.amazonaws.com"}
        ),
        Question(actions=_SIZES, resources=arns or (new,), context=behind),
        Question(actions=_TAGS, resources=arns or (new,), context={**behind, **keys}),
        *_template_questions(pool, f"arn:{partition}:ec2:{region}:{account}"),
    )


def _template_questions(pool: EksGpuPool, place: str) -> tuple[Question, ...]:
    """Return what has to be asked where the pool's groups have launch templates of this package's.

    EKS launches a machine by it in the caller's name before it makes a group.
    """
    if not (pool.own_template_fields or pool.reservations):
        return ()
    template, placement, made = f"{place}:launch-template/lt-0", f"{place}:placement-group/new", _tagged(pool)
    machine = f"{place}:instance/*"
    of_efa = (
        Question(actions=("ec2:CreatePlacementGroup",), resources=(placement,), context=made),
        _creation_question(placement, "CreatePlacementGroup"),
    )
    return (
        *(of_efa if pool.network == "efa" else ()),
        Question(actions=("ec2:CreateLaunchTemplate", _NEW_VERSION), resources=(template,), context=made),
        _creation_question(template, "CreateLaunchTemplate"),
        Question(actions=("ec2:RunInstances",), resources=(template,), context=made),
        Question(
            actions=("ec2:RunInstances",),
            resources=(machine,),
            context={"ec2:LaunchTemplate": template, "ec2:IsLaunchTemplateResource": True},
        ),
    )


def _creation_question(resource: str, call: str) -> Question:
    """Ask whether a new resource may have tags."""
    return Question(actions=("ec2:CreateTags",), resources=(resource,), context={"ec2:CreateAction": call})


def _tagged(pool: EksGpuPool) -> dict[str, KeyValue]:
    return {f"aws:{of}Tag/{POOL_TAG}": pool.name for of in ("Request", "Resource")}


def _size_question(group: Mapping[str, Any]) -> Question:
    tags = {
        f"{service}:ResourceTag/{tag['Key']}": tag["Value"]
        for tag in group.get("Tags", ())
        for service in ("aws", "autoscaling")
    }
    return Question(actions=_SIZES, resources=(group["AutoScalingGroupARN"],), context=tags, has_all_tags=True)


def simulate(iam: AwsService, caller: str, questions: Sequence[Question]) -> Refusals:
    """Simulate the calls of `caller`, the identity by STS. Without permission to simulate, nothing is known."""
    fix = "docs/iam.md has the whole policy."
    try:
        refused = [action for question in questions for action in _refused(iam, principal_of(caller), question)]
    except PermissionDenied as error:
        action = error.details.get("action", "iam:SimulatePrincipalPolicy")
        return Refusals(unasked=f"write permissions are not checked: {action} is not allowed (docs/iam.md)", fix=fix)
    except (CloudError, CredentialsError, QuotaExceeded) as error:
        return Refusals(unasked=f"write permissions could not be checked with IAM: {error.what}", fix=fix)
    return Refusals(refused=tuple(dict.fromkeys(refused)), fix=fix)


def principal_of(caller: str) -> str:
    """Return whose policies count: of a role's session the role. Roles with a path are not found by it."""
    session = _SESSION.fullmatch(caller)
    return "arn:{partition}:iam::{account}:role/{role}".format(**session.groupdict()) if session else caller


def entries(question: Question) -> list[dict[str, Any]]:
    """Return the question's condition keys as the simulator takes them (IAM's ContextEntry)."""
    found = []
    for name, value in question.context.items():
        kind, values = "string", [str(value)]
        if isinstance(value, tuple):
            kind, values = "stringList", [*value]
        elif isinstance(value, bool):
            kind, values = "boolean", [str(value).lower()]
        found.append({"ContextKeyName": name, "ContextKeyValues": values, "ContextKeyType": kind})
    return found


def _refused(iam: AwsService, principal: str, question: Question) -> list[str]:
    """Return the actions that are refused for one of the resources at least.

    Where the policies look at condition keys that are not given, the answer is a guess, and left out.
    """
    if not question.resources:
        return []
    answers = iam.items(
        "simulate_principal_policy",
        "EvaluationResults",
        PolicySourceArn=principal,
        ActionNames=list(question.actions),
        ResourceArns=list(question.resources),
        ContextEntries=entries(question),
    )
    return [
        each["EvalActionName"]
        for each in answers
        if each["EvalDecision"] != "allowed"
        and all(question.has_all_tags and _RESOURCE_TAG.match(key) for key in each.get("MissingContextValues") or ())
    ]
