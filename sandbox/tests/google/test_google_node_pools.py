"""Node pools through google-cloud-container's own client: their life, their sizes, what GKE refuses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud.container_v1 import (
    AcceleratorConfig,
    GPUDriverInstallationConfig,
    NodePool,
    NodePoolAutoscaling,
    NodePoolUpdateStrategy,
    NodeTaint,
    NodeTaints,
    Operation,
    StatusCondition,
)

from gpu_sandbox.faults import Stockout
from sandbox.tests.google.conftest import GIVE_UP, GROW, REAL, SHRINK, Project, a_project, node_pool

RESERVED = {"consume_reservation_type": "SPECIFIC_RESERVATION", "key": "name", "values": ["mine"]}
LATEST = {
    "accelerator_type": "nvidia-l4",
    "accelerator_count": 1,
    "gpu_driver_installation_config": {"gpu_driver_version": "LATEST"},
}
ZONES = ("us-central1-a", "us-central1-b", "us-central1-c")


def test_a_pool_is_provisioned_before_it_runs(project: Project) -> None:
    created = project.begin_to_create()
    assert created.operation_type == Operation.Type.CREATE_NODE_POOL
    assert created.status == Operation.Status.PENDING
    assert project.pool().status == NodePool.Status.PROVISIONING
    project.advance(REAL.operation_pending)
    operations = project.gke.list_operations(parent=project.parent.partition("/clusters/")[0]).operations
    assert [operation.status for operation in operations] == [Operation.Status.RUNNING]
    assert not project.done(created, REAL.node_pool_create - REAL.operation_pending).error.code
    assert project.pool().status == NodePool.Status.RUNNING
    assert project.events.seen == []


def test_a_pool_from_nothing_to_one_node_and_gone(project: Project) -> None:
    project.create()

    assert not project.resize(1).error.code
    assert len(project.events.names("launched")) == 1

    project.delete()
    assert project.gke.list_node_pools(parent=project.parent).node_pools == []
    assert project.events.names("terminated") == project.events.names("launched")


def test_sizes_count_for_each_zone_and_smaller_ones_drain(project: Project) -> None:
    project.create(nodes=1, zones=ZONES)
    assert sorted(instance.zone for _, instance in project.events.seen) == list(ZONES)
    project.resize(0, takes=SHRINK)
    assert sorted(project.events.names("drain")) == sorted(project.events.names("launched"))
    assert sorted(project.events.names("terminated")) == sorted(project.events.names("launched"))
    assert project.managed() == []


def test_a_stockout_is_an_error_of_an_operation_that_is_done(project: Project) -> None:
    stockout = Stockout(zone="us-central1-a", instance_type="nvidia-l4", market="spot")
    project.faults.add(stockout)
    project.create(spot=True)
    operation = project.resize(1, takes=GIVE_UP)
    assert operation.error.code == 8
    assert "[GCE_STOCKOUT]" in operation.error.message
    assert operation.nodepool_conditions[0].code == StatusCondition.Code.GCE_STOCKOUT
    pool = project.pool()
    assert pool.status == NodePool.Status.RUNNING_WITH_ERROR
    assert pool.conditions[0].code == StatusCondition.Code.GCE_STOCKOUT

    [managed] = project.managed()
    assert managed["currentAction"] == "CREATING"
    assert "instanceStatus" not in managed
    assert managed["lastAttempt"]["errors"]["errors"][0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    newest = project.compute("GET", f"{project.group()}/listErrors")["items"][0]
    assert newest["error"]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"

    project.faults.remove(stockout)  # the group has been trying all the time, and just now for the last
    project.advance(REAL.launch_retry + REAL.instance_create - 1)
    assert project.pool().status == NodePool.Status.RUNNING_WITH_ERROR
    project.advance(1)
    assert project.events.names("launched") == [managed["name"]]
    assert project.pool().status == NodePool.Status.RUNNING


def test_a_pool_created_in_a_stockout_is_there_in_error(project: Project) -> None:
    project.faults.add(Stockout(zone="us-central1-a"))
    assert "[GCE_STOCKOUT]" in project.create(nodes=1, takes=GIVE_UP).error.message
    assert project.pool().status == NodePool.Status.ERROR
    project.delete()
    assert project.events.seen == []


def test_a_pool_that_lacks_machines_can_be_made_smaller(project: Project) -> None:
    project.faults.add(Stockout(zone="us-central1-a"))
    project.create(nodes=1, takes=GIVE_UP)
    assert not project.resize(0, takes=REAL.node_pool_resize).error.code
    assert (project.managed(), project.pool().status) == ([], NodePool.Status.RUNNING)


def test_a_quota_that_is_too_small(project: Project) -> None:
    project.cloud.set_quota("NVIDIA_L4_GPUS", 1)
    project.create(machine_type="g2-standard-24")
    operation = project.resize(1, takes=GIVE_UP)
    assert "[GCE_QUOTA_EXCEEDED]" in operation.error.message
    assert "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 1.0 in region us-central1." in operation.error.message


def test_only_one_operation_at_a_time_for_a_pool_and_none_beside_the_clusters_own(project: Project) -> None:
    project.create("other")
    created = project.begin_to_create()
    with pytest.raises(exceptions.BadRequest, match="incompatible operation") as refused:
        project.gke.set_node_pool_size(request={"name": project.pool_name(), "node_count": 1})
    assert created.name in str(refused.value)
    project.resize(0, "other")  # another pool's may run beside it
    project.done(created, REAL.node_pool_create - GROW)

    upgrade = project.cloud.begin_cluster_operation(600)
    project.advance(599)
    with pytest.raises(exceptions.BadRequest, match="is currently being created, deleted, updated or repaired"):
        project.gke.delete_node_pool(name=project.pool_name())
    operations = project.gke.list_operations(parent=project.parent.partition("/clusters/")[0]).operations
    assert upgrade in [operation.name for operation in operations]
    project.advance(1)
    project.delete()


def test_a_zonal_clusters_pools_are_in_its_zone() -> None:
    with a_project(location="us-central1-b") as project:
        project.create(nodes=1, zones=())
        assert project.pool().locations == ["us-central1-b"]
        assert [instance.zone for _, instance in project.events.seen] == ["us-central1-b"]


def test_the_same_name_twice_and_an_unknown_one(project: Project) -> None:
    project.create()
    with pytest.raises(exceptions.Conflict, match="Already exists"):
        project.begin_to_create()
    with pytest.raises(exceptions.NotFound):
        project.pool("nothing")
    with pytest.raises(exceptions.NotFound):
        project.gke.get_cluster(name=project.parent + "-other")
    with pytest.raises(exceptions.NotFound):
        project.gke.get_operation(name=project.parent.partition("/clusters/")[0] + "/operations/operation-0")


CACHE = {"disk_image": "projects/ml/global/images/train-cache", "mode": "CONTAINER_IMAGE_CACHE"}
T4 = AcceleratorConfig(accelerator_type="nvidia-tesla-t4", accelerator_count=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"machine_type": "g9-standard-4"}, "Machine type with name 'g9-standard-4' does not exist in zone"),
        ({"machine_type": "n1-standard-4", "zones": ("us-east1-b",)}, "us-east1-b"),
        ({"disk_type": "pd-standard"}, "pd-standard is not supported for machine type g2-standard-4"),
        ({"machine_type": "g4-standard-48", "disk_type": "pd-balanced"}, "pd-balanced is not supported"),
        ({"accelerators": [T4]}, "not compatible"),
        ({"machine_type": "e2-standard-4", "accelerators": [T4]}, "cannot be attached"),
        (
            {
                "machine_type": "n1-standard-4",
                "accelerators": [AcceleratorConfig(accelerator_type="nvidia-x1", accelerator_count=1)],
            },
            'Accelerator type "nvidia-x1" does not exist',
        ),
        (
            {
                "machine_type": "n1-standard-4",
                "zones": ("us-central1-b",),
                "accelerators": [AcceleratorConfig(accelerator_type="nvidia-tesla-k80", accelerator_count=1)],
            },
            "does not exist in zone us-central1-b",
        ),
        ({"nodes": 1001}, "between 0 and 1000"),
        ({"name": "No_Name"}, "node_pool.name"),
        ({"labels": {"kubernetes.io/x": "y"}}, "reserved"),
        ({"labels": {"role": "a b"}}, "Invalid node label"),
        ({"taints": [NodeTaint(key="gpu")]}, "no effect"),
        ({"accelerators": [LATEST], "image_type": "UBUNTU_CONTAINERD"}, "only supported for Container-Optimized OS"),
        ({"spot": True, "preemptible": True}, "both spot and preemptible"),
        ({"preemptible": True, "max_run_duration": timedelta(hours=2)}, "cannot be used with preemptible"),
        ({"reservation_affinity": {"consume_reservation_type": "SPECIFIC_RESERVATION"}}, "needs both"),
        ({"reservation_affinity": {**RESERVED, "consume_reservation_type": "ANY_RESERVATION"}}, "for SPECIFIC_RES"),
        ({"reservation_affinity": RESERVED, "spot": True}, "cannot consume a specific reservation"),
        ({"flex_start": True}, "Auto_repair must be false"),
        ({"gcfs_config": {"enabled": True}, "image_type": "UBUNTU_CONTAINERD"}, "Container-Optimized OS"),
        ({"secondary_boot_disks": [CACHE]}, "require image streaming"),
        ({"gcfs_config": {"enabled": True}, "secondary_boot_disks": [{**CACHE, "mode": 0}]}, "Invalid secondary boot"),
        ({"max_run_duration": timedelta(days=121)}, "max_run_duration"),
    ],
)
def test_settings_that_gke_refuses(project: Project, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(exceptions.BadRequest, match=message):
        project.begin_to_create(**settings)
    assert project.gke.list_node_pools(parent=project.parent).node_pools == []


FROM_ZERO = {"enabled": True, "max_node_count": 2, "location_policy": "ANY"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"autoscaling": {}}, "requires autoscaling"),
        ({"autoscaling": {**FROM_ZERO, "min_node_count": 1}}, "minimum and an initial node count of zero"),
        ({"autoscaling": {**FROM_ZERO, "location_policy": "BALANCED"}}, "requires location policy ANY"),
        ({"config": {"machine_type": "g2-standard-4"}}, "requires reservation_affinity NO_RESERVATION"),
        ({"placement_policy": {"type_": "COMPACT"}}, "cannot be combined with compact placement"),
    ],
)
def test_queued_provisioning_that_gke_refuses(project: Project, changes: dict[str, Any], message: str) -> None:
    affinity = {"consume_reservation_type": "NO_RESERVATION"}
    settings = {
        "name": "gpu",
        "queued_provisioning": {"enabled": True},
        "autoscaling": FROM_ZERO,
        "config": {"machine_type": "g2-standard-4", "reservation_affinity": affinity},
    }
    with pytest.raises(exceptions.BadRequest, match=message):
        project.gke.create_node_pool(request={"parent": project.parent, "node_pool": {**settings, **changes}})
    project.gke.create_node_pool(request={"parent": project.parent, "node_pool": settings})
    assert [taint.key for taint in project.pool().config.taints] == ["cloud.google.com/gke-queued"]


@pytest.mark.against_schema
def test_an_unknown_field_is_refused(project: Project) -> None:
    url = f"{project.cloud.endpoint_url}/v1/{project.parent}/nodePools"
    reply = project.session.post(url, json={"nodePool": {"name": "gpu", "gpus": 3}})
    assert reply.status_code == 400
    assert "Invalid JSON payload" in reply.json()["error"]["message"]


def test_what_was_set_is_shown_and_an_update_changes_just_that(project: Project) -> None:
    installation = GPUDriverInstallationConfig(
        gpu_driver_version=GPUDriverInstallationConfig.GPUDriverVersion.INSTALLATION_DISABLED
    )
    accelerator = AcceleratorConfig(
        accelerator_type="nvidia-tesla-t4", accelerator_count=1, gpu_driver_installation_config=installation
    )
    project.create("cpus", machine_type="e2-standard-2")
    project.create(
        machine_type="n1-standard-4",
        accelerators=[accelerator],
        spot=True,
        labels={"role": "train"},
        max_run_duration=timedelta(hours=6),
    )
    before = project.pool()
    assert before.config.accelerators == [accelerator]
    assert [taint.key for taint in before.config.taints] == ["nvidia.com/gpu"]
    assert before.config.max_run_duration == timedelta(hours=6)
    taint = NodeTaint(key="team", value="ml", effect=NodeTaint.Effect.NO_SCHEDULE)
    project.update(taints=NodeTaints(taints=[taint]))
    after = project.pool()
    assert after.config.taints == [taint]
    assert after.etag != before.etag
    before.config.taints, before.etag = after.config.taints, after.etag
    assert after == before

    project.resize(1)
    _, instance = project.events.seen[0]
    assert instance.driver == "disabled"
    assert {taint.key for taint in instance.taints} == {"team"}  # GKE's own was replaced with the others
    with pytest.raises(exceptions.BadRequest, match="Etag"):
        project.update(taints=NodeTaints(taints=[taint]), etag="old")


def test_gpus_are_not_tainted_in_a_cluster_without_other_node_pools(project: Project) -> None:
    project.create()
    assert list(project.pool().config.taints) == []


def test_autoscaling_settings_are_kept_and_bound_sizes(project: Project) -> None:
    project.create()
    autoscaling = NodePoolAutoscaling(enabled=True, min_node_count=0, max_node_count=2)
    request = {"name": project.pool_name(), "autoscaling": autoscaling}
    project.done(project.gke.set_node_pool_autoscaling(request=request), REAL.node_pool_update)
    assert project.pool().autoscaling == autoscaling
    with pytest.raises(exceptions.BadRequest, match="autoscaling maximum"):
        project.resize(3)
    pool = node_pool("two")
    pool.autoscaling = NodePoolAutoscaling(enabled=True, min_node_count=3, max_node_count=2)
    with pytest.raises(exceptions.BadRequest, match="greater than the maximum"):
        project.gke.create_node_pool(parent=project.parent, node_pool=pool)


RUN = timedelta(hours=6)
"""A machine's max_run_duration: by GKE's own count, from when it runs."""


def test_a_machine_ends_with_its_maximum_run_duration_and_is_not_made_anew(project: Project) -> None:
    project.create(nodes=1, max_run_duration=RUN)
    since_it_runs = REAL.node_pool_create - GROW
    project.advance(RUN.total_seconds() - since_it_runs - 1)
    assert [one["currentAction"] for one in project.managed()] == ["NONE"]
    project.advance(1)
    assert [one["currentAction"] for one in project.managed()] == ["DELETING"]
    project.advance(REAL.instance_delete)
    assert project.events.names("terminated") == project.events.names("launched")
    assert project.compute("GET", project.group())["targetSize"] == 0
    assert project.managed() == []
    project.advance(hours=1)
    assert len(project.events.names("launched")) == 1


def test_a_run_duration_of_hours_is_over_sooner_where_deadlines_come_sooner(project: Project) -> None:
    project.create(nodes=1, max_run_duration=RUN)
    since_it_runs = REAL.node_pool_create - GROW
    project.faults.deadline_speed = 1200
    project.advance((RUN.total_seconds() - since_it_runs) / 1200 - 0.001)
    assert project.compute("GET", project.group())["targetSize"] == 1
    project.advance(0.001)
    assert project.compute("GET", project.group())["targetSize"] == 0
    project.advance(REAL.instance_delete)
    assert project.events.names("terminated") == project.events.names("launched")


def test_a_preemptible_machine_ends_after_a_day_and_is_made_anew(project: Project) -> None:
    project.create(nodes=1, preemptible=True)
    since_it_runs = REAL.node_pool_create - GROW
    project.advance(24 * 3600 - since_it_runs + REAL.preemption_notice - 1)
    assert project.events.names("terminated") == []
    project.advance(1)
    assert project.events.names("terminated") == project.events.names("launched")
    project.advance(REAL.instance_delete + REAL.instance_create)
    assert len(project.events.names("launched")) == 2


def test_a_preempted_machine_has_its_notice_and_is_made_anew(project: Project) -> None:
    project.create(nodes=1, spot=True)
    [name] = project.events.names("launched")
    project.cloud.preempt(name)
    project.advance()
    assert project.events.notices == {name: project.clock.utc_now() + timedelta(seconds=REAL.preemption_notice)}
    project.advance(REAL.preemption_notice - 1)
    assert project.events.names("terminated") == []
    project.advance(1)
    assert project.events.names("terminated") == [name]
    project.advance(REAL.instance_delete + REAL.instance_create - 1)
    assert project.events.names("launched") == [name]
    project.advance(1)
    (_, first), _, (_, second) = project.events.seen
    assert project.events.names("launched") == [name, name]
    assert first.instance_id != second.instance_id
    assert project.compute("GET", project.group())["targetSize"] == 1
    with pytest.raises(ValueError, match="no instance"):
        project.cloud.preempt("stranger")


@pytest.mark.parametrize(("market", "is_the_same"), [({}, True), ({"spot": True}, False)])
def test_maintenance_of_the_host_ends_a_machine_with_gpus(
    project: Project, market: dict[str, bool], is_the_same: bool
) -> None:
    project.create(nodes=1, **market)
    [name] = project.events.names("launched")
    project.cloud.end_by_host(name)
    project.advance()
    assert project.events.names("terminated") == [name]
    told = project.compute("GET", "zones/us-central1-a/operations")["items"]
    events = {each["operationType"] for each in told if each["targetLink"].endswith(f"/instances/{name}")}
    assert {"insert", "compute.instances.terminateOnHostMaintenance"} <= events
    assert ("compute.instances.automaticRestart" in events) is is_the_same
    project.advance(REAL.instance_delete + REAL.instance_create)
    (_, first), _, (_, second) = project.events.seen
    assert project.events.names("launched") == [name, name]
    assert (first.instance_id == second.instance_id) is is_the_same


def test_a_surge_upgrade_brings_a_node_drains_the_old_one_and_ends_it(project: Project) -> None:
    project.events.drains_at_once = False
    project.create(nodes=1)
    [old] = project.events.names("launched")
    assert project.pool().management.auto_upgrade
    assert project.cloud.upgrade_nodes("gpu")
    assert project.pool().status == NodePool.Status.RECONCILING
    project.advance(GROW - 1)
    assert (len(project.managed()), project.events.names("drain")) == (2, [])
    project.advance(1)
    assert (len(project.managed()), project.events.names("drain")) == (2, [old])
    project.advance(REAL.drain_timeout - 1)
    assert len(project.managed()) == 2
    instance = next(instance for kind, instance in project.events.seen if kind == "drain")
    project.events.complete_drain(instance.instance_id)
    project.advance(REAL.instance_delete - 1)
    assert project.pool().status == NodePool.Status.RECONCILING
    project.advance(1)
    assert project.pool().status == NodePool.Status.RUNNING
    assert [one["instance"].rpartition("/")[2] for one in project.managed()] == project.events.names("launched")[1:]
    assert project.events.names("terminated") == [old]


def test_a_drain_that_does_not_end_is_over_in_an_hour(project: Project) -> None:
    project.events.drains_at_once = False
    project.create(nodes=1)
    assert project.cloud.upgrade_nodes("gpu")
    project.advance(GROW + REAL.drain_timeout - 1)
    assert [one["currentAction"] for one in project.managed()] == ["NONE", "NONE"]
    project.advance(1)
    assert [one["currentAction"] for one in project.managed()] == ["DELETING", "NONE"]
    project.advance(REAL.instance_delete)
    assert project.pool().status == NodePool.Status.RUNNING


def test_a_blue_green_upgrade_lists_both_sides_and_says_which_is_which(project: Project) -> None:
    project.events.drains_at_once = False
    pool = node_pool(nodes=1)
    pool.upgrade_settings.strategy = NodePoolUpdateStrategy.BLUE_GREEN
    project.done(project.gke.create_node_pool(parent=project.parent, node_pool=pool), REAL.node_pool_create)
    blue = list(project.pool().instance_group_urls)
    assert project.cloud.upgrade_nodes("gpu")
    project.advance(GROW - 1)
    phases = NodePool.UpdateInfo.BlueGreenInfo.Phase
    assert project.pool().update_info.blue_green_info.phase == phases.CREATING_GREEN_POOL
    project.advance(1)
    assert len(project.events.names("drain")) == 1
    shown = project.pool()
    told = shown.update_info.blue_green_info
    assert told.phase == phases.DRAINING_BLUE_POOL
    assert list(told.blue_instance_group_urls) == blue
    assert [*told.blue_instance_group_urls, *told.green_instance_group_urls] == list(shown.instance_group_urls)
    instance = next(instance for kind, instance in project.events.seen if kind == "drain")
    project.events.complete_drain(instance.instance_id)
    project.advance(REAL.instance_delete)
    assert project.pool().status == NodePool.Status.RUNNING
    assert list(project.pool().instance_group_urls) == list(told.green_instance_group_urls)
    assert not project.pool().update_info.blue_green_info.phase


def test_a_release_channel_keeps_upgrades_on_and_an_exclusion_off_a_node_pool(project: Project) -> None:
    pool = node_pool()
    pool.management.auto_repair = True
    with pytest.raises(
        exceptions.BadRequest, match="Auto_upgrade and auto_repair cannot be false when release_channel REGULAR"
    ):
        project.gke.create_node_pool(parent=project.parent, node_pool=pool)
    project.create()
    with pytest.raises(exceptions.BadRequest, match="Auto_upgrade and auto_repair"):
        project.gke.set_node_pool_management(request={"name": project.pool_name(), "management": {"auto_repair": True}})
    project.update(maintenance_policy={"exclusion_until_end_of_support": {"enabled": True}})
    assert not project.cloud.upgrade_nodes("gpu")
