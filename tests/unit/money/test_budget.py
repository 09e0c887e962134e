"""What a run may cost: how long its money lasts, over all tries, and the least that works."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.errors import BudgetExceeded, PoolSpecError, PriceUnknown
from airflow_gpu_provider.money.budget import Budget, as_amount, budget_of, check_max_cost, dearest
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.switch import TIME_TO_STOP, unwatched_for
from airflow_gpu_provider.scaling.state.demand import DemandLease

AT = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
KEY = DemandKey(installation="tests", dag_id="nightly", run_id="run", pool="train")


def pool(**fields: Any) -> EksGpuPool:
    spec = {"name": "train", "cluster_name": "ml", "region": "us-west-2", "instance_types": ("g6.xlarge",)}
    return EksGpuPool(**{**spec, "max_nodes": 8, **fields})


def listed(unknown: str = "", **per_hour: float) -> ListPrices:
    return ListPrices(at=AT, per_hour=per_hour, unknown={unknown: "AWS refused it"} if unknown else {})


class TestHowLong:
    def test_the_rest_is_spent_at_the_dearest_machine_for_all_nodes(self) -> None:
        spec = pool(price_per_hour={"spot": 1.0, "on-demand": 4.0}, capacity_types=["SPOT", "ON_DEMAND"])
        found = budget_of(spec, 50, nodes=2, spent=10.0, at=AT, listed=None)
        kept_back = timedelta(minutes=25)
        assert (found.per_hour, found.reserve) == (8.0, pytest.approx(8 * kept_back / HOUR))
        assert found.ends_at == AT + 5 * HOUR - kept_back
        assert found.used_at(0.8) == AT + (0.8 * (50 - found.reserve) - 10) / 8 * HOUR
        assert found.stops_by == found.ends_at + TIME_TO_STOP

    def test_what_has_been_used_already_was_used_before(self) -> None:
        found = Budget(limit=100, spent=90, at=AT, per_hour=10)
        assert found.used_at(0.8) == AT - HOUR

    def test_what_is_left_is_counted_at_the_dearest_machine_and_never_less_than_nothing(self) -> None:
        found = Budget(limit=100, spent=90, at=AT, per_hour=8)
        assert [found.left_at(AT + hours * HOUR) for hours in (0, 1, 5)] == [10, 2, 0]

    def test_what_costs_next_to_nothing_lasts_for_years(self) -> None:
        assert budget_of(pool(price_per_hour=0.0), 1, nodes=1, spent=0.0, at=AT, listed=None).lasts > 365 * 24 * HOUR

    @pytest.mark.parametrize("spent", [49.99, 50.0, 80.0])
    def test_when_it_is_used_nothing_is_started(self, spent: float) -> None:
        with pytest.raises(
            BudgetExceeded,
            match=r"has cost .* USD of max_cost=50, and the rest is not enough for 2 nodes at 8.00 USD an hour in all",
        ):
            budget_of(pool(price_per_hour=4.0), 50, nodes=2, spent=spent, at=AT, listed=None)

    def test_it_is_final(self) -> None:
        assert not BudgetExceeded.retryable
        assert PriceUnknown.retryable


class TestWhatIsKeptBack:
    def test_on_eks_until_the_scheduled_action_has_been_carried_out(self) -> None:
        assert unwatched_for(pool()) == timedelta(minutes=25)
        assert unwatched_for(pool(min_nodes=1)) == TIME_TO_STOP, "no switch ends these"

    def test_on_gke_for_the_life_of_a_machine_that_came_last(self) -> None:
        spec = GkeGpuPool(
            name="train",
            project_id="ml-project",
            location="us-central1",
            cluster_name="ml",
            machine_types=["g2-standard-8"],
            max_nodes=1,
            max_runtime=2 * HOUR,
            price_per_hour=1.0,
        )
        assert unwatched_for(spec) == timedelta(hours=2, minutes=17)
        assert budget_of(spec, 10, nodes=1, spent=0.0, at=AT, listed=None).lasts == timedelta(hours=7, minutes=43)
        assert unwatched_for(replace(spec, max_run_duration=3 * HOUR)) == TIME_TO_STOP + 3 * HOUR

    def test_machines_that_others_end_have_the_time_to_stop(self) -> None:
        assert unwatched_for(KubernetesGpuPool(name="train", nodes=["a"])) == TIME_TO_STOP

    def test_less_than_that_is_refused_with_the_least_that_works(self) -> None:
        """120 USD an hour: 25 minutes that are kept back are 50 USD, and four minutes for a boot and work are 8."""
        spec = pool(price_per_hour={"on-demand": 120.0})
        with pytest.raises(BudgetExceeded, match=r"cost 50.00 USD after SIGTERM.*Raise max_cost to 58.01 or more"):
            budget_of(spec, 2, nodes=1, spent=0.0, at=AT, listed=None)
        with pytest.raises(BudgetExceeded, match=r"Raise max_cost to 126.01 or more"):
            budget_of(spec, 60, nodes=2, spent=10.0, at=AT, listed=None)
        assert budget_of(spec, 58.01, nodes=1, spent=0.0, at=AT, listed=None).lasts >= timedelta(minutes=4)

    def test_where_the_nodes_are_there_a_minute_is_enough(self) -> None:
        spec = pool(price_per_hour={"on-demand": 120.0})
        there: dict[str, Any] = {"nodes": 1, "at": AT, "listed": None, "are_there": lambda: True}
        assert budget_of(spec, 60, spent=7.9, **there).lasts >= timedelta(minutes=1)
        with pytest.raises(BudgetExceeded, match=r"Raise max_cost to 66\.11 or more"):
            budget_of(spec, 60, spent=8.1, **there)

    def test_and_when_the_dag_is_parsed_for_one_node(self) -> None:
        spec = pool(price_per_hour={"on-demand": 120.0})
        with pytest.raises(PoolSpecError, match=r"max_cost=2 is not enough for 1 node .* Raise max_cost to 58.01"):
            check_max_cost(spec, 2)
        check_max_cost(spec, 60)


class TestDearest:
    def test_a_list_price_of_what_is_not_dropped(self) -> None:
        spec = pool(price_per_hour="list", max_price_per_hour=3)
        assert dearest(spec, listed(a=1.0, b=2.5, c=60.0)) == 2.5

    @pytest.mark.parametrize("prices", [listed("b", a=1.0), listed()])
    def test_one_unknown_price_is_too_many(self, prices: ListPrices) -> None:
        with pytest.raises(PriceUnknown, match="needs the price of each node that may come"):
            dearest(pool(price_per_hour="list"), prices)

    def test_what_the_run_has_cost_must_be_known_too(self) -> None:
        with pytest.raises(PriceUnknown, match="what the run has cost so far is not known"):
            budget_of(pool(price_per_hour=1.0), 5, nodes=1, spent=None, at=AT, listed=None)

    @pytest.mark.parametrize(
        ("spec", "price"),
        [
            (pool(price_per_hour=2.0), 2.0),
            (pool(price_per_hour={"spot": 1, "on-demand": 4}), 4.0),
            (pool(price_per_hour={"spot": 9, "on-demand": 4}), 4.0),  # no spot machine can come
            (KubernetesGpuPool(name="train", nodes=["a"], price_per_hour=3.0), 3.0),
        ],
    )
    def test_typed_prices_of_the_pools_markets(self, spec: Any, price: float) -> None:
        assert dearest(spec, None) == price


class TestParsing:
    @pytest.mark.parametrize("max_cost", [0, -1, "much", True, float("inf"), float("nan")])
    def test_no_amount(self, max_cost: Any) -> None:
        with pytest.raises(PoolSpecError, match="max_cost="):
            check_max_cost(pool(price_per_hour=1.0), max_cost)

    @pytest.mark.parametrize("rendered", ["", "-1", "nan", "inf", "2,5"])
    def test_a_template_may_have_rendered_to_none(self, rendered: str) -> None:
        with pytest.raises(PoolSpecError, match=f"max_cost='{rendered}'. Give a number above 0"):
            as_amount(rendered)

    @pytest.mark.parametrize("fields", [{}, {"capacity_types": ["SPOT", "ON_DEMAND"], "price_per_hour": {"spot": 1.0}}])
    def test_without_prices_it_cannot_be_held(self, fields: dict[str, Any]) -> None:
        with pytest.raises(PoolSpecError, match="max_cost=5 needs the price of each kind of node"):
            check_max_cost(pool(**fields), 5)

    @pytest.mark.parametrize("price", [1.0, "list", {"on-demand": 1.0}, "{{ var.value.price }}"])
    def test_with_them_it_can(self, price: Any) -> None:
        check_max_cost(pool(price_per_hour=price), 5)
        check_max_cost(pool(price_per_hour=price), "2.5")
        check_max_cost(pool(price_per_hour=price), Decimal("2.5"))
        check_max_cost(pool(), None)
        check_max_cost(pool(), "{{ params.max_cost }}")


class TestDemand:
    def lease(self, until: datetime, **fields: Any) -> DemandLease:
        budget = Budget(limit=50, spent=10 / 3, at=AT, per_hour=7.7)
        return DemandLease(key=KEY, nodes=1, until=until, created_at=AT, budget=budget, **fields)

    def test_it_is_kept_with_the_lease(self) -> None:
        kept = self.lease(AT + HOUR)
        assert DemandLease.parse(kept.manifest()) == kept
        assert kept.budget is not None
        raised = replace(kept, budget=replace(kept.budget, raised="the model is nearly there"))
        assert DemandLease.parse(raised.manifest()) == raised
        assert hash(kept)

    def test_pods_end_with_the_money_and_machines_stay_for_them_a_moment_longer(self) -> None:
        budget = self.lease(AT).budget
        assert budget is not None
        by_money = DemandLease.parse(self.lease(budget.stops_by).manifest())
        assert by_money.ends_by_budget
        assert by_money.pods_end_by == budget.ends_at
        by_time = self.lease(AT + HOUR)
        assert (by_time.ends_by_budget, by_time.pods_end_by) == (False, AT + HOUR)
        more = self.lease(budget.stops_by + HOUR, extended="the model is nearly there")
        assert (more.ends_by_budget, more.pods_end_by) == (False, more.until)
