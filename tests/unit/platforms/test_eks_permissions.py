"""What IAM's simulator is asked is what docs/iam allows: each action, with its resources and condition keys."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from airflow_gpu_provider.platforms.eks_permissions import Question, principal_of, questions
from airflow_gpu_provider.pools import EksGpuPool

IAM = Path(__file__).parents[3] / "docs" / "iam"
CLUSTER = "arn:aws:eks:us-west-2:123456789012:cluster/ml"
NODE_ROLE = "arn:aws:iam::123456789012:role/nodes"
ASG = "arn:aws:autoscaling:us-west-2:123456789012:autoScalingGroup:0:autoScalingGroupName/eks-train-a-0"
NAMES = {
    "ACCOUNT": "123456789012",
    "REGION": "us-west-2",
    "CLUSTER": "ml",
    "NODE_ROLE": "nodes",
    "NODE_GROUP": "train-a",
}


def pool(**changes: Any) -> EksGpuPool:
    usual = {"name": "train", "cluster_name": "ml", "region": "us-west-2", "max_nodes": 1}
    return EksGpuPool(**{**usual, **changes})


def asked(spec: EksGpuPool, *groups: str) -> tuple[Question, ...]:
    return questions(spec, cluster_arn=CLUSTER, node_role=NODE_ROLE, group_arns=groups)


def statements(file: str) -> list[dict[str, Any]]:
    """Return a policy's statements with an account's own names in them."""
    text = (IAM / file).read_text()
    for name in sorted(NAMES, key=len, reverse=True):
        text = text.replace(name, NAMES[name])
    return list(json.loads(text)["Statement"])


def allows(statement: dict[str, Any], action: str, resource: str, context: dict[str, str]) -> bool:
    resources = statement["Resource"]
    patterns = [resources] if isinstance(resources, str) else resources
    if action not in statement["Action"] or not any(fnmatchcase(resource, pattern) for pattern in patterns):
        return False
    conditions = statement.get("Condition", {})
    equal = all(
        context.get(key) in ([value] if isinstance(value, str) else value)
        for key, value in conditions.get("StringEquals", {}).items()
    )
    return equal and all((key not in context) == (value == "true") for key, value in conditions.get("Null", {}).items())


@pytest.mark.parametrize(
    ("spec", "groups", "file"),
    [
        (pool(instance_types=["g6.xlarge"]), (), "eks-full.json"),
        (pool(instance_types=["g6.xlarge"]), (ASG,), "eks-full.json"),
        (pool(manage="scale", node_groups=["train-a"]), (ASG,), "eks-scale-only.json"),
    ],
    ids=["no group yet", "groups", "groups of others"],
)
def test_the_documented_policy_allows_all_that_is_asked(spec: EksGpuPool, groups: tuple[str, ...], file: str) -> None:
    for question in asked(spec, *groups):
        for action in question.actions:
            for resource in question.resources:
                context = dict(question.context)
                assert any(allows(each, action, resource, context) for each in statements(file)), (action, resource)


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


def test_of_a_session_the_role_counts() -> None:
    session = "arn:aws-cn:sts::123456789012:assumed-role/airflow/worker-7"
    assert principal_of(session) == "arn:aws-cn:iam::123456789012:role/airflow"
    user = "arn:aws:iam::123456789012:user/airflow"
    assert principal_of(user) == user
