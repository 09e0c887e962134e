"""Quota first on EKS: what the account's vCPU quotas have no room for is known before anything is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws.owned_platform import OwnedEksPlatform
from airflow_gpu_provider.errors import PermissionDenied, QuotaExceeded
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.scaling.decide.snapshot import without_room
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.aws_account import CLUSTER, LAUNCH, TIMINGS, Account
from tests.sandbox.running import run

ON_DEMAND_G, SPOT_G = "L-DB2E81BA", "L-3819A6DF"
GROUP, SPOT_GROUP = "train-a-g6-xlarge", "train-a-g6-xlarge-spot"
BOTH = ["SPOT", "ON_DEMAND"]


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    account = Account.fresh()
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(account.connection()))
    yield account
    account.close()


@pytest.fixture
def platform(account: Account) -> Callable[..., OwnedEksPlatform]:
    def make(**changes: Any) -> OwnedEksPlatform:
        fields: dict[str, Any] = {
            "name": "train",
            "cluster_name": CLUSTER,
            "region": "us-west-2",
            "instance_types": ["g6.xlarge"],
            "zones": ["us-west-2a"],
            "subnets": list(account.network.subnets.values()),
            "max_nodes": 3,
            "node_role": account.network.node_role_arn,
        }
        return OwnedEksPlatform(EksGpuPool(**(fields | changes)))

    return make


def with_a_machine(account: Account, pool: OwnedEksPlatform) -> OwnedEksPlatform:
    pool.apply(pool.plan(1), print)
    account.advance(TIMINGS.nodegroup_create)
    pool.grow({GROUP: 1})
    account.advance(LAUNCH)
    assert len(account.instances(account.asg_of(GROUP))) == 1
    return pool


def test_room_is_nothing_to_speak_of(account: Account, platform: Callable[..., OwnedEksPlatform]) -> None:
    account.cloud.set_quota(ON_DEMAND_G, 8)
    said: list[str] = []
    platform().groups_over_quota(2, said.append)
    assert said == []


def test_the_error_names_quota_limit_use_and_need(account: Account, platform: Callable[..., OwnedEksPlatform]) -> None:
    account.cloud.set_quota(ON_DEMAND_G, 8)
    pool = with_a_machine(account, platform())
    pool.groups_over_quota(2, print)

    with pytest.raises(QuotaExceeded, match=r"'Running On-Demand G and VT instances' \(L-DB2E81BA\) is 8") as raised:
        pool.groups_over_quota(3, print)

    assert raised.value.details == {
        "quota": "Running On-Demand G and VT instances",
        "code": ON_DEMAND_G,
        "limit": 8.0,
        "used": 4,
        "needed": 8,
    }


def test_a_machine_of_the_pool_that_drains_is_room_that_comes(
    account: Account, platform: Callable[..., OwnedEksPlatform]
) -> None:
    """EC2 counts it while it waits in Terminating:Wait; no second machine is there for a new run, and one will be."""
    pool = with_a_machine(account, platform())
    account.cloud.set_quota(ON_DEMAND_G, 4)
    account.hold_drains()
    pool.release(pool.observe()[0].live)
    account.advance(minutes=14)

    (draining,) = account.group(account.asg_of(GROUP))["Instances"]
    assert draining["LifecycleState"] == "Terminating:Wait"
    pool.groups_over_quota(1, pytest.fail)


def test_a_market_without_quota_is_passed_over(account: Account, platform: Callable[..., OwnedEksPlatform]) -> None:
    account.cloud.set_quota(SPOT_G, 0)
    said: list[str] = []
    pool = platform(capacity_types=BOTH)
    plan = pool.plan(1)
    pool.apply(plan, print, pool.groups_over_quota(1, said.append))
    assert said == [
        "g6.xlarge spot is not tried: quota 'All G and VT Spot Instance Requests' (L-3819A6DF) is 0 vCPUs,"
        " 0 are used, 4 more are needed"
    ]
    assert account.node_groups() == [GROUP]


def test_a_group_without_quota_that_is_there_may_not_grow(
    account: Account, platform: Callable[..., OwnedEksPlatform]
) -> None:
    pool = platform(capacity_types=BOTH)
    pool.apply(pool.plan(1), print)
    account.cloud.set_quota(SPOT_G, 0)
    groups = without_room(pool.observe(), pool.groups_over_quota(1, print))
    assert {group.name: group.max_size for group in groups} == {SPOT_GROUP: 0, GROUP: 3}


def test_two_small_quotas_are_used_together(account: Account, platform: Callable[..., OwnedEksPlatform]) -> None:
    account.cloud.set_quota(SPOT_G, 4)
    account.cloud.set_quota(ON_DEMAND_G, 4)
    pool = platform(capacity_types=BOTH)
    pool.groups_over_quota(2, print)
    with pytest.raises(QuotaExceeded, match=r"spot: .*; g6\.xlarge on-demand: "):
        pool.groups_over_quota(3, print)


def test_who_may_not_read_quotas_goes_on_and_says_so(
    account: Account, platform: Callable[..., OwnedEksPlatform], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        """The sandbox's AWS refuses nobody."""

        def call(self, *_: Any, **__: Any) -> Any:
            raise PermissionDenied("AWS refused servicequotas:GetServiceQuota.")

    pool = platform()
    monkeypatch.setitem(pool._clients.__dict__, "service_quotas", Refusing())
    said: list[str] = []
    pool.groups_over_quota(1, said.append)
    assert said == ["The account's quotas are not checked: AWS refused servicequotas:GetServiceQuota."]


def test_ensure_asks_before_it_creates_anything(
    gpu_sandbox: Sandbox, gpu_sandbox_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    pool = EksGpuPool(
        name="no-quota",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=("p4d.24xlarge",),
        max_nodes=1,
    )
    monkeypatch.setitem(gpu_sandbox.aws.quotas._values, "L-417A185B", 64.0)
    before = gpu_sandbox.aws.calls
    with pytest.raises(QuotaExceeded, match="L-417A185B"):
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool))
    made = gpu_sandbox.aws.calls - before
    assert made["servicequotas:GetServiceQuota"] == 1
    assert not [call for call in made if ":Create" in call or ":Set" in call or ":Put" in call]
