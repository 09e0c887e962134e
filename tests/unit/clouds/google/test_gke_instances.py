"""What managed instances mean for a pool, from answers in Compute Engine's form."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.clouds.google.instance_groups import InstanceGroup, launch_failure, machine_state, machines

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


@pytest.mark.parametrize("code", ["CONDITION_NOT_MET", "UNSUPPORTED_OPERATION", "RESOURCE_NOT_FOUND"])
@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Specified reservation 'r1' does not have available resources for the request.", "out_of_stock"),
        ("No available resources in specified reservations 'r1'", "out_of_stock"),
        ("All automatic reservations in your project are fully consumed. To create an instance, ...", "out_of_stock"),
        (
            "A reservation with status: CREATING; it requires reservation to be in READY state.",
            "out_of_stock",
        ),
        ("Reservation r1 does not have sufficient capacity for the requested resources.", "out_of_stock"),
        ("Zone does not currently have sufficient capacity for the requested resources.", "out_of_stock"),
        ("Zone z currently does not have sufficient capacity.", "out_of_stock"),
        ("A g2-standard-4 VM instance is currently unavailable in the us-central1-a zone.", "out_of_stock"),
        ("There is no automatic reservation matching the instance in your project, or shared with it.", "refused"),
        ("Specified reservation 'r1' does not exist.", "refused"),
        ("Specified reservations [r1] do not exist. (when acting as x)", "refused"),
        ("Could not find the given reservation with the following name r1", "refused"),
        ("The reservation must exist in the same project as the instance", "refused"),
        ("Reservation r1 is incorrect for the requested resources", "refused"),
    ],
)
def test_a_reservation_that_has_none_now_is_told_from_one_that_never_will(code: str, message: str, kind: str) -> None:
    assert kind_of_failure(code, message) == kind


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("INSUFFICIENT_CAPACITY", "Insufficient capacity.", "out_of_stock"),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "(resource type:compute)", "out_of_stock"),
        ("QUOTA_EXCEEDED", "Quota 'NVIDIA_L4_GPUS' exceeded.", "quota"),
        ("CONDITION_NOT_MET", "Constraint constraints/compute.requireShieldedVm violated for p.", "refused"),
        ("PERMISSIONS_ERROR", "Required 'compute.images.useReadOnly' permission for 'p'", "refused"),
        ("RESERVATION_NOT_FOUND", "", "refused"),
        ("IP_SPACE_EXHAUSTED_WITH_DETAILS", "IP space of 'subnetworks/s' is exhausted.", "other"),
        ("SERVICE_UNAVAILABLE", "The service is currently unavailable.", "other"),
        ("CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "Try again later.", "other"),
    ],
)
def test_what_passes_is_told_from_what_does_not(code: str, message: str, kind: str) -> None:
    assert kind_of_failure(code, message) == kind


def kind_of_failure(code: str, message: str) -> str:
    failure = launch_failure([group(errors=(failed({"code": code, "message": message}, NOW),))], NOW)
    assert failure
    return failure.kind


def test_a_failure_remembers_those_before() -> None:
    errors = (
        failed({"code": "IP_SPACE_EXHAUSTED", "message": "No."}, NOW - timedelta(minutes=2)),
        failed(STOCKOUT, NOW),
    )
    oldest, newest = launch_failure([group(errors=errors[:1])], NOW), launch_failure([group(errors=errors)], NOW)
    assert oldest
    assert newest
    assert (oldest.reason, newest.earlier) == ("IP_SPACE_EXHAUSTED", (oldest.at,))


def test_what_went_wrong_in_a_deletion_is_no_failed_launch() -> None:
    assert launch_failure([group(errors=(failed(STOCKOUT, NOW, "DELETING"),))], NOW) is None


def test_an_instance_that_cannot_be_had_says_why_itself() -> None:
    failure = launch_failure([group(managed("a", action="CREATING", error=STOCKOUT))], NOW)
    assert failure
    assert (failure.at, failure.out_of_stock) == (NOW, True)
