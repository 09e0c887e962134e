"""Groups that are of a reservation, of others and our own: what the platform says of them, by AWS's clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws.autoscaling import AutoScaling
from airflow_gpu_provider.clouds.aws.external_platform import ExternalEksPlatform
from airflow_gpu_provider.clouds.aws.owned_platform import OwnedEksPlatform
from airflow_gpu_provider.clouds.base import Group, Plan
from airflow_gpu_provider.errors import PoolSpecError
from tests.sandbox import documented_roles, role_record
from tests.sandbox.aws_account import CLUSTER, LAUNCH, Account

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
TYPE, ZONE, BLOCK, NEXT = "p5.48xlarge", "us-west-2a", "gpu-block", "gpu-next"


@pytest.fixture
def account() -> Iterator[Account]:
    account = Account.fresh()
    yield account
    account.close()


class Reserved:
    """A managed node group of a reservation, one on demand, and the platform of a pool that names both."""

    def __init__(self, account: Account, kind: Any = "capacity-block", **reservation: Any) -> None:
        self.account = account
        self.id = account.cloud.reserve(kind, TYPE, ZONE, **reservation)
        target = {"CapacityReservationTarget": {"CapacityReservationId": self.id}}
        data: dict[str, Any] = {"InstanceType": TYPE, "CapacityReservationSpecification": target}
        market = {}
        if kind == "capacity-block":
            data["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
            market = {"capacityType": "CAPACITY_BLOCK"}
        account.ec2.create_launch_template(LaunchTemplateName="reserved", LaunchTemplateData=data)
        request = account.node_group_request(BLOCK, launchTemplate={"name": "reserved"}, **market)
        del request["instanceTypes"]
        account.eks.create_nodegroup(**request)
        self.asg = self._behind(account)
        account.node_group(NEXT, instanceTypes=[TYPE])
        pool = EksGpuPool(
            name="of-terraform",
            cluster_name=CLUSTER,
            region="us-west-2",
            manage="scale",
            node_groups=[BLOCK, NEXT],
            max_nodes=2,
        )
        self.platform = ExternalEksPlatform(pool)
        eks = self.platform._eks  # suspended launches are marked in a cluster, and there is none
        eks.__dict__["scaling"] = AutoScaling(eks.clients.autoscaling)

    def _behind(self, account: Account) -> str:
        account.advance(account.cloud.timings.nodegroup_create)
        return account.asg_of(BLOCK)

    @property
    def group(self) -> Group:
        block, _ = self.platform.observe()
        return block

    @property
    def why_not(self) -> str:
        reserved = self.group.reserved
        assert reserved
        return reserved.why_not


@pytest.fixture
def act_as(account: Account, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the connection be that of an IAM user with these policies of docs/iam alone; returns the user's ARN."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    def act(*files: str) -> str:
        groups = {"NODE_GROUP": [BLOCK, NEXT], "ASG_NAME": ["none"]}
        key = account.cloud.add_identity(
            "scaler", policy=documented_roles.policy(*files, **account.placeholders, **groups)
        )
        credentials = {"login": key.access_key_id, "password": key.secret_access_key}
        monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(account.connection() | credentials))
        return key.arn

    return act


@pytest.fixture
def scaler(act_as: Any) -> str:
    arn: str = act_as("eks-scale-only.json", "eks-reservations.json")
    return arn


def test_a_block_by_the_clock(request: pytest.FixtureRequest, account: Account, scaler: str) -> None:
    of = Reserved(account, count=2, starts_in=2 * HOUR, lasts=24 * HOUR)
    begins = account.now + 2 * HOUR - 10 * MINUTE  # two groups were made meanwhile
    assert of.group.candidate.market == "CAPACITY_BLOCK"
    assert of.group.reserved
    assert of.group.reserved.opens_at
    assert abs(of.group.reserved.opens_at - begins) < 10 * MINUTE
    assert of.group.max_size == 0
    (note,) = [each for each in of.platform.plan(1).notes if of.id in each]
    assert "Capacity Block, 2 p5.48xlarge in us-west-2a, 0 free, scheduled, from" in note
    account.advance(hours=2)
    assert (of.why_not, of.group.max_size) == ("", 2)
    of.platform.grow({BLOCK: 2})
    account.advance(LAUNCH)
    assert (len(of.group.live), of.group.max_size) == (2, 2)
    assert of.why_not == f"{of.id} is full: 0 of 2 free"
    account.advance(hours=23, minutes=25)  # some 35 minutes before its end
    assert "its machines are emptied from" in of.why_not
    assert of.group.reserved
    assert (of.group.reserved.has_ended, of.group.max_size) == (True, 0)
    account.advance(hours=1)
    assert "ended at" in of.why_not
    assert not account.cloud.refused(scaler)
    role_record.hold("eks-reservations.json", request.node.nodeid, account.cloud.policy_uses(scaler))


@pytest.mark.usefixtures("scaler")
@pytest.mark.parametrize("kind", ["capacity-block", "default"])
def test_what_is_cancelled_gives_no_more(account: Account, kind: str) -> None:
    of = Reserved(account, kind, count=1)
    assert of.group.candidate.market == {"default": "RESERVED"}.get(kind, "CAPACITY_BLOCK")
    assert of.why_not == ""
    account.cloud.hold_reservation(of.id, "cancelled")
    assert (of.why_not, of.group.max_size) == (f"{of.id} is cancelled", 0)
    assert of.platform.plan(1).grow == (f"{NEXT} 0->1 ({TYPE} on-demand in {ZONE} first)",)


@pytest.mark.usefixtures("scaler")
def test_reserved_machines_are_compared_with_no_quota(account: Account) -> None:
    account.cloud.set_quota("L-417A185B", 0)
    of, said = Reserved(account, count=2), list[str]()
    assert of.platform.groups_over_quota(1, said.append) == {NEXT}
    of.platform.grow({BLOCK: 1})
    account.advance(LAUNCH)
    assert len(of.group.live) == 1


def test_without_the_permission_a_group_is_tried_as_any_other(account: Account, act_as: Any) -> None:
    act_as("eks-scale-only.json")
    of = Reserved(account, count=1, state="cancelled")
    plan = of.platform.plan(1)
    assert plan.unread == (
        "capacity reservations are not read: ec2:DescribeCapacityReservations is not allowed (docs/iam.md)",
    )
    assert (of.group.reserved, of.group.max_size) == (None, 3)
    of.platform.grow({BLOCK: 1})
    account.advance(LAUNCH)
    assert of.group.launch_failure
    assert "it is cancelled" in of.group.launch_failure.message


@pytest.mark.usefixtures("scaler")
def test_a_look_asks_once_for_all_reservations(account: Account) -> None:
    of = Reserved(account, count=1)
    of.platform.observe()
    before = account.cloud.calls["ec2:DescribeCapacityReservations"]
    of.platform.observe()
    assert account.cloud.calls["ec2:DescribeCapacityReservations"] == before + 1


# -- groups of this package's own ----------------------------------------------------------------------------


class Owned:
    """A pool of this package's groups with a reservation of each kind, and its platform."""

    def __init__(self, account: Account, **fields: Any) -> None:
        self.account = account
        self.block = account.cloud.reserve("capacity-block", TYPE, ZONE, count=2, lasts=24 * HOUR)
        self.on_demand = account.cloud.reserve("default", TYPE, "us-west-2b")
        usual: dict[str, Any] = {
            "name": "train",
            "cluster_name": CLUSTER,
            "region": "us-west-2",
            "instance_types": [TYPE],
            "capacity_types": ["RESERVED", "ON_DEMAND"],
            "reservations": [self.block, self.on_demand],
            "subnets": [*account.network.subnets.values()],
            "zones": [ZONE, "us-west-2b"],
            "node_role": account.network.node_role_arn,
            "max_nodes": 2,
        }
        self.pool = EksGpuPool(**(usual | fields))
        self.platform = OwnedEksPlatform(self.pool, "tests/dag")

    def apply(self) -> Plan:
        plan = self.platform.plan(1)
        self.platform.apply(plan, print)
        self.account.advance(self.account.cloud.timings.nodegroup_create)
        return plan


OWN_ROLE = ("eks-full.json", "eks-owned-templates.json", "eks-launch-template.json", "eks-reservations.json")


def test_a_pool_makes_a_group_of_each_reservation_and_a_second_plan_is_empty(account: Account, act_as: Any) -> None:
    arn = act_as(*OWN_ROLE)
    of = Owned(account)
    block, on_demand = f"train-a-p5-48xlarge-{of.block}", f"train-b-p5-48xlarge-{of.on_demand}"
    plan = of.apply()
    assert [change.group for change in plan.changes] == [
        block,
        on_demand,
        "train-a-p5-48xlarge",
        "train-b-p5-48xlarge",
    ]
    assert plan.grow == (f"{block} 0->1 (p5.48xlarge capacity-block in {ZONE} first)",)
    assert any(
        note.startswith(f"{of.block} (Capacity Block, 2 p5.48xlarge in us-west-2a, 2 free") for note in plan.notes
    )
    described = account.describe(block)
    assert (described["capacityType"], described.get("instanceTypes", [])) == ("CAPACITY_BLOCK", [])
    assert described["subnets"] == [account.network.subnets[ZONE]]
    assert account.describe(on_demand)["capacityType"] == "ON_DEMAND"
    assert [(each.name, each.candidate.market, each.max_size) for each in of.platform.observe()] == [
        (block, "CAPACITY_BLOCK", 2),
        (on_demand, "RESERVED", 1),
        ("train-a-p5-48xlarge", "ON_DEMAND", 2),
        ("train-b-p5-48xlarge", "ON_DEMAND", 2),
    ]
    again = of.platform.plan(1)
    assert again.changes == ()
    account.cloud.set_quota("L-417A185B", 0)
    assert of.platform.groups_over_quota(1, print) == {"train-a-p5-48xlarge", "train-b-p5-48xlarge"}
    of.platform.grow({block: 2, on_demand: 1})
    account.advance(LAUNCH)
    first, second, *_ = of.platform.observe()
    assert (len(first.live), len(second.live), first.has_room, second.has_room) == (2, 1, False, False)
    assert not account.cloud.refused(arn)


def test_deleted_with_its_pool_nothing_is_left(account: Account, act_as: Any) -> None:
    act_as(*OWN_ROLE)
    of = Owned(account)
    of.apply()
    of.platform.delete(print)
    account.advance(account.cloud.timings.nodegroup_delete)
    of.platform.delete_remains(print)
    assert account.node_groups() == []
    names = [each["LaunchTemplateName"] for each in account.ec2.describe_launch_templates()["LaunchTemplates"]]
    assert not [name for name in names if "train" in name]


def test_of_one_that_is_over_no_group_is_made(account: Account, act_as: Any) -> None:
    act_as(*OWN_ROLE)
    of = Owned(account)
    account.cloud.hold_reservation(of.block, "cancelled")
    plan = of.apply()
    assert not [change for change in plan.changes if of.block in change.group]
    assert any(f"{of.block} is cancelled" in note for note in plan.notes)


def test_a_pool_of_reservations_alone_that_fit_nowhere_is_refused(account: Account, act_as: Any) -> None:
    act_as(*OWN_ROLE)
    of = Owned(account, capacity_types=["RESERVED"], instance_types=["p4d.24xlarge"])
    with pytest.raises(PoolSpecError, match=r"its type p5\.48xlarge is not one of the pool's"):
        of.platform.plan(1)


def owned(account: Account, id_: str) -> OwnedEksPlatform:
    """Of a pool of this reservation alone, whose group is there."""
    pool = EksGpuPool(
        name="train",
        cluster_name=CLUSTER,
        region="us-west-2",
        instance_types=[TYPE],
        capacity_types=["RESERVED"],
        reservations=[id_],
        subnets=[*account.network.subnets.values()],
        node_role=account.network.node_role_arn,
        max_nodes=1,
    )
    platform = OwnedEksPlatform(pool, "prod/dag")
    platform.apply(platform.plan(1), print)
    account.advance(account.cloud.timings.nodegroup_create)
    return platform


def test_a_block_s_switch_leaves_the_minute_of_eks_s_own_action_free(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EKS user guide, managed node groups with Capacity Blocks: it is 40 minutes before the end, as ours would be."""
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(account.connection()))
    platform = owned(account, account.cloud.reserve("capacity-block", TYPE, ZONE, lasts=24 * HOUR))
    (group,) = platform.observe()
    assert group.reserved is not None
    assert group.reserved.ends_at is not None
    empty_at = group.reserved.ends_at.replace(second=0)
    actions = account.asg.describe_scheduled_actions(AutoScalingGroupName=group.autoscaler_name)
    (of_eks,) = actions["ScheduledUpdateGroupActions"]
    assert of_eks["StartTime"].replace(second=0) == empty_at
    before = account.cloud.calls["autoscaling:PutScheduledUpdateGroupAction"]
    platform.schedule_scale_to_zero([group.name], empty_at)
    assert account.cloud.calls["autoscaling:PutScheduledUpdateGroupAction"] == before + 1, "none was refused"
    assert platform.observe()[0].switch_at == empty_at + MINUTE
    platform.schedule_scale_to_zero([group.name], empty_at + MINUTE)  # its own is no other's
    assert platform.observe()[0].switch_at == empty_at + MINUTE


def test_one_of_a_placement_group_is_used_from_there(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2 launches into it from that group alone (awslabs/awsome-distributed-ai#1258)."""
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(account.connection()))
    account.ec2.create_placement_group(GroupName="trainings", Strategy="cluster")
    arn = "arn:aws:ec2:us-west-2:210987654321:placement-group/trainings"
    id_ = account.cloud.reserve("default", TYPE, ZONE, count=1, PlacementGroupArn=arn)
    platform = owned(account, id_)
    platform.grow({f"train-a-p5-48xlarge-{id_}": 1})
    account.advance(LAUNCH)
    (group,) = platform.observe()
    assert (len(group.live), group.launch_failure) == (1, None)
    platform.delete(print)
    platform.delete_remains(print)
    assert [each["GroupName"] for each in account.ec2.describe_placement_groups()["PlacementGroups"]] == ["trainings"]
