"""What a pool's node pools should look like, and what is done about those that look otherwise."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from google.cloud.container_v1 import NodePool

from airflow_gpu_provider.clouds.google import spec as gke_spec
from airflow_gpu_provider.clouds.google.owned_platform import autoscaling_notes, preemptible_notes, queued_notes
from airflow_gpu_provider.clouds.google.spec import (
    OWNER_LABEL,
    POOL_LABEL,
    SPEC_LABEL,
    NodePoolSpec,
    labels_of,
    owner_label,
    run_seconds,
)
from airflow_gpu_provider.errors import PoolDrift
from tests.unit.clouds.google.test_gke_pool import FAST, FLEX_START, RESERVED, n1, pool

ZONE = "us-central1-a"


def spec(owner: str = "prod/nightly", make: Any = pool, **fields: Any) -> NodePoolSpec:
    made = make(**fields)
    return NodePoolSpec(pool=made, owner=owner, candidate=made.candidates([ZONE])[0])


def answered(wanted: NodePoolSpec, **changes: Any) -> dict[str, Any]:
    """The node pool as GKE shows it after it was created so: through the client library, with what GKE adds."""
    found = NodePool(wanted.node_pool())
    found.status = NodePool.Status.RUNNING
    config = found.config
    config.labels["cloud.google.com/gke-boot-disk"] = "pd-balanced"
    config.taints.append({"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"})
    if found.queued_provisioning.enabled:
        config.taints.append({"key": "cloud.google.com/gke-queued", "value": "true", "effect": "NO_SCHEDULE"})
    config.resource_labels["goog-gke-node-pool-provisioning-model"] = "on-demand"
    for name, value in changes.items():
        setattr(config, name, value)
    shown: dict[str, Any] = NodePool.to_dict(found, use_integers_for_enums=False)
    return shown


EVERY_FIELD: dict[str, Any] = {
    "make": n1,
    "accelerator": {"count": 2},
    "capacity_types": ["SPOT"],
    "gpu_sharing": {"strategy": "MPS", "max_shared_clients": 3},
    "taints": ["team=ml:NoExecute"],
    "disk": {"size": 200, "type": "pd-ssd"},
    "image_type": "UBUNTU_CONTAINERD",
    "service_account": "nodes@x.iam.gserviceaccount.com",
    "tags": ["b", "a"],
    "resource_labels": {"team": "ml"},
    "max_run_duration": timedelta(days=3),
}


QUEUED: dict[str, Any] = {**FLEX_START, "queued_provisioning": True}
WITH_RESERVATION: dict[str, Any] = {
    "reservation_affinity": RESERVED,
    "shielded_instance_config": {"enable_secure_boot": True, "enable_integrity_monitoring": False},
}


@pytest.mark.parametrize(
    "fields", [{}, EVERY_FIELD, WITH_RESERVATION, FLEX_START, QUEUED, FAST, {"min_nodes": 1}, {"driver": "latest"}]
)
def test_what_was_created_is_as_wanted(fields: dict[str, Any]) -> None:
    wanted = spec(**fields)
    found = answered(wanted)
    assert wanted.differences(found) == []
    assert wanted.missing_labels(found) == {}
    assert gke_spec.changes([wanted], {wanted.candidate.group: found}, {}) == ()


def test_the_drivers_version_is_always_said() -> None:
    versions = {"default": "DEFAULT", "latest": "LATEST", "disabled": "INSTALLATION_DISABLED"}
    for driver, version in {**versions, "daemonset": "INSTALLATION_DISABLED"}.items():
        (accelerator,) = spec(driver=driver).node_pool()["config"]["accelerators"]
        assert accelerator["gpu_driver_installation_config"] == {"gpu_driver_version": version}


def test_groups_are_created_empty_and_machines_have_an_end() -> None:
    found = answered(spec(max_runtime=timedelta(hours=2)))
    assert found["initial_node_count"] == 0
    assert run_seconds(found["config"]) == 2 * 3600 + 900
    assert run_seconds(answered(spec(min_nodes=1))["config"]) is None


def test_preemptible_is_a_word_for_spot_which_the_plan_notes() -> None:
    preemptible, spot = spec(capacity_types=["PREEMPTIBLE", "SPOT"]), spec(capacity_types=["SPOT"])
    assert preemptible.node_pool() == spot.node_pool()
    assert "max_run_duration" in preemptible.node_pool()["config"]
    assert preemptible_notes(preemptible.pool) == (
        "PREEMPTIBLE means SPOT: the machines are spot, at the same price, and have no end after 24 hours",
    )
    assert preemptible_notes(spot.pool) == ()


@pytest.mark.parametrize(
    ("fields", "field", "update"),
    [
        ({"node_labels": {"role": "x"}}, "labels", ["labels"]),
        ({"taints": ["team=ml:NoExecute"]}, "taints", ["taints"]),
        ({"max_runtime": timedelta(hours=1)}, "max_run_duration", ["max_run_duration"]),
        ({"driver": "latest"}, "accelerator", None),
        ({"disk": {"size": 200}}, "disk size", None),
        ({"reservation_affinity": RESERVED}, "reservation_affinity", None),
        ({"shielded_instance_config": {"enable_secure_boot": True}}, "shielded_instance_config", None),
        ({"image_type": "UBUNTU_CONTAINERD"}, "image_type", None),
        ({"service_account": "other@x.iam.gserviceaccount.com"}, "service_account", None),
        ({"min_nodes": 1}, "max_run_duration", None),
    ],
)
def test_finds_what_differs(fields: dict[str, Any], field: str, update: list[str] | None) -> None:
    (difference,) = spec(**fields).differences(answered(spec()))
    assert difference.field == field
    assert (list(difference.update) if difference.update else None) == update


GPU = {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}
TEAM = {"key": "team", "value": "ml", "effect": "NO_EXECUTE"}


def test_a_change_of_taints_keeps_gkes_own_and_its_loss_is_mended() -> None:
    """An update replaces all that there are, GKE's own too, and GKE does not put that back."""
    assert spec(taints=["team=ml:NoExecute"]).node_pool()["config"]["taints"] == [TEAM]
    (difference,) = spec(taints=["team=ml:NoExecute"]).differences(answered(spec()))
    assert difference.update == {"taints": {"taints": [GPU, TEAM]}}
    (difference,) = spec().differences(answered(spec(taints=["team=ml:NoExecute"])))
    assert difference.update == {"taints": {"taints": [GPU]}}
    (difference,) = spec().differences(answered(spec(), taints=[]))
    assert difference.update == {"taints": {"taints": [GPU]}}


def test_an_autoscaler_that_somebody_has_set_on_the_pool_is_switched_off() -> None:
    (difference,) = spec().differences(answered(spec()) | {"autoscaling": {"enabled": True, "max_node_count": 3}})
    assert difference.update == {"autoscaling": {"enabled": False}}


def test_flex_start_is_said_as_gke_takes_it() -> None:
    made = spec(**FLEX_START).node_pool()
    assert made["management"] == {"auto_upgrade": True}  # auto-repair is left out, and so off
    assert made["config"]["flex_start"]
    assert made["config"]["reservation_affinity"] == {"consume_reservation_type": "NO_RESERVATION"}
    assert "management" not in spec().node_pool()
    fields = {difference.field for difference in spec(**FLEX_START).differences(answered(spec(scaling="autoscaler")))}
    assert fields == {"flex_start", "reservation_affinity"}


def test_image_streaming_is_switched_while_there_are_no_nodes() -> None:
    (difference,) = spec(images={"streaming": True}).differences(answered(spec()))
    assert (difference.update, difference.replaces_nodes) == ({"gcfs_config": {"enabled": True}}, True)
    (difference,) = spec().differences(answered(spec(images={"streaming": True})))
    assert difference.update == {"gcfs_config": {"enabled": False}}


def test_where_machines_stand_and_what_disks_they_have_is_for_good() -> None:
    made = spec(**FAST).node_pool()
    assert made["placement_policy"] == {"type_": "COMPACT"}
    cache = {"disk_image": "projects/ml/global/images/train-cache", "mode": "CONTAINER_IMAGE_CACHE"}
    assert made["config"]["secondary_boot_disks"] == [cache]
    found = spec(images={"streaming": True}).differences(answered(spec(**FAST)))
    assert {each.field: each.update for each in found} == {"placement": None, "secondary_boot_disks": None}
    by_address = "https://www.googleapis.com/compute/v1/projects/ml/global/images/train-cache"
    assert (
        spec(**{**FAST, "images": {"streaming": True, "secondary_boot_disks": [by_address]}}).differences(
            answered(spec(**FAST))
        )
        == []
    )


def test_queued_provisioning_is_said_as_gke_takes_it_and_is_for_good() -> None:
    made = spec(**QUEUED).node_pool()
    assert made["queued_provisioning"] == {"enabled": True}
    assert made["config"]["taints"] == [], "GKE adds its own"
    assert "queued_provisioning" not in spec(**FLEX_START).node_pool()
    (difference,) = (
        each for each in spec(**QUEUED).differences(answered(spec(**FLEX_START))) if each.field == "queued_provisioning"
    )
    assert difference.update is None


def test_gke_is_kept_from_upgrading_nodes_in_mid_run() -> None:
    excluded = {"exclusion_until_end_of_support": {"enabled": True}}
    assert spec().node_pool()["maintenance_policy"] == excluded
    (difference,) = spec().differences(answered(spec(exclude_upgrades=False)))
    assert str(difference) == "upgrades is GKE's to make, wanted excluded until end of support"
    assert (difference.update, difference.replaces_nodes) == ({"maintenance_policy": excluded}, False)
    (difference,) = spec(exclude_upgrades=False).differences(answered(spec()))
    assert difference.update == {"maintenance_policy": {"exclusion_until_end_of_support": {"enabled": False}}}


def test_nothing_is_excluded_where_gke_knows_no_exclusion() -> None:
    without = replace(spec(), has_exclusions=False)
    assert "maintenance_policy" not in without.node_pool()
    assert without.differences(answered(without)) == without.differences(answered(spec())) == []


def test_gkes_own_autoscaler_gets_its_limits() -> None:
    wanted = spec(scaling="autoscaler", max_nodes=3)
    limits = {"enabled": True, "min_node_count": 0, "max_node_count": 3, "location_policy": "ANY"}
    assert wanted.node_pool()["autoscaling"] == limits
    assert wanted.differences(answered(wanted)) == []
    (difference,) = wanted.differences(answered(wanted) | {"autoscaling": {**limits, "max_node_count": 5}})
    assert str(difference) == "autoscaling is 0 to 5, any, wanted 0 to 3, any"
    assert difference.update == {"autoscaling": limits}
    kept = replace(wanted, min_size=1).node_pool()
    assert (kept["initial_node_count"], kept["autoscaling"]["min_node_count"]) == (1, 1)


def test_the_clusters_first_autoscaled_node_pool_is_told_of() -> None:
    scaled, other = pool(scaling="autoscaler"), {"autoscaling": {"enabled": False}}
    (note,) = autoscaling_notes(scaled, [other, {"autoscaling": None}])
    assert "the control plane may be away for some minutes" in note
    assert autoscaling_notes(scaled, [other, {"autoscaling": {"enabled": True}}]) == ()
    assert autoscaling_notes(pool(), []) == ()


def test_owners_are_readable_and_told_apart() -> None:
    assert owner_label("prod/nightly") == "prod_nightly-" + owner_label("prod/nightly")[-8:]
    assert owner_label("prod/nightly") != owner_label("prod_nightly")
    long = owner_label("Installation-1/" + "x" * 200)
    assert len(long) <= 63


def test_labels_are_completed_and_a_first_owner_stays() -> None:
    found = answered(spec("prod/nightly"))
    assert spec("prod/weekly").missing_labels(found) == {}
    changed = spec("prod/weekly", resource_labels={"team": "ml"}).missing_labels(found)
    assert changed["team"] == "ml"
    assert changed[OWNER_LABEL] == owner_label("prod/nightly")
    assert changed[SPEC_LABEL] != labels_of(found)[SPEC_LABEL]
    assert changed["goog-gke-node-pool-provisioning-model"] == "on-demand"


class TestPlan:
    def changes(self, wanted: NodePoolSpec, found: dict[str, Any] | None, size: int = 0) -> list[tuple[str, str]]:
        name = wanted.candidate.group
        plan = gke_spec.changes([wanted], {name: found} if found else {}, {name: size})
        return [(change.action, change.detail) for change in plan]

    def test_creates_what_is_not_there(self) -> None:
        detail = f"g2-standard-4 on-demand in {ZONE}, 1 x nvidia-l4, at most 4, created empty"
        assert self.changes(spec(), None) == [("create", detail)]

    def test_what_has_failed_is_made_anew_unless_it_has_machines(self) -> None:
        failed = answered(spec()) | {"status": "ERROR", "conditions": [{"message": "no subnet"}]}
        assert self.changes(spec(), failed) == [
            ("update", "GKE could not create it (no subnet): deleted and recreated")
        ]
        assert self.changes(spec(), failed, size=1) == []

    def test_what_goes_is_created_anew(self) -> None:
        assert self.changes(spec(), answered(spec()) | {"status": "STOPPING"})[0][0] == "create"

    def test_what_replaces_nodes_waits_for_their_end(self) -> None:
        longer, found = spec(max_runtime=timedelta(days=2)), answered(spec())
        assert self.changes(longer, found, size=1) == []
        (change,) = self.changes(longer, found)
        assert "max_run_duration is 87300 s, wanted 173700 s; labels of its machines" in change[1]

    def test_what_cannot_be_changed_is_drift(self) -> None:
        with pytest.raises(PoolDrift, match="gcloud container node-pools delete train-gpu-a-g2-standard-4") as raised:
            self.changes(spec(disk={"size": 50}), answered(spec()))
        assert raised.value.details["fields"] == ["disk size"]

    def test_somebody_elses_is_drift(self) -> None:
        with pytest.raises(PoolDrift, match="did not create for pool train-gpu"):
            self.changes(spec(), answered(spec(), resource_labels={}))
        other = answered(spec("prod/nightly"))
        with pytest.raises(PoolDrift, match="set up by prod_nightly-"):
            self.changes(spec("prod/weekly", node_labels={"a": "b"}), other)
        assert labels_of(other)[POOL_LABEL] == "train-gpu"


def test_the_plan_notes_that_one_zone_is_chosen_for_each_request() -> None:
    (note,) = queued_notes(spec(**QUEUED, node_locations=["us-central1-a", "us-central1-b"]).pool)
    assert "one zone for each request" in note
    assert queued_notes(spec(**QUEUED, node_locations=["us-central1-a"]).pool) == ()
    assert queued_notes(spec(**FLEX_START).pool) == ()
