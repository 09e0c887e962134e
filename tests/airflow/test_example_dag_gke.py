"""The GKE example under a real scheduler and triggerer: the file that users are shown, on a sandbox with GKE."""

from __future__ import annotations

import pytest

from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_home import AirflowHome
from tests.airflow.harness import Airflow


@pytest.fixture
def on_gke(home_on_both_clouds: AirflowHome, gke: Sandbox) -> Airflow:
    return Airflow(home_on_both_clouds, gke)


def test_the_night_trains_and_leaves_nothing(on_gke: Airflow) -> None:
    run = on_gke.run_dag("nightly_training_gke")
    assert run.state == "success", on_gke.account()
    assert on_gke.xcom(run, "train")["accuracy"] >= 0.95
    assert "served by GKE" in on_gke.log(run, "train-gpu.device_plugin")
    assert on_gke.leftovers().nothing
