"""When Compute Engine instances ran, from the operations of their zone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.clouds.base import MachineLife
from airflow_gpu_provider.clouds.google.instance_groups import InstanceGroup, ending, last_end, lives, named_after

START = datetime(2026, 3, 1, 2, tzinfo=UTC)
BASE = "gke-c-pool-1234abcd"
NAME = f"{BASE}-x7k2"
ZONE = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a"


is_its = named_after(BASE)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def operation(kind: str, begun: float, ended: float | None = None, *, of: str = "1", **fields: Any) -> dict[str, Any]:
    over = {} if ended is None else {"endTime": at(ended).isoformat()}
    link = f"{ZONE}/instances/{NAME}"
    return {
        "operationType": kind,
        "targetId": of,
        "targetLink": link,
        "insertTime": at(begun).isoformat(),
        **over,
        **fields,
    }


def life(launched: float | None, ended: float | None) -> MachineLife:
    return MachineLife(
        id=NAME,
        group="g",
        node=NAME,
        launched_at=None if launched is None else at(launched),
        ended_at=None if ended is None else at(ended),
    )


def test_one_name_has_a_life_for_each_machine_that_had_it() -> None:
    operations = [
        operation("delete", 60, 62, of="3"),
        operation("insert", 41, 42, of="3"),
        operation("compute.instances.repair.recreateInstance", 40, 41, of="2"),
        operation("delete", 40, 41, of="2"),
        operation("compute.instances.preempted", 39, 39, of="2"),
        operation("insert", 20, 21, of="2"),
        operation("compute.instances.preempted", 10, 10),
        operation("insert", 0, 1),
    ]
    assert set(lives("g", is_its, operations, at(0))) == {life(41, 62), life(20, 39), life(0, 10)}


@pytest.mark.parametrize(
    "event", ["preempted", "hostError", "terminateOnHostMaintenance", "guestTerminate", "stoppedDueToPdDoubleServe"]
)
def test_a_machine_ends_with_each_of_compute_engines_own_events(event: str) -> None:
    """What is left of it is deleted only when its group notices that it is gone."""
    operations = [
        operation("insert", 0, 1),
        operation(f"compute.instances.{event}", 10, 10),
        operation("delete", 19, 20),
    ]
    assert lives("g", is_its, operations, at(0)) == (life(0, 10),)


def test_a_machine_that_is_started_again_elsewhere_goes_on() -> None:
    maintained = [
        operation("insert", 0, 1),
        operation("compute.instances.terminateOnHostMaintenance", 10, 10),
        operation("compute.instances.automaticRestart", 11, 12),
    ]
    assert lives("g", is_its, maintained, at(0)) == (life(0, None),)
    assert lives("g", is_its, [*maintained, operation("delete", 30, 31)], at(0)) == (life(0, 31),)


def test_what_runs_what_is_being_deleted_and_what_was_launched_before() -> None:
    assert lives("g", is_its, [operation("insert", 0, 1)], at(0)) == (life(0, None),)
    assert lives("g", is_its, [operation("insert", 0, 1), operation("delete", 5)], at(0)) == (life(0, None),)
    assert lives("g", is_its, [operation("delete", 5, 6)], at(0)) == (life(None, 6),)
    assert lives("g", is_its, [operation("delete", -5, -4)], at(0)) == ()


def test_other_groups_other_things_and_failures_are_left_out() -> None:
    link = f"{ZONE}/instances/gke-c-pool-other000-x7k2"
    others = [
        operation("insert", 0, 1, targetLink=link),
        operation("insert", 0, 1, targetLink=f"{ZONE}/disks/{NAME}"),
        operation("insert", 0, 1, error={"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED"}]}),
        operation("setMetadata", 0, 1),
    ]
    assert lives("g", is_its, others, at(0)) == ()


def test_the_last_end_is_of_an_instance_that_was_there() -> None:
    """An instance group deletes what could not be created, too."""
    ended = [operation("delete", 7), operation("compute.instances.preempted", 5, 5), operation("delete", 1, 3, of="2")]
    path = "projects/p/zones/us-central1-a/instanceGroupManagers/g"
    group = InstanceGroup(path=path, target=0, base_name=BASE)
    assert last_end(group, ended) == at(5)
    assert last_end(group, []) is None
    details = {"action": "CREATING", "instance": f"{ZONE}/instances/{NAME}"}
    assert last_end(replace(group, errors=({"instanceActionDetails": details},)), ended) is None
    assert last_end(replace(group, base_name="gke-c-other-12345678"), ended) is None


def test_what_is_being_deleted_ends_though_its_group_may_not_list_it_any_more() -> None:
    path = "projects/p/zones/us-central1-a/instanceGroupManagers/g"
    group = InstanceGroup(path=path, target=0, base_name=BASE)
    begun = [operation("delete", 7), operation("insert", 8)]
    assert ending(group, begun) == (NAME,)
    assert ending(group, [operation("delete", 7, 8)]) == ()
    assert ending(replace(group, base_name="gke-c-other-12345678"), begun) == ()
    details = {"action": "CREATING", "instance": f"{ZONE}/instances/{NAME}"}
    assert ending(replace(group, errors=({"instanceActionDetails": details},)), begun) == ()


def test_an_instance_of_a_group_that_was_deleted_is_known_by_its_name() -> None:
    operations = [operation("insert", 0, 1), operation("delete", 5, 6)]
    (found,) = lives("", {life(0, 6).id}.__contains__, operations, at(0))
    assert (found.group, found.launched_at, found.ended_at) == ("", at(0), at(6))
