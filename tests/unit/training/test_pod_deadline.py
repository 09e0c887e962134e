"""When a task's pod has to have ended: by the cluster's clock, whatever Airflow's says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.clock import ServerClock
from airflow_gpu_provider.cluster.model.demand_key import DemandKey
from airflow_gpu_provider.training.life.run import PodDeadlines
from tests.unit.scaling.model.actors import ModelClock
from tests.unit.scaling.model.world import World

KEY = DemandKey(installation="airflow-0", dag_id="dag", run_id="run", pool="train")
HOUR = timedelta(hours=1)
CLOSE = timedelta(seconds=1)
POOL: Any = None  # it is asked only for an error


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
    assert abs(own.seconds_of_pod(POOL, world.now) - 6 * 3600) <= 1
    assert deadlines(world, timedelta(0), None).queued_until(world.now) is None


def test_late_in_its_block_it_waits_for_half_of_what_is_left() -> None:
    world = World(max_nodes=1)
    world.reconciler("ensure", 0).want(KEY, 1, world.now + 4 * HOUR)
    own = deadlines(world, timedelta(0), None, queue_time=9 * HOUR)
    assert own.queued_until(world.now) == world.now + 2 * HOUR
    assert abs(own.seconds_of_pod(POOL, world.now) - 4 * 3600) <= 1, "all of it, where it is admitted at once"
