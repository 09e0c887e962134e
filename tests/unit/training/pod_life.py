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

from airflow_gpu_provider.cluster.demand_key import DemandKey
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import (
    ClusterUnreachable,
)
from airflow_gpu_provider.scaling.end import release_now as giving_back
from airflow_gpu_provider.scaling.wait.stopping import Stop
from airflow_gpu_provider.training.life import deadline, pod_try
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.pod_try import PodTry
from airflow_gpu_provider.training.life.preemptions import Preemptions
from airflow_gpu_provider.training.life.task import PodTask
from airflow_gpu_provider.training.log.task_log import TaskLog
from airflow_gpu_provider.training.place.pod_placement import Placement
from airflow_gpu_provider.training.wait.wait_outcome import WaitOutcome
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


class Life:
    """One try of a task, whose pod is always in the same state; `steps` are what was done, in this order."""

    def __init__(self, state: PodState = FAILED, **changes: Any) -> None:
        self.steps: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.stop = Stop()
        self.fails: dict[str, BaseException] = {}
        self._state = state
        log: Any = logging.getLogger(__name__)
        meta = V1ObjectMeta(name="train-x", namespace="ml", uid="u1", creation_timestamp=START)
        self._pod = V1Pod(metadata=meta, spec=V1PodSpec(containers=[], node_name="n1"))
        owner = Ownership(
            key=DemandKey(installation="i", dag_id="d", run_id="r", pool="train-gpu"),
            task_id="train",
            map_index=-1,
            try_id="t1",
        )
        arguments: dict[str, Any] = {
            "log": log,
            "placement": Placement(pool=a_pool(), gpus=1, base_container="base"),
            "checkpoint": None,
            "preemptions": Preemptions(resume=False, at_most=3),
            "schedule_seconds": 60.0,
            "start_seconds": 60.0,
            "execution_timeout": None,
            "started_at": None,
            "grace_seconds": 30,
            "reattaches": True,
            "has_result": True,
            "deferrable": True,
            "is_kept_when_killed": False,
            "holder": "somebody",
            "owner": lambda: owner,
            "execute": lambda: self.tries.run(),
            "build": self._build,
            "create": self._step("create", self._pod),
            "defer": self._defer,
            "extract_result": self._step("read the result", [1]),
            "release": self._step("release the pod"),
            "call_back": lambda name, **_: self._step(name)(),
            "push": lambda key, _: self._step(f"push {key}")(),
            "on_pod": lambda _: None,
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
        cluster: Any = SimpleNamespace(
            pool=a_pool(),
            base_container="base",
            api=ApiClient(),
            client=SimpleNamespace(read_namespaced_pod_log=_no_log),
            clock=SimpleNamespace(now=lambda: LATER),
            now=lambda: LATER,
            pods=SimpleNamespace(
                read=lambda *_, **__: self._pod, delete_from_signal_handler=self._step("delete the pod")
            ),
            manager=SimpleNamespace(extract_xcom_kill=self._step("end the sidecar")),
            gpu_health=SimpleNamespace(of_node=lambda _: ""),
            state=lambda _: self._state,
        )
        given = {"pod_log": its_log, "cluster": cluster, "stop": self.stop}
        self.tries = PodTry(PodTask(**(arguments | given | changes)), {})

    def _build(self) -> V1Pod:
        assert self.tries.attempt.owner.attempt >= 1  # it is asked for: it stands on the pod
        return self._pod

    def _step(self, name: str, returns: Any = None) -> Callable[..., Any]:
        def do(*_: Any, **__: Any) -> Any:
            self.steps.append(name)
            if name in self.fails:
                raise self.fails[name]
            return returns

        return do

    def _defer(self, record: dict[str, Any], timeout: timedelta) -> None:
        self.records.append(record)
        raise TaskDeferred(trigger=GpuPodTrigger(record), method_name="trigger_reentry", timeout=timeout)


def _no_log(*_: Any, **__: Any) -> Any:
    raise ApiException(status=404)


@pytest.fixture(autouse=True)
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The pods whose nodes were released; no demand covers any."""
    released: list[set[str]] = []
    monkeypatch.setattr(deadline, "list_demand", lambda *_: ())
    monkeypatch.setattr(pod_try, "list_demand", lambda *_: ())
    monkeypatch.setattr(pod_try, "open_pool", lambda *_, **__: object())
    monkeypatch.setattr(giving_back, "release_now", lambda *_, own, **__: released.append(own))
    return released


def event(status: str, error: Any = None) -> WaitOutcome:
    return watched(status, error, timeline=PHASES)
