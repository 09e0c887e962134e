"""Pools with network="efa": interfaces and a placement group come and go with the node group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from airflow_gpu_provider.clouds.aws import vpc_cni
from airflow_gpu_provider.clouds.aws.spec import CLUSTER_TAG, GROUP_TAG, POOL_TAG
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.errors import PoolDrift, PoolSpecError
from gpu_sandbox.sandbox import Sandbox
from tests.airflow.chaos.clouds import Eks, Made
from tests.sandbox import documented_roles, role_record
from tests.sandbox.aws_account import CLUSTER, END, LAUNCH, TIMINGS, Account
from tests.sandbox.test_owned_templates import account as account
from tests.sandbox.test_owned_templates import killed_at, templates
from tests.sandbox.test_platform_eks import Pools, connect
from tests.sandbox.test_platform_eks import pools as pools

GROUP = "train-a-p4d-24xlarge"
NAME = f"{CLUSTER}/{GROUP}"
EFA: dict[str, Any] = {"instance_types": ["p4d.24xlarge"], "network": "efa"}


CHECK = vpc_cni.check


@pytest.fixture(autouse=True)
def no_vpc_cni(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the account's cluster is no API server to ask for it: tests/unit/clouds/aws/test_vpc_cni.py."""
    monkeypatch.setattr(vpc_cni, "check", lambda *_: ())


def placement_groups(account: Account) -> list[str]:
    return [each["GroupName"] for each in account.ec2.describe_placement_groups()["PlacementGroups"]]


def test_nodes_have_their_type_s_interfaces_in_a_placement_group(account: Account, pools: Pools) -> None:
    plan = pools.platform(**EFA).plan(1)
    assert ", Placement.GroupName " in plan.changes[0].detail
    assert "NetworkInterfaces 1 interface in sg-" in plan.changes[0].detail
    assert ", 4 efa-only in sg-" in plan.changes[0].detail
    platform = pools.ready(**EFA, max_nodes=2)
    assert platform.plan(0).is_empty

    (version,) = account.ec2.describe_launch_template_versions(LaunchTemplateName=NAME)["LaunchTemplateVersions"]
    data = version["LaunchTemplateData"]
    assert [each["InterfaceType"] for each in data["NetworkInterfaces"]] == ["interface", *["efa-only"] * 4]
    (group,) = account.ec2.describe_placement_groups(GroupNames=[NAME])["PlacementGroups"]
    assert group["Strategy"] == "cluster"
    tags = {tag["Key"]: tag["Value"] for tag in group["Tags"]}
    assert tags == {POOL_TAG: "train", CLUSTER_TAG: CLUSTER, GROUP_TAG: GROUP}

    platform.grow({GROUP: 2})
    account.advance(LAUNCH)
    assert len(platform.observe()[0].live) == 2
    with pytest.raises(ClientError, match="is in use and may not be deleted"):
        account.ec2.delete_placement_group(GroupName=NAME)


def test_all_of_it_goes_with_the_pool(account: Account, pools: Pools) -> None:
    def interfaces() -> int:
        found = account.ec2.describe_network_interfaces()["NetworkInterfaces"]
        return len([each for each in found if each.get("Attachment")])

    platform = pools.ready(**EFA)
    platform.grow({GROUP: 1})
    account.advance(LAUNCH)
    assert interfaces() == 5
    platform.delete(print)
    account.advance(TIMINGS.nodegroup_delete + END)
    assert (platform.observe(), interfaces()) == ((), 0)
    pools.platform().delete_remains(print)  # whatever the spec says by then
    assert (templates(account), placement_groups(account)) == ({}, [])


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_process_that_was_killed_before_the_group_leaves_nothing_for_good(
    account: Account, pools: Pools, goes_on: bool
) -> None:
    platform = pools.platform(**EFA)
    plan = platform.plan(1)
    with killed_at("create"):
        platform.apply(plan, print)
    assert placement_groups(account) == [NAME]
    if goes_on:
        pools.ready(**EFA)
        assert (templates(account), placement_groups(account)) == ({NAME: 1}, [NAME])
    else:
        pools.platform(**EFA).delete_remains(print)
        assert (templates(account), placement_groups(account)) == ({}, [])


def test_the_chaos_matrix_counts_what_a_killed_process_left_and_tells_it_from_what_is_in_use(
    account: Account, pools: Pools
) -> None:
    of_cloud = SimpleNamespace(aws=account.cloud, region=account.cloud.region, cluster_name=CLUSTER)
    look = Eks(cast("Sandbox", of_cloud))
    platform = pools.platform(**EFA)
    plan = platform.plan(1)
    with killed_at("create"):
        platform.apply(plan, print)
    assert look.made("train") == Made(templates=1, placement_groups=1)
    assert len(look.strays()) == 2
    platform = pools.ready(**EFA)
    platform.grow({GROUP: 1})
    account.advance(LAUNCH)
    assert look.made("train") == Made(groups=1, templates=1, placement_groups=1, interfaces=5)
    assert look.strays() == []


def test_a_stock_out_near_other_machines_leaves_none_elsewhere_in_the_zone(account: Account, pools: Pools) -> None:
    """A placement group makes one likelier; a machine that is not in it would train over a slower way, unsaid."""
    account.stock_out(placed=True)
    platform = pools.ready(**EFA)
    plain = pools.ready(name="plain", instance_types=["p4d.24xlarge"])
    platform.grow({GROUP: 1})
    plain.grow({GROUP.replace("train", "plain"): 1})
    account.advance(LAUNCH)
    (group,) = platform.observe()
    assert (group.live, "sufficient p4d.24xlarge capacity" in str(group.launch_failure)) == ((), True)
    assert len(plain.observe()[0].live) == 1


def test_somebody_else_s_placement_group_of_that_name_is_left_alone(account: Account, pools: Pools) -> None:
    account.ec2.create_placement_group(GroupName=NAME, Strategy="spread")
    platform = pools.platform(**EFA)
    with pytest.raises(PoolDrift, match="did not make for pool train"):
        platform.apply(platform.plan(1), print)
    platform.delete_remains(print)
    assert placement_groups(account) == [NAME]


def test_a_security_group_that_stops_efa_is_told_by_day(account: Account, pools: Pools) -> None:
    (group,) = account.ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["eks-cluster-sg-*"]}])[
        "SecurityGroups"
    ]
    itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group["GroupId"]}]}]
    account.ec2.revoke_security_group_egress(GroupId=group["GroupId"], IpPermissions=itself)
    with pytest.raises(PoolSpecError, match="does not let all traffic out to itself, and EFA needs that"):
        pools.platform(**EFA).plan(1)


def test_a_type_that_the_region_lacks_is_left_out(account: Account, pools: Pools) -> None:
    """EC2's DescribeInstanceTypes refuses its name (scylladb/scylla-cluster-tests#12419)."""
    for zone in "abcd":
        account.cloud.set_offered("p5en.48xlarge", f"us-west-2{zone}", offered=False)
    with pytest.raises(ClientError, match="InvalidInstanceType"):
        account.ec2.describe_instance_types(InstanceTypes=["p5en.48xlarge"])
    plan = pools.platform(**{**EFA, "instance_types": ["p5en.48xlarge", "p4d.24xlarge"]}).plan(1)
    assert [change.group for change in plan.changes] == [GROUP]
    assert "p5en.48xlarge is left out in us-west-2a: EC2 does not offer it there" in plan.notes
    with pytest.raises(PoolSpecError, match=r"EC2 offers p5en\.48xlarge in none of us-west-2a"):
        pools.platform(**{**EFA, "instance_types": ["p5en.48xlarge"]}).plan(1)


def test_an_old_vpc_cni_is_told_by_day(account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"containers": [{"image": "602401143452.dkr.ecr.us-west-2.amazonaws.com/amazon-k8s-cni:v1.16.0-eksbuild.1"}]}
    monkeypatch.setattr(vpc_cni, "check", CHECK)
    monkeypatch.setattr(vpc_cni, "list_items", lambda *_, **__: [{"spec": {"template": {"spec": old}}}])
    monkeypatch.setattr(ClusterAccess, "api_client", lambda _: None)
    with pytest.raises(PoolSpecError, match=r"the VPC CNI knows since 1\.18\.5, and cluster k8s-ml has 1\.16\.0"):
        pools.platform(**EFA).plan(1)
    assert placement_groups(account) == []


def test_a_pool_that_no_longer_asks_for_it_has_plain_nodes_again(account: Account, pools: Pools) -> None:
    pools.ready(**EFA)
    platform = pools.platform(instance_types=["p4d.24xlarge"])
    details = [change.detail for change in platform.plan(0).changes if change.action == "upgrade"]
    assert len(details) == 1
    assert f"Placement.GroupName is {NAME}, wanted None" in details[0]
    assert ", 4 efa-only in sg-" in details[0]


def test_it_needs_no_more_than_the_documented_permissions(
    request: pytest.FixtureRequest, account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ("eks-full.json", "eks-launch-template.json", "eks-owned-templates.json", "eks-efa.json")
    key = account.cloud.add_identity("airflow", policy=documented_roles.policy(*files, **account.placeholders))
    connect(monkeypatch, account, login=key.access_key_id, password=key.secret_access_key)
    platform = pools.ready(**EFA)
    platform.delete(print)
    account.advance(TIMINGS.nodegroup_delete)
    platform.delete_remains(print)
    assert placement_groups(account) == []
    assert not account.cloud.refused(key.arn)
    role_record.hold(files[3], request.node.nodeid, account.cloud.policy_uses(key.arn))
