"""Reads of Google Cloud may be some moments old; what is written is written."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.api_core.exceptions import Conflict, NotFound

from gpu_sandbox.google import GoogleTimings
from tests.sandbox.google.conftest import QUICK, Project

STALE = 1.5
READS = 20


@pytest.fixture
def timings() -> GoogleTimings:
    return replace(QUICK, stale=STALE)


def reads(look: Callable[[], Any]) -> list[Any]:
    """What several reads right after each other see."""
    return [look() for _ in range(READS)]


def settled(look: Callable[[], Any]) -> Any:
    """What every read sees once the last change is as old as a read can be."""
    time.sleep(STALE + 0.5)
    seen = reads(look)
    assert all(one == seen[0] for one in seen), seen
    return seen[0]


def known(project: Project) -> str:
    try:
        return str(project.pool().status.name)
    except NotFound:
        return "NotFound"


def test_pools_sizes_and_instances_are_shown_late_and_writes_find_what_is_there(project: Project) -> None:
    assert settled(lambda: known(project)) == "NotFound"
    project.create()
    assert "NotFound" in reads(lambda: known(project))
    with pytest.raises(Conflict):
        project.create()
    assert settled(lambda: known(project)) == "RUNNING"

    group = project.group()
    project.compute("POST", f"{group}/resize", params={"size": 1})
    time.sleep(0.4)
    assert set(reads(lambda: project.compute("GET", group)["targetSize"])) == {0, 1}
    assert set(reads(lambda: len(project.managed()))) == {0, 1}
    (name,) = settled(lambda: [each["name"] for each in project.managed()])

    url = f"{group.partition('/instanceGroupManagers/')[0]}/instances/{name}"
    project.compute("POST", f"{group}/deleteInstances", json={"instances": [url]})
    time.sleep(0.4)
    assert [name] in reads(lambda: [each["name"] for each in project.managed()])
    assert settled(lambda: project.compute("GET", group)["targetSize"]) == 0
    assert settled(project.managed) == []
