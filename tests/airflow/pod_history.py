"""Trainings whose pods a test follows: there is that one pod or none, never two.

Nothing but the pod's own task could delete a pod here: but for one, the DAGs have no other, and the nodes stay.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.pod_generator import make_safe_label_value
from kubernetes import client, config, watch

from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox import airflow_processes
from gpu_sandbox.airflow_api import RunStatus, wait_until
from tests.airflow.dags.gpu_pods import kills_pool
from tests.airflow.harness import Airflow, FinishedRun
from tests.sandbox.running import run as run_here


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


def under_way(airflow: Airflow, history: PodHistory, dags: Mapping[str, str]) -> Iterator[dict[str, Training]]:
    """A training of each DAG, by its name in `dags`, until the tests have ended."""
    trainings = {name: Training(airflow, history, dag_id) for name, dag_id in dags.items()}
    try:
        # While tasks start, Airflow's API server may answer a kill with 500, for want of SQLite's one lock.
        for training in trainings.values():
            training.begun()
        yield trainings
    finally:
        airflow.end(training.run for training in trainings.values() if training.has_pod)


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


@pytest.fixture
def never_two(history: PodHistory) -> Iterator[None]:
    yield
    assert history.follows
    assert not history.together
