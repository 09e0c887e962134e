"""Launch templates of this package's: made with a group, changed at size 0, gone with it, whatever is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_gpu_provider.clouds.aws.node_groups import NodeGroups
from airflow_gpu_provider.clouds.aws.owned_platform import OwnedEksPlatform
from airflow_gpu_provider.clouds.aws.spec import CLUSTER_TAG, GROUP_TAG, POOL_TAG
from airflow_gpu_provider.errors import GroupFailed, PermissionDenied, PoolDrift
from tests.sandbox import documented_roles, role_record
from tests.sandbox.aws_account import CLUSTER, END, LAUNCH, TIMINGS, Account
from tests.sandbox.test_platform_eks import GROUP_A, Pools, connect
from tests.sandbox.test_platform_eks import pools as pools

BOTTLEROCKET = {"ami_type": "BOTTLEROCKET_x86_64_NVIDIA", "disk": {"size": 200}}
FAST = {"disk": {"throughput": 600}}


class Killed(BaseException):
    """A process that ends just there."""


@pytest.fixture
def account() -> Iterator[Account]:
    account = Account.fresh()
    yield account
    account.close()


def templates(account: Account) -> dict[str, int]:
    """The templates that EKS did not make itself, with their newest versions."""
    found = account.ec2.describe_launch_templates()["LaunchTemplates"]
    return {
        each["LaunchTemplateName"]: each["LatestVersionNumber"] for each in found if "/" in each["LaunchTemplateName"]
    }


def upgraded(account: Account, platform: OwnedEksPlatform) -> list[str]:
    """Bring the groups to the spec as Ensure does; return what the plan says of it before. Afterwards it is empty."""
    plan = platform.plan(0)
    platform.apply(plan, print)
    platform.upgrade(print, lambda: None)
    account.advance(TIMINGS.nodegroup_version_update)
    assert OwnedEksPlatform(platform._pool, "prod/nightly_training").plan(0).is_empty
    return [change.detail for change in plan.changes if change.action == "upgrade"]


@contextmanager
def killed_at(method: str) -> Iterator[None]:
    """A process that is killed before its next call of that kind."""

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeGroups, method, kill)
        with pytest.raises(Killed):
            yield


def test_a_group_is_made_from_it(account: Account, pools: Pools) -> None:
    plan = pools.platform(**BOTTLEROCKET, tags={"team": "ml"}).plan(1)
    assert "created empty, with a launch template: /dev/xvdb DeleteOnTermination True, " in plan.changes[0].detail
    assert not [note for note in plan.notes if "20 GiB" in note]
    platform = pools.ready(**BOTTLEROCKET, tags={"team": "ml"})
    assert platform.plan(0).is_empty

    (template,) = [
        t for t in account.ec2.describe_launch_templates()["LaunchTemplates"] if "/" in t["LaunchTemplateName"]
    ]
    name = f"{CLUSTER}/{GROUP_A}"
    assert template["LaunchTemplateName"] == name
    tags = {tag["Key"]: tag["Value"] for tag in template["Tags"]}
    assert tags == {POOL_TAG: "train", CLUSTER_TAG: CLUSTER, GROUP_TAG: GROUP_A, "team": "ml"}
    expected = {"id": template["LaunchTemplateId"], "name": name, "version": "1"}
    assert account.describe(GROUP_A)["launchTemplate"] == expected
    platform.grow({GROUP_A: 1})
    account.advance(LAUNCH)
    assert [node.disk_gib for node in account.events.of("launched")] == [200]


def test_a_fast_start_is_by_the_types_disks(account: Account, pools: Pools) -> None:
    types = ["g6.xlarge", "g6.4xlarge", "p3.2xlarge"]
    platform = pools.ready(instance_types=types, fast_start=True)
    assert platform.plan(0).is_empty
    platform.grow({group.name: 1 for group in platform.observe()})
    account.advance(LAUNCH)
    launched = account.events.of("launched")
    assert {node.instance_type: node.disk_mib_per_second for node in launched} == dict.fromkeys(types, 600)
    for group in platform.observe():
        platform.release(group.live)
    account.advance(END)
    *on_disks, on_volume = sorted(upgraded(account, pools.platform(instance_types=types)), reverse=True)
    wanted = "UserData spec.featureGates.FastImagePull is True, wanted None"
    assert [wanted in each for each in on_disks] == [True, True]
    assert on_volume == "/dev/xvda Throughput is 600, wanted None"


def test_without_need_there_is_none(account: Account, pools: Pools) -> None:
    pools.ready()
    assert templates(account) == {}
    assert account.describe(GROUP_A)["diskSize"] == 100


def test_it_changes_while_there_is_no_machine(account: Account, pools: Pools) -> None:
    platform = pools.ready(disk={"size": 150, "throughput": 600})
    platform.grow({GROUP_A: 1})
    account.advance(LAUNCH)
    changed = pools.platform(disk={"size": 300, "throughput": 700})
    plan = changed.plan(1)
    said = "/dev/xvda Throughput is 600, wanted 700; /dev/xvda VolumeSize is 150, wanted 300"
    assert f"{GROUP_A} has machines, and stays as it is until it has none: {said}" in plan.notes
    changed.apply(plan, print)
    assert changed.upgrade(print, lambda: None) == ()
    assert templates(account) == {f"{CLUSTER}/{GROUP_A}": 1}

    platform.release(platform.observe()[0].live)
    account.advance(END)
    assert upgraded(account, changed) == [said]
    assert account.describe(GROUP_A)["launchTemplate"]["version"] == "2"
    changed.grow({GROUP_A: 1})
    account.advance(LAUNCH)
    assert [node.disk_gib for node in account.events.of("launched")] == [150, 300]


def test_a_group_that_needs_it_no_longer_keeps_it_and_is_as_any_other(account: Account, pools: Pools) -> None:
    pools.ready(**FAST)
    assert upgraded(account, pools.platform()) == ["/dev/xvda Throughput is 600, wanted None"]


def test_it_goes_with_its_group(account: Account, pools: Pools) -> None:
    platform = pools.ready(zones=["us-west-2a", "us-west-2b"], **FAST)
    assert len(templates(account)) == 2
    platform.delete(print)
    platform.delete_remains(print)
    assert len(templates(account)) == 2, "EKS still takes the groups away"
    account.advance(TIMINGS.nodegroup_delete)
    assert platform.observe() == ()
    pools.platform().delete_remains(print)  # whatever the spec says by then
    assert templates(account) == {}


def test_one_whose_group_was_never_made_is_used_by_the_next_try(account: Account, pools: Pools) -> None:
    platform = pools.platform(**FAST)
    plan = platform.plan(1)
    with killed_at("create"):
        platform.apply(plan, print)
    assert templates(account) == {f"{CLUSTER}/{GROUP_A}": 1}
    pools.ready(**FAST)
    assert templates(account) == {f"{CLUSTER}/{GROUP_A}": 1}
    assert account.describe(GROUP_A)["launchTemplate"]["version"] == "1"


def test_or_goes_with_the_pool(account: Account, pools: Pools) -> None:
    platform = pools.platform(**FAST)
    plan = platform.plan(1)
    with killed_at("create"):
        platform.apply(plan, print)
    pools.platform(**FAST).delete_remains(print)
    assert templates(account) == {}


def test_a_version_that_no_group_has_yet_is_used_by_the_next_try(account: Account, pools: Pools) -> None:
    pools.ready(**FAST)
    with killed_at("upgrade"):
        pools.platform(disk={"throughput": 700}).upgrade(print, lambda: None)
    assert templates(account) == {f"{CLUSTER}/{GROUP_A}": 2}
    upgraded(account, pools.platform(disk={"throughput": 700}))
    assert templates(account) == {f"{CLUSTER}/{GROUP_A}": 2}


def test_a_group_that_failed_by_it_is_recreated_from_what_the_spec_says_now(account: Account, pools: Pools) -> None:
    """EKS updates no group that is DEGRADED, and it stays so at size 0 (aws/containers-roadmap#2326)."""
    platform = pools.ready(**FAST)
    account.stock_out()
    platform.grow({GROUP_A: 1})
    account.advance(hours=1)
    platform.shrink_unfilled([GROUP_A])
    account.advance(LAUNCH)
    assert account.describe(GROUP_A)["status"] == "DEGRADED"
    account.faults.clear()
    changed = pools.platform(disk={"throughput": 700})
    (change,) = [each for each in changed.plan(0).changes if "recreated" in each.detail]
    assert change.detail.endswith("; /dev/xvda Throughput is 600, wanted 700: recreated")
    with pytest.raises(Exception, match="no usable node group"):
        changed.apply(changed.plan(0), print)
    account.advance(TIMINGS.nodegroup_delete)
    pools.ready(disk={"throughput": 700})
    assert account.describe(GROUP_A)["launchTemplate"]["version"] == "2"


def test_a_group_whose_template_somebody_deleted_is_recreated(account: Account, pools: Pools) -> None:
    platform = pools.ready(**FAST)
    platform.grow({GROUP_A: 1})
    account.advance(LAUNCH)
    name = f"{CLUSTER}/{GROUP_A}"
    account.ec2.delete_launch_template(LaunchTemplateName=name)
    lacks = f"launch template is gone, wanted {name}"
    (note,) = [note for note in platform.plan(1).notes if lacks in note]
    assert note.startswith(f"{GROUP_A} has machines, and stays as it is until it has none: {lacks}. EKS takes no other")
    assert note.endswith("when its runs have ended, the next one recreates it")
    assert platform.upgrade(print, lambda: None) == ()
    assert account.describe(GROUP_A)["status"] == "ACTIVE"

    platform.release(platform.observe()[0].live)
    account.advance(END)
    (change,) = platform.plan(1).changes
    detail = f"{lacks}; EKS takes no other for a group that is there: recreated"
    assert (change.action, change.detail) == ("upgrade", detail)
    platform.apply(platform.plan(1), print)
    with pytest.raises(GroupFailed, match=f"{GROUP_A}: its launch template {name} is gone"):
        platform.upgrade(print, lambda: None)
    account.advance(TIMINGS.nodegroup_delete)
    assert pools.ready(**FAST).plan(0).is_empty
    assert templates(account) == {name: 1}
    assert account.describe(GROUP_A)["launchTemplate"]["name"] == name


def test_of_several_groups_the_others_serve_the_run_meanwhile(account: Account, pools: Pools) -> None:
    platform = pools.ready(zones=["us-west-2a", "us-west-2b"], **FAST)
    account.ec2.delete_launch_template(LaunchTemplateName=f"{CLUSTER}/{GROUP_A}")
    assert platform.upgrade(print, lambda: None) == ()
    assert {group.status for group in platform.observe()} == {"deleting", "active"}


def test_a_group_made_without_one_is_drift(account: Account, pools: Pools) -> None:
    pools.ready()
    with pytest.raises(PoolDrift, match="launch_template is None, wanted one of its own, for disk"):
        pools.platform(**FAST).plan(1)


def test_somebody_else_s_template_of_that_name_is_left_alone(account: Account, pools: Pools) -> None:
    data = {"EbsOptimized": True}
    account.ec2.create_launch_template(LaunchTemplateName=f"{CLUSTER}/{GROUP_A}", LaunchTemplateData=data)
    platform = pools.platform(**FAST)
    with pytest.raises(PoolDrift, match="did not make for pool train"):
        platform.apply(platform.plan(1), print)
    platform.delete_remains(print)
    assert templates(account) == {f"{CLUSTER}/{GROUP_A}": 1}


def test_who_may_not_read_its_versions_goes_on_with_what_there_is(
    account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools.ready(**FAST)
    files, lacking = ("eks-full.json", "eks-owned-templates.json"), ["ec2:DescribeLaunchTemplateVersions"]
    policy = documented_roles.policy(*files, without=lacking, **account.placeholders)
    key = account.cloud.add_identity("airflow", policy=policy)
    connect(monkeypatch, account, login=key.access_key_id, password=key.secret_access_key)
    plan = pools.platform(disk={"throughput": 700}).plan(0)
    assert not [change for change in plan.changes if change.action == "upgrade"]
    assert plan.unread == ("launch templates are not compared: ec2:DescribeLaunchTemplateVersions is not allowed",)


def test_a_whole_life_needs_no_more_than_the_documented_permissions(
    request: pytest.FixtureRequest, account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ("eks-full.json", "eks-launch-template.json", "eks-owned-templates.json")

    def act_as(name: str, *of: str) -> str:
        key = account.cloud.add_identity(name, policy=documented_roles.policy(*of, **account.placeholders))
        connect(monkeypatch, account, login=key.access_key_id, password=key.secret_access_key)
        return key.arn

    act_as("without", *files[:2])
    platform = pools.platform(**FAST)
    with pytest.raises(PermissionDenied, match="ec2:CreateLaunchTemplate"):
        platform.apply(platform.plan(1), print)
    arn = act_as("with", *files)
    pools.ready(**FAST)
    upgraded(account, pools.platform(disk={"throughput": 700}))
    platform = pools.platform()
    platform.delete(print)
    account.advance(TIMINGS.nodegroup_delete)
    platform.delete_remains(print)
    assert templates(account) == {}
    assert not account.cloud.refused(arn)
    role_record.hold(files[2], request.node.nodeid, account.cloud.policy_uses(arn))


def test_a_template_of_the_users_own_is_not_passed_over_for_it(account: Account, pools: Pools) -> None:
    pools.ready(**FAST)
    with pytest.raises(PoolDrift, match=f"launch_template is {CLUSTER}/{GROUP_A}, wanted my-own"):
        pools.platform(launch_template="my-own").plan(1)
