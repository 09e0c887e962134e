"""What a name that is taken means for who wants to create an object."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.cluster.model.refusals import ObjectChanged, ThirdObjectChanged, refusal
from airflow_gpu_provider.training.life import store as subject
from airflow_gpu_provider.training.life.store import create_once

OWN = {"metadata": {"uid": "own"}}
OTHER = {"metadata": {"uid": "other"}}
GOING = {"metadata": {"uid": "own", "deletionTimestamp": "2026-03-01T02:00:00Z"}}
MADE = {"metadata": {"uid": "made"}}


class Name:
    """What has the name at each look, the last of it from then on; None: it is free."""

    def __init__(self, *there: dict[str, Any] | None) -> None:
        self._there = list(there)

    def _now(self) -> dict[str, Any] | None:
        return self._there.pop(0) if len(self._there) > 1 else self._there[0]

    def create(self) -> dict[str, Any]:
        if self._there[0] is None:
            return MADE
        raise ObjectChanged("It exists.", "")

    def read(self) -> dict[str, Any] | None:
        return self._now()


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ([None], MADE),
        ([OWN], OWN),
        ([OTHER], "it belongs to another task"),
        ([GOING, GOING, None], MADE),
        ([GOING, OWN], OWN),
        ([GOING, OTHER], "it belongs to another task"),
    ],
)
def test_what_has_the_name(there: list[Any], found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_LOOK_EVERY", 0)
    name = Name(*there)
    assert create_once(name.create, name.read, is_own=lambda each: each is OWN) == found


@pytest.mark.parametrize(
    ("finalizers", "why"),
    [
        ([], "it is still being deleted"),
        (["kueue.x-k8s.io/managed"], "it is deleted, and kept by its finalizer kueue.x-k8s.io/managed"),
    ],
)
def test_a_name_that_is_not_freed_is_given_up(finalizers: list[str], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_LOOK_EVERY", 0.01)
    monkeypatch.setattr(subject, "NAME_FREED_IN", 0.1)
    name = Name({"metadata": {**GOING["metadata"], "finalizers": finalizers}})
    assert create_once(name.create, name.read, is_own=lambda _: True) == why


class Server:
    """Refuses the first creations, each with the next of these bodies, and keeps what it has created."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self._bodies = list(bodies)
        self.made: list[str] = []

    def call(self, api: None, verb: str, path: str, *, resource: str, body: dict[str, Any]) -> dict[str, Any]:
        assert verb == "create"
        if self._bodies:
            raise refusal(409, self._bodies.pop(0), verb, resource)
        self.made.append(resource)
        return MADE


def conflict(kind: str, **more: Any) -> dict[str, Any]:
    message = f'Operation cannot be fulfilled on {kind} "a": the object has been modified; please apply your changes'
    return {"reason": "Conflict", "message": message, **more}


BY_QUOTA = conflict("resourcequotas", details={"name": "gke-resource-quotas", "kind": "resourcequotas"})
EXISTS = {"reason": "AlreadyExists", "details": {"kind": "services"}, "message": 'services "train" already exists'}
JOB = {"metadata": {"name": "train", "namespace": "ml", "uid": "j1", "labels": {}, "annotations": {}}}
JOB["spec"] = {
    "template": {"metadata": {"annotations": {}}, "spec": {"containers": [{"name": "base", "env": []}]}},
    "selector": {"matchLabels": {}},
}


@pytest.mark.parametrize(
    ("answers", "made"), [([BY_QUOTA, BY_QUOTA], ["services"]), ([BY_QUOTA, EXISTS], []), ([], ["services"])]
)
def test_a_gang_s_service_is_created_although_the_quota_changes_meanwhile(
    answers: list[Any], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(*answers)
    monkeypatch.setattr(subject, "_LOOK_EVERY", 0)
    monkeypatch.setattr(subject, "call", server.call)
    subject.TaskGangs(api=None).reattach(JOB)
    assert server.made == made


def test_a_quota_that_always_changes_is_told_in_the_server_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(*[BY_QUOTA] * 1000)
    monkeypatch.setattr(subject, "_LOOK_EVERY", 0)
    monkeypatch.setattr(subject, "NAME_FREED_IN", 0)
    monkeypatch.setattr(subject, "call", server.call)
    with pytest.raises(ThirdObjectChanged, match="resourcequotas"):
        subject.TaskGangs(api=None).reattach(JOB)
    create = lambda: server.call(None, "create", "/pods", resource="pods", body={})  # noqa: E731
    made = create_once(create, lambda: pytest.fail("nothing has the name"), is_own=lambda _: True)
    assert type(made) is ThirdObjectChanged


@pytest.mark.parametrize(
    ("body", "resource", "is_third"),
    [
        (BY_QUOTA, "pods", True),
        (conflict("resourcequotas"), "leases", True),
        (conflict("leases.coordination.k8s.io"), "leases", False),
        (conflict("pods"), "pods/eviction", False),
        ({**EXISTS, "message": "object is being deleted"}, "services", False),
        ({"message": "the words of some proxy"}, "pods", False),
    ],
)
def test_which_object_a_conflict_is_about(body: dict[str, Any], resource: str, is_third: bool) -> None:
    assert type(refusal(409, body, "update", resource)) is (ThirdObjectChanged if is_third else ObjectChanged)
