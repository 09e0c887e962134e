"""What an extension of demand reaches: pods that end before it all the same, and Jobs that run on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.errors import DemandNotExtended
from airflow_gpu_provider.money.budget import Budget
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.end.reach import check_reaches, extend_jobs
from airflow_gpu_provider.scaling.state.demand import DemandLease
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.unit.scaling.pools import EARLIER, LATER, NOW, groups, key, lease, machine, node, pod, pool

HOUR = timedelta(hours=1)
SINCE_EARLIER = {"kubelet_since": EARLIER, "started_at": EARLIER + timedelta(minutes=9)}
GKE = GkeGpuPool(
    name="train",
    project_id="ml-project",
    location="us-central1",
    cluster_name="ml",
    machine_types=["g2-standard-8"],
    max_nodes=8,
    max_runtime=7 * HOUR,
)


def extended(before: DemandLease) -> DemandLease:
    return replace(before, until=before.until + 2 * HOUR, extended="more data")


def check(of: GpuPool | None = None, run: str = "run", **fields: Any) -> None:
    its_node, its_pod = node(1), pod("train", on=1, run=run, **{**SINCE_EARLIER, **fields})
    found = PoolSnapshot(
        now=NOW,
        pool=of or pool(),
        leases=(lease(),),
        nodes=(its_node,),
        pods=(its_pod,),
        groups=groups(pool(), machine(1)),
    )
    check_reaches(found, lease(), extended(lease()))


def snapshot(*pods: Pod) -> PoolSnapshot:
    return PoolSnapshot(now=NOW, pool=pool(), leases=(), nodes=(), pods=pods, groups=())


def test_a_pod_that_only_its_task_and_the_switch_end_runs_on() -> None:
    check()


@pytest.mark.parametrize("own", [LATER - EARLIER, LATER + HOUR - EARLIER])
def test_a_pod_that_its_kubelet_ends_at_the_end_of_its_demand_is_named_with_its_time(own: timedelta) -> None:
    ends = f"default/train at {EARLIER + own:%Y-%m-%d %H:%M:%SZ}"
    with pytest.raises(DemandNotExtended, match=ends) as refused:
        check(active_deadline=own)
    assert refused.value.details["pods"] == ["default/train"]


@pytest.mark.parametrize(
    "fields",
    [
        {"active_deadline": HOUR},  # the author's own
        {"active_deadline": 9 * HOUR},
        {"active_deadline": LATER - EARLIER, "phase": "Succeeded"},
        {"active_deadline": LATER - EARLIER, "delete_at": NOW},
        {"active_deadline": LATER - EARLIER, "run": "another"},
    ],
    ids=str,
)
def test_no_other_pod_stands_in_the_way(fields: dict[str, Any]) -> None:
    check(**fields)


def test_a_machine_s_life_ends_its_pods() -> None:
    with pytest.raises(DemandNotExtended, match=r"or with its machine ends pod default/train at 2026-03-01 08:15:00Z"):
        check(of=GKE)
    check(of=replace(GKE, max_run_duration=10 * HOUR))


def test_what_ends_at_the_end_of_the_money_is_not_reached_either() -> None:
    budget = Budget(limit=6.0, spent=0.0, at=NOW, per_hour=1.0)
    mine = lease(until=budget.stops_by, budget=budget)
    its_pod = pod("train", on=1, run="run", active_deadline=budget.ends_at - EARLIER, **SINCE_EARLIER)
    found = snapshot(its_pod)
    with pytest.raises(DemandNotExtended, match="default/train"):
        check_reaches(found, mine, extended(mine))


@pytest.mark.parametrize(
    ("spec", "status", "seconds"),
    [
        ({"activeDeadlineSeconds": 100}, {"startTime": f"{EARLIER:%FT%TZ}"}, 9 * 3600 + 120),
        ({"activeDeadlineSeconds": 100}, {}, 8 * 3600 + 120),
        ({"activeDeadlineSeconds": 90000}, {}, 90000),
        ({}, {"startTime": f"{EARLIER:%FT%TZ}"}, None),
        ({"activeDeadlineSeconds": 100}, {"conditions": [{"type": "Complete", "status": "True"}]}, 100),
    ],
    ids=["runs", "waits for its turn", "may run on", "the switch ends it", "has ended"],
)
@pytest.mark.parametrize(
    ("of_gang", "pods"),
    [
        (2, ()),
        (0, (pod("train-0", on=1, run="run", namespace="ml", job="u", job_name="train"),)),
        (0, (pod("train-x", on=1, run="run", workload="apis/batch/v1/namespaces/ml/jobs/train"),)),
    ],
    ids=["a gang", "its pods", "a workload"],
)
def test_jobs_run_on(
    spec: dict[str, Any], status: dict[str, Any], seconds: int | None, of_gang: int, pods: tuple[Pod, ...]
) -> None:
    server, path = ApiServer(now=lambda: NOW), "apis/batch/v1/namespaces/ml/jobs/train"
    labels = {"airflow-gpu-provider/run": key("run").hash, "airflow-gpu-provider/gang": "2"}
    mine = {"name": "train", "namespace": "ml", "labels": labels}
    server.put(path, {"metadata": mine, "spec": spec, "status": status})
    api: Any = FakeApiClient(server)
    gang, found = lease(gang=of_gang), snapshot(*pods)
    done = extend_jobs(api, found, extended(gang))
    assert server.read(path)["spec"].get("activeDeadlineSeconds") == seconds
    assert bool(done) == (seconds != spec.get("activeDeadlineSeconds"))
    requests = len(server.requests)
    assert extend_jobs(api, snapshot(pod("train", on=1, run="run")), extended(lease())) == []
    assert len(server.requests) == requests, "Jobs are read only of a run that has some"
