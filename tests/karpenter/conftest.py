"""One sandbox with the real Karpenter for a worker; each test has NodePools of its own in it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from gpu_sandbox.aws import AwsTimings
from gpu_sandbox.demo_trainings import training_image
from gpu_sandbox.karpenter import Karpenter, MachineCloud
from gpu_sandbox.sandbox import Sandbox
from tests.karpenter.cluster import Cluster


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"autoscaler": "none", "images": (training_image(),), "timings": AwsTimings(stale=0.0)}
    with (
        Sandbox(cluster_name="karpenter", progress=print, **settings) as sandbox,
        Karpenter(
            control_plane=sandbox.control_plane,
            agent=sandbox.agent,
            data_dir=sandbox.data_dir / "karpenter",
            zones=sandbox.zones,
        ) as karpenter,
    ):
        cluster = Cluster(sandbox, karpenter)
        yield cluster
        karpenter.check()


@pytest.fixture
def cluster(started: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster, in which this process is an Airflow's worker and triggerer; the test's NodePools go after it."""
    for name, value in started.sandbox.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    for view in ("view", "object_view"):  # a deadline that a test moves is looked at within a second
        monkeypatch.setattr(f"airflow_gpu_provider.training.watch.{view}.LONGEST", 1.0)
    yield started
    started.clear()


@pytest.fixture
def cloud(cluster: Cluster) -> MachineCloud:
    return cluster.karpenter.cloud


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where a test has failed, the end of Karpenter's log is in its report."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.when == "call" and report.failed and cluster is not None:
        report.sections.append(("Karpenter", tail(cluster.karpenter.log)))
    return report


def tail(log: Path, lines: int = 60) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
