"""What Kueue's Workloads say of the place and the reason of one that waits, and of one that lost its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.informer import Change
from airflow_gpu_provider.cluster.watched import kueue_workloads, pods
from airflow_gpu_provider.errors import ClusterUnreachable, PermissionDenied, PoolSpecError
from airflow_gpu_provider.training.place.pod_placement import queue_of
from airflow_gpu_provider.training.watch.surroundings import KueueQueue, evicted_in_words, queued_in_words

NO_QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor l4, 2 more"


def workload(uid: str, *conditions: dict[str, str], priority: int = 0, at: str = "2026-01-01T00:00:00Z") -> Any:
    return {
        "metadata": {
            "name": f"job-{uid}",
            "uid": f"w-{uid}",
            "creationTimestamp": at,
            "ownerReferences": [{"uid": uid}],
        },
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


def change(kind: Any, raw: Any = None, **more: Any) -> Change:
    return Change(resource=kueue_workloads("ml"), kind=kind, raw=raw or {}, **more)


def test_place_is_told_as_far_as_it_is_known() -> None:
    queue = KueueQueue("ml", "team-a", "mine")
    assert queue.in_words == "in queue team-a"
    others = Change(resource=pods("ml"), kind="synced")
    assert queue.take([change("present", workload("mine", PENDING)), change("synced"), others]) == [others]
    assert queue.in_words == f"1st of 1 in queue team-a; {NO_QUOTA}"
    queue.take([change("trouble", error=ClusterUnreachable("The watch broke off."))])
    assert queue.in_words == f"1st of 1 in queue team-a; {NO_QUOTA}"
    assert not queue.is_unknown


def test_place_that_may_not_be_read_is_unknown_and_no_trouble_of_the_wait() -> None:
    queue = KueueQueue("ml", "team-a", "mine")
    refused = change("trouble", error=PermissionDenied("Cannot list workloads.", "Grant it."))
    assert queue.take([refused]) == []
    assert queue.in_words == "its place in queue team-a is unknown: Cannot list workloads. Grant it."
    assert (queue.is_unknown, queue.is_absent) == (True, False)
    queue.take([change("recovered"), change("synced")])
    assert not queue.is_unknown
    queue.take([change("trouble", error=ObjectNotFound("The API server serves no workloads."))])
    assert queue.is_absent


def test_who_is_in_no_queue_watches_nothing() -> None:
    queue = KueueQueue("ml", "", "mine")
    assert (queue.wants(), queue.in_words, queue.evicted) == ({}, "", "")


def test_queue_of_something_is_its_argument_or_else_its_label() -> None:
    label = {"kueue.x-k8s.io/queue-name": "team-b"}
    assert (queue_of("team-a", {}), queue_of(None, label), queue_of(None, None)) == ("team-a", "team-b", "")
    for rendered, labels in (("None", {}), ("", {}), ("team-a", label)):
        with pytest.raises(PoolSpecError, match="queue_name="):
            queue_of(rendered, labels)
