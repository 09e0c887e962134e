"""A training has succeeded while its pool's connection is missing: it is waited for, and a late error tells of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider.errors import ConnectionNotFound
from airflow_gpu_provider.training.life import object_attempt
from airflow_gpu_provider.training.life.hook import PoolHook
from airflow_gpu_provider.training.life.object_attempt import GangAttempt, WorkloadAttempt
from airflow_gpu_provider.training.life.pod_attempt import PodAttempt
from airflow_gpu_provider.training.life.task_attempt import TaskAttempt
from tests.unit.training.pod_life import Life
from tests.unit.training.pod_life import nodes as nodes
from tests.unit.training.test_pod_placement import a_pool
from tests.unit.training.test_pod_verdict import watched
from tests.unit.training.waiting_kinds import GANG, POD, WORKLOAD, Kind

GONE = ConnectionNotFound.named("my_aws", "aws_conn_id")
ATTEMPTS: dict[Kind, tuple[type[TaskAttempt], str]] = {
    POD: (PodAttempt, "pod train-x"),
    GANG: (GangAttempt, "Job train-x of 2 pods"),
    WORKLOAD: (WorkloadAttempt, "Job train-x"),
}


@pytest.fixture
def out_of_reach(monkeypatch: pytest.MonkeyPatch) -> PoolHook:
    def raise_gone(_: PoolHook) -> Any:
        raise GONE

    monkeypatch.setattr(PoolHook, "access", property(raise_gone))
    monkeypatch.setattr(PoolHook, "now", lambda _: POD.wait.started)
    monkeypatch.setattr(object_attempt, "_RELEASE_WITHIN", timedelta(0))
    return PoolHook(a_pool())


@pytest.mark.parametrize("is_covered", [True, False], ids=["in a block", "without one"])
@pytest.mark.parametrize("kind", [POD, GANG, WORKLOAD], ids=str)
def test_a_success_is_waited_for_and_told(
    kind: Kind,
    is_covered: bool,
    out_of_reach: PoolHook,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    cls, what = ATTEMPTS[kind]
    wait = replace(kind.wait, is_covered=is_covered)
    carried: dict[str, Any] = {"kind": wait.run_kind, "wait": wait.to_record()}
    life: Any = Life(nodes=getattr(wait, "nodes", 1))
    life.named_manifest = {"kind": "Job", "apiVersion": "batch/v1"}
    life.new_attempt = lambda run, owner, record: cls(run, life, owner, record)
    life.run = replace(life.run, cluster=out_of_reach)

    with pytest.raises(TaskDeferred):
        life.continued({}).resume(watched("success", **carried))
    (record,) = life.records
    assert (record["wait"], record["pause"]) == (wait.to_record(), 2.0)
    assert record["owns_demand"] is (kind is GANG and not is_covered)
    assert f"Waiting in the triggerer for {what}, until" in caplog.text

    monkeypatch.setattr(PoolHook, "now", lambda _: wait.deadline + timedelta(minutes=11))
    late = life.continued(record["extra"])
    with pytest.raises(
        ConnectionNotFound, match=r"'my_aws' was not found\. The training had succeeded\. Create"
    ) as error:
        late.resume(watched("error", GONE, **carried))
    assert error.value.details == GONE.details
    late.kill()
    assert f"{what.partition(' of ')[0]} could not be deleted: {GONE}" in caplog.text


def test_what_was_not_seen_to_succeed_is_not_said_to_have(
    out_of_reach: PoolHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PoolHook, "now", lambda _: POD.wait.deadline + timedelta(minutes=11))
    life: Any = Life()
    life.new_attempt = lambda run, owner, record: PodAttempt(run, life, owner, record)
    life.run = replace(life.run, cluster=out_of_reach)
    late = life.continued({"attempt": {"deadline": POD.wait.deadline.isoformat()}})
    with pytest.raises(ConnectionNotFound) as error:
        late.resume(watched("error", GONE, kind=POD.wait.run_kind, wait=POD.wait.to_record()))
    assert str(error.value) == str(GONE)
