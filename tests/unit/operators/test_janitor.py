"""The janitor's operators in the model's world: what nobody wants goes, what anybody wants stays, or stays longer."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.errors import DemandNotExtended, PoolSpecError
from airflow_gpu_provider.operators.extend import ExtendGpuPoolOperator
from airflow_gpu_provider.operators.reap import ReapGpuPoolsOperator
from airflow_gpu_provider.operators.reports import GpuPoolStatusOperator
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.end import janitor
from tests.sandbox.running import context_of, run
from tests.unit.scaling.model.cloud import Cloud, ModelPlatform, groups_of
from tests.unit.scaling.model.cluster import PODS
from tests.unit.scaling.model.course import go_round
from tests.unit.scaling.model.night import Night
from tests.unit.scaling.pools import pool

SIX_HOURS = 6 * 3600.0


class Janitors(Night):
    """A night, and the operators that an Airflow runs in it."""

    def __init__(self) -> None:
        super().__init__(max_nodes=3, price_per_hour=0.8)

    def open_pool(self, pool: GpuPool, *, holder: str, **_: Any) -> Reconciler:
        """Stand for `open_pool`; another pool than the night's has no machines."""
        opened = self.reconciler(holder)
        if pool.name != self.pool.name:
            assert isinstance(pool, EksGpuPool)
            cloud = Cloud(pool, groups_of(pool), self.world.actors)
            opened.platform = ModelPlatform(cloud, self.world.actors, None)
        opened.pool = pool
        return opened

    def ensure(self, run_id: str, max_cost: float | None = None) -> None:
        self.ask(self.lead, self.key_of(run_id), 1, self.until_of(run_id), max_cost=max_cost)
        self.until_usable(len(self.lead.snapshot().leases))

    def until_of(self, run_id: str) -> datetime:
        """Return when a run's demand ends, as its Ensure has said it first."""
        ends = self.world.now + timedelta(seconds=SIX_HOURS)
        return self.world.ends.setdefault(self.key_of(run_id).hash, ends)

    def key_of(self, run_id: str, installation: str = "tests") -> DemandKey:
        return replace(self.key(run_id, installation), dag_id="nightly")

    def start_pod(self, name: str, key: DemandKey | None = None) -> None:
        """A pod that runs on the pool's one node until somebody deletes it: a run's, or nobody's."""
        (node,) = self.world.nodes
        metadata: dict[str, Any] = {}
        if key:
            labels = {POOL_LABEL: self.pool.name, "airflow-gpu-provider/run": key.hash}
            metadata = {"labels": labels, "annotations": key.annotations}
        spec = {"nodeName": node, "nodeSelector": {POOL_LABEL: self.pool.name}, "containers": []}
        self.world.server.put(f"{PODS}/{name}", {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})

    def phase(self, name: str) -> str:
        return str(self.world.pods[name]["status"]["phase"]) if name in self.world.pods else "gone"

    def reap(
        self, *, living: tuple[str, ...], pool: GpuPool | None = None, others: bool = False, **arguments: Any
    ) -> list[dict[str, Any]]:
        """Run the operator as a task of an Airflow in which only `living` runs go on."""
        operator = ReapGpuPoolsOperator(task_id="reap", gpu_pools=[pool or self.pool], others=others, **arguments)
        return executed(operator, living)

    def leftovers(self, reaped: list[dict[str, Any]]) -> dict[str, list[str]]:
        (mine,) = (each for each in reaped if each["pool"] == self.pool.name)
        kinds: dict[str, list[str]] = {}
        for each in mine["leftovers"]:
            kinds.setdefault(each["kind"], []).append(each["name"])
        return kinds

    def extend(self, run_id: str, hours: Any, *, living: tuple[str, ...], **more: Any) -> list[dict[str, Any]]:
        operator = ExtendGpuPoolOperator(
            task_id="extend", gpu_pools=[self.pool], dag_id_of_run="nightly", run_id=run_id, hours=hours, **more
        )
        return executed(operator, living)

    def status(self) -> dict[str, Any]:
        (found,) = run(GpuPoolStatusOperator(task_id="status", gpu_pools=[self.pool]))
        return dict(found)

    def switch_at(self) -> datetime:
        (group,) = self.lead.platform.observe()
        assert group.switch_at is not None
        return group.switch_at


def executed(operator: Any, living: tuple[str, ...]) -> list[dict[str, Any]]:
    context = context_of(operator)
    context["ti"].get_dr_count = lambda dag_id, run_ids, states: sum(each in living for each in run_ids)
    found: list[dict[str, Any]] = operator.execute(context)
    return found


@pytest.fixture
def night(monkeypatch: pytest.MonkeyPatch) -> Janitors:
    night = Janitors()
    world = night.world
    time = SimpleNamespace(monotonic=world.actors.clock.monotonic, sleep=lambda _: go_round(world, []))
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.scaling.apply.reconcile.open_pool", night.open_pool)
    monkeypatch.setattr(janitor, "time", time)
    return night


def test_strangers_keep_what_they_have(night: Janitors) -> None:
    """Demand of another Airflow lasts until its end, and a pod of nobody's is nobody's to delete."""
    key = night.key_of("one", "another")
    night.want_with(night.reconciler("another Airflow"), key)
    night.until_usable(1)
    night.start_pod("of-another", key)
    night.start_pod("of-nobody")

    assert night.leftovers(night.reap(living=())) == {}
    assert (night.phase("of-another"), night.phase("of-nobody")) == ("Running", "Running")


def test_pods_without_demand_are_known_by_their_run(night: Janitors) -> None:
    night.ensure("dead")
    night.start_pod("late", night.key_of("dead"))
    night.lead.delete_demand_and_reconcile(night.key_of("dead"))
    assert night.status()["nodes"] == 1, "a running pod keeps its machine"

    assert night.leftovers(night.reap(living=("dead",), dry_run=True)) == {}
    assert night.leftovers(night.reap(living=()))["pod"] == ["default/late"]
    assert night.phase("late") == "gone"
    assert night.status()["machines"] == []


def test_forgotten_pools_are_found_in_the_cluster(night: Janitors) -> None:
    """The DAG of a pool is gone: another pool of the same cluster is enough to find it, with its prices."""
    night.ensure("dead")
    named = replace(night.pool, name="named")
    alone = night.reap(living=(), pool=named, dry_run=True)
    assert [each["pool"] for each in alone] == ["named"]

    found = {each["pool"]: each for each in night.reap(living=(), pool=named, others=True)}
    assert (found["named"]["named"], found[night.pool.name]["named"]) == (True, False)
    assert found[night.pool.name]["cost"] > 0
    assert night.status()["machines"] == []


def test_more_time_moves_the_demand_and_the_switch_and_is_told(night: Janitors) -> None:
    night.ensure("r1")
    (before,) = night.status()["leases"]
    switch = night.switch_at()
    with pytest.raises(DemandNotExtended, match=r"max_runtime of 6:00:00 ends at"):
        night.extend("r1", 2, living=("r1",))
    (done,) = night.extend("r1", "2", living=("r1",), reason="a larger data set")
    until = datetime.fromisoformat(before["until"]) + timedelta(hours=2)
    assert (done["before"], datetime.fromisoformat(done["until"])) == (before["until"], until)
    (after,) = night.status()["leases"]
    assert (datetime.fromisoformat(after["until"]), after["extended"]) == (until, "a larger data set")
    assert night.switch_at() - switch == timedelta(hours=2)
    night.ensure("r1")  # its next try takes nothing back
    (kept,) = night.status()["leases"]
    assert (datetime.fromisoformat(kept["until"]), kept["extended"]) == (until, "a larger data set")


def test_more_money_moves_the_demand_and_is_told(night: Janitors) -> None:
    night.ensure("r1", max_cost=0.8)
    (before,) = night.status()["leases"]
    (done,) = night.extend("r1", "", living=("r1",), max_cost="1.6", reason="nearly there")
    assert (done["before"], done["max_cost"]) == (before["until"], 1.6)
    (after,) = night.status()["leases"]
    assert (after["until"], after["extended"]) == (done["until"], "")
    assert (after["budget"]["max_cost"], after["budget"]["raised"]) == (1.6, "nearly there")
    assert after["budget"]["left"] - before["budget"]["left"] == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize("max_cost", ["much", "nan", "-1", float("inf")])
def test_what_is_no_amount(night: Janitors, max_cost: Any) -> None:
    night.ensure("r1", max_cost=0.8)
    with pytest.raises(DemandNotExtended, match="max_cost="):
        night.extend("r1", None, living=("r1",), max_cost=max_cost, reason="nearly there")


@pytest.mark.parametrize(
    ("run_id", "hours", "living", "said"),
    [
        ("r1", 1, (), "r1 is over"),
        ("other", 1, ("other",), "wants no nodes now"),
        ("r1", "nan", ("r1",), "not a number"),
    ],
)
def test_more_time_is_refused(night: Janitors, run_id: str, hours: Any, living: tuple[str, ...], said: str) -> None:
    night.ensure("r1")
    (before,) = night.status()["leases"]
    with pytest.raises(DemandNotExtended, match=said):
        night.extend(run_id, hours, living=living, reason="why not")
    assert night.status()["leases"] == [before]


def test_more_time_than_a_running_pod_can_have_is_refused_before_anything_is_written(night: Janitors) -> None:
    night.ensure("r1")
    night.start_pod("train", night.key_of("r1"))
    night.world.server.patch(f"{PODS}/train", {"spec": {"activeDeadlineSeconds": int(SIX_HOURS)}})
    before, switch = night.status()["leases"], night.switch_at()
    with pytest.raises(DemandNotExtended, match=r"would not last until .* ends pod \S+/train at "):
        night.extend("r1", 1, living=("r1",), reason="more data")
    assert (night.status()["leases"], night.switch_at()) == (before, switch)
    assert night.extend("r1", 1, living=("r1",), reason="more data", pods_may_end="True")


def test_more_time_for_a_block_that_wants_none_names_the_block(night: Janitors) -> None:
    night.ensure("r1")
    with pytest.raises(DemandNotExtended, match=r"nightly/r1/other wants no nodes now"):
        night.extend("r1", 1, living=("r1",), block_id="other")


@pytest.mark.parametrize("dag_ids", [["team-a-*"], "nightly-2", ["NIGHTLY", "night"]])
def test_another_team_s_run_is_refused(night: Janitors, dag_ids: Any) -> None:
    night.ensure("r1")
    before = night.status()["leases"]
    with pytest.raises(DemandNotExtended, match=r"'nightly' may not be extended here. The operator's dag_ids allows "):
        night.extend("r1", 1, living=("r1",), reason="ours is more important", dag_ids=dag_ids)
    assert night.status()["leases"] == before
    assert night.extend("r1", 1, living=("r1",), reason="it is ours", dag_ids=["team-a-*", "night*"])


def test_all_extensions_of_a_run_together_have_a_limit(night: Janitors) -> None:
    """By default max_runtime once more, which is six hours, whatever the run's Ensure does meanwhile."""
    night.ensure("r1")
    (before,) = night.status()["leases"]
    with pytest.raises(DemandNotExtended, match=r"8760 hours more for nightly/r1 are not allowed.*at most 6 hours"):
        night.extend("r1", 8760, living=("r1",), reason="x")
    assert night.status()["leases"] == [before]
    night.extend("r1", 4, living=("r1",), reason="x")
    night.ensure("r1")
    with pytest.raises(DemandNotExtended, match=r"4 hours were added before.*at most 2 hours"):
        night.extend("r1", 2.5, living=("r1",), reason="x")
    night.extend("r1", 2, living=("r1",), reason="x")
    with pytest.raises(DemandNotExtended, match="at most 0 hours"):
        night.extend("r1", 0.5, living=("r1",), reason="x")
    assert night.extend("r1", 0.5, living=("r1",), reason="x", most_hours=6.5)


def test_money_counts_against_the_same_limit(night: Janitors) -> None:
    night.ensure("r1", max_cost=0.8)
    with pytest.raises(DemandNotExtended, match=r"together may add 0.5 hours"):
        night.extend("r1", "", living=("r1",), max_cost="1.6", reason="x", most_hours=0.5)
    assert night.extend("r1", "", living=("r1",), max_cost="1.6", reason="x", most_hours=1.5)


def test_a_reason_is_one_plain_line(night: Janitors) -> None:
    night.ensure("r1")
    night.extend("r1", 1, living=("r1",), reason="\x1b[2Jlarger\n\n data \u202eset" + "!" * 1000)
    (lease,) = night.status()["leases"]
    assert lease["extended"].startswith("larger data set!!!")
    assert len(lease["extended"]) <= 300


@pytest.mark.parametrize(
    "wrong",
    [
        {"dag_ids": []},
        {"dag_ids": [" "]},
        {"dag_ids": [3]},
        {"dag_ids": ["{{ params.dag_id }}"]},
        {"most_hours": 0},
        {"most_hours": float("nan")},
        {"most_hours": 8761},
        {"most_hours": True},
        {"most_hours": "{{ params.hours }}"},
    ],
)
def test_limits_that_are_none_are_refused_when_the_dag_is_parsed(wrong: dict[str, Any]) -> None:
    with pytest.raises(PoolSpecError, match=f"extend: {next(iter(wrong))}="):
        extend(task_id="extend", gpu_pools=[TRAIN], **wrong)


def test_an_extender_leaves_which_pools_it_has_before_it_does_anything(night: Janitors) -> None:
    operator = ExtendGpuPoolOperator(
        task_id="extend", gpu_pools=[night.pool], dag_id_of_run="", run_id="", hours="", dag_ids=["nightly"]
    )
    context = context_of(operator)
    left: dict[str, Any] = {}
    context["ti"].xcom_push = lambda key, value: left.update({key: value})
    with pytest.raises(DemandNotExtended):
        operator.execute(context)
    assert left["extends_pools"] == [{"pool": night.pool.name, "cluster": night.pool.cluster_identity}]
    assert night.status()["cluster"] == night.pool.cluster_identity


TRAIN = pool(name="train")
TWO = [replace(TRAIN, name="first"), replace(TRAIN, name="last")]


def extend(**arguments: Any) -> ExtendGpuPoolOperator:
    return ExtendGpuPoolOperator(dag_id_of_run="nightly", run_id="r1", hours=1, **arguments)


@pytest.mark.parametrize("make", [ReapGpuPoolsOperator, GpuPoolStatusOperator, extend])
@pytest.mark.parametrize(
    ("gpu_pools", "said"),
    [
        (TRAIN, r"gpu_pools is the pool train. Give a list"),
        (["train"], r"gpu_pools has 'train'. Give the pools themselves"),
        ("train", r"gpu_pools has 't'. Give the pools themselves"),
    ],
)
def test_pools_that_are_none_are_refused_when_the_dag_is_parsed(make: Any, gpu_pools: Any, said: str) -> None:
    with pytest.raises(PoolSpecError, match=said):
        make(task_id="look", gpu_pools=gpu_pools)


def test_more_time_says_for_which_pool() -> None:
    with pytest.raises(PoolSpecError, match=r"gpu_pools has first, last. Choose one of them: pool_name="):
        extend(task_id="extend", gpu_pools=TWO)
    assert extend(task_id="extend", gpu_pools=TWO, pool_name="last").pool_name == "last"
