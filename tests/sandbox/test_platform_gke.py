"""GkePlatform against the sandbox's Google Cloud: every question it answers, and what it does when things go wrong."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk._shared.secrets_masker import reset_secrets_masker
from google.cloud.container_v1 import NodePoolUpdateStrategy

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.clouds.backoff import passed_over
from airflow_gpu_provider.clouds.base import Group, Machine, Plan
from airflow_gpu_provider.clouds.google.external_platform import ExternalGkePlatform
from airflow_gpu_provider.clouds.google.owned_platform import OwnedGkePlatform
from airflow_gpu_provider.clouds.google.spec import OWNER_LABEL, POOL_LABEL, SPEC_LABEL
from airflow_gpu_provider.cluster.api.access import Credentials
from airflow_gpu_provider.errors import (
    CloudError,
    ClusterNotFound,
    ConnectionNotFound,
    CredentialsError,
    GroupNotFound,
    PermissionDenied,
    PoolDrift,
    PoolSpecError,
    QuotaExceeded,
)
from gpu_sandbox import ManualClock
from gpu_sandbox.faults import Faults, Stockout
from gpu_sandbox.google.cloud import GoogleCloud
from gpu_sandbox.google.interface import Identity, Instance
from gpu_sandbox.google.upgrades import Phase
from gpu_sandbox.pace import Pace
from tests.sandbox import role_record

ROLE = Path(__file__).parents[2] / "docs" / "iam" / "gke-full.json"
CLUSTER = "k8s-ml"
A, B, C = "us-central1-a", "us-central1-b", "us-central1-c"
GROUP_A, GROUP_B = "train-a-g2-standard-4", "train-b-g2-standard-4"
OWNER = "prod/nightly_training"
REAL = Pace(name="real", speed=1.0, stale=0.0).google()
LAUNCH = REAL.group_reaction + REAL.instance_create
"""From a change of a group's size to machines that run."""


class NoEvents:
    """No node joins, and none leaves."""

    def instance_launched(self, instance: Instance) -> None: ...
    def drain_requested(self, instance: Instance) -> None: ...
    def instance_relabelled(self, before: Instance, after: Instance) -> None: ...
    def rebalance_recommended(self, instance: Instance) -> None: ...
    def spot_notice(self, instance: Instance, *, at: datetime) -> None: ...
    def instance_terminated(self, instance: Instance) -> None: ...


@pytest.fixture(autouse=True)
def only_this_tests_keys_are_masked() -> None:
    """Airflow masks all keys that a process has read by one pattern, and compiles that anew at each."""
    reset_secrets_masker()


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The cloud's time, by which the platform and Google's clients live too: it passes while they sleep."""
    clock = ManualClock()

    class Now(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return clock.utc_now()

    platform, retry = "airflow_gpu_provider.clouds.google", "google.api_core.retry"
    time = SimpleNamespace(sleep=clock.advance, monotonic=clock.now)
    for module in (
        f"{platform}.node_pools",
        f"{platform}.instance_groups",
        f"{retry}.retry_base",
        f"{retry}.retry_unary",
    ):
        monkeypatch.setattr(f"{module}.time", time)
    for module in ("cluster", "owned_platform", "external_platform"):
        monkeypatch.setattr(f"{platform}.{module}.datetime", Now)
    return clock


@pytest.fixture
def cloud(faults: Faults, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleCloud]:
    cloud = GoogleCloud(clock=clock, faults=faults, timings=REAL, events=NoEvents())
    cloud.create_cluster(CLUSTER, endpoint="127.0.0.1:6443", certificate_authority="Q0E=")
    cloud.add_node_pool("system", machine_type="e2-standard-4")
    cloud.start()
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(cloud.connection()))
    yield cloud
    cloud.stop()


def spec(**changes: Any) -> GkeGpuPool:
    fields: dict[str, Any] = {
        "name": "train",
        "project_id": "sandbox-project",
        "location": "us-central1",
        "cluster_name": CLUSTER,
        "machine_types": ["g2-standard-4"],
        "node_locations": [A],
        "max_nodes": 3,
        "max_runtime": timedelta(hours=1),
    }
    return GkeGpuPool(**(fields | changes))


def ready(owner: str = OWNER, **changes: Any) -> OwnedGkePlatform:
    """A platform whose node pools are there, at size 0."""
    platform = OwnedGkePlatform(spec(**changes), owner)
    applied(platform)
    return platform


def applied(platform: OwnedGkePlatform, over_quota: Collection[str] = ()) -> Plan:
    plan = platform.plan(1)
    platform.apply(plan, print, over_quota)
    return plan


def grown(clock: ManualClock, size: int, **changes: Any) -> OwnedGkePlatform:
    platform = ready(**changes)
    platform.grow({GROUP_A: size})
    clock.advance(LAUNCH)
    running(platform, size)
    return platform


def running(platform: OwnedGkePlatform, size: int) -> Group:
    """The first group, which has so many running machines and no other."""
    group = first(platform)
    assert [machine.state for machine in group.machines] == ["running"] * size
    return group


def until(clock: ManualClock, moment: datetime) -> None:
    clock.advance((moment - clock.utc_now()).total_seconds())


def after(moment: datetime, seconds: float) -> datetime:
    return moment + timedelta(seconds=seconds)


def first(platform: OwnedGkePlatform) -> Group:
    return platform.observe()[0]


def said_by(platform: OwnedGkePlatform, plan: Plan) -> list[str]:
    lines: list[str] = []
    platform.apply(plan, lines.append)
    return lines


class TestPlanAndApply:
    def test_creates_one_empty_node_pool_for_each_zone(self, cloud: GoogleCloud) -> None:
        platform = OwnedGkePlatform(
            spec(node_locations=[B, A], node_labels={"tier": "gpu"}, resource_labels={"team": "ml"}, tags=["gpu"]),
            OWNER,
        )

        plan = applied(platform)

        assert [(change.action, change.group) for change in plan.changes] == [("create", GROUP_B), ("create", GROUP_A)]
        assert plan.grow == (f"{GROUP_B} 0->1 (g2-standard-4 on-demand in {B} first)",)
        assert [(g.name, g.status, g.desired, g.max_size) for g in platform.observe()] == [
            (GROUP_B, "active", 0, 3),
            (GROUP_A, "active", 0, 3),
        ]
        created = cloud.node_pools.get(GROUP_A).settings
        config = created.config
        assert list(created.locations) == [A]
        assert (config.machine_type, config.disk_size_gb, config.spot) == ("g2-standard-4", 100, False)
        assert dict(config.labels) == {"tier": "gpu", "airflow-gpu-provider/pool": "train"}
        assert config.max_run_duration == timedelta(hours=1, minutes=15)
        accelerator = config.accelerators[0]
        assert (accelerator.accelerator_type, accelerator.accelerator_count) == ("nvidia-l4", 1)
        assert accelerator.gpu_driver_installation_config.gpu_driver_version.name == "DEFAULT"
        labels = dict(config.resource_labels)
        assert {"team": "ml", POOL_LABEL: "train"}.items() <= labels.items()
        assert labels[OWNER_LABEL].startswith("prod_nightly_training-")
        assert list(config.tags) == ["gpu"]

    def test_a_second_plan_changes_nothing(self, cloud: GoogleCloud, clock: ManualClock) -> None:
        grown(clock, 1, node_locations=[A, B])
        plan = OwnedGkePlatform(spec(node_locations=[A, B]), OWNER).plan(1)
        assert plan.is_empty, plan.lines()

    def test_sends_what_n1_takes(self, cloud: GoogleCloud) -> None:
        platform = ready(
            machine_types=["n1-standard-4"],
            accelerator={"type": "nvidia-tesla-t4", "count": 2},
            capacity_types=["SPOT", "PREEMPTIBLE"],
            driver="daemonset",
            gpu_sharing={"strategy": "time-sharing", "max_shared_clients": 4},
            taints=["team=ml:NoExecute"],
        )
        (group,) = platform.observe()
        spot = cloud.node_pools.get(group.name).settings.config
        assert (group.name, spot.spot, spot.preemptible) == ("train-a-n1-standard-4-spot", True, False)
        accelerator = spot.accelerators[0]
        assert (accelerator.accelerator_type, accelerator.accelerator_count) == ("nvidia-tesla-t4", 2)
        assert accelerator.gpu_driver_installation_config.gpu_driver_version.name == "INSTALLATION_DISABLED"
        assert accelerator.gpu_sharing_config.gpu_sharing_strategy.name == "TIME_SHARING"
        assert [(t.key, t.value, t.effect.name) for t in spot.taints] == [
            ("team", "ml", "NO_EXECUTE"),
            ("nvidia.com/gpu", "present", "NO_SCHEDULE"),
        ]

    def test_repairs_what_can_be_changed_in_place(self, cloud: GoogleCloud) -> None:
        ready()
        changed = OwnedGkePlatform(
            spec(node_labels={"tier": "gpu"}, taints=["team=ml:NoSchedule"], max_runtime=timedelta(hours=2)), OWNER
        )
        plan = applied(changed)
        assert [change.action for change in plan.changes] == ["update"]
        config = cloud.node_pools.get(GROUP_A).settings.config
        assert config.labels["tier"] == "gpu"
        assert [taint.key for taint in config.taints] == ["nvidia.com/gpu", "team"]
        assert config.max_run_duration == timedelta(hours=2, minutes=15)
        assert (
            config.resource_labels[SPEC_LABEL]
            == spec(
                node_labels={"tier": "gpu"}, taints=["team=ml:NoSchedule"], max_runtime=timedelta(hours=2)
            ).spec_hash
        )
        assert changed.plan(0).is_empty

    def test_taints_gpu_nodes_where_gke_does_not(self, cloud: GoogleCloud) -> None:
        """In a cluster whose node pools all have GPUs."""
        cloud.node_pools.pools.clear()
        ready()
        (taint,) = cloud.node_pools.get(GROUP_A).settings.config.taints
        assert (taint.key, taint.value, taint.effect.name) == ("nvidia.com/gpu", "present", "NO_SCHEDULE")

    def test_switches_off_an_autoscaler_that_somebody_has_set(self, cloud: GoogleCloud) -> None:
        platform = ready()
        cloud.node_pools.get(GROUP_A).settings.autoscaling = {"enabled": True, "max_node_count": 3}
        applied(platform)
        assert not cloud.node_pools.get(GROUP_A).settings.autoscaling.enabled
        assert platform.plan(0).is_empty

    def test_gkes_own_autoscaler_is_switched_on_and_off_as_the_spec_says(self, cloud: GoogleCloud) -> None:
        lifetime = timedelta(hours=2)  # with min_nodes it would be without an end, and so another one
        ready(max_run_duration=lifetime)
        told = OwnedGkePlatform(spec(scaling="autoscaler", min_nodes=1, max_run_duration=lifetime), OWNER)
        plan = applied(told)
        assert "autoscaling is off, wanted 1 to" in plan.changes[0].detail
        autoscaling = cloud.node_pools.get(GROUP_A).settings.autoscaling
        assert (autoscaling.enabled, autoscaling.min_node_count, autoscaling.location_policy.name) == (True, 1, "ANY")
        assert told.plan(1).is_empty
        assert told.observe()[0].keeps == 1

        applied(OwnedGkePlatform(spec(max_run_duration=lifetime), OWNER))
        assert not cloud.node_pools.get(GROUP_A).settings.autoscaling.enabled

    def test_an_operation_that_is_done_with_an_error_raises_it(self, cloud: GoogleCloud) -> None:
        platform = OwnedGkePlatform(spec(), OWNER)

        def cancel(line: str) -> None:
            if line.startswith("create"):
                for operation in cloud._operations.running():
                    cloud._operations.cancel(operation.name, cloud._now())

        plan = platform.plan(1)
        message = f"could not create {GROUP_A}.*The operation was cancelled"
        with pytest.raises(CloudError, match=message):
            platform.apply(plan, cancel)

    def test_what_would_replace_nodes_waits_until_there_is_none(self, cloud: GoogleCloud, clock: ManualClock) -> None:
        platform = grown(clock, 1)
        longer = OwnedGkePlatform(spec(max_runtime=timedelta(hours=2)), OWNER)
        assert longer.plan(1).is_empty
        platform.release(first(platform).machines)
        assert [machine.state for machine in first(platform).machines] == ["terminating"]
        assert longer.plan(1).changes == ()
        clock.advance(REAL.instance_delete)
        assert not first(platform).machines
        assert [change.action for change in applied(longer).changes] == ["update"]
        assert longer.plan(0).is_empty

    def test_refuses_to_change_what_gke_cannot(self, cloud: GoogleCloud) -> None:
        ready()
        with pytest.raises(PoolDrift, match=r"driver DEFAULT, wanted 1 x nvidia-l4, driver LATEST"):
            OwnedGkePlatform(spec(driver="latest"), OWNER).plan(1)

    def test_two_writers_with_different_specs_are_told_of_each_other(self, cloud: GoogleCloud) -> None:
        ready("prod/nightly")
        with pytest.raises(PoolDrift, match=r"set up by prod_nightly-.* differs from that of prod/weekly"):
            OwnedGkePlatform(spec(node_labels={"a": "b"}), "prod/weekly").plan(1)
        assert OwnedGkePlatform(spec(), "prod/weekly").plan(0).is_empty

    def test_somebody_elses_node_pool_is_left_alone(self, cloud: GoogleCloud) -> None:
        cloud.add_node_pool(GROUP_A, machine_type="e2-standard-4")
        with pytest.raises(PoolDrift, match="did not create for pool train"):
            OwnedGkePlatform(spec(), OWNER).plan(1)
        assert OwnedGkePlatform(spec(), OWNER).observe() == ()

    def test_waits_for_an_operation_that_is_in_the_way(self, cloud: GoogleCloud, clock: ManualClock) -> None:
        platform = OwnedGkePlatform(spec(), OWNER)
        plan = platform.plan(1)
        began, lines = clock.now(), list[str]()
        upgrade = cloud.begin_cluster_operation(600)

        platform.apply(plan, lines.append)

        [waits, creates] = lines
        assert "waits: Cluster is currently being created, deleted, updated" in waits
        assert f"({upgrade}, UPGRADE_MASTER since " in waits
        assert creates.startswith("create")
        assert first(platform).status == "active"
        # It looks every five seconds at most.
        assert 600 + REAL.node_pool_create <= clock.now() - began <= 600 + REAL.node_pool_create + 2 * 5

    def test_leaves_out_zones_without_the_hardware(self, cloud: GoogleCloud) -> None:
        cloud.set_offered("nvidia-l4", B, offered=False)
        plan = OwnedGkePlatform(spec(node_locations=[A, B]), OWNER).plan(1)
        assert [change.group for change in plan.changes] == [GROUP_A]
        assert plan.notes == (
            f"g2-standard-4 with nvidia-l4 is left out in {B}: Compute Engine does not offer it there",
        )
        with pytest.raises(PoolSpecError, match="in none of us-central1-b"):
            OwnedGkePlatform(spec(node_locations=[B]), OWNER).plan(1)

    def test_zones_are_the_clusters_where_none_is_named(self, cloud: GoogleCloud) -> None:
        plan = OwnedGkePlatform(spec(node_locations=()), OWNER).plan(1)
        assert [change.group[:7] for change in plan.changes] == ["train-a", "train-b", "train-c"]

    def test_delete_takes_only_what_is_ours(self, cloud: GoogleCloud) -> None:
        platform = ready(node_locations=[A, B])
        platform.delete(print)
        assert platform.observe() == ()
        assert list(cloud.node_pools.pools) == ["system"]


class TestCapacity:
    RESERVED: dict[str, Any] = {
        "reservation_affinity": {
            "consume_reservation_type": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": ["mine"],
        }
    }
    LARGE: dict[str, Any] = {"machine_types": ["a3-megagpu-8g"]}

    def test_a_reservation_whose_machines_are_all_in_use_is_a_stock_out(
        self, cloud: GoogleCloud, clock: ManualClock, faults: Faults
    ) -> None:
        faults.add(Stockout(left=1))
        platform = ready(**self.LARGE, **self.RESERVED)
        platform.grow({first(platform).name: 2})
        clock.advance(LAUNCH)
        group = first(platform)
        assert group.launch_failure
        assert (len(group.live), group.launch_failure.kind) == (1, "out_of_stock")
        assert "Specified reservation 'mine' does not have available resources" in group.launch_failure.message

    def test_large_types_come_from_a_reservation_and_not_on_demand(
        self, cloud: GoogleCloud, clock: ManualClock
    ) -> None:
        platform = OwnedGkePlatform(spec(**self.LARGE), OWNER)
        plan = applied(platform)
        rarely = "a3-megagpu-8g is rarely available on demand; use reservation or spot or flex-start instead"
        assert rarely in plan.notes[0]
        name = first(platform).name
        platform.grow({name: 1})
        clock.advance(REAL.group_reaction)
        failure = first(platform).launch_failure
        assert failure
        assert failure.out_of_stock
        platform.delete(print)

        platform = ready(**self.LARGE, **self.RESERVED)
        assert platform.plan(1).notes == ()
        platform.grow({name: 1})
        clock.advance(LAUNCH)
        running(platform, 1)

    def test_flex_start_and_secure_boot_are_taken_as_they_are_sent(self, cloud: GoogleCloud) -> None:
        fields: dict[str, Any] = {"shielded_instance_config": {"enable_secure_boot": True}}
        platform = ready(**self.LARGE, flex_start=True, scaling="autoscaler", **fields)
        assert platform.plan(1).changes == ()
        with pytest.raises(PoolDrift, match="flex_start is True, wanted False"):
            OwnedGkePlatform(spec(**self.LARGE), OWNER).plan(1)

    def test_what_makes_nodes_ready_sooner_is_taken_as_it_is_sent(self, cloud: GoogleCloud) -> None:
        cache = "projects/ml/global/images/train-cache"
        fields = {"images": {"streaming": True, "secondary_boot_disks": [cache]}, "placement": "compact"}
        platform = ready(**fields)
        assert platform.plan(1).changes == ()
        with pytest.raises(PoolDrift, match="placement is compact, wanted anywhere"):
            OwnedGkePlatform(spec(**{**fields, "placement": None}), OWNER).plan(1)
        without = ready(name="plain")
        assert without.plan(1).changes == ()
        streaming = OwnedGkePlatform(spec(name="plain", images={"streaming": True}), OWNER)
        assert "image streaming is False, wanted True" in applied(streaming).changes[0].detail
        assert streaming.plan(1).changes == ()


class TestUpgrades:
    def test_gke_leaves_the_nodes_alone(self, cloud: GoogleCloud, clock: ManualClock) -> None:
        platform = grown(clock, 1)
        before = running(platform, 1)
        assert not cloud.upgrade_nodes(GROUP_A)
        clock.advance(hours=1)
        assert running(platform, 1) == before

    def test_one_that_gke_may_upgrade_is_excluded_with_its_nodes_up(
        self, cloud: GoogleCloud, clock: ManualClock
    ) -> None:
        grown(clock, 1, exclude_upgrades=False)
        platform = OwnedGkePlatform(spec(), OWNER)
        (change,) = applied(platform).changes
        assert "upgrades is GKE's to make, wanted excluded until end of support" in change.detail
        assert not cloud.upgrade_nodes(GROUP_A)
        assert platform.plan(1).changes == ()

    def test_a_library_that_knows_no_exclusion_is_named(
        self, cloud: GoogleCloud, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airflow_gpu_provider.clouds.google.owned_platform.knows_exclusions", lambda: False)
        platform = OwnedGkePlatform(spec(), OWNER)
        assert "google-cloud-container cannot exclude" in applied(platform).notes[0]
        assert cloud.upgrade_nodes(GROUP_A)

    def test_during_a_blue_green_upgrade_the_side_that_stays_grows(
        self, cloud: GoogleCloud, clock: ManualClock
    ) -> None:
        own = grown(clock, 1, exclude_upgrades=False)
        (before,) = first(own).machines
        pool = cloud.node_pools.pools[GROUP_A]
        pool.settings.upgrade_settings.strategy = NodePoolUpdateStrategy.BLUE_GREEN
        of_others = ExternalGkePlatform(spec(manage="scale", node_pools=[GROUP_A], node_locations=()))
        assert cloud.upgrade_nodes(GROUP_A)
        began = clock.utc_now()
        clock.advance(REAL.operation_pending + LAUNCH)
        assert pool.blue_green
        assert pool.blue_green.phase == Phase.DRAINING_BLUE_POOL
        for platform, size in ((own, 2), (of_others, 3)):
            assert [group.name for group in platform.observe()] == [GROUP_A]
            assert before.id in [machine.id for machine in first(platform).machines]
            platform.grow({GROUP_A: size})
            assert pool.green[A].target_size == size
            assert pool.groups[A].target_size == 0
        until(clock, after(began, REAL.operation_pending + LAUNCH + REAL.drain_timeout))
        assert sorted(machine.state for machine in first(own).machines) == [*["running"] * 3, "terminating"]
        clock.advance(REAL.instance_delete)
        assert before.id not in [machine.id for machine in running(own, 3).machines]

    def test_a_cluster_in_no_release_channel_upgrades_nothing_by_itself(self, cloud: GoogleCloud) -> None:
        cloud.create_cluster(CLUSTER, endpoint="127.0.0.1:6443", certificate_authority="Q0E=", release_channel="")
        platform = ready()
        assert platform.plan(1).notes == ()
        assert not cloud.upgrade_nodes(GROUP_A)


class TestSizes:
    def test_grows_and_says_when_machines_came(self, cloud: GoogleCloud, clock: ManualClock) -> None:
        platform = ready()
        asked = clock.utc_now()
        platform.grow({GROUP_A: 2})
        group = first(platform)
        assert (group.desired, group.launching, group.machines) == (2, True, ())
        until(clock, after(asked, LAUNCH - 1))
        group = first(platform)
        assert (group.launching, [machine.state for machine in group.machines]) == (False, ["pending"] * 2)
        clock.advance(1)
        group = running(platform, 2)
        assert (group.desired, group.unfilled, group.launching, group.has_switch) == (2, 0, False, False)
        assert [machine.launched_at for machine in group.machines] == [after(asked, REAL.group_reaction)] * 2
        assert {machine.id for machine in group.machines} == {
            member.name for one in cloud.node_pools.groups() for member in one.members
        }

    def test_never_shrinks_by_growing(self, cloud: GoogleCloud, clock: ManualClock) -> None:
        platform = grown(clock, 2)
        platform.grow({GROUP_A: 1})
        assert first(platform).desired == 2

    def test_removes_exactly_the_machines_that_are_named(self, cloud: GoogleCloud, clock: ManualClock) -> None:
        platform = grown(clock, 3)
        one, two, three = first(platform).machines
        platform.release([two])
        platform.release([two])
        clock.advance(REAL.instance_delete)
        group = running(platform, 2)
        assert ({machine.id for machine in group.machines}, group.desired) == ({one.id, three.id}, 2)

    def test_a_machine_that_is_gone_is_no_error(self, cloud: GoogleCloud, clock: ManualClock) -> None:
        platform = grown(clock, 1)
        platform.release([Machine(id="gke-nobody", group=GROUP_A, state="running")])
        assert first(platform).desired == 1

    def test_a_group_that_does_not_exist_says_so(self, cloud: GoogleCloud) -> None:
        with pytest.raises(GroupNotFound, match="does not exist"):
            OwnedGkePlatform(spec(), OWNER).grow({GROUP_A: 1})

    def test_a_stock_out_is_seen_and_no_longer_tried_for(
        self, cloud: GoogleCloud, clock: ManualClock, faults: Faults
    ) -> None:
        faults.add(Stockout(zone=A))
        platform = ready()
        asked = clock.utc_now()
        platform.grow({GROUP_A: 2})
        until(clock, after(asked, REAL.group_reaction - 0.1))
        group = first(platform)
        assert (group.launching, group.launch_failure) == (True, None)
        clock.advance(0.1)
        group = first(platform)
        assert group.launch_failure
        assert group.launch_failure.at == clock.utc_now()
        assert group.launch_failure.out_of_stock
        assert "does not have enough resources available" in group.launch_failure.message
        assert (group.unfilled, group.live, group.launching) == (2, (), False)

        assert platform.shrink_unfilled([GROUP_A]) == {GROUP_A: 0}

        group = first(platform)
        assert (group.desired, group.live) == (0, ())
        assert group.launch_failure, "a stock-out is remembered"
        clock.advance(hours=1)
        assert first(platform).launch_failure == group.launch_failure, "it is tried for no longer"

    @pytest.mark.parametrize(("code", "kind"), [("IP_SPACE_EXHAUSTED", "other"), ("PERMISSIONS_ERROR", "refused")])
    def test_another_failure_of_a_launch_is_told_apart(
        self, cloud: GoogleCloud, clock: ManualClock, faults: Faults, code: str, kind: str
    ) -> None:
        faults.add(Stockout(zone=A, code=code))
        platform = ready()
        platform.grow({GROUP_A: 1})
        clock.advance(REAL.group_reaction)
        failure = first(platform).launch_failure
        assert failure
        assert (failure.kind, failure.reason) == (kind, code)

    def test_shrinking_leaves_what_runs_and_what_is_on_its_way(
        self, cloud: GoogleCloud, clock: ManualClock, faults: Faults
    ) -> None:
        platform = grown(clock, 1)
        assert platform.shrink_unfilled([GROUP_A]) == {}
        faults.add(Stockout(zone=A))
        asked = clock.utc_now()
        platform.grow({GROUP_A: 3})
        assert platform.shrink_unfilled([GROUP_A]) == {}, "nothing has failed yet"
        until(clock, after(asked, REAL.group_reaction))
        assert platform.shrink_unfilled([GROUP_A]) == {GROUP_A: 1}
        assert running(platform, 1).desired == 1

    def test_a_later_launch_that_works_ends_the_stock_out(
        self, cloud: GoogleCloud, clock: ManualClock, faults: Faults
    ) -> None:
        faults.add(Stockout(zone=A))
        platform = ready()
        asked = clock.utc_now()
        platform.grow({GROUP_A: 1})
        until(clock, after(asked, REAL.group_reaction))
        faults.clear()
        clock.advance(REAL.launch_retry - 1)
        assert first(platform).launch_failure
        clock.advance(1)
        assert first(platform).launch_failure is None
        clock.advance(REAL.instance_create)
        assert running(platform, 1).launch_failure is None

    def test_a_used_up_quota_is_no_stock_out(self, cloud: GoogleCloud, clock: ManualClock) -> None:
        cloud.set_quota("NVIDIA_L4_GPUS", 0)
        cloud.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 0)
        platform = ready()
        platform.grow({GROUP_A: 1})
        clock.advance(REAL.group_reaction)
        failure = first(platform).launch_failure
        assert failure
        assert not failure.out_of_stock
        assert "NVIDIA_L4_GPUS" in failure.message

    def test_a_machine_that_has_ended_is_a_reason_to_try_a_quota_again(
        self, cloud: GoogleCloud, clock: ManualClock
    ) -> None:
        cloud.set_quota("GPUS_ALL_REGIONS", 1)
        platform = grown(clock, 1, node_locations=[A, B])
        platform.grow({GROUP_B: 1})
        clock.advance(REAL.group_reaction)
        full = platform.observe()
        assert {GROUP_A, GROUP_B} <= passed_over(full, clock.utc_now()).keys()
        assert platform.shrink_unfilled([GROUP_B]) == {GROUP_B: 0}
        assert sum(group.desired for group in platform.observe()) == 1
        clock.advance(1)
        assert passed_over(platform.observe(), clock.utc_now()), "what could not be created has not ended"
        released = clock.utc_now()
        platform.release(full[0].live)
        until(clock, after(released, REAL.instance_delete - 1))
        assert passed_over(platform.observe(), clock.utc_now()), "it goes on until it has ended"
        clock.advance(1)
        assert not passed_over(platform.observe(), clock.utc_now())

    def test_a_preempted_machine_is_on_its_way_out_and_can_be_given_up(
        self, cloud: GoogleCloud, clock: ManualClock, faults: Faults
    ) -> None:
        platform = ready(capacity_types=["SPOT"], node_locations=[A, B])
        group_name = f"{GROUP_A}-spot"
        platform.grow({group_name: 1})
        clock.advance(LAUNCH)
        (machine,) = running(platform, 1).machines
        faults.add(Stockout(zone=A, market="spot"))
        cloud.preempt(machine.id)
        clock.advance(REAL.preemption_notice - 1)
        running(platform, 1)
        clock.advance(1)
        group = first(platform)
        assert (group.live, group.unfilled, group.launching) == ((), 1, True)
        assert [loss.machine for loss in group.losses] == [machine.id]
        clock.advance(REAL.instance_delete)
        group = first(platform)
        assert (group.unfilled, group.launching) == (1, False)
        assert platform.shrink_unfilled([group_name]) == {group_name: 0}

    def test_groups_of_an_earlier_spec_come_last_and_may_not_grow(self, cloud: GoogleCloud) -> None:
        ready(node_locations=[A])
        platform = ready(node_locations=[B])
        assert [(group.name, group.max_size) for group in platform.observe()] == [(GROUP_B, 3), (GROUP_A, 0)]


class TestQuota:
    @pytest.mark.parametrize(
        ("metric", "market"),
        [
            ("NVIDIA_L4_GPUS", "ON_DEMAND"),
            ("PREEMPTIBLE_NVIDIA_L4_GPUS", "SPOT"),
            ("GPUS_ALL_REGIONS", "ON_DEMAND"),
        ],
    )
    def test_is_known_before_anything_is_asked_for(self, cloud: GoogleCloud, metric: str, market: str) -> None:
        platform = OwnedGkePlatform(spec(capacity_types=[market]), OWNER)
        platform.groups_over_quota(2, pytest.fail)
        cloud.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 0)
        cloud.set_quota(metric, 1)
        with pytest.raises(QuotaExceeded, match=f"quota {metric} in .* is 1, 0 are used, 2 more are needed") as raised:
            platform.groups_over_quota(2, pytest.fail)
        assert raised.value.details["quota"] == metric
        platform.groups_over_quota(1, pytest.fail)

    def test_machines_of_a_week_at_most_come_on_either_quota(self, cloud: GoogleCloud, clock: ManualClock) -> None:
        cloud.set_quota("NVIDIA_L4_GPUS", 0)
        platform = ready()
        platform.groups_over_quota(1, pytest.fail)
        platform.grow({GROUP_A: 1})
        clock.advance(LAUNCH)
        running(platform, 1)

    def test_goes_to_the_next_candidate_where_that_has_room(self, cloud: GoogleCloud) -> None:
        cloud.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 1)
        platform = OwnedGkePlatform(spec(capacity_types=["SPOT", "ON_DEMAND"]), OWNER)
        said: list[str] = []
        over_quota = platform.groups_over_quota(2, said.append)
        assert said[0].startswith("g2-standard-4 spot is not tried: quota PREEMPTIBLE_NVIDIA_L4_GPUS")
        applied(platform, over_quota)
        assert [group.name for group in platform.observe()] == [GROUP_A]

    def test_is_skipped_with_a_word_where_it_may_not_be_read(
        self, cloud: GoogleCloud, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        act_as(cloud, monkeypatch, permissions() - {"compute.regions.get"})
        said: list[str] = []
        OwnedGkePlatform(spec(), OWNER).groups_over_quota(2, said.append)
        assert "quotas are not checked: Google Cloud refused compute.regions.get" in said[0]


CALLS: dict[str, Callable[[OwnedGkePlatform], Any]] = {
    "gke": lambda platform: platform._gke.node_pools.cluster(),
    "compute": lambda platform: platform._clients.compute.get(
        "projects/sandbox-project/regions/us-central1", permission="compute.regions.get"
    ),
    "resource manager": lambda platform: platform.refusals(),
    "token": lambda platform: platform._clients.access_token(),
}
"""A call of each service that is reached in a way of its own."""


class TestAccess:
    def test_gives_the_clusters_address_and_a_token_that_is_taken(self, cloud: GoogleCloud) -> None:
        platform = OwnedGkePlatform(spec(), OWNER)
        access = platform.cluster_access()
        assert (access.server, access.ca_data) == ("https://127.0.0.1:6443", "Q0E=")
        assert access.token
        first_token = access.token()
        assert cloud.identify(first_token)
        assert platform._clients.access_token() == first_token, "a token is kept while it is good for long"
        # The cluster's client asks again when a token is old, or was refused.
        second_token = access.token()
        assert second_token != first_token
        assert cloud.identify(second_token)

    def test_a_cluster_with_a_dns_endpoint_only(self, cloud: GoogleCloud) -> None:
        cloud.set_endpoints(ip=False, dns=False)
        with pytest.raises(PoolSpecError, match='Set endpoint="dns"'):
            OwnedGkePlatform(spec(), OWNER).cluster_access()
        with pytest.raises(PoolSpecError, match="does not allow external traffic"):
            OwnedGkePlatform(spec(endpoint="dns"), OWNER).cluster_access()
        cloud.set_endpoints(ip=False, dns=True)
        access = OwnedGkePlatform(spec(endpoint="dns"), OWNER).cluster_access()
        assert (access.server, access.ca_data) == (f"https://gke-{CLUSTER}-123456789012.us-central1.gke.goog", "")

    def test_no_such_cluster(self, cloud: GoogleCloud) -> None:
        for ask in (lambda p: p.cluster_access(), lambda p: p.plan(1), lambda p: p.observe()):
            with pytest.raises(ClusterNotFound, match="There is no GKE cluster other in us-central1"):
                ask(OwnedGkePlatform(spec(cluster_name="other"), OWNER))

    def test_no_such_project(self, cloud: GoogleCloud) -> None:
        with pytest.raises(ClusterNotFound):
            OwnedGkePlatform(spec(project_id="no-such-project"), OWNER).plan(1)

    def test_no_such_connection(self, cloud: GoogleCloud) -> None:
        with pytest.raises(ConnectionNotFound, match="nowhere"):
            OwnedGkePlatform(spec(gcp_conn_id="nowhere"), OWNER).plan(1)

    def test_a_key_that_is_not_known(self, cloud: GoogleCloud, monkeypatch: pytest.MonkeyPatch) -> None:
        connection = cloud.connection()
        key = json.loads(connection["extra"]["keyfile_dict"]) | {"client_email": "stranger@x.iam.gserviceaccount.com"}
        connection["extra"]["keyfile_dict"] = json.dumps(key)
        monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(connection))
        with pytest.raises(CredentialsError, match="google_cloud_default"):
            OwnedGkePlatform(spec(), OWNER).plan(1)

    def test_tokens_that_have_expired_are_renewed(self, cloud: GoogleCloud) -> None:
        platform = ready()
        cloud.expire_tokens()
        assert first(platform).status == "active"

    @pytest.mark.parametrize("first", CALLS)
    def test_a_rotated_key_is_read_from_the_connection_when_the_old_one_is_refused(
        self, cloud: GoogleCloud, monkeypatch: pytest.MonkeyPatch, first: str
    ) -> None:
        platform = OwnedGkePlatform(spec(), OWNER)
        for call in CALLS.values():
            call(platform)
        credentials = Credentials(platform.cluster_access())
        shown = credentials.get()
        cloud.rotate_key()
        monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(cloud.connection()))
        cloud.expire_tokens()
        CALLS[first](platform)
        for call in CALLS.values():
            call(platform)
        assert not cloud.identify(shown.token)
        renewed = credentials.after(shown)
        assert renewed is not None
        assert cloud.identify(renewed.token)

    @pytest.mark.parametrize("rate", ["set_error_rate", "set_throttle_rate"])
    def test_errors_and_throttling_are_sat_out(self, cloud: GoogleCloud, faults: Faults, rate: str) -> None:
        platform = ready()
        set_rate: Callable[[float], Any] = getattr(faults, rate)
        set_rate(0.3)
        assert first(platform).status == "active"


def permissions() -> set[str]:
    return set(json.loads(ROLE.read_text())["includedPermissions"])


def act_as(cloud: GoogleCloud, monkeypatch: pytest.MonkeyPatch, granted: set[str]) -> Identity:
    account = cloud.add_identity("airflow", permissions=granted)
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(cloud.connection(account)))
    return account


def test_a_whole_life_needs_no_more_than_the_documented_permissions(
    request: pytest.FixtureRequest,
    cloud: GoogleCloud,
    clock: ManualClock,
    faults: Faults,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = act_as(cloud, monkeypatch, permissions())
    platform = ready(node_locations=[A, B])
    applied(OwnedGkePlatform(spec(node_locations=[A, B], node_labels={"a": "b"}), OWNER))
    platform.groups_over_quota(1, pytest.fail)
    attached = {"accelerator": {"type": "nvidia-tesla-t4", "count": 1}}
    assert not OwnedGkePlatform(spec(name="n1", machine_types=["n1-standard-4"], **attached), OWNER).plan(1).is_empty
    since = clock.utc_now()
    platform.grow({GROUP_A: 1})
    clock.advance(LAUNCH)
    (machine,) = running(platform, 1).machines
    released = clock.utc_now()
    platform.release([machine])
    until(clock, after(released, REAL.instance_delete))
    assert not first(platform).machines
    assert [(life.id, life.launched_at, life.ended_at) for life in platform.lives(platform.observe(), since)] == [
        (machine.id, machine.launched_at, clock.utc_now())
    ]
    faults.add(Stockout())
    platform.grow({GROUP_B: 1})
    clock.advance(REAL.group_reaction)
    assert platform.observe()[1].launch_failure
    # A task that has not looked at the groups before asks for the one.
    OwnedGkePlatform(spec(node_locations=[A, B]), OWNER).shrink_unfilled([GROUP_B])
    faults.clear()
    platform.delete(print)
    assert platform.observe() == ()
    assert not cloud.refused(account)
    role_record.hold("gke-full.json", request.node.nodeid, cloud.permission_uses(account))


def test_an_upgrade_is_told_with_its_operation_to_whom_may_list_those(
    request: pytest.FixtureRequest,
    cloud: GoogleCloud,
    clock: ManualClock,
    faults: Faults,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grown(clock, 1, exclude_upgrades=False)
    own = OwnedGkePlatform(spec(exclude_upgrades=False), OWNER)
    assert first(own).update is None
    faults.add(Stockout())  # the node that comes first does not, and the upgrade outlasts the test
    began = clock.utc_now()
    assert cloud.upgrade_nodes(GROUP_A)
    clock.advance(minutes=20)
    account = act_as(cloud, monkeypatch, permissions())
    own = OwnedGkePlatform(spec(exclude_upgrades=False), OWNER)
    of_others = ExternalGkePlatform(spec(manage="scale", node_pools=[GROUP_A], node_locations=()))
    for platform in (own, of_others):
        group = first(platform)
        assert (group.status, len(group.live) > 0) == ("updating", True)
        assert group.update
        assert group.update.kind == "UPGRADE_NODES"
        assert group.update.since == began
        assert f"describe {group.update.name} --location=us-central1" in group.update.what_to_do
    role_record.hold("gke-full.json", request.node.nodeid, cloud.permission_uses(account))
    role_record.hold("gke-scale-only.json", request.node.nodeid, cloud.permission_uses(account))
    less = cloud.add_identity("less", permissions=permissions() - {"container.operations.list"})
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(cloud.connection(less)))
    group = first(OwnedGkePlatform(spec(exclude_upgrades=False), OWNER))
    assert (group.status, group.update) == ("updating", None)


@pytest.mark.parametrize(
    ("missing", "do"),
    [
        ("container.clusters.update", applied),
        ("compute.instanceGroupManagers.update", lambda platform: platform.grow({GROUP_A: 1})),
        ("compute.zoneOperations.list", lambda platform: platform.lives(platform.observe(), datetime.now(UTC))),
    ],
)
def test_a_missing_permission_is_named(
    cloud: GoogleCloud, monkeypatch: pytest.MonkeyPatch, missing: str, do: Callable[[OwnedGkePlatform], Any]
) -> None:
    if missing.startswith("compute"):
        ready()
    act_as(cloud, monkeypatch, permissions() - {missing})
    with pytest.raises(PermissionDenied, match=f"refused {missing}.*docs/iam-gke.md"):
        do(OwnedGkePlatform(spec(), OWNER))


def test_the_role_is_explained() -> None:
    page = (ROLE.parents[1] / "iam-gke.md").read_text()
    assert all(f"`{permission}`" in page for permission in permissions())


def test_asks_nothing_beyond_loopback(cloud: GoogleCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """google-auth looks up where each service account may be used, in a thread of its own, at Google's real host."""
    asked: list[Any] = []
    look_up = socket.getaddrinfo

    def recorded(host: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(host)
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", recorded)
    before = set(threading.enumerate())
    platform = ready()
    platform.grow({GROUP_A: 1})
    for thread in set(threading.enumerate()) - before:
        if "RegionalAccessBoundary" in type(thread).__name__:
            thread.join(timeout=300)
            assert not thread.is_alive(), "google-auth's look-up does not end"
    assert set(asked) == {"127.0.0.1"}


@pytest.mark.parametrize(("location", "restarts"), [("us-central1", 0), (A, 1)])
def test_a_zonal_cluster_has_its_control_plane_restarted_when_autoscaling_begins_and_ends(
    faults: Faults, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, location: str, restarts: int
) -> None:
    """GKE's docs, "Autoscaling a cluster": for the first autoscaled node pool and the last, no others."""
    asked: list[float] = []
    cloud = GoogleCloud(
        clock=clock,
        faults=faults,
        timings=REAL,
        events=NoEvents(),
        location=location,
        restart_control_plane=asked.append,
    )
    cloud.create_cluster(CLUSTER, endpoint="127.0.0.1:6443", certificate_authority="Q0E=")
    cloud.add_node_pool("system", machine_type="e2-standard-4")
    cloud.start()
    try:
        monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(cloud.connection()))
        pool = ready(location=location, scaling="autoscaler")
        clock.advance()
        assert asked == [REAL.control_plane_restart] * restarts
        began = clock.now()
        other = ready(location=location, scaling="autoscaler", name="other")  # it waits until the cluster is RUNNING
        assert (clock.now() - began > REAL.control_plane_restart) is bool(restarts)
        other.delete(print)
        assert len(asked) == restarts
        pool.delete(print)
        clock.advance()
        assert len(asked) == 2 * restarts
        clock.advance(REAL.control_plane_restart - 1)
        assert cloud.cluster.status == ("RECONCILING" if restarts else "RUNNING")
        clock.advance(1)
        assert cloud.cluster.status == "RUNNING"
    finally:
        cloud.stop()
