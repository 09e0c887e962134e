"""The janitor against the sandbox: what runs that are over have left goes, and what anybody wants stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.demand import DemandKey
from airflow_gpu_provider.errors import DemandNotExtended
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.extend import ExtendGpuPoolOperator
from airflow_gpu_provider.operators.reap import ReapGpuPoolsOperator
from airflow_gpu_provider.operators.reports import GpuPoolDoctorOperator, GpuPoolStatusOperator
from airflow_gpu_provider.pools import EksGpuPool
from airflow_gpu_provider.pools.base import POOL_LABEL
from airflow_gpu_provider.scaling.open_pool import open_pool
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


def reap(pool: EksGpuPool, *, living: tuple[str, ...], others: bool = False, **arguments: Any) -> list[dict[str, Any]]:
    """Run the operator as a task of an Airflow in which only `living` runs go on.

    `others` are the pools that the tests before have left in this cluster, dozens of them.
    """
    operator = ReapGpuPoolsOperator(task_id="reap", gpu_pools=[pool], others=others, **arguments)
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


def metadata_of(pool: EksGpuPool, run_id: str, installation: str = "tests") -> dict[str, Any]:
    key = DemandKey(installation=installation, dag_id="nightly", run_id=run_id, pool=pool.name)
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


def test_strangers_keep_what_they_have(gpu_sandbox: Sandbox, pool: EksGpuPool) -> None:
    """Demand of another Airflow lasts until its end, and a pod of nobody's is nobody's to delete."""
    other = open_pool(pool, owner="", holder="another Airflow", say=print)
    other.platform.apply(other.platform.plan(1), print)
    key = DemandKey(installation="another", dag_id="nightly", run_id="one", pool=pool.name)
    until = datetime.now(UTC) + timedelta(hours=1)
    eventually(lambda: other.want(key, 1, until) and status(pool)["nodes"] == 1)
    start_pod(gpu_sandbox, pool, "of-another", **metadata_of(pool, "one", "another"))
    start_pod(gpu_sandbox, pool, "of-nobody")

    assert leftovers(reap(pool, living=()), pool) == {}
    assert (phase(gpu_sandbox, "of-another"), phase(gpu_sandbox, "of-nobody")) == ("Running", "Running")

    for name in ("of-another", "of-nobody"):
        gpu_sandbox.control_plane.request("DELETE", f"{PODS}/{name}")
    other.delete_demand_and_reconcile(key)


def test_pods_without_demand_are_known_by_their_run(gpu_sandbox: Sandbox, pool: EksGpuPool) -> None:
    ensure(pool, "dead")
    start_pod(gpu_sandbox, pool, "late", **metadata_of(pool, "dead"))
    key = DemandKey(installation="tests", dag_id="nightly", run_id="dead", pool=pool.name)
    open_pool(pool, owner="", holder="a test", say=print).delete_demand_and_reconcile(key)
    assert status(pool)["nodes"] == 1, "a running pod keeps its machine"

    assert leftovers(reap(pool, living=("dead",), dry_run=True), pool) == {}
    assert leftovers(reap(pool, living=()), pool)["pod"] == ["default/late"]
    assert phase(gpu_sandbox, "late") == "gone"
    assert status(pool)["machines"] == []


def test_forgotten_pools_are_found_in_the_cluster(gpu_sandbox: Sandbox, pool: EksGpuPool) -> None:
    """The DAG of a pool is gone: another pool of the same cluster is enough to find it, with its prices."""
    ensure(pool, "dead")
    named = EksGpuPool(**{**_fields(pool), "name": "jan-named"})
    alone = reap(named, living=(), dry_run=True)
    assert [each["pool"] for each in alone] == ["jan-named"]

    found = {each["pool"]: each for each in reap(named, living=(), others=True)}
    assert (found["jan-named"]["named"], found[pool.name]["named"]) == (True, False)
    assert found[pool.name]["cost"] > 0
    assert status(pool)["machines"] == []


def extend(pool: EksGpuPool, run_id: str, hours: Any, *, living: tuple[str, ...], **more: Any) -> list[dict[str, Any]]:
    operator = ExtendGpuPoolOperator(
        task_id="extend", gpu_pools=[pool], dag_id_of_run="nightly", run_id=run_id, hours=hours, **more
    )
    context = context_of(operator)
    context["ti"].get_dr_count = lambda dag_id, run_ids, states: sum(each in living for each in run_ids)
    extended: list[dict[str, Any]] = operator.execute(context)
    return extended


def test_more_time_moves_the_demand_and_the_switch_and_is_told(gpu_sandbox: Sandbox, pool: EksGpuPool) -> None:
    pool = replace(pool, max_runtime=timedelta(hours=6))
    ensure(pool, "r1")
    (before,) = status(pool)["leases"]
    reconciler = open_pool(pool, owner="tests/nightly", holder="test", say=print)
    (switch,) = {group.switch_at for group in reconciler.platform.observe()}
    with pytest.raises(DemandNotExtended, match=r"max_runtime of 6:00:00 ends at"):
        extend(pool, "r1", 2, living=("r1",))
    (done,) = extend(pool, "r1", "2", living=("r1",), reason="a larger data set")
    until = datetime.fromisoformat(before["until"]) + timedelta(hours=2)
    assert (done["before"], datetime.fromisoformat(done["until"])) == (before["until"], until)
    (after,) = status(pool)["leases"]
    assert (datetime.fromisoformat(after["until"]), after["extended"]) == (until, "a larger data set")
    (moved,) = {group.switch_at for group in reconciler.platform.observe()}
    assert moved - switch == timedelta(hours=2)
    ensure(pool, "r1")  # its next try takes nothing back
    (kept,) = status(pool)["leases"]
    assert (datetime.fromisoformat(kept["until"]), kept["extended"]) == (until, "a larger data set")


@pytest.mark.parametrize(
    ("run_id", "hours", "living", "said"),
    [
        ("r1", 1, (), "r1 is over"),
        ("other", 1, ("other",), "wants no nodes now"),
        ("r1", "nan", ("r1",), "not a number"),
    ],
)
def test_more_time_is_refused(pool: EksGpuPool, run_id: str, hours: Any, living: tuple[str, ...], said: str) -> None:
    ensure(pool, "r1")
    (before,) = status(pool)["leases"]
    with pytest.raises(DemandNotExtended, match=said):
        extend(pool, run_id, hours, living=living, reason="why not")
    assert status(pool)["leases"] == [before]


def test_doctor_as_a_task_fails_where_the_cluster_is_not_there(pool: EksGpuPool) -> None:
    findings = run(GpuPoolDoctorOperator(task_id="doctor", gpu_pools=[pool]))
    # Other tests leave node groups in this cluster, and from the 31st on the doctor warns of EKS's limit.
    not_ok = [each for each in findings if each["result"] != "ok" and "managed node groups" not in each["said"]]
    assert not not_ok
    nowhere = EksGpuPool(**{**_fields(pool), "cluster_name": "nowhere"})
    with pytest.raises(Exception, match="There is no EKS cluster nowhere in us-west-2"):
        run(GpuPoolDoctorOperator(task_id="doctor", gpu_pools=[nowhere]))


def _fields(pool: EksGpuPool) -> dict[str, Any]:
    fields = pool.serialize()
    return {key: fields[key] for key in fields if key not in ("kind", "version")}
