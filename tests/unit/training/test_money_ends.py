"""A pod whose run has a max_cost: it ends with the money, is told so, and no retry repeats it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider.errors import BudgetExceeded, ClusterUnreachable, PodDeadline, PodFailed, PodPreempted
from airflow_gpu_provider.money.budget import Budget
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.training.life import run as life_run
from tests.fakes.clock import START
from tests.unit.training.pod_life import FAILED, LATER, Life, event
from tests.unit.training.pod_life import nodes as nodes
from tests.unit.training.test_pod_placement import a_pool
from tests.unit.training.test_wait_contract import under_way
from tests.unit.training.waiting_kinds import GANG, POD, WORKLOAD, Kind, Night, run

KEY = DemandKey(installation="i", dag_id="d", run_id="r", pool="train-gpu")
HOUR = timedelta(hours=1)
LATE = PodDeadline("Pod train-x ran for longer than its activeDeadlineSeconds.", "Raise it.", pod="train-x")


def lease(ends_at: Any, **fields: Any) -> DemandLease:
    """Demand whose money is used at that time: 8 an hour, for six hours before."""
    budget = Budget(limit=50.0, spent=2.0, at=ends_at - 6 * HOUR, per_hour=8.0)
    made = DemandLease(key=KEY, nodes=2, until=budget.stops_by, created_at=budget.at, budget=budget)
    return replace(made, **fields)


def resume(life: Life, error: Any) -> None:
    life.tries.resume(event("failed", error))


@pytest.mark.parametrize("error", [LATE, PodPreempted(LATE.what, pod="train-x")])
def test_the_end_of_the_money_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch, error: PodFailed) -> None:
    monkeypatch.setattr(life_run, "list_demand", lambda *_: (lease(LATER),))
    said = "max_cost of 50 USD for pool train-gpu is used at the latest by now"
    with pytest.raises(BudgetExceeded, match=said) as ended:
        resume(Life(FAILED), error)
    assert "ran for longer than its activeDeadlineSeconds" in ended.value.what
    assert ended.value.details == {"pod": "train-x"}
    assert not ended.value.retryable


@pytest.mark.parametrize(
    "of_run",
    [
        lease(LATER + HOUR),  # execution_timeout, or a namespace's policy, ended it before
        lease(LATER, extended="the model is nearly there"),
        lease(LATER, until=LATER - HOUR),  # max_runtime did
        lease(LATER, budget=None),
    ],
)
def test_another_end_of_its_time_is_not(monkeypatch: pytest.MonkeyPatch, of_run: DemandLease) -> None:
    monkeypatch.setattr(life_run, "list_demand", lambda *_: (of_run,))
    with pytest.raises(PodDeadline):
        resume(Life(FAILED), LATE)


def test_nor_a_failure_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_run, "list_demand", lambda *_: (lease(LATER),))
    with pytest.raises(PodFailed, match="It failed"):
        resume(Life(FAILED), PodFailed("It failed.", exit_code=3))


def test_a_cluster_that_does_not_answer_leaves_the_pods_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise ClusterUnreachable("The API server was away.")

    monkeypatch.setattr(life_run, "list_demand", away)
    with pytest.raises(PodDeadline):
        resume(Life(FAILED), LATE)


def deadlines(**fields: Any) -> life_run.PodDeadlines:
    clock: Any = SimpleNamespace(now=lambda: LATER, of_local=lambda at: at)
    api: Any = None
    given: dict[str, Any] = {"max_runtime": HOUR, "execution_timeout": None, "started_at": None, **fields}
    return life_run.PodDeadlines(api=api, clock=clock, key=KEY, **given)


@pytest.mark.parametrize("ago", [timedelta(seconds=-9), timedelta(0), 4 * timedelta(minutes=1), 30 * HOUR])
def test_no_pod_is_made_once_the_money_is_used(monkeypatch: pytest.MonkeyPatch, ago: timedelta) -> None:
    monkeypatch.setattr(life_run, "list_demand", lambda *_: (lease(LATER - ago),))
    with pytest.raises(BudgetExceeded, match=r"max_cost of 50 USD .* is used .*No pod was created"):
        deadlines().seconds_of_pod(a_pool(), LATER)


@pytest.mark.parametrize("ago", [timedelta(seconds=-9), timedelta(0), 4 * timedelta(minutes=1), 30 * HOUR])
def test_nor_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch, ago: timedelta) -> None:
    for of_run in (lease(LATER, budget=None, until=LATER - ago), lease(LATER + HOUR, until=LATER - ago)):
        monkeypatch.setattr(life_run, "list_demand", lambda *_, of_run=of_run: (of_run,))
        with pytest.raises(PodDeadline, match="no pod was created") as over:
            deadlines(at_latest=LATER - ago).seconds_of_pod(a_pool(), LATER)
        assert not over.value.retryable


@pytest.mark.parametrize("ago", [timedelta(seconds=-9), timedelta(0), 30 * HOUR])
def test_another_try_has_more_of_the_tasks_own_time(monkeypatch: pytest.MonkeyPatch, ago: timedelta) -> None:
    timed_out = {"execution_timeout": HOUR, "started_at": LATER - ago - HOUR}
    for demand, own in ((lease(LATER + HOUR), timed_out), (None, timed_out), (None, {"at_latest": LATER - ago})):
        monkeypatch.setattr(life_run, "list_demand", lambda *_, demand=demand: tuple(filter(None, [demand])))
        with pytest.raises(PodDeadline, match="no pod was created") as late:
            deadlines(**own).seconds_of_pod(a_pool(), LATER)
        assert late.value.retryable


def test_before_that_it_has_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_run, "list_demand", lambda *_: (lease(LATER + timedelta(seconds=10)),))
    assert deadlines().seconds_of_pod(a_pool(min_nodes=1), LATER) == 10
    assert deadlines().seconds_of_pod(a_pool(), LATER) is None, "its task ends it, or the switch"


@pytest.mark.parametrize("kind", [POD, GANG, WORKLOAD], ids=str)
def test_the_log_warns_when_most_of_it_is_used(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    short_at = START + 2 * HOUR
    wait = replace(kind.wait, money_short_at=short_at)
    assert type(wait).from_record(wait.to_record()) == wait
    monkeypatch.setattr(type(wait), "from_record", classmethod(lambda cls, record: wait))

    async def what(night: Night) -> None:
        await under_way(night)
        assert not any("max_cost" in line for line in night.lines)
        night.clock.sleep((short_at - night.clock.now()).total_seconds())
        await night.says("80% of what max_cost leaves for work are used by now")

    run(kind, what)


@pytest.mark.parametrize("kind", [POD, GANG, WORKLOAD], ids=str)
def test_the_wait_looks_again_at_that_moment(kind: Kind) -> None:
    short_at = START + timedelta(minutes=1)
    wait = replace(kind.wait, money_short_at=short_at)
    assert wait.next_look(wait.deadline, START) == short_at
    assert wait.next_look(wait.deadline, short_at) == wait.deadline
