"""What Kueue's Workloads say of the place and the reason of one that waits, and of one that lost its place."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.api.informer import Change
from airflow_gpu_provider.cluster.api.watched import gangs, kueue_workloads, pods
from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound
from airflow_gpu_provider.errors import (
    ClusterUnreachable,
    GpuError,
    OutOfStock,
    PermissionDenied,
    PoolSpecError,
    ReferenceNotFound,
)
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.training.place.pod_placement import queue_of
from airflow_gpu_provider.training.watch.gang_view import GangView
from airflow_gpu_provider.training.watch.kueue_queue import KueueQueue, evicted_in_words, queued_in_words
from airflow_gpu_provider.training.watch.pod_view import PodView
from tests.unit.training import test_gang_wait, test_pod_wait, test_workload_wait
from tests.unit.training.test_pod_end import START, stamp
from tests.unit.training.test_pod_placement import a_pool

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


def a_queue(name: str, pool: GpuPool | None = None, **wait: Any) -> KueueQueue:
    return KueueQueue(replace(test_gang_wait.WAIT, namespace="ml", queue=name, uid="mine", **wait), pool or a_pool())


def change(kind: Any, raw: Any = None, **more: Any) -> Change:
    return Change(resource=kueue_workloads("ml"), kind=kind, raw=raw or {}, **more)


def test_place_is_told_as_far_as_it_is_known() -> None:
    queue = a_queue("team-a")
    assert queue.in_words == "in queue team-a"
    others = Change(resource=pods("ml"), kind="synced")
    assert queue.take([change("present", workload("mine", PENDING)), change("synced"), others]) == [others]
    assert queue.in_words == f"1st of 1 in queue team-a; {NO_QUOTA}"
    queue.take([change("trouble", error=ClusterUnreachable("The watch broke off."))])
    assert queue.in_words == f"1st of 1 in queue team-a; {NO_QUOTA}"
    assert not queue.is_unknown


def test_place_that_may_not_be_read_is_unknown_and_no_trouble_of_the_wait() -> None:
    queue = a_queue("team-a")
    refused = change("trouble", error=PermissionDenied("Cannot list workloads.", "Grant it."))
    assert queue.take([refused]) == []
    assert queue.in_words == "its place in queue team-a is unknown: Cannot list workloads. Grant it."
    assert (queue.is_unknown, queue.is_absent) == (True, False)
    queue.take([change("recovered"), change("synced")])
    assert not queue.is_unknown
    queue.take([change("trouble", error=ObjectNotFound("The API server serves no workloads."))])
    assert queue.is_absent


def test_who_is_in_no_queue_watches_nothing() -> None:
    queue = a_queue("")
    assert (queue.wants(), queue.in_words, queue.evicted) == ({}, "", "")


def test_queue_of_something_is_its_argument_or_else_its_label() -> None:
    label = {"kueue.x-k8s.io/queue-name": "team-b"}
    assert (queue_of("team-a", {}), queue_of(None, label), queue_of(None, None)) == ("team-a", "team-b", "")
    for rendered, labels in (("None", {}), ("", {}), ("team-a", label)):
        with pytest.raises(PoolSpecError, match="queue_name="):
            queue_of(rendered, labels)


REJECTED = condition(
    "Evicted", "True", "The workload is deactivated due to Admission check(s): dws, were rejected", "Deactivated"
)
NO_QUEUE = condition("QuotaReserved", "False", "LocalQueue team-a doesn't exist", "Inadmissible")
NO_CLUSTER_QUEUE = condition("QuotaReserved", "False", "ClusterQueue all doesn't exist", "Inadmissible")
CHECK_IS_TRIED_AGAIN = condition("Evicted", "True", "At least one admission check is false", "AdmissionCheck")


@pytest.mark.parametrize(
    ("conditions", "active", "at_once", "later"),
    [
        ((PENDING,), True, None, None),
        ((PENDING, CHECK_IS_TRIED_AGAIN), True, None, None),
        ((condition("QuotaReserved", "False", "ClusterQueue all is inactive", "Inadmissible"),), True, None, None),
        ((condition("QuotaReserved", "True", "It doesn't exist"),), True, None, None),
        ((PENDING, REJECTED), False, OutOfStock, OutOfStock),
        ((), False, OutOfStock, OutOfStock),
        ((NO_QUEUE,), True, None, ReferenceNotFound),
        ((NO_CLUSTER_QUEUE,), True, None, ReferenceNotFound),
    ],
)
def test_a_queue_that_has_said_no_or_does_not_exist(
    conditions: Any, active: bool, at_once: type[GpuError] | None, later: type[GpuError] | None
) -> None:
    mine, others = workload("mine", *conditions), workload("other", PENDING)
    mine["spec"]["active"], others["spec"]["active"] = active, False
    queue = a_queue("team-a")
    queue.take([change("present", others), change("present", mine), change("synced")])
    found = [queue.barred("Job train", START + timedelta(seconds=seconds)) for seconds in (0, 59, 60)]
    assert [type(error) if error else None for error in found] == [at_once, at_once, later]
    if later:
        assert "Job train will not be admitted: " in str(found[-1])
        assert (mine["status"]["conditions"] or [{"message": "no reason"}])[-1]["message"] in str(found[-1])


def test_a_queue_that_has_come_may_go_for_another_minute() -> None:
    queue = a_queue("team-a")
    for seconds, said in ((0, NO_QUEUE), (50, PENDING), (70, NO_QUEUE)):
        queue.take([change("present", workload("mine", said))])
        assert queue.barred("Job train", START + timedelta(seconds=seconds)) is None
    assert queue.barred("Job train", START + timedelta(seconds=130)) is not None


def barred(view: GangView | PodView, resource: Any, raw: Any, now: datetime) -> GpuError | None:
    mine = workload(raw["metadata"]["uid"], PENDING, REJECTED)
    mine["spec"]["active"] = False
    view.take([Change(resource=resource, kind="present", raw=raw), change("present", mine), change("synced")], now)
    return view.look(now)[0].error


def test_each_kind_of_wait_ends_when_its_workload_is_deactivated_before_it_was_admitted() -> None:
    now = START + timedelta(hours=1)
    later: Any = {"deadline": START + timedelta(hours=24), "queue": "team-a"}
    meta = {"namespace": "ml", "creationTimestamp": stamp(0)}
    gang = replace(test_gang_wait.WAIT, **later)
    raw: Any = {"metadata": {**meta, "name": gang.name, "uid": gang.uid}, "spec": {"suspend": True}}
    view = GangView(gang, a_pool(), cast("Any", None))
    assert type(barred(view, gangs(gang.namespace), raw, now)) is OutOfStock
    wait = replace(test_pod_wait.WAIT, **later)
    spec: Any = {"containers": [], "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    for gated in (True, False):
        raw = {"metadata": {**meta, "name": wait.name, "uid": wait.uid}, "spec": spec if gated else {"containers": []}}
        raw["status"] = {"phase": "Pending"}
        found = barred(PodView(wait, a_pool(), cast("Any", None)), pods("ml"), raw, now)
        assert (type(found) is OutOfStock) == gated
    said = OutOfStock("No.")
    suspended = replace(test_workload_wait.STATE, is_suspended=True)
    seen = test_workload_wait.seen(suspended, barred=said, evicted="Deactivated: it was rejected")
    assert test_workload_wait.WAIT.step(seen, test_workload_wait.at(20)).error is said
