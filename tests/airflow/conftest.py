"""One Airflow, over one sandbox, for all tests of a session: starting both takes longer than most tests."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from airflow_gpu_provider.sandbox.airflow_home import AirflowHome
from tests.airflow.harness import Airflow

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    home = AirflowHome(tmp_path_factory.mktemp("airflow"), Path(__file__).parent / "dags", {"PYTHONPATH": path})
    with home:
        yield Airflow(home)


@pytest.fixture(autouse=True)
def forget_earlier_runs(request: pytest.FixtureRequest) -> None:
    if "airflow" in request.fixturenames:
        request.getfixturevalue("airflow").begin_test()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    airflow = getattr(item, "funcargs", {}).get("airflow")
    if report.failed and call.when == "call" and isinstance(airflow, Airflow):
        report.sections.append(("Airflow's runs", airflow.account()))
    return report
