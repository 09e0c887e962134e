"""Groups that others own, read from AWS's answers: types, market, taints, limits, and what people are told of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws.external_groups import TEMPLATE_TAINT, read_group, template_of
from airflow_gpu_provider.clouds.aws.spec import POOL_TAG
from airflow_gpu_provider.clouds.backoff import growth_notes
from airflow_gpu_provider.clouds.base import Group, Machine
from airflow_gpu_provider.clouds.group_checks import candidates_with_room, check_named
from airflow_gpu_provider.errors import PoolDrift
from airflow_gpu_provider.pools import Candidate

NOW = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
SPEC = EksGpuPool(name="train", cluster_name="ml", region="us-west-2", max_nodes=3, manage="scale", asg_names=("own",))


def asg(**fields: Any) -> dict[str, Any]:
    usual = {"AutoScalingGroupName": "own", "MinSize": 0, "MaxSize": 3, "AvailabilityZones": ["us-west-2a"]}
    return {**usual, **fields}


def mixed(types: list[str], **distribution: int) -> dict[str, Any]:
    template = {"LaunchTemplateSpecification": {"LaunchTemplateId": "lt-1", "Version": "3"}}
    overrides = [{"InstanceType": name} for name in types]
    policy = {"LaunchTemplate": {**template, "Overrides": overrides}, "InstancesDistribution": distribution}
    return {"MixedInstancesPolicy": policy}


@pytest.mark.parametrize(
    ("fields", "template", "types", "market"),
    [
        ({}, {"InstanceType": "g6.xlarge"}, ("g6.xlarge",), "ON_DEMAND"),
        ({}, {"InstanceType": "g6.xlarge", "InstanceMarketOptions": {"MarketType": "spot"}}, ("g6.xlarge",), "SPOT"),
        (
            mixed(["g5.xlarge", "g6.xlarge"], OnDemandPercentageAboveBaseCapacity=0),
            {},
            ("g5.xlarge", "g6.xlarge"),
            "SPOT",
        ),
        (mixed(["g5.xlarge"], OnDemandPercentageAboveBaseCapacity=50), {}, ("g5.xlarge",), "ON_DEMAND"),
        (
            mixed(["g5.xlarge"], OnDemandBaseCapacity=1, OnDemandPercentageAboveBaseCapacity=0),
            {},
            ("g5.xlarge",),
            "ON_DEMAND",
        ),
        (mixed([]), {"InstanceType": "p5.48xlarge"}, ("p5.48xlarge",), "ON_DEMAND"),
        ({}, {"InstanceType": "gr6f.4xlarge"}, ("gr6f.4xlarge",), "ON_DEMAND"),
        (mixed([]), {"InstanceRequirements": {}}, (), "ON_DEMAND"),
    ],
)
def test_where_a_self_managed_groups_machines_come_from(
    fields: dict[str, Any], template: dict[str, Any], types: tuple[str, ...], market: str
) -> None:
    group = read_group("own", asg(**fields), None, template)
    assert (group.types, group.candidate.market, group.types_without_gpus) == (types, market, ())
    assert group.candidate.instance_type == (types[0] if types else "")


def test_which_launch_template_it_is() -> None:
    assert template_of(asg(**mixed([]))) == {"id": "lt-1", "version": "3"}
    assert template_of(asg(LaunchTemplate={"LaunchTemplateName": "n"})) == {"name": "n"}
    assert template_of(asg(LaunchConfigurationName="old")) is None


def test_a_managed_group_says_it_itself() -> None:
    raw = {
        "instanceTypes": ["g6.xlarge"],
        "capacityType": "SPOT",
        "status": "ACTIVE",
        "taints": [
            {"key": "team", "value": "ml", "effect": "NO_SCHEDULE"},
            {"key": "soft", "effect": "PREFER_NO_SCHEDULE"},
        ],
        "tags": {POOL_TAG: "older"},
    }
    group = read_group("managed", asg(), raw, {"InstanceType": "g5.xlarge"})
    assert (group.types, group.candidate.market, group.made_for) == (("g6.xlarge",), "SPOT", "older")
    assert [str(taint) for taint in group.taints] == ["team=ml:NoSchedule", "soft=:PreferNoSchedule"]
    with pytest.raises(PoolDrift, match="created by this package for pool older"):
        check_named(SPEC, 1, [group], known_types=())


def test_a_self_managed_groups_taints_are_in_its_tags() -> None:
    tags = [{"Key": f"{TEMPLATE_TAINT}team", "Value": "ml:NoSchedule"}, {"Key": "Name", "Value": "x"}]
    group = read_group("own", asg(Tags=tags), None, {})
    with pytest.raises(PoolDrift, match=r"Add 'team=ml:NoSchedule' to the pool's taints"):
        check_named(SPEC, 1, [group], known_types=())
    tolerant = replace(SPEC, taints=("team=ml:NoSchedule",))
    assert check_named(tolerant, 1, [group], known_types=()) == ()


def test_any_taint_of_nvidia_com_gpu_is_tolerated_by_pods_that_ask_for_gpus() -> None:
    tags = [{"Key": f"{TEMPLATE_TAINT}nvidia.com/gpu", "Value": "whatever:NoExecute"}]
    assert check_named(SPEC, 1, [read_group("own", asg(Tags=tags), None, {})], known_types=()) == ()


def test_what_people_are_told() -> None:
    two = ["us-west-2a", "us-west-2b"]
    suspended = {"SuspendedProcesses": [{"ProcessName": "AZRebalance"}]}
    assert read_group("own", asg(AvailabilityZones=two, **suspended), None, {}).warnings == ()
    held = asg(
        AvailabilityZones=two,
        MinSize=1,
        MaxSize=2,
        SuspendedProcesses=[{"ProcessName": "Launch"}],
        NewInstancesProtectedFromScaleIn=True,
    )
    raw = {"status": "DEGRADED", "health": {"issues": [{"code": "X", "message": "no subnet"}]}}
    notes = "\n".join(check_named(SPEC, 1, [read_group("own", held, raw, {})], known_types=()))
    for words in ("limits allow 2", "keeps 1", "in 2 zones", "launches are suspended", "scale-in", "DEGRADED (X: no"):
        assert words in notes


def test_the_first_group_with_room_grows_as_far_as_it_may() -> None:
    groups = [group("full", live=1, most=1), group("small", live=0, most=1), group("large", live=0, most=3)]
    wanted = candidates_with_room(groups)
    assert [candidate.group for candidate in wanted] == ["small", "large"]
    assert growth_notes(SPEC, 3, wanted, groups, NOW) == ("small 0->1 (g6.xlarge on-demand in us-west-2a first)",)
    assert growth_notes(SPEC, 1, wanted, groups, NOW) == ()
    assert candidates_with_room(groups[:1]) == (groups[0].candidate,)


def group(name: str, *, live: int, most: int) -> Group:
    place = Candidate(group=name, zone="us-west-2a", instance_type="g6.xlarge", market="ON_DEMAND")
    machines = tuple(Machine(id=f"i-{name}-{n}", group=name, state="running") for n in range(live))
    return Group(name=name, candidate=place, status="active", desired=live, max_size=most, machines=machines)
