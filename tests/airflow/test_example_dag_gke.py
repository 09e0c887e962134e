"""The GKE example under a real scheduler and triggerer: the file that users are shown, on a sandbox with GKE."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_home import AirflowHome
from gpu_sandbox.demo_trainings import example_dags, training_image
from tests.airflow import credentials
from tests.airflow.conftest import REPOSITORY
from tests.airflow.harness import Airflow


@pytest.fixture(scope="module")
def on_gke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    dags = tmp_path_factory.mktemp("dags")
    name = "nightly_training_gke.py"
    (dags / name).symlink_to(example_dags() / name)
    with Sandbox(platform="gke", images=(training_image(),), boot_seconds=1.0) as sandbox:
        env = sandbox.env() | {"PYTHONPATH": path}
        with AirflowHome(tmp_path_factory.mktemp("airflow"), dags, env) as home:
            yield Airflow(home, sandbox)
            secrets = credentials.patterns(home, sandbox)
            written = [*credentials.in_database(home, secrets), *credentials.in_logs(home, secrets)]
            assert not written, "\n".join(written)


def test_the_night_trains_and_leaves_nothing(on_gke: Airflow) -> None:
    run = on_gke.run_dag("nightly_training_gke")
    assert run.state == "success", on_gke.account()
    assert on_gke.xcom(run, "train")["accuracy"] >= 0.95
    assert "served by GKE" in on_gke.log(run, "train-gpu.device_plugin")
    assert on_gke.leftovers().nothing
