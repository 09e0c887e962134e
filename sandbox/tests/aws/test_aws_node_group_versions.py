"""What node groups are made from: versions of Kubernetes, releases of images, templates, and updates of them."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.sandbox.aws_account import CLUSTER, LAUNCH, TIMINGS, Account

MINIMAL = {"updateConfig": {"maxUnavailable": 1, "updateStrategy": "MINIMAL"}}
NEWEST = "/aws/service/eks/optimized-ami/1.36/amazon-linux-2023/x86_64/nvidia/recommended/release_version"


def update(account: Account, name: str = "train-gpu-a", **request: Any) -> str:
    answer = account.eks.update_nodegroup_version(clusterName=CLUSTER, nodegroupName=name, **request)
    return str(answer["update"]["id"])


def told(account: Account, update_id: str, name: str = "train-gpu-a") -> dict[str, Any]:
    return dict(account.eks.describe_update(name=CLUSTER, nodegroupName=name, updateId=update_id)["update"])


def upgrade_cluster(account: Account, version: str = "1.37") -> None:
    account.eks.update_cluster_version(name=CLUSTER, version=version)
    account.advance(TIMINGS.cluster_update)


def made_from(account: Account, name: str = "train-gpu-a") -> tuple[str, str]:
    described = account.describe(name)
    return described["version"], described["releaseVersion"]


def test_a_group_is_made_from_the_newest_release_and_keeps_it(account: Account) -> None:
    account.node_group()
    assert made_from(account) == ("1.36", "1.36.0-20260101")
    account.cloud.publish_node_images("20260827")
    upgrade_cluster(account)
    assert made_from(account) == ("1.36", "1.36.0-20260101")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (NEWEST, "1.36.0-20260827"),
        ("/aws/service/eks/optimized-ami/1.32/amazon-linux-2-gpu/recommended/release_version", "1.32.0-20260827"),
        ("/aws/service/bottlerocket/aws-k8s-1.36-nvidia/arm64/latest/image_version", "1.51.0-e2e4784c"),
        ("/aws/service/bottlerocket/aws-k8s-1.36-nvidia-fips/x86_64/latest/image_version", "1.51.0-e2e4784c"),
    ],
)
def test_parameter_store_tells_the_newest_release(account: Account, name: str, value: str) -> None:
    account.cloud.publish_node_images("20260827")
    assert account.client("ssm").get_parameter(Name=name)["Parameter"]["Value"] == value


def test_nodes_of_a_broken_release_are_known(account: Account) -> None:
    earlier = account.node_group()
    account.cloud.publish_node_images("20260827", broken=True)
    for asg, broken in ((earlier, False), (account.node_group("train-gpu-b"), True)):
        account.resize(asg, 1)
        account.advance(TIMINGS.asg_launch * 2)
        [*_, (_, instance)] = account.events.seen
        assert account.cloud.has_broken_image(instance) == broken


def test_a_cluster_goes_on_when_its_groups_are_at_its_version(account: Account) -> None:
    account.node_group(**MINIMAL)
    upgrade_cluster(account)
    with pytest.raises(ClientError, match=r"Nodegroups train-gpu-a must be updated to match cluster version 1\.37"):
        account.eks.update_cluster_version(name=CLUSTER, version="1.38")
    update(account)
    account.advance(TIMINGS.nodegroup_version_update)
    with pytest.raises(ClientError, match=r"Unsupported Kubernetes minor version update from 1.37 to 1.39"):
        account.eks.update_cluster_version(name=CLUSTER, version="1.39")
    begun = account.eks.update_cluster_version(name=CLUSTER, version="1.38")["update"]
    assert account.eks.describe_cluster(name=CLUSTER)["cluster"]["status"] == "UPDATING"
    account.advance(TIMINGS.cluster_update)
    assert account.eks.describe_cluster(name=CLUSTER)["cluster"]["version"] == "1.38"
    assert account.eks.describe_update(name=CLUSTER, updateId=begun["id"])["update"]["status"] == "Successful"


def test_an_update_of_a_group_without_machines(account: Account) -> None:
    account.node_group(**MINIMAL)
    upgrade_cluster(account)
    begun = update(account)
    assert (account.status(), told(account, begun)["type"]) == ("UPDATING", "VersionUpdate")
    with pytest.raises(ClientError, match="not in Active State"):
        update(account)
    account.advance_until(lambda: account.status() == "ACTIVE", after=TIMINGS.nodegroup_version_update)
    assert told(account, begun)["status"] == "Successful"
    assert made_from(account) == ("1.37", "1.37.0-20260101")
    assert account.events.seen == []


def test_by_default_machines_are_added_first_and_by_the_minimal_strategy_none(account: Account) -> None:
    """The guide's scale-up phase has no exception for a group without machines."""
    asg = account.node_group()
    update(account)
    account.advance(LAUNCH)
    assert len(account.instances(asg)) == 2
    account.advance(hours=1)
    assert (account.status(), account.group(asg)["Instances"]) == ("ACTIVE", [])
    assert account.describe()["scalingConfig"] == {"minSize": 0, "maxSize": 3, "desiredSize": 0}


@pytest.mark.parametrize("config", [{}, MINIMAL], ids=["default", "minimal"])
def test_machines_are_replaced(account: Account, config: dict[str, Any]) -> None:
    asg = account.node_group(**config)
    old = account.grow(asg, 2)
    update(account)
    account.advance(hours=1)
    new = account.instances(asg)
    assert (len(new), set(new) & set(old), account.status()) == (2, set(), "ACTIVE")


def test_a_template_s_version_is_updated_and_its_name_is_not(account: Account) -> None:
    for name in ("gpu", "other"):
        account.ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData={"UserData": ""})
    account.ec2.create_launch_template_version(LaunchTemplateName="gpu", LaunchTemplateData={"UserData": "eA=="})
    asg = account.node_group(launchTemplate={"name": "gpu", "version": "1"}, **MINIMAL)
    with pytest.raises(ClientError, match="cannot change the launch template"):
        update(account, launchTemplate={"name": "other"})
    update(account, launchTemplate={"name": "gpu", "version": "2"})
    account.advance(TIMINGS.nodegroup_version_update)
    assert account.describe()["launchTemplate"]["version"] == "2"
    policy = account.group(asg)["MixedInstancesPolicy"]["LaunchTemplate"]["LaunchTemplateSpecification"]
    assert policy["Version"] == "2"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"version": "1.38"}, "newer than the cluster's"),
        ({"version": "1.36"}, "older than the node group's"),
        ({"releaseVersion": "1.37.9-20270101"}, "1.37.9-20270101 is not valid for kubernetes version 1.37"),
        ({"releaseVersion": "1.37.0-20260101"}, "older than 1.37.0-20260827"),
        ({"launchTemplate": {"name": "gpu"}}, "was not created with one"),
    ],
)
def test_what_eks_refuses(account: Account, request_: dict[str, Any], said: str) -> None:
    account.cloud.publish_node_images("20260827")
    upgrade_cluster(account)
    account.node_group()
    with pytest.raises(ClientError, match=said):
        update(account, **request_)


def test_a_template_with_an_image_leaves_no_version_to_name(account: Account) -> None:
    data = {"ImageId": "ami-0123456789abcdef0"}
    account.ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data)
    account.node_group(launchTemplate={"name": "gpu"}, amiType="CUSTOM")
    assert made_from(account) == ("1.36", "ami-0123456789abcdef0")
    with pytest.raises(ClientError, match="cannot specify a version when the launch template specifies an AMI"):
        update(account, version="1.36")


def test_an_update_that_fails_says_why(account: Account) -> None:
    account.node_group(**MINIMAL)
    begun = update(account)
    account.client("iam").delete_role(RoleName=account.network.node_role_arn.rpartition("/")[2])
    account.advance(TIMINGS.nodegroup_version_update)
    failed = told(account, begun)
    assert (failed["status"], account.status()) == ("Failed", "ACTIVE")
    assert "cannot be found" in failed["errors"][0]["errorMessage"]
