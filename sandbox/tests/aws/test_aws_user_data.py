"""User data of a launch template: what EKS makes no group of, and what no node boots with."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from gpu_sandbox.aws.user_data import boots, node_configs, refusal
from tests.sandbox.aws_account import TIMINGS, Account

AL2023, BOTTLEROCKET = "AL2023_x86_64_NVIDIA", "BOTTLEROCKET_x86_64_NVIDIA"
HEAD = "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\n"


def mime(config: str) -> str:
    parts = ("MIME-Version: 1.0", 'Content-Type: multipart/mixed; boundary="B"', "", "--B")
    return "\n".join((*parts, "Content-Type: application/node.eks.aws", "", config, "--B--", ""))


def made_with(account: Account, ami_type: str, text: str) -> None:
    data = {"UserData": b64encode(text.encode()).decode()}
    account.ec2.create_launch_template(LaunchTemplateName="mine", LaunchTemplateData=data)
    account.create_node_group("train-gpu-a", amiType=ami_type, launchTemplate={"name": "mine"})
    account.advance(TIMINGS.nodegroup_create)


@pytest.mark.parametrize(
    ("ami_type", "text", "said"),
    [
        (AL2023, "#!/bin/bash\necho", "User data was not in the MIME multipart format."),
        (BOTTLEROCKET, mime(HEAD), "User data was not a TOML format that could be processed."),
    ],
)
def test_what_eks_makes_no_group_of(account: Account, ami_type: str, text: str, said: str) -> None:
    made_with(account, ami_type, text)
    group = account.describe()
    assert group["status"] == "CREATE_FAILED"
    (issue,) = group["health"]["issues"]
    assert (issue["code"], issue["message"]) == ("Ec2LaunchTemplateInvalidConfiguration", said)


def test_with_an_image_of_one_s_own_eks_leaves_it_alone() -> None:
    assert refusal("#!/bin/bash", "CUSTOM") == ""


@pytest.mark.parametrize(
    ("ami_type", "text", "joins"),
    [
        (AL2023, "", True),
        (AL2023, mime(f"{HEAD}spec: {{instance: {{localStorage: {{strategy: RAID0}}}}}}"), True),
        (AL2023, mime(f"{HEAD}spec: {{featureGates: {{OfTomorrow: true}}, unknown: 1}}"), True),
        (AL2023, mime(f"{HEAD}spec: {{featureGates: {{FastImagePull: 'yes'}}}}"), False),
        (AL2023, mime(f"{HEAD}spec: {{instance: {{localStorage: {{strategy: RAID1}}}}}}"), False),
        (AL2023, mime(f"{HEAD}spec: {{kubelet: {{flags: --v=2}}}}"), False),
        (AL2023, mime("spec: {}"), False),
        (AL2023, mime("spec: ["), False),
        (BOTTLEROCKET, "[settings.kernel]\nlockdown = 'none'", True),
        (BOTTLEROCKET, "[settings.kernal]\nlockdown = 'none'", False),
        (BOTTLEROCKET, "[kernel]\nlockdown = 'none'", False),
    ],
)
def test_what_no_node_boots_with(ami_type: str, text: str, joins: bool) -> None:
    assert boots(text, ami_type) is joins


@pytest.mark.parametrize("strategy", ["RAID0", "RAID1"])
def test_a_node_joins_only_if_it_boots(account: Account, strategy: str) -> None:
    made_with(account, AL2023, mime(f"{HEAD}spec: {{instance: {{localStorage: {{strategy: {strategy}}}}}}}"))
    account.grow(account.asg_of("train-gpu-a"), 1)
    assert len(account.events.of("launched")) == (strategy == "RAID0")


def test_machines_of_a_later_version_have_its_user_data(account: Account) -> None:
    made_with(account, AL2023, mime(HEAD))
    for strategy in ("RAID1", "RAID0"):
        text = mime(f"{HEAD}spec: {{instance: {{localStorage: {{strategy: {strategy}}}}}}}")
        data: dict[str, Any] = {"UserData": b64encode(text.encode()).decode()}
        account.ec2.create_launch_template_version(LaunchTemplateName="mine", LaunchTemplateData=data)
    versions = account.ec2.describe_launch_template_versions(LaunchTemplateName="mine")["LaunchTemplateVersions"]
    assert [each["VersionNumber"] for each in versions] == [1, 2, 3]
    which = {"clusterName": "k8s-ml", "nodegroupName": "train-gpu-a"}
    account.eks.update_nodegroup_version(**which, launchTemplate={"name": "mine", "version": "2"})
    account.advance(TIMINGS.nodegroup_version_update)
    account.grow(account.asg_of("train-gpu-a"), 1)
    assert not account.events.of("launched"), "version 2's do not boot"


def test_a_template_s_own_tags_are_not_its_machines_and_its_pages_have_all(account: Account) -> None:
    """Moto has the tags in the data, and shows fifteen templates."""
    tags = [{"ResourceType": "launch-template", "Tags": [{"Key": "team", "Value": "ml"}]}]
    for number in range(20):
        name = f"many/{number:02}"
        data = {"EbsOptimized": True}
        account.ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data, TagSpecifications=tags)
    pages = account.ec2.get_paginator("describe_launch_templates")
    filters = [{"Name": "tag:team", "Values": ["ml"]}]
    shown = [
        each
        for page in pages.paginate(Filters=filters, PaginationConfig={"PageSize": 8})
        for each in page["LaunchTemplates"]
    ]
    assert [each["LaunchTemplateName"] for each in shown] == [f"many/{number:02}" for number in range(20)]
    (version,) = account.ec2.describe_launch_template_versions(LaunchTemplateName=name)["LaunchTemplateVersions"]
    assert version["LaunchTemplateData"] == {"EbsOptimized": True}


def test_each_part_for_nodeadm_is_read() -> None:
    (config,) = node_configs(mime(f"{HEAD}spec: {{featureGates: {{FastImagePull: true}}}}"))
    assert config["spec"]["featureGates"] == {"FastImagePull": True}
