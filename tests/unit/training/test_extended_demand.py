"""A training whose run's demand is extended while it runs: who waits for it learns of that when it was to end."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.model.lease import LEASES
from airflow_gpu_provider.cluster.model.pod_state import DEADLINE_ANNOTATION
from airflow_gpu_provider.errors import PodDeadline
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.wait.records import Progress
from airflow_gpu_provider.training.life.pod_attempt import PodAttempt
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait, WaitOutcome
from airflow_gpu_provider.training.watch.pod_view import OnePod
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeAsyncApi
from tests.fakes.clock import START
from tests.unit.training.pod_life import LATER, Life
from tests.unit.training.pod_life import nodes as nodes
from tests.unit.training.test_pod_end import pod, running
from tests.unit.training.test_pod_verdict import watched
from tests.unit.training.test_wait_contract import under_way
from tests.unit.training.waiting_kinds import GANG, POD, WORKLOAD, Kind, Night, named, run, shown, stamp

HOUR = timedelta(hours=1)
KEY = DemandKey(installation="i", dag_id="d", run_id="r", pool="train-gpu")
LEASE = f"{LEASES}/{KEY.lease_name}".lstrip("/")
LATE = PodDeadline("Pod train had not finished at its deadline.", "Raise it.", pod="train")


def lease(until: datetime) -> dict[str, Any]:
    return DemandLease(key=KEY, nodes=1, until=until, created_at=START).manifest()


@pytest.mark.parametrize("kind", [POD, GANG, WORKLOAD], ids=str)
@pytest.mark.parametrize(
    ("by", "timed_out_after", "goes_on_for"),
    [(2 * HOUR, None, 2 * HOUR), (2 * HOUR, HOUR, HOUR), (timedelta(0), None, None), (None, None, None)],
    ids=["extended", "up to execution_timeout", "as it was", "released"],
)
def test_at_its_deadline_the_demand_is_read_once_more(
    kind: Kind,
    by: timedelta | None,
    timed_out_after: timedelta | None,
    goes_on_for: timedelta | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deadline = kind.wait.deadline
    bound = deadline + timed_out_after if timed_out_after else None
    wait = replace(kind.wait, demand=KEY.lease_name, timed_out_at=bound)
    assert type(wait).from_record(wait.to_record()) == wait
    monkeypatch.setattr(type(wait), "from_record", classmethod(lambda cls, record: wait))

    async def what(night: Night) -> None:
        if by is not None:
            night.server.put(LEASE, lease(deadline + by))
        await under_way(night)
        await night.goes_on()
        assert not [each for each in night.server.requests if each.resource == "leases"], "no look costs a request"
        night.clock.sleep((deadline - night.clock.now()).total_seconds())
        progress = await night.over()
        assert progress.extended_until == (deadline + goes_on_for if goes_on_for else None)
        assert isinstance(progress.error, PodDeadline) == (goes_on_for is None), progress

    run(kind, what)


def test_a_task_that_had_deferred_waits_until_then() -> None:
    life = Life(pod(running()))
    with pytest.raises(TaskDeferred):
        life.tries.run()
    (before,) = life.records
    until = LATER + 9 * HOUR
    outcome = watched("error", logs={"streamed": True})
    extended = replace(outcome, error=None, extended_until=until, kind="pod", wait=before["wait"])
    record = WaitOutcome.from_record(extended.to_record())
    again = life.continued(before["extra"])
    with pytest.raises(TaskDeferred) as deferred:
        again.resume(record)
    after = life.records[-1]
    assert datetime.fromisoformat(after["wait"]["deadline"]) == until
    assert datetime.fromisoformat(after["extra"]["attempt"]["deadline"]) == until
    assert not after["extra"]["setbacks"].get("times")
    assert deferred.value.timeout == until - LATER + timedelta(minutes=5)
    assert "release the pod" not in life.steps


def test_a_task_that_waits_here_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    life, waits = Life(deferrable=False), list[AttemptWait]()
    until = LATER + 9 * HOUR

    def watch(_: PodAttempt, wait: AttemptWait) -> WaitOutcome:
        waits.append(wait)
        moved = watched("success", result="[1]")
        return moved if len(waits) > 1 else replace(moved, saw_end=False, extended_until=until)

    monkeypatch.setattr(PodAttempt, "_watch_until_deadline", watch)
    life.tries.attempt.there = life.raw
    assert life.tries.attempt.watch_here().extended_until is None
    assert [each.deadline == until for each in waits] == [False, True]
    assert life.tries.attempt.record.deadline == until


class Logs:
    """The log of a pod that is followed until it ends."""

    def __init__(self) -> None:
        self.drained_for: list[float] = []

    async def drain(self, seconds: float) -> None:
        self.drained_for.append(seconds)


@pytest.mark.parametrize(
    ("spec", "status", "seconds"),
    [
        ({}, {"phase": "Running", "startTime": stamp(START)}, 5 * 3600),
        ({"activeDeadlineSeconds": 20000}, {"phase": "Running", "startTime": stamp(START)}, 5 * 3600),
        ({"activeDeadlineSeconds": 60}, {"phase": "Running", "startTime": stamp(START)}, None),
        ({}, {"phase": "Succeeded", "startTime": stamp(START)}, None),
        ({}, {"phase": "Running", "startTime": stamp(START), "containerStatuses": []}, None),
        ({}, {"phase": "Pending", "containerStatuses": []}, None),
    ],
    ids=["runs", "would run on", "its kubelet ends it", "has ended", "has not begun", "has no node"],
)
def test_the_kubelet_ends_a_pod_at_its_deadline(
    spec: dict[str, Any], status: dict[str, Any], seconds: int | None
) -> None:
    """It has its grace period, and can be read afterwards, whatever becomes of on_finish_action."""
    server = ApiServer(now=lambda: POD.wait.deadline)
    base = {"name": "base", "image": "i"}
    given = {"containers": [base], "terminationGracePeriodSeconds": 40, **spec}
    server.put(named(""), {"metadata": {"name": "train", "namespace": "ml", "uid": "u"}, "spec": given})
    begun = shown({"running": {"startedAt": stamp(START)}})
    server.patch(named(""), {"status": {"containerStatuses": [begun], **status}})
    logs, lines = finished(server, LATE)
    after = server.read(named(""))
    assert after["spec"].get("activeDeadlineSeconds") == (seconds or spec.get("activeDeadlineSeconds"))
    assert (after["metadata"].get("annotations") or {}).get(DEADLINE_ANNOTATION) == (str(seconds) if seconds else None)
    assert logs.drained_for == ([41.0] if seconds else [])
    assert any("has 40 s to stop" in line for line in lines) == bool(seconds)


def test_a_pod_that_could_not_be_ended_is_left_to_the_worker() -> None:
    server = ApiServer(now=lambda: POD.wait.deadline)
    server.refuse("get")
    logs, (line,) = finished(server, LATE)
    assert "left to a worker" in line
    assert logs.drained_for == []


def finished(server: ApiServer, error: PodDeadline) -> tuple[Logs, list[str]]:
    logs, lines = Logs(), list[str]()

    class Api(FakeAsyncApi):
        async def now(self) -> datetime:
            return server.now()

    async def finish() -> None:
        api: Any = Api(server, ClusterAccess(server="https://fake"))
        follow: Any = logs
        await OnePod(POD.wait).finish(
            api, Progress(error=error), follow, lambda level, text, *args: told(level, text % args)
        )
        await api.close()

    def told(level: int, line: str) -> None:
        assert level in (logging.INFO, logging.WARNING)
        lines.append(line)

    asyncio.run(finish())
    return logs, lines
