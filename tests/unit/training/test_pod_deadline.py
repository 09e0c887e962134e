"""When a task's pod has to have ended: by the cluster's clock, whatever Airflow's says."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_gpu_provider.cluster.clock import ServerClock
from airflow_gpu_provider.cluster.demand_key import DemandKey
from airflow_gpu_provider.training.life.run import PodDeadlines
from tests.unit.scaling.model.actors import ModelClock
from tests.unit.scaling.model.world import World

KEY = DemandKey(installation="airflow-0", dag_id="dag", run_id="run", pool="train")
HOUR = timedelta(hours=1)
CLOSE = timedelta(seconds=1)


def deadlines(world: World, wrong_by: timedelta, execution_timeout: timedelta | None) -> PodDeadlines:
    machine = ModelClock(world.actors, ahead=wrong_by.total_seconds())
    return PodDeadlines(
        api=world.api,  # type: ignore[arg-type]
        clock=ServerClock(world.api, machine),  # type: ignore[arg-type]
        key=KEY,
        max_runtime=6 * HOUR,
        execution_timeout=execution_timeout,
        started_at=machine.now(),  # by Airflow, on that machine
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
