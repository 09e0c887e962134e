"""What a machine costs by the Cloud Billing Catalog: the sum of its parts, and no price where a part is not known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.clouds.google import machine_types, price_catalog
from airflow_gpu_provider.clouds.google.price_catalog import Part, machine_price, parts, read
from airflow_gpu_provider.clouds.list_prices import Kept, Unknown
from airflow_gpu_provider.errors import ServiceDisabled

REGION = "us-central1"


def sku(description: str, price: float, *, unit: str = "h", region: str = REGION, family: str = "Compute") -> Any:
    """As in the reference of services.skus.list, of what is asked for."""
    money = {"currencyCode": "USD", "units": str(int(price)), "nanos": round((price - int(price)) * 1e9)}
    expression = {"usageUnit": unit, "tieredRates": [{"startUsageAmount": 0, "unitPrice": money}]}
    return {
        "description": description,
        "category": {"resourceFamily": family},
        "serviceRegions": [region, "us-east1"],
        "pricingInfo": [{"pricingExpression": expression}],
    }


G2 = [
    sku("G2 Instance Core running in Americas", 0.025),
    sku("G2 Instance Ram running in Americas", 0.003, unit="GiBy.h"),
    sku("NVIDIA L4 GPU running in Americas", 0.56),
    sku("Spot Preemptible G2 Instance Core running in Americas", 0.01),
    sku("Spot Preemptible G2 Instance Ram running in Americas", 0.001, unit="GiBy.h"),
    sku("Nvidia L4 GPU attached to Spot Preemptible VMs running in Americas", 0.2),
]
OTHERS = [
    sku("G2 Instance Core attached to DWS Defined Duration VMs running in Americas", 9),
    sku("Sole Tenancy G2 Instance Core running in Americas", 9),
    sku("Commitment v1: G2 Cpu in Americas for 1 Year", 9),
    sku("G2 Custom Instance Core running in Americas", 9),
    sku("Nvidia L4 Virtual Workstation GPU running in Americas", 9),
    sku("G2 Instance Core running in Tokyo", 9, region="asia-northeast1"),
    sku("G2 Instance Core running in Americas", 9, family="License"),
    sku("G2 Instance Core running in Americas", 9, unit="mo"),
    {"description": "SSD backed PD Capacity", "serviceRegions": [REGION]},
]


def table(*skus: Any) -> dict[Part, frozenset[float]]:
    found: dict[Part, set[float]] = {}
    for part, price in parts(skus, REGION):
        found.setdefault(part, set()).add(price)
    return {part: frozenset(prices) for part, prices in found.items()}


def test_a_machine_is_its_cores_its_memory_and_its_gpus() -> None:
    known = table(*OTHERS, *G2)
    on_demand = machine_price(known, "g2-standard-24", "nvidia-l4", 2, is_spot=False)
    assert on_demand == pytest.approx(24 * 0.025 + 96 * 0.003 + 2 * 0.56)
    spot = machine_price(known, "g2-standard-24", "nvidia-l4", 2, is_spot=True)
    assert spot == pytest.approx(24 * 0.01 + 96 * 0.001 + 2 * 0.2)


def test_gpus_are_attached_to_an_n1_machine() -> None:
    known = table(
        sku("N1 Predefined Instance Core running in Americas", 0.03),
        sku("N1 Predefined Instance Ram running in Americas", 0.004, unit="GiBy.h"),
        sku("Nvidia Tesla T4 GPU running in Americas", 0.35),
    )
    price = machine_price(known, "n1-standard-8", "nvidia-tesla-t4", 4, is_spot=False)
    assert price == pytest.approx(8 * 0.03 + 30 * 0.004 + 4 * 0.35)


def test_a4_is_paid_for_by_its_gpus_and_its_spot_is_told_by_the_description_alone() -> None:
    known = table(
        sku("A4 Nvidia B200 (1 gpu slice) running in Americas", 16.11),
        sku("Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas", 4.5),
    )
    prices = [machine_price(known, "a4-highgpu-8g", "nvidia-b200", 8, is_spot=spot) for spot in (False, True)]
    assert prices == [pytest.approx(8 * 16.11), pytest.approx(8 * 4.5)]


@pytest.mark.parametrize("missing", range(3))
def test_without_one_of_its_parts_no_price_is_said(missing: int) -> None:
    found = machine_price(table(*G2[:missing], *G2[missing + 1 :]), "g2-standard-4", "nvidia-l4", 1, is_spot=False)
    assert isinstance(found, Unknown)
    assert found.why.startswith("the Cloud Billing Catalog has no SKU for ")


def test_a_part_at_several_prices_is_not_known() -> None:
    known = table(*G2, sku("Nvidia L4 GPU running in Iowa", 0.6))
    found = machine_price(known, "g2-standard-4", "nvidia-l4", 1, is_spot=False)
    assert found == Unknown(why="the Cloud Billing Catalog has several prices for Nvidia L4 GPU")


WITH_GPUS = [name for name in machine_types.gce_machine_types() if not name.startswith(("e2", "n2"))]


@pytest.mark.parametrize("name", WITH_GPUS)
def test_the_series_of_each_machine_with_gpus_is_known(name: str) -> None:
    machine = machine_types.gce_machine_type(name)
    assert machine is not None
    accelerator = machine.gpu.accelerator if machine.gpu else "nvidia-tesla-t4"
    found = machine_price({}, name, accelerator, 1, is_spot=False)
    assert isinstance(found, Unknown)
    assert "has no SKU for" in found.why


def test_a_machine_that_is_newer_than_this_package_is_not_priced() -> None:
    found = machine_price(table(*G2), "g9-standard-4", "nvidia-l9", 1, is_spot=False)
    assert found == Unknown(why="the SKUs of g9-standard-4 with nvidia-l9 are not known to this package")


class Catalog:
    """The catalogue in pages of two, which counts them."""

    def __init__(self, *skus: Any, error: Exception | None = None) -> None:
        self.pages = 0
        self.asked: dict[str, Any] = {}
        self._skus = skus
        self._error = error
        self.billing = self

    def get(self, path: str, *, permission: str, **query: Any) -> dict[str, Any]:
        self.pages += 1
        self.asked = {"path": path, **query}
        if self._error:
            raise self._error
        start = int(query.get("pageToken", 0))
        more = {"nextPageToken": str(start + 2)} if start + 2 < len(self._skus) else {}
        return {"skus": self._skus[start : start + 2], **more}


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    price_catalog.CATALOG.forget()
    yield
    price_catalog.CATALOG.forget()


def pool(**fields: Any) -> GkeGpuPool:
    spec = {"name": "train", "project_id": "project", "location": REGION, "cluster_name": "ml", "max_nodes": 4}
    markets = ["SPOT", "ON_DEMAND"]
    usual = {"machine_types": ["g2-standard-4"], "capacity_types": markets, "price_per_hour": "list"}
    return GkeGpuPool(**{**spec, **usual, **fields})


def test_each_candidate_has_its_price_and_the_pages_are_read_once() -> None:
    catalog: Any = Catalog(*OTHERS, *G2)
    found = [read(catalog, pool(), pool().candidates([f"{REGION}-a"])) for _ in range(2)]

    assert found[0].per_hour == {
        "train-a-g2-standard-4-spot": pytest.approx(4 * 0.01 + 16 * 0.001 + 0.2),
        "train-a-g2-standard-4": pytest.approx(4 * 0.025 + 16 * 0.003 + 0.56),
    }
    assert found[1].per_hour == found[0].per_hour
    assert catalog.pages == (len(OTHERS) + len(G2) + 1) // 2
    assert catalog.asked["path"] == "services/6F81-5844-456A/skus"


def test_how_long_the_pages_took_is_told_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(step=2.5)
    monkeypatch.setattr(price_catalog, "CATALOG", Kept(lambda: next(clock)))
    catalog: Any = Catalog(*G2)
    found = [read(catalog, pool(), pool().candidates([f"{REGION}-a"])) for _ in range(2)]
    assert [each.took for each in found] == [(2.5, 20.0)] * 2
    assert found[0] == replace(found[1], at=found[0].at, took=None), "what is recorded is the same without it"


def test_prices_are_asked_for_in_the_pools_currency() -> None:
    catalog: Any = Catalog(*G2)
    read(catalog, pool(currency="EUR"), pool().candidates([f"{REGION}-a"]))
    assert catalog.asked["currencyCode"] == "EUR"


def test_a_refusal_is_a_reason() -> None:
    refused = ServiceDisabled("cloudbilling.services.skus.list: its API is not enabled in the project.", "Enable it.")
    found = read(Catalog(error=refused), pool(), pool().candidates([f"{REGION}-a"]))  # type: ignore[arg-type]
    assert set(found.unknown.values()) == {"cloudbilling.services.skus.list: its API is not enabled in the project"}


def test_flex_start_is_not_priced_as_something_else() -> None:
    spec = pool(flex_start=True, scaling="autoscaler", capacity_types=["ON_DEMAND"], max_runtime=timedelta(hours=1))
    found = read(SimpleNamespace(billing=None), spec, spec.candidates([f"{REGION}-a"]))  # type: ignore[arg-type]
    assert set(found.unknown.values()) == {"the SKUs of flex-start are not looked up"}
