"""What Kueue's Workloads say of the place and the reason of one that waits, and of one that lost its place."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.pods.kueue import evicted_in_words, queued_in_words

NO_QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor l4, 2 more"


def workload(uid: str, *conditions: dict[str, str], priority: int = 0, at: str = "2026-01-01T00:00:00Z") -> Any:
    return {
        "metadata": {"name": f"job-{uid}", "creationTimestamp": at, "ownerReferences": [{"uid": uid}]},
        "spec": {"queueName": "team-a", "priority": priority},
        "status": {"conditions": [*conditions]},
    }


def condition(kind: str, status: str, message: str = "", reason: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "message": message, "reason": reason}


PENDING = condition("QuotaReserved", "False", NO_QUOTA, "Pending")


def test_place_is_by_priority_and_then_by_age_among_those_that_wait() -> None:
    queue = [
        workload("admitted", condition("QuotaReserved", "True")),
        workload("older", PENDING),
        workload("mine", PENDING, at="2026-01-01T00:01:00Z"),
        workload("younger", PENDING, at="2026-01-01T00:02:00Z"),
        workload("urgent", PENDING, priority=100, at="2026-01-01T00:03:00Z"),
    ]
    assert queued_in_words("mine", "team-a", queue) == f"3rd of 4 in queue team-a; {NO_QUOTA}"


def test_one_that_kueue_does_not_know_yet() -> None:
    assert queued_in_words("mine", "team-a", [workload("other")]) == "Kueue has not taken it into queue team-a yet"


def test_quota_is_reserved_and_a_check_is_not_over() -> None:
    checks = (condition("QuotaReserved", "True"), condition("Admitted", "False", "waits for provisioning"))
    assert queued_in_words("mine", "team-a", [workload("mine", *checks)]) == "in queue team-a; waits for provisioning"


@given(st.permutations(["a", "b", "c", "d"]))
def test_place_does_not_depend_on_the_order_in_which_they_are_seen(order: list[str]) -> None:
    queue = [workload(uid, PENDING, priority=ord(uid)) for uid in order]
    assert queued_in_words("a", "team-a", queue).startswith("4th of 4 ")


def test_eviction_says_why() -> None:
    said = condition("Evicted", "True", "Preempted to accommodate a workload in the ClusterQueue.", "Preempted")
    assert evicted_in_words("mine", [workload("mine", said)]) == (
        "Preempted: Preempted to accommodate a workload in the ClusterQueue"
    )
    assert evicted_in_words("mine", [workload("mine", {**said, "status": "False"})]) == ""
    assert evicted_in_words("mine", [workload("other", said)]) == ""
