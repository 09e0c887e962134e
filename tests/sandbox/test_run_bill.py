"""What a night cost: told by scale-down from what the cluster kept, however often it is asked and whoever has gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import Stats
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client, config
from structlog.testing import capture_logs

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.block import gpu_nodes
from airflow_gpu_provider.clouds.aws import prices
from airflow_gpu_provider.errors import BudgetExceeded, TaskKilled
from airflow_gpu_provider.ledger.usage import read_runs
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from airflow_gpu_provider.scaling.state.demand_leases import list_demand, write_demand
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.faults import Stockout
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.ec2_times import instances_of
from tests.sandbox.running import context_of, eventually, line_of, meanwhile, run

NIGHT = "scheduled__2026-01-01T02:00:00+00:00"
PHASES = ("booting", "working", "idle")


@pytest.fixture
def pool(
    gpu_sandbox: Sandbox, gpu_sandbox_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[EksGpuPool]:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    pool = EksGpuPool(
        name="billed",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=["g6.xlarge"],
        capacity_types=["SPOT", "ON_DEMAND"],
        zones=[gpu_sandbox.zones[0]],
        max_nodes=2,
        price_per_hour={"spot": 360.0, "on-demand": 3600.0},
    )
    yield pool
    gpu_sandbox.faults.clear()
    scale_down(pool)


def ensure(pool: EksGpuPool, nodes: int) -> dict[str, Any]:
    result: dict[str, Any] = run(
        EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=nodes, deferrable=False), run_id=NIGHT
    )
    return result


def train(pool: EksGpuPool, task_id: str, seconds: int, **arguments: Any) -> None:
    cmds = ["python", "-c", f"import time; time.sleep({seconds})"]
    run(
        GpuPodOperator(task_id=task_id, gpu_pool=pool, gpus=1, image="python:3.12", cmds=cmds, **arguments),
        run_id=NIGHT,
    )


def scale_down(pool: EksGpuPool) -> dict[str, Any]:
    usage: dict[str, Any] = run(ScaleDownSensor(task_id="zero", gpu_pool=pool), run_id=NIGHT)["usage"]
    return usage


def test_a_night_on_spot_and_on_demand(
    pool: EksGpuPool,
    gpu_sandbox: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The prices make a second on spot cost 0.1, and one on demand 1."""
    gauges: dict[str, float] = {}
    monkeypatch.setattr(Stats, "gauge", lambda stat, value, **_: gauges.update({stat: value}))
    assert [node["capacity_type"] for node in ensure(pool, 1)["nodes"]] == ["SPOT"]
    gpu_sandbox.faults.add(Stockout(market="spot"))
    assert sorted(node["capacity_type"] for node in ensure(pool, 2)["nodes"]) == ["ON_DEMAND", "SPOT"]
    run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=pool, deferrable=False), run_id=NIGHT)
    train(pool, "deleted_at_its_end", 4)
    train(pool, "kept_until_scale_down", 3, on_finish_action="keep_pod")

    usage = scale_down(pool)

    reconciler = open_pool(pool, owner="", holder="a test", report=print)
    (facts,) = read_runs(reconciler.api, pool.name)
    worked = {node: sum((end - start).total_seconds() for start, end in spans) for node, spans in facts.worked.items()}
    assert 7 <= usage["node_seconds"]["working"] == pytest.approx(sum(worked.values()), abs=0.1)
    assert usage["machines"] == 2
    assert usage["node_seconds"]["booting"] > 2, "two machines boot"
    rate = {"spot": 0.1, "on-demand": 1.0}
    ran = instances_of(pool.name, gpu_sandbox.aws)
    assert {each.market for each in ran} == rate.keys()
    assert sum(usage["node_seconds"].values()) == pytest.approx(sum(each.seconds for each in ran), rel=0.02)
    assert usage["cost"]["total"] == pytest.approx(sum(rate[each.market] * each.seconds for each in ran), rel=0.02)
    assert usage["at_least"] is None
    assert gauges["gpu_provider.node_seconds.working"] == pytest.approx(usage["node_seconds"]["working"], abs=0.1)
    assert gauges["gpu_provider.cost.idle"] == pytest.approx(usage["cost"]["idle"], abs=0.01)
    said = capfd.readouterr().out
    assert "Pool billed is released after" in said
    assert "was idle" not in said, "seconds of it are nobody's fault"

    assert scale_down(pool) == usage, "another try says the same"
    unpriced = scale_down(replace(pool, price_per_hour=None))
    assert unpriced["node_seconds"] == usage["node_seconds"]
    assert unpriced["cost"] == dict.fromkeys((*PHASES, "total"), "unknown")


def test_a_night_at_list_prices_that_change(
    pool: EksGpuPool, gpu_sandbox: Sandbox, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second on spot costs 0.1, and after the second Ensure 0.2; on demand it is 1, and too dear."""
    zone, listed = gpu_sandbox.zones[0], replace(pool, name="listed", price_per_hour="list", max_price_per_hour=800)
    gpu_sandbox.aws.prices.set_on_demand("g6.xlarge", 3600.0)
    gpu_sandbox.aws.prices.set_spot("g6.xlarge", zone, 360.0)
    prices.SPOT.forget()
    prices.ON_DEMAND.forget()
    first = ensure(listed, 1)
    assert [node["capacity_type"] for node in first["nodes"]] == ["SPOT"]
    (dear,) = first["tried"]
    assert (dear["capacity_type"], dear["times"]) == ("ON_DEMAND", 0)
    assert dear["why"] == "3600.00 USD (list price) an hour is more than max_price_per_hour=800"
    gpu_sandbox.aws.prices.set_spot("g6.xlarge", zone, 720.0)
    prices.SPOT.forget()
    ensure(listed, 2)
    reconciler = open_pool(listed, owner="", holder="a test", report=print)
    (demand,) = list_demand(reconciler.api, "listed")
    assert demand.prices is not None

    usage = scale_down(listed)
    ran = instances_of("listed", gpu_sandbox.aws)
    assert len(ran) == 2
    before = sum(max(0.0, (min(each.end, demand.prices.at) - each.start).total_seconds()) for each in ran)
    whole = sum(each.seconds for each in ran)
    assert usage["cost"]["total"] == pytest.approx(0.1 * before + 0.2 * (whole - before), rel=0.02)
    assert (usage["currency"], usage["price_source"]) == ("USD", "list price")
    said = capfd.readouterr().out
    assert "g6.xlarge on-demand in" in said
    assert "USD at list prices." in said


def test_a_run_ends_with_its_money(pool: EksGpuPool, gpu_sandbox: Sandbox) -> None:
    """A second costs 1, so that its money lasts for nine hours. They pass when the training is ready to be stopped."""
    bounded = replace(pool, name="bounded", capacity_types=["ON_DEMAND"])
    arguments: dict[str, Any] = {"gpu_pool": bounded, "nodes": 1, "max_cost": 36_000, "deferrable": False}
    run(EnsureGpuPoolOperator(task_id="ensure", **arguments), run_id=NIGHT)
    run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=bounded, deferrable=False), run_id=NIGHT)
    saves = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('checkpoint written'))); print('ready');"
        " time.sleep(600)"
    )
    trains = GpuPodOperator(
        task_id="train", gpu_pool=bounded, gpus=1, image="python:3.12", cmds=["python", "-uc", saves]
    )
    on = open_pool(bounded, owner="", holder="a test", report=print)
    (demand,) = list_demand(on.api, "bounded")
    budget = demand.budget
    assert budget is not None
    assert budget.at == demand.created_at, "when the bill begins"

    def the_hours_pass() -> None:
        """As the demand tells it; and the kubelet ends the pod, as who waits for it would have it do then."""
        eventually(lambda: "[base] ready" in [line_of(entry) for entry in [*told]])
        passed = budget.ends_at - on.clock.now()
        used = replace(budget, at=budget.at - passed)
        write_demand(on.api, replace(demand, budget=used, until=demand.until - passed), check=lambda: None)
        core = client.CoreV1Api(on.api)
        (pod,) = core.list_namespaced_pod("default", field_selector="status.phase=Running").items
        assert pod.spec.active_deadline_seconds is None
        core.patch_namespaced_pod(pod.metadata.name, "default", {"spec": {"activeDeadlineSeconds": 1}})

    with capture_logs() as told, ExitStack() as after:
        after.callback(meanwhile(the_hours_pass).join)
        with pytest.raises(BudgetExceeded, match="max_cost of 36000 USD for pool bounded is used"):
            run(trains, run_id=NIGHT)
    lines = [line_of(entry) for entry in told]
    assert "[base] checkpoint written" in lines
    (waiting,) = [line for line in lines if line.startswith("Waiting in the triggerer for pod")]
    assert f"until {demand.pods_end_by:%Y-%m-%d %H:%M:%SZ} at the latest" in waiting
    with pytest.raises(BudgetExceeded, match="max_cost=1741"):
        run(EnsureGpuPoolOperator(task_id="ensure", **{**arguments, "nodes": 2, "max_cost": 1741}), run_id=NIGHT)

    usage = scale_down(bounded)
    longer = max(each.end for each in instances_of("bounded", gpu_sandbox.aws)) - demand.pods_end_by
    assert usage["cost"]["total"] <= 36_000 + longer.total_seconds(), "what is left of the hours was not paid"


def test_a_machine_where_another_run_still_works_is_that_runs_to_pay(pool: EksGpuPool, gpu_sandbox: Sandbox) -> None:
    """Its pod is written down when it has ended; the bill of a run that ends before that knows it all the same."""
    shared = replace(pool, name="shared", capacity_types=["ON_DEMAND"])
    beside = "manual__beside"
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=shared, gpus=1, deferrable=False), run_id=beside)
    run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=shared, deferrable=False), run_id=beside)
    works = GpuPodOperator(task_id="works", gpu_pool=shared, gpus=1, image="busybox:1", cmds=["sleep", "600"])
    context = context_of(works, run_id=beside)
    with pytest.raises(TaskDeferred):
        works.execute(context)
    with config.new_client_from_config(str(gpu_sandbox.kubeconfig)) as api:
        core = client.CoreV1Api(api)
        running = "status.phase=Running"
        (pod,) = eventually(lambda: core.list_namespaced_pod("default", field_selector=running).items)
    ensure(shared, 1)
    usage = scale_down(shared)
    assert usage["machines"] == 1
    assert pod.spec.node_name not in [lane["node"] for lane in usage["timeline"]]
    with pytest.raises(TaskKilled):
        works.on_kill()
    end = run(ScaleDownSensor(task_id="zero", gpu_pool=shared), run_id=beside)["usage"]
    assert end["node_seconds"]["working"] > 0
    assert (usage["at_least"], end["at_least"]) == (None, None)
    runs = read_runs(open_pool(shared, owner="", holder="a test", report=print).api, "shared")
    assert [run.open for run in runs] == [False, False], "each end was recorded"
    both = [*usage["node_seconds"].values(), *end["node_seconds"].values()]
    assert sum(both) == pytest.approx(sum(each.seconds for each in instances_of("shared", gpu_sandbox.aws)), rel=0.02)


def test_a_pool_that_is_renamed_in_the_file_is_released_and_makes_the_cost_at_least(
    pool: EksGpuPool, gpu_sandbox: Sandbox
) -> None:
    """Its own scale-down was removed from the run with the block."""
    old = replace(pool, name="named", capacity_types=["ON_DEMAND"])
    night = "manual__renamed"
    run(
        EnsureGpuPoolOperator(task_id="ensure", gpu_pool=old, block_id="named", nodes=1, deferrable=False), run_id=night
    )

    with DAG("nightly", schedule=None) as dag, gpu_nodes(new := replace(old, name="renamed")):
        GpuPodOperator(task_id="train", image="busybox:1", cmds=["true"])
    zero: Any = dag.task_dict["renamed.scale_down"]
    usage = run(zero, run_id=night)["usage"]
    on = open_pool(old, owner="", holder="a test", report=print)
    eventually(lambda: not [machine for group in on.platform.observe() for machine in group.live])
    assert usage["node_seconds"] == dict.fromkeys(PHASES, 0.0)
    assert usage["at_least"] == "the run used block named on pool named too, which the DAG no longer has"
    assert not instances_of(new.name, gpu_sandbox.aws)


def test_a_run_that_had_no_machine_used_nothing(pool: EksGpuPool) -> None:
    nothing = run(ScaleDownSensor(task_id="zero", gpu_pool=pool), run_id="another")["usage"]
    assert nothing["node_seconds"] == dict.fromkeys(PHASES, 0.0)
    assert nothing["cost"]["total"] == 0
