"""Compute Engine: exact machines, quotas, what zones offer - by REST, and once by Google's own library."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from google.api_core import exceptions

from gpu_sandbox.faults import Stockout
from gpu_sandbox.google import GoogleTimings
from sandbox.tests.google.conftest import Project, a_project, eventually
from tests.sandbox.running import standing_still


def test_exactly_the_named_machines_go_and_the_size_goes_down_with_them(project: Project) -> None:
    project.create(nodes=3)
    keep, *go = [one["instance"] for one in project.managed()]
    operation = project.compute("POST", f"{project.group()}/deleteInstances", json={"instances": go})
    assert operation["status"] == "RUNNING"
    path = operation["selfLink"][operation["selfLink"].index("zones/") :]
    assert project.compute("POST", f"{path}/wait")["status"] == "DONE"
    assert project.compute("GET", project.group())["targetSize"] == 1
    eventually(lambda: [one["instance"] for one in project.managed()], lambda left: left == [keep])
    assert sorted(project.events.names("terminated")) == sorted(url.rpartition("/")[2] for url in go)
    assert project.events.names("drain") == []  # Compute Engine knows of no pods

    again = {"instances": go[:1]}
    with pytest.raises(exceptions.BadRequest, match="not a member"):
        project.compute("POST", f"{project.group()}/deleteInstances", json=again)
    skipped = again | {"skipInstancesOnValidationError": True}
    project.compute("POST", f"{project.group()}/deleteInstances", json=skipped)
    assert project.compute("GET", project.group())["targetSize"] == 1


def test_waiting_for_an_operation_holds_the_call_until_it_is_over(timings: GoogleTimings) -> None:
    timings = replace(timings, group_operation=1.0, operation_wait=0.3)
    with a_project(timings) as project:
        project.create(nodes=1)
        with standing_still(project.cloud):
            operation = project.compute("POST", f"{project.group()}/resize", params={"size": 2})
            path = operation["selfLink"][operation["selfLink"].index("zones/") :]
            assert project.compute("GET", path)["status"] == "RUNNING"
            began = time.monotonic()
            assert project.compute("POST", f"{path}/wait")["status"] == "RUNNING", "answered before it was over"
        assert time.monotonic() - began >= 0.3
        assert eventually(lambda: project.compute("POST", f"{path}/wait")["status"], lambda seen: seen == "DONE")


def test_a_machine_that_could_not_be_had_can_be_given_up(project: Project) -> None:
    project.faults.add(Stockout())
    project.create(nodes=1)
    [managed] = project.managed()
    project.compute("POST", f"{project.group()}/deleteInstances", json={"instances": [managed["instance"]]})
    assert eventually(lambda: not project.managed())
    assert project.compute("GET", project.group())["targetSize"] == 0
    assert project.events.seen == []


def test_the_size_of_one_zone(project: Project) -> None:
    zones = ("us-central1-a", "us-central1-b")
    project.create(zones=zones)
    project.compute("POST", f"{project.group(zone=zones[1])}/resize", params={"size": 2})
    eventually(lambda: project.events.names("launched"), lambda names: len(names) == 2)
    assert {instance.zone for _, instance in project.events.seen} == {zones[1]}
    assert project.managed(zone=zones[0]) == []


def test_a_machine_deleted_behind_its_groups_back_is_made_anew(project: Project) -> None:
    project.create(nodes=1)
    [managed] = project.managed()
    project.compute("DELETE", f"zones/us-central1-a/instances/{managed['name']}")
    eventually(lambda: project.events.names("launched"), lambda names: names == [managed["name"]] * 2)


def test_operations_tell_when_machines_came_and_went(project: Project) -> None:
    """The newest first by `orderBy`; one name has several machines, each with a number of its own."""
    project.create(nodes=1, spot=True)
    [managed] = project.managed()
    project.cloud.preempt(managed["name"])
    eventually(lambda: project.events.names("launched"), lambda names: names == [managed["name"]] * 2)
    again = eventually(lambda: [one for one in project.managed() if one["currentAction"] == "NONE"])[0]
    born = project.compute("GET", f"zones/us-central1-a/instances/{again['name']}")["creationTimestamp"]
    project.resize(0)
    eventually(lambda: not project.managed())

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
    times = [each[which] for each in reversed(of_it) for which in ("insertTime", "endTime")]
    assert times == sorted(times)
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
    project.resize(0, "short")
    project.resize(1, "short")  # either quota will do
    assert used() == {"NVIDIA_L4_GPUS": 4, "PREEMPTIBLE_NVIDIA_L4_GPUS": 1, "GPUS_ALL_REGIONS": 5}
    project.resize(0, "short")
    assert used() == {"NVIDIA_L4_GPUS": 2, "PREEMPTIBLE_NVIDIA_L4_GPUS": 1, "GPUS_ALL_REGIONS": 3}
    project.cloud.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 0)  # none granted: spot counts as standard
    project.resize(0, "spot")
    project.resize(1, "spot")
    assert used() == {"NVIDIA_L4_GPUS": 3, "GPUS_ALL_REGIONS": 3}
    project.faults.set_quota("GPUS_ALL_REGIONS", 3)  # a fault stands for the project's own limit until it is ended
    assert project.compute("GET", "")["quotas"] == [{"metric": "GPUS_ALL_REGIONS", "limit": 3, "usage": 3}]
    assert "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 3.0 globally." in project.resize(2, "spot").error.message
    project.faults.clear()
    project.resize(0, "l4")
    project.resize(0, "spot")
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
    assert operations.wait(operation=operation.name, **where).status == compute_v1.Operation.Status.DONE
    assert groups.get(instance_group_manager=group, **where).target_size == 1
    regions = compute_v1.RegionsClient(credentials=project.credentials, client_options=options)
    quotas = regions.get(project=project.cloud.project_id, region="us-central1").quotas
    assert next(quota.limit for quota in quotas if quota.metric == "NVIDIA_L4_GPUS") == 16
