"""The documented IAM policies: well formed, and no action, resource or condition key that AWS does not know."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gpu_sandbox.aws.conditions import as_list
from gpu_sandbox.aws.policies import Request, evaluate, validate
from tests.sandbox import documented_roles, role_record
from tests.unit import service_authorization

IAM = Path(__file__).parents[3] / "docs" / "iam"
POLICIES = sorted({*IAM.glob("*.json")} - {*IAM.glob("gke-*.json")})
# It reads a number that each pool of the account has in common.
NOT_WORTH_LIMITING = {"servicequotas:GetServiceQuota"}


def statements(policy: Path) -> list[dict[str, Any]]:
    return list(json.loads(policy.read_text())["Statement"])


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_every_action_exists(policy: Path) -> None:
    for action in {action for statement in statements(policy) for action in statement["Action"]}:
        assert service_authorization.exists(action), action


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_each_action_can_be_limited_to_its_resources(policy: Path) -> None:
    """An action without resources of its own in a statement that names some is never allowed."""
    for statement in statements(policy):
        named = [one for one in as_list(statement["Resource"]) if one != "*"]
        of_actions = {action: service_authorization.arns(action) for action in statement["Action"]}
        for action, arns in of_actions.items():
            assert not named or any(arn.fullmatch(one) for arn in arns for one in named), (action, named)
        for one in named:
            assert any(arn.fullmatch(one) for arns in of_actions.values() for arn in arns), one


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_each_condition_key_is_one_of_its_actions(policy: Path) -> None:
    for statement in statements(policy):
        keys = {key for by_key in statement.get("Condition", {}).values() for key in by_key}
        for action, key in product(statement["Action"], keys):
            name, slash, _ = key.lower().partition("/")
            assert name + slash in service_authorization.condition_keys(action), (action, key)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_the_sandbox_can_evaluate_it(policy: Path) -> None:
    validate(json.loads(policy.read_text()))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_no_more_than_needed(policy: Path) -> None:
    sids = [statement["Sid"] for statement in statements(policy)]
    assert len(set(sids)) == len(sids)
    for statement in statements(policy):
        assert statement["Effect"] == "Allow"
        assert not any("*" in action for action in statement["Action"])
        if statement["Resource"] == "*" and "Condition" not in statement:
            limited = [action for action in statement["Action"] if service_authorization.resource_types(action)]
            assert set(limited) <= NOT_WORTH_LIMITING


def test_the_page_explains_each_statement() -> None:
    page = (IAM.parent / "iam.md").read_text()
    assert len(POLICIES) == 9
    assert all(policy.name in page for policy in POLICIES)
    for name in (
        "eks-full.json",
        "eks-owned-templates.json",
        "eks-efa.json",
        "eks-scale-only.json",
        "eks-doctor.json",
        "eks-prices.json",
        "eks-reservations.json",
    ):
        for statement in statements(IAM / name):
            assert statement["Sid"] in page


def test_a_row_says_what_the_holder_of_each_role_could_do_at_worst() -> None:
    page = (IAM.parent / "security.md").read_text()
    roles = [*IAM.glob("*.json"), *(IAM.parent / "rbac").glob("*.yaml")]
    assert [role.name for role in roles if f"({role.parent.name}/{role.name})" not in page] == []


# cluster-autoscaler's calls are its own: `make test-autoscaler` runs it with this policy.
@pytest.mark.parametrize(
    "file", sorted({*IAM.glob("*.json")} - {IAM / "cluster-autoscaler.json"}), ids=lambda path: path.name
)
def test_a_call_is_known_for_each_permission(file: Path) -> None:
    """Which of them a test no longer needs, the test itself says: `role_record.hold`."""
    rows = role_record.read()[file.name]
    assert rows.keys() == role_record.granted(file.name)
    for row in rows.values():
        path, _, test = row.test.partition("::")
        name = test.partition("[")[0]
        assert f"\ndef {name}(" in (IAM.parents[1] / path).read_text(), row.test


@pytest.mark.parametrize(("keys", "allowed"), [(None, False), (["airflow-gpu-provider/pool"], True), (["x"], False)])
def test_a_request_without_tag_keys_is_refused(keys: list[str] | None, allowed: bool) -> None:
    """ForAllValues alone is true where a request has no such key (IAM user guide, set operators)."""
    place = {"REGION": "us-west-2", "ACCOUNT": "123456789012"}
    policy = documented_roles.policy("eks-full.json", **place, CLUSTER="ml", POOL="train")
    tags = {"aws:resourcetag/eks:cluster-name": ["ml"], "aws:resourcetag/eks:nodegroup-name": ["train-a-g6-xlarge"]}
    request = Request(
        action="autoscaling:CreateOrUpdateTags",
        resource="arn:aws:autoscaling:us-west-2:123456789012:autoScalingGroup:0:autoScalingGroupName/eks-train-a-0",
        context=tags if keys is None else {**tags, "aws:tagkeys": keys},
    )
    assert evaluate([policy], request).allowed is allowed


def test_groups_of_others_can_be_sized_and_no_more() -> None:
    writes = {
        action.partition(":")[2]
        for statement in statements(IAM / "eks-scale-only.json")
        for action in statement["Action"]
        if not action.partition(":")[2].startswith(("Describe", "List", "Get"))
    }
    assert writes == {
        "DeleteScheduledAction",
        "PutScheduledUpdateGroupAction",
        "ResumeProcesses",
        "SetDesiredCapacity",
        "SuspendProcesses",
        "TerminateInstanceInAutoScalingGroup",
    }


def test_cluster_autoscaler_may_read_and_set_sizes_of_its_own_groups_alone() -> None:
    writes = [
        (action, statement.get("Condition"))
        for statement in statements(IAM / "cluster-autoscaler.json")
        for action in statement["Action"]
        if not action.partition(":")[2].startswith(("Describe", "Get"))
    ]
    its_own = {"StringEquals": {"aws:ResourceTag/k8s.io/cluster-autoscaler/CLUSTER": "owned"}}
    assert writes == [
        ("autoscaling:SetDesiredCapacity", its_own),
        ("autoscaling:TerminateInstanceInAutoScalingGroup", its_own),
    ]
