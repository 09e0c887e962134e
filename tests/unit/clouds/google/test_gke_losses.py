"""Which instances of a group Compute Engine took back, by the operations of its zone, and when those are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

import pytest

from airflow_gpu_provider.clouds.base import Group, MachineLoss
from airflow_gpu_provider.clouds.google.instance_groups import InstanceGroup, InstanceGroups
from airflow_gpu_provider.clouds.google.machine_losses import MachineLosses, losses
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.pools.candidates import Candidate
from tests.unit.clouds.google.test_gke_lives import BASE, NAME, at, operation

PATH = "projects/p/zones/us-central1-a/instanceGroupManagers/g"
PREEMPTED = operation("compute.instances.preempted", 30, statusMessage="Instance was preempted.")
HOST_ERROR = operation("compute.instances.hostError", 30)


def group(*names: str) -> InstanceGroup:
    return InstanceGroup(
        path=PATH,
        target=len(names),
        base_name=BASE,
        managed=tuple({"name": name, "instanceStatus": "RUNNING"} for name in names),
    )


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ([PREEMPTED, operation("insert", 0)], "Instance was preempted"),
        ([HOST_ERROR, operation("insert", 10)], "compute.instances.hostError"),
        ([HOST_ERROR, operation("insert", -10)], ""),
        ([operation("delete", 30), operation("insert", 0)], ""),
        ([{**PREEMPTED, "targetLink": PREEMPTED["targetLink"].replace(BASE, "gke-c-other")}], ""),
    ],
)
def test_what_is_a_loss(operations: list[dict[str, Any]], why: str) -> None:
    assert losses(group(), operations) == ((MachineLoss(at=at(30), machine=NAME, why=why),) if why else ())


class Calls:
    def __init__(self, error: Exception | None = None) -> None:
        self.zones: list[str] = []
        self._error = error

    def operations_since(self, zone: str, since: datetime) -> Sequence[Mapping[str, Any]]:
        self.zones.append(zone)
        if self._error:
            raise self._error
        return [PREEMPTED]


SPOT = Candidate(group="spot", zone="us-central1-a", instance_type="g2-standard-4", market="SPOT")


def groups(*names: str) -> list[Group]:
    return [
        Group(name=name, candidate=replace(SPOT, group=name), status="active", desired=0, max_size=1) for name in names
    ]


def test_operations_are_read_again_where_the_machines_have_changed() -> None:
    calls = Calls()
    seen = MachineLosses(cast("InstanceGroups", calls))
    for _ in range(2):
        found = seen.on(groups("spot", "other"), {"spot": [group(NAME)], "other": []})
        assert [each.losses != () for each in found] == [True, False]
        assert calls.zones == ["projects/p/zones/us-central1-a"]
    seen.on(groups("spot", "other"), {"spot": [group()], "other": []})
    assert len(calls.zones) == 2


def test_nothing_is_read_where_there_is_no_choice_and_nothing_raised_where_it_is_not_allowed() -> None:
    calls = Calls(PermissionDenied("no", "ask"))
    assert MachineLosses(cast("InstanceGroups", calls)).on(groups("spot"), {"spot": [group()]}) == (*groups("spot"),)
    assert not calls.zones
    two = groups("spot", "other")
    assert MachineLosses(cast("InstanceGroups", calls)).on(two, {"spot": [group()], "other": []}) == (*two,)
