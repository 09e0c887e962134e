"""Whatever is killed while a pod trains: there is that one pod or none, never two, none is left, and nothing is green.

Nothing but the pod's own task could delete a pod here: but for one, the DAGs have no other, and the nodes stay. The
trainings of all tests begin together, so that the tests wait for that once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.pod_generator import make_safe_label_value
from kubernetes import client, config, watch

from airflow_gpu_provider.operators.device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox import airflow_processes
from gpu_sandbox.airflow_api import RunStatus, wait_until
from tests.airflow.dags.gpu_pods import kills_pool
from tests.airflow.harness import Airflow, FinishedRun
from tests.sandbox.running import run as run_here

DAGS = {
    "deferred, task marked failed": "kill_deferred",
    "deferred, task marked success": "kill_deferred",
    "deferred, run marked failed": "kill_deferred",
    "deferred, task cleared": "kill_deferred_slow",
    "deferred, run cleared": "kill_deferred",
    "deferred, triggerer stalled": "kill_deferred",
    "deferred, triggerer killed": "kill_deferred",
    "deferred, scheduler killed": "kill_deferred",
    "deferred, DAG deleted": "kill_dag_deleted",
}


class PodHistory:
    """Follows the pods, from a watch: which ones each run has had, which it has, and where two of it ran together.

    A pod that is deleted runs on for its grace period.
    """

    def __init__(self, core: client.CoreV1Api) -> None:
        self.seen: dict[str, set[str]] = defaultdict(set)
        self.there: dict[str, dict[str, str]] = defaultdict(dict)
        self.together: list[set[str]] = []
        self.core = core
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> PodHistory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def follows(self) -> bool:
        return self._thread.is_alive()

    def _follow(self) -> None:
        pods = watch.Watch()
        while not self._over.is_set():
            # From the version that it had come to: what happens between two watches is not missed.
            version = pods.resource_version
            for event in pods.stream(
                self.core.list_namespaced_pod,
                "default",
                label_selector="run_id",
                resource_version=version,
                timeout_seconds=1,
            ):
                self._take(event["type"], event["object"])

    def _take(self, kind: str, pod: client.V1Pod) -> None:
        run, uid = pod.metadata.labels["run_id"], pod.metadata.uid
        self.seen[run].add(uid)
        if kind == "DELETED":
            self.there[run].pop(uid, None)
            return
        self.there[run][uid] = pod.status.phase
        running = {other for other, phase in self.there[run].items() if phase not in ("Succeeded", "Failed")}
        if len(running) > 1:
            self.together.append(running)


class Training:
    """One run of one training."""

    def __init__(self, airflow: Airflow, history: PodHistory, dag_id: str) -> None:
        self.airflow = airflow
        self.run: RunStatus = airflow.trigger(dag_id)
        self._history = history
        self._is_deferred = "blocking" not in dag_id

    @property
    def _key(self) -> str:
        return make_safe_label_value(self.run.run_id)

    @property
    def pods(self) -> set[str]:
        """The uids of the pods that the run has ever had."""
        return self._history.seen[self._key]

    @property
    def has_pod(self) -> bool:
        return bool(self._history.there[self._key])

    @property
    def has_ended(self) -> bool:
        return set(self._history.there[self._key].values()) == {"Succeeded"}

    def begun(self) -> str:
        """Wait until the pod runs and - deferred - its trigger watches it; returns the pod's uid."""
        self.until(lambda: "Running" in self._history.there[self._key].values(), "the pod to run")
        if self._is_deferred:
            self.until(lambda: self.watched >= 1, "the trigger to watch")
        (pod,) = self._history.there[self._key]
        return pod

    @property
    def watched(self) -> int:
        """How many triggers, one after the other, have told that they watch the pod."""
        return self.airflow.log(self.run, "train").count("started on node")

    def end(self) -> None:
        """Let the training end by itself."""
        (pod,) = self._history.core.list_namespaced_pod("default", label_selector=f"run_id={self._key}").items
        self.airflow.run_in(pod.metadata.name, "touch", "/dev/shm/end")

    def until(self, condition: Any, what: str) -> None:
        wait_until(condition, what=what)

    def delete_pod(self) -> None:
        self._history.core.delete_collection_namespaced_pod("default", label_selector=f"run_id={self._key}")

    def loses_its_pod(self) -> None:
        self.until(lambda: not self.has_pod, "the pod to go")

    def finished(self) -> FinishedRun:
        return self.airflow.finish(self.run)

    @property
    def process(self) -> int:
        """The process that runs the operator's code: the one that its worker forked for the task."""
        pid = self.airflow.api.task(self.run.dag_id, self.run.run_id, "train").pid
        assert pid in airflow_processes.processes_of(self.airflow.home.home)
        return pid


@pytest.fixture(scope="module")
def core(airflow: Airflow) -> Iterator[client.CoreV1Api]:
    """The cluster, with the nodes of all trainings."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in airflow.sandbox.env().items():
            patch.setenv(name, value)
        patch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
        pool = kills_pool()
        run_here(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=3, deferrable=False))
        run_here(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool, deferrable=False))
        core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
        yield core
        wait_until(lambda: not core.list_namespaced_pod("default").items, what="the last pod to end")
        run_here(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))


@pytest.fixture(scope="module")
def history(core: client.CoreV1Api) -> Iterator[PodHistory]:
    with PodHistory(core) as history:
        yield history


@pytest.fixture(scope="module")
def deferred(airflow: Airflow, history: PodHistory) -> Iterator[dict[str, Training]]:
    """A training in the triggerer for each kill, all of them under way."""
    trainings = {kill: Training(airflow, history, dag_id) for kill, dag_id in DAGS.items()}
    # While tasks start, Airflow's API server may answer a kill with 500, for want of SQLite's one lock.
    for training in trainings.values():
        training.begun()
    yield trainings
    # Where only some tests run, as when those that failed are repeated.
    without_test = [training for training in trainings.values() if training.has_pod]
    for training in without_test:
        airflow.api.mark_run(training.run.dag_id, training.run.run_id, "failed")
    for training in without_test:
        training.finished()


@pytest.fixture
def blocking(airflow: Airflow, history: PodHistory, request: pytest.FixtureRequest) -> Training:
    """A training that its worker waits for."""
    return Training(airflow, history, request.param)


@pytest.fixture(autouse=True)
def never_two(history: PodHistory) -> Iterator[None]:
    yield
    assert history.follows
    assert not history.together


@pytest.mark.parametrize(
    ("kill", "state"),
    [
        ("deferred, task marked failed", "failed"),
        ("deferred, task marked success", "success"),
        ("deferred, run marked failed", "failed"),
    ],
)
def test_deferred_pod_that_nobody_wants_goes(deferred: dict[str, Training], kill: str, state: str) -> None:
    training = deferred[kill]
    pod = training.begun()
    run, api = training.run, training.airflow.api
    if "run marked" in kill:
        api.mark_run(run.dag_id, run.run_id, "failed")
    else:
        api.mark_task(run.dag_id, run.run_id, "train", "failed" if state == "failed" else "success")
    training.loses_its_pod()
    assert training.finished().states == {"train": state}
    assert training.pods == {pod}


@pytest.mark.parametrize("kill", ["deferred, task cleared", "deferred, run cleared"])
def test_deferred_pod_of_a_task_that_is_cleared_makes_room_for_another(
    deferred: dict[str, Training], kill: str
) -> None:
    training = deferred[kill]
    first = training.begun()
    run, api = training.run, training.airflow.api
    if "run cleared" in kill:
        api.clear_run(run.dag_id, run.run_id)
    else:
        api.clear_task(run.dag_id, run.run_id, "train")
    finished = training.finished()
    assert finished.states == {"train": "success"}
    training.loses_its_pod()
    assert len(training.pods - {first}) == 1


def test_dag_that_is_deleted_takes_the_pod_its_nodes_and_its_demand_along(
    deferred: dict[str, Training], core: client.CoreV1Api
) -> None:
    """Of all that was to run only the trigger is left."""
    training = deferred["deferred, DAG deleted"]
    pod = training.begun()
    training.airflow.api.delete_dag(training.run.dag_id)
    training.loses_its_pod()
    assert training.pods == {pod}
    of_pool = "airflow-gpu-provider/pool=kill-dag-deleted"
    demand = f"{of_pool},airflow-gpu-provider/kind=demand"
    leases = client.CoordinationV1Api(core.api_client)
    training.until(lambda: not core.list_node(label_selector=of_pool).items, "the nodes to go")
    training.until(
        lambda: not leases.list_namespaced_lease("airflow-gpu-provider", label_selector=demand).items, "demand to go"
    )


def test_pod_that_ends_before_its_trigger_is_told_that_nobody_waits_goes(
    airflow: Airflow, deferred: dict[str, Training]
) -> None:
    """The trigger's event comes too late for the task, and the trigger has ended when Airflow would cancel it."""
    training = deferred["deferred, triggerer stalled"]
    pod = training.begun()
    airflow.home.suspend("triggerer")  # the process that tells the triggers; that of the triggers goes on
    try:
        training.airflow.api.mark_task(training.run.dag_id, training.run.run_id, "train", "failed")
        training.end()
        training.until(lambda: training.has_ended, "the training to end")
        time.sleep(5)  # for its trigger to see that, which nobody is told while that process stands still
    finally:
        airflow.home.kill("triggerer", signal.SIGCONT)
    training.loses_its_pod()
    assert training.finished().states == {"train": "failed"}
    assert training.pods == {pod}


def test_triggerer_that_is_killed_and_comes_back_goes_on_with_the_pod(
    airflow: Airflow, deferred: dict[str, Training]
) -> None:
    training = deferred["deferred, triggerer killed"]
    pod = training.begun()
    watched = training.watched
    airflow.home.kill("triggerer", signal.SIGKILL, with_children=True)
    airflow.home.restart("triggerer")
    # Airflow gives a dead triggerer's triggers to another one after 30 s without a heartbeat.
    training.until(lambda: training.watched > watched, "another trigger to watch")
    training.end()
    assert training.finished().states == {"train": "success"}
    assert training.pods == {pod}
    assert "trained" in training.airflow.log(training.run, "train")
    training.loses_its_pod()


@pytest.mark.parametrize("blocking", ["kill_blocking"], indirect=True)
def test_worker_that_is_evicted_takes_the_pod_along(blocking: Training) -> None:
    pod = blocking.begun()
    os.kill(blocking.process, signal.SIGTERM)
    blocking.loses_its_pod()
    assert blocking.finished().states == {"train": "failed"}
    assert blocking.pods == {pod}


@pytest.mark.parametrize("blocking", ["kill_blocking"], indirect=True)
def test_blocking_task_that_is_marked_failed_takes_the_pod_along(blocking: Training) -> None:
    pod = blocking.begun()
    cut_short = blocking.airflow.cut_short
    blocking.airflow.api.mark_task(blocking.run.dag_id, blocking.run.run_id, "train", "failed")
    blocking.until(lambda: not blocking.has_pod or blocking.airflow.cut_short > cut_short, "the pod to go")
    if blocking.airflow.cut_short > cut_short:
        blocking.delete_pod()
    blocking.loses_its_pod()
    assert blocking.finished().states == {"train": "failed"}
    assert blocking.pods == {pod}


@pytest.mark.parametrize("blocking", ["kill_blocking_retried"], indirect=True)
def test_worker_that_is_killed_leaves_its_pod_to_the_next_try(blocking: Training) -> None:
    first = blocking.begun()
    os.kill(blocking.process, signal.SIGKILL)
    finished = blocking.finished()
    assert finished.states == {"train": "success"}
    assert finished.task("train").try_number == 2
    assert len(blocking.pods - {first}) == 1
    blocking.loses_its_pod()


@pytest.mark.parametrize("blocking", ["kill_blocking"], indirect=True)
def test_scheduler_that_is_killed_and_comes_back_goes_on_with_the_pods(
    airflow: Airflow, deferred: dict[str, Training], blocking: Training
) -> None:
    trainings = [blocking, deferred["deferred, scheduler killed"]]
    pods = [training.begun() for training in trainings]
    airflow.home.kill("scheduler", signal.SIGKILL)
    for training in trainings:
        training.end()
    # A scheduler that comes up more than 30 s after the other's last heartbeat runs its workers' tasks once more.
    airflow.api.wait_for_task(blocking.run.dag_id, blocking.run.run_id, "train")
    airflow.home.restart("scheduler")
    for training, pod in zip(trainings, pods, strict=True):
        assert training.finished().states == {"train": "success"}
        assert training.pods == {pod}
        training.loses_its_pod()
