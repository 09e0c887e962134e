"""All of Airflow dies in the middle of trainings: the clouds end what nobody comes back for, and nothing sooner.

Hours would pass, so the sandboxes' deadlines come 60 times as quick from the moment of the death: a minute is a second.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.training.log.followed_log import REPEATED
from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_api import PATIENCE, wait_until
from gpu_sandbox.airflow_home import AirflowHome
from gpu_sandbox.aws.observer import aws_client
from gpu_sandbox.leftovers import look_for_leftovers
from tests.airflow.harness import Airflow

pytestmark = pytest.mark.nightly

SPEED = 60
MAX_RUNTIME = timedelta(minutes=20)
MARGIN = timedelta(minutes=15)
"""How long after max_runtime the clouds act (docs/demand.md)."""
AWAY = 40.0
"""Seconds: 40 minutes of the sandboxes'."""
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
    comes_back = Pool(sandbox=sandbox, name="comes-back")
    runs = {dag_id: airflow.trigger(dag_id) for dag_id in ("dead_eks", "dead_gke", "comes_back")}
    for run in runs.values():
        airflow.until_watched(run)
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
    ends = {on_eks: switch_time(on_eks), on_gke: machine_end(on_gke)}
    for pool, end in ends.items():
        # Not a minute before the run's time is over, and half an hour after it at most.
        began_at = runs[pool.name.replace("-", "_")].queued_at
        assert began_at is not None
        assert began_at + MAX_RUNTIME < end < died_at + MAX_RUNTIME + MARGIN + timedelta(minutes=1)
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
    for dag_id in ("dead_eks", "dead_gke"):
        assert airflow.finish(runs[dag_id]).state == "failed"
    for each in (sandbox, gke):
        wait_until(lambda each=each: look_for_leftovers(each).nothing, what="zero")  # type: ignore[misc]


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
