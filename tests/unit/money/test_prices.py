"""What machines cost: the forms of a spec's prices, a list's readings over time, and the limit."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.money.price_order import order_lines
from airflow_gpu_provider.money.prices import ListPrices, PriceRecord, money, price_lines, too_dear, too_dear_lines
from airflow_gpu_provider.pools import Candidate

AT = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def pool(**fields: Any) -> EksGpuPool:
    spec = {"name": "train", "cluster_name": "ml", "region": "us-west-2", "instance_types": ("g6.xlarge",)}
    return EksGpuPool(**{**spec, "max_nodes": 4, **fields})


def candidate(zone: str, market: Any = "ON_DEMAND") -> Candidate:
    group = f"train-{zone}{'-spot' * (market == 'SPOT')}"
    return Candidate(group=group, zone=f"us-west-2{zone}", instance_type="g6.xlarge", market=market)


def listed(hours: float = 0, unknown: str = "", **per_hour: float) -> ListPrices:
    why = {unknown: "AWS refused pricing:GetProducts"} if unknown else {}
    return ListPrices(at=AT + hours * HOUR, per_hour=per_hour, unknown=why)


class TestSpecs:
    def test_the_list_is_a_price_of_its_own(self) -> None:
        spec = pool(price_per_hour="list")
        assert spec.has_list_prices
        assert spec.price("ON_DEMAND") is None
        assert deserialize_pool(spec.serialize()) == spec
        assert not pool(price_per_hour="0.8").has_list_prices

    def test_a_decimal_is_a_number(self) -> None:
        assert pool(price_per_hour=Decimal("0.8")) == pool(price_per_hour=0.8)
        assert pool(price_per_hour=Decimal("0.8"), max_price_per_hour=Decimal("1.5")).max_price_per_hour == 1.5

    def test_prices_and_their_limit_shape_no_group(self) -> None:
        assert pool(price_per_hour="list", max_price_per_hour=3).spec_hash == pool().spec_hash

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"price_per_hour": 2, "max_price_per_hour": 0}, "must be a number above 0"),
            ({"price_per_hour": 2, "max_price_per_hour": -1}, "must be a number above 0"),
            ({"price_per_hour": 2, "max_price_per_hour": "much"}, "is not a number"),
            ({"price_per_hour": 2, "max_price_per_hour": float("inf")}, "must be a number above 0"),
            ({"max_price_per_hour": 1}, "needs prices"),
            ({"price_per_hour": 2, "max_price_per_hour": 1}, "each price of price_per_hour is more"),
            ({"price_per_hour": {"on-demand": 2, "spot": 0.5}, "max_price_per_hour": 1}, "each price"),
            ({"price_per_hour": "list", "max_price_per_hour": 1, "scaling": "autoscaler"}, "others add the nodes"),
            ({"price_per_hour": "liszt"}, "is not a number"),
            ({"price_per_hour": {"spot": "list"}}, "is not a number"),
            (
                {"price_per_hour": {"ondemand": 2}, "max_price_per_hour": 1},
                r"must be a price .*ON_DEMAND",
            ),
            ({"price_per_hour": float("inf")}, "=inf must be a price of 0 or more"),
            ({"price_per_hour": {"spot": float("inf")}}, "must be a price of 0 or more"),
            ({"price_per_hour": True}, "=True must be a price of 0 or more"),
            ({"price_per_hour": ("list",)}, "must be a price of 0 or more"),
        ],
    )
    def test_what_cannot_be_met_is_refused(self, fields: dict[str, Any], said: str) -> None:
        with pytest.raises(PoolSpecError, match=said):
            pool(**fields)

    @pytest.mark.parametrize(
        "fields",
        [
            {"price_per_hour": {"on-demand": 2, "spot": 0.5}, "capacity_types": ["SPOT", "ON_DEMAND"]},
            {"price_per_hour": {"on-demand": 2}, "capacity_types": ["SPOT", "ON_DEMAND"]},  # spot's is not known
            {"price_per_hour": "list"},
            {"price_per_hour": "{{ var.value.price }}"},
        ],
    )
    def test_what_one_candidate_may_meet_is_not(self, fields: dict[str, Any]) -> None:
        assert pool(max_price_per_hour=1, **fields).max_price_per_hour == 1

    def test_nodes_of_no_known_cloud_have_no_list(self) -> None:
        with pytest.raises(PoolSpecError, match="needs a cloud that is asked"):
            KubernetesGpuPool(name="train", nodes=["a"], price_per_hour="list")

    def test_gke_has_one(self) -> None:
        spec = GkeGpuPool(
            name="train",
            max_nodes=1,
            project_id="project",
            location="us-central1",
            cluster_name="ml",
            machine_types=["g2-standard-4"],
            price_per_hour="list",
            currency="EUR",
        )
        assert money(spec, 0.7068) == "0.7068 EUR (list price)"


class TestReadings:
    def test_they_are_read_back_as_written(self) -> None:
        found = ListPrices.parse(listed(unknown="train-b", **{"train-a": 0.8}).dump())
        assert found == listed(unknown="train-b", **{"train-a": 0.8})
        assert hash(found) == hash(listed())

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"at": "x", "per_hour": {}}', '{"per_hour": {}}', "nan"])
    def test_what_is_none_is_an_error(self, text: str) -> None:
        with pytest.raises((ValueError, TypeError)):
            ListPrices.parse(text)

    def test_a_machine_costs_what_was_read_last(self) -> None:
        readings = [listed(3, **{"train-a": 0.9}), None, listed(0, **{"train-a": 0.8}), listed(5, unknown="train-a")]
        record = PriceRecord.of(pool(price_per_hour="list"), readings)
        prices = [record.price("train-a", "SPOT", AT + hours * HOUR) for hours in (-1, 0, 2, 3, 6)]

        assert prices == [0.8, 0.8, 0.8, 0.9, 0.9]  # before the first reading it was that one
        assert record.price("train-a", "SPOT") == 0.9
        assert [*record.changes("train-a")] == [AT + 3 * HOUR]
        assert record.price("train-b", "SPOT") is None
        assert record.why_unknown("train-a") == ""

    def test_typed_prices_have_no_readings(self) -> None:
        record = PriceRecord.of(pool(price_per_hour=2.0), [listed(**{"train-a": 0.8})])
        assert (record.price("train-a", "SPOT"), record.readings) == (2.0, ())

    def test_what_is_no_longer_told_stays(self) -> None:
        newer = listed(1, unknown="train-a", **{"train-b": 2.0})
        found = newer.with_older(listed(**{"train-a": 1.0, "train-b": 3.0}))
        assert (found.per_hour, found.unknown) == ({"train-a": 1.0, "train-b": 2.0}, {})
        assert found.at == newer.at
        assert newer.with_older(None) is newer


class TestOrder:
    def test_each_candidate_has_its_place_and_the_reason(self) -> None:
        spec = pool(price_per_hour="list", prefer="price")
        candidates = [candidate("a"), candidate("b"), candidate("c"), candidate("d"), candidate("e", "CAPACITY_BLOCK")]
        record = PriceRecord.of(spec, [listed(**{"train-a": 1.04, "train-b": 2.0, "train-c": 1.0})])
        assert order_lines(record, candidates) == (
            'prefer="price", 1.: g6.xlarge capacity-block in us-west-2e: reserved',
            'prefer="price", 2.: g6.xlarge on-demand in us-west-2a, us-west-2c: 1.0000 to 1.0400 USD (list price) an'
            " hour, equally cheap, in the spec's order",
            'prefer="price", 3.: g6.xlarge on-demand in us-west-2b: 2.0000 USD (list price) an hour',
            'prefer="price", 4.: g6.xlarge on-demand in us-west-2d: at a price that is not known',
        )
        assert order_lines(PriceRecord.of(pool(price_per_hour="list"), []), candidates) == ()


class TestLimit:
    def test_what_costs_more_is_dropped_and_what_nobody_knows_is_kept(self) -> None:
        spec = pool(price_per_hour="list", max_price_per_hour=1)
        candidates = [candidate("a"), candidate("b"), candidate("c")]
        record = PriceRecord.of(spec, [listed(unknown="train-c", **{"train-a": 1.0, "train-b": 1.0001})])

        assert too_dear_lines(too_dear(record, candidates)) == (
            "g6.xlarge on-demand in us-west-2b is not tried: 1.0001 USD (list price) an hour is more than"
            " max_price_per_hour=1",
        )
        assert price_lines(record, candidates) == (
            "g6.xlarge on-demand in us-west-2a: 1.0000 USD (list price) an hour",
            "g6.xlarge on-demand in us-west-2b: 1.0001 USD (list price) an hour",
            "g6.xlarge on-demand in us-west-2c: unknown (AWS refused pricing:GetProducts); it is kept, whatever"
            " max_price_per_hour says",
        )

    def test_zones_that_cost_the_same_are_told_in_one_line(self) -> None:
        spec = pool(price_per_hour={"spot": 2, "on-demand": 3}, capacity_types=["SPOT", "ON_DEMAND"])
        spec = replace(spec, max_price_per_hour=2.5)
        candidates = [candidate(zone, market) for market in ("SPOT", "ON_DEMAND") for zone in "abc"]
        (line,) = too_dear_lines(too_dear(PriceRecord.of(spec, []), candidates))
        assert line.startswith("g6.xlarge on-demand in us-west-2a, us-west-2b, us-west-2c is not tried: 3.0000 USD")

    def test_typed_prices_are_held_to_it_too(self) -> None:
        spec = pool(
            price_per_hour={"spot": 0.5, "on-demand": 2}, capacity_types=["SPOT", "ON_DEMAND"], max_price_per_hour=1
        )
        candidates = [candidate("a", "SPOT"), candidate("a")]
        record = PriceRecord.of(spec, [])
        assert [each.candidate.market for each in too_dear(record, candidates)] == ["ON_DEMAND"]
        assert price_lines(record, candidates)[0] == "g6.xlarge spot in us-west-2a: 0.5000 USD an hour"

    def test_zones_of_one_price_are_one_line(self) -> None:
        record = PriceRecord.of(pool(price_per_hour="list"), [listed(**{"train-a": 12.0, "train-b": 12.0})])
        assert price_lines(record, [candidate("a"), candidate("b")]) == (
            "g6.xlarge on-demand in us-west-2a, us-west-2b: 12.00 USD (list price) an hour",
        )

    def test_without_list_and_limit_nothing_is_said(self) -> None:
        record = PriceRecord.of(pool(price_per_hour=2.0), [])
        assert price_lines(record, [candidate("a")]) == too_dear(record, [candidate("a")]) == ()


@pytest.mark.parametrize("market", ["RESERVED", "CAPACITY_BLOCK"])
def test_what_is_reserved_is_never_too_dear(market: Any) -> None:
    """It is paid for whether a run uses it or not: spot machines beside it would be paid for twice."""
    spec = EksGpuPool(
        name="train",
        cluster_name="c",
        region="us-west-2",
        max_nodes=2,
        instance_types=["p5.48xlarge"],
        capacity_types=["RESERVED", "SPOT"],
        reservations=["cr-0a1b2c3d4e5f67890"],
        price_per_hour="list",
        max_price_per_hour=40,
    )
    reserved = spec.reserved_candidate("cr-0a1b2c3d4e5f67890", "us-west-2a", "p5.48xlarge", market)
    (spot,) = spec.candidates(["us-west-2a"])
    read = ListPrices(at=datetime.now(UTC), per_hour={reserved.group: 55.04, spot.group: 41.0})
    found = too_dear(PriceRecord.of(spec, [read]), [reserved, spot])
    assert [each.candidate for each in found] == [spot]
