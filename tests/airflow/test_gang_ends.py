"""GpuPodOperator(nodes=2) under a real scheduler and triggerer: a rank that fails, and a task that is ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from gpu_sandbox.airflow_api import RunStatus, wait_until
from tests.airflow.gangs import jobs, pod_of, until_all_run
from tests.airflow.harness import Airflow
from tests.airflow.pools import end, zero

pytestmark = pytest.mark.nightly

DAGS = ("gang_marked_failed", "gang_rank_fails")


@pytest.fixture(scope="module")
def started(airflow: Airflow) -> Iterator[Mapping[str, RunStatus]]:
    """Runs of all DAGs, started together, each on a pool of its own; a rank that is to fail fails beside the tests."""
    started = {dag_id: airflow.trigger(dag_id) for dag_id in DAGS}
    try:
        fails = started["gang_rank_fails"]
        until_all_run(airflow, fails)
        wait_until(lambda: "[rank 0] up" in airflow.log(fails, "train"), what="rank 0 to be up")
        airflow.run_in(pod_of(airflow, fails, rank=1), "touch", "/dev/shm/end")
        yield started
    finally:
        end(airflow, started.values())


@pytest.fixture
def runs(airflow: Airflow, started: Mapping[str, RunStatus], begin_and_end_clean: None) -> Mapping[str, RunStatus]:
    """The same runs, for a test that fails to show them."""
    airflow.remember(*started.values())
    return started


def test_task_that_is_marked_failed_takes_its_gang_along(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    run = runs["gang_marked_failed"]
    until_all_run(airflow, run)
    airflow.api.mark_task(run.dag_id, run.run_id, "train", "failed")
    assert airflow.finish(run).state == "failed"
    wait_until(lambda: not jobs(airflow, run), what="the gang's Job to go")
    zero(airflow, "gang-marked-failed")


def test_night_fails_with_the_error_of_the_rank_that_failed_first(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    run = runs["gang_rank_fails"]
    finished = airflow.finish(run)
    assert finished.state == "failed"
    log = airflow.log(run, "train")
    assert "Rank 1: " in log
    assert "exit code 3" in log
    assert "[rank 0] told to stop" in log
    zero(airflow, "gang-rank-fails")
    wait_until(lambda: not jobs(airflow, run), what="the gang's Job to go")
