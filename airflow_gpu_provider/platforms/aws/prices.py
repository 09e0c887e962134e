"""What AWS lists for a pool's candidates: on demand by the AWS Price List, spot by EC2's price history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_gpu_provider.platforms.aws import price_list, spot_prices
from airflow_gpu_provider.platforms.aws.clients import AwsClients, price_list_region
from airflow_gpu_provider.platforms.list_prices import Kept, Price, Unknown, list_prices
from airflow_gpu_provider.pools import Candidate, EksGpuPool
from airflow_gpu_provider.pools.prices import ListPrices

ON_DEMAND = Kept[Mapping[str, Price]]()
"""By type."""

SPOT = Kept[Mapping[tuple[str, str], float]]()
"""By type and zone."""


def read(clients: AwsClients, pool: EksGpuPool, candidates: Sequence[Candidate]) -> ListPrices:
    """Return them; what AWS does not say is unknown, with the reason."""
    types: dict[str, list[str]] = {"ON_DEMAND": [], "SPOT": []}
    for each in candidates:
        market = "ON_DEMAND" if each.market == "RESERVED" else each.market
        if each.instance_type not in (*types.get(market, ()), ""):
            types.setdefault(market, []).append(each.instance_type)
    on_demand = _on_demand(clients, pool, types["ON_DEMAND"]) if types["ON_DEMAND"] else Unknown(why="")
    spot = _spot(clients, pool, types["SPOT"]) if types["SPOT"] else Unknown(why="")

    def price(candidate: Candidate) -> Price:
        if not candidate.instance_type:
            return Unknown(why="the group's instance type is not known")
        if candidate.market == "SPOT":
            return spot if isinstance(spot, Unknown) else _in_zones(spot, candidate)
        if candidate.market in ("ON_DEMAND", "RESERVED"):
            return on_demand if isinstance(on_demand, Unknown) else on_demand[candidate.instance_type]
        return Unknown(why="reserved capacity is paid for ahead of time")

    return list_prices(candidates, price)


def _on_demand(clients: AwsClients, pool: EksGpuPool, types: Sequence[str]) -> Mapping[str, Price] | Unknown:
    if not price_list_region(pool.region):
        return Unknown(why=f"the AWS Price List has no endpoint for {pool.region}")
    key = (pool.aws_conn_id, pool.region, pool.currency, *types)
    return ON_DEMAND.get(key, lambda: price_list.read(clients.pricing, pool.region, types, pool.currency))


def _spot(clients: AwsClients, pool: EksGpuPool, types: Sequence[str]) -> Mapping[tuple[str, str], float] | Unknown:
    currency = spot_prices.currency_of(pool.region)
    if currency != pool.currency:
        return Unknown(why=f"EC2 tells spot prices in {currency}, not in {pool.currency}")
    return SPOT.get((pool.aws_conn_id, pool.region, *types), lambda: spot_prices.read(clients.ec2_once, types))


def _in_zones(prices: Mapping[tuple[str, str], float], candidate: Candidate) -> Price:
    """Return the price in the candidate's zone; of a group over several zones that of the dearest."""
    wheres = [(candidate.instance_type, zone) for zone in candidate.zone.split(", ")]
    found = [prices[where] for where in wheres if where in prices]
    return max(found) if found else Unknown(why=f"EC2 tells no spot price of {candidate.machine} in {candidate.zone}")
