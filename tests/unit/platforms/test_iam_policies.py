"""The documented IAM policies: well formed, and each action is one that AWS knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import Loader

IAM = Path(__file__).parents[3] / "docs" / "iam"
POLICIES = sorted({*IAM.glob("*.json")} - {*IAM.glob("gke-*.json")})
# AWS has no narrower resource for these. A statement with a condition is limited by that.
EVERYTHING_IS_ITS_RESOURCE = ("Describe", "GetServiceQuota", "GetInstanceTypes", "RunInstances", "CreateTags")
MODELS = {"servicequotas": "service-quotas"}


def statements(policy: Path) -> list[dict[str, Any]]:
    return list(json.loads(policy.read_text())["Statement"])


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_every_action_exists(policy: Path) -> None:
    for action in {action for statement in statements(policy) for action in statement["Action"]}:
        service, _, operation = action.partition(":")
        operations = Loader().load_service_model(MODELS.get(service, service), "service-2")["operations"]
        # PassRole is a permission without an operation of its own.
        assert operation in operations or action == "iam:PassRole", action


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_no_more_than_needed(policy: Path) -> None:
    sids = [statement["Sid"] for statement in statements(policy)]
    assert len(set(sids)) == len(sids)
    for statement in statements(policy):
        assert statement["Effect"] == "Allow"
        assert not any("*" in action for action in statement["Action"])
        if statement["Resource"] == "*" and "Condition" not in statement:
            names = [action.partition(":")[2] for action in statement["Action"]]
            assert all(name.startswith(EVERYTHING_IS_ITS_RESOURCE) for name in names)


def test_the_page_explains_each_statement() -> None:
    page = (IAM.parent / "iam.md").read_text()
    assert len(POLICIES) == 5
    assert all(policy.name in page for policy in POLICIES)
    for name in ("eks-full.json", "eks-scale-only.json", "eks-doctor.json"):
        for statement in statements(IAM / name):
            assert statement["Sid"] in page


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
