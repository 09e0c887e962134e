"""What AWS does to groups by itself: it evens their zones, and replaces spot instances that are at risk."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from gpu_sandbox import Stockout
from tests.sandbox.aws_account import CLUSTER, TIMINGS, Account

FULL, EMPTY = "us-west-2a", "us-west-2b"


@pytest.fixture
def uneven(account: Account) -> str:
    """A group over two zones whose three instances were launched while one of them had no capacity."""
    both = [account.network.subnets[zone] for zone in (FULL, EMPTY)]
    asg = account.node_group(subnets=both)
    account.faults.add(Stockout(zone=EMPTY))
    account.grow(asg, 3)
    assert zones_of(account, asg) == {FULL: 3}
    return asg


def zones_of(account: Account, asg: str) -> Counter[str]:
    members = account.group(asg)["Instances"]
    return Counter(one["AvailabilityZone"] for one in members if one["LifecycleState"] in ("Pending", "InService"))


def test_zones_are_evened_by_a_launch_and_then_an_end(account: Account, uneven: str) -> None:
    account.faults.clear()
    account.advance(TIMINGS.az_rebalance - 1)
    assert zones_of(account, uneven) == {FULL: 3}
    account.advance(1)
    assert zones_of(account, uneven) == {FULL: 3, EMPTY: 1}
    account.advance(TIMINGS.asg_launch)
    assert zones_of(account, uneven) == {FULL: 2, EMPTY: 1}
    account.advance(TIMINGS.terminate)

    launched, ended = account.events.of("launched")[-1], account.events.of("terminated")
    assert launched.zone == EMPTY
    assert [instance.zone for instance in ended] == [FULL]
    assert account.events.kinds()[-3:] == ["launched", "drain", "terminated"]
    causes = [activity["Cause"] for activity in account.activities(uneven)]
    assert "an instance was launched to aid in balancing the group's zones" in causes[1]
    assert f"instances were launched to balance instances in zones {EMPTY} with other zones" in causes[0]
    assert account.group(uneven)["DesiredCapacity"] == 3


def test_zones_stay_uneven_while_the_process_is_suspended(account: Account, uneven: str) -> None:
    account.asg.suspend_processes(AutoScalingGroupName=uneven, ScalingProcesses=["AZRebalance"])
    account.faults.clear()
    account.advance(hours=1)
    assert zones_of(account, uneven) == {FULL: 3}


def test_protected_instances_are_not_moved(account: Account, uneven: str) -> None:
    account.asg.set_instance_protection(
        AutoScalingGroupName=uneven, InstanceIds=account.instances(uneven), ProtectedFromScaleIn=True
    )
    account.faults.clear()
    account.advance(hours=1)
    assert zones_of(account, uneven) == {FULL: 3}


def test_a_replacement_comes_before_a_spot_instance_at_risk_goes(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT")
    (old,) = account.grow(asg, 1)
    account.events.drains_at_once = False
    account.cloud.recommend_rebalance(old)
    account.advance(TIMINGS.asg_launch - 1)
    assert account.events.kinds() == ["launched", "at risk"]
    account.advance(1)
    assert account.events.kinds() == ["launched", "at risk", "launched", "drain"]
    (new,) = account.instances(asg)
    assert new != old
    assert account.ec2_state(old) == "running"

    account.cloud.complete_drain(old)
    account.advance(TIMINGS.terminate)
    assert account.ec2_state(old) == "terminated"
    assert (account.instances(asg), account.group(asg)["DesiredCapacity"]) == ([new], 1)
    assert account.events.of("notice") == []


def test_both_run_until_the_replacement_s_node_is_ready(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT", scalingConfig={"minSize": 0, "maxSize": 1, "desiredSize": 0})
    (old,) = account.grow(asg, 1)
    account.events.nodes_join = False
    account.cloud.recommend_rebalance(old)
    account.advance(hours=1)
    both = account.instances(asg)
    assert (len(both), old in both) == (2, True)
    assert (account.group(asg)["DesiredCapacity"], account.group(asg)["MaxSize"]) == (1, 1)
    assert "drain" not in account.events.kinds()
    (new,) = {*both} - {old}
    account.cloud.node_joined(new)
    account.advance()
    assert account.instances(asg) == [new]


def test_a_notice_before_the_replacement_is_there_drains_at_once(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT")
    (old,) = account.grow(asg, 1)
    account.faults.add(Stockout())
    account.events.drains_at_once = False
    account.cloud.recommend_rebalance(old)
    account.cloud.interrupt_spot(old)
    account.advance()
    assert account.events.kinds() == ["launched", "at risk", "notice", "drain"]
    account.advance(TIMINGS.spot_notice + TIMINGS.terminate)
    assert account.events.kinds()[-1] == "terminated"
    assert account.ec2_state(old) == "terminated"
    account.faults.clear()
    account.advance(TIMINGS.asg_retry + TIMINGS.asg_launch)
    (new,) = account.instances(asg)
    assert new != old


def test_a_group_without_capacity_rebalancing_only_hears_of_the_risk(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT")
    account.asg.update_auto_scaling_group(AutoScalingGroupName=asg, CapacityRebalance=False)
    (instance,) = account.grow(asg, 1)
    account.cloud.recommend_rebalance(instance)
    account.advance(hours=1)
    assert account.instances(asg) == [instance]
    assert account.events.kinds() == ["launched", "at risk"]


def test_on_demand_instances_are_at_no_risk(account: Account) -> None:
    asg = account.node_group()
    (instance,) = account.grow(asg, 1)
    with pytest.raises(ValueError, match="no running spot instance"):
        account.cloud.recommend_rebalance(instance)


def test_labels_and_taints_of_a_group_reach_its_instances(account: Account) -> None:
    asg = account.node_group(labels={"kept": "1", "gone": "1"})
    (instance,) = account.grow(asg, 1)
    change: dict[str, Any] = {
        "labels": {"addOrUpdateLabels": {"new": "1"}, "removeLabels": ["gone"]},
        "taints": {"addOrUpdateTaints": [{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}]},
    }
    account.eks.update_nodegroup_config(clusterName=CLUSTER, nodegroupName="train-gpu-a", **change)
    account.advance()
    (after,) = account.events.of("relabelled")
    assert after.instance_id == instance
    assert {"kept", "new"} <= after.labels.keys()
    assert "gone" not in after.labels
    assert [taint.key for taint in after.taints] == ["nvidia.com/gpu"]

    account.advance(TIMINGS.nodegroup_update)
    account.eks.update_nodegroup_config(clusterName=CLUSTER, nodegroupName="train-gpu-a", scalingConfig={"maxSize": 5})
    account.advance(TIMINGS.nodegroup_update)
    assert account.status() == "ACTIVE"
    assert len(account.events.of("relabelled")) == 1
