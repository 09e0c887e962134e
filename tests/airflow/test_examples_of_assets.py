"""The example DAGs that new data starts, under an Airflow whose scheduler starts runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_api import RunStatus, wait_until
from gpu_sandbox.airflow_home import AirflowHome, python_path
from gpu_sandbox.demo_trainings import claim_checkpoints, example_dags
from tests.airflow.conftest import REPOSITORY
from tests.airflow.harness import Airflow
from tests.airflow.pools import zero
from tests.inherited import INHERITED

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def volume(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the claim's files lie in: a path of a pod below it."""
    folder = tmp_path_factory.mktemp("volume")
    claim_checkpoints(sandbox, folder / "checkpoints")
    return folder


@pytest.fixture(scope="module")
def airflow(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    dags = tmp_path_factory.mktemp("dags-of-assets")
    for name in ("nightly_to_production", "partitioned_training_eks"):
        (dags / f"{name}.py").symlink_to(example_dags() / f"{name}.py")
    env = sandbox.env() | {"PYTHONPATH": python_path(REPOSITORY)}
    folder = tmp_path_factory.mktemp("airflow-of-assets")
    with AirflowHome(folder, dags, env, schedules=True, inherited=INHERITED) as home:
        yield Airflow(home, sandbox)


def after_new_data(airflow: Airflow, dag_id: str, asset: str, key: str | None = None) -> RunStatus:
    """Return the run that an event of the asset starts, once its machines are gone."""
    airflow.api.wait_for_dag(dag_id)
    before = {run.run_id for run in airflow.api.runs(dag_id)}

    def new() -> list[RunStatus]:
        return [run for run in airflow.api.runs(dag_id) if run.run_id not in before]

    airflow.api.add_asset_event(asset, key)
    wait_until(lambda: bool(new()), what="the run that new data starts")
    (run,) = new()
    airflow.remember(run)
    airflow.api.wait_for_task(dag_id, run.run_id, "train-gpu.scale_down")
    zero(airflow, "train-gpu")
    return run


def test_new_data_comes_to_a_model_that_a_person_puts_into_production(airflow: Airflow, volume: Path) -> None:
    """The second run's model is no better than the first's, and nobody is asked."""
    dag_id, api = "nightly_to_production", airflow.api
    first = after_new_data(airflow, dag_id, "s3://k8s-ml/digits")
    api.wait_for_task(dag_id, first.run_id, "approve", states=frozenset({"deferred", "awaiting_input"}))
    api.answer(dag_id, first.run_id, "approve", "Approve")
    finished = airflow.finish(first)
    assert finished.state == "success", airflow.account()
    (model,) = api.asset_events("digits_model")
    trained, usage = airflow.xcom(finished, "train"), airflow.xcom(finished, "train-gpu.scale_down", key="usage")
    assert model["accuracy"] == trained["accuracy"] >= 0.95
    assert (model["in_production"], model["cost"], model["currency"]) == (0, usage["cost"]["total"], "USD")
    assert Path(str(volume) + model["file"]).exists()

    again = airflow.finish(after_new_data(airflow, dag_id, "s3://k8s-ml/digits"))
    assert again.state == "success"
    assert [again.task(task).state for task in ("evaluate", "approve", "publish")] == ["skipped"] * 3
    assert len(api.asset_events("digits_model")) == 1


def test_each_day_of_data_is_trained_as_a_partition(airflow: Airflow, volume: Path) -> None:
    day = "2026-03-01"
    run = after_new_data(airflow, "partitioned_training_eks", "s3://k8s-ml/digits-by-day", day)
    finished = airflow.finish(run)
    assert finished.state == "success", airflow.account()
    trained = airflow.xcom(finished, "train")
    assert trained["data"] == f"s3://k8s-ml/digits-by-day/{day}"
    assert Path(str(volume) + trained["model"]).exists()
    (event,) = airflow.api.asset_events("digits model by day", partition=day)
    assert event is not None
