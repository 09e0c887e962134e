"""Node groups of blocks that are over, and of what a spec no longer names: they go once they are empty."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider.clouds.aws.leftover_groups import KEPT_FOR
from airflow_gpu_provider.clouds.aws.owned_platform import OwnedEksPlatform
from airflow_gpu_provider.errors import CloudError
from tests.sandbox.aws_account import LAUNCH, TIMINGS, Account
from tests.sandbox.test_owned_templates import templates
from tests.sandbox.test_platform_eks import Pools
from tests.sandbox.test_platform_eks import account as account
from tests.sandbox.test_platform_eks import pools as pools

A, B = "us-west-2a", "us-west-2b"
P5 = "p5.48xlarge"
BOTH: dict[str, Any] = {"instance_types": [P5], "capacity_types": ["RESERVED", "ON_DEMAND"], "zones": [A]}
ON_DEMAND = "train-a-p5-48xlarge"


def applied(account: Account, platform: OwnedEksPlatform) -> list[str]:
    """Return what the plan does; the time that it takes passes."""
    plan = platform.plan(1)
    platform.apply(plan, print)
    account.advance(TIMINGS.nodegroup_create)
    return [f"{change.action} {change.group}" for change in plan.changes if change.action != "update"]


def block(account: Account) -> str:
    return account.cloud.reserve("capacity-block", P5, A, count=1, lasts=timedelta(hours=24))


def test_a_block_a_week_leaves_nothing_of_the_former_ones(account: Account, pools: Pools) -> None:
    before = ""
    for _ in range(4):
        id_ = block(account)
        did = applied(account, pools.platform(**BOTH, reservations=[id_]))
        group = f"{ON_DEMAND}-{id_}"
        assert f"create {group}" in did
        assert not before or f"delete {before}" in did
        assert account.node_groups() == sorted([ON_DEMAND, group])
        before = group
        account.advance(hours=24 * 7)
    platform = pools.platform(**BOTH, reservations=[id_])
    (change,) = platform.plan(1).changes
    assert change.detail == f"no machine comes from {id_} any more, and it has no machine"
    assert f"  - {before}: no machine comes" in platform.plan(1).lines()[1]
    applied(account, platform)
    assert platform.plan(1).changes == ()
    assert len(templates(account)) <= 2, "those of groups that are gone go with the next that goes"


def test_a_group_of_the_spec_s_former_zone_goes_after_a_day_and_only_when_it_is_empty(
    account: Account, pools: Pools
) -> None:
    platform = pools.ready(zones=[A, B])
    only = pools.platform(zones=[B])
    applied(account, only)
    assert only.plan(0).is_empty, "a run of today may have the former spec"
    platform.grow({"train-a-g6-xlarge": 1})
    account.advance(LAUNCH)
    account.advance(KEPT_FOR.total_seconds())
    assert only.plan(0).is_empty
    platform.release(platform.observe()[0].live)
    account.advance(hours=1)
    plan = only.plan(0)
    (change,) = plan.changes
    assert (change.action, change.group, change.detail) == (
        "delete",
        "train-a-g6-xlarge",
        "the spec no longer names what it is for, and it has no machine",
    )
    platform.grow({"train-a-g6-xlarge": 1})
    only.apply(plan, print)
    assert account.describe("train-a-g6-xlarge")["status"] == "ACTIVE"


def test_another_writer_s_group_stays(account: Account, pools: Pools) -> None:
    pools.ready("prod/other", zones=[A])
    pools.ready(zones=[B])
    account.advance(KEPT_FOR.total_seconds())
    assert pools.platform(zones=[B]).plan(0).is_empty


def test_all_that_a_pool_has_stays_so_that_a_run_can_say_why_it_has_no_node(account: Account, pools: Pools) -> None:
    only = {**BOTH, "capacity_types": ["RESERVED"], "reservations": [block(account)]}
    applied(account, pools.platform(**only))
    account.advance(hours=25)
    assert pools.platform(**only).plan(1).changes == ()


def test_they_make_room_where_the_cluster_has_as_many_groups_as_eks_allows(account: Account, pools: Pools) -> None:
    """Before the most wanted, a paid block's, is given up; those of today too."""
    account.cloud.set_quota("L-6D54EA21", 2)
    pools.ready(zones=[B, A])
    said: list[str] = []
    platform = pools.platform(**BOTH, reservations=[block(account)])
    with pytest.raises(CloudError, match="train-a-g6-xlarge, which the pool no longer needs") as full:
        platform.apply(platform.plan(1), said.append)
    assert full.value.tolerated_for is None
    account.advance(TIMINGS.nodegroup_delete)
    assert account.node_groups() == []
    applied(account, platform)
    assert [group.candidate.market for group in platform.observe()] == ["CAPACITY_BLOCK", "ON_DEMAND"]
    assert not any("does without" in line for line in said)
