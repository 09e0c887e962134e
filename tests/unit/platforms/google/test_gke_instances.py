"""What managed instances mean for a pool, from answers in Compute Engine's form."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.platforms.google.instance_groups import InstanceGroup, launch_failure, machine_state, machines

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
STOCKOUT = {
    "code": "ZONE_RESOURCE_POOL_EXHAUSTED",
    "message": "The zone 'projects/p/zones/us-central1-a' does not have enough resources available",
}
QUOTA = {"code": "QUOTA_EXCEEDED", "message": "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 1.0 in region us-central1."}


def managed(name: str, status: str = "", action: str = "NONE", error: dict[str, str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"instance": f"https://x/projects/p/zones/z/instances/{name}", "currentAction": action}
    if status:
        found |= {"instanceStatus": status, "id": "1"}
    return found | ({"lastAttempt": {"errors": {"errors": [error]}}} if error else {})


def group(*members: dict[str, Any], target: int | None = None, **fields: Any) -> InstanceGroup:
    size = len(members) if target is None else target
    return InstanceGroup(path="projects/p/zones/z/instanceGroupManagers/g", target=size, managed=members, **fields)


def failed(error: dict[str, str], at: datetime, action: str = "CREATING") -> dict[str, Any]:
    return {"error": error, "timestamp": at.isoformat(), "instanceActionDetails": {"action": action}}


@pytest.mark.parametrize(
    ("status", "action", "state"),
    [
        ("PROVISIONING", "CREATING", "pending"),
        ("STAGING", "CREATING", "pending"),
        ("RUNNING", "NONE", "running"),
        ("RUNNING", "VERIFYING", "running"),
        ("RUNNING", "DELETING", "terminating"),
        ("RUNNING", "ABANDONING", "terminating"),
        ("STOPPING", "NONE", "terminating"),
        ("TERMINATED", "RECREATING", "terminating"),
    ],
)
def test_states(status: str, action: str, state: str) -> None:
    assert machine_state(managed("a", status, action)) == state


def test_only_what_exists_is_a_machine() -> None:
    found = group(managed("a", "RUNNING"), managed("b", action="CREATING"), launched={"a": NOW})
    (machine,) = machines("train-a", [found])
    assert (machine.id, machine.group, machine.state, machine.launched_at) == ("a", "train-a", "running", NOW)


@pytest.mark.parametrize(
    ("found", "launching", "unborn"),
    [
        (group(), False, 0),
        (group(target=1), True, 0),  # just asked for
        (group(managed("a", "RUNNING")), False, 0),
        (group(managed("a", action="CREATING")), True, 1),
        (group(managed("a", "STAGING", "CREATING")), False, 0),
        (group(managed("a", action="CREATING", error=STOCKOUT)), False, 1),
        (group(managed("a", action="CREATING", error=STOCKOUT), managed("b", action="CREATING")), True, 2),
        (group(managed("a", "STOPPING", "RECREATING")), True, 1),  # a preempted one, whose successor is to come
        (group(managed("a", "STOPPING", "DELETING"), target=0), False, 0),
    ],
)
def test_a_launch_under_way_is_told_from_one_that_fails(found: InstanceGroup, launching: bool, unborn: int) -> None:
    assert (found.launching, len(found.unborn)) == (launching, unborn)


def test_the_newest_failure_counts_until_a_later_launch_works() -> None:
    older, newer = NOW - timedelta(minutes=9), NOW - timedelta(minutes=2)
    errors = (failed(QUOTA, newer), failed(STOCKOUT, older))
    failure = launch_failure([group(errors=errors)], NOW)
    assert failure
    assert (failure.at, failure.kind, failure.quota) == (newer, "quota", "NVIDIA_L4_GPUS")
    assert failure.earlier == (older,)
    assert failure.message.startswith("QUOTA_EXCEEDED: Quota 'NVIDIA_L4_GPUS' exceeded")
    assert launch_failure([group(errors=errors, launched={"a": NOW})], NOW) is None
    since_it_worked = launch_failure([group(errors=errors, launched={"a": older + timedelta(minutes=1)})], NOW)
    assert since_it_worked == replace(failure, earlier=())


@pytest.mark.parametrize(
    ("code", "kind"),
    [("PERMISSIONS_ERROR", "refused"), ("CONDITION_NOT_MET", "refused"), ("IP_SPACE_EXHAUSTED_WITH_DETAILS", "other")],
)
def test_what_would_fail_again_is_told_from_what_may_not(code: str, kind: str) -> None:
    errors = (failed({"code": code, "message": "No."}, NOW - timedelta(minutes=2)), failed(STOCKOUT, NOW))
    failure = launch_failure([group(errors=errors[:1])], NOW)
    assert failure
    assert (failure.kind, failure.reason) == (kind, code)
    newest = launch_failure([group(errors=errors)], NOW)
    assert newest
    assert newest.earlier == (NOW - timedelta(minutes=2),)


def test_what_went_wrong_in_a_deletion_is_no_failed_launch() -> None:
    assert launch_failure([group(errors=(failed(STOCKOUT, NOW, "DELETING"),))], NOW) is None


def test_an_instance_that_cannot_be_had_says_why_itself() -> None:
    failure = launch_failure([group(managed("a", action="CREATING", error=STOCKOUT))], NOW)
    assert failure
    assert (failure.at, failure.out_of_stock) == (NOW, True)
