"""List prices from the sandbox's clouds: what a plan says of them, what is too dear, and what a refusal changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.clouds.aws import prices
from airflow_gpu_provider.clouds.aws.owned_platform import OwnedEksPlatform
from airflow_gpu_provider.clouds.google import price_catalog
from airflow_gpu_provider.clouds.google.owned_platform import OwnedGkePlatform
from airflow_gpu_provider.errors import PriceLimitExceeded
from gpu_sandbox.aws.prices import SPOT_CHANGES
from gpu_sandbox.google import GoogleCloud
from sandbox.tests.google.conftest import a_project
from tests.sandbox import documented_roles, role_record
from tests.sandbox.aws_account import CLUSTER, Account

A, B = "us-west-2a", "us-west-2b"


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test asks anew, and nothing in the environment leads to another account."""
    for kept in (prices.ON_DEMAND, prices.SPOT, price_catalog.CATALOG):
        kept.forget()
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def account() -> Iterator[Account]:
    account = Account.fresh()
    account.cloud.prices.set_on_demand("g6.xlarge", 0.8048)
    for zone, usd in ((A, 0.25), (B, 0.31)):
        account.cloud.prices.set_spot("g6.xlarge", zone, usd)
    yield account
    account.close()


@pytest.fixture
def act_as(account: Account, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the connection be that of an IAM user with these policies of docs/iam alone; returns the user's ARN."""

    def act(*files: str) -> str:
        policy = documented_roles.policy(*files, **account.placeholders)
        key = account.cloud.add_identity("airflow", policy=policy)
        credentials = {"login": key.access_key_id, "password": key.secret_access_key}
        monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(account.connection() | credentials))
        return key.arn

    return act


def eks(account: Account, **fields: Any) -> OwnedEksPlatform:
    usual = {"instance_types": ["g6.xlarge"], "capacity_types": ["SPOT", "ON_DEMAND"], "price_per_hour": "list"}
    where = {"cluster_name": CLUSTER, "region": account.cloud.region, "zones": [A, B], "max_nodes": 2}
    of_nodes = {"subnets": [*account.network.subnets.values()], "node_role": account.network.node_role_arn}
    return OwnedEksPlatform(EksGpuPool(**{"name": "train", **where, **of_nodes, **usual, **fields}), "tests/dag")


def test_a_plan_says_what_each_candidate_costs(request: pytest.FixtureRequest, account: Account, act_as: Any) -> None:
    arn = act_as("eks-full.json", "eks-prices.json")
    plan = eks(account).plan(1)

    assert plan.prices == (
        f"g6.xlarge spot in {A}: 0.2500 USD (list price) an hour",
        f"g6.xlarge spot in {B}: 0.3100 USD (list price) an hour",
        f"g6.xlarge on-demand in {A}, {B}: 0.8048 USD (list price) an hour",
    )
    assert f"  $ {plan.prices[0]}" in plan.lines()
    assert not account.cloud.refused(arn)
    role_record.hold("eks-prices.json", request.node.nodeid, account.cloud.policy_uses(arn))


def test_what_is_too_dear_is_not_created(account: Account, act_as: Any) -> None:
    act_as("eks-full.json", "eks-prices.json")
    platform = eks(account, max_price_per_hour=0.3)
    plan = platform.plan(1)
    assert [change.group for change in plan.changes] == ["train-a-g6-xlarge-spot"]
    assert [str(each.candidate) for each in plan.too_dear] == [
        f"g6.xlarge spot in {B}",
        f"g6.xlarge on-demand in {A}",
        f"g6.xlarge on-demand in {B}",
    ]
    assert plan.grow == (f"train-a-g6-xlarge-spot 0->1 (g6.xlarge spot in {A} first)",)
    platform.apply(plan, print)
    assert account.eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"] == ["train-a-g6-xlarge-spot"]

    with pytest.raises(PriceLimitExceeded, match=r"0\.2500 USD \(list price\) an hour is more than"):
        eks(account, max_price_per_hour=0.2).plan(1)


def test_the_spot_price_is_that_of_the_moment(account: Account, act_as: Any) -> None:
    act_as("eks-full.json", "eks-prices.json")
    platform = eks(account, instance_types=["g6.2xlarge"], capacity_types=["SPOT"], zones=[A])
    seen = []
    for _ in range(3):
        prices.SPOT.forget()
        listed = platform.list_prices()
        assert listed is not None
        seen.append(listed.per_hour["train-a-g6-2xlarge-spot"])
        account.advance(SPOT_CHANGES.total_seconds())
    at = [account.now - n * SPOT_CHANGES for n in (3, 2, 1)]
    assert seen == [account.cloud.prices.spot("g6.2xlarge", A, each) for each in at]
    assert len(set(seen)) > 1


def test_without_the_permission_a_price_is_unknown_and_nothing_else_changes(account: Account, act_as: Any) -> None:
    act_as("eks-full.json")
    platform = eks(account, max_price_per_hour=0.3)
    plan = platform.plan(1)

    assert len(plan.changes) == 4
    assert plan.too_dear == ()
    assert all("unknown (AWS refused" in line and "it is kept" in line for line in plan.prices)
    on_spot, on_demand = plan.prices[0], plan.prices[-1]
    assert "ec2:DescribeSpotPriceHistory" in on_spot
    assert "pricing:GetProducts" in on_demand


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleCloud]:
    with a_project() as project:
        cloud = project.cloud
        monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(cloud.connection()))
        yield cloud


def gke(cloud: GoogleCloud, **fields: Any) -> OwnedGkePlatform:
    where = {"project_id": cloud.project_id, "location": cloud.region, "cluster_name": "k8s-ml"}
    usual = {"machine_types": ["g2-standard-8"], "node_locations": ["us-central1-a"], "max_nodes": 2}
    markets = {"capacity_types": ["SPOT", "ON_DEMAND"], "price_per_hour": "list", "max_runtime": timedelta(hours=1)}
    return OwnedGkePlatform(GkeGpuPool(**{"name": "train", **where, **usual, **markets, **fields}), "tests/dag")


def test_a_machine_is_the_sum_of_its_skus(cloud: GoogleCloud) -> None:
    cloud.prices.set_price("Nvidia L4 GPU", 0.7)
    of = cloud.prices.usd
    on_demand = 8 * of("G2 Instance Core") + 32 * of("G2 Instance Ram") + 0.7
    spot = "Spot Preemptible G2 Instance"
    gpu = of("Nvidia L4 GPU attached to Spot Preemptible VMs")
    listed = gke(cloud).list_prices()

    assert listed is not None
    assert listed.per_hour == {
        "train-a-g2-standard-8": pytest.approx(on_demand),
        "train-a-g2-standard-8-spot": pytest.approx(8 * of(f"{spot} Core") + 32 * of(f"{spot} Ram") + gpu),
    }
    euros = gke(cloud, currency="EUR").list_prices()
    assert euros is not None
    assert euros.per_hour["train-a-g2-standard-8"] == pytest.approx(0.9 * on_demand)


def test_each_of_the_catalogues_machines_has_a_price(cloud: GoogleCloud) -> None:
    types = ["a2-highgpu-1g", "a2-ultragpu-8g", "a3-highgpu-8g", "a3-megagpu-8g", "a3-ultragpu-8g", "a4-highgpu-8g"]
    fields = {"machine_types": [*types, "g4-standard-48"], "max_runtime": timedelta(hours=1)}
    spec = gke(cloud, **fields)._pool
    listed = price_catalog.read(gke(cloud)._clients, spec, spec.candidates(["us-central1-a"]))
    assert listed.unknown == {}
    assert len(listed.per_hour) == 14


def test_a_node_pool_that_is_too_dear_is_not_created(cloud: GoogleCloud) -> None:
    plan = gke(cloud, max_price_per_hour=0.5).plan(1)
    assert [change.group for change in plan.changes] == ["train-a-g2-standard-8-spot"]
    assert [each.candidate.market for each in plan.too_dear] == ["ON_DEMAND"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda cloud: cloud.disable_service("cloudbilling"), "its API is not enabled in the project"),
        (lambda cloud: cloud.restrict_service("cloudbilling"), "VPC Service Controls perimeter"),
        (lambda cloud: cloud.prices.remove("G2 Instance Ram"), "no SKU for G2 Instance Ram"),
    ],
)
def test_what_google_does_not_say_is_unknown_and_nothing_else_changes(
    cloud: GoogleCloud, change: Any, why: str
) -> None:
    change(cloud)
    plan = gke(cloud, max_price_per_hour=0.5).plan(1)
    assert why in plan.prices[-1]
    assert "train-a-g2-standard-8" in [each.group for each in plan.changes]
