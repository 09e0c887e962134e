"""A night on PostgreSQL, on which one team's training does its worst: another team's run beside it does not notice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_api import wait_until
from gpu_sandbox.airflow_home import AirflowHome, python_path
from tests.airflow.conftest import REPOSITORY
from tests.airflow.harness import Airflow
from tests.airflow.pools import pods_of, zero
from tests.inherited import INHERITED
from tests.postgresql import Postgresql


@pytest.fixture
def airflow(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    dags = tmp_path_factory.mktemp("dags-of-teams")
    (dags / "teams.py").symlink_to(Path(__file__).parent / "dags_postgresql" / "teams.py")
    env = sandbox.env() | {"PYTHONPATH": python_path(REPOSITORY)}
    home = tmp_path_factory.mktemp("airflow-on-postgresql")
    with (
        Postgresql() as server,
        AirflowHome(home, dags, env, database=server.renew("airflow"), inherited=INHERITED) as started,
    ):
        yield Airflow(started, sandbox)


def test_a_hostile_training_costs_nobody_else_anything(airflow: Airflow) -> None:
    hostile, ordinary = airflow.trigger("team_hostile"), airflow.trigger("team_ordinary")
    for run in (hostile, ordinary):
        airflow.until_watched(run)
    triggerer = airflow.home.pids("triggerer", with_children=True)
    # Its GPUs are sampled half a minute after its start.
    wait_until(lambda: "cannot be sampled" in airflow.log(hostile, "train"), what="its nvidia-smi to be given up")
    for pool in ("team-hostile", "team-ordinary"):
        (pod,) = pods_of(airflow, pool)
        airflow.run_in(pod["metadata"]["name"], "touch", "/dev/shm/end")
    ended, beside = airflow.finish(hostile), airflow.finish(ordinary)
    log = airflow.log(ended, "train")
    assert "asked for others' Leases: 403" in log
    assert (ended.state, ended.task("train").state) == ("failed", "failed")
    assert "is not valid JSON" in log
    assert beside.state == "success"
    assert airflow.xcom(beside, "train") == {"loss": 1}
    assert set(triggerer) <= set(airflow.home.pids("triggerer", with_children=True))
    for pool in ("team-hostile", "team-ordinary"):
        zero(airflow, pool)
