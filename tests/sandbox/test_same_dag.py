"""One DAG, several platforms: only the spec differs, and each night goes from nothing to a result to nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from kubernetes import client, config

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, GpuPodOperator, KubernetesGpuPool, gpu_nodes
from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.pools import GpuPool
from gpu_sandbox.faults import Stockout
from gpu_sandbox.nodes import NodeSpec
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import context_of, eventually, run

COMMON: dict[str, Any] = {"max_nodes": 1, "max_runtime": timedelta(hours=1), "node_labels": {"role": "train-gpu"}}
CUDA = "nvidia/cuda:12.8.1-base-ubuntu24.04"
COUNT_GPUS = """nvidia-smi -L && echo '{"gpus": "'$CUDA_VISIBLE_DEVICES'"}' > /airflow/xcom/return.json"""


def nightly(pool: GpuPool) -> DAG:
    """The DAG, the same for every platform."""
    with DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1)) as dag, gpu_nodes(pool, gpus=1):
        GpuPodOperator(task_id="train", gpus=1, image=CUDA, cmds=["sh", "-c", COUNT_GPUS], do_xcom_push=True)
    return dag


def eks(sandbox: Sandbox, **changes: Any) -> EksGpuPool:
    return EksGpuPool(
        cluster_name=sandbox.cluster_name,
        region=sandbox.region,
        instance_types=["g6.xlarge"],
        **{**COMMON, "name": "train-eks", **changes},
    )


def gke(sandbox: Sandbox, **changes: Any) -> GkeGpuPool:
    where = {
        "project_id": sandbox.google.project_id,
        "location": sandbox.google.location,
        "cluster_name": sandbox.cluster_name,
    }
    return GkeGpuPool(**{**COMMON, **where, "name": "train-gke", "machine_types": ["g2-standard-4"], **changes})


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sandbox], None]:
    """Points this test's clients at a sandbox."""
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    # Triggers send their events at once: there is no scheduler here to be patient for.
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)

    def enter(sandbox: Sandbox) -> None:
        for name, value in sandbox.env().items():
            monkeypatch.setenv(name, value)

    return enter


def one_night(pool: GpuPool) -> dict[str, Any]:
    """Run the DAG's tasks in order, as workers and a triggerer would, and return what each returned.

    The block's last task is left out: it reads what Airflow's database says of the others.
    """
    tasks = [task for task in nightly(pool).topological_sort() if not task.task_id.endswith(".done")]
    return {task.task_id.removeprefix(f"{pool.name}."): run(task, context_of(task)) for task in tasks}


def holds(results: dict[str, Any]) -> None:
    assert list(results) == ["begin", "ensure", "device_plugin", "train", "scale_down", "witness"]
    assert results["ensure"]["gpus"] in (0, 1)  # Ready comes before allocatable
    assert list(results["device_plugin"]["nodes"].values()) == [1]
    assert results["train"] == {"gpus": results["train"]["gpus"]}
    assert (results["scale_down"]["nodes"], results["scale_down"]["desired"]) == (0, 0)


def test_a_night_on_eks(gpu_sandbox: Sandbox, enter: Callable[[Sandbox], None]) -> None:
    """The next one will find all that it needs as it should be."""
    enter(gpu_sandbox)
    pool = eks(gpu_sandbox)
    holds(one_night(pool))
    plan = run(EnsureGpuPoolOperator(task_id="plan", gpu_pool=pool, dry_run=True, deferrable=False))["plan"]
    assert plan[0].startswith("Plan for train-eks")
    assert [line for line in plan if line.lstrip().startswith(("+", "~"))] == []


def test_a_night_on_bare_metal(gpu_sandbox: Sandbox, enter: Callable[[Sandbox], None]) -> None:
    enter(gpu_sandbox)  # Airflow's default Kubernetes connection: KUBECONFIG
    gpu_sandbox.agent.add_node(NodeSpec(name="metal-a", gpus=1))
    core = client.CoreV1Api(config.new_client_from_config(str(gpu_sandbox.kubeconfig)))
    eventually(lambda: any(node.metadata.name == "metal-a" for node in core.list_node().items))
    try:
        pool = KubernetesGpuPool(**{**COMMON, "name": "train-metal", "nodes": ["metal-a"]})
        results = one_night(pool)
    finally:
        gpu_sandbox.agent.remove_node("metal-a")
    assert list(results) == ["begin", "ensure", "device_plugin", "train", "scale_down", "witness"]
    assert results["device_plugin"]["nodes"] == {"metal-a": 1}
    assert results["train"] == {"gpus": results["train"]["gpus"]}
    assert (results["scale_down"]["nodes"], results["scale_down"]["kept"]) == (1, [])  # the node stays


def test_a_night_on_gke(gke_sandbox: Sandbox, enter: Callable[[Sandbox], None]) -> None:
    enter(gke_sandbox)
    results = one_night(gke(gke_sandbox))
    holds(results)
    assert results["device_plugin"]["served_by"] == "GKE"
    assert not [group for group in gke_sandbox.google.node_pools.groups() if group.members]


def test_a_night_through_the_dns_endpoint_alone(
    gke_sandbox: Sandbox, enter: Callable[[Sandbox], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its certificate is none of the cluster's authority: what the system trusts vouches for it."""
    gke_sandbox.google.set_endpoints(ip=False, dns=True)
    try:
        enter(gke_sandbox)
        pool = gke(gke_sandbox, name="train-dns", endpoint="dns", node_locations=["us-central1-a"])
        assert platform_for(pool).cluster_access().server == f"https://{gke_sandbox.control_plane.dns_endpoint}"
        holds(one_night(pool))
        assert "The XCom sidecar" not in capsys.readouterr().out
    finally:
        gke_sandbox.google.set_endpoints(ip=True, dns=False)


def test_a_night_on_gke_with_a_driver_daemonset(gke_sandbox: Sandbox, enter: Callable[[Sandbox], None]) -> None:
    enter(gke_sandbox)
    pool = gke(
        gke_sandbox,
        name="train-k80",
        machine_types=["n1-standard-4"],
        accelerator={"type": "nvidia-tesla-k80"},
        node_locations=["us-central1-a"],
        driver="daemonset",
    )
    holds(one_night(pool))
    holds(one_night(pool))  # the next one finds the installer there


def test_a_stock_out_in_two_zones_on_spot_ends_on_demand_in_the_third(
    gke_sandbox: Sandbox, enter: Callable[[Sandbox], None]
) -> None:
    enter(gke_sandbox)
    stockouts = [Stockout(market="spot"), Stockout(zone="us-central1-a"), Stockout(zone="us-central1-b")]
    for stockout in stockouts:
        gke_sandbox.faults.add(stockout)
    try:
        results = one_night(gke(gke_sandbox, name="train-spot", capacity_types=["SPOT", "ON_DEMAND"]))
    finally:
        gke_sandbox.faults.clear()
    (node,) = results["ensure"]["nodes"]
    assert (node["zone"], node["capacity_type"]) == ("us-central1-c", "ON_DEMAND")
    assert (results["scale_down"]["nodes"], results["scale_down"]["desired"]) == (0, 0)
