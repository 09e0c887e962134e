"""Prices kept with demand: what machines cost, which groups get none for their price, and when money ends demand."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider.errors import BudgetExceeded, DemandNotExtended, PriceUnknown
from airflow_gpu_provider.ledger.usage import read_runs
from airflow_gpu_provider.money.amounts import cost_since, price_source
from airflow_gpu_provider.money.bill import bill
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.money.run_usage import MachineUse, RunUsage
from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange
from airflow_gpu_provider.scaling.decide.snapshot import budget_lines
from airflow_gpu_provider.scaling.end.extension import Allowance, extend_demand
from airflow_gpu_provider.scaling.state.demand import DemandLease
from tests.unit.scaling.model.night import Night, machines
from tests.unit.scaling.pools import EARLIER, NOW, A, B, key, lease, machine, pool, snapshot

HOUR = timedelta(hours=1)
KEPT_BACK = timedelta(minutes=25)


def listed(hours: float = 0, **per_hour: float) -> ListPrices:
    return ListPrices(at=NOW + hours * HOUR, per_hour=per_hour)


def used(name: str, *prices: ListPrices, until: float = 6) -> RunUsage:
    return RunUsage(key=key(name), wanted=((NOW, NOW + until * HOUR),), worked={}, prices=prices)


def ran(group: str = A, since: float = 0, until: float = 6, **fields: Any) -> MachineUse:
    times = {"launched_at": NOW + since * HOUR, "usable_at": NOW + since * HOUR, "seen_until": NOW + until * HOUR}
    return MachineUse(id=f"i-{group}", node="n", group=group, market="SPOT", **times, **fields)


LIST = pool(price_per_hour="list")


class TestBills:
    def test_a_machine_costs_what_its_group_did_at_each_time(self) -> None:
        run = used("a", listed(0, **{A: 1.0, B: 4.0}), listed(2, **{A: 3.0, B: 4.0}))
        found = bill(LIST, key("a"), [run], [ran(A), ran(B, since=4)])

        assert found.total_cost == pytest.approx(2 * 1.0 + 4 * 3.0 + 2 * 4.0)
        assert found.to_json()["price_source"] == "list price"
        assert found.total_seconds == 8 * 3600

    def test_the_prices_of_all_runs_on_the_pool_count(self) -> None:
        runs = [used("a", listed(0, **{A: 1.0}), until=2), used("b", listed(2, **{A: 3.0}))]
        found = [bill(LIST, key(name), runs, [ran(A)]).total_cost for name in "ab"]
        # Both want it for two hours, and share it; then it is b's alone.
        assert found == [pytest.approx(1.0), pytest.approx(1.0 + 4 * 3.0)]

    def test_what_an_autoscaler_would_have_kept_costs_the_last_price(self) -> None:
        run = used("a", listed(0, **{A: 1.0}), listed(2, **{A: 3.0}))
        found = bill(LIST, key("a"), [run], [ran(A)])
        assert found.autoscaler is not None
        assert found.autoscaler.total_cost == pytest.approx(found.total_cost)  # it wanted it until its end

    @pytest.mark.parametrize("run", [used("a"), used("a", listed(0, **{B: 1.0}))])
    def test_without_a_price_of_the_group_the_cost_is_unknown(self, run: RunUsage) -> None:
        assert bill(LIST, key("a"), [run], [ran(A)]).total_cost is None

    def test_typed_prices_are_the_specs(self) -> None:
        found = bill(pool(price_per_hour=2.0), key("a"), [used("a", listed(0, **{A: 1.0}))], [ran(A)])
        assert (found.total_cost, found.to_json()["price_source"]) == (12.0, "spec")
        assert bill(pool(), key("a"), [used("a")], [ran(A)]).to_json()["price_source"] is None


class TestSnapshots:
    def test_a_machine_costs_what_the_newest_demand_was_asked_for_at(self) -> None:
        leases = (lease("a", prices=listed(-1, **{A: 1.0})), lease("b", prices=listed(0, **{A: 2.0})))
        seen = snapshot(machine(1), leases=leases, spec=LIST)
        assert (seen.price_of(A), cost_since(seen.price_of(A), EARLIER, NOW)) == (2.0, 2.0)
        assert seen.price_of(B) is None
        assert replace(seen, leases=()).price_of(A) is None

    @pytest.mark.parametrize(("prices", "said"), [("list", "list price"), (2.0, "spec"), (None, "")])
    def test_whose_prices(self, prices: Any, said: str) -> None:
        assert price_source(pool(price_per_hour=prices)) == said


class TestDemand:
    def test_a_lease_keeps_them(self) -> None:
        kept = lease(prices=ListPrices(at=NOW, per_hour={A: 0.8}, unknown={B: "AWS refused it"}))
        assert DemandLease.parse(kept.manifest()) == kept

    def test_what_somebody_edited_is_no_price_and_demand_all_the_same(self) -> None:
        raw = lease(prices=listed(0, **{A: 0.8})).manifest()
        raw["metadata"]["annotations"]["airflow-gpu-provider/prices"] = "cheap"
        found = DemandLease.parse(raw)
        assert (found.prices, found.nodes) == (None, 1)
        assert "airflow-gpu-provider/prices is 'cheap'" in str(found.unreadable[0])

    def test_a_run_keeps_each_reading_once(self) -> None:
        first, second = listed(0, **{A: 1.0}), listed(1, **{A: 2.0})
        run = RunUsage.new(key("a"))
        for prices in (first, first, None, second):
            run = run.begun(NOW, NOW + HOUR, prices)
        assert run.prices == (first, second)


class TestGrowth:
    """A pool of spot before on-demand, in one zone, whose cloud lists what the test says."""

    def night(self, monkeypatch: pytest.MonkeyPatch, *, spot: float | None, on_demand: float) -> Night:
        markets = ["SPOT", "ON_DEMAND"]
        night = Night(capacity_types=markets, price_per_hour="list", max_price_per_hour=1.0)
        dear, cheap = (each.group for each in night.pool.candidates(["us-west-2a"]))
        known = {dear: spot, cheap: on_demand}
        prices = ListPrices(at=NOW, per_hour={name: price for name, price in known.items() if price is not None})
        monkeypatch.setattr(type(night.lead.platform), "list_prices", lambda platform: prices)
        return night

    def test_a_group_that_is_too_dear_gets_no_machine_from_the_first_moment_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        night = self.night(monkeypatch, spot=1.5, on_demand=0.8)
        assert [*night.want("one", 2).decision.grow] == ["train-a-g6-xlarge"]
        night.until_usable(2)

    def test_nor_from_a_process_that_did_not_ask(self, monkeypatch: pytest.MonkeyPatch) -> None:
        night = self.night(monkeypatch, spot=1.5, on_demand=0.8)
        night.want("one", 1)
        night.until_usable(1)
        night.pod()  # somebody's own: it needs a second machine, which another process's reconcile asks for
        grown = night.until(lambda outcome: len(machines(outcome)) == 2).snapshot
        assert {machine.group for group in grown.groups for machine in group.live} == {"train-a-g6-xlarge"}

    def test_one_of_unknown_price_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        night = self.night(monkeypatch, spot=None, on_demand=0.8)
        assert [*night.want("one", 1).decision.grow] == ["train-a-g6-xlarge-spot"]

    def test_what_it_cost_is_kept_with_the_demand_and_with_the_runs_record(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        night = self.night(monkeypatch, spot=1.5, on_demand=0.8)
        (lease,) = night.want("one").snapshot.leases
        assert lease.prices is not None
        assert lease.prices.per_hour == {"train-a-g6-xlarge-spot": 1.5, "train-a-g6-xlarge": 0.8}
        (run,) = read_runs(night.api, night.pool.name)
        assert run.prices == (lease.prices,)


class TestMaxCost:
    """Demand that ends with a run's money, by what its ledger knows."""

    def test_the_money_of_all_tries_ends_the_demand(self) -> None:
        night = Night(price_per_hour=2.0)
        first = night.ask(night.lead, night.key("one"), 1, night.world.now + 6 * HOUR, max_cost=8.0)
        (lease,) = first.snapshot.leases
        assert lease.budget is not None
        assert (lease.budget.spent, lease.pods_end_by) == (0.0, lease.budget.at + 4 * HOUR - KEPT_BACK)
        (said,) = budget_lines(first.snapshot, lease.key)
        assert said.startswith("max_cost=8: 0.00 USD are spent, 0.83 USD are kept back")

        night.until_usable(1)
        night.world.actors.advance_to(night.world.actors.time + 3600)
        (again,) = night.ask(night.lead, night.key("one"), 1, night.world.now + 6 * HOUR, max_cost=8.0).snapshot.leases
        assert [each.max_cost for each in read_runs(night.api, night.pool.name)] == [8.0], "for the bill"
        assert again.budget is not None
        assert again.budget.spent == pytest.approx(2.0, rel=0.1)
        assert again.pods_end_by - lease.pods_end_by < timedelta(minutes=10)  # what came late has cost nothing

    def test_the_money_is_counted_from_when_the_bill_begins_and_of_a_running_machine_up_to_then(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever the cloud and the cluster take to answer in between."""
        night = Night(price_per_hour=2.0)
        lead, actors = night.lead, night.world.actors
        observe, record = lead.platform.observe, lead.ledger.machines

        def slowly(*of: Any) -> None:
            record(*of)
            actors.advance_to(actors.time + 40)

        def observe_slowly() -> Any:
            actors.advance_to(actors.time + 20)
            return observe()

        monkeypatch.setattr(lead.platform, "observe", observe_slowly)
        monkeypatch.setattr(lead.ledger, "machines", slowly)

        def wanted() -> DemandLease:
            (lease,) = night.ask(lead, night.key("one"), 1, night.world.now + 6 * HOUR, max_cost=8.0).snapshot.leases
            return lease

        first = wanted()
        (billed,) = read_runs(night.api, night.pool.name)
        assert first.budget is not None
        assert first.budget.at == first.created_at == billed.wanted[0][0]
        assert first.pods_end_by == first.created_at + 4 * HOUR - KEPT_BACK

        night.until_usable(1)
        actors.advance_to(actors.time + 3600)
        again = wanted()
        assert again.budget is not None
        (ran,) = lead.snapshot().groups[0].machines
        assert ran.launched_at is not None
        assert again.budget.spent == pytest.approx(2.0 * ((again.budget.at - ran.launched_at) / HOUR), abs=1e-3)
        assert again.pods_end_by == pytest.approx(ran.launched_at + 4 * HOUR - KEPT_BACK, abs=timedelta(seconds=2))

    def test_its_time_ends_it_where_the_money_lasts_longer(self) -> None:
        night = Night(price_per_hour=2.0)
        until = night.world.now + HOUR
        (lease,) = night.ask(night.lead, night.key("one"), 1, until, max_cost=80.0).snapshot.leases
        assert (lease.ends_by_budget, lease.pods_end_by) == (False, until)

    def test_used_money_starts_nothing(self) -> None:
        night = Night(price_per_hour=2.0)
        night.want("one")
        night.until_usable(1)
        night.world.actors.advance_to(night.world.actors.time + 1800)
        with pytest.raises(BudgetExceeded, match=r"has cost [01]\.\d\d USD of max_cost=0\.5"):
            night.ask(night.lead, night.key("one"), 1, night.world.now + HOUR, max_cost=0.5)

    def test_a_machine_needs_time_to_boot_unless_it_is_there(self) -> None:
        night = Night(price_per_hour=2.0, max_nodes=2)
        until, enough = night.world.now + HOUR, 2.0 * ((KEPT_BACK + timedelta(minutes=4)) / HOUR) + 0.001
        with pytest.raises(BudgetExceeded, match="the rest is not enough"):
            night.ask(night.lead, night.key("one"), 1, until, max_cost=enough - 0.01)
        night.ask(night.lead, night.key("one"), 1, until, max_cost=enough)
        night.until_usable(1)
        night.world.actors.advance_to(night.world.actors.time + 30)
        (again,) = night.ask(night.lead, night.key("one"), 1, until, max_cost=enough).snapshot.leases
        assert again.budget is not None
        assert timedelta(minutes=1) < again.budget.lasts < timedelta(minutes=4)
        with pytest.raises(BudgetExceeded, match="the rest is not enough"):  # the machine that is there is not for it
            night.ask(night.lead, night.key("two"), 1, until, max_cost=enough - 0.01)

    def test_a_price_that_is_not_known_starts_nothing(self) -> None:
        night = Night(price_per_hour={"spot": 1.0}, capacity_types=["SPOT", "ON_DEMAND"])
        with pytest.raises(PriceUnknown):
            night.ask(night.lead, night.key("one"), 1, night.world.now + HOUR, max_cost=5.0)
        assert night.lead.snapshot().leases == ()

    def test_more_than_the_money_takes_a_reason(self) -> None:
        night = Night(price_per_hour=2.0)
        night.ask(night.lead, night.key("one"), 1, night.world.now + 6 * HOUR, max_cost=4.0)
        by = {"dag_id": "dag", "run_id": "one", "by": HOUR, "run_is_over": lambda key: False}
        with pytest.raises(DemandNotExtended, match="ends when its max_cost of 4 USD is used"):
            extend_demand(night.lead, allowance=Allowance(), **by)
        (done,) = extend_demand(night.lead, allowance=Allowance(), **by, reason="nearly there")
        assert done.until - done.before == HOUR
        (lease,) = night.lead.snapshot().leases
        assert not lease.ends_by_budget
        night.world.actors.advance_to(night.world.actors.time + 2 * 3600 + 60)  # the money alone would be used
        (again,) = night.ask(night.lead, night.key("one"), 1, night.world.now + 6 * HOUR, max_cost=4.0).snapshot.leases
        assert (again.until, again.extended) == (lease.until, "nearly there")

    def test_more_money_takes_a_reason_and_lasts_over_later_tries(self) -> None:
        night = Night(price_per_hour=2.0)
        (lease,) = night.ask(night.lead, night.key("one"), 1, night.world.now + 6 * HOUR, max_cost=4.0).snapshot.leases
        more = {"dag_id": "dag", "run_id": "one", "max_cost": 8.0, "run_is_over": lambda key: False}
        with pytest.raises(DemandNotExtended, match=r"may cost 4\.00 USD, and 8\.00 USD is more than its DAG says"):
            extend_demand(night.lead, allowance=Allowance(), **more)
        (done,) = extend_demand(night.lead, allowance=Allowance(), **more, reason="nearly there")
        assert (done.max_cost, done.before) == (8.0, lease.until)
        (raised,) = night.lead.snapshot().leases
        assert raised.ends_by_budget
        assert raised.until == done.until
        assert done.until - done.before == pytest.approx(2 * HOUR, abs=timedelta(minutes=1))

        night.until_usable(1)
        night.world.actors.advance_to(night.world.actors.time + 3600)
        (again,) = night.ask(night.lead, night.key("one"), 1, night.world.now + 6 * HOUR, max_cost=4.0).snapshot.leases
        assert again.budget is not None
        assert (again.budget.limit, again.budget.raised) == (8.0, "nearly there")
        last = night.ask(night.lead, night.key("one"), 1, night.world.now + 6 * HOUR, max_cost=9.0)
        (more_yet,) = last.snapshot.leases
        assert more_yet.budget is not None
        assert more_yet.budget.limit == 9.0  # the DAG gives more by now

    def test_more_money_lasts_no_longer_than_the_pools_max_runtime(self) -> None:
        night = Night(price_per_hour=2.0)
        (lease,) = night.ask(night.lead, night.key("one"), 1, night.world.now + HOUR, max_cost=4.0).snapshot.leases
        (done,) = extend_demand(
            night.lead,
            allowance=Allowance(),
            dag_id="dag",
            run_id="one",
            max_cost=1e6,
            reason="why not",
            run_is_over=lambda key: False,
        )
        assert done.until == lease.created_at + night.pool.max_runtime

    @pytest.mark.parametrize(
        ("given", "has", "said"),
        [
            ({}, 4.0, "neither hours nor max_cost is given"),
            ({"max_cost": 8.0, "by": HOUR}, 4.0, "both hours and max_cost are given"),
            ({"max_cost": 4.0}, 4.0, r"has a max_cost of 4\.00 USD; 4\.00 USD is not more"),
            ({"max_cost": 8.0}, None, "has no max_cost"),
        ],
    )
    def test_what_is_not_more_money(self, given: dict[str, Any], has: float | None, said: str) -> None:
        night = Night(price_per_hour=2.0)
        before = night.ask(night.lead, night.key("one"), 1, night.world.now + HOUR, max_cost=has).snapshot.leases
        with pytest.raises(DemandNotExtended, match=said):
            extend_demand(
                night.lead,
                allowance=Allowance(),
                dag_id="dag",
                run_id="one",
                reason="why not",
                run_is_over=lambda key: False,
                **given,
            )
        assert night.lead.snapshot().leases == before

    def test_who_may_cost_more_already_is_given_time(self) -> None:
        night = Night(price_per_hour=2.0)
        night.ask(night.lead, night.key("one"), 1, night.world.now + HOUR, max_cost=4.0)
        who = {"dag_id": "dag", "run_id": "one", "reason": "nearly there", "run_is_over": lambda key: False}
        extend_demand(night.lead, allowance=Allowance(), **who, by=HOUR)
        with pytest.raises(DemandNotExtended, match=r"may cost more than its max_cost .* \(nearly there\)"):
            extend_demand(night.lead, allowance=Allowance(), **who, max_cost=8.0)

    def test_fewer_nodes_make_the_money_last_longer(self) -> None:
        night = Night(price_per_hour=2.0)
        (lease,) = night.ask(night.lead, night.key("one"), 2, night.world.now + 6 * HOUR, max_cost=4.0).snapshot.leases
        after = replace(lease, nodes=1, until=lease.until + 6 * HOUR)
        night.lead.amend(DemandChange(before=lease, after=after, why="one will do"))
        (amended,) = night.lead.snapshot().leases
        assert amended.budget is not None
        assert amended.budget.per_hour == 2.0
        assert amended.pods_end_by == amended.budget.at + 2 * HOUR - KEPT_BACK
