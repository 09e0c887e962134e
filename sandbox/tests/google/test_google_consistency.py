"""Reads of Google Cloud may be some moments old; what is written is written."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from google.api_core.exceptions import Conflict, NotFound

from gpu_sandbox.google import GoogleTimings
from sandbox.tests.google.conftest import QUICK, Project, eventually

STALE = 1.5
READS = 20


@pytest.fixture
def timings() -> GoogleTimings:
    return replace(QUICK, stale=STALE)


def reads(look: Callable[[], Any]) -> list[Any]:
    """What several reads right after each other see. On a busy machine all of them may be too late for an old one."""
    return [look() for _ in range(READS)]


def settled(look: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """What every read sees in the end; return it once the last change is as old as a read can be."""
    seen: list[Any] = eventually(lambda: reads(look), lambda all_: wanted(all_[0]) and all_ == [all_[0]] * READS)
    time.sleep(STALE)
    return seen[0]


def known(project: Project, pool: str) -> str:
    try:
        return str(project.pool(pool).status.name)
    except NotFound:
        return "NotFound"


def test_a_new_pool_is_shown_late_and_cannot_be_created_twice(project: Project) -> None:
    names = (f"gpu-{number}" for number in count())

    def shown_late() -> bool:
        name = next(names)
        assert known(project, name) == "NotFound"
        project.create(name)
        seen = reads(lambda: known(project, name))
        with pytest.raises(Conflict):
            project.create(name)
        settled(lambda: known(project, name), lambda state: state == "RUNNING")
        return "NotFound" in seen

    eventually(shown_late)


def test_sizes_and_instances_are_shown_late(project: Project) -> None:
    project.create()
    settled(lambda: known(project, "gpu"), lambda state: state == "RUNNING")
    group = project.group()

    def size() -> int:
        return int(project.compute("GET", group)["targetSize"])

    def growth_shown_late() -> bool:
        project.compute("POST", f"{group}/resize", params={"size": 1})
        sizes, instances = zip(*reads(lambda: (size(), len(project.managed()))), strict=True)
        assert set(instances) <= {0, 1}
        return set(sizes) == {0, 1} and len(set(instances)) == 2

    def end_shown_late() -> bool:
        (name,) = settled(lambda: [each["name"] for each in project.managed()], lambda names: len(names) == 1)
        url = f"{group.partition('/instanceGroupManagers/')[0]}/instances/{name}"
        project.compute("POST", f"{group}/deleteInstances", json={"instances": [url]})
        late = [name] in reads(lambda: [each["name"] for each in project.managed()])
        settled(size, lambda seen: seen == 0)
        settled(project.managed, lambda instances: instances == [])
        return late

    def both_shown_late() -> bool:
        late = growth_shown_late()
        return end_shown_late() and late

    eventually(both_shown_late)
