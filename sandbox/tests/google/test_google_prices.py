"""The Cloud Billing Catalog: Compute Engine's SKUs, as the API lists them."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.api_core.exceptions import from_http_response

from sandbox.tests.google.conftest import Project

SERVICE = "6F81-5844-456A"


def page(project: Project, service: str = SERVICE, **query: Any) -> dict[str, Any]:
    url = f"{project.cloud.endpoint_url}/v1/services/{service}/skus"
    response = project.session.get(url, params=query)
    if not response.ok:
        raise from_http_response(response)
    found: dict[str, Any] = response.json()
    return found


def prices(project: Project, region: str = "us-central1", **query: Any) -> dict[str, float]:
    """Of the SKUs of a region, by description."""
    return {
        sku["description"]: int(rate["units"]) + rate["nanos"] / 1e9
        for sku in page(project, **query)["skus"]
        for rate in [sku["pricingInfo"][0]["pricingExpression"]["tieredRates"][-1]["unitPrice"]]
        if region in sku["serviceRegions"]
    }


def test_a_machine_is_the_sum_of_skus_on_demand_and_spot(project: Project) -> None:
    found = prices(project)
    assert {name for name in found if "G2 Instance Core" in name and "Commitment" not in name} == {
        "G2 Instance Core running in Americas",
        "Spot Preemptible G2 Instance Core running in Americas",
        "G2 Instance Core attached to DWS Defined Duration VMs running in Americas",
        "Sole Tenancy G2 Instance Core running in Americas",
    }
    gpu, spot = (
        "Nvidia L4 GPU running in Americas",
        "Nvidia L4 GPU attached to Spot Preemptible VMs running in Americas",
    )
    assert found[spot] == pytest.approx(0.4 * found[gpu])


def test_a_price_is_set_or_gone(project: Project) -> None:
    project.cloud.prices.set_price("Nvidia L4 GPU", 1.25)
    project.cloud.prices.remove("G2 Instance Ram")
    found = prices(project)

    assert found["Nvidia L4 GPU running in Americas"] == 1.25
    assert "G2 Instance Ram running in Americas" not in found
    with pytest.raises(ValueError, match="no SKU"):
        project.cloud.prices.set_price("Nvidia L5 GPU", 1.0)


def test_another_region_has_prices_of_its_own(project: Project) -> None:
    name = "Nvidia L4 GPU running in Americas"
    assert prices(project, "asia-southeast1")[name] > prices(project)[name]


def test_prices_come_in_the_currency_that_is_asked_for(project: Project) -> None:
    name = "Nvidia L4 GPU running in Americas"
    assert prices(project, currencyCode="EUR")[name] == pytest.approx(0.9 * prices(project)[name])
    with pytest.raises(exceptions.BadRequest):
        page(project, currencyCode="XXX")


def test_pages_and_masks(project: Project) -> None:
    mask = "skus(description,category/usageType,pricingInfo/pricingExpression(usageUnit)),nextPageToken"
    first = page(project, pageSize=10, fields=mask)
    assert len(first["skus"]) == 10
    assert first["skus"][0].keys() == {"description", "category", "pricingInfo"}
    assert first["skus"][0]["category"].keys() == {"usageType"}
    second = page(project, pageSize=10, pageToken=first["nextPageToken"])
    assert second["skus"][0]["description"] != first["skus"][0]["description"]
    for wrong in ("skus(description", "skus(price)", "skus)", "skus,,nextPageToken"):
        with pytest.raises(exceptions.BadRequest):
            page(project, fields=wrong)


def test_refusals(project: Project) -> None:
    with pytest.raises(exceptions.NotFound):
        page(project, service="0000-0000-0000")
    project.cloud.disable_service("cloudbilling")
    with pytest.raises(exceptions.Forbidden, match="has not been used in project"):
        page(project)
