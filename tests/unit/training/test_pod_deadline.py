"""When a task's pod has to have ended: by the cluster's clock, whatever Airflow's says."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.cluster.api.clock import ServerClock
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.training.life.run import PodDeadlines
from tests.unit.scaling.model.actors import ModelClock
from tests.unit.scaling.model.world import World

KEY = DemandKey(installation="airflow-0", dag_id="dag", run_id="run", pool="train")
HOUR = timedelta(hours=1)
EKS = EksGpuPool(name="train", cluster_name="c", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=2)
GKE = GkeGpuPool(
    name="train",
    project_id="p-project",
    location="us-central1",
    cluster_name="c",
    machine_types=["g2-standard-4"],
    max_nodes=2,
    max_runtime=6 * HOUR,
    max_run_duration=8 * HOUR,
)
CLOSE = timedelta(seconds=1)
POOL = KubernetesGpuPool(name="train", nodes=["n1"])


def deadlines(world: World, wrong_by: timedelta, execution_timeout: timedelta | None, **more: Any) -> PodDeadlines:
    machine = ModelClock(world.actors, ahead=wrong_by.total_seconds())
    return PodDeadlines(
        api=world.api,  # type: ignore[arg-type]
        clock=ServerClock(world.api, machine),  # type: ignore[arg-type]
        key=KEY,
        max_runtime=6 * HOUR,
        execution_timeout=execution_timeout,
        started_at=machine.now(),  # by Airflow, on that machine
        **more,
    )


@pytest.mark.parametrize("minutes", [-25, 0, 25])
def test_a_pod_ends_with_its_run_s_demand_or_after_its_execution_timeout(minutes: int) -> None:
    world = World(max_nodes=1)
    wrong_by = timedelta(minutes=minutes)
    assert deadlines(world, wrong_by, None).of_pod(world.now) == world.now + 6 * HOUR
    assert abs(deadlines(world, wrong_by, HOUR).of_pod(world.now) - (world.now + HOUR)) < CLOSE

    world.reconciler("ensure", 0).want(KEY, 1, world.now + 5 * HOUR)
    assert deadlines(world, wrong_by, None).of_pod(world.now) == world.now + 5 * HOUR
    assert deadlines(world, wrong_by, 8 * HOUR).of_pod(world.now) == world.now + 5 * HOUR


def test_time_in_a_queue_does_not_count_as_its_run_time() -> None:
    world = World(max_nodes=1)
    own = deadlines(world, timedelta(0), None, queue_time=9 * HOUR)
    assert own.of_pod(world.now) == world.now + 15 * HOUR
    assert own.queued_until(world.now) == world.now + 9 * HOUR
    assert abs((own.seconds_of_pod(POOL, world.now) or 0) - 6 * 3600) <= 1
    assert deadlines(world, timedelta(0), None).queued_until(world.now) is None


def test_late_in_its_block_it_waits_for_half_of_what_is_left() -> None:
    world = World(max_nodes=1)
    world.reconciler("ensure", 0).want(KEY, 1, world.now + 4 * HOUR)
    own = deadlines(world, timedelta(0), None, queue_time=9 * HOUR)
    assert own.queued_until(world.now) == world.now + 2 * HOUR
    assert abs((own.seconds_of_pod(POOL, world.now) or 0) - 4 * 3600) <= 1, "all of it, where it is admitted at once"


@pytest.mark.parametrize(
    ("pool", "keeps_machines", "limit"),
    [
        (EKS, False, None),
        (EKS, True, 5 * HOUR),  # external groups with a minimum
        (replace(EKS, min_nodes=1), False, 5 * HOUR),
        (replace(EKS, scaling="autoscaler"), False, None),
        (GKE, False, timedelta(hours=8)),
        (replace(GKE, min_nodes=1, max_run_duration=None), False, 5 * HOUR),
        (POOL, False, 5 * HOUR),
    ],
)
def test_the_kubelet_has_the_demand_s_end_only_where_no_cloud_ends_the_pod(
    pool: GpuPool, keeps_machines: bool, limit: timedelta | None
) -> None:
    world = World(max_nodes=1)
    alone = deadlines(world, timedelta(0), None).seconds_of_pod(pool, world.now, keeps_machines=keeps_machines)
    assert abs((alone or 0) - 6 * 3600) <= 1, "without demand nothing is extended"
    world.reconciler("ensure", 0).want(KEY, 1, world.now + 5 * HOUR)
    own = deadlines(world, timedelta(0), None)
    seconds = own.seconds_of_pod(pool, world.now, keeps_machines=keeps_machines)
    assert (seconds is None) == (limit is None)
    assert limit is None or abs((seconds or 0) - limit.total_seconds()) <= 1
    bounded = deadlines(world, timedelta(0), HOUR)
    seconds = bounded.seconds_of_pod(pool, world.now, keeps_machines=keeps_machines)
    assert abs((seconds or 0) - 3600) <= 1, "no extension moves execution_timeout"
