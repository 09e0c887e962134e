"""Reads of Google Cloud may be some seconds old, and no older; what is written is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.api_core.exceptions import Conflict, NotFound

from gpu_sandbox.google import GoogleTimings
from sandbox.tests.google.conftest import LAUNCH, REAL, Project

STALE = 5.0


@pytest.fixture
def timings() -> GoogleTimings:
    return replace(REAL, stale=STALE)


def seen(look: Callable[[], Any]) -> set[Any]:
    """What several reads at one moment see."""
    return {look() for _ in range(20)}


def test_a_new_pool_is_shown_late_and_cannot_be_created_twice(project: Project) -> None:
    def known() -> str:
        try:
            return str(project.pool().status.name)
        except NotFound:
            return "NotFound"

    project.advance(STALE)
    assert seen(known) == {"NotFound"}
    project.begin_to_create()
    project.advance(1)
    assert seen(known) == {"NotFound", "PROVISIONING"}
    with pytest.raises(Conflict):
        project.begin_to_create()
    project.advance(STALE - 1)
    assert seen(known) == {"PROVISIONING"}
    project.advance(REAL.node_pool_create - STALE + 1)
    assert seen(known) == {"PROVISIONING", "RUNNING"}
    project.advance(STALE - 1)
    assert seen(known) == {"RUNNING"}


def test_sizes_and_instances_are_shown_late(project: Project) -> None:
    project.create()
    project.advance(STALE)
    group = project.group()

    def size() -> int:
        return int(project.compute("GET", group)["targetSize"])

    def instances() -> tuple[str, ...]:
        return tuple(each["name"] for each in project.managed())

    project.compute("POST", f"{group}/resize", params={"size": 1})
    project.advance(1)
    assert (seen(size), seen(instances)) == ({0, 1}, {()})
    project.advance(REAL.group_reaction)
    [name] = seen(instances) - {()}
    assert (seen(size), seen(instances)) == ({0, 1}, {(), name})
    project.advance(STALE - 1 - REAL.group_reaction)
    assert (seen(size), seen(instances)) == ({1}, {(), name})
    project.advance(REAL.group_reaction)
    assert (seen(size), seen(instances)) == ({1}, {name})

    project.advance(LAUNCH)
    url = f"{group.partition('/instanceGroupManagers/')[0]}/instances/{name[0]}"
    project.compute("POST", f"{group}/deleteInstances", json={"instances": [url]})
    project.advance(1)
    assert seen(size) == {0, 1}
    project.advance(REAL.instance_delete - 1)
    assert (seen(size), seen(instances)) == ({0}, {(), name})
    project.advance(STALE)
    assert (seen(size), seen(instances)) == ({0}, {()})
