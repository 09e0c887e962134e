"""The end of a gang, without Airflow and without a cluster: in which order it is decided, read and deleted."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from kubernetes.client import ApiClient, V1ObjectMeta, V1OwnerReference, V1Pod, V1PodSpec

from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError, PodFailed, PodPreempted, ReferenceNotFound
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.wait.retry import Setbacks
from airflow_gpu_provider.training.life import object_attempt
from airflow_gpu_provider.training.life.object_attempt import GangAttempt
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.run import AttemptRecord, PodSettings, Preemptions
from airflow_gpu_provider.training.log.task_log import TaskLog
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from tests.unit.training import test_gang_wait
from tests.unit.training.pod_life import Life
from tests.unit.training.test_pod_end import START, ended, pod, running

OWNER = Ownership(
    key=DemandKey(installation="i", dag_id="d", run_id="r", pool="train-gpu"),
    task_id="train",
    map_index=-1,
    try_id="t1",
)
WAIT = replace(test_gang_wait.WAIT, nodes=2)
RUNS = pod(running())
WELL = pod(ended(0), phase="Succeeded")
FAILED = pod(ended(3), phase="Failed")
RANK_1 = PodFailed("Rank 1: it broke.", rank=1, exit_code=3)
JOB: dict[str, Any] = {
    "metadata": {"name": "train", "namespace": "ml", "uid": "j1", "creationTimestamp": START.isoformat()},
    "spec": {},
}


def settings(**changes: Any) -> PodSettings:
    return replace(Life().run.settings, **changes)


@dataclass
class Cluster:
    pods: Any
    api: ApiClient = field(default_factory=ApiClient)
    pool: Any = None
    gpu_health: Any = field(default_factory=lambda: SimpleNamespace(take_end=lambda *_: None))

    def now(self) -> datetime:
        return START


class Gang:
    """A gang of two ranks, whose pods are always in the same states; `steps` are what was done, in this order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *states: PodState, **changes: Any) -> None:
        self.steps: list[str] = []
        self.pushed: dict[str, Any] = {}
        pods = [self._pod(rank) for rank in range(len(states))]
        by_name = {each["metadata"]["name"]: state for each, state in zip(pods, states, strict=True)}
        log: Any = logging.getLogger(__name__)
        own_log = TaskLog(
            log=log,
            containers=True,
            init_containers=None,
            get_logs=True,
            with_name=True,
            formatter=None,
            in_triggerer=True,
        )
        usual: dict[str, Any] = {"nodes": 2, "has_result": True}
        self.pods = SimpleNamespace(
            of_attempt=lambda namespace, owner: pods,
            note_use=self._step("note its use"),
            mark_collected=self._step("let the nodes go"),
        )
        run: Any = SimpleNamespace(
            cluster=Cluster(self.pods), log=log, pod_log=own_log, settings=settings(**(usual | changes))
        )
        self.host: Any = SimpleNamespace(
            show_pod=lambda _: None,
            push=self.pushed.__setitem__,
            extract_xcom=self._step("read rank 0's result", [1]),
        )
        self.attempt = GangAttempt(run, self.host, lambda: OWNER, AttemptRecord())
        jobs = SimpleNamespace(
            read=lambda *_, **__: JOB,
            kind="Job",
            delete=self._step("delete the Job"),
            end_pods=self._step("end the ranks"),
            mark_collected=lambda _: None,
        )
        monkeypatch.setattr(GangAttempt, "_objects", jobs)
        parse = SimpleNamespace(parse=lambda each, _: by_name[each["metadata"]["name"]])
        monkeypatch.setattr(object_attempt, "PodState", parse)
        monkeypatch.setattr(object_attempt, "write_rest", self._step("read the logs"))
        monkeypatch.setattr(object_attempt, "explained", lambda error, *_: error)
        monkeypatch.setattr(object_attempt, "lost_peer", lambda *_: None)

    def collect(self, error: GpuError | None = None, *, saw_end: bool = True) -> Any:
        watched = WaitOutcome(
            namespace="ml", name="train", uid="j1", saw_end=saw_end, error=error, kind="gang", wait=WAIT.to_record()
        )
        return self.attempt.collect(watched, Setbacks().one_more(START))

    @staticmethod
    def _pod(rank: int) -> Any:
        meta = V1ObjectMeta(
            name=f"train-{rank}",
            namespace="ml",
            uid=f"u{rank}",
            creation_timestamp=START,
            annotations={"batch.kubernetes.io/job-completion-index": str(rank)},
            owner_references=[V1OwnerReference(api_version="batch/v1", kind="Job", name="train", uid="j1")],
        )
        spec = V1PodSpec(containers=[], node_name=f"n{rank}")
        return ApiClient().sanitize_for_serialization(V1Pod(metadata=meta, spec=spec))

    def _step(self, name: str, returns: Any = None) -> Any:
        def do(*_: Any, **__: Any) -> Any:
            self.steps.append(name)
            return returns

        return do


def test_a_gang_asks_for_its_namespace_before_it_wants_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise ReferenceNotFound("there is no namespace ml.")

    request = V1Pod(metadata=V1ObjectMeta(namespace="ml"))
    gang = Gang(monkeypatch)
    gang.host.unplaced_pod = lambda: request
    monkeypatch.setattr(GangAttempt, "placed", lambda _, pod: pod)
    monkeypatch.setattr(GangAttempt, "owns_demand", True)
    monkeypatch.setattr(GangAttempt, "_want_nodes", gang._step("want nodes"))
    monkeypatch.setattr(object_attempt, "check_namespace", missing)
    with pytest.raises(ReferenceNotFound):
        gang.attempt.start()
    assert gang.steps == []


END = ["note its use", "delete the Job"]


def test_logs_and_result_are_read_before_the_job_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    gang = Gang(monkeypatch, WELL, WELL)
    assert gang.collect() == [1]
    assert gang.steps == ["read the logs", "read rank 0's result", *END]
    assert gang.attempt.uids == {"u0", "u1"}


def test_a_failure_deletes_the_job_of_the_ranks_that_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    gang = Gang(monkeypatch, RUNS, FAILED)
    with pytest.raises(PodFailed, match="Rank 1"):
        gang.collect(RANK_1)
    assert gang.steps == ["read the logs", *END]


def test_result_of_a_failed_gang_is_a_bonus(monkeypatch: pytest.MonkeyPatch) -> None:
    gang = Gang(monkeypatch, WELL, FAILED)
    with pytest.raises(PodFailed):
        gang.collect(RANK_1)
    assert gang.pushed["return_value"] == [1]


def test_result_that_cannot_be_pushed_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("Airflow's API did not answer.")

    gang = Gang(monkeypatch, WELL, FAILED)
    gang.host.push = refuse
    with pytest.raises(PodFailed, match="Rank 1"):
        gang.collect(RANK_1)
    assert gang.steps[-1] == "delete the Job"


def test_exit_code_that_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    gang = Gang(monkeypatch, RUNS, FAILED, skips=[3])
    with pytest.raises(AirflowSkipException):
        gang.collect(RANK_1)
    assert gang.steps[-1] == "delete the Job"


def test_a_rank_that_asks_for_another_node_decides_whichever_failed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = Preemptions.of(None, max_preemptions=3, has_checkpoint=True, exit_codes=75)
    gang = Gang(monkeypatch, FAILED, pod(ended(75), phase="Failed"), preemptions=asks)
    with pytest.raises(PodPreempted, match=r"Rank 1: The training asked for another node .* \(exit code 75\)"):
        gang.collect(PodFailed("Rank 0: it broke.", rank=0, exit_code=3))
    lost = PodPreempted("Rank 0: its node was reclaimed.", rank=0)
    with pytest.raises(PodPreempted, match="reclaimed"):
        gang.collect(lost)


def test_kept_pods_hold_no_node_and_no_rank_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    gang = Gang(monkeypatch, RUNS, FAILED, on_finish="delete_succeeded_pod")
    with pytest.raises(PodFailed):
        gang.collect(RANK_1)
    assert gang.steps == ["read the logs", "note its use", "end the ranks", "let the nodes go"]


def test_the_loss_of_a_peer_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gang = Gang(monkeypatch, RUNS, FAILED)
    lost = PodPreempted("Rank 0: its machine ended.", rank=0)
    monkeypatch.setattr(object_attempt, "lost_peer", lambda *_: lost)
    with pytest.raises(PodPreempted, match="Rank 0"):
        gang.collect(RANK_1)


def test_where_nobody_has_seen_the_end_the_pods_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    away = ClusterUnreachable("It was away.")
    assert Gang(monkeypatch, WELL, WELL).collect(away, saw_end=False) == [1]
    gang = Gang(monkeypatch, RUNS, RUNS)
    with pytest.raises(ClusterUnreachable):
        gang.collect(away, saw_end=False)
    assert gang.steps == []
