"""No credential is written down: not in a log, at any level, nor in XCom, rendered templates or a trigger's row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_home import AirflowHome, python_path
from gpu_sandbox.demo_trainings import example_dags
from gpu_sandbox.nodes import NodeSpec
from tests.airflow import credentials
from tests.airflow.conftest import REPOSITORY
from tests.airflow.harness import Airflow
from tests.airflow.test_example_dags import has_trained
from tests.inherited import INHERITED

pytestmark = pytest.mark.nightly

MACHINE = "metal-1"


@pytest.fixture(scope="module")
def talkative(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """An Airflow that logs all that anybody says."""
    dags = tmp_path_factory.mktemp("dags")
    (dags / "lab.py").symlink_to(Path(__file__).parent / "lab_dag.py")
    (dags / "nightly.py").symlink_to(example_dags() / "nightly_training_eks_tasks.py")
    env = {
        **sandbox.env(),
        "PYTHONPATH": python_path(REPOSITORY),
        "AIRFLOW_CONN_LAB": json.dumps(credentials.connection_with_kubeconfig(sandbox)),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "DEBUG",
    }
    sandbox.agent.add_node(NodeSpec(name=MACHINE, gpus=1))
    try:
        with AirflowHome(tmp_path_factory.mktemp("airflow"), dags, env, inherited=INHERITED) as home:
            yield Airflow(home, sandbox)
    finally:
        sandbox.agent.remove_node(MACHINE)


def test_no_credential_is_logged_or_stored(talkative: Airflow, sandbox: Sandbox) -> None:
    home, secrets = talkative.home, credentials.patterns(talkative.home, sandbox)
    triggers = credentials.TriggerRows(home)
    started = [talkative.trigger(dag_id) for dag_id in ("nightly_training_eks_tasks", "lab")]
    runs = [talkative.finish(run) for run in started]
    assert [run.state for run in runs] == ["success", "success"], talkative.account()
    has_trained(talkative, runs[0])
    # All of the package that waits has been seen waiting, and libraries were talkative.
    seen = triggers.seen()
    assert {"GpuPodTrigger", "NodesTrigger"} <= seen.keys()
    assert b"nightly_training" in b"".join(seen.values())
    scheduler = home.log_file("scheduler").read_text()
    assert "debug" in scheduler.lower()

    written = [*triggers.hits(secrets), *credentials.in_database(home, secrets), *credentials.in_logs(home, secrets)]
    assert not written, "\n".join(written)


def test_what_is_written_down_is_found(talkative: Airflow, sandbox: Sandbox) -> None:
    """Each place and each form: a search that finds nothing proves nothing by itself."""
    home, secrets = talkative.home, credentials.patterns(talkative.home, sandbox)
    (home.home / "logs" / "planted.log").write_text(f"secret: {sandbox.aws.access_key.secret_access_key}")
    try:
        assert any("planted.log: the AWS secret key" in hit for hit in credentials.in_logs(home, secrets))
    finally:
        (home.home / "logs" / "planted.log").unlink()
    # Airflow's own database has the example's name in many places, packed ones among them.
    name = {"the DAG's name": re.compile(b"nightly_training_eks_tasks")}
    tables = {hit.partition(".")[0] for hit in credentials.in_database(home, name)}
    assert {"serialized_dag", "rendered_task_instance_fields", "xcom", "task_instance"} <= tables
