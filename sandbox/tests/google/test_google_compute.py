"""Compute Engine: exact machines, quotas, what zones offer - by REST, and once by Google's own library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from google.api_core import exceptions

from gpu_sandbox import ManualClock
from gpu_sandbox.faults import Stockout
from sandbox.tests.google.conftest import GIVE_UP, LAUNCH, REAL, SHRINK, Project, a_project


def test_exactly_the_named_machines_go_and_the_size_goes_down_with_them(project: Project) -> None:
    project.create(nodes=3)
    keep, *go = [one["instance"] for one in project.managed()]
    operation = project.compute("POST", f"{project.group()}/deleteInstances", json={"instances": go})
    assert operation["status"] == "RUNNING"
    project.advance(REAL.group_operation - 1)
    assert project.compute("GET", path_of(operation))["status"] == "RUNNING"
    project.advance(1)
    assert project.compute("GET", path_of(operation))["status"] == "DONE"
    assert project.compute("GET", project.group())["targetSize"] == 1
    project.advance(REAL.instance_delete - REAL.group_operation - 1)
    assert [one["currentAction"] for one in project.managed()] == ["NONE", "DELETING", "DELETING"]
    assert project.events.names("terminated") == []
    project.advance(1)
    assert [one["instance"] for one in project.managed()] == [keep]
    assert sorted(project.events.names("terminated")) == sorted(url.rpartition("/")[2] for url in go)
    assert project.events.names("drain") == []  # Compute Engine knows of no pods

    again = {"instances": go[:1]}
    with pytest.raises(exceptions.BadRequest, match="not a member"):
        project.compute("POST", f"{project.group()}/deleteInstances", json=again)
    skipped = again | {"skipInstancesOnValidationError": True}
    project.compute("POST", f"{project.group()}/deleteInstances", json=skipped)
    assert project.compute("GET", project.group())["targetSize"] == 1


def path_of(operation: dict[str, str]) -> str:
    """Below the project."""
    return operation["selfLink"][operation["selfLink"].index("zones/") :]


class TimePassesWhileCallsAreHeld(ManualClock):
    """As the machine's own clock does it: until nothing is to be held any more, or for so long at most."""

    def hold(self, is_held: Callable[[], bool], *, seconds: float) -> None:
        end = self.now() + seconds
        while self.now() < end and is_held():
            self.advance(1)


def test_waiting_for_an_operation_holds_the_call_until_it_is_over() -> None:
    timings, clock = replace(REAL, group_operation=130.0, operation_wait=120.0), TimePassesWhileCallsAreHeld()
    with a_project(timings, clock) as project:
        project.create(nodes=1)
        operation = project.compute("POST", f"{project.group()}/resize", params={"size": 2})
        assert project.compute("GET", path_of(operation))["status"] == "RUNNING"
        began = clock.utc_now()
        assert project.compute("POST", f"{path_of(operation)}/wait")["status"] == "RUNNING"
        assert clock.utc_now() - began == timedelta(seconds=120)
        assert project.compute("POST", f"{path_of(operation)}/wait")["status"] == "DONE"
        assert clock.utc_now() - began == timedelta(seconds=130)


def test_a_machine_that_could_not_be_had_can_be_given_up(project: Project) -> None:
    project.faults.add(Stockout())
    project.create(nodes=1, takes=GIVE_UP)
    [managed] = project.managed()
    project.compute("POST", f"{project.group()}/deleteInstances", json={"instances": [managed["instance"]]})
    project.advance()
    assert project.managed() == []
    assert project.compute("GET", project.group())["targetSize"] == 0
    project.faults.clear()
    project.advance(hours=1)
    assert project.events.seen == []


def test_the_size_of_one_zone(project: Project) -> None:
    zones = ("us-central1-a", "us-central1-b")
    project.create(zones=zones)
    project.compute("POST", f"{project.group(zone=zones[1])}/resize", params={"size": 2})
    project.advance(LAUNCH - 1)
    assert project.events.seen == []
    project.advance(1)
    assert len(project.events.names("launched")) == 2
    assert {instance.zone for _, instance in project.events.seen} == {zones[1]}
    assert project.managed(zone=zones[0]) == []


def test_a_machine_deleted_behind_its_groups_back_is_made_anew(project: Project) -> None:
    project.create(nodes=1)
    [managed] = project.managed()
    project.compute("DELETE", f"zones/us-central1-a/instances/{managed['name']}")
    project.advance(REAL.instance_delete + REAL.instance_create - 1)
    assert [one["currentAction"] for one in project.managed()] == ["RECREATING"]
    assert project.events.names("launched") == [managed["name"]]
    project.advance(1)
    assert project.events.names("launched") == [managed["name"]] * 2


def test_operations_tell_when_machines_came_and_went(project: Project) -> None:
    """The newest first by `orderBy`; one name has several machines, each with a number of its own."""
    project.create(nodes=1, spot=True)
    [managed] = project.managed()
    project.cloud.preempt(managed["name"])
    project.advance(REAL.preemption_notice + REAL.instance_delete + REAL.instance_create)
    [again] = project.managed()
    born = project.compute("GET", f"zones/us-central1-a/instances/{again['name']}")["creationTimestamp"]
    project.resize(0, takes=SHRINK)
    assert project.managed() == []

    listed = project.compute("GET", "zones/us-central1-a/operations", params={"orderBy": "creationTimestamp desc"})
    of_it = [each for each in listed["items"] if each["targetLink"].endswith(f"/instances/{managed['name']}")]
    told = [(each["operationType"], each["targetId"], each["status"]) for each in of_it]
    assert told == [
        ("delete", again["id"], "DONE"),
        ("insert", again["id"], "DONE"),
        ("compute.instances.preempted", managed["id"], "DONE"),
        ("insert", managed["id"], "DONE"),
    ]
    assert of_it[1]["insertTime"] == born
    times = [datetime.fromisoformat(each[which]) for each in reversed(of_it) for which in ("insertTime", "endTime")]
    seconds = [(at - times[0]).total_seconds() for at in times]
    inserted, preempted, inserted_again, deleted = zip(seconds[::2], seconds[1::2], strict=True)
    assert inserted == (0, REAL.instance_create)
    gone = REAL.node_pool_create - REAL.operation_pending - REAL.group_reaction + REAL.preemption_notice
    assert preempted == (gone, gone)
    assert inserted_again == (gone + REAL.instance_delete, gone + REAL.instance_delete + REAL.instance_create)
    drained = inserted_again[1] + REAL.operation_pending
    assert deleted == (drained, drained + REAL.instance_delete)
    with pytest.raises(exceptions.BadRequest, match="orderBy"):
        project.compute("GET", "zones/us-central1-a/operations", params={"orderBy": "insertTime"})
    first = project.compute("GET", "zones/us-central1-a/operations", params={"maxResults": 1})
    assert len(first["items"]) == 1
    assert first["nextPageToken"]


def test_use_counts_against_the_right_quotas(project: Project) -> None:
    def used() -> dict[str, float]:
        quotas = project.compute("GET", "regions/us-central1")["quotas"] + project.compute("GET", "")["quotas"]
        return {quota["metric"]: quota["usage"] for quota in quotas if quota["usage"] and quota["metric"] != "CPUS"}

    project.create("l4", nodes=1, machine_type="g2-standard-24")
    project.create("spot", nodes=1, spot=True)
    project.create("short", nodes=1, machine_type="g2-standard-24", max_run_duration=timedelta(days=7))
    assert used() == {"NVIDIA_L4_GPUS": 2, "PREEMPTIBLE_NVIDIA_L4_GPUS": 3, "GPUS_ALL_REGIONS": 5}
    project.cloud.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 1)
    project.resize(0, "short", takes=SHRINK)
    project.resize(1, "short")  # either quota will do
    assert used() == {"NVIDIA_L4_GPUS": 4, "PREEMPTIBLE_NVIDIA_L4_GPUS": 1, "GPUS_ALL_REGIONS": 5}
    project.resize(0, "short", takes=SHRINK)
    assert used() == {"NVIDIA_L4_GPUS": 2, "PREEMPTIBLE_NVIDIA_L4_GPUS": 1, "GPUS_ALL_REGIONS": 3}
    project.cloud.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 0)  # none granted: spot counts as standard
    project.resize(0, "spot", takes=SHRINK)
    project.resize(1, "spot")
    assert used() == {"NVIDIA_L4_GPUS": 3, "GPUS_ALL_REGIONS": 3}
    project.faults.set_quota("GPUS_ALL_REGIONS", 3)  # a fault stands for the project's own limit until it is ended
    assert project.compute("GET", "")["quotas"] == [{"metric": "GPUS_ALL_REGIONS", "limit": 3, "usage": 3}]
    error = project.resize(2, "spot", takes=GIVE_UP).error
    assert "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 3.0 globally." in error.message
    project.faults.clear()
    project.resize(0, "l4", takes=SHRINK)
    project.resize(0, "spot", takes=SHRINK)
    assert used() == {}


def test_what_a_zone_offers(project: Project) -> None:
    project.cloud.set_offered("nvidia-l4", "us-central1-b", offered=False)
    accelerators = project.compute("GET", "zones/us-central1-b/acceleratorTypes")["items"]
    assert "nvidia-l4" not in [one["name"] for one in accelerators]
    machines = project.compute("GET", "zones/us-central1-b/machineTypes", params={"maxResults": 10})
    assert len(machines["items"]) == 10
    assert machines["nextPageToken"] == "10"
    with pytest.raises(exceptions.NotFound):
        project.compute("GET", "zones/us-central1-b/machineTypes/g2-standard-4")
    g2 = project.compute("GET", "zones/us-central1-a/machineTypes/g2-standard-4")
    assert g2["accelerators"] == [{"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 1}]
    with pytest.raises(exceptions.BadRequest, match="Unknown zone"):
        project.compute("GET", "zones/us-central1-z/machineTypes")


def test_googles_own_library(project: Project) -> None:
    from google.cloud import compute_v1

    project.create(nodes=2)
    where = {"project": project.cloud.project_id, "zone": "us-central1-a"}
    group = project.group().rpartition("/")[2]
    options = {"api_endpoint": project.cloud.endpoint_url}
    groups = compute_v1.InstanceGroupManagersClient(credentials=project.credentials, client_options=options)
    managed = list(groups.list_managed_instances(instance_group_manager=group, **where))
    assert [one.instance_status for one in managed] == ["RUNNING", "RUNNING"]
    request = compute_v1.InstanceGroupManagersDeleteInstancesRequest(instances=[managed[0].instance])
    # Its operation's own result() asks Google's endpoint, whatever the client's is.
    operation = groups.delete_instances(
        instance_group_manager=group, instance_group_managers_delete_instances_request_resource=request, **where
    )
    operations = compute_v1.ZoneOperationsClient(credentials=project.credentials, client_options=options)
    project.advance(REAL.group_operation)
    assert operations.wait(operation=operation.name, **where).status == compute_v1.Operation.Status.DONE
    assert groups.get(instance_group_manager=group, **where).target_size == 1
    regions = compute_v1.RegionsClient(credentials=project.credentials, client_options=options)
    quotas = regions.get(project=project.cloud.project_id, region="us-central1").quotas
    assert next(quota.limit for quota in quotas if quota.metric == "NVIDIA_L4_GPUS") == 16
