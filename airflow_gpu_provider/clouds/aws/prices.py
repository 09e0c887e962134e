"""What AWS lists for a pool's candidates: on demand by the AWS Price List, spot by EC2's price history.

Endpoints, filters and answers of the first are those of "Using the AWS Price List Query API" (Billing user guide) and
of botocore's model; where it has endpoints is in botocore's endpoints.json. It lists no spot prices: the newest entry
of DescribeSpotPriceHistory is the price. From a StartTime on that answers each change, and the last one before ("Spot
Instance pricing history", EC2 user guide). EC2 tells spot prices in US dollars, in China in yuan.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider.clouds.aws.clients import AwsClients, AwsService, price_list_region
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.list_prices import Kept, Price, Unknown, list_prices
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.pools import Candidate

ON_DEMAND = Kept[Mapping[str, Price]]()
"""By type."""

SPOT = Kept[Mapping[tuple[str, str], float]]()
"""By type and zone."""

# One machine's hours, in use, without a licence: the same type is listed for other systems and tenancies, and for
# capacity reservations.
_PLAIN = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}

_AS_ON_DEMAND = ("ON_DEMAND", "RESERVED")
_PRODUCT = "Linux/UNIX"
_CLOCKS_APART = timedelta(hours=1)


def read(clients: AwsClients, pool: EksGpuPool, candidates: Sequence[Candidate]) -> ListPrices:
    """Return them; what AWS does not say is unknown, with the reason."""
    priced = [each for each in candidates if each.instance_type]
    plain = list(dict.fromkeys(each.instance_type for each in priced if each.market in _AS_ON_DEMAND))
    on_spot = list(dict.fromkeys(each.instance_type for each in priced if each.market == "SPOT"))
    on_demand = _on_demand(clients, pool, plain) if plain else Unknown(why="")
    spot = _spot(clients, pool, on_spot) if on_spot else Unknown(why="")

    def price(candidate: Candidate) -> Price:
        if not candidate.instance_type:
            return Unknown(why="the group's instance type is not known")
        if candidate.market == "SPOT":
            return spot if isinstance(spot, Unknown) else _in_zones(spot, candidate)
        if candidate.market in _AS_ON_DEMAND:
            return on_demand if isinstance(on_demand, Unknown) else on_demand[candidate.instance_type]
        return Unknown(why="reserved capacity is paid for ahead of time")

    return list_prices(candidates, price)


def currency_notes(pool: EksGpuPool) -> tuple[str, ...]:
    """Return that AWS lists no price in the pool's currency, and what to do, if so."""
    own = currency_of(pool.region)
    if not pool.has_list_prices or own in (None, pool.currency):
        return ()
    what = f'price_per_hour="list" finds no price in {pool.currency}: AWS lists those of {pool.region} in {own}'
    return (f'{what}; set currency="{own}", or give the prices as numbers',)


def _on_demand(clients: AwsClients, pool: EksGpuPool, types: Sequence[str]) -> Mapping[str, Price] | Unknown:
    if not price_list_region(pool.region):
        return Unknown(why=f"the AWS Price List has no endpoint for {pool.region}")
    key = (pool.aws_conn_id, pool.region, pool.currency, *types)
    return ON_DEMAND.get(key, lambda: on_demand_prices(clients.pricing, pool.region, types, pool.currency))


def _spot(clients: AwsClients, pool: EksGpuPool, types: Sequence[str]) -> Mapping[tuple[str, str], float] | Unknown:
    currency = currency_of(pool.region)
    if currency is None:
        return Unknown(why=f"no document says in which currency EC2 tells spot prices in {pool.region}")
    if currency != pool.currency:
        return Unknown(why=f"EC2 tells spot prices in {currency}, not in {pool.currency}")
    return SPOT.get((pool.aws_conn_id, pool.region, *types), lambda: spot_prices(clients.ec2_once, types))


def _in_zones(prices: Mapping[tuple[str, str], float], candidate: Candidate) -> Price:
    """Return the price in the candidate's zone; of a group over several zones that of the dearest."""
    wheres = [(candidate.instance_type, zone) for zone in candidate.zone.split(", ")]
    found = [prices[where] for where in wheres if where in prices]
    return max(found) if found else Unknown(why=f"EC2 tells no spot price of {candidate.machine} in {candidate.zone}")


def on_demand_prices(pricing: AwsService, region: str, types: Iterable[str], currency: str) -> dict[str, Price]:
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


def currency_of(region: str) -> str | None:
    """Return the currency of a region's spot prices; None for the European Sovereign Cloud: no document says it."""
    if region.startswith("eusc-"):
        return None
    return "CNY" if region.startswith("cn-") else "USD"


def spot_prices(ec2: AwsService, types: Collection[str]) -> dict[tuple[str, str], float]:
    """Return what a spot machine costs an hour now, by type and zone.

    Raises:
        CloudError: EC2 does not answer.
        PermissionDenied: The identity may not read them.
    """
    entries = ec2.items(
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=sorted(types),
        ProductDescriptions=[_PRODUCT],
        StartTime=datetime.now(UTC) - _CLOCKS_APART,
    )
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    for entry in entries:
        where, reading = (
            (entry["InstanceType"], entry["AvailabilityZone"]),
            (entry["Timestamp"], float(entry["SpotPrice"])),
        )
        newest[where] = max(newest.get(where, reading), reading)
    return {where: price for where, (_, price) in newest.items()}
