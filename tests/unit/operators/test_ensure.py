"""EnsureGpuPoolOperator: for how long a run wants nodes, and when it refuses to bring any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes
from airflow_gpu_provider.clouds.base import GroupChange, Machine
from airflow_gpu_provider.cluster.api.clock import SystemClock
from airflow_gpu_provider.errors import (
    BudgetExceeded,
    CloudError,
    ClusterUnreachable,
    CredentialsError,
    DemandLockBusy,
    GpuError,
    OutOfStock,
    PermissionDenied,
    PoolDrift,
    ScaleDownIsOver,
)
from airflow_gpu_provider.money.budget import budget_of
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.operators import ensured
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.scaling.apply.writes import Outcome
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
from airflow_gpu_provider.scaling.wait.records import Progress
from airflow_gpu_provider.tasks.run_identity import run_ends_by
from tests.sandbox.running import context_of
from tests.unit.scaling.pools import machine, snapshot

START = datetime(2026, 1, 1, 2, tzinfo=UTC)
POOL = EksGpuPool(name="gpu", cluster_name="ml", region="us-west-2", instance_types=("g6.xlarge",), max_nodes=1)


def nightly(**fields: Any) -> DAG:
    with DAG("nightly", schedule=None, start_date=START, **fields) as dag, gpu_nodes(POOL):
        GpuPodOperator(task_id="train", image="busybox", cmds=["true"])
    return dag


class Ti:
    dag_id, task_id, run_id, map_index = "nightly", "gpu.ensure", "r", -1

    def __init__(self, **states: str | None) -> None:
        self.states = {f"gpu.{name}": state for name, state in states.items()}

    def get_task_states(self, *, task_ids: list[str], **_: Any) -> dict[str, dict[str, str | None]]:
        return {self.run_id: {name: state for name, state in self.states.items() if name in task_ids}}


@pytest.mark.parametrize(("minutes", "is_told"), [(4, True), (5, True), (6, False)])
def test_a_time_that_allows_one_try_is_told_when_the_dag_is_parsed(
    recwarn: pytest.WarningsRecorder, minutes: int, is_told: bool
) -> None:
    """A zone without capacity is not tried again for five minutes."""
    how = {"timeout": timedelta(minutes=4), "give_up_after": timedelta(minutes=minutes)}
    for pool in (POOL, replace(POOL, scaling="autoscaler")):
        EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1, **how)
    told = [str(each.message) for each in recwarn if "give_up_after" in str(each.message)]
    assert len(told) == is_told


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "upstream_failed"])
def test_ensure_that_is_cleared_alone_brings_nothing_that_nobody_takes_away(state: str) -> None:
    ensure: Any = nightly().get_task("gpu.ensure")
    with pytest.raises(ScaleDownIsOver, match=r"gpu\.scale_down has already run.*downstream"):
        ensure.execute({"ti": Ti(scale_down=state, done=None)})


def test_run_ends_a_moment_after_its_timeout() -> None:
    dag_run = SimpleNamespace(start_date=START)
    timed = {"dag": nightly(dagrun_timeout=timedelta(hours=2)), "dag_run": dag_run}
    assert run_ends_by(timed) == START + timedelta(hours=2, minutes=1)
    assert run_ends_by({"dag": nightly(), "dag_run": dag_run}) is None


class Pool:
    """A pool whose calls fail in a row first, and then work."""

    def __init__(self, *left: list[Machine], **failures: list[GpuError]) -> None:
        self._left = list(left)
        self._failures = failures
        self.calls: list[str] = []
        self.clock = self.platform = self
        self.pool = POOL
        self.api = None
        self.changes: tuple[GroupChange, ...] = ()

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self._failures.get(name):
            raise self._failures[name].pop(0)

    def now(self) -> datetime:
        return START

    def plan(self, nodes: int) -> Any:
        self._call("plan")
        return SimpleNamespace(
            lines=list, is_empty=True, changes=self.changes, too_dear=(), groups=None, listed=None, read_at=None
        )

    def check_one_spec(self, key: Any) -> None:
        self._call("check_one_spec")

    def groups_over_quota(self, nodes: int, report: Any, plan: Any) -> frozenset[str]:
        self._call("groups_over_quota")
        return frozenset()

    def apply(self, plan: Any, report: Any, over_quota: Any) -> None:
        self._call("apply")

    def upgrade(self, report: Any) -> None:
        self._call("upgrade")

    def want(self, *_: Any, **__: Any) -> Any:
        self._call("want")
        return SimpleNamespace(snapshot=None, log_lines=())

    def record_machines(self) -> None:
        self._call("record_machines")

    def check_autoscaler(self) -> None:
        pass

    def delete_demand_and_reconcile(self, key: Any) -> Any:
        self._call("delete_demand_and_reconcile")
        found = snapshot(*(self._left.pop(0) if self._left else ()))
        return Outcome(snapshot=found, decision=decide(found), log_lines=())


RESULT = {"nodes": [{"name": "n1", "instance_type": "", "zone": ""}], "timeline": []}


@pytest.fixture
def ensure(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pool], Any]:
    """Run Ensure on a pool; no time passes."""
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    passed = iter(range(0, 10**6, 5))
    monkeypatch.setattr(SystemClock, "now", lambda self: START + timedelta(seconds=next(passed)))
    monkeypatch.setattr(SystemClock, "sleep", lambda self, seconds: None)
    monkeypatch.setattr("airflow_gpu_provider.scaling.end.release_now.time.sleep", lambda seconds: None)
    monkeypatch.setattr("airflow_gpu_provider.scaling.state.demand_leases.list_demand", lambda *_: [])
    monkeypatch.setattr(NodesWait, "step", lambda self, snapshot: Progress(done=True, result=RESULT))

    def run(pool: Pool, **arguments: Any) -> Any:
        operator = EnsureGpuPoolOperator(**{"task_id": "ensure", "gpu_pool": POOL, **arguments})
        with opening(pool):
            return operator.execute(context_of(operator))

    return run


@contextmanager
def opening(pool: Pool) -> Iterator[None]:
    """Meanwhile this pool is what tasks connect to."""

    def open_pool(*_: Any, **__: Any) -> Pool:
        pool._call("open")
        return pool

    with patch("airflow_gpu_provider.scaling.apply.reconcile.open_pool", open_pool):
        yield


@pytest.mark.parametrize("step", ["open", "check_one_spec", "plan", "groups_over_quota", "apply", "want"])
@pytest.mark.parametrize("cls", [PermissionDenied, CloudError, ClusterUnreachable, CredentialsError, DemandLockBusy])
def test_first_leg_bears_what_may_pass(ensure: Any, step: str, cls: type[GpuError]) -> None:
    pool = Pool(**{step: [cls("No."), cls("No.")]})
    assert ensure(pool)["nodes"] == RESULT["nodes"]
    assert pool.calls.count(step) >= 3
    assert "delete_demand_and_reconcile" not in pool.calls


@pytest.mark.parametrize("step", ["open", "plan", "groups_over_quota", "apply", "want"])
@pytest.mark.parametrize("error", [PoolDrift("Changed."), PermissionDenied("No.")])
def test_first_leg_ends_with_what_lasts_or_cannot_pass(ensure: Any, step: str, error: GpuError) -> None:
    pool = Pool(**{step: [error] * 100})
    with pytest.raises(type(error)):
        ensure(pool)
    times = pool.calls.count(step) - (step == "plan" and "apply" in pool.calls)
    assert times == 1 if error.tolerated_for == timedelta(0) else 25 < times < 65  # five minutes, five seconds a look
    assert ("delete_demand_and_reconcile" in pool.calls) == (step in ("apply", "want"))


@pytest.mark.parametrize("is_handed_back", [False, True])
@pytest.mark.parametrize("step", ["open", "check_one_spec", "plan", "apply", "want"])
@pytest.mark.usefixtures("ensure")
def test_a_try_that_only_read_leaves_a_mark_for_its_scale_down(step: str, is_handed_back: bool) -> None:
    operator = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL)
    context = context_of(operator)
    event = {"status": "handed back", "message": "An older release cannot read the row."}
    begin = partial(operator.resume_execution, "resume", {"event": event}) if is_handed_back else operator.execute
    with pytest.raises(PoolDrift), opening(Pool(**{step: [PoolDrift("Changed.")]})):
        begin(context)
    assert ("nothing_begun" in context["ti"].xcoms) == (
        step in ("open", "check_one_spec", "plan") and not is_handed_back
    )


def test_who_gives_up_comes_again_until_machines_that_are_still_launched_go(ensure: Any) -> None:
    pending = machine(1, state="pending")
    pool = Pool([pending], [pending], want=[PoolDrift("Changed.")])
    with pytest.raises(PoolDrift):
        ensure(pool)
    assert pool.calls.count("delete_demand_and_reconcile") == 3


def test_a_groups_change_that_failed_on_its_way_is_planned_anew(ensure: Any) -> None:
    pool = Pool(apply=[CloudError("Throttled.")])
    ensure(pool)
    assert [call for call in pool.calls if call in ("plan", "apply")] == ["plan", "apply", "plan", "apply"]


@pytest.mark.parametrize(("action", "is_asked"), [("upgrade", True), ("update", False)])
def test_groups_that_are_behind_are_brought_up_to_date_before_nodes_are_wanted(
    ensure: Any, action: Any, is_asked: bool
) -> None:
    pool = Pool(upgrade=[DemandLockBusy("Held.")])
    pool.changes = (GroupChange(action=action, group="gpu-a", detail="Kubernetes is 1.35, wanted 1.36"),)
    ensure(pool)
    done = [call for call in pool.calls if call in ("apply", "upgrade", "want")]
    assert done == ["apply", *["upgrade"] * 2 * is_asked, "want"]


def test_without_enough_money_nothing_is_created(ensure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, listed = Pool(), replace(POOL, price_per_hour="list")

    def budget(key: Any, nodes: int, limit: float, **_: Any) -> Any:
        return budget_of(
            POOL, limit, nodes=nodes, spent=0.0, at=START, listed=ListPrices(at=START, per_hour={"a": 120})
        )

    monkeypatch.setattr(pool, "budget", budget, raising=False)
    with pytest.raises(BudgetExceeded, match=r"Raise max_cost to 58\.01 or more"):
        ensure(pool, gpu_pool=listed, max_cost=2)
    assert not {"apply", "want"} & {*pool.calls}


@pytest.mark.parametrize(("min_nodes", "said"), [(0, "requests none:"), (1, "requests none besides its min_nodes=1:")])
def test_a_pool_that_is_prepared_is_told_with_its_least_size(min_nodes: int, said: str) -> None:
    lines = list[str]()
    log = SimpleNamespace(info=lambda text, *values: lines.append(text % values))
    ensured.log_nodes(log, replace(POOL, min_nodes=min_nodes), {"nodes": [], "timeline": []})
    assert [said in line for line in lines] == [True]


def test_a_plan_says_how_long_the_money_lasts(ensure: Any) -> None:
    pool, priced = Pool(), replace(POOL, price_per_hour=2.0)
    planned = ensure(pool, gpu_pool=priced, dry_run=True, max_cost="5")
    line = "max_cost=5 lasts 2 h 5 min for 1 node at 2.00 USD an hour (on-demand)"
    kept_back = planned["plan"].pop()
    assert kept_back.startswith("of max_cost=5, 0.83 USD are kept back: what the dearest machines cost in 25 min")
    assert planned == {"pool": "gpu", "plan": [line], "changes": False}
    assert ensure(pool, gpu_pool=priced, dry_run=True)["plan"] == []
    assert pool.calls == ["open", "check_one_spec", "plan", "open", "check_one_spec", "plan"]


def test_a_pool_that_is_only_prepared_is_wanted_by_nobody(ensure: Any) -> None:
    pool = Pool()
    ensure(pool, nodes="0")
    assert [call for call in pool.calls if call in ("apply", "want", "delete_demand_and_reconcile")] == [
        "apply",
        "delete_demand_and_reconcile",
    ]


def test_nodes_that_are_ready_are_no_failure_for_want_of_a_note_for_the_bill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")

    def open_pool(*_: Any, **__: Any) -> None:
        raise CredentialsError("The token is not accepted.")

    monkeypatch.setattr("airflow_gpu_provider.scaling.apply.reconcile.open_pool", open_pool)
    operator = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL)
    event = {"status": "done", "result": RESULT}
    assert operator.resume(context_of(operator), event)["nodes"] == RESULT["nodes"]
    lost = {"status": "error", "error": OutOfStock("No machine.").to_record()}
    with pytest.raises(OutOfStock):
        operator.resume(context_of(operator), lost)
