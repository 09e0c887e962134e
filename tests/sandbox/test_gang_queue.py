"""Gangs on a real Job controller and scheduler: nodes of one zone together or none, and one gang after another."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds import backoff
from airflow_gpu_provider.cluster.api.nodes import list_nodes
from airflow_gpu_provider.cluster.api.rest import call, list_items
from airflow_gpu_provider.cluster.model.pool_pod import GANG_LABEL, JOB_LABEL, RUN_LABEL, jobs_path
from airflow_gpu_provider.cluster.model.refusals import ObjectChanged, ObjectNotFound
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.apply import admission
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler, open_pool
from airflow_gpu_provider.scaling.decide.snapshot import usable_nodes
from airflow_gpu_provider.scaling.state.gang_requests import admit, delete_job, list_gang_jobs, suspend
from airflow_gpu_provider.scaling.wait import pool_updates
from airflow_gpu_provider.scaling.wait.pool_updates import PoolUpdates
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.faults import Stockout
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually, run

PODS = "/api/v1/namespaces/default/pods"
numbers = itertools.count()


@pytest.fixture(autouse=True)
def env(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in gpu_sandbox.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")


def pool_in(sandbox: Sandbox, zones: int, **fields: Any) -> EksGpuPool:
    return EksGpuPool(
        name=f"gang-{next(numbers)}",
        cluster_name=sandbox.cluster_name,
        region=sandbox.region,
        instance_types=["g6.xlarge"],
        zones=list(sandbox.zones[:zones]),
        max_nodes=2,
        max_runtime=timedelta(hours=1),
        **fields,
    )


class Night:
    """Two nodes of one zone, and the gangs that want them."""

    def __init__(self, pool: EksGpuPool) -> None:
        self.pool = pool
        self.lead = self.reconciler("lead")
        self.api: Any = self.lead.api
        self.lead.platform.apply(self.lead.platform.plan(2), print)
        eventually(lambda: all(group.status == "active" for group in self.lead.platform.observe()))
        self.key = DemandKey(installation="tests", dag_id="dag", run_id="run", pool=pool.name)
        self.lead.want(self.key, 2, datetime.now(UTC) + timedelta(hours=1), gang=2)
        eventually(lambda: len(usable_nodes(self.lead.reconcile().snapshot)) == 2)
        run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=pool, deferrable=False))
        eventually(lambda: sum(node.gpus for node in list_nodes(self.api, pool.node_selector)) == 2)

    def reconciler(self, holder: str) -> Reconciler:
        return open_pool(self.pool, owner="tests", holder=holder, report=print)

    def pod(self, name: str) -> None:
        call(self.api, "create", PODS, resource="pods", body={"metadata": {"name": name}, "spec": self._spec()})

    def gang(self, name: str) -> None:
        labels = {POOL_LABEL: self.pool.name, GANG_LABEL: "2", RUN_LABEL: self.key.hash}
        apart = {"labelSelector": {"matchLabels": {JOB_LABEL: name}}, "topologyKey": "kubernetes.io/hostname"}
        affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
        spec = {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": 2,
            "parallelism": 2,
            "backoffLimitPerIndex": 0,
            "podReplacementPolicy": "Failed",
            "template": {"metadata": {"labels": labels}, "spec": {**self._spec(), "affinity": affinity}},
        }
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        call(self.api, "create", jobs_path("default"), resource="jobs", body=body)

    def _spec(self) -> dict[str, Any]:
        limits = {"limits": {"nvidia.com/gpu": "1"}}
        container = {"name": "base", "image": "busybox", "command": ["sleep", "600"], "resources": limits}
        return {
            "containers": [container],
            "nodeSelector": dict(self.pool.node_selector),
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,  # with 0 the pod is gone before its process
            "restartPolicy": "Never",
        }

    def bound(self, name: str) -> int:
        pods = list_items(self.api, PODS, resource="pods", labelSelector=f"{JOB_LABEL}={name}")
        return sum("nodeName" in pod["spec"] for pod in pods)

    def job(self, name: str) -> Any:
        return next(job for job in list_gang_jobs(self.api, self.pool.name) if job.name == name)

    def end(self, name: str) -> None:
        job = self.job(name)
        delete_job(self.api, "default", name, job.uid)
        eventually(lambda: self.bound(name) == 0)

    def delete_pod(self, name: str) -> None:
        call(self.api, "delete", f"{PODS}/{name}", resource="pods")

        def is_gone() -> bool:
            try:
                call(self.api, "get", f"{PODS}/{name}", resource="pods")
            except ObjectNotFound:
                return True
            return False

        eventually(is_gone)


def is_written(write: Callable[[], None]) -> bool:
    """Return False where the Job's controller has written the Job first."""
    try:
        write()
    except ObjectChanged:
        return False
    return True


@pytest.fixture(scope="module")
def nights(gpu_sandbox: Sandbox) -> Iterator[list[Night]]:
    kept: list[Night] = []
    yield kept
    for night in kept:
        for job in list_gang_jobs(night.api, night.pool.name):
            delete_job(night.api, job.namespace, job.name, job.uid)
        night.lead.release(night.key)


@pytest.fixture
def night(gpu_sandbox: Sandbox, nights: list[Night]) -> Night:
    if not nights:
        nights.append(Night(pool_in(gpu_sandbox, 1)))
    return nights[0]


def test_two_gangs_that_want_the_same_nodes_get_them_one_after_the_other(night: Night) -> None:
    """Two keepers look at once, each time anew."""
    keepers = [night.reconciler(f"keeper-{number}") for number in range(2)]
    for number in range(5):
        names = [f"try-{number}-{name}" for name in ("a", "b")]
        for name in names:
            night.gang(name)
        with ThreadPoolExecutor(2) as threads:
            for _ in range(3):
                list(threads.map(lambda each: each.reconcile(admits=True), keepers))
        started = [name for name in names if not night.job(name).suspended]
        assert len(started) == 1, [night.job(name) for name in names]
        eventually(lambda started=started: night.bound(started[0]) == 2)
        (waits,) = set(names) - set(started)
        outcome = night.lead.reconcile(admits=True)
        assert outcome.gangs is not None
        assert "needs 2 free nodes of one zone, no zone has any" in outcome.gangs.why[f"default/{waits}"]
        assert night.bound(waits) == 0
        night.end(started[0])
        eventually(lambda waits=waits: night.lead.reconcile(admits=True) and night.bound(waits) == 2)
        night.end(waits)


def test_a_gang_whose_node_another_pod_took_gives_the_others_back_and_comes_again(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "WHOLE_WITHIN", timedelta(seconds=2))
    night.gang("robbed")
    night.pod("thief")  # younger, so that it is not waited for
    eventually(lambda: any(pod.name == "thief" and pod.node for pod in night.lead.snapshot().pods))
    (zone,) = {node.zone for node in list_nodes(night.api, night.pool.node_selector)}
    admit(night.api, night.job("robbed"), zone, night.lead.clock.now())  # by one who did not see the thief
    eventually(lambda: night.bound("robbed") == 1)
    assert night.job("robbed").zone == zone
    eventually(lambda: night.lead.reconcile(admits=True) and night.job("robbed").suspended)
    eventually(lambda: night.bound("robbed") == 0)
    eventually(lambda: night.job("robbed").active == 0)
    outcome = night.lead.reconcile(admits=True)
    assert outcome.gangs is not None
    assert "and then suspended again" in outcome.gangs.why["default/robbed"]
    monkeypatch.setattr(admission, "WHOLE_WITHIN", timedelta(minutes=5))  # it is, however long that takes
    night.delete_pod("thief")
    eventually(lambda: night.lead.reconcile(admits=True) and night.bound("robbed") == 2)
    assert night.job("robbed").node_selector == tuple(night.pool.node_selector.items())
    assert night.job("robbed").zone == zone
    night.end("robbed")


def test_a_job_that_has_run_may_start_in_another_zone(night: Night) -> None:
    """Its placement is fixed while it says when it started; that is taken off."""
    night.gang("moved")
    admit(night.api, night.job("moved"), "nowhere-1a", night.lead.clock.now())
    eventually(lambda: night.job("moved").active == 2)
    eventually(lambda: is_written(lambda: suspend(night.api, night.job("moved"))))
    eventually(lambda: night.job("moved").active == 0)
    assert night.job("moved").node_selector == tuple(night.pool.node_selector.items())
    admit(night.api, night.job("moved"), "nowhere-1b", night.lead.clock.now())
    assert (night.job("moved").zone, night.job("moved").suspended) == ("nowhere-1b", False)
    eventually(lambda: night.job("moved").active == 2)
    night.end("moved")


def test_who_waits_for_a_gang_has_the_keeper_admit_it_and_hears_why_not(night: Night) -> None:
    night.gang("first")
    heard: list[PoolUpdates] = []

    async def wait() -> None:
        pool_updates.keep(night.pool, "tests", heard.append, admits=True)
        night.gang("second")
        try:
            await asyncio.to_thread(
                eventually, lambda: night.bound("first") == 2 and heard and "default/second" in heard[-1].gangs
            )
        finally:
            await pool_updates.leave(night.pool, "tests", heard.append)

    asyncio.run(wait())
    assert heard[-1].gang_error("default/first") is None
    assert any("gang default/first may start: 2 nodes in" in line for news in heard for line in news.log_lines)
    for name in ("first", "second"):
        night.end(name)


def test_what_a_run_leaves_of_its_gangs_goes_with_its_demand(night: Night) -> None:
    """The last test on these nodes."""
    for name in ("runs", "waits"):
        night.gang(name)
    eventually(lambda: night.lead.reconcile(admits=True) and night.bound("runs") == 2)
    log_lines = night.lead.release(night.key).log_lines
    assert {"deleted leftover gang default/runs", "deleted leftover gang default/waits"} <= {*log_lines}
    eventually(lambda: not list_gang_jobs(night.api, night.pool.name))
    eventually(lambda: night.bound("runs") == 0)
    eventually(lambda: not usable_nodes(night.lead.reconcile().snapshot))


def test_capacity_for_one_of_two_is_given_back_and_the_next_zone_has_both(
    gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FIRST", "LONGEST"):
        monkeypatch.setattr(backoff, name, timedelta(minutes=5))
    pool = pool_in(gpu_sandbox, 2)
    first, second = gpu_sandbox.zones[:2]
    alone = run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1, deferrable=False))
    assert [node["zone"] for node in alone["nodes"]] == [first]
    gpu_sandbox.faults.add(Stockout(zone=first))
    try:
        both = run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=2, gang=2, deferrable=False))
    finally:
        gpu_sandbox.faults.clear()
        released = run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool, deferrable=False))
    assert [node["zone"] for node in both["nodes"]] == [second, second]
    assert [each["zone"] for each in both["tried"]] == [first]
    log = capsys.readouterr().out
    assert "its run wants several nodes of one zone, and not all of them are there" in log
    assert f"2 nodes of one zone are wanted, {first} has 1" in log
    assert released["usage"]["machines"] == 3, "the one that came alone is in the bill"
