"""What AWS asks for a machine on demand: the AWS Price List, by its Query API.

Endpoints, filters and answers are those of "Using the AWS Price List Query API" (Billing user guide) and of botocore's
model; where the API has endpoints is in botocore's endpoints.json. It lists no spot prices: see `spot_prices`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow_gpu_provider.platforms.aws.clients import AwsService
from airflow_gpu_provider.platforms.list_prices import Price, Unknown

# One machine's hours, in use, without a licence: the same type is listed for other systems and tenancies, and for
# capacity reservations.
_PLAIN = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}


def read(pricing: AwsService, region: str, types: Iterable[str], currency: str) -> dict[str, Price]:
    """Return what a machine of each type costs an hour.

    Raises:
        CloudError: AWS does not answer.
        PermissionDenied: The identity may not read prices.
    """
    found: dict[str, Price] = {}
    for name in types:
        wanted = {**_PLAIN, "instanceType": name, "regionCode": region}
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
        answer = pricing.call("get_products", ServiceCode="AmazonEC2", Filters=filters, MaxResults=100)
        found[name] = price_of(answer.get("PriceList") or (), f"{name} in {region}", currency)
    return found


def price_of(products: Iterable[str], what: str, currency: str) -> Price:
    """Return the one price of an hour of products, as GetProducts answers them; `what` names the machine. Pure."""
    rates = [prices for product in products for prices in _per_hour(json.loads(product))]
    prices = {float(each[currency]) for each in rates if float(each.get(currency, 0)) > 0}
    if len(prices) == 1:
        return prices.pop()
    others = sorted({name for each in rates for name in each} - {currency})
    if not prices and others:
        return Unknown(why=f"AWS lists {what} in {', '.join(others)}, not in {currency}")
    return Unknown(why=f"AWS lists {'several prices' if prices else 'no price'} for {what}")


def _per_hour(product: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    """Yield the prices of an hour on demand, by currency; a capacity block's, which is paid ahead, is none of them."""
    if product["product"]["attributes"].get("marketoption", "OnDemand") != "OnDemand":
        return
    for term in (product.get("terms", {}).get("OnDemand") or {}).values():
        for rate in term.get("priceDimensions", {}).values():
            if rate.get("unit") == "Hrs":
                yield rate.get("pricePerUnit", {})
