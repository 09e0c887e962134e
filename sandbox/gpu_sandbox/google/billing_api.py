"""The Cloud Billing Catalog, `cloudbilling.googleapis.com/v1`: Compute Engine's SKUs, by which machines are paid for.

A machine is no SKU: its cores, memory and GPUs are, each for on-demand and for spot, and others beside them have
similar names - commitments, flex-start, sole tenancy, custom machines. The descriptions are those that the catalogue
has; no permission is needed to read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from gpu_sandbox.google.errors import invalid, not_found
from gpu_sandbox.google.http_server import Call, Route, route
from gpu_sandbox.google.machine_types import ACCELERATORS
from gpu_sandbox.google.partial_response import masked

COMPUTE_ENGINE = "6F81-5844-456A"

_SERIES = ("A2 Instance", "A3 Instance", "A3Plus Instance", "A3Ultra Instance", "G2 Instance", "G4 Instance")
_N1 = "N1 Predefined Instance"
_CORE, _GIB = 0.025, 0.003  # USD an hour
_SPOT = 0.4  # of the price on demand
_RATES = {"USD": 1.0, "EUR": 0.9}
_MOST_AT_ONCE = 5000
_GPUS: Mapping[str, tuple[str, float]] = {
    "nvidia-tesla-k80": ("Nvidia Tesla K80 GPU", 0.45),
    "nvidia-tesla-p4": ("Nvidia Tesla P4 GPU", 0.6),
    "nvidia-tesla-p100": ("Nvidia Tesla P100 GPU", 1.46),
    "nvidia-tesla-v100": ("Nvidia Tesla V100 GPU", 2.48),
    "nvidia-tesla-t4": ("Nvidia Tesla T4 GPU", 0.35),
    "nvidia-l4": ("Nvidia L4 GPU", 0.56),
    "nvidia-tesla-a100": ("Nvidia Tesla A100 GPU", 2.93),
    "nvidia-a100-80gb": ("Nvidia Tesla A100 80GB GPU", 3.93),
    "nvidia-h100-80gb": ("Nvidia H100 80GB GPU", 9.8),
    "nvidia-h100-mega-80gb": ("Nvidia H100 80GB Mega GPU", 9.99),
    "nvidia-h200-141gb": ("H200 141GB GPU", 9.31),
    "nvidia-b200": ("A4 Nvidia B200 (1 gpu slice)", 16.11),
    "nvidia-rtx-pro-6000": ("RTX 6000 96GB", 2.5),
}


@dataclass(frozen=True, kw_only=True)
class _Sku:
    description: str
    group: str
    usage: str
    usd: float
    unit: str = "h"


class Catalog:
    """The SKUs of one region, and how each differs. They may be set while calls are answered."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._set: dict[str, float] = {}
        self._gone: set[str] = set()

    def set_price(self, description: str, usd: float) -> None:
        """Set a SKU's price; `description` ends before " running in". ValueError if there is none."""
        self._check(description)
        self._set[description] = usd

    def remove(self, description: str) -> None:
        """Have a SKU no more. ValueError if there is none."""
        self._check(description)
        self._gone.add(description)

    def usd(self, description: str) -> float:
        """What a SKU costs an hour. KeyError if there is none."""
        return {_name(sku.description): sku.usd for sku in self._skus()}[description]

    def listed(self) -> Iterator[_Sku]:
        """All of them, other regions' and commitments too, as the catalogue mixes them."""
        for sku in self._skus():
            name = _name(sku.description)
            if name not in self._gone:
                yield sku
                yield _Sku(
                    description=f"Commitment v1: {name} in {_PLACE} for 1 Year",
                    group=sku.group,
                    usage="Commit1Yr",
                    usd=sku.usd / 2,
                )

    def _skus(self) -> Iterator[_Sku]:
        for series in (*_SERIES, _N1):
            for part, usd, unit in (("Core", _CORE, "h"), ("Ram", _GIB, "GiBy.h")):
                group = "N1Standard" if series == _N1 else {"Core": "CPU", "Ram": "RAM"}[part]
                yield from self._both(f"{series} {part}", f"Spot Preemptible {series} {part}", group, usd, unit)
                yield self._one(
                    f"{series} {part} attached to DWS Defined Duration VMs", group, "OnDemand", usd / 2, unit
                )
                yield self._one(f"Sole Tenancy {series} {part}", group, "OnDemand", usd * 1.1, unit)
        for accelerator in ACCELERATORS:
            name, usd = _GPUS[accelerator]
            if accelerator == "nvidia-b200":  # its spot SKU says OnDemand
                yield self._one(name, "GPU", "OnDemand", usd)
                yield self._one(f"Spot Preemptible {name}", "GPU", "OnDemand", usd * _SPOT)
            else:
                yield from self._both(name, f"{name} attached to Spot Preemptible VMs", "GPU", usd, "h")

    def _both(self, name: str, spot: str, group: str, usd: float, unit: str) -> Iterator[_Sku]:
        yield self._one(name, group, "OnDemand", usd, unit)
        yield self._one(spot, group, "Preemptible", usd * _SPOT, unit)

    def _one(self, name: str, group: str, usage: str, usd: float, unit: str = "h") -> _Sku:
        usd = round(self._set.get(name, usd), 6)
        return _Sku(description=f"{name} running in {_PLACE}", group=group, usage=usage, usd=usd, unit=unit)

    def _check(self, description: str) -> None:
        if description not in {_name(sku.description) for sku in self._skus()}:
            raise ValueError(f"no SKU is described as {description!r}")


_PLACE = "Americas"


def _name(description: str) -> str:
    return description.removesuffix(f" running in {_PLACE}")


class BillingApi:
    """Answers services.skus.list, for Compute Engine."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def routes(self) -> list[Route]:
        return [route("cloudbilling:ListSkus", "GET", "/v1/services/{service}/skus", self._list)]

    def _list(self, call: Call) -> dict[str, Any]:
        if call.path["service"] != COMPUTE_ENGINE:
            raise not_found("Requested entity was not found.")
        currency = call.query.get("currencyCode", "USD")
        if currency not in _RATES:
            raise invalid("Request contains an invalid argument.")
        every = [*self._catalog.listed()]
        here, elsewhere = self._catalog.region, "asia-southeast1"
        skus = [_told(sku, region, currency) for region in (elsewhere, here) for sku in every]
        start = int(call.query.get("pageToken") or 0)
        end = start + min(_MOST_AT_ONCE, int(call.query.get("pageSize") or _MOST_AT_ONCE))
        answer = {"skus": skus[start:end], "nextPageToken": str(end) if end < len(skus) else ""}
        return masked(answer, call.query["fields"]) if call.query.get("fields") else answer


def _told(sku: _Sku, region: str, currency: str) -> dict[str, Any]:
    digits = f"{crc32(f'{sku.description}/{region}'.encode()):08X}"
    sku_id = f"{digits[:4]}-{digits[4:]}-0000"
    money = sku.usd * _RATES[currency] * (1.0 if region != "asia-southeast1" else 1.3)
    units = int(money)
    rate = {
        "startUsageAmount": 0,
        "unitPrice": {"currencyCode": currency, "units": str(units), "nanos": round((money - units) * 1e9)},
    }
    expression = {
        "usageUnit": sku.unit,
        "displayQuantity": 1,
        "tieredRates": [rate],
        "usageUnitDescription": "hour" if sku.unit == "h" else "gibibyte hour",
        "baseUnit": "s" if sku.unit == "h" else "By.s",
        "baseUnitConversionFactor": 3600,
    }
    return {
        "name": f"services/{COMPUTE_ENGINE}/skus/{sku_id}",
        "skuId": sku_id,
        "description": sku.description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Compute",
            "resourceGroup": sku.group,
            "usageType": sku.usage,
        },
        "serviceRegions": [region],
        "pricingInfo": [
            {
                "summary": "",
                "pricingExpression": expression,
                "currencyConversionRate": _RATES[currency],
                "effectiveTime": "2026-01-01T00:00:00Z",
            }
        ],
        "serviceProviderName": "Google",
    }
