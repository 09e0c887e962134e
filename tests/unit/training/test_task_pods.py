"""Whether a deleted pod may still run, so that the task's next one has to wait; and whose pod is deleted."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import ApiClient, V1ObjectMeta, V1Pod, V1PodStatus
from kubernetes.client.exceptions import ApiException

from airflow_gpu_provider.cluster.pod_state import OWNER_ANNOTATION
from airflow_gpu_provider.errors import PodFailed
from airflow_gpu_provider.training.life import store
from airflow_gpu_provider.training.life.store import CarefulPodManager, TaskPods, may_still_run
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


class Hook:
    """A cluster with one pod, which was created by `owner`."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.deleted: list[Any] = []

    def new_client(self) -> Hook:
        return self

    def read_namespaced_pod(self, name: str, namespace: str) -> V1Pod:
        return _pod(self.owner, uid="u2")

    def delete_namespaced_pod(self, name: str, namespace: str, body: Any) -> V1Pod:
        self.deleted.append(body.preconditions.uid)
        return _pod(self.owner, uid="u2")

    @property
    def api_client(self) -> Any:
        return SimpleNamespace(sanitize_for_serialization=lambda pod: {})


def _pod(owner: str, *, uid: str | None) -> V1Pod:
    annotations = {OWNER_ANNOTATION: owner}
    return V1Pod(metadata=V1ObjectMeta(name="train", namespace="ml", uid=uid, annotations=annotations))


@pytest.mark.parametrize(("owner", "deleted"), [("this try", ["u2"]), ("another task", [])])
def test_kill_while_the_pod_is_created_deletes_no_other_tasks_pod(owner: str, deleted: list[str]) -> None:
    hook = Hook(owner)
    asked_for = _pod("this try", uid=None)
    TaskPods(cast("Any", hook), cast("Any", None)).delete_from_signal_handler(asked_for, grace_seconds=1)
    assert hook.deleted == deleted


class Full:
    """A namespace whose quota is used up."""

    api_client = SimpleNamespace(sanitize_for_serialization=lambda pod: {})

    def create_namespaced_pod(self, body: Any, namespace: str) -> V1Pod:
        raise ApiException(status=403, reason="exceeded quota")


def test_refused_pod_is_not_dumped_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ApiException):
        CarefulPodManager(kube_client=cast("Any", Full())).create_pod(_pod("this try", uid=None))
    assert not caplog.records


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ({}, "it belongs to another task"),
        ({"deletion_timestamp": START}, "it is still being deleted"),
        ({"deletion_timestamp": START, "finalizers": ["kueue.x-k8s.io/managed"]}, "finalizer kueue.x-k8s.io/managed"),
    ],
)
def test_name_that_is_not_free_says_why(there: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0.0, 1000.0))
    monkeypatch.setattr(store, "time", SimpleNamespace(monotonic=lambda: next(times), sleep=lambda _: None))
    pod = V1Pod(metadata=V1ObjectMeta(name="train", namespace="ml", uid="u2", **there))

    def taken(_: V1Pod) -> V1Pod:
        raise ApiException(status=409, reason="Conflict")

    hook: Any = SimpleNamespace(get_pod=lambda *_: pod)
    manager: Any = SimpleNamespace(create_pod=taken)
    owner: Any = SimpleNamespace(try_id="this try", attempt=1)
    with pytest.raises(PodFailed, match=f"named train already exists in ml: .*{why}"):
        TaskPods(hook, manager).create(_pod("this try", uid=None), owner, grace_seconds=1)


@pytest.mark.parametrize(("phase", "told"), [("Failed", True), ("Running", False)])
def test_finalizer_of_an_ended_pod_is_named_when_it_is_deleted(
    phase: str, told: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    metadata = V1ObjectMeta(name="train", namespace="ml", uid="u1", finalizers=["kueue.x-k8s.io/managed"])
    pod = V1Pod(metadata=metadata, status=V1PodStatus(phase=phase))
    answers = iter((pod, {"kind": "Status", "status": "Success"}))
    client: Any = SimpleNamespace(api_client=ApiClient(), delete_namespaced_pod=lambda *_, **__: next(answers))
    monkeypatch.setattr(store, "_note_use", lambda *_: None)
    for _ in range(2):
        CarefulPodManager(kube_client=client).delete_pod(pod)
    assert any("its finalizer kueue.x-k8s.io/managed is taken off" in line for line in caplog.messages) is told
