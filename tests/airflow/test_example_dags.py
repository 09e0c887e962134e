"""The example DAGs, the very files that users are shown: each runs a real training and leaves nothing."""

from __future__ import annotations

import pytest

from gpu_sandbox.airflow_api import RunStatus
from tests.airflow.harness import Airflow, FinishedRun
from tests.airflow.pools import zero


@pytest.fixture(scope="module")
def sweep(airflow: Airflow) -> RunStatus:
    """On a pool of its own, and so started beside the failing training."""
    return airflow.trigger("hyper_parameter_sweep_eks", {"rates": [0.0003, 0.03], "seeds": [0, 1, 2]})


def has_trained(airflow: Airflow, run: FinishedRun) -> None:
    """Hold that a night of an example on EKS was green, trained the whole model, and has left nothing."""
    assert run.state == "success", airflow.account()
    result = airflow.xcom(run, "train")
    assert result["accuracy"] >= 0.95
    assert result["epochs"] == 30
    assert "epoch 30/30" in airflow.log(run, "train")
    zero(airflow, "train-gpu")


def test_an_example_trains_and_leaves_nothing(airflow: Airflow) -> None:
    # The same night written as single tasks, nightly_training_eks_tasks, is that of test_credentials.
    has_trained(airflow, airflow.run_dag("nightly_training_eks"))


@pytest.mark.nightly
def test_a_training_that_fails_is_a_red_night_and_leaves_nothing(airflow: Airflow, sweep: RunStatus) -> None:
    run = airflow.run_dag("nightly_training_eks", {"fail_at_epoch": 3})
    assert run.state == "failed"
    assert run.task("train").state == "failed"
    assert run.task("train-gpu.scale_down").state == "success"
    assert "failing in epoch 3, as told" in airflow.log(run, "train")
    zero(airflow, "train-gpu")


@pytest.mark.nightly
def test_a_sweep_of_more_pods_than_gpus(airflow: Airflow, sweep: RunStatus) -> None:
    airflow.remember(sweep)
    run = airflow.finish(sweep)
    assert run.state == "success"
    best = airflow.xcom(run, "best")
    assert best["learning_rate"] == 0.03
    assert best["accuracy"] >= 0.95
    assert airflow.leftovers().nothing
