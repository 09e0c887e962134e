"""GpuPodOperator under a real scheduler and triggerer: live logs, a sweep, a function."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping

import pytest

from airflow_gpu_provider.training.log.followed_log import REPEATED
from gpu_sandbox.airflow_api import RunStatus, wait_until
from tests.airflow.harness import Airflow
from tests.airflow.pools import end, pods_of, zero

pytestmark = pytest.mark.nightly

DAGS = ("pod_sweep", "gpu_function", "pod_logs", "pod_watched_anew")


@pytest.fixture(scope="module")
def started(airflow: Airflow) -> Iterator[Mapping[str, RunStatus]]:
    """Runs of all DAGs, started together, each on a pool of its own."""
    airflow.api.set_variable("tracking_api_key", "known-to-workers-only")
    started = {dag_id: airflow.trigger(dag_id) for dag_id in DAGS}
    yield started
    end(airflow, started.values())


@pytest.fixture
def runs(airflow: Airflow, started: Mapping[str, RunStatus], begin_and_end_clean: None) -> Mapping[str, RunStatus]:
    """The same runs, for a test that fails to show them."""
    airflow.remember(*started.values())
    return started


def test_sweep_in_a_block(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    run = airflow.finish(runs["pod_sweep"])
    assert run.state == "success"
    results = [airflow.api.xcom(run.status.dag_id, run.status.run_id, "train", map_index=index) for index in range(3)]
    assert results == [{"rate": 1}, {"rate": 2}, {"rate": 3}]
    zero(airflow, "pod-sweep")


def test_a_function_runs_on_gpus_with_its_arguments_and_its_result(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    run = airflow.finish(runs["gpu_function"])
    assert run.state == "success", run.states
    assert airflow.xcom(run, "visible_gpus") == {"sum": 6, "gpus": 2}
    mapped = [airflow.api.xcom(run.status.dag_id, run.status.run_id, "mapped", map_index=index) for index in (0, 1)]
    assert mapped == [{"sum": 3, "gpus": 2}, {"sum": 7, "gpus": 2}]
    zero(airflow, "gpu-function")


def test_log_is_live_while_deferred_and_outlives_a_killed_triggerer(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    def numbers(log: str) -> list[int]:
        return [int(number) for number in re.findall(r"^\[base\] line (\d+)$", log, flags=re.MULTILINE)]

    run = runs["pod_logs"]
    airflow.until_watched(run)
    wait_until(lambda: len(numbers(airflow.log(run, "train"))) > 80, what="the log of a deferred pod")
    (pod,) = pods_of(airflow, run.dag_id.replace("_", "-"))
    name = pod["metadata"]["name"]

    def saved() -> int:
        return sum(line.startswith("line") for line in airflow.saved_log(name))

    # At ten lines a second.
    wait_until(lambda: len(numbers(airflow.log(run, "train"))) - saved() <= 50, what="all but 5 s to be saved")
    saved_before = saved()
    assert airflow.api.task(run.dag_id, run.run_id, "train").state == "deferred"
    airflow.home.kill("triggerer")
    airflow.home.restart("triggerer")
    # Airflow gives a dead triggerer's triggers to another one after 30 s without a heartbeat.
    wait_until(lambda: REPEATED in airflow.log(run, "train"), what="the next triggerer to go on with it")
    assert airflow.api.task(run.dag_id, run.run_id, "train").state == "deferred"
    airflow.run_in(name, "touch", "/dev/shm/end")
    finished = airflow.finish(run)
    before, repeated, after = airflow.log(finished, "train").partition(REPEATED)
    assert repeated
    after, once_more, rest = after.partition(REPEATED)  # a busy supervisor may not say in time what it has written
    assert "the key is ***" in before
    assert "known-to-workers-only" not in before + after + rest
    assert numbers(before) == [*range(len(numbers(before)))]
    printed = airflow.xcom(finished, "train")
    last = numbers(rest if once_more else after)
    assert last == [*range(printed - len(last), printed)]
    assert numbers(after) == [*range(numbers(after)[0], numbers(after)[-1] + 1)]
    assert not once_more or numbers(after)[-1] + 1 >= printed - len(last)
    assert saved_before <= numbers(after)[0] <= len(numbers(before)), "what was saved is not repeated"


def test_training_outlives_five_triggerers_whose_cluster_is_away_at_first(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    """What ended well is a success, after all of them, and its log is whole. The last one: its errors meet all."""

    def times(what: str) -> int:
        return airflow.log(run, "train").count(what)

    def said(what: str, *, since: int) -> None:
        wait_until(lambda: times(what) > since, every=1, what=f"{what!r} again, after {since} times")

    run = runs["pod_watched_anew"]
    airflow.until_watched(run)
    end(airflow, (runs[dag_id] for dag_id in DAGS[:-1]))
    for _ in range(5):
        borne, watched = times("The wait continues."), times("started on node")
        airflow.home.kill("triggerer", signal.SIGTERM)
        airflow.sandbox.faults.set_error_rate(1.0)  # a triggerer finds the cluster by asking AWS for it
        airflow.home.restart("triggerer")
        said("The wait continues.", since=borne)
        airflow.sandbox.faults.set_error_rate(0)
        said("started on node", since=watched)
    (pod,) = pods_of(airflow, run.dag_id.replace("_", "-"))
    airflow.run_in(pod["metadata"]["name"], "touch", "/dev/shm/end")
    finished = airflow.finish(run)
    assert finished.state == "success", airflow.account()
    assert finished.task("train").try_number == 1
    lines = re.findall(r"^\[base\] line (\d+)$", airflow.log(finished, "train"), flags=re.MULTILINE)
    assert sorted({int(line) for line in lines}) == [*range(airflow.xcom(finished, "train"))]
    assert airflow.leftovers().nothing
