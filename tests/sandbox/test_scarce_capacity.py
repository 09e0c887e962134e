"""Ensure where capacity is hard to get: stock-outs in order, fewer nodes, all or nothing, and a triggerer that dies."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.clouds import backoff
from airflow_gpu_provider.clouds.aws.owned_platform import OwnedEksPlatform
from airflow_gpu_provider.errors import NodesNotReady, OutOfStock, QuotaExceeded
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.faults import Stockout
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import context_of, copy_of, eventually, first_event, resumption, run

LEASES = "/apis/coordination.k8s.io/v1/namespaces/airflow-gpu-provider/leases"
ON_DEMAND_VCPUS = "L-DB2E81BA"
SPOT_VCPUS = "L-3819A6DF"

Night = Callable[..., EnsureGpuPoolOperator]

numbers = itertools.count()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back off for seconds instead of minutes, and send events at once: there is no scheduler to be patient for."""
    monkeypatch.setattr(backoff, "FIRST", timedelta(seconds=8))
    monkeypatch.setattr(backoff, "LONGEST", timedelta(seconds=16))
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")


def enter(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in sandbox.env().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def night(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., EnsureGpuPoolOperator]]:
    """Makes Ensure for a pool of the test's own in the first two zones; when the test ends, the pool goes to zero."""
    enter(gpu_sandbox, monkeypatch)
    pools: list[GpuPool] = []

    def night(*, zones: int = 2, market: Any = ("ON_DEMAND",), **arguments: Any) -> EnsureGpuPoolOperator:
        pool = EksGpuPool(
            name=f"hard-{next(numbers)}",
            cluster_name=gpu_sandbox.cluster_name,
            region=gpu_sandbox.region,
            instance_types=["g6.xlarge"],
            capacity_types=market,
            zones=list(gpu_sandbox.zones[:zones]),
            max_nodes=2,
            max_runtime=timedelta(hours=1),
        )
        pools.append(pool)
        return EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, **{"timeout": timedelta(minutes=3), **arguments})

    yield night
    gpu_sandbox.faults.clear()
    for pool in pools:
        run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))


def demand(sandbox: Sandbox, pool: GpuPool) -> DemandLease | None:
    """What the cluster says that the run wants."""
    _, reply = sandbox.control_plane.request("GET", LEASES)
    mine = [each for each in reply.get("items", []) if each["metadata"]["labels"].get(POOL_LABEL) == pool.name]
    found = [DemandLease.parse(each) for each in mine if each["metadata"]["name"].startswith("demand-")]
    return found[0] if found else None


def desired(sandbox: Sandbox, pool: GpuPool) -> int:
    groups = sandbox.aws.describe_groups()
    return sum(group["desired"] for group in groups if str(group["nodegroup"]).startswith(f"{pool.name}-"))


def dries_up_after_one_machine(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second zone has nothing; the first has one machine, and then nothing either."""
    first, second = sandbox.zones[:2]
    sandbox.faults.add(Stockout(zone=second))
    launch_error, dry = sandbox.faults.launch_error, Stockout(zone=first)
    left = [dry]

    def last_one(**launch: str) -> str | None:
        """Return what the cloud asks before each launch for which there is capacity."""
        if left and launch["zone"] == first:
            sandbox.faults.add(left.pop())
        return launch_error(**launch)

    monkeypatch.setattr(sandbox.faults, "launch_error", last_one)


def test_spot_dry_in_all_zones_and_on_demand_in_two_ends_in_the_third(
    gpu_sandbox: Sandbox, night: Night, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = gpu_sandbox.zones[:3]
    for stockout in (Stockout(market="spot"), Stockout(zone=a), Stockout(zone=b)):
        gpu_sandbox.faults.add(stockout)
    operator = night(zones=3, market=("SPOT", "ON_DEMAND"), deferrable=False)
    for name in ("FIRST", "LONGEST"):  # so no time comes while the others are tried
        monkeypatch.setattr(backoff, name, timedelta(minutes=5))
    result = run(operator)
    (node,) = result["nodes"]
    assert (node["zone"], node["capacity_type"]) == (c, "ON_DEMAND")
    tried = [(each["capacity_type"], each["zone"]) for each in result["tried"]]
    assert tried == [("SPOT", a), ("SPOT", b), ("SPOT", c), ("ON_DEMAND", a), ("ON_DEMAND", b)]
    log = capsys.readouterr().out
    steps = [f"g6.xlarge {market.lower().replace('_', '-')} in {zone}" for market, zone in tried]
    for candidate in steps:
        assert re.search(rf"no {candidate} \(\w+Capacity, not tried again until \d\d:\d\dZ\)", log)
    places = [log.index(f"] trying {candidate}") for candidate in [*steps[1:], f"g6.xlarge on-demand in {c}"]]
    assert places == sorted(places), "in the pool's order"


def test_fewer_nodes_will_do(gpu_sandbox: Sandbox, night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = night(nodes=2, at_least=1)
    dries_up_after_one_machine(gpu_sandbox, monkeypatch)
    result = run(operator)
    assert (result["wanted"], result["got"], len(result["nodes"])) == (2, 1, 1)
    lease = demand(gpu_sandbox, operator.gpu_pool)
    assert lease
    assert lease.nodes == 1
    assert eventually(lambda: desired(gpu_sandbox, operator.gpu_pool) == 1)


def test_all_or_nothing_goes_on_where_it_was_when_the_triggerer_dies(
    gpu_sandbox: Sandbox, night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = night(nodes=2, all_or_nothing=True, give_up_after=timedelta(minutes=10))
    pool = operator.gpu_pool
    dries_up_after_one_machine(gpu_sandbox, monkeypatch)
    context = context_of(operator)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)  # type: ignore[arg-type]
    deferral = deferred.value

    def rests() -> bool:
        lease = demand(gpu_sandbox, pool)
        return lease is not None and lease.resume_at is not None and desired(gpu_sandbox, pool) == 0

    async def dies_while_it_rests() -> None:
        waiting = asyncio.create_task(first_event(copy_of(deferral.trigger)))
        await asyncio.to_thread(eventually, rests)
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(dies_while_it_rests())
    before = demand(gpu_sandbox, pool)
    assert before
    assert before.resume_at
    assert (before.nodes, before.attempts) == (0, 1)

    gpu_sandbox.faults.clear()
    event = asyncio.run(first_event(copy_of(deferral.trigger)))  # the same row, in another triggerer
    result = resumption(operator, deferral, context, event)()
    after = demand(gpu_sandbox, pool)
    assert after
    assert after.attempt_since
    assert (result["wanted"], result["got"], after.nodes, after.attempts) == (2, 2, 2, 1)
    assert after.attempt_since >= before.resume_at
    assert after.created_at > before.created_at, "its place in the queue is behind those who got theirs meanwhile"
    assert [each["times"] > 0 for each in result["tried"]] == [True, True]

    with pytest.raises(NodesNotReady):
        operator._resume_without_event(RuntimeError("no triggerer had it"), context)  # type: ignore[arg-type]
    late = open_pool(pool, owner="tests/nightly", holder="a triggerer that was thought dead", report=print)
    late.amend(DemandChange(before=after, after=replace(after, nodes=1), why="it asks for what it wanted before"))
    assert demand(gpu_sandbox, pool) is None, "who has given up does not want again"


@pytest.mark.usefixtures("stock_out_first")
def test_giving_up_names_each_candidate_and_gives_the_demand_up(gpu_sandbox: Sandbox, night: Night) -> None:
    gpu_sandbox.faults.add(Stockout())
    operator = night(timeout=timedelta(seconds=5), give_up_after=timedelta(seconds=25))
    context = context_of(operator)
    with pytest.raises(OutOfStock) as failed:
        run(operator, context)
    for zone in gpu_sandbox.zones[:2]:
        assert f"g6.xlarge on-demand in {zone} (tried" in str(failed.value)
    assert {each["zone"] for each in failed.value.details["tried"]} == set(gpu_sandbox.zones[:2])
    assert context["ti"].xcoms["tried"] == failed.value.details["tried"]
    assert demand(gpu_sandbox, operator.gpu_pool) is None
    assert eventually(lambda: desired(gpu_sandbox, operator.gpu_pool) == 0)


def test_capacity_that_comes_after_the_timeout_is_got(gpu_sandbox: Sandbox, night: Night) -> None:
    gpu_sandbox.faults.add(Stockout())
    operator = night(timeout=timedelta(seconds=5), give_up_after=timedelta(minutes=5))
    started = datetime.now(UTC)
    comes_back = threading.Timer(15, gpu_sandbox.faults.clear)
    comes_back.start()
    result = run(operator)
    comes_back.join()
    assert (result["wanted"], result["got"]) == (1, 1)
    assert datetime.now(UTC) - started > timedelta(seconds=15)


def test_a_quota_that_a_launch_meets_is_named_at_once(
    gpu_sandbox: Sandbox, night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, apply = night(), OwnedEksPlatform.apply

    def used_up_by_others(*arguments: Any) -> None:
        """Create the groups, after Ensure has compared quotas, and before it asks for a machine."""
        apply(*arguments)
        gpu_sandbox.faults.set_quota(ON_DEMAND_VCPUS, 0)

    monkeypatch.setattr(OwnedEksPlatform, "apply", used_up_by_others)
    with pytest.raises(QuotaExceeded, match=rf"quota {ON_DEMAND_VCPUS} is exhausted.*VcpuLimitExceeded") as failed:
        run(operator)
    assert failed.value.details["quota"] == ON_DEMAND_VCPUS
    assert demand(gpu_sandbox, operator.gpu_pool) is None


def test_the_triggerer_passes_over_what_ensure_found_to_have_no_quota(gpu_sandbox: Sandbox, night: Night) -> None:
    gpu_sandbox.faults.set_quota(SPOT_VCPUS, 0)
    operator = night(market=("SPOT", "ON_DEMAND"))
    context = context_of(operator)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)  # type: ignore[arg-type]
    gpu_sandbox.faults.clear()  # spot could be had by now: who still passes it over remembers
    event = asyncio.run(first_event(copy_of(deferred.value.trigger)))
    result = resumption(operator, deferred.value, context, event)()
    assert [node["capacity_type"] for node in result["nodes"]] == ["ON_DEMAND"]
    assert result["tried"] == []


@pytest.mark.nightly  # by day test_fewer_nodes_will_do, and the stock-outs of test_platform_gke.py
def test_fewer_nodes_will_do_on_gke(gke_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(gke_sandbox, monkeypatch)
    a, b = gke_sandbox.zones[:2]
    pool = GkeGpuPool(
        name="hard-gke",
        project_id=gke_sandbox.google.project_id,
        location=gke_sandbox.google.location,
        cluster_name=gke_sandbox.cluster_name,
        machine_types=["g2-standard-4"],
        node_locations=[a, b],
        max_nodes=2,
        max_runtime=timedelta(hours=1),
    )
    dries_up_after_one_machine(gke_sandbox, monkeypatch)
    try:
        operator = EnsureGpuPoolOperator(
            task_id="ensure", gpu_pool=pool, gpus=2, at_least=1, timeout=timedelta(minutes=3)
        )
        result = run(operator)
    finally:
        gke_sandbox.faults.clear()
    assert (result["wanted"], result["got"], result["nodes"][0]["zone"]) == (2, 1, a)
    assert b in {each["zone"] for each in result["tried"]}
    run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))
    assert not [group for group in gke_sandbox.google.node_pools.groups() if group.members]
