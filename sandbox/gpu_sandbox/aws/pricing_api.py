"""The Price List Query API: EC2's products with their prices, as GetProducts answers them.

Attributes, terms and their nesting are those of "Finding services and products using the AWS Price List Query API" in
the Billing user guide. A type is listed several times: for Windows, dedicated, and by whether a capacity reservation
is used, as in AWS's own list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from zlib import crc32

from moto.core.responses import BaseResponse
from moto.ec2.models.instance_types import INSTANCE_TYPES

from gpu_sandbox.aws.prices import Prices

REGIONS = frozenset({"us-east-1", "eu-central-1", "ap-south-1"})
"""Where the API has endpoints, which know the prices of all regions (botocore's endpoints.json)."""

_SERVICE = "AmazonEC2"
_TERM, _RATE = "JRTCKXETXF", "6YS6EN2CT7"  # on demand, by the hour
_MOST_AT_ONCE = 100
_MATCHES: Mapping[str, Callable[[str, str], bool]] = {
    "TERM_MATCH": lambda value, wanted: value == wanted,
    "EQUALS": lambda value, wanted: value == wanted,
    "CONTAINS": lambda value, wanted: wanted in value,
    "ANY_OF": lambda value, wanted: value in wanted.split(","),
    "NONE_OF": lambda value, wanted: value not in wanted.split(","),
}
# What differs between the products of one type, and how its price compares with that of the first.
_PRODUCTS: tuple[tuple[Mapping[str, str], float], ...] = (
    ({"capacitystatus": "Used", "usagetype": "BoxUsage"}, 1.0),
    ({"capacitystatus": "AllocatedCapacityReservation", "usagetype": "Reservation"}, 0.0),
    ({"capacitystatus": "UnusedCapacityReservation", "usagetype": "UnusedBox"}, 1.0),
    ({"tenancy": "Dedicated", "usagetype": "DedicatedUsage"}, 1.1),
    ({"operatingSystem": "Windows", "operation": "RunInstances:0002", "usagetype": "BoxUsage"}, 1.4),
    ({"preInstalledSw": "SQL Std", "operation": "RunInstances:0004", "usagetype": "BoxUsage"}, 3.0),
    ({"marketoption": "CapacityBlock", "usagetype": "CapacityBlockUsage"}, 0.0),
)


class PricingResponse(BaseResponse):
    """GetProducts, of EC2's machines in one region."""

    def __init__(self, prices: Prices, region: str) -> None:
        super().__init__(service_name="pricing")
        self._prices = prices
        self._of = region

    def get_products(self) -> str:
        filters = self._get_param("Filters") or []
        if self._get_param("ServiceCode") != _SERVICE:
            return json.dumps({"FormatVersion": "aws_v1", "PriceList": []})
        found = [product for product in self._products(filters) if _fits(product["product"]["attributes"], filters)]
        start = int(self._get_param("NextToken") or 0)
        end = start + min(_MOST_AT_ONCE, int(self._get_param("MaxResults") or _MOST_AT_ONCE))
        more = {"NextToken": str(end)} if end < len(found) else {}
        page = [json.dumps(product) for product in found[start:end]]
        return json.dumps({"FormatVersion": "aws_v1", "PriceList": page, **more})

    def _products(self, filters: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
        named = {each["Value"] for each in filters if each["Field"] == "instanceType" and each["Type"] == "TERM_MATCH"}
        for name in sorted(named or INSTANCE_TYPES):
            try:
                usd = self._prices.on_demand(name)
            except KeyError:
                continue
            for differs, share in _PRODUCTS:
                yield _product(name, self._of, differs, round(usd * share, 10))


def _fits(attributes: Mapping[str, str], filters: list[dict[str, str]]) -> bool:
    return all(_MATCHES[each["Type"]](attributes.get(each["Field"], ""), each["Value"]) for each in filters)


def _product(name: str, region: str, differs: Mapping[str, str], usd: float) -> dict[str, Any]:
    sku = f"{crc32(f'{name}/{region}/{sorted(differs.items())}'.encode()):08X}"
    attributes = {
        "servicecode": _SERVICE,
        "servicename": "Amazon Elastic Compute Cloud",
        "instanceType": name,
        "regionCode": region,
        "locationType": "AWS Region",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "preInstalledSw": "NA",
        "licenseModel": "No License required",
        "marketoption": "OnDemand",
        "operation": "RunInstances",
        **differs,
    }
    attributes["usagetype"] = f"{attributes['usagetype']}:{name}"
    rate = {
        "unit": "Hrs",
        "beginRange": "0",
        "endRange": "Inf",
        "description": f"${usd} per On Demand {attributes['operatingSystem']} {name} Instance Hour",
        "appliesTo": [],
        "rateCode": f"{sku}.{_TERM}.{_RATE}",
        "pricePerUnit": {"USD": f"{usd:.10f}"},
    }
    term = {
        "priceDimensions": {f"{sku}.{_TERM}.{_RATE}": rate},
        "sku": sku,
        "effectiveDate": "2026-01-01T00:00:00Z",
        "offerTermCode": _TERM,
        "termAttributes": {},
    }
    return {
        "product": {"productFamily": "Compute Instance", "attributes": attributes, "sku": sku},
        "serviceCode": _SERVICE,
        "terms": {"OnDemand": {f"{sku}.{_TERM}": term}},
        "version": "20260101000000",
        "publicationDate": "2026-01-01T00:00:00Z",
    }
