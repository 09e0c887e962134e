"""One Airflow, over one sandbox, for all tests of a pytest process: starting both takes longer than most tests."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_home import AirflowHome, python_path
from gpu_sandbox.aws import AwsTimings
from gpu_sandbox.aws.node_group_rules import NODE_GROUP_QUOTA
from gpu_sandbox.demo_trainings import example_dags, training_image
from tests.airflow import credentials
from tests.airflow.harness import Airflow
from tests.airflow.metrics import Metrics
from tests.airflow.pod_history import core, history, never_two
from tests.inherited import INHERITED

__all__ = ["core", "history", "never_two"]

REPOSITORY = Path(__file__).parents[2]


GROUPS = {
    "test_example_dags": "night",
    "test_gang": "night",
    "test_upgrade": "night",
    "test_block": "night",
    "test_changing_dags": "night",
    "test_kills": "pod",
    "test_ended_tasks": "pod",
    "test_gpu_pod": "pod",
    "test_gang_ends": "pod",
    "test_harness": "pod",
    "test_credentials": "pod",
    "test_example_dag_gke": "both clouds",
    "test_airflow_dead": "both clouds",
}
"""The files that go to one of pytest's workers, and so share a sandbox and, but for test_credentials, an Airflow.

Files that kill Airflow's components are together. Three workers, the third with the other files, take equally long,
with what is nightly and without.
"""


class ByAirflow(LoadScopeScheduling):
    """Files of one group go to one worker; any other file to whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return GROUPS.get(Path(file).stem, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByAirflow:
    return ByAirflow(config, log)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(images=(training_image(),), boot_seconds=1.0, timings=AwsTimings(spot_notice=2.0)) as sandbox:
        sandbox.aws.set_quota(NODE_GROUP_QUOTA, 500)  # tests leave their node groups
        yield sandbox


@pytest.fixture(scope="session")
def metrics() -> Iterator[Metrics]:
    metrics = Metrics()
    yield metrics
    metrics.close()


@pytest.fixture(scope="session")
def airflow(sandbox: Sandbox, metrics: Metrics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    dags = tmp_path_factory.mktemp("dags")
    (dags / "tests").symlink_to(Path(__file__).parent / "dags")
    (dags / "examples").symlink_to(example_dags())
    env = sandbox.env() | metrics.env | {"PYTHONPATH": python_path(REPOSITORY)}
    with AirflowHome(tmp_path_factory.mktemp("airflow"), dags, env, parallelism=8, inherited=INHERITED) as home:
        yield Airflow(home, sandbox)
        nothing_written(home, sandbox)


def nothing_written(home: AirflowHome, sandbox: Sandbox) -> None:
    """Hold that no credential of Airflow or the sandbox is in Airflow's database or logs."""
    secrets = credentials.patterns(home, sandbox)
    written = [*credentials.in_database(home, secrets), *credentials.in_logs(home, secrets)]
    assert not written, "\n".join(written)


@pytest.fixture(scope="session")
def gke() -> Iterator[Sandbox]:
    with Sandbox(platform="gke", images=(training_image(),), boot_seconds=1.0) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def home_on_both_clouds(
    sandbox: Sandbox, gke: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowHome]:
    """An Airflow with connections to both clouds, for the files of that group; one of them kills it."""
    dags = tmp_path_factory.mktemp("dags-on-both-clouds")
    (dags / "outages.py").symlink_to(Path(__file__).parent / "dags_airflow_dead" / "outages.py")
    (dags / "nightly_training_gke.py").symlink_to(example_dags() / "nightly_training_gke.py")
    env = gke.env() | sandbox.env() | {"PYTHONPATH": python_path(REPOSITORY)}
    with AirflowHome(tmp_path_factory.mktemp("airflow-on-both-clouds"), dags, env, inherited=INHERITED) as home:
        yield home
        for each in (sandbox, gke):
            nothing_written(home, each)


@pytest.fixture(autouse=True)
def begin_and_end_clean(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test sees an earlier one's runs, nor its faults."""
    if "airflow" not in request.fixturenames:
        yield
        return
    airflow: Airflow = request.getfixturevalue("airflow")
    airflow.begin_test()
    yield
    airflow.sandbox.faults.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    airflow = getattr(item, "funcargs", {}).get("airflow")
    if report.failed and call.when == "call" and isinstance(airflow, Airflow):
        report.sections.append(("Airflow's runs", airflow.account()))
    return report
