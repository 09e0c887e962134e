"""One try of a task on a pod that is always in the same state, without Airflow and without a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes.client import ApiClient, ApiException, V1ObjectMeta, V1Pod, V1PodSpec

from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.errors import (
    ClusterUnreachable,
)
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.end import release_now as giving_back
from airflow_gpu_provider.scaling.wait.stopping import Stop
from airflow_gpu_provider.training.life import collect, pod_attempt, pod_try, run, task_attempt
from airflow_gpu_provider.training.life.asked import Asked
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.pod_attempt import PodAttempt
from airflow_gpu_provider.training.life.pod_try import PodTry
from airflow_gpu_provider.training.life.run import AttemptRecord, PodSettings, Preemptions, Run
from airflow_gpu_provider.training.life.task_attempt import TaskAttempt
from airflow_gpu_provider.training.log.task_log import TaskLog
from airflow_gpu_provider.training.place.pod_placement import Placement
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from airflow_gpu_provider.triggers.pod import GpuPodTrigger
from tests.unit.training.test_pod_end import START, disrupted, ended, lost, pod
from tests.unit.training.test_pod_placement import a_pool
from tests.unit.training.test_pod_verdict import watched

LATER = START + timedelta(minutes=10)
AWAY = ClusterUnreachable("The API server was away.")
PHASES = [{"phase": "ran", "seconds": 1.0}]
FAILED = pod(ended(3), phase="Failed")
ENDED_WELL = pod(ended(0), phase="Succeeded")
UNSEEN = pod(lost(), phase="Failed")
EVICTED = pod(ended(143, at=55), phase="Failed", conditions=(disrupted(at=50),))


STATE = "as parsed"
OWNER = Ownership(
    key=DemandKey(installation="i", dag_id="d", run_id="r", pool="train-gpu"),
    task_id="train",
    map_index=-1,
    try_id="t1",
)


class Life:
    """One try of a task, whose pod is always in the same state; `steps` are what was done, in this order.

    It is the try's own host. `changes` are settings.
    """

    def __init__(self, state: PodState = FAILED, **changes: Any) -> None:
        self.steps: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.pushed: dict[str, object] = {}
        self.fails: dict[str, BaseException] = {}
        self.extract = self._step("read the result", [1])
        self._state = state
        log: Any = logging.getLogger(__name__)
        meta = V1ObjectMeta(name="train-x", namespace="ml", uid="u1", creation_timestamp=START)
        self.pod = V1Pod(metadata=meta, spec=V1PodSpec(containers=[], node_name="n1"))
        settings: dict[str, Any] = {
            "placement": Placement(pool=a_pool(), gpus=1, base_container="base"),
            "checkpoint": None,
            "preemptions": Preemptions(resume=False, at_most=3),
            "schedule_seconds": 60.0,
            "start_seconds": 60.0,
            "execution_timeout": None,
            "grace_seconds": 30,
            "reattaches": True,
            "has_result": True,
            "deferrable": True,
        }
        its_log = TaskLog(
            log=log,
            containers=True,
            init_containers=None,
            get_logs=False,
            with_name=True,
            formatter=None,
            in_triggerer=True,
        )
        self.cluster: Any = SimpleNamespace(
            pool=a_pool(),
            api=ApiClient(),
            core_v1_client=SimpleNamespace(read_namespaced_pod_log=_no_log),
            clock=SimpleNamespace(now=lambda: LATER),
            now=lambda: LATER,
            pods=SimpleNamespace(
                state=lambda _: state,
                of_task=lambda *_: [],
                await_end=lambda *_: None,
                note_computed=lambda *_, **__: None,
            ),
            new_client=lambda: SimpleNamespace(api_client=None),
            manager=SimpleNamespace(extract_xcom_kill=self._step("end the sidecar")),
            gpu_health=SimpleNamespace(of_node=lambda _: "", take_end=lambda *_: None),
            platform=SimpleNamespace(machine_end=lambda _: None),
        )
        self.objects: Any = SimpleNamespace(
            kind="pod",
            read=lambda *_, **__: self.raw,
            of_task=lambda *_: [],
            create=self._create,
            is_suspended=lambda _: False,
            delete_when_killed=self._step("delete the pod"),
        )
        self.run = Run(
            log=log,
            pod_log=its_log,
            cluster=self.cluster,
            stop=Stop(),
            started_at=None,
            holder="somebody",
            settings=PodSettings(**(settings | changes)),
            asked=Asked(digest="d", try_number=1, first_try=1),
        )
        self.tries = self.continued({})

    @property
    def raw(self) -> dict[str, Any]:
        """The pod as the API server has it; see `nodes` for its state."""
        raw: dict[str, Any] = ApiClient().sanitize_for_serialization(self.pod)
        return {**raw, STATE: self._state}

    def continued(self, event: dict[str, Any]) -> PodTry:
        """Return the try as it goes on in another worker."""
        return PodTry(self.run, self, event)

    # -- what the try asks of its operator -------------------------------------------------------------------

    def new_attempt(self, run: Run, owner: Callable[[], Ownership], record: AttemptRecord) -> TaskAttempt:
        attempt = PodAttempt(run, self, owner, record)
        vars(attempt).update(_objects=self.objects, _objects_by=lambda _: self.objects)
        return attempt

    def ownership(self) -> Ownership:
        return OWNER

    def run_again(self) -> object:
        return self.tries.run()

    def unplaced_pod(self) -> V1Pod:
        assert self.tries.attempt.owner.attempt >= 1  # it is asked for: it stands on the pod
        return self.pod

    def wait_in_triggerer(self, record: dict[str, Any], timeout: timedelta) -> None:
        self.records.append(record)
        raise TaskDeferred(trigger=GpuPodTrigger(record), method_name="trigger_reentry", timeout=timeout)

    def extract_xcom(self, pod: V1Pod) -> object:
        result: object = self.extract(pod)
        return result

    def release_pod(self, pod: V1Pod, result: object) -> None:
        self._step("release the pod")()

    def call_back(self, name: str, **what: V1Pod) -> None:
        self._step(name)()

    def push(self, key: str, value: object) -> None:
        self._step(f"push {key}")()
        self.pushed[key] = value

    def show_pod(self, pod: V1Pod | None) -> None:
        """Nobody looks."""

    def _create(self, request: dict[str, Any], owner: Ownership) -> dict[str, Any]:
        self._step("create")()
        request["metadata"]["annotations"] = owner.annotations
        return request

    def _step(self, name: str, returns: Any = None) -> Callable[..., Any]:
        def do(*_: Any, **__: Any) -> Any:
            self.steps.append(name)
            if name in self.fails:
                raise self.fails[name]
            return returns

        return do


def _no_log(*_: Any, **__: Any) -> Any:
    raise ApiException(status=404)


@pytest.fixture(autouse=True)
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The pods whose nodes were released; no demand covers any."""
    released: list[set[str]] = []
    monkeypatch.setattr(pod_attempt, "PodState", SimpleNamespace(parse=lambda raw, _: raw[STATE]))
    monkeypatch.setattr(collect, "verbs_missing_for_exec", lambda *_: ())
    for what in ("check_pods", "placement_of"):
        monkeypatch.setattr(task_attempt, what, lambda *_, **__: None)
    monkeypatch.setattr(task_attempt, "place", lambda pod, _: pod)
    monkeypatch.setattr(run, "list_demand", lambda *_: ())
    monkeypatch.setattr(pod_try, "list_demand", lambda *_: ())
    monkeypatch.setattr(pod_try, "open_pool", lambda *_, **__: object())
    monkeypatch.setattr(giving_back, "release_now", lambda *_, own, **__: released.append(own))
    return released


def event(status: str, error: Any = None) -> WaitOutcome:
    return watched(status, error, timeline=PHASES)
