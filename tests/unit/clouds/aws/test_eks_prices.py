"""What AWS lists: its products, as GetProducts answers them, and EC2's spot prices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws import prices
from airflow_gpu_provider.clouds.aws.clients import price_list_region
from airflow_gpu_provider.clouds.aws.owned_platform import OwnedEksPlatform
from airflow_gpu_provider.clouds.aws.prices import price_of
from airflow_gpu_provider.clouds.base import Plan
from airflow_gpu_provider.clouds.list_prices import Unknown
from airflow_gpu_provider.errors import CloudError, PermissionDenied
from airflow_gpu_provider.pools import Candidate

NOW = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
WHAT = "g6.xlarge in us-west-2"


def product(*usd: str, currency: str = "USD", unit: str = "Hrs", **attributes: str) -> str:
    """As in the Billing user guide, "Finding services and products"."""
    rates = {f"r{n}": {"unit": unit, "pricePerUnit": {currency: each}} for n, each in enumerate(usd)}
    terms = {"OnDemand": {"sku.term": {"priceDimensions": rates}}} if usd else {}
    return json.dumps({"product": {"attributes": attributes, "sku": "sku"}, "serviceCode": "AmazonEC2", "terms": terms})


class TestProducts:
    def test_one_price(self) -> None:
        assert price_of([product("0.8048000000", marketoption="OnDemand")], WHAT, "USD") == 0.8048

    def test_what_is_paid_ahead_and_what_is_not_an_hours_is_left_out(self) -> None:
        products = [
            product("0.8048"),
            product("0.0000000000"),
            product("31.4", marketoption="CapacityBlock"),
            product("99", unit="Quantity"),
            product("0.8048"),
        ]
        assert price_of(products, WHAT, "USD") == 0.8048

    @pytest.mark.parametrize(
        ("products", "why"),
        [
            ([], f"AWS lists no price for {WHAT}"),
            ([product()], f"AWS lists no price for {WHAT}"),
            ([product("0.80"), product("0.90")], f"AWS lists several prices for {WHAT}"),
            ([product("5.1", currency="CNY")], f"AWS lists {WHAT} in CNY, not in USD"),
        ],
    )
    def test_no_price_has_a_reason(self, products: list[str], why: str) -> None:
        assert price_of(products, WHAT, "USD") == Unknown(why=why)


@pytest.mark.parametrize(
    ("region", "endpoint"),
    [
        ("us-west-2", "us-east-1"),
        ("eu-west-1", "eu-central-1"),
        ("ap-southeast-2", "ap-south-1"),
        ("cn-north-1", "cn-northwest-1"),
        ("us-gov-west-1", ""),
        ("sa-east-1", "us-east-1"),
    ],
)
def test_where_a_regions_prices_are_told(region: str, endpoint: str) -> None:
    assert price_list_region(region) == endpoint


class Aws:
    """AWS's two services, which count what is asked of them."""

    def __init__(self, *, refused: bool = False, silent: bool = False) -> None:
        self.asked: list[str] = []
        self._refused = refused
        self._silent = silent
        self.pricing = self.ec2_once = SimpleNamespace(call=self._products, items=self._history)

    def _answer(self, what: str) -> None:
        self.asked.append(what)
        if self._refused:
            raise PermissionDenied(f"AWS refused {what} (AccessDeniedException).", "Allow it.")
        if self._silent:
            raise CloudError(f"AWS did not answer {what}: timed out.")

    def _products(self, method: str, *, Filters: list[dict[str, str]], **_: Any) -> dict[str, Any]:
        (kind,) = [each["Value"] for each in Filters if each["Field"] == "instanceType"]
        self._answer(f"{method} {kind}")
        return {"PriceList": [product("0.8" if kind == "g6.xlarge" else "1.2")]}

    def _history(self, method: str, _: str, *, InstanceTypes: list[str], **__: Any) -> Iterator[dict[str, Any]]:
        self._answer(f"{method} {','.join(InstanceTypes)}")
        for zone, hours, usd in (("a", -30, "0.20"), ("a", -1, "0.25"), ("b", -2, "0.4")):
            at = NOW + timedelta(hours=hours)
            where = {"AvailabilityZone": f"us-west-2{zone}", "InstanceType": "g6.xlarge"}
            yield {**where, "Timestamp": at, "SpotPrice": usd, "ProductDescription": "Linux/UNIX"}


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    prices.ON_DEMAND.forget()
    prices.SPOT.forget()
    yield
    prices.ON_DEMAND.forget()
    prices.SPOT.forget()


def pool(**fields: Any) -> EksGpuPool:
    spec = {"name": "train", "cluster_name": "ml", "region": "us-west-2", "max_nodes": 4, "price_per_hour": "list"}
    types = ("g6.xlarge", "g6.2xlarge")
    return EksGpuPool(**{**spec, "instance_types": types, "capacity_types": ["SPOT", "ON_DEMAND"], **fields})


def read(aws: Any, spec: EksGpuPool | None = None, zones: tuple[str, ...] = ("us-west-2a", "us-west-2b")) -> Any:
    spec = spec or pool()
    return prices.read(aws, spec, spec.candidates(zones))


def test_each_candidate_has_its_price() -> None:
    aws = Aws()
    found = read(aws)
    assert found.per_hour == {
        "train-a-g6-xlarge-spot": 0.25,
        "train-b-g6-xlarge-spot": 0.4,
        "train-a-g6-xlarge": 0.8,
        "train-b-g6-xlarge": 0.8,
        "train-a-g6-2xlarge": 1.2,
        "train-b-g6-2xlarge": 1.2,
    }
    assert found.unknown["train-a-g6-2xlarge-spot"] == "EC2 tells no spot price of g6.2xlarge spot in us-west-2a"


def test_a_process_asks_once_for_each_type() -> None:
    aws = Aws()
    assert read(aws) == read(aws)
    assert aws.asked == [
        "get_products g6.xlarge",
        "get_products g6.2xlarge",
        "describe_spot_price_history g6.2xlarge,g6.xlarge",
    ]


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_what_aws_does_not_say_is_unknown_and_asked_once(how: str) -> None:
    aws = Aws(**{how: True})
    found = read(aws)
    assert found.per_hour == {}
    assert len(found.unknown) == 8
    assert all("AWS" in why for why in found.unknown.values())
    read(aws)
    assert len(aws.asked) == 2  # the second type is not asked for either


def test_a_group_over_several_zones_costs_what_the_dearest_does() -> None:
    group = Candidate(group="theirs", zone="us-west-2a, us-west-2b", instance_type="g6.xlarge", market="SPOT")
    assert prices.read(Aws(), pool(), [group]).per_hour == {"theirs": 0.4}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("market", "kind", "why"),
    [("CAPACITY_BLOCK", "p5.48xlarge", "paid for ahead of time"), ("ON_DEMAND", "", "type is not known")],
)
def test_what_has_no_list_price(market: Any, kind: str, why: str) -> None:
    group = Candidate(group="theirs", zone="us-west-2a", instance_type=kind, market=market)
    assert why in prices.read(Aws(), pool(), [group]).unknown["theirs"]  # type: ignore[arg-type]


def test_nothing_is_converted() -> None:
    found = read(Aws(), pool(currency="EUR"))
    assert found.unknown["train-a-g6-xlarge-spot"] == "EC2 tells spot prices in USD, not in EUR"
    assert found.unknown["train-a-g6-xlarge"] == "AWS lists g6.xlarge in us-west-2 in USD, not in EUR"


@pytest.mark.parametrize(
    ("region", "currency", "own"),
    [
        ("us-west-2", "EUR", "USD"),
        ("us-west-2", "USD", ""),
        ("cn-north-1", "USD", "CNY"),
        ("cn-north-1", "CNY", ""),
        ("eusc-de-east-1", "EUR", ""),
    ],
)
def test_a_currency_in_which_aws_lists_nothing_is_in_the_plan(
    monkeypatch: pytest.MonkeyPatch, region: str, currency: str, own: str
) -> None:
    platform = OwnedEksPlatform(pool(region=region, currency=currency))
    monkeypatch.setattr(platform, "_read_prices", lambda candidates: None)
    monkeypatch.setattr(platform, "candidates", tuple)
    monkeypatch.setattr(platform, "_plan", lambda nodes, left_out: Plan(pool="train", notes=("known",)))
    what = f'price_per_hour="list" finds no price in {currency}: AWS lists those of {region} in {own}'
    note = f'{what}; set currency="{own}", or give the prices as numbers'
    assert platform.plan(1).notes == ("known", *([note] if own else []))


def test_a_partition_without_an_endpoint_is_not_asked() -> None:
    aws = Aws()
    spec = pool(region="us-gov-west-1", capacity_types=["ON_DEMAND"])
    found = read(aws, spec, ("us-gov-west-1a",))
    assert set(found.unknown.values()) == {"the AWS Price List has no endpoint for us-gov-west-1"}
    assert aws.asked == []


def test_spot_prices_of_the_european_cloud_are_taken_for_no_currency() -> None:
    """No document says in which they are; EC2's answer has a number alone."""
    aws = Aws()
    for currency in ("USD", "EUR"):
        spec = pool(region="eusc-de-east-1", capacity_types=["SPOT"], currency=currency)
        found = read(aws, spec, ("eusc-de-east-1a",))
        assert (found.per_hour, aws.asked) == ({}, [])
        assert "no document says in which currency" in next(iter(found.unknown.values()))
