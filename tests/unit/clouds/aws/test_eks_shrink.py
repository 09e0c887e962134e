"""A group is set to what it has once it is shown as suspended, which may take AWS some seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from airflow_gpu_provider.clouds.aws.autoscaling import AutoScaling


class NoMarks:
    """Nobody died over a suspension."""

    def read(self, asgs: Any) -> dict[str, Any]:
        return {}

    def set(self, name: str, at: Any) -> None: ...

    def clear(self, name: str) -> None: ...


class Service:
    """Auto Scaling, which shows a suspension only `late` reads after it was made."""

    def __init__(self, late: int) -> None:
        self._late = late
        self.called: list[str] = []
        self.size = 1

    def items(self, operation: str, key: str, **_: Any) -> list[Mapping[str, Any]]:
        suspended = "suspend_processes" in self.called
        self._late -= suspended
        processes = [{"ProcessName": "Launch"}] if suspended and self._late < 0 else []
        group = {"AutoScalingGroupName": "asg", "DesiredCapacity": self.size, "MinSize": 0, "Instances": []}
        return [{**group, "SuspendedProcesses": processes}]

    def call(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        self.called.append(operation)
        self.size = arguments.get("DesiredCapacity", self.size)
        return {"Activities": []}

    def now(self) -> Any:
        return None


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits take no time, and time passes by them alone."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: sum(slept))
    return slept


@pytest.mark.parametrize("late", [0, 1, 5])
def test_it_waits_until_the_suspension_is_shown(late: int, slept: list[float]) -> None:
    service: Any = Service(late)
    assert AutoScaling(service, NoMarks()).shrink_to_existing("asg") == 0
    assert service.size == 0
    assert len(slept) == late
    assert service.called[-1] == "resume_processes"


def test_a_suspension_that_is_never_shown_changes_nothing_and_does_not_take_for_ever(slept: list[float]) -> None:
    service: Any = Service(1000)
    assert AutoScaling(service, NoMarks()).shrink_to_existing("asg") is None
    assert service.size == 1
    assert sum(slept) <= 10
    assert service.called[-1] == "resume_processes"
