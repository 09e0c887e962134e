"""The janitor against the sandbox: what a run that is over has left goes, and what another wants stays.

What else is found, and what else stays, is tested in tests/unit/operators/test_janitor.py, in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.reap import ReapGpuPoolsOperator
from airflow_gpu_provider.operators.reports import GpuPoolDoctorOperator, GpuPoolStatusOperator
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import context_of, eventually, run

SLEEP = ["python", "-c", "import time; time.sleep(600)"]
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(autouse=True)
def installation(gpu_sandbox_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")


@pytest.fixture
def pool(gpu_sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[EksGpuPool]:
    """A pool of the test's own; what the test leaves of it goes."""
    pool = EksGpuPool(
        name=f"jan-{request.node.name.split('_')[1]}",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=["g6.xlarge"],
        zones=[gpu_sandbox.zones[0]],
        max_nodes=3,
        price_per_hour=0.8,
    )
    yield pool
    reap(pool, living=())


def ensure(pool: EksGpuPool, run_id: str) -> None:
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, deferrable=False), run_id=run_id)


def reap(pool: EksGpuPool, *, living: tuple[str, ...], **arguments: Any) -> list[dict[str, Any]]:
    """Run the operator as a task of an Airflow in which only `living` runs go on.

    The tests before have left dozens of other pools in this cluster.
    """
    operator = ReapGpuPoolsOperator(task_id="reap", gpu_pools=[pool], others=False, **arguments)
    context = context_of(operator)
    context["ti"].get_dr_count = lambda dag_id, run_ids, states: sum(each in living for each in run_ids)
    found: list[dict[str, Any]] = operator.execute(context)
    return found


def leftovers(reaped: list[dict[str, Any]], pool: EksGpuPool) -> dict[str, list[str]]:
    (mine,) = (each for each in reaped if each["pool"] == pool.name)
    kinds: dict[str, list[str]] = {}
    for each in mine["leftovers"]:
        kinds.setdefault(each["kind"], []).append(each["name"])
    return kinds


def status(pool: EksGpuPool) -> dict[str, Any]:
    (found,) = run(GpuPoolStatusOperator(task_id="status", gpu_pools=[pool]))
    return dict(found)


def start_pod(sandbox: Sandbox, pool: EksGpuPool, name: str, **metadata: Any) -> None:
    spec = {
        "nodeSelector": pool.node_selector,
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "base", "image": "python:3.12", "command": SLEEP}],
    }
    code, reply = sandbox.control_plane.request("POST", PODS, {"metadata": {"name": name, **metadata}, "spec": spec})
    assert code == 201, reply
    eventually(lambda: phase(sandbox, name) == "Running")


def phase(sandbox: Sandbox, name: str) -> str:
    code, reply = sandbox.control_plane.request("GET", f"{PODS}/{name}")
    return str(reply["status"]["phase"]) if code == 200 else "gone"


def metadata_of(pool: EksGpuPool, run_id: str) -> dict[str, Any]:
    key = DemandKey(installation="tests", dag_id="nightly", run_id=run_id, pool=pool.name)
    labels = {POOL_LABEL: pool.name, "airflow-gpu-provider/run": key.hash}
    return {"labels": labels, "annotations": key.annotations}


def test_dead_runs_lose_their_demand_their_pods_and_their_machines(gpu_sandbox: Sandbox, pool: EksGpuPool) -> None:
    ensure(pool, "dead")
    ensure(pool, "alive")
    start_pod(gpu_sandbox, pool, "of-the-dead", **metadata_of(pool, "dead"))

    found = leftovers(reap(pool, living=("alive",), dry_run=True), pool)
    assert len(found["lease"]) == 1
    assert found["pod"] == ["default/of-the-dead"]
    assert len(found["machine"]) == 1
    assert (phase(gpu_sandbox, "of-the-dead"), status(pool)["nodes"]) == ("Running", 2), "a dry run changes nothing"

    (mine,) = (each for each in reap(pool, living=("alive",)) if each["pool"] == pool.name)
    assert mine["left"] == []
    assert mine["cost"] > 0
    eventually(lambda: phase(gpu_sandbox, "of-the-dead") == "gone")  # its end is seen before its deletion
    after = status(pool)
    assert (after["wanted"], [lease["run"] for lease in after["leases"]]) == (1, ["nightly/alive"])
    assert len(after["machines"]) == 1
    assert leftovers(reap(pool, living=("alive",)), pool) == {}


def test_doctor_as_a_task_fails_where_the_cluster_is_not_there(pool: EksGpuPool) -> None:
    findings = run(GpuPoolDoctorOperator(task_id="doctor", gpu_pools=[pool]))
    # Other tests leave node groups in this cluster, and from the 31st on the doctor warns of EKS's limit.
    not_ok = [each for each in findings if each["result"] != "ok" and "managed node groups" not in each["message"]]
    assert not not_ok
    nowhere = replace(pool, cluster_name="nowhere")
    with pytest.raises(Exception, match="There is no EKS cluster nowhere in us-west-2"):
        run(GpuPoolDoctorOperator(task_id="doctor", gpu_pools=[nowhere]))
