"""What IAM's simulator is asked is what docs/iam allows: each action, with its resources and condition keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws.permissions import Question, entries, principal_of, questions, simulate
from gpu_sandbox.aws.policies import Request, evaluate

IAM = Path(__file__).parents[4] / "docs" / "iam"
CLUSTER = "arn:aws:eks:us-west-2:123456789012:cluster/ml"
NODE_ROLE = "arn:aws:iam::123456789012:role/nodes"
ASGS = "arn:aws:autoscaling:us-west-2:123456789012:autoScalingGroup:0:autoScalingGroupName/"
NAMES = {
    "ACCOUNT": "123456789012",
    "REGION": "us-west-2",
    "CLUSTER": "ml",
    "NODE_ROLE": "nodes",
    "NODE_GROUP": "train-a",
    "ASG_NAME": "own",
    "POOL": "train",
}


def asg(name: str, **tags: str) -> dict[str, Any]:
    listed = [{"Key": f"eks:{key.replace('_', '-')}-name", "Value": value} for key, value in tags.items()]
    return {"AutoScalingGroupARN": f"{ASGS}{name}", "Tags": listed}


BEHIND = asg("eks-train-a-0", cluster="ml", nodegroup="train-a")
OLD = asg("eks-0eb97841-2793-dbd5-f6a9-c0dfe217a049", cluster="ml", nodegroup="train-a")
OF_ANOTHER = asg("eks-train-a-b-0", cluster="ml", nodegroup="train-a-b")
OWN, FOREIGN = asg("own"), asg("foreign")


def pool(**changes: Any) -> EksGpuPool:
    usual = {"name": "train", "cluster_name": "ml", "region": "us-west-2", "max_nodes": 1}
    return EksGpuPool(**{**usual, **changes})


def asked(spec: EksGpuPool, *groups: dict[str, Any]) -> tuple[Question, ...]:
    return questions(spec, cluster_arn=CLUSTER, node_role=NODE_ROLE, groups=groups)


def statements(file: str) -> list[dict[str, Any]]:
    """Return a policy's statements with an account's own names in them."""
    text = (IAM / file).read_text()
    for name in sorted(NAMES, key=len, reverse=True):
        text = text.replace(name, NAMES[name])
    return list(json.loads(text)["Statement"])


WITH_TEMPLATES = pool(instance_types=["g6.xlarge"], disk={"throughput": 600})
WITH_EFA = pool(instance_types=["g6.8xlarge"], network="efa")
SCALED = pool(manage="scale", node_groups=["train-a"], asg_names=["own"])


@pytest.mark.parametrize(
    ("spec", "groups", "file"),
    [
        (pool(instance_types=["g6.xlarge"]), (), "eks-full.json"),
        (pool(instance_types=["g6.xlarge"]), (BEHIND,), "eks-full.json"),
        (SCALED, (BEHIND, OLD, OWN), "eks-scale-only.json"),
        (WITH_TEMPLATES, (), "eks-full.json eks-launch-template.json eks-owned-templates.json"),
        (WITH_EFA, (), "eks-full.json eks-launch-template.json eks-owned-templates.json eks-efa.json"),
    ],
    ids=["no group yet", "groups", "groups of others", "launch templates", "EFA"],
)
def test_the_documented_policy_allows_all_that_is_asked(
    spec: EksGpuPool, groups: tuple[dict[str, Any], ...], file: str
) -> None:
    policy = {"Version": "2012-10-17", "Statement": [each for name in file.split() for each in statements(name)]}
    for question in asked(spec, *groups):
        for action in question.actions:
            for resource in question.resources:
                policy = {
                    "Version": "2012-10-17",
                    "Statement": [each for name in file.split() for each in statements(name)],
                }
                context = {entry["ContextKeyName"].lower(): entry["ContextKeyValues"] for entry in entries(question)}
                asked_for = Request(action=action, resource=resource, context=context)
                assert evaluate([policy], asked_for).allowed, (action, resource)


def test_all_that_a_run_changes_is_asked() -> None:
    wanted = {action for question in asked(pool(instance_types=["g6.xlarge"])) for action in question.actions}
    reads = ("Describe", "List", "Get")
    written = {
        action
        for statement in statements("eks-full.json")
        for action in statement["Action"]
        if not action.partition(":")[2].startswith(reads)
    }
    # A night deletes no group, and EKS makes its own role once.
    assert written - wanted == {"eks:DeleteNodegroup", "iam:CreateServiceLinkedRole"}


def test_only_pools_with_launch_templates_of_ours_are_asked_about_them() -> None:
    def of_ec2(spec: EksGpuPool) -> set[str]:
        return {each for question in asked(spec) for each in question.actions if each.startswith("ec2:")}

    assert of_ec2(pool(instance_types=["g6.xlarge"])) == set()
    written = {action for each in statements("eks-owned-templates.json") for action in each["Action"]}
    # A night deletes no template.
    assert of_ec2(WITH_TEMPLATES) == (written - {"ec2:DeleteLaunchTemplate"}) | {"ec2:RunInstances"}


def test_of_a_session_the_role_counts() -> None:
    session = "arn:aws-cn:sts::123456789012:assumed-role/airflow/worker-7"
    assert principal_of(session) == "arn:aws-cn:iam::123456789012:role/airflow"
    user = "arn:aws:iam::123456789012:user/airflow"
    assert principal_of(user) == user


class Iam:
    """IAM's simulator, over the documented policy for groups of others."""

    def items(self, method: str, key: str, **asked: Any) -> list[dict[str, Any]]:
        context = {entry["ContextKeyName"].lower(): entry["ContextKeyValues"] for entry in asked["ContextEntries"]}
        policy = {"Version": "2012-10-17", "Statement": statements("eks-scale-only.json")}
        found = {
            action: evaluate([policy], Request(action=action, resource=resource, context=context))
            for action in asked["ActionNames"]
            for resource in asked["ResourceArns"]
        }
        return [
            {"EvalActionName": action, "EvalDecision": each.outcome, "MissingContextValues": list(each.missing)}
            for action, each in found.items()
        ]


@pytest.mark.parametrize(
    ("group", "allowed"),
    [(BEHIND, True), (OLD, True), (OWN, True), (OF_ANOTHER, False), (FOREIGN, False), (asg("eks-untagged"), False)],
)
def test_tags_tell_the_groups_of_the_pool_from_others(group: dict[str, Any], allowed: bool) -> None:
    refused = simulate(cast("Any", Iam()), "arn:aws:iam::123456789012:user/airflow", asked(SCALED, group)).refused
    assert ("autoscaling:SetDesiredCapacity" in refused) is not allowed
    assert bool(refused) is not allowed
