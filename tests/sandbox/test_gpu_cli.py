"""`airflow gpu` as its own process, over a metadata database and a sandbox; the connection is in that database only."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.errors import OutOfStock
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.airflow_home import AirflowHome, database_template, python_path
from gpu_sandbox.faults import Stockout
from gpu_sandbox.sandbox import Sandbox
from tests.inherited import INHERITED
from tests.sandbox.running import run

REPOSITORY = Path(__file__).parents[2]

DAGS = """
from airflow.sdk import DAG
from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator, GpuPodOperator, gpu_nodes

night = EksGpuPool(name="night", cluster_name="{{ var.value.gpu_cluster }}", region="us-west-2",
                   instance_types=["g6.xlarge"], zones=["us-west-2a"], max_nodes=2, price_per_hour=0.8)
dated = EksGpuPool(name="dated", cluster_name="{{ ds }}", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1)
lost = EksGpuPool(name="lost", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1,
                  aws_conn_id="nowhere")

with DAG("training"):
    with gpu_nodes(night, gpus=1):
        GpuPodOperator(task_id="train", gpus=1, image="train:1")
with DAG("evaluation"):
    EnsureGpuPoolOperator(task_id="ensure", gpu_pool=night, keep=True)
with DAG("others"):
    EnsureGpuPoolOperator(task_id="dated", gpu_pool=dated, nodes=0)
    EnsureGpuPoolOperator(task_id="lost", gpu_pool=lost)
"""


@dataclass(frozen=True)
class Cli:
    """The `airflow` command of one Airflow: each is a process, forked from one that has imported what they need."""

    home: Path
    environment: dict[str, str]
    forks: subprocess.Popen[str]

    def __call__(self, *arguments: str, ok: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command, with `more` in its environment."""
        said, complained = self.home / "stdout", self.home / "stderr"
        assert self.forks.stdin
        assert self.forks.stdout
        order = {"arguments": arguments, "environment": more, "stdout": str(said), "stderr": str(complained)}
        self.forks.stdin.write(f"{json.dumps(order)}\n")
        self.forks.stdin.flush()
        code = int(self.forks.stdout.readline())
        return _checked(subprocess.CompletedProcess(arguments, code, said.read_text(), complained.read_text()), ok)

    def by_itself(self, *arguments: str) -> str:
        """Run a command as a user does; return what it prints."""
        command = [sys.executable, "-m", "airflow", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=600)
        return _checked(done, True).stdout

    def json(self, *arguments: str, ok: bool = True) -> Any:
        return json.loads(self(*arguments, "--output", "json", ok=ok).stdout)


def _checked(done: subprocess.CompletedProcess[str], ok: bool) -> subprocess.CompletedProcess[str]:
    assert (done.returncode == 0) is ok, f"{done.args}:\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def cli(gpu_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """An Airflow with three DAGs and the sandbox's connection in its database; nothing of it is in the environment."""
    dags = tmp_path_factory.mktemp("dags")
    (dags / "dags.py").write_text(DAGS)
    env = gpu_sandbox.env()
    connection = json.loads(env.pop("AIRFLOW_CONN_AWS_DEFAULT"))
    for name in [name for name in env if name.startswith("AWS_")]:
        del env[name]
    own = {"PYTHONPATH": python_path(REPOSITORY), "AIRFLOW__GPU_PROVIDER__INSTALLATION_ID": "tests"}
    home = AirflowHome(tmp_path_factory.mktemp("airflow"), dags, env | own, inherited=INHERITED)
    home.home.mkdir(exist_ok=True)
    shutil.copyfile(database_template(), home.home / "airflow.db")
    environment = {name: value for name, value in home.environment.items() if not name.startswith("AWS_")}
    prepare = (
        ("connections", "add", "aws_default", "--conn-json", json.dumps(connection)),
        ("variables", "set", "gpu_cluster", gpu_sandbox.cluster_name),
        ("dags", "reserialize"),
    )
    program = [sys.executable, str(Path(__file__).with_name("forked_commands.py")), json.dumps(prepare)]
    with subprocess.Popen(program, env=environment, text=True, stdin=PIPE, stdout=PIPE) as forks:
        assert forks.stdin
        assert forks.stdout
        assert forks.stdout.readline() == "0\n"
        yield Cli(home.home, environment, forks)
        forks.stdin.close()


@pytest.fixture
def pool(
    gpu_sandbox: Sandbox, gpu_sandbox_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[EksGpuPool]:
    """The DAGs' pool, for a run in this process that uses it; afterwards it is at zero."""
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    pool = EksGpuPool(
        name="night",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=["g6.xlarge"],
        zones=[gpu_sandbox.zones[0]],
        max_nodes=2,
        price_per_hour=0.8,
    )
    yield pool
    gpu_sandbox.faults.clear()
    run(ScaleDownSensor(task_id="zero", gpu_pool=pool), run_id="one")


def test_pools_are_those_of_the_serialized_dags(cli: Cli, gpu_sandbox: Sandbox) -> None:
    rows = {row["pool"]: row for row in json.loads(cli.by_itself("gpu", "pools", "--output", "json"))}
    assert set(rows) == {"night", "dated", "lost"}
    assert rows["night"]["dags"] == ["evaluation", "training"]
    assert rows["night"]["cluster"] == f"eks/aws_default/us-west-2/{gpu_sandbox.cluster_name}"
    assert "'ds' is undefined" in rows["dated"]["problem"]
    assert [row["pool"] for row in cli.json("gpu", "pools", "--dag-id", "training")] == ["night"]


def test_a_connection_that_is_missing_is_an_error_and_no_ambient_credentials_are_taken(
    cli: Cli, gpu_sandbox: Sandbox
) -> None:
    ambient = {"AWS_ACCESS_KEY_ID": "ambient", "AWS_SECRET_ACCESS_KEY": "ambient"}
    endpoint = {"AWS_ENDPOINT_URL": gpu_sandbox.aws.endpoint_url}
    done = cli("gpu", "status", "lost", ok=False, **ambient, **endpoint)
    assert "ConnectionNotFound: The Airflow connection 'nowhere' was not found." in done.stderr


def test_a_pool_that_cannot_be_asked_does_not_keep_the_others_from_being_shown(cli: Cli) -> None:
    done = cli("gpu", "status", "--output", "json", ok=False)
    assert [each["pool"] for each in json.loads(done.stdout)] == ["night"]
    assert "lost: ConnectionNotFound: The Airflow connection 'nowhere' was not found." in done.stderr
    assert "dated of others is left out: only a DAG run can render it: 'ds' is undefined" in done.stderr


def test_pools_of_dags_that_are_stale_can_be_had_by_name(cli: Cli) -> None:
    """All are stale a while after the last DAG processor has gone; machines may be there all the same."""
    with sqlite3.connect(cli.home / "airflow.db") as database:
        database.execute("UPDATE dag SET is_stale = 1")
    try:
        refusal = cli("gpu", "status", ok=False).stderr
        assert "Airflow has not read the files of these DAGs lately" in refusal
        assert "evaluation, others, training" in refusal
        assert [row["pool"] for row in cli.json("gpu", "pools", "--dag-id", "training")] == ["night"]
    finally:
        with sqlite3.connect(cli.home / "airflow.db") as database:
            database.execute("UPDATE dag SET is_stale = 0")


def test_an_unknown_pool_is_named(cli: Cli) -> None:
    said = cli("gpu", "status", "nigth", ok=False).stderr
    assert "There is no pool nigth in any DAG that Airflow has in its database. There are dated, lost, night." in said


def test_plan_and_status_follow_a_night(cli: Cli, pool: EksGpuPool) -> None:
    before = cli.json("gpu", "plan", "night")
    assert {(row["action"], row["what"]) for row in before} >= {("create", "night-a-g6-xlarge")}
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, deferrable=False), run_id="one")

    (status,) = cli.json("gpu", "status", "night")
    assert (status["nodes"], status["wanted"], status["cost_per_hour"]) == (1, 1, 0.8)
    assert status["where"].startswith("AWS account 123456789012, EKS cluster k8s-ml in us-west-2, as arn:aws:")
    (machine,) = status["machines"]
    assert machine["state"] == "usable"
    assert 0 < machine["cost_so_far"] < 0.8
    (lease,) = status["leases"]
    assert (lease["run"], lease["installation"], lease["nodes"]) == ("nightly/one", "tests", 1)

    table = cli("gpu", "status", "night")
    assert "nightly/one" in table.stdout
    assert "night: AWS account 123456789012" in table.stderr


def test_a_spec_in_a_file_needs_no_dag(cli: Cli, pool: EksGpuPool, tmp_path: Path) -> None:
    file = tmp_path / "pool.json"
    file.write_text(json.dumps(pool.serialize()))
    (status,) = cli.json("gpu", "status", "--spec", str(file))
    assert status["pool"] == "night"
    assert "holds no pool's spec" in cli("gpu", "status", "--spec", "/dev/null", ok=False).stderr


def test_reap_shows_first_and_removes_with_yes(cli: Cli, pool: EksGpuPool) -> None:
    """The run is not in the database: Airflow knows of no such run, so it is over."""
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, deferrable=False), run_id="one")
    shown = cli("gpu", "reap", "night")
    assert "nightly/one is over" in shown.stdout
    assert shown.stderr.index("AWS account 123456789012") < shown.stderr.index("Nothing was changed; --yes removes it.")
    assert cli.json("gpu", "status", "night")[0]["nodes"] == 1

    removal = cli("gpu", "reap", "night", "--yes", "--output", "json")
    (reaped,) = json.loads(removal.stdout)
    assert removal.stderr.endswith("All of it is gone.\n")
    assert {each["kind"] for each in reaped["leftovers"]} == {"lease", "machine"}
    assert (reaped["left"], reaped["error"]) == ([], "")
    assert cli.json("gpu", "status", "night")[0]["machines"] == []


@pytest.mark.usefixtures("stock_out_first")
def test_doctor_tells_a_stock_out_and_fails_for_what_would_stop_a_run(
    cli: Cli, pool: EksGpuPool, gpu_sandbox: Sandbox
) -> None:
    """The last test: the pool passes the zone over for five minutes after it."""
    findings = cli.json("gpu", "doctor", "night")
    assert {each["result"] for each in findings} == {"ok"}
    assert [each["check"] for each in findings if each["check"] in ("credentials", "driver")] == [
        "credentials",
        "driver",
    ]

    gpu_sandbox.faults.add(Stockout(zone=gpu_sandbox.zones[0]))
    ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, deferrable=False, timeout=timedelta(seconds=8))
    with pytest.raises(OutOfStock):
        run(ensure, run_id="one")
    ambient = {"AWS_ACCESS_KEY_ID": "ambient", "AWS_SECRET_ACCESS_KEY": "ambient"}
    found = cli("gpu", "doctor", "--output", "json", ok=False, **ambient)
    complaints = [each for each in json.loads(found.stdout) if each["result"] != "ok"]
    lost, alone = (each for each in complaints if each["pool"] == "lost")
    assert (lost["check"], lost["result"]) == ("credentials", "problem")
    assert (alone["check"], alone["result"]) == ("scale-down", "problem")
    assert "DAG others: Pool lost: no ScaleDownSensor of this pool and block comes after task lost" in alone["message"]
    assert lost["message"] == "The Airflow connection 'nowhere' was not found."
    warnings = {each["check"]: each for each in complaints if each["pool"] == "night"}
    assert set(warnings) == {"groups", "stock"}, "EKS's own word for it, and what becomes of it"
    assert {each["result"] for each in warnings.values()} == {"warning"}
    assert "InsufficientInstanceCapacity" in warnings["stock"]["message"]
    assert "Worth a look: night: groups, night: stock." in found.stderr
    assert "Would stop a run: lost: credentials, lost: scale-down." in found.stderr
