"""All of Airflow dies in the middle of trainings: what nobody comes back for ends, and nothing sooner.

Hours would pass, so the clouds' deadlines come 60 times as quick from the moment of the death: a minute is a second.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.training.log.followed_log import REPEATED
from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_api import PATIENCE, RunStatus, wait_until
from gpu_sandbox.airflow_home import AirflowHome
from gpu_sandbox.aws.observer import aws_client
from gpu_sandbox.leftovers import look_for_leftovers
from gpu_sandbox.nodes import NodeSpec
from tests.airflow.harness import Airflow
from tests.sandbox.karpenter_objects import install_karpenter, node_pool, uninstall_karpenter
from tests.sandbox.provisioner import Kind, Provisioner

pytestmark = pytest.mark.nightly

SPEED = 60
MAX_RUNTIME = timedelta(minutes=20)
EXTENSION = timedelta(minutes=10)
MARGIN = timedelta(minutes=15)
"""How long after max_runtime the clouds act (docs/demand.md)."""
AWAY = 50.0
"""Seconds: 50 minutes of the sandboxes'."""
KARPENTER = Kind(
    source="karpenter",
    labels={"karpenter.sh/nodepool": "dead-karpenter"},
    reason="Nominated",
    message="Pod should schedule on: nodeclaim/{name}",
    node_pool="dead-karpenter",
    brings_plugin=True,
)
SAVED_EVERY = 12
"""Log lines in the five seconds, and the one in which they are saved, that are not saved yet."""


@pytest.fixture
def airflow(home_on_both_clouds: AirflowHome, sandbox: Sandbox, gke: Sandbox) -> Iterator[Airflow]:
    yield Airflow(home_on_both_clouds, sandbox)
    gke.faults.clear()


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A pool in its sandbox, by its name."""

    sandbox: Sandbox
    name: str

    def get(self, path: str) -> list[dict[str, Any]]:
        status, reply = self.sandbox.control_plane.request("GET", path)
        assert status == 200, reply
        items: list[dict[str, Any]] = reply["items"]
        return items

    def nodes(self) -> list[dict[str, Any]]:
        return self.get(f"/api/v1/nodes?labelSelector=airflow-gpu-provider/pool%3D{self.name}")

    def pod(self) -> dict[str, Any]:
        """The training's pod; there is one, and it runs on one of the pool's nodes."""
        nodes = {node["metadata"]["name"] for node in self.nodes()}
        pods = self.get("/api/v1/namespaces/default/pods?fieldSelector=status.phase%3DRunning")
        (pod,) = (pod for pod in pods if pod["spec"].get("nodeName") in nodes)
        return pod

    def leases(self) -> list[dict[str, Any]]:
        selector = f"airflow-gpu-provider%2Fkind%3Ddemand,airflow-gpu-provider%2Fpool%3D{self.name}"
        return self.get(f"/apis/coordination.k8s.io/v1/namespaces/airflow-gpu-provider/leases?labelSelector={selector}")

    def groups(self) -> list[dict[str, Any]]:
        return [each for each in self.sandbox.cluster.groups() if str(each["nodegroup"]).startswith(self.name)]

    def machines(self) -> int:
        return sum(len(group["instances"]) for group in self.groups())

    @property
    def is_zero(self) -> bool:
        return not (self.nodes() or self.machines() or any(group["desired"] for group in self.groups()))


def test_the_clouds_end_what_nobody_comes_back_for_and_a_training_outlives_its_airflow(
    airflow: Airflow, sandbox: Sandbox, gke: Sandbox
) -> None:
    on_eks, on_gke = Pool(sandbox=sandbox, name="dead-eks"), Pool(sandbox=gke, name="dead-gke")
    extended, comes_back = Pool(sandbox=sandbox, name="dead-extended"), Pool(sandbox=sandbox, name="comes-back")
    runs = {dag_id: airflow.trigger(dag_id) for dag_id in ("dead_eks", "dead_gke", "dead_extended", "comes_back")}
    for run in runs.values():
        airflow.until_watched(run)
    lasts = dict.fromkeys((on_eks, on_gke), MAX_RUNTIME) | {extended: MAX_RUNTIME + EXTENSION}
    extend(airflow, extended, runs["dead_extended"])
    pod = comes_back.pod()
    name = pod["metadata"]["name"]

    def unsaved() -> int:
        return len(steps(airflow.log(runs["comes_back"], "train"))) - len(airflow.saved_log(name))

    wait_until(lambda: unsaved() <= SAVED_EVERY, what="the place in the log to be saved")
    saved = len(airflow.saved_log(name))

    # Not later than the cloud's clock goes faster, however long the kill takes.
    died_at = datetime.now(UTC)
    airflow.home.kill_all()
    sandbox.faults.deadline_speed = gke.faults.deadline_speed = SPEED
    ends = {on_eks: switch_time(on_eks), extended: switch_time(extended), on_gke: machine_end(on_gke)}
    for pool, end in ends.items():
        # Not a minute before the run's time is over, and half an hour after it at most.
        began_at = runs[pool.name.replace("-", "_")].queued_at
        assert began_at is not None
        assert began_at + lasts[pool] < end < died_at + lasts[pool] + MARGIN + timedelta(minutes=1)
    due = {pool: died_at + (end - died_at) / SPEED for pool, end in ends.items()}

    for pool, gone_at in watch_until_zero(due).items():
        assert gone_at >= due[pool] - timedelta(seconds=0.5), f"{pool.name} went before its time"
    left = AWAY - (datetime.now(UTC) - died_at).total_seconds()
    time.sleep(max(left, 0.0))
    for each in (sandbox, gke):
        each.faults.clear()
    assert comes_back.pod()["metadata"]["uid"] == pod["metadata"]["uid"]

    airflow.home.start()
    run = runs["comes_back"]
    # A dead triggerer's triggers go to another one once its heartbeat is 30 s old.
    wait_until(lambda: REPEATED in airflow.log(run, "train"), what="the pod to be watched again")
    airflow.run_in(name, "touch", "/tmp/enough")
    finished = airflow.finish(run)
    assert finished.state == "success", finished.states
    assert finished.task("train").try_number == 1
    is_whole(airflow.log(finished, "train"), saved)

    # Whose pods were taken has failed: no run is green that did not train, and none begins anew by itself.
    for dag_id in ("dead_eks", "dead_gke", "dead_extended"):
        assert airflow.finish(runs[dag_id]).state == "failed"
    for each in (sandbox, gke):
        wait_until(lambda each=each: look_for_leftovers(each).nothing, what="zero")  # type: ignore[misc]


def test_the_kubelet_ends_what_no_cloud_ends(airflow: Airflow, sandbox: Sandbox) -> None:
    """On machines that are there anyway and on Karpenter's: activeDeadlineSeconds, in real time."""
    install_karpenter(sandbox)
    node_pool(sandbox, "dead-karpenter", group="karpenter.k8s.aws")
    sandbox.agent.add_node(NodeSpec(name="dead-rack", gpus=1))
    dag_ids = ("dead_named", "dead_karpenter")
    try:
        with Provisioner(sandbox, KARPENTER) as provisioner:
            runs = {dag_id: airflow.trigger(dag_id) for dag_id in dag_ids}
            for run in runs.values():
                airflow.until_watched(run)
            airflow.home.kill_all()
            due = {dag_id: demand_end(sandbox, dag_id) for dag_id in dag_ids}
            for dag_id, end in due.items():
                ended_at, waited = ended_by_kubelet(sandbox, dag_id, by=end + timedelta(seconds=PATIENCE))
                # Kubernetes' times are whole seconds; the limit counts from the start on the node.
                assert end - timedelta(seconds=2) <= ended_at <= end + waited + timedelta(seconds=10), dag_id
            wait_until(lambda: not provisioner.nodes, what="Karpenter to remove its empty node")
            airflow.home.start()
            for run in runs.values():
                assert airflow.finish(run).state == "failed"
    finally:
        sandbox.agent.remove_node("dead-rack")
        uninstall_karpenter(sandbox)
    wait_until(lambda: look_for_leftovers(sandbox).nothing, what="zero")


def extend(airflow: Airflow, pool: Pool, run: RunStatus) -> None:
    """As an engineer does in a shell, while the training runs."""
    hours = EXTENSION / timedelta(hours=1)
    of_run = ("--dag-id", run.dag_id, "--run-id", run.run_id, "--hours", f"{hours}", "--reason", "a larger data set")
    command = [sys.executable, "-m", "airflow", "gpu", "extend", pool.name, *of_run]
    done = subprocess.run(
        command, env=airflow.home.environment, cwd=airflow.home.home, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr


def demand_end(sandbox: Sandbox, dag_id: str) -> datetime:
    """Until when the run of this DAG may use nodes, as its Lease has it."""
    (lease,) = Pool(sandbox=sandbox, name=dag_id.replace("_", "-")).leases()
    return datetime.fromisoformat(lease["metadata"]["annotations"]["airflow-gpu-provider/until"])


def ended_by_kubelet(sandbox: Sandbox, dag_id: str, *, by: datetime) -> tuple[datetime, timedelta]:
    """When the run's pod was ended for its deadline, and by nobody else; and how long it had waited for its node."""
    selector = f"labelSelector=dag_id%3D{dag_id}"
    while datetime.now(UTC) < by:
        (pod,) = Pool(sandbox=sandbox, name=dag_id).get(f"/api/v1/namespaces/default/pods?{selector}")
        if pod["status"]["phase"] == "Failed":
            assert pod["status"]["reason"] == "DeadlineExceeded", pod["status"]
            assert "deletionTimestamp" not in pod["metadata"]
            began, created = pod["status"]["startTime"], pod["metadata"]["creationTimestamp"]
            return datetime.now(UTC), datetime.fromisoformat(began) - datetime.fromisoformat(created)
        time.sleep(0.2)
    raise AssertionError(f"the pod of {dag_id} still runs")


def switch_time(pool: Pool) -> datetime:
    """When AWS is to set the pool's groups to zero."""
    groups = [group["name"] for group in pool.groups() if group["desired"]]
    asg = aws_client(pool.sandbox.aws, "autoscaling")
    (action,) = asg.describe_scheduled_actions(AutoScalingGroupName=groups[0])["ScheduledUpdateGroupActions"]
    assert (action["DesiredCapacity"], action.get("MinSize"), action.get("MaxSize")) == (0, None, None)
    when: datetime = action["StartTime"]
    return when


def machine_end(pool: Pool) -> datetime:
    """When Google Cloud is to delete the pool's machine."""
    (name,) = {group["nodegroup"] for group in pool.groups() if group["instances"]}
    lifetime: Any = pool.sandbox.google.node_pools.get(name).settings.config.max_run_duration
    (node,) = pool.nodes()
    return datetime.fromisoformat(node["metadata"]["creationTimestamp"]) + timedelta(seconds=lifetime.total_seconds())


def watch_until_zero(due: dict[Pool, datetime]) -> dict[Pool, datetime]:
    """When each pool was first seen without a running training, looking all the time until all are at zero."""
    gone: dict[Pool, datetime] = {}
    deadline = max(due.values()) + timedelta(seconds=PATIENCE)
    while not (gone.keys() == due.keys() and all(pool.is_zero for pool in due)):
        assert datetime.now(UTC) < deadline, f"still there: {[pool.name for pool in due if not pool.is_zero]}"
        for pool in due.keys() - gone.keys():
            if not pool.nodes() or pool.machines() == 0 or any("deletionTimestamp" in p for p in pods_of(pool)):
                gone[pool] = datetime.now(UTC)
        time.sleep(0.2)
    return gone


def pods_of(pool: Pool) -> list[dict[str, Any]]:
    nodes = {node["metadata"]["name"] for node in pool.nodes()}
    pods = pool.get("/api/v1/namespaces/default/pods")
    return [pod["metadata"] for pod in pods if pod["spec"].get("nodeName") in nodes]


def steps(log: str) -> list[int]:
    return [int(step) for step in re.findall(r"^\[base\] step (\d+)$", log, re.M)]


def is_whole(log: str, saved: int) -> None:
    """Hold that every line of the training is there once, but for those that were not saved when Airflow died."""
    before, repeated, after = log.partition(REPEATED)
    after, _, rest = after.partition(REPEATED)  # a busy supervisor may not say in time what it has written
    first, then, again = steps(before), steps(after), steps(rest)
    assert repeated
    assert first == [*range(1, len(first) + 1)]
    assert then == [*range(then[0], then[-1] + 1)]
    assert saved <= then[0] - 1 <= len(first)
    if again:
        assert again == [*range(again[0], again[-1] + 1)]
        assert again[0] <= then[-1] + 1
    assert max(then + again) > AWAY, "two lines a second"
    assert "[base] trained" in after + rest
