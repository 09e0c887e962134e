"""IAM policies with resources and conditions, as they let calls through or refuse them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpu_sandbox.aws import AccessKey, PolicyUse
from tests.sandbox import documented_roles
from tests.sandbox.aws_account import ACCOUNT_ID, CLUSTER, Account

POOL_TAG = {"airflow-gpu-provider/pool": "train"}
PLACE = {"REGION": "us-west-2", "ACCOUNT": ACCOUNT_ID, "CLUSTER": CLUSTER}
PLACE |= {"NODE_ROLE": f"{CLUSTER}-node", "POOL": "train"}


def user(account: Account, policy: Mapping[str, Any]) -> AccessKey:
    return account.cloud.add_identity("limited", policy=policy)


def documented(account: Account, *files: str, without: Sequence[str] = (), **values: Any) -> AccessKey:
    return user(account, documented_roles.policy(*files, without=without, **PLACE, **values))


def statement(**changes: Any) -> dict[str, Any]:
    usual = {"Sid": "Only", "Effect": "Allow", "Resource": "*"}
    return {"Version": "2012-10-17", "Statement": [{**usual, **changes}]}


def off_tomorrow(account: Account) -> dict[str, Any]:
    tomorrow = account.clock.utc_now() + timedelta(days=1)
    return {"ScheduledActionName": "off", "StartTime": tomorrow, "DesiredCapacity": 0}


def test_a_group_is_read_by_its_name_and_no_other(account: Account) -> None:
    account.node_group("train"), account.node_group("web")
    key = documented(account, "eks-scale-only.json", NODE_GROUP="train")
    eks = account.client("eks", key)
    eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName="train")
    says = (
        rf"not authorized to perform: eks:DescribeNodegroup on resource: arn:aws:eks:us-west-2:{ACCOUNT_ID}:nodegroup"
    )
    for other in ("web", "no-such-group"):
        with pytest.raises(ClientError, match=rf"AccessDeniedException.*{says}/{CLUSTER}/{other}/") as refused:
            eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName=other)
        assert "because no identity-based policy allows the eks:DescribeNodegroup action" in str(refused.value)
    used = PolicyUse("ReadTheNodeGroups", "eks:DescribeNodegroup", "eks:DescribeNodegroup")
    assert account.cloud.policy_uses(key.arn) == {used}
    assert account.cloud.refused(key.arn) == {PolicyUse("", "eks:DescribeNodegroup", "eks:DescribeNodegroup")}


def test_a_schedule_may_set_a_size_and_no_limits(account: Account) -> None:
    asg = account.node_group("train")
    mine = account.client("autoscaling", documented(account, "eks-scale-only.json", NODE_GROUP="train"))
    action = {"AutoScalingGroupName": asg, **off_tomorrow(account)}
    mine.put_scheduled_update_group_action(**action)
    for limit in ("MinSize", "MaxSize"):
        with pytest.raises(ClientError, match="not authorized to perform: autoscaling:PutScheduledUpdateGroupAction"):
            mine.put_scheduled_update_group_action(**action, **{limit: 0})


def test_the_group_behind_is_known_by_its_tags_whatever_its_name(account: Account) -> None:
    """The names of old ones have no node group in them, and those of others may begin alike."""
    asg, alike = account.node_group("train"), account.node_group("train-b")
    old = "eks-0eb97841-2793-dbd5-f6a9-c0dfe217a049"
    behind = account.group(asg)
    tags = [{key: tag[key] for key in ("Key", "Value", "PropagateAtLaunch")} for tag in behind["Tags"]]
    data = {"InstanceType": "g6.xlarge", "ImageId": "ami-12345678"}
    account.ec2.create_launch_template(LaunchTemplateName="old", LaunchTemplateData=data)
    sizes = {key: behind[key] for key in ("VPCZoneIdentifier", "MinSize", "MaxSize")}
    account.asg.create_auto_scaling_group(
        AutoScalingGroupName=old, Tags=tags, LaunchTemplate={"LaunchTemplateName": "old"}, **sizes
    )
    mine = account.client("autoscaling", documented(account, "eks-scale-only.json", NODE_GROUP="train"))
    action = off_tomorrow(account)
    for name in (asg, old):
        mine.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=0)
        mine.put_scheduled_update_group_action(AutoScalingGroupName=name, **action)
    with pytest.raises(ClientError, match="not authorized to perform: autoscaling:SetDesiredCapacity"):
        mine.set_desired_capacity(AutoScalingGroupName=alike, DesiredCapacity=0)
    with pytest.raises(ClientError, match="not authorized to perform: autoscaling:PutScheduledUpdateGroupAction"):
        mine.put_scheduled_update_group_action(AutoScalingGroupName=alike, **action)


def test_tags_of_the_group_decide(account: Account) -> None:
    asg = account.node_group("train")
    mine = account.client("autoscaling", documented(account, "cluster-autoscaler.json"))
    mine.set_desired_capacity(AutoScalingGroupName=asg, DesiredCapacity=0)
    owned = {"ResourceId": asg, "ResourceType": "auto-scaling-group", "Key": f"k8s.io/cluster-autoscaler/{CLUSTER}"}
    account.asg.delete_tags(Tags=[owned])
    with pytest.raises(ClientError, match=rf"AccessDenied.*:autoScalingGroupName/{asg} because no identity"):
        mine.set_desired_capacity(AutoScalingGroupName=asg, DesiredCapacity=0)
    with pytest.raises(ClientError, match="Instance Id not found"):
        mine.terminate_instance_in_auto_scaling_group(InstanceId="i-1", ShouldDecrementDesiredCapacity=True)


def test_tags_of_the_request_decide_and_those_of_others_stay(account: Account) -> None:
    eks = account.client("eks", documented(account, "eks-full.json"))
    with pytest.raises(ClientError, match=f"perform: eks:CreateNodegroup on resource: .*:cluster/{CLUSTER} "):
        eks.create_nodegroup(**account.node_group_request("untagged"))
    with pytest.raises(ClientError, match=r"perform: eks:TagResource on resource: .*/other/"):
        eks.create_nodegroup(**account.node_group_request("other", tags=POOL_TAG))
    eks.create_nodegroup(**account.node_group_request("train-tagged", tags=POOL_TAG))
    account.node_group("web")
    with pytest.raises(ClientError, match="perform: eks:DeleteNodegroup"):
        eks.delete_nodegroup(clusterName=CLUSTER, nodegroupName="web")


def test_a_group_of_others_is_not_adopted_by_the_pools_tag(account: Account) -> None:
    account.node_group("web")
    eks = account.client("eks", documented(account, "eks-full.json"))
    arn = eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName="web")["nodegroup"]["nodegroupArn"]
    with pytest.raises(ClientError, match="perform: eks:TagResource"):
        eks.tag_resource(resourceArn=arn, tags=POOL_TAG)


def test_groups_of_the_pool_are_sized_and_tagged_with_some_keys(account: Account) -> None:
    mine, other = account.node_group("train-a"), account.node_group("web")
    asg = account.client("autoscaling", documented(account, "eks-full.json", TAG="team"))

    def tags(group: str, *keys: str) -> list[dict[str, Any]]:
        usual = {"ResourceId": group, "ResourceType": "auto-scaling-group", "Value": "x", "PropagateAtLaunch": False}
        return [{**usual, "Key": key} for key in keys]

    allowed = ["airflow-gpu-provider/launch-suspended", "k8s.io/cluster-autoscaler/enabled", "team"]
    asg.create_or_update_tags(Tags=tags(mine, *allowed))
    asg.delete_tags(Tags=tags(mine, *allowed))
    asg.put_scheduled_update_group_action(AutoScalingGroupName=mine, **off_tomorrow(account))
    refused: list[Callable[[], Any]] = [
        lambda: asg.create_or_update_tags(Tags=tags(other, allowed[0])),
        lambda: asg.set_desired_capacity(AutoScalingGroupName=other, DesiredCapacity=1),
        lambda: asg.put_scheduled_update_group_action(AutoScalingGroupName=other, **off_tomorrow(account)),
    ]
    for key in ("costs", "Name", "airflow-gpu-provider/x"):
        refused.append(partial(asg.create_or_update_tags, Tags=tags(mine, allowed[0], key)))
        refused.append(partial(asg.delete_tags, Tags=tags(mine, key)))
    for limit in ({"MinSize": 9}, {"MaxSize": 99}):
        action = {"AutoScalingGroupName": mine, **off_tomorrow(account), **limit}
        refused.append(partial(asg.put_scheduled_update_group_action, **action))
    for call in refused:
        with pytest.raises(ClientError, match="AccessDenied"):
            call()


TEMPLATE_FILES = ("eks-full.json", "eks-launch-template.json", "eks-owned-templates.json")


@pytest.mark.parametrize(
    "override",
    [
        {"InstanceType": "p5.48xlarge"},
        {"UserData": "IyEvYmluL3No"},
        {"ImageId": "ami-12345678"},
        {"IamInstanceProfile": {"Name": "admin"}},
        {"BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 500}}]},
        {"NetworkInterfaces": [{"DeviceIndex": 0, "AssociatePublicIpAddress": True}]},
    ],
    ids=lambda each: next(iter(each)),
)
def test_what_a_template_has_is_not_overridden(account: Account, override: Mapping[str, Any]) -> None:
    data = {"ImageId": "ami-1", "InstanceType": "g6.xlarge"}
    template = account.ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data)["LaunchTemplate"]
    named = {"LaunchTemplate": {"LaunchTemplateId": template["LaunchTemplateId"]}, "MinCount": 1, "MaxCount": 1}
    ec2 = account.client("ec2", documented(account, *TEMPLATE_FILES, LAUNCH_TEMPLATE=template["LaunchTemplateId"]))
    for request in ({**named, **override}, {**data, "MinCount": 1, "MaxCount": 1}):
        with pytest.raises(ClientError, match=r"UnauthorizedOperation.*perform: ec2:RunInstances"):
            ec2.run_instances(**request)
    ec2.run_instances(**named)


def test_only_the_pools_templates_and_the_one_that_is_named_are_launched(account: Account) -> None:
    def template(name: str, pool: str = "") -> str:
        tags = [{"Key": "airflow-gpu-provider/pool", "Value": pool}]
        made = account.ec2.create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData={"EbsOptimized": True},
            TagSpecifications=[{"ResourceType": "launch-template", "Tags": tags}] if pool else [],
        )
        return str(made["LaunchTemplate"]["LaunchTemplateId"])

    named, ours, others = template("gpu"), template("ours", "train"), (template("web"), template("theirs", "other"))
    eks = account.client("eks", documented(account, *TEMPLATE_FILES, LAUNCH_TEMPLATE=named))

    def group(name: str, of: str) -> None:
        eks.create_nodegroup(**account.node_group_request(name, launchTemplate={"id": of}, tags=POOL_TAG))

    for each in others:
        with pytest.raises(ClientError, match="not authorized to launch instances with this launch template"):
            group("train-a", each)
    group("train-a", named)
    group("train-b", ours)


@pytest.mark.parametrize(
    ("missing", "code", "says"),
    [
        ("iam:PassRole", "AccessDeniedException", f"perform: iam:PassRole on resource: .*:role/{CLUSTER}-node "),
        ("iam:GetRole", "InvalidRequestException", "missing permissions for 'iam:GetRole'"),
        ("iam:CreateServiceLinkedRole", "AccessDeniedException", "perform: iam:CreateServiceLinkedRole"),
        ("ec2:RunInstances", "InvalidRequestException", "not authorized to launch instances with this launch template"),
    ],
)
def test_what_eks_checks_in_the_name_of_who_makes_a_group(account: Account, missing: str, code: str, says: str) -> None:
    """The service-linked role is made for the account's first group alone."""
    files = ("eks-full.json", "eks-launch-template.json")
    template = account.ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData={"EbsOptimized": True})
    used = {"launchTemplate": {"id": template["LaunchTemplate"]["LaunchTemplateId"]}, "tags": POOL_TAG}
    named = {"LAUNCH_TEMPLATE": template["LaunchTemplate"]["LaunchTemplateId"]}
    eks = account.client("eks", documented(account, *files, without=[missing], **named))
    with pytest.raises(ClientError, match=says) as refused:
        eks.create_nodegroup(**account.node_group_request("train-a", **used))
    assert refused.value.response["Error"]["Code"] == code

    whole = account.cloud.add_identity("whole", policy=documented_roles.policy(*files, **PLACE, **named))
    account.client("eks", whole).create_nodegroup(**account.node_group_request("train-a", **used))
    if missing == "iam:CreateServiceLinkedRole":
        eks.create_nodegroup(**account.node_group_request("train-b", **used))


@pytest.mark.against_schema  # a call that the sandbox does not answer
def test_what_the_sandbox_cannot_tell_is_an_error_and_no_guess(account: Account) -> None:
    odd = statement(Action="autoscaling:SetDesiredCapacity", Condition={"Null": {"autoscaling:MaxSize": "true"}})
    mine = account.client("autoscaling", user(account, odd))
    with pytest.raises(ClientError, match="SetDesiredCapacity has no condition key autoscaling:MaxSize"):
        mine.set_desired_capacity(AutoScalingGroupName=account.node_group("train"), DesiredCapacity=0)
    keys = account.cloud.add_identity("keys", policy=statement(Action="ec2:*"))
    with pytest.raises(ClientError, match="does not know the resources of ec2:DescribeKeyPairs"):
        account.client("ec2", keys).describe_key_pairs()
