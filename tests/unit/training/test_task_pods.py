"""Whether a deleted pod may still run, so that the task's next one has to wait; and whose pod is deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.model.pod_state import OWNER_ANNOTATION
from airflow_gpu_provider.training.life import store
from airflow_gpu_provider.training.life.store import TaskPods, may_still_run
from tests.unit.training.pod_life import Life
from tests.unit.training.test_pod_end import START, ended, pod, running

DELETED = pod(running(), deleted_at=100, grace=30)


@pytest.mark.parametrize(
    ("node_is_ready", "seconds", "may_run"),
    [
        (True, 101, True),
        (True, 135, True),
        (True, 130 + 599, True),
        (True, 130 + 601, False),
        (False, 130 + 29, True),
        (False, 130 + 31, False),
        (None, 101, False),
    ],
)
def test_deleted_pod(node_is_ready: bool | None, seconds: float, may_run: bool) -> None:
    now = START + timedelta(seconds=seconds)
    assert may_still_run(DELETED, node_is_ready=node_is_ready, now=now) is may_run


@given(st.sampled_from([True, False, None]), st.integers(min_value=0, max_value=10_000))
def test_nothing_is_waited_for_without_end(node_is_ready: bool | None, seconds: int) -> None:
    now = START + timedelta(seconds=seconds)
    if may_still_run(DELETED, node_is_ready=node_is_ready, now=now):
        assert seconds < 130 + 600
    assert not may_still_run(pod(ended(0), phase="Failed", deleted_at=100), node_is_ready=node_is_ready, now=now)
    unbound = pod(phase="Pending", spec={"nodeName": None}, deleted_at=100)
    assert not may_still_run(unbound, node_is_ready=node_is_ready, now=now)


class Api:
    """A cluster with one pod, which was created by `owner`; what is called of it is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: str, *answers: Any) -> None:
        self.there = {
            "metadata": {"name": "train", "namespace": "ml", "uid": "u2", "annotations": {OWNER_ANNOTATION: owner}}
        }
        self.answers = [*answers]
        self.deleted: list[Any] = []
        monkeypatch.setattr(store, "call", self._call)

    def _call(self, api: Any, verb: str, path: str, *, resource: str, body: Any = None) -> Any:
        assert (path, resource) == ("/api/v1/namespaces/ml/pods/train", "pods")
        if verb == "get":
            return self.there
        assert verb == "delete"
        self.deleted.append(body)
        return self.answers.pop(0) if self.answers else self.there


@pytest.mark.parametrize(("owner", "uids"), [("t1", ["u2"]), ("another task", [])])
def test_kill_while_the_pod_is_created_deletes_no_other_tasks_pod(
    owner: str, uids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, life = Api(monkeypatch, owner), Life()
    life.objects = TaskPods(cast("Any", None))
    life.tries = life.continued({})
    life.tries.attempt.there = {"metadata": {"name": "train", "namespace": "ml"}}
    life.tries.kill()
    assert [each["preconditions"]["uid"] for each in api.deleted] == uids
    assert all(each["gracePeriodSeconds"] == life.run.settings.grace_seconds for each in api.deleted)


@pytest.mark.parametrize(("phase", "told"), [("Failed", True), ("Running", False)])
def test_finalizer_of_an_ended_pod_is_named_when_it_is_deleted(
    phase: str, told: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    meta = {"name": "train", "namespace": "ml", "uid": "u1", "finalizers": ["kueue.x-k8s.io/managed"]}
    pod = {"metadata": meta, "status": {"phase": phase}}
    Api(monkeypatch, "t1", pod, {"kind": "Status", "status": "Success"})
    monkeypatch.setattr(TaskPods, "note_use", lambda *_: None)
    for _ in range(2):
        TaskPods(cast("Any", None)).delete(pod)
    assert any("its finalizer kueue.x-k8s.io/managed is taken off" in line for line in caplog.messages) is told
