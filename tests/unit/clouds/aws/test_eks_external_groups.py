"""External groups of a pool on EKS: read as AWS shows them, and sized by their own limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

import botocore
import pytest
from botocore.session import get_session
from packaging.version import Version

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws.external_groups import candidate, read_group
from airflow_gpu_provider.clouds.aws.external_platform import ExternalEksPlatform
from airflow_gpu_provider.clouds.aws.node_groups import LastLook
from airflow_gpu_provider.clouds.aws.quota import judge, quota_code
from airflow_gpu_provider.clouds.quota import Quota
from airflow_gpu_provider.errors import QuotaExceeded

AT = datetime(2026, 1, 1, tzinfo=UTC)
POOL = EksGpuPool(
    name="train",
    cluster_name="ml",
    region="us-west-2",
    manage="scale",
    node_groups=["web-gpu", "gone"],
    asg_names=["own"],
    max_nodes=4,
)
NO_QUOTA = Quota(name="P", limit=0, used=0, words="quota 'P' is 0 vCPUs", request="P")
NODE_GROUP = {
    "nodegroupName": "web-gpu",
    "status": "ACTIVE",
    "instanceTypes": ["g6.xlarge"],
    "capacityType": "SPOT",
    "resources": {"autoScalingGroups": [{"name": "eks-web-gpu"}]},
}


def asg(name: str, **fields: Any) -> dict[str, Any]:
    sizes = {"MinSize": 1, "MaxSize": 3, "DesiredCapacity": 1}
    return {"AutoScalingGroupName": name, "AvailabilityZones": ["us-west-2a"], "Instances": [], **sizes, **fields}


class NodeGroups:
    def __init__(self) -> None:
        self.last_look = LastLook()

    def names(self) -> list[str]:
        return ["web-gpu", "another"]

    def describe(self, name: str) -> Mapping[str, Any] | None:
        assert name == "web-gpu", "a group that the cluster does not have, or the pool does not name, is not asked for"
        return NODE_GROUP


class AutoScaling:
    def __init__(self) -> None:
        self.switched: dict[str, int] = {}
        self.looks = 0

    def now(self) -> datetime:
        return AT

    def groups(self, names: Collection[str]) -> dict[str, Mapping[str, Any]]:
        self.looks += 1
        return {name: asg(name) for name in names}

    def activities(self, names: Collection[str]) -> Mapping[str, Any]:
        return {}

    def switches(self) -> Mapping[str, Any]:
        return {"own": AT}

    def left_suspended(self, asgs: Collection[Any]) -> set[str]:
        return {"own"}

    def schedule_scale_to_zero(self, name: str, at: datetime, *, size: int) -> None:
        self.switched[name] = size


@pytest.mark.parametrize(
    ("market_type", "market", "counts"),
    [
        ("", "ON_DEMAND", True),
        ("spot", "SPOT", True),
        ("capacity-block", "CAPACITY_BLOCK", False),
        ("interruptible-capacity-reservation", "INTERRUPTIBLE_CAPACITY_RESERVATION", False),
    ],
)
def test_a_group_of_reserved_machines_is_judged_by_no_quota(market_type: str, market: str, counts: bool) -> None:
    """An account that buys blocks may have a quota of 0 for P instances."""
    options = {"InstanceMarketOptions": {"MarketType": market_type}} if market_type else {}
    found = candidate("own", asg("own"), None, {"InstanceType": "p5.48xlarge", **options})
    assert found.market == market
    assert (quota_code(found.instance_type, found.market) is not None) is counts
    quotas, vcpus = ({}, {}) if not counts else ({quota_code("p5.48xlarge", market): NO_QUOTA}, {"p5.48xlarge": 192})
    if not counts:
        assert judge(POOL, 2, [found], quotas, vcpus).over_quota == frozenset()
        return
    with pytest.raises(QuotaExceeded):
        judge(POOL, 2, [found], quotas, vcpus)


def test_a_group_that_another_service_operates_is_told_by_day() -> None:
    """Botocore, autoscaling: only the designated operator can change it. EKS's own groups are not known to have one."""
    operated = {**asg("own"), "Operator": "ecs.amazonaws.com", "MinSize": 0, "MaxSize": 3}
    (warning,) = read_group("own", operated, None, {}).warnings
    assert warning.startswith("ecs.amazonaws.com operates it, and EC2 Auto Scaling takes changes of its size from no")
    assert read_group("own", operated, NODE_GROUP, {}).warnings == ()


def test_a_group_may_have_an_operator() -> None:
    shape = get_session().get_service_model("autoscaling").shape_for("AutoScalingGroup")
    if Version(botocore.__version__) < Version("1.43.80"):
        pytest.skip("older packages: this botocore drops it")
    assert "Operator" in shape.members


def test_every_market_of_a_launch_template_has_its_place() -> None:
    """An older botocore has fewer."""
    known = get_session().get_service_model("ec2").shape_for("MarketType").enum
    assert {"spot"} < set(known) <= {"spot", "capacity-block", "interruptible-capacity-reservation", "on-demand"}


def test_a_group_that_comes_later_is_seen_and_what_is_complete_is_not_listed_again() -> None:
    class Coming(NodeGroups):
        lists = 0

        def names(self) -> list[str]:
            self.lists += 1
            return ["web-gpu", "gone"][: self.lists]

        def describe(self, name: str) -> Mapping[str, Any]:
            return {**NODE_GROUP, "nodegroupName": name, "resources": {"autoScalingGroups": [{"name": f"eks-{name}"}]}}

    platform, groups = ExternalEksPlatform(POOL), Coming()
    platform._eks.__dict__.update(groups=groups, scaling=AutoScaling())
    looks = [[group.name for group in platform.observe()] for _ in range(3)]
    assert looks == [["web-gpu", "own"], ["web-gpu", "gone", "own"], ["web-gpu", "gone", "own"]]
    assert groups.lists == 2


def test_both_kinds_are_read_in_one_call_and_set_to_their_own_smallest_size() -> None:
    platform, scaling = ExternalEksPlatform(POOL), AutoScaling()
    platform._eks.__dict__.update(groups=NodeGroups(), scaling=scaling)

    managed, own = platform.observe()

    assert scaling.looks == 2  # before and after what they did was read
    assert (managed.name, managed.autoscaler_name, managed.candidate.market) == ("web-gpu", "eks-web-gpu", "SPOT")
    assert (own.name, own.candidate.zone, own.switch_at, own.left_suspended) == ("own", "us-west-2a", AT, True)
    for group in (managed, own):
        assert (group.status, group.owned, group.keeps, group.max_size) == ("active", False, 1, 3)
        assert group.has_switch

    platform.schedule_scale_to_zero(["web-gpu", "own"], AT)

    assert scaling.switched == {"eks-web-gpu": 1, "own": 1}
