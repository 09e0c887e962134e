"""What a name that is taken means for who wants to create an object."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.cluster.api_errors import ObjectChanged
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
