"""Prices: the Price List API and EC2's history of spot prices, through boto3, by the sandbox's time."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from gpu_sandbox.aws.prices import SPOT_CHANGES
from tests.sandbox.aws_account import Account

LINUX = {"operatingSystem": "Linux", "tenancy": "Shared", "capacitystatus": "Used", "preInstalledSw": "NA"}
NOTHING_BUT_ITSELF = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "sts:GetCallerIdentity", "Resource": "*"}],
}


def pricing(account: Account, region: str = "us-east-1", **key: str) -> Any:
    url = account.cloud.endpoint_url
    admin = account.cloud.access_key
    credentials = {"aws_access_key_id": admin.access_key_id, "aws_secret_access_key": admin.secret_access_key}
    return boto3.client("pricing", region_name=region, endpoint_url=url, **{**credentials, **key})


def products(client: Any, **attributes: str) -> list[dict[str, Any]]:
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in attributes.items()]
    pages = client.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters)
    return [json.loads(text) for page in pages for text in page["PriceList"]]


def usd(product: dict[str, Any]) -> float:
    (term,) = product["terms"]["OnDemand"].values()
    (rate,) = term["priceDimensions"].values()
    assert rate["unit"] == "Hrs"
    return float(rate["pricePerUnit"]["USD"])


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1", "ap-south-1"])
def test_one_machine_on_demand_is_one_product(account: Account, region: str) -> None:
    account.cloud.prices.set_on_demand("g6.xlarge", 0.8048)
    every = products(pricing(account, region), instanceType="g6.xlarge", regionCode=account.cloud.region, **LINUX)

    on_demand = [each for each in every if each["product"]["attributes"]["marketoption"] == "OnDemand"]
    assert [usd(each) for each in on_demand] == [0.8048]
    assert len(every) == 2  # a capacity block's hours cost nothing: they are paid ahead of time


def test_a_machine_is_listed_for_other_systems_and_tenancies_too(account: Account) -> None:
    every = products(pricing(account), instanceType="g6.xlarge")
    assert len({usd(each) for each in every}) > 3
    assert products(pricing(account), instanceType="g6.huge") == []
    assert products(pricing(account), instanceType="g6.xlarge", regionCode="eu-west-1") == []


def test_all_types_come_in_pages(account: Account) -> None:
    assert len({each["product"]["sku"] for each in products(pricing(account), **LINUX)}) > 1000


def test_a_spot_price_changes_in_time(account: Account) -> None:
    zone, now = f"{account.cloud.region}a", account.clock.utc_now()
    asked = {"InstanceTypes": ["g6.xlarge"], "AvailabilityZone": zone, "ProductDescriptions": ["Linux/UNIX"]}
    (first,) = account.ec2.describe_spot_price_history(StartTime=now, **asked)["SpotPriceHistory"]
    account.advance(SPOT_CHANGES.total_seconds())

    second, same = account.ec2.describe_spot_price_history(StartTime=now, **asked)["SpotPriceHistory"]
    assert (same["Timestamp"], same["SpotPrice"]) == (first["Timestamp"], first["SpotPrice"])
    assert second["Timestamp"] - first["Timestamp"] == SPOT_CHANGES
    assert second["SpotPrice"] != first["SpotPrice"]
    on_demand = account.cloud.prices.on_demand("g6.xlarge")
    assert 0.25 * on_demand < float(second["SpotPrice"]) < 0.55 * on_demand


def test_a_spot_price_is_set_from_now_on(account: Account) -> None:
    zone, before = f"{account.cloud.region}a", account.clock.utc_now() - timedelta(minutes=1)
    account.cloud.prices.set_spot("g6.xlarge", zone, 0.25)
    account.advance(minutes=30)
    account.cloud.prices.set_spot("g6.xlarge", zone, 0.5)
    account.advance(minutes=30)

    found = account.ec2.describe_spot_price_history(
        InstanceTypes=["g6.xlarge"], Filters=[{"Name": "availability-zone", "Values": [zone]}], StartTime=before
    )["SpotPriceHistory"]
    assert [float(each["SpotPrice"]) for each in found[:2]] == [0.5, 0.25]
    assert len(found) == 3
    ago = account.clock.utc_now() - timedelta(minutes=45)
    assert account.cloud.prices.spot("g6.xlarge", zone, ago) == 0.25


def test_each_zone_that_offers_a_type_has_its_price(account: Account) -> None:
    region, now = account.cloud.region, account.clock.utc_now()
    account.cloud.set_offered("p5.48xlarge", f"{region}b", offered=False)
    found = account.ec2.describe_spot_price_history(InstanceTypes=["p5.48xlarge"], StartTime=now)["SpotPriceHistory"]

    zones = {each["AvailabilityZone"] for each in found}
    assert f"{region}a" in zones
    assert f"{region}b" not in zones
    assert len(found) == len(zones)


def test_three_months_come_in_pages(account: Account) -> None:
    pages = account.ec2.get_paginator("describe_spot_price_history").paginate(InstanceTypes=["g6.xlarge"])
    found = [price for page in pages for price in page["SpotPriceHistory"]]

    assert len(found) > 1000
    oldest = min(price["Timestamp"] for price in found)
    assert timedelta(days=90) <= account.clock.utc_now() - oldest < timedelta(days=91)


def test_both_take_a_permission(account: Account) -> None:
    key = account.cloud.add_identity("poor", policy=NOTHING_BUT_ITSELF)
    given = {"aws_access_key_id": key.access_key_id, "aws_secret_access_key": key.secret_access_key}
    with pytest.raises(ClientError) as error:
        pricing(account, **given).get_products(ServiceCode="AmazonEC2")
    assert error.value.response["Error"]["Code"] == "AccessDeniedException"

    ec2 = boto3.client("ec2", region_name=account.cloud.region, endpoint_url=account.cloud.endpoint_url, **given)
    with pytest.raises(ClientError) as error:
        ec2.describe_spot_price_history(InstanceTypes=["g6.xlarge"])
    assert error.value.response["Error"]["Code"] == "UnauthorizedOperation"
