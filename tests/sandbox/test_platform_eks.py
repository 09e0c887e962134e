"""EksPlatform against the sandbox's AWS: every question it answers, and what it does when things go wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.iam.models import iam_backends

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws.autoscaler_tags import wanted_tags
from airflow_gpu_provider.clouds.aws.autoscaling import SUSPENDED_TAG, SWITCH
from airflow_gpu_provider.clouds.aws.owned_platform import OwnedEksPlatform
from airflow_gpu_provider.clouds.aws.spec import OWNER_TAG, POOL_TAG, ZONE_TAG
from airflow_gpu_provider.clouds.base import Group, Plan, platform_for
from airflow_gpu_provider.cluster.api.access import Credentials
from airflow_gpu_provider.errors import (
    CloudError,
    ClusterNotFound,
    ConnectionNotFound,
    CredentialsError,
    GroupFailed,
    GroupNotFound,
    PermissionDenied,
    PoolDrift,
    PoolSpecError,
    QuotaExceeded,
    RequestRejected,
)
from tests.sandbox import documented_roles, role_record
from tests.sandbox.aws_account import CLUSTER, END, LAUNCH, TIMINGS, Account

A, B = "us-west-2a", "us-west-2b"
GROUP_A, GROUP_B = "train-a-g6-xlarge", "train-b-g6-xlarge"
OWNER = "prod/nightly_training"
TAKES = {"create": TIMINGS.nodegroup_create, "update": TIMINGS.nodegroup_update}


class Pools:
    """Makes pools of the account's cluster, their platforms, and groups that are ready."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def spec(self, **changes: Any) -> EksGpuPool:
        fields: dict[str, Any] = {
            "name": "train",
            "cluster_name": CLUSTER,
            "region": "us-west-2",
            "instance_types": ["g6.xlarge"],
            "zones": [A],
            "subnets": list(self._account.network.subnets.values()),
            "max_nodes": 3,
            "node_role": self._account.network.node_role_arn,
        }
        return EksGpuPool(**(fields | changes))

    def platform(self, owner: str = OWNER, **changes: Any) -> OwnedEksPlatform:
        return OwnedEksPlatform(self.spec(**changes), owner)

    def ready(self, owner: str = OWNER, **changes: Any) -> OwnedEksPlatform:
        """A platform whose groups are ACTIVE, at size 0."""
        platform = self.platform(owner, **changes)
        self.applied(platform)
        return platform

    def applied(self, platform: OwnedEksPlatform) -> Plan:
        plan = platform.plan(1)
        platform.apply(plan, print)
        self._account.advance(max((TAKES[change.action] for change in plan.changes), default=0))
        assert {group.status for group in platform.observe()} == {"active"}
        return plan

    def grown(self, size: int, **changes: Any) -> OwnedEksPlatform:
        platform = self.ready(**changes)
        platform.grow({GROUP_A: size})
        self._account.advance(LAUNCH)
        assert states(platform) == ["running"] * size
        return platform


@pytest.fixture
def account() -> Iterator[Account]:
    account = Account.fresh()
    yield account
    account.close()


@pytest.fixture
def pools(account: Account, monkeypatch: pytest.MonkeyPatch) -> Pools:
    """The pools' connection is aws_default; nothing else in the environment leads to the account."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    connect(monkeypatch, account)
    return Pools(account)


def connect(monkeypatch: pytest.MonkeyPatch, account: Account, *, conn_id: str = "aws_default", **changes: Any) -> None:
    credentials = {name: changes.pop(name) for name in ("login", "password") if name in changes}
    connection = account.connection(**changes) | credentials
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))


def states(platform: OwnedEksPlatform) -> list[str]:
    """Those of the first group's machines."""
    return [machine.state for machine in platform.observe()[0].machines]


def launch_template_of_nodes(account: Account) -> dict[str, Any]:
    """Somebody's launch template with a security group of its own; how their node group names it."""
    group = account.ec2.create_security_group(GroupName="nodes", Description="-", VpcId=account.network.vpc_id)[
        "GroupId"
    ]
    data = {"SecurityGroupIds": [group], "InstanceType": "m6i.large"}
    made = account.ec2.create_launch_template(LaunchTemplateName="nodes", LaunchTemplateData=data)["LaunchTemplate"]
    reference = {"id": made["LaunchTemplateId"], "version": "1"}
    return {"launchTemplate": reference, "instanceTypes": [], "amiType": "AL2023_x86_64_STANDARD"}


def security_groups_of(account: Account, of_nodes: dict[str, Any]) -> list[str]:
    template_id = of_nodes["launchTemplate"]["id"]
    (found,) = account.ec2.describe_launch_template_versions(LaunchTemplateId=template_id)["LaunchTemplateVersions"]
    return list(found["LaunchTemplateData"]["SecurityGroupIds"])


def tags_of(account: Account, name: str) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in account.group(account.asg_of(name))["Tags"]}


def suspended(account: Account, asg: str) -> list[str]:
    return [process["ProcessName"] for process in account.group(asg)["SuspendedProcesses"]]


def marks(account: Account, asg: str) -> list[str]:
    return [tag["Value"] for tag in account.group(asg)["Tags"] if tag["Key"] == SUSPENDED_TAG]


class TestPlanAndApply:
    def test_creates_one_empty_group_for_each_zone(self, account: Account, pools: Pools) -> None:
        tags = {"team": "ml"}
        platform = pools.platform(zones=[B, A], node_labels={"tier": "gpu"}, tags=tags, max_nodes=2)

        plan = pools.applied(platform)

        assert [(change.action, change.group) for change in plan.changes] == [("create", GROUP_B), ("create", GROUP_A)]
        assert plan.grow == (f"{GROUP_B} 0->1 (g6.xlarge on-demand in us-west-2b first)",)
        created = account.describe(GROUP_A)
        assert created["scalingConfig"] == {"minSize": 0, "maxSize": 2, "desiredSize": 0}
        assert created["subnets"] == [account.network.subnets[A]]
        assert created["labels"] == {"tier": "gpu", "airflow-gpu-provider/pool": "train"}
        assert created["taints"] == [{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}]
        assert created["instanceTypes"] == ["g6.xlarge"]
        assert created["capacityType"] == "ON_DEMAND"
        assert created["amiType"] == "AL2023_x86_64_NVIDIA"
        assert created["diskSize"] == 100
        assert created["nodeRole"] == account.network.node_role_arn
        expected = {"team": "ml", POOL_TAG: "train", OWNER_TAG: OWNER, ZONE_TAG: A}
        assert expected.items() <= created["tags"].items()
        assert tags == {"team": "ml"}

    def test_a_second_plan_changes_nothing(self, pools: Pools) -> None:
        platform = pools.grown(1, zones=[A, B])
        plan = pools.platform(zones=[A, B]).plan(1)
        assert plan.is_empty
        assert plan.lines() == ["Plan for train: no changes."]
        assert platform.plan(3).grow == (f"{GROUP_A} 1->3 (g6.xlarge on-demand in us-west-2a first)",)

    def test_candidates_follow_market_then_type_then_zone(self, pools: Pools) -> None:
        platform = pools.ready(
            zones=[B, A], instance_types=["g6.xlarge", "g5.xlarge"], capacity_types=["SPOT", "ON_DEMAND"]
        )
        wanted = [candidate.group for candidate in platform.candidates()]
        assert wanted[:3] == ["train-b-g6-xlarge-spot", "train-a-g6-xlarge-spot", "train-b-g5-xlarge-spot"]
        assert [group.name for group in platform.observe()] == wanted
        assert [group.candidate for group in platform.observe()] == list(platform.candidates())

    def test_planning_writes_nothing(self, account: Account, pools: Pools) -> None:
        pools.platform().plan(1)
        assert not [call for call in account.cloud.calls if not call.partition(":")[2].startswith(("Describe", "List"))]

    def test_an_image_that_eks_does_not_have_for_the_cluster_is_refused_first(
        self, account: Account, pools: Pools
    ) -> None:
        with pytest.raises(PoolSpecError, match=r"Kubernetes 1\.36, .* AL2_x86_64_GPU for 1\.32 and earlier only"):
            pools.platform(ami_type="AL2_x86_64_GPU").plan(1)
        assert account.node_groups() == []

    def test_a_group_that_somebody_else_creates_meanwhile_is_fine(self, pools: Pools) -> None:
        platform, other, said = pools.platform(), pools.platform(), []
        plan = platform.plan(1)
        other.apply(plan, print)
        platform._eks.groups.create(other._specs(other.candidates(), {})[0], said.append)
        assert said == [f"{GROUP_A} exists already, or is being created by another run"]

    def test_a_spot_pool_with_a_launch_template(self, account: Account, pools: Pools) -> None:
        account.ec2.create_launch_template(LaunchTemplateName="gpu-nodes", LaunchTemplateData={"UserData": ""})
        spec = {"launch_template": "gpu-nodes:1", "capacity_types": ["SPOT"]}
        pools.ready(**spec)
        assert account.describe("train-a-g6-xlarge-spot")["launchTemplate"]["name"] == "gpu-nodes"
        assert pools.platform(**spec).plan(1).changes == ()
        account.ec2.delete_launch_template(LaunchTemplateName="gpu-nodes")
        assert pools.platform(**spec).plan(1).changes == ()  # a group that exists has a copy of it

    @pytest.mark.parametrize(
        ("template", "said"),
        [
            ("gpu-nodes", "template name gpu-nodes, does not exist"),
            ("gpu:2", "version 2"),
            ("lt-0123456789abcdef0", "template ID lt-0123456789abcdef0, does not exist"),
        ],
    )
    def test_a_launch_template_that_is_not_there_is_refused_first(
        self, account: Account, pools: Pools, template: str, said: str
    ) -> None:
        account.ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData={"UserData": ""})
        with pytest.raises(
            PoolSpecError, match=rf"train: EC2 has no launch template {template} in us-west-2: .*{said}"
        ):
            pools.platform(launch_template=template).plan(1)
        with pytest.raises(PoolSpecError, match="launch template gpu does not go with it: it names no image"):
            pools.platform(launch_template="gpu", ami_type="CUSTOM").plan(1)

    def test_who_may_not_read_launch_templates_is_told_so(
        self, account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = "ec2:DescribeLaunchTemplateVersions"
        policy = documented_roles.policy("eks-full.json", without=[read], **account.placeholders)
        key = account.cloud.add_identity("airflow", policy=policy)
        connect(monkeypatch, account, login=key.access_key_id, password=key.secret_access_key)
        plan = pools.platform(launch_template="gpu-nodes").plan(1)
        assert f"launch template gpu-nodes is not checked: {read} is not allowed" in plan.notes


class TestUpgrades:
    """Groups follow the cluster, its images and the pool's template: those without machines."""

    def brought(self, account: Account, platform: OwnedEksPlatform) -> list[str]:
        """Bring them up to date as Ensure does; return what the plan says of it before. Afterwards it is empty."""
        plan = platform.plan(0)
        assert {change.action for change in plan.changes} <= {"upgrade"}
        platform.apply(plan, print)
        said: list[str] = []
        begun = platform.upgrade(said.append, lambda: None)
        assert set(begun) == {change.group for change in plan.changes}, said
        assert {group.status for group in platform.observe() if group.name in begun} <= {"upgrading"}
        account.advance(TIMINGS.nodegroup_version_update)
        assert {group.status for group in platform.observe()} == {"active"}
        after = type(platform)(platform._pool, OWNER).plan(0)
        assert (after.is_empty, [note for note in after.notes if "wanted" in note]) == (True, [])
        return [change.detail for change in plan.changes]

    def upgrade_cluster(self, account: Account, version: str) -> None:
        account.eks.update_cluster_version(name=CLUSTER, version=version)
        account.advance(TIMINGS.cluster_update)

    def test_they_follow_the_cluster_which_can_be_upgraded_again(self, account: Account, pools: Pools) -> None:
        pools.ready(zones=[A, B])
        pools.ready(zones=[B])  # the other zone's group is of an earlier spec, and keeps the cluster back all the same
        self.upgrade_cluster(account, "1.37")
        (one, other) = self.brought(account, pools.platform(zones=[B]))
        assert one == other
        assert one.startswith("Kubernetes is 1.36, wanted 1.37; image release is 1.36.0-20260101, wanted 1.37.0")
        self.upgrade_cluster(account, "1.38")
        assert account.events.seen == []  # no machine was launched for it

    @pytest.mark.parametrize("ami_type", ["AL2023_x86_64_NVIDIA", "BOTTLEROCKET_x86_64_NVIDIA"])
    def test_they_get_new_images(self, account: Account, pools: Pools, ami_type: str) -> None:
        pools.ready(ami_type=ami_type)
        account.cloud.publish_node_images("20260827")
        (detail,) = self.brought(account, pools.platform(ami_type=ami_type))
        assert detail.startswith("image release is 1.")

    def test_a_new_image_comes_when_it_has_been_out_for_a_week(self, account: Account, pools: Pools) -> None:
        """Images of a day have kept each GPU pod from starting: awslabs/amazon-eks-ami#2165, #2706, #2790."""
        pools.ready()
        account.cloud.publish_node_images(f"{account.now:%Y%m%d}")
        plan = pools.platform().plan(0)
        assert plan.is_empty
        assert "is new, and groups of AL2023_x86_64_NVIDIA get it from" in plan.notes[0]
        pools.ready(name="other")
        assert account.describe("other-a-g6-xlarge")["releaseVersion"] == "1.36.0-20260101"

    def test_a_pool_holds_an_image_and_goes_back_to_it(self, account: Account, pools: Pools) -> None:
        account.cloud.publish_node_images("20260827")
        account.cloud.publish_node_images("20260910")
        pools.ready()
        assert account.describe(GROUP_A)["releaseVersion"] == "1.36.0-20260910"
        held = pools.platform(ami_release="1.36.0-20260827")
        held.apply(held.plan(0), print)
        assert held.plan(0).changes[0].detail.endswith("EKS takes no group back to an earlier release: recreated")
        with pytest.raises(GroupFailed, match=r"image release is 1\.36\.0-20260910, wanted 1\.36\.0-20260827"):
            held.upgrade(print, lambda: None)
        account.advance(TIMINGS.nodegroup_delete)
        pools.applied(held)
        assert account.describe(GROUP_A)["releaseVersion"] == "1.36.0-20260827"
        assert held.plan(0).is_empty

    @pytest.mark.parametrize(
        ("before", "after", "number"),
        [
            ("gpu", "gpu", None),
            ("gpu:$Default", "gpu:$Default", None),
            ("gpu:$Latest", "gpu:$Latest", "2"),
            ("gpu:1", "gpu:1", None),
            ("gpu:1", "gpu:2", "2"),
            ("gpu:$Latest", "gpu:1", None),
        ],
    )
    def test_they_get_the_template_s_version_that_is_named(
        self, account: Account, pools: Pools, before: str, after: str, number: str | None
    ) -> None:
        """EKS takes $Latest, and answers with the number of that day."""
        data = {"UserData": ""}
        account.ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data)
        pools.ready(launch_template=before)
        assert account.describe(GROUP_A)["launchTemplate"]["version"] == "1"
        account.ec2.create_launch_template_version(LaunchTemplateName="gpu", LaunchTemplateData=data)
        platform = pools.platform(launch_template=after)
        if before != after:
            platform.apply(platform.plan(0), print)  # another spec, another tag
        details = self.brought(account, platform)
        assert details == ([f"launch template version is 1, wanted {number}"] if number else [])
        assert account.describe(GROUP_A)["launchTemplate"]["version"] == (number or "1")

    @pytest.mark.parametrize("ami_type", ["AL2023_x86_64_NVIDIA", "BOTTLEROCKET_x86_64_NVIDIA"])
    def test_a_template_that_moves_and_the_cluster_at_once(self, account: Account, pools: Pools, ami_type: str) -> None:
        data = {"UserData": ""}
        account.ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data)
        spec = {"launch_template": "gpu:$Latest", "ami_type": ami_type}
        pools.ready(**spec)
        assert pools.platform(**spec).plan(0).is_empty
        account.ec2.create_launch_template_version(LaunchTemplateName="gpu", LaunchTemplateData=data)
        self.upgrade_cluster(account, "1.37")
        (detail,) = self.brought(account, pools.platform(**spec))
        assert detail.startswith("Kubernetes is 1.36, wanted 1.37; ")
        assert detail.endswith("; launch template version is 1, wanted 2")

    def test_never_under_a_machine(self, account: Account, pools: Pools) -> None:
        platform = pools.grown(1)
        self.upgrade_cluster(account, "1.37")
        plan = pools.platform().plan(1)
        assert plan.is_empty
        (note,) = plan.notes
        assert f"{GROUP_A} has machines, and stays as it is until it has none: Kubernetes is 1.36, wanted 1.37" in note
        command = (
            f"--cluster-name {CLUSTER} --nodegroup-name {GROUP_A} --kubernetes-version 1.37 --release-version 1.37"
        )
        assert f"aws eks update-nodegroup-version {command}" in note
        assert platform.upgrade(print, lambda: None) == ()
        assert account.describe(GROUP_A)["status"] == "ACTIVE"

        platform.release(platform.observe()[0].live)
        account.advance(END)
        self.brought(account, pools.platform())

    def test_a_machine_that_came_after_the_plan_is_seen(self, account: Account, pools: Pools) -> None:
        platform = pools.ready()
        self.upgrade_cluster(account, "1.37")
        assert pools.platform().plan(0).changes
        platform.grow({GROUP_A: 1})
        assert pools.platform().upgrade(print, lambda: None) == ()

    def test_who_may_not_update_goes_on_with_what_there_is(
        self, account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The policy of an earlier release; without ssm:GetParameter nothing is said of images but by the doctor."""
        pools.ready()
        self.upgrade_cluster(account, "1.37")
        lacking = ["eks:UpdateNodegroupVersion", "ssm:GetParameter", "eks:DescribeUpdate"]
        policy = documented_roles.policy("eks-full.json", without=lacking, **account.placeholders)
        key = account.cloud.add_identity("airflow", policy=policy)
        connect(monkeypatch, account, login=key.access_key_id, password=key.secret_access_key)
        platform, said = pools.platform(), list[str]()
        plan = platform.plan(0)
        assert [change.detail for change in plan.changes] == ["Kubernetes is 1.36, wanted 1.37"]
        assert (plan.notes, len(plan.unread)) == ((), 1)
        assert plan.unread[0].endswith("ssm:GetParameter is not allowed")
        assert platform.upgrade(said.append, lambda: None) == ()
        assert said[0].startswith(f"{GROUP_A} cannot be upgraded: AWS refused eks:UpdateNodegroupVersion")
        assert platform.observe()[0].status == "active"

    def test_an_update_that_failed_is_told_with_eks_s_words(self, account: Account, pools: Pools) -> None:
        pools.ready()
        self.upgrade_cluster(account, "1.37")
        assert pools.platform().upgrade(print, lambda: None)
        account.client("iam").delete_role(RoleName=account.network.node_role_arn.rpartition("/")[2])
        account.advance(TIMINGS.nodegroup_version_update)
        (change,) = pools.platform().plan(0).changes
        assert "; EKS could not, the last time: AccessDenied: Role " in change.detail

    def test_a_group_of_an_earlier_release_is_told_to_launch_none_for_updates_first(
        self, account: Account, pools: Pools
    ) -> None:
        """By EKS's default strategy an update adds two machines in a zone first."""
        pools.ready()
        default = {"maxUnavailable": 1, "updateStrategy": "DEFAULT"}
        account.eks.update_nodegroup_config(clusterName=CLUSTER, nodegroupName=GROUP_A, updateConfig=default)
        account.advance(TIMINGS.nodegroup_update)
        self.upgrade_cluster(account, "1.37")
        platform, said = pools.platform(), list[str]()
        plan = platform.plan(0)
        assert [change.action for change in plan.changes] == ["update", "upgrade"]
        platform.apply(plan, print)
        assert platform.upgrade(said.append, lambda: None) == ()
        assert said == [f"{GROUP_A} is UPDATING; the next run upgrades it"]
        account.advance(TIMINGS.nodegroup_update)
        self.brought(account, pools.platform())
        assert account.events.seen == []

    def test_a_degraded_group_is_made_anew_where_it_keeps_the_cluster_back(
        self, account: Account, pools: Pools
    ) -> None:
        platform = pools.ready(zones=[A, B])
        account.stock_out(zone=A)
        platform.grow({GROUP_A: 1})
        account.advance(TIMINGS.asg_reaction)
        platform.shrink_unfilled([GROUP_A])
        account.cloud.publish_node_images("20260827")
        assert account.describe(GROUP_A)["status"] == "DEGRADED"
        assert GROUP_A not in [change.group for change in pools.platform(zones=[A, B]).plan(0).changes]
        self.upgrade_cluster(account, "1.37")
        plan = pools.platform(zones=[A, B]).plan(0)
        assert {change.group: change.action for change in plan.changes} == {GROUP_A: "update", GROUP_B: "upgrade"}
        platform = pools.platform(zones=[A, B])
        platform.apply(plan, print)
        assert account.describe(GROUP_A)["status"] == "DELETING"


class TestForAutoscaler:
    """scaling="autoscaler": what cluster-autoscaler finds on the groups."""

    def test_a_new_group_is_told_of_once_it_is_there(self, account: Account, pools: Pools) -> None:
        platform = pools.ready(scaling="autoscaler", node_labels={"role": "gpu"})
        assert platform.observe()[0].stale_tags
        platform.update_autoscaler_tags([GROUP_A])
        found = tags_of(account, GROUP_A)
        assert found.items() >= wanted_tags(platform._pool, "g6.xlarge").items()
        assert found["eks:nodegroup-name"] == GROUP_A
        (group,) = platform.observe()
        assert (group.stale_tags, group.autoscaler_name) == ((), account.asg_of(GROUP_A))
        assert account.describe(GROUP_A)["labels"]["k8s.amazonaws.com/accelerator"] == "nvidia-l4"
        assert platform.plan(1).is_empty

    def test_changing_who_scales_shows_in_the_plan_and_is_undone(self, account: Account, pools: Pools) -> None:
        pools.ready()
        before = tags_of(account, GROUP_A)
        told = pools.platform(scaling="autoscaler")
        (change,) = pools.applied(told).changes
        assert "+k8s.io/cluster-autoscaler/node-template/resources/nvidia.com/gpu=1" in change.detail
        assert told.plan(1).is_empty

        direct = pools.platform()
        (change,) = pools.applied(direct).changes
        assert "-k8s.io/cluster-autoscaler/node-template/resources/nvidia.com/gpu" in change.detail
        # EKS's invitation to autoscalers is withdrawn where the pool sizes its groups itself.
        del before["k8s.io/cluster-autoscaler/enabled"]
        assert tags_of(account, GROUP_A) == {**before, "airflow-gpu-provider/pool": "train"}
        assert not direct.plan(1).changes

    def test_the_bill_of_an_instance_names_its_pool(self, account: Account, pools: Pools) -> None:
        platform = pools.ready(tags={"team": "ml"})
        platform.update_autoscaler_tags([GROUP_A])
        platform.grow({GROUP_A: 1})
        account.advance(LAUNCH)
        (instance_id,) = [machine.id for machine in platform.observe()[0].live]
        (reservation,) = account.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
        tags = {tag["Key"]: tag["Value"] for tag in reservation["Instances"][0]["Tags"]}
        assert (tags["airflow-gpu-provider/pool"], tags["team"]) == (platform._pool.name, "ml")
        assert not platform.observe()[0].stale_tags

    def test_a_tag_that_somebody_changed_is_put_right(self, account: Account, pools: Pools) -> None:
        platform = pools.ready(scaling="autoscaler")
        platform.update_autoscaler_tags([GROUP_A])
        key = "k8s.io/cluster-autoscaler/node-template/taint/nvidia.com/gpu"
        tag = {"ResourceId": account.asg_of(GROUP_A), "ResourceType": "auto-scaling-group", "Key": key}
        account.asg.create_or_update_tags(Tags=[{**tag, "Value": "false:NoSchedule", "PropagateAtLaunch": False}])
        (change,) = platform.plan(1).changes
        assert change.detail == f"tags for cluster-autoscaler +{key}=true:NoSchedule"
        platform.apply(platform.plan(1), print)
        assert platform.plan(1).is_empty

    def test_the_minimum_is_the_first_group_s_and_has_no_switch(self, account: Account, pools: Pools) -> None:
        platform = pools.ready(scaling="autoscaler", min_nodes=1, zones=[A, B])
        first, second = platform.observe()
        assert [(first.keeps, first.has_switch), (second.keeps, second.has_switch)] == [(1, False), (0, True)]
        assert account.describe(GROUP_A)["scalingConfig"] == {"minSize": 1, "maxSize": 3, "desiredSize": 1}
        raised = pools.platform(scaling="autoscaler", min_nodes=2, zones=[A, B])
        pools.applied(raised)
        assert account.describe(GROUP_A)["scalingConfig"] == {"minSize": 2, "maxSize": 3, "desiredSize": 2}


class TestDrift:
    def test_mutable_fields_of_our_groups_are_brought_in_line(self, account: Account, pools: Pools) -> None:
        pools.ready(node_labels={"old": "1"}, taints=["a=b:NoSchedule"], max_nodes=1)
        changed = pools.platform(node_labels={"new": "1"}, taints=["a=c:NoSchedule", "x:NoExecute"], max_nodes=5)

        plan = changed.plan(1)
        (change,) = plan.changes
        changed.apply(plan, print)

        assert change.action == "update"
        assert all(word in change.detail for word in ("maxSize", "labels", "taints", "tags"))
        account.advance_until(lambda: account.describe(GROUP_A)["status"] == "ACTIVE", after=TIMINGS.nodegroup_update)
        group = account.describe(GROUP_A)
        assert group["labels"] == {"new": "1", "airflow-gpu-provider/pool": "train"}
        taints = {(t["key"], t.get("value"), t["effect"]) for t in group["taints"]}
        assert taints == {("a", "c", "NO_SCHEDULE"), ("x", None, "NO_EXECUTE")}
        assert group["scalingConfig"]["maxSize"] == 5
        assert changed.plan(1).changes == ()

    def test_a_minimum_that_somebody_set_goes_back_to_zero(self, account: Account, pools: Pools) -> None:
        platform = pools.grown(1)
        account.scaling(GROUP_A, minSize=1)
        pools.applied(platform)
        assert account.describe(GROUP_A)["scalingConfig"]["minSize"] == 0

    def test_a_limit_below_what_runs_waits_until_it_has_shrunk(self, account: Account, pools: Pools) -> None:
        pools.grown(2)
        smaller = pools.platform(max_nodes=1)
        pools.applied(smaller)
        assert account.describe(GROUP_A)["scalingConfig"]["maxSize"] == 2
        assert smaller.plan(1).changes == ()
        smaller.release(smaller.observe()[0].live)
        pools.applied(smaller)
        assert account.describe(GROUP_A)["scalingConfig"]["maxSize"] == 1

    def test_another_owner_with_another_spec_is_named(self, account: Account, pools: Pools) -> None:
        pools.ready("prod/nightly")
        before = account.describe(GROUP_A)
        with pytest.raises(PoolDrift, match=r"set up by prod/nightly, whose spec .* differs from that of prod/hourly"):
            pools.platform("prod/hourly", max_nodes=7).plan(1)
        assert account.describe(GROUP_A) == before

    def test_another_owner_with_the_same_spec_is_fine(self, account: Account, pools: Pools) -> None:
        pools.ready("prod/nightly")
        assert pools.platform("prod/hourly").plan(1).changes == ()
        assert account.describe(GROUP_A)["tags"][OWNER_TAG] == "prod/nightly"

    def test_a_group_whose_owner_is_no_more_is_taken_over(self, account: Account, pools: Pools) -> None:
        pools.ready("prod/nightly")
        arn = account.describe(GROUP_A)["nodegroupArn"]
        account.eks.untag_resource(resourceArn=arn, tagKeys=[OWNER_TAG])
        heir = pools.platform("prod/hourly", max_nodes=7)
        pools.applied(heir)
        assert account.describe(GROUP_A)["tags"][OWNER_TAG] == "prod/hourly"

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"disk": {"size": 200}}, "disk size is 100, wanted 200"),
            ({"ami_type": "BOTTLEROCKET_x86_64_NVIDIA"}, "ami_type is AL2023_x86_64_NVIDIA"),
            ({"node_role": "arn:aws:iam::123456789012:role/other"}, "node_role is arn:"),
        ],
    )
    def test_a_field_that_eks_cannot_change(self, pools: Pools, change: dict[str, Any], named: str) -> None:
        pools.ready()
        with pytest.raises(PoolDrift, match=named) as caught:
            pools.platform(**change).plan(1)
        assert "aws eks delete-nodegroup" in str(caught.value)

    def test_a_group_that_is_not_ours(self, account: Account, pools: Pools) -> None:
        account.node_group(GROUP_A)
        with pytest.raises(PoolDrift, match="this package did not create"):
            pools.platform().plan(1)
        assert pools.platform().observe() == ()

    def test_an_update_under_way_is_left_for_the_next_run(self, account: Account, pools: Pools) -> None:
        pools.ready()
        changed, said = pools.platform(max_nodes=9), []
        plan = changed.plan(1)
        bigger = {"maxSize": 8}
        account.eks.update_nodegroup_config(clusterName=CLUSTER, nodegroupName=GROUP_A, scalingConfig=bigger)
        account.advance(TIMINGS.nodegroup_update - 1)
        changed.apply(plan, said.append)
        assert said == [f"{GROUP_A} is already being updated; the next run applies the spec"]
        account.advance(1)
        pools.applied(changed)
        assert account.describe(GROUP_A)["scalingConfig"]["maxSize"] == 9


class TestFailedGroups:
    def test_is_observed_replaced_and_named(self, account: Account, pools: Pools) -> None:
        platform = pools.platform()
        account.stock_out()
        request = platform._specs(platform.candidates(), {})[0].create_request()
        account.eks.create_nodegroup(**(request | {"scalingConfig": {"minSize": 0, "maxSize": 3, "desiredSize": 1}}))
        account.advance_until(lambda: platform.observe()[0].status == "failed", after=TIMINGS.nodegroup_create_timeout)
        (group,) = platform.observe()
        assert "InsufficientInstanceCapacity" in group.issues[0]

        with pytest.raises(GroupFailed, match="InsufficientInstanceCapacity"):
            platform.apply(platform.plan(1), print)

        account.faults.clear()
        account.advance_until(lambda: not platform.observe(), after=TIMINGS.nodegroup_delete)
        pools.applied(platform)

    def test_one_that_is_being_deleted_is_no_use_yet(self, account: Account, pools: Pools) -> None:
        platform = pools.grown(1)
        account.hold_drains()
        platform.delete(print)
        account.advance(TIMINGS.nodegroup_delete)
        plan = platform.plan(1)
        assert "is being deleted" in plan.changes[0].detail
        with pytest.raises(GroupFailed, match="still being deleted"):
            platform.apply(plan, print)

    def test_one_that_eks_could_not_delete_is_deleted_again(self, account: Account, pools: Pools) -> None:
        """It stays DELETE_FAILED until somebody deletes it again: here its role is gone for a while."""
        platform, said = pools.ready(), list[str]()
        roles = iam_backends[account.network.node_role_arn.split(":")[4]]["aws"].roles
        taken = {key: roles.pop(key) for key, role in list(roles.items()) if role.arn == account.network.node_role_arn}
        platform.delete(print)
        account.advance(TIMINGS.nodegroup_delete)
        assert account.describe(GROUP_A)["status"] == "DELETE_FAILED"
        roles.update(taken)
        plan = platform.plan(1)
        assert "EKS could not delete it (IamNodeRoleNotFound: Role" in plan.changes[0].detail
        with pytest.raises(GroupFailed, match="could not delete it: IamNodeRoleNotFound"):
            platform.apply(plan, said.append)
        assert said[-1] == f"deleting {GROUP_A}"
        account.advance(TIMINGS.nodegroup_delete)
        pools.applied(platform)

    def test_a_stock_out_s_group_that_has_to_change_is_made_anew(self, account: Account, pools: Pools) -> None:
        """EKS updates no group that is DEGRADED, and it stays so at size 0 (aws/containers-roadmap#2326)."""
        platform, said = pools.ready(), list[str]()
        account.stock_out()
        platform.grow({GROUP_A: 1})
        account.advance_until(lambda: platform.observe()[0].status == "degraded", after=TIMINGS.asg_reaction)
        changed = pools.platform(max_nodes=9)
        changed.apply(changed.plan(1), said.append)
        assert said[-1].endswith("EKS cannot update it; it will be recreated once it is empty")

        platform.shrink_unfilled([GROUP_A])
        account.advance(hours=1)
        assert account.describe(GROUP_A)["status"] == "DEGRADED"
        with pytest.raises(GroupFailed, match="InsufficientInstanceCapacity"):
            changed.apply(changed.plan(1), said.append)
        assert said[-2].endswith("EKS cannot update it; it is recreated")
        account.advance_until(lambda: not platform.observe(), after=TIMINGS.nodegroup_delete)
        pools.applied(changed)
        assert account.describe(GROUP_A)["scalingConfig"]["maxSize"] == 9


class TestLimitOfGroups:
    """EKS allows 30 managed node groups in a cluster, unless the account's quota was raised."""

    def test_the_pool_does_without_its_least_wanted_candidates(self, account: Account, pools: Pools) -> None:
        for number in range(29):
            account.create_node_group(f"web-{number}")
        platform, said = pools.platform(zones=[A, B]), list[str]()

        plan = platform.plan(1)
        platform.apply(plan, said.append)

        assert "the cluster has 29 managed node groups and would have 31; EKS allows 30" in plan.lines()[-1]
        assert said[-1].endswith("EKS allows: the pool does without g6.xlarge on-demand in us-west-2b")
        assert [group.name for group in platform.observe()] == [GROUP_A]

        other = pools.platform(name="other")
        plan = other.plan(1)
        with pytest.raises(QuotaExceeded, match="cluster k8s-ml has as many as EKS allows"):
            other.apply(plan, print)


class TestWhere:
    def test_zones_and_subnets_default_to_those_of_other_node_groups(self, account: Account, pools: Pools) -> None:
        """The cluster's own are its control plane's alone, as terraform-aws-eks has them: no node joins there."""
        others = [account.network.subnets[zone] for zone in (B, A)]
        account.create_node_group("web", subnets=others)
        platform = pools.platform(zones=[], subnets=[])
        plan = platform.plan(1)
        assert [c.zone for c in platform.candidates()] == [A, B]
        assert {zone: subnet.id for zone, subnet in platform._places.subnets.items()} == {
            A: others[1],
            B: others[0],
        }
        assert not [line for line in plan.lines() if "!" in line]

    def test_what_this_package_made_is_no_example(self, account: Account, pools: Pools) -> None:
        pools.applied(pools.platform(name="other"))
        own = account.network.control_plane_subnets[A]
        plan = pools.platform(subnets=[]).plan(1)
        assert f"{own} in {A}: no other node group is in the zone" in plan.lines()[-2]
        assert "no route leads out of the VPC" in plan.lines()[-1]

    def test_nodes_that_let_in_no_dns_from_the_pool_s_are_told(self, account: Account, pools: Pools) -> None:
        """As terraform-aws-eks has them: nodes with their own security group, which admits port 53 from itself."""
        of_nodes = launch_template_of_nodes(account)
        (nodes,) = security_groups_of(account, of_nodes)
        account.create_node_group("web", **of_nodes)

        (told,) = [line for line in pools.platform().plan(1).lines() if "!" in line]
        assert f"nodes of web ({nodes}) have security groups of their own, which let in no DNS" in told

        cluster = account.eks.describe_cluster(name=CLUSTER)["cluster"]["resourcesVpcConfig"]
        pairs = [{"GroupId": cluster["clusterSecurityGroupId"]}]
        dns = {"IpProtocol": "udp", "FromPort": 53, "ToPort": 53, "UserIdGroupPairs": pairs}
        account.ec2.authorize_security_group_ingress(GroupId=nodes, IpPermissions=[dns])
        assert not [line for line in pools.platform().plan(1).lines() if "!" in line]

    def test_whether_a_subnet_is_public_is_in_its_routes(self, account: Account, pools: Pools) -> None:
        public, private = account.network.public_subnets[A], account.network.subnets[A]
        platform = pools.platform(subnets=[])
        cluster = {**platform._eks.description, "resourcesVpcConfig": {"subnetIds": [public, private]}}
        platform._eks.__dict__["description"] = cluster
        assert platform._places.subnets[A].id == private
        # What the user names is taken as it stands.
        assert pools.platform(subnets=[public, private])._places.subnets[A].id == public

    def test_a_zone_without_a_subnet(self, pools: Pools) -> None:
        with pytest.raises(PoolSpecError, match="none of the subnets of cluster k8s-ml is in us-west-2d"):
            pools.platform(zones=[A, "us-west-2d"], subnets=[]).plan(1)

    def test_a_subnet_that_does_not_exist(self, pools: Pools) -> None:
        with pytest.raises(PoolSpecError, match="subnet-0bad"):
            pools.platform(subnets=["subnet-0bad"]).plan(1)

    def test_what_a_zone_does_not_offer_is_left_out_and_said(self, account: Account, pools: Pools) -> None:
        account.cloud.set_offered("g6.xlarge", A, offered=False)
        plan = pools.platform(zones=[A, B]).plan(1)
        assert [change.group for change in plan.changes] == [GROUP_B]
        assert plan.lines()[-1] == "  ! g6.xlarge is left out in us-west-2a: EC2 does not offer it there"

    def test_offered_nowhere(self, account: Account, pools: Pools) -> None:
        account.cloud.set_offered("g6.xlarge", A, offered=False)
        with pytest.raises(PoolSpecError, match=r"EC2 offers g6.xlarge in none of us-west-2a"):
            pools.platform().plan(1)

    def test_the_role_of_another_node_group_is_the_default(self, account: Account, pools: Pools) -> None:
        """A Linux group's: aws-auth lets nodes with a Windows group's role in as Windows nodes."""
        windows = account.client("iam").create_role(
            RoleName="windows", AssumeRolePolicyDocument='{"Principal": {"Service": "ec2.amazonaws.com"}}'
        )
        image = {"amiType": "WINDOWS_CORE_2022_x86_64", "instanceTypes": ["m6i.large"]}
        account.create_node_group("alerts", **image, nodeRole=windows["Role"]["Arn"])
        account.node_group("web")
        pools.ready(node_role=None)
        assert account.describe(GROUP_A)["nodeRole"] == account.network.node_role_arn

    def test_no_role_to_take(self, pools: Pools) -> None:
        with pytest.raises(PoolSpecError, match="node_role is not set"):
            pools.platform(node_role=None).plan(1)

    def test_a_role_that_eks_does_not_find_may_be_new(self, pools: Pools) -> None:
        platform = pools.platform(node_role="arn:aws:iam::123456789012:role/new")
        with pytest.raises(RequestRejected, match=r"The role with name new cannot be found\. Where it names what was"):
            platform.apply(platform.plan(1), print)


class TestObserve:
    def test_machines_come_and_go(self, account: Account, pools: Pools) -> None:
        platform = pools.ready()
        platform.grow({GROUP_A: 2})
        account.advance_until(lambda: states(platform) == ["pending"] * 2, after=TIMINGS.asg_reaction)
        launched = account.now
        account.advance_until(lambda: states(platform) == ["running"] * 2, after=TIMINGS.asg_launch)
        (group,) = platform.observe()
        assert (group.status, group.desired, group.max_size, group.unfilled) == ("active", 2, 3, 0)
        assert len({machine.id for machine in group.machines}) == 2
        assert [machine.launched_at for machine in group.machines] == [launched] * 2
        platform.release(group.live)
        assert states(platform) == ["terminating"] * 2
        account.advance_until(lambda: not platform.observe()[0].machines, after=TIMINGS.terminate)

    def test_calls_do_not_grow_with_machines(self, account: Account, pools: Pools) -> None:
        platform = pools.grown(3)
        before = account.cloud.calls
        platform.observe()
        made = account.cloud.calls - before
        assert made.total() == 3, made

    def test_a_look_at_24_groups_takes_few_calls(self, account: Account, pools: Pools) -> None:
        """The first one of a process asks about each; then what has changed, and some of the others in turn."""
        types = ["g6.xlarge", "g5.xlarge", "g4dn.xlarge", "g6.2xlarge"]
        spec: dict[str, Any] = {
            "zones": [A, B, "us-west-2c"],
            "instance_types": types,
            "capacity_types": ["ON_DEMAND", "SPOT"],
        }
        pools.ready(**spec)
        platform = pools.platform(**spec)
        assert len(platform.observe()) == 24
        made = list[Counter[str]]()

        def look() -> tuple[Group, ...]:
            before = account.cloud.calls
            found = platform.observe()
            made.append(account.cloud.calls - before)
            account.advance(15)
            return found

        account.advance(15)
        for _ in range(20):
            look()
        assert sum(each["eks:DescribeNodegroup"] for each in made) >= 24  # each has had its turn
        platform.grow({GROUP_A: 1})
        account.stock_out(zone=B)
        platform.grow({GROUP_B: 1})
        for _ in range(8):
            (first, second, *_) = look()
        assert (first.name, len(first.live), first.launching) == (GROUP_A, 1, False)
        assert (second.name, second.launch_failure is not None, second.unfilled) == (GROUP_B, True, 1)
        assert max(each.total() for each in made) <= 8, made

    def test_what_another_process_gives_up_meanwhile_is_seen_by_who_asked_for_it(
        self, account: Account, pools: Pools
    ) -> None:
        platform = pools.ready()
        platform.observe()
        account.stock_out()
        platform.grow({GROUP_A: 1})
        account.advance(TIMINGS.asg_reaction)
        assert pools.platform().shrink_unfilled([GROUP_A]) == {GROUP_A: 0}
        (group,) = platform.observe()
        assert (group.desired, group.launch_failure is not None) == (0, True)

    def test_a_limit_that_a_look_at_all_groups_would_meet_is_not_met(self, account: Account, pools: Pools) -> None:
        """Two processes of a pool of six groups, by buckets of the account."""
        spec: dict[str, Any] = {"zones": [A, B, "us-west-2c"], "instance_types": ["g6.xlarge", "g5.xlarge"]}
        pools.ready(**spec)
        both = [pools.platform(**spec) for _ in range(2)]
        for platform in both:
            platform.observe()
        for api in ("eks:DescribeNodegroup", "autoscaling:DescribeScalingActivities"):
            account.faults.limit_calls(api, per_second=0.3, burst=4)
        for _ in range(20):
            for platform in both:
                assert len(platform.observe()) == 6
            account.advance(15)

    @pytest.mark.parametrize("market", ["ON_DEMAND", "SPOT"])
    def test_out_of_stock(self, account: Account, pools: Pools, market: str) -> None:
        platform = pools.ready(capacity_types=[market])
        name = platform.observe()[0].name
        account.stock_out(zone=A)
        platform.grow({name: 1})
        account.advance_until(lambda: platform.observe()[0].launch_failure, after=TIMINGS.asg_reaction)
        (group,) = platform.observe()
        assert group.launch_failure
        assert group.launch_failure.out_of_stock
        assert "apacity" in group.launch_failure.message
        assert group.unfilled == 1
        assert not group.launching
        account.faults.clear()
        account.advance_until(lambda: platform.observe()[0].live, after=TIMINGS.asg_retry)
        account.advance_until(lambda: not platform.observe()[0].launch_failure, after=TIMINGS.asg_launch)

    @pytest.mark.parametrize(("market", "code"), [("ON_DEMAND", "L-DB2E81BA"), ("SPOT", "L-3819A6DF")])
    def test_a_quota_is_no_stock_out(self, account: Account, pools: Pools, market: str, code: str) -> None:
        platform = pools.ready(capacity_types=[market])
        account.cloud.set_quota(code, 0)
        platform.grow({platform.observe()[0].name: 1})
        account.advance_until(lambda: platform.observe()[0].launch_failure, after=TIMINGS.asg_reaction)
        (group,) = platform.observe()
        assert group.launch_failure
        assert not group.launch_failure.out_of_stock
        assert "xceeded" in group.launch_failure.message

    def test_groups_of_an_earlier_spec_are_seen_last_and_cannot_grow(self, pools: Pools) -> None:
        pools.grown(1, zones=[A, B])
        (kept, retired) = pools.platform(zones=[B]).observe()
        assert (kept.name, retired.name) == (GROUP_B, GROUP_A)
        assert (kept.max_size, retired.max_size) == (3, 1)

    def test_another_pools_groups_are_not_ours(self, pools: Pools) -> None:
        pools.ready(name="train-b")
        assert pools.platform(name="train").observe() == ()


class TestSizes:
    def test_growing_never_shrinks(self, pools: Pools) -> None:
        platform = pools.grown(2)
        platform.grow({GROUP_A: 1})
        assert platform.observe()[0].desired == 2

    def test_growing_beyond_the_limit(self, pools: Pools) -> None:
        with pytest.raises(CloudError, match="above max value 3"):
            pools.ready().grow({GROUP_A: 4})

    def test_growing_a_group_that_is_not_there(self, pools: Pools) -> None:
        with pytest.raises(GroupNotFound, match="does not exist"):
            pools.ready().grow({GROUP_B: 1})

    def test_exactly_the_named_machine_goes(self, account: Account, pools: Pools) -> None:
        platform = pools.grown(3)
        first, second, third = platform.observe()[0].live
        platform.release([second])
        account.advance_until(lambda: len(platform.observe()[0].machines) == 2, after=TIMINGS.terminate)
        (group,) = platform.observe()
        assert {machine.id for machine in group.live} == {first.id, third.id}
        assert group.desired == 2

    def test_releasing_twice_is_fine(self, account: Account, pools: Pools) -> None:
        platform = pools.grown(2)
        account.hold_drains()
        (machine, other) = platform.observe()[0].live
        platform.release([machine])
        platform.release([machine])  # on its way
        assert platform.observe()[0].desired == 1
        account.cloud.complete_drain(machine.id)
        account.advance_until(lambda: len(platform.observe()[0].machines) == 1, after=TIMINGS.terminate)
        platform.release([machine])  # gone
        assert [m.id for m in platform.observe()[0].live] == [other.id]

    def test_a_machine_that_is_still_pending_goes_too(self, account: Account, pools: Pools) -> None:
        platform = pools.ready()
        platform.grow({GROUP_A: 1})
        account.advance(TIMINGS.asg_reaction)
        machines = platform.observe()[0].live
        assert [machine.state for machine in machines] == ["pending"]
        # AWS refuses it while the launch is in progress, and the machine is a later call's: release returns it then.
        account.advance_until(lambda: not platform.release(machines), after=TIMINGS.asg_launch)
        account.advance_until(lambda: not platform.observe()[0].machines, after=TIMINGS.terminate)
        assert platform.observe()[0].desired == 0

    def test_a_minimum_size_keeps_a_machine_and_is_said(self, account: Account, pools: Pools) -> None:
        platform = pools.grown(1)
        account.scaling(GROUP_A, minSize=1)
        (machine,) = platform.observe()[0].live
        with pytest.raises(CloudError, match="would fall below its minimum size"):
            platform.release([machine])

    def test_one_machine_that_cannot_go_does_not_keep_the_others(self, account: Account, pools: Pools) -> None:
        platform = pools.grown(2, zones=[A, B])
        platform.grow({GROUP_B: 1})
        account.advance(LAUNCH)
        groups = platform.observe()
        assert [one.state for one in groups[1].live] == ["running"]
        account.scaling(GROUP_A, minSize=2)
        with pytest.raises(CloudError):
            platform.release([*groups[0].live, *groups[1].live])
        assert [group.desired for group in platform.observe()] == [2, 0]


class TestShrinkUnfilled:
    @pytest.fixture
    def starved(self, account: Account, pools: Pools) -> OwnedEksPlatform:
        """One machine runs, two more are asked for and do not come."""
        platform = pools.grown(1)
        account.stock_out()
        platform.grow({GROUP_A: 3})
        account.advance(TIMINGS.asg_reaction)
        assert platform.observe()[0].launch_failure
        return platform

    def test_down_to_what_exists(self, account: Account, starved: OwnedEksPlatform) -> None:
        (machine,) = starved.observe()[0].live
        assert starved.shrink_unfilled([GROUP_A]) == {GROUP_A: 1}
        account.faults.clear()
        (group,) = starved.observe()
        assert [m.id for m in group.live] == [machine.id]
        assert (group.desired, group.unfilled) == (1, 0)
        assert group.launch_failure  # remembered, for who looks for another place next
        asg = account.asg_of(GROUP_A)
        assert (suspended(account, asg), marks(account, asg)) == ([], [])

    def test_nothing_to_do(self, account: Account, pools: Pools) -> None:
        platform = pools.grown(2)
        assert platform.shrink_unfilled([GROUP_A]) == {}
        assert platform.observe()[0].desired == 2

    def test_a_machine_that_came_meanwhile_stays(self, account: Account, starved: OwnedEksPlatform) -> None:
        account.faults.clear()
        account.advance(TIMINGS.asg_retry)
        assert states(starved) == ["running", "pending", "pending"]
        assert starved.shrink_unfilled([GROUP_A]) == {}
        account.advance(TIMINGS.asg_launch)
        assert starved.shrink_unfilled([GROUP_A]) == {}
        assert states(starved) == ["running"] * 3

    def test_somebody_elses_suspension_stays(self, account: Account, starved: OwnedEksPlatform) -> None:
        asg = account.asg_of(GROUP_A)
        account.asg.suspend_processes(AutoScalingGroupName=asg, ScalingProcesses=["Launch"])
        assert starved.shrink_unfilled([GROUP_A]) == {GROUP_A: 1}
        assert suspended(account, asg) == ["Launch"]

    @pytest.mark.parametrize(
        "last_words", ["CreateOrUpdateTags", "SuspendProcesses", "SetDesiredCapacity", "ResumeProcesses", "DeleteTags"]
    )
    @pytest.mark.parametrize("dies", ["before", "after"])
    def test_a_death_at_any_step_is_mended(
        self, account: Account, pools: Pools, starved: OwnedEksPlatform, last_words: str, dies: str
    ) -> None:
        asg = account.asg_of(GROUP_A)
        with dead(starved, last_words, dies=dies), pytest.raises(Dead):
            starved.shrink_unfilled([GROUP_A])
        account.faults.clear()
        size = max(account.group(asg)["DesiredCapacity"], 2)

        pools.platform().grow({GROUP_A: 2})

        account.advance(TIMINGS.asg_retry + TIMINGS.asg_launch)
        assert len(account.instances(asg)) == size
        assert (suspended(account, asg), marks(account, asg)) == ([], [])

    def test_a_stale_suspension_is_seen_and_ended(self, account: Account, starved: OwnedEksPlatform) -> None:
        asg = account.asg_of(GROUP_A)
        with dead(starved, "SetDesiredCapacity", dies="before"), pytest.raises(Dead):
            starved.shrink_unfilled([GROUP_A])
        assert not any(group.left_suspended for group in starved.observe())  # its holder may be alive

        account.advance(30)
        assert not any(group.left_suspended for group in starved.observe())
        account.advance(31)
        assert [group.name for group in starved.observe() if group.left_suspended] == [GROUP_A]
        assert suspended(account, asg) == ["Launch"]  # a look has no side effect
        starved.resume_launches([GROUP_A])
        assert (suspended(account, asg), marks(account, asg)) == ([], [])


class Dead(Exception):
    """The process is gone: it sends nothing any more."""


class dead:
    """Within this context a platform dies before, or right after, one call to Auto Scaling."""

    def __init__(self, platform: OwnedEksPlatform, call: str, *, dies: str) -> None:
        self._events = platform._clients._sessions.get().client("autoscaling").meta.events
        self._last = f"{'before' if dies == 'before' else 'after'}-call.auto-scaling.{call}"
        self._is_dead = False

    def __enter__(self) -> None:
        self._events.register(self._last, self._die)
        self._events.register_first("before-call", self._stay_dead)

    def __exit__(self, *_: object) -> None:
        self._events.unregister(self._last, self._die)
        self._events.unregister("before-call", self._stay_dead)

    def _die(self, **_: Any) -> None:
        self._is_dead = True
        raise Dead

    def _stay_dead(self, **_: Any) -> None:
        if self._is_dead:
            raise Dead


class TestSwitch:
    def test_sets_the_group_to_zero_by_itself(self, account: Account, pools: Pools) -> None:
        platform = pools.grown(2)
        in_an_hour = account.now + timedelta(hours=1)
        platform.schedule_scale_to_zero([GROUP_A], in_an_hour - timedelta(milliseconds=600))
        assert platform.observe()[0].switch_at == in_an_hour  # AWS knows whole seconds, and it must not be early
        account.advance_until(lambda: platform.observe()[0].desired == 0, after=3600)
        account.advance_until(
            lambda: not platform.observe()[0].machines, after=TIMINGS.asg_reaction + TIMINGS.terminate
        )
        group = platform.observe()[0]
        assert (group.desired, group.max_size, group.switch_at) == (0, 3, None)

    def test_is_moved_and_taken_off(self, account: Account, pools: Pools) -> None:
        platform = pools.ready(zones=[A, B])
        hour = timedelta(hours=1)
        at = account.now + hour
        platform.schedule_scale_to_zero([GROUP_A, GROUP_B], at)
        platform.schedule_scale_to_zero([GROUP_A], at + hour)
        assert [group.switch_at for group in platform.observe()] == [at + hour, at]
        platform.cancel_scale_to_zero([GROUP_A, GROUP_B, "train-nowhere"])
        platform.cancel_scale_to_zero([GROUP_A])
        assert [group.switch_at for group in platform.observe()] == [None, None]

    def test_others_scheduled_actions_are_left_alone(self, account: Account, pools: Pools) -> None:
        platform, asg = pools.ready(), account.asg_of(GROUP_A)
        at = account.now + timedelta(hours=1)
        account.asg.put_scheduled_update_group_action(
            AutoScalingGroupName=asg, ScheduledActionName="theirs", StartTime=at, DesiredCapacity=1
        )
        platform.schedule_scale_to_zero([GROUP_A], at)
        switch_at = platform.observe()[0].switch_at
        assert switch_at == at + timedelta(minutes=1)  # AWS takes no two actions at one moment
        platform.cancel_scale_to_zero([GROUP_A])
        actions = account.asg.describe_scheduled_actions(AutoScalingGroupName=asg)["ScheduledUpdateGroupActions"]
        assert [action["ScheduledActionName"] for action in actions] == ["theirs"]

    def test_only_the_size_is_in_it(self, account: Account, pools: Pools) -> None:
        platform = pools.ready()
        platform.schedule_scale_to_zero([GROUP_A], account.now + timedelta(hours=1))
        (action,) = account.asg.describe_scheduled_actions()["ScheduledUpdateGroupActions"]
        assert action["ScheduledActionName"] == SWITCH
        assert action["DesiredCapacity"] == 0
        assert not {"MinSize", "MaxSize", "Recurrence"} & action.keys()


class TestDelete:
    def test_only_what_this_pool_created(self, account: Account, pools: Pools) -> None:
        account.node_group("train-by-hand")
        account.node_group("web")
        pools.ready(name="train-c")
        platform = pools.ready(zones=[A, B])
        platform.delete(print)
        platform.delete(print)
        left = {"train-by-hand", "web", "train-c-a-g6-xlarge"}
        account.advance_until(lambda: set(account.node_groups()) == left, after=TIMINGS.nodegroup_delete)


CALLS: dict[str, Callable[[OwnedEksPlatform], Any]] = {
    "eks": lambda platform: platform._clients.eks.call("describe_cluster", name=CLUSTER),
    "autoscaling": lambda platform: platform._eks.scaling.groups(["any"]),
    "ec2": lambda platform: [*platform._clients.ec2.items("describe_instances", "Reservations")],
    "iam": lambda platform: platform._clients.iam.call("get_user"),
    "sts": lambda platform: platform.account(),
}
"""A call of each service that refuses a key in words of its own."""


class TestAccessAndErrors:
    def test_cluster_access_makes_tokens_that_eks_takes(self, account: Account, pools: Pools) -> None:
        access = pools.platform().cluster_access()
        assert (access.server, access.ca_data) == ("https://127.0.0.1:6443", "Q0E=")
        assert access.token
        identity = account.cloud.identify(access.token())
        assert identity
        assert identity.arn == account.cloud.access_key.arn

    def test_tokens_are_for_the_regional_endpoint(self, pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
        import base64

        monkeypatch.setenv("AWS_STS_REGIONAL_ENDPOINTS", "legacy")
        connection = {"conn_type": "aws", "login": "AKIA", "password": "secret"}
        monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(connection))
        token = pools.platform()._clients.cluster_token(CLUSTER).removeprefix("k8s-aws-v1.")
        url = base64.urlsafe_b64decode(token + "==").decode()
        assert url.startswith("https://sts.us-west-2.amazonaws.com/?Action=GetCallerIdentity")

    def test_unknown_cluster(self, pools: Pools) -> None:
        platform = pools.platform(cluster_name="k8s-mi")
        for ask in (platform.observe, platform.cluster_access, lambda: platform.plan(1)):
            with pytest.raises(ClusterNotFound, match="k8s-mi"):
                ask()

    def test_a_connection_that_is_missing_never_means_ambient_credentials(
        self, account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in account.cloud.env().items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConnectionNotFound, match="connection 'aws_prod' was not found"):
            pools.platform(aws_conn_id="aws_prod").observe()
        assert pools.platform(aws_conn_id=None).observe() == ()  # asked for by name

    def test_credentials_that_aws_does_not_know(
        self, account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connect(monkeypatch, account, login="AKIAUNKNOWN000000000")
        platform = pools.platform()
        with pytest.raises(CredentialsError, match="connection 'aws_default'"):
            platform.observe()
        with pytest.raises(CredentialsError):
            platform._eks.scaling.groups(["any"])

    @pytest.mark.parametrize("first", CALLS)
    def test_a_rotated_key_is_read_from_the_connection_when_the_old_one_is_refused(
        self, account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch, first: str
    ) -> None:
        iam, user = account.client("iam"), account.cloud.access_key.arn.rpartition("/")[2]
        old = iam.create_access_key(UserName=user)["AccessKey"]
        connect(monkeypatch, account, login=old["AccessKeyId"], password=old["SecretAccessKey"])
        platform = pools.platform()
        for call in CALLS.values():
            call(platform)
        token = platform.cluster_access().token
        connect(monkeypatch, account)
        iam.update_access_key(UserName=user, AccessKeyId=old["AccessKeyId"], Status="Inactive")
        CALLS[first](platform)
        for call in CALLS.values():
            call(platform)
        assert token is not None
        assert account.cloud.identify(token())

    def test_a_rotated_key_is_read_when_the_cluster_refuses_tokens_of_the_old_one(
        self, account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        iam, user = account.client("iam"), account.cloud.access_key.arn.rpartition("/")[2]
        old = iam.create_access_key(UserName=user)["AccessKey"]
        connect(monkeypatch, account, login=old["AccessKeyId"], password=old["SecretAccessKey"])
        credentials = Credentials(pools.platform().cluster_access())
        refused = credentials.get()
        connect(monkeypatch, account)
        iam.delete_access_key(UserName=user, AccessKeyId=old["AccessKeyId"])
        assert not account.cloud.identify(refused.token)
        renewed = credentials.after(refused)
        assert renewed is not None
        assert account.cloud.identify(renewed.token)

    def test_no_credentials_at_all(self, pools: Pools, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        platform = pools.platform(aws_conn_id=None)
        with pytest.raises(CredentialsError, match="the worker's own AWS configuration"):
            platform.observe()
        with pytest.raises(CredentialsError):
            platform._clients.cluster_token(CLUSTER)

    def test_a_role_that_may_not_be_assumed(
        self, account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        endpoint = {"sts": {"endpoint_url": account.cloud.endpoint_url}}
        connect(monkeypatch, account, role_arn="arn:aws:iam::123456789012:role/no-such-role", service_config=endpoint)
        with pytest.raises(PermissionDenied, match="sts:AssumeRole"):
            pools.platform().observe()

    def test_nobody_at_the_endpoint(self, account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
        connect(monkeypatch, account, endpoint_url="http://127.0.0.1:9", config_kwargs=ONE_TRY)
        with pytest.raises(CloudError, match="did not answer"):
            pools.platform().observe()

    def test_a_few_errors_and_throttled_calls_are_tried_again(self, account: Account, pools: Pools) -> None:
        platform = pools.ready()
        account.faults.set_throttle_rate(0.2)
        account.faults.set_error_rate(0.2)
        for _ in range(3):
            assert platform.observe()[0].status == "active"

    def test_throttled_for_good(self, account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
        connect(monkeypatch, account, config_kwargs=ONE_TRY)  # the connection's settings come before ours
        account.faults.set_throttle_rate(1.0)
        with pytest.raises(CloudError, match=r"AWS throttled eks:ListNodegroups"):
            pools.platform().observe()


ONE_TRY = {"retries": {"mode": "standard", "total_max_attempts": 1}}


def test_a_misspelt_group_of_others_is_named_though_the_policy_names_none_such(
    account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a node group that the policy does not name AWS says AccessDenied, whether or not there is one."""
    policy = documented_roles.policy("eks-scale-only.json", NODE_GROUP="web", **account.placeholders)
    key = account.cloud.add_identity("airflow", policy=policy)
    connect(monkeypatch, account, login=key.access_key_id, password=key.secret_access_key)
    account.node_group("web")
    pool = EksGpuPool(
        name="train", cluster_name=CLUSTER, region="us-west-2", manage="scale", node_groups=["wbe"], max_nodes=1
    )
    with pytest.raises(GroupNotFound, match="has no node group wbe; it has web"):
        platform_for(pool).plan(1)
    assert not account.cloud.refused(key.arn)


def test_a_whole_life_needs_no_more_than_the_documented_permissions(
    request: pytest.FixtureRequest, account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = documented_roles.policy("eks-full.json", **account.placeholders, TAG="team")
    key = account.cloud.add_identity("airflow", policy=policy)
    connect(monkeypatch, account, login=key.access_key_id, password=key.secret_access_key)
    spec: dict[str, Any] = {"zones": [A, B], "subnets": [], "node_role": None}
    with_template = launch_template_of_nodes(account)
    account.create_node_group("web", **with_template, subnets=[account.network.subnets[zone] for zone in (A, B)])
    account.advance(TIMINGS.nodegroup_create)
    # Of a type that the catalogue does not have, it counts against the same quota.
    account.ec2.run_instances(ImageId="ami-1", MinCount=1, MaxCount=1, InstanceType="vt1.3xlarge")
    started = account.now
    pools.platform(**spec, instance_types=["g6.xlarge", "g8.xlarge"]).groups_over_quota(1, print)
    platform = pools.ready(**spec)
    pools.applied(pools.platform(**spec, max_nodes=2, tags={"team": "ml"}))
    for day in ("20260827", "20260910"):
        account.cloud.publish_node_images(day)
        assert pools.platform(**spec, max_nodes=2, tags={"team": "ml"}).plan(1).changes
        platform.upgrade(print, lambda: None)
        account.advance(TIMINGS.nodegroup_version_update)
    platform.schedule_scale_to_zero([GROUP_A], account.now + timedelta(hours=1))
    platform.grow({GROUP_A: 1})
    account.advance(LAUNCH)
    (machine,) = platform.observe()[0].live
    (life,) = platform.lives(platform.observe(), started)
    assert (life.id, life.group, life.ended_at) == (machine.id, GROUP_A, None)
    assert platform.lives([], started, known=[machine.id]) == (replace(life, group=""),)
    account.hold_drains()
    platform.release([machine])
    platform.release([machine])
    account.stock_out()
    platform.grow({GROUP_B: 1})
    account.advance(TIMINGS.asg_reaction)
    assert platform.observe()[1].launch_failure
    platform.shrink_unfilled([GROUP_B])
    platform.cancel_scale_to_zero([GROUP_A])
    account.faults.clear()
    platform.delete(print)
    platform.delete_remains(print)

    assert not account.cloud.refused(key.arn)
    role_record.hold("eks-full.json", request.node.nodeid, account.cloud.policy_uses(key.arn))


def test_the_first_pool_of_an_account_with_a_launch_template_needs_a_policy_more(
    request: pytest.FixtureRequest, account: Account, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = account.ec2.create_launch_template(LaunchTemplateName="gpu-nodes", LaunchTemplateData={"UserData": ""})
    files = ("eks-full.json", "eks-launch-template.json")
    values = {**account.placeholders, "LAUNCH_TEMPLATE": made["LaunchTemplate"]["LaunchTemplateId"]}

    def act_as(name: str, *of: str) -> str:
        key = account.cloud.add_identity(name, policy=documented_roles.policy(*of, **values))
        connect(monkeypatch, account, login=key.access_key_id, password=key.secret_access_key)
        return key.arn

    act_as("without", files[0])
    platform = pools.platform(launch_template="gpu-nodes:1")
    with pytest.raises(PermissionDenied, match="ec2:RunInstances"):
        platform.apply(platform.plan(1), print)
    arn = act_as("with", *files)
    pools.ready(launch_template="gpu-nodes:1")
    assert not account.cloud.refused(arn)
    for file in files:
        role_record.hold(file, request.node.nodeid, account.cloud.policy_uses(arn))
