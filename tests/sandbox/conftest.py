"""One real control plane for the tests of this folder; the fixtures for whole sandboxes are the product's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader
from google.auth.crypt import RSASigner
from xdist.scheduler import LoadScopeScheduling

from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import GpuError, OutOfStock, error_types
from airflow_gpu_provider.pods.wait import PodSnapshot, PodWait
from airflow_gpu_provider.scaling.nodes_wait import NodesWait
from gpu_sandbox.aws import AwsTimings
from gpu_sandbox.aws.node_group_rules import NODE_GROUP_QUOTA
from gpu_sandbox.aws.observer import aws_client
from gpu_sandbox.build import control_plane_binary
from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.demo_trainings import training_image
from gpu_sandbox.google import GoogleTimings
from gpu_sandbox.nodes import Image
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually

# To read a service account's key is to check it for 50 ms; in an Airflow each task does so once, here each operator.
RSASigner.from_string = cache(RSASigner.from_string)  # type: ignore[method-assign]

# Each boto3 session parses the models of its services for 50 ms each; in an Airflow a task has one, here each operator.
_load_file = JSONFileLoader.load_file
_model_at = cache(lambda path: _load_file(JSONFileLoader(), path))
JSONFileLoader.load_file = lambda self, path: _model_at(path)


# Begun last, an acceptance of minutes would be what the other workers' ends wait for.
LONGEST_FIRST = (
    "test_accept.py",
    "test_gpu_pod.py",
    "test_gang.py",
    "test_workload.py",
    "test_scale_only.py",
    "test_hard_to_get.py",
    "test_refusals.py",
    "nodes",
    "engines",
    "test_ensure.py",
    "test_howto_s4.py",
    "test_real_pace.py",
    "test_drop_in.py",
    "test_preemption.py",
    "test_autoscaler.py",
    "test_autoscaler_mode.py",
    "test_pod_without_block.py",
    "test_control_plane.py",
    "test_cluster_faults.py",
    "test_gpu_cli.py",
    "test_janitor.py",
)


class BySandbox(LoadScopeScheduling):
    """The files of `engines`, and those of `nodes`, share a cluster and a worker; any other has whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = Path(file).parent.name
        return folder if folder in ("engines", "nodes") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> BySandbox:
    return BySandbox(config, log)


def pytest_configure(config: pytest.Config) -> None:
    # By itself pytest-xdist begins with the files of the most tests.
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.name, rank.get(item.path.parent.name, len(rank))))


@pytest.fixture(scope="session")
def binary() -> Path:
    return control_plane_binary(print)


@contextlib.contextmanager
def control_plane_in(folder: Path, binary: Path) -> Iterator[ControlPlane]:
    control_plane = ControlPlane(binary=binary, data_dir=folder)
    control_plane.start()
    yield control_plane
    control_plane.stop()


@pytest.fixture(scope="module")
def control_plane(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A file's tests share it and clean up the objects that they make. To keep it longer costs more than its start."""
    with control_plane_in(tmp_path_factory.mktemp("control-plane"), binary) as control_plane:
        yield control_plane


@pytest.fixture(scope="module")
def gke_sandbox() -> Iterator[Sandbox]:
    """A GKE that is quicker than the product's own, beside `gpu_sandbox`; a file's tests share it and end their faults.

    Few files have it: to start it again costs less CPU than to have it, and its empty node pools, until a worker's end.
    """
    timings = GoogleTimings(node_pool_create=0.3, patience=1.0, driver=0.5, launch_retry=1.0, stale=0.0)
    with Sandbox(platform="gke", boot_seconds=0.5, timings=timings, progress=print) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def gpu_sandbox_settings() -> dict[str, Any]:
    """The shared sandbox runs the example training, has an image of some size, and spot notices are short in it.

    No read of its cloud is old: many tests hold what a single look sees. Nights with reads that are old are those of
    test_real_pace.py, of an acceptance, of tests/airflow and of its chaos.
    """
    images = (training_image(), Image(pattern="large:*", pull_seconds=1.5))
    return {"images": images, "timings": AwsTimings(spot_notice=1.0, stale=0.0)}


@pytest.fixture(scope="session")
def gpu_sandbox(gpu_sandbox: Sandbox) -> Iterator[Sandbox]:
    """The product's own, with a raised quota: tests leave their node groups."""
    gpu_sandbox.aws.set_quota(NODE_GROUP_QUOTA, 500)
    _shared[gpu_sandbox] = node_groups(gpu_sandbox)
    yield gpu_sandbox
    del _shared[gpu_sandbox]


_shared: dict[Sandbox, set[str | None]] = {}
"""The sandbox, and the node groups that it began with."""


@pytest.fixture(scope="module", autouse=True)
def no_empty_node_groups() -> Iterator[None]:
    """What a file's tests leave without a machine goes: cloud and autoscaler look at each group many times a second."""
    yield
    for sandbox, at_first in _shared.items():
        groups = sandbox.aws.describe_groups()
        delete_node_groups(sandbox, {each["nodegroup"] for each in groups if not each["instances"]} - at_first)


def node_groups(sandbox: Sandbox) -> set[str | None]:
    pages = aws_client(sandbox.aws, "eks").get_paginator("list_nodegroups")
    return set(pages.paginate(clusterName=sandbox.cluster_name).search("nodegroups"))


def delete_node_groups(sandbox: Sandbox, groups: set[str | None]) -> None:
    """Return when they are gone: the next file may have a pool of the same name."""
    eks = aws_client(sandbox.aws, "eks")
    going = set()
    for group in groups - {None}:
        # One that is being updated stays until the next file's end; one that is being deleted may be gone.
        with contextlib.suppress(eks.exceptions.ResourceInUseException, eks.exceptions.ResourceNotFoundException):
            eks.delete_nodegroup(clusterName=sandbox.cluster_name, nodegroupName=group)
            going.add(group)
    eventually(lambda: going.isdisjoint(node_groups(sandbox)))


@pytest.fixture(scope="session", autouse=True)
def quick_looks() -> Iterator[None]:
    """What takes minutes in a cloud takes a second here: who waits for it looks again sooner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_gpu_provider.operators.delete._POLL_SECONDS", 0.3)
        patch.setattr("airflow_gpu_provider.scaling.setbacks._EVERY", 1.0)
        patch.setattr("airflow_gpu_provider.scaling.janitor._POLL_SECONDS", 0.5)
        yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait bears what it would bear for some minutes: what is missing stays missing."""
    for cls in error_types():
        if cls.borne_for is not None:
            monkeypatch.setattr(cls, "borne_for", timedelta(0))


@pytest.fixture
def stock_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait for nodes, and no pod's wait for a node, ends before it has heard that there is no capacity.

    A busy machine may take longer for that than a test has time.
    """
    late, schedule_deadline = NodesWait._late, PodWait._schedule_deadline

    def out_of_stock(*seen: Any) -> GpuError | None:
        error = late(*seen)
        return error if isinstance(error, OutOfStock) else None

    def deadline(wait: PodWait, pod: PodState, snapshot: PodSnapshot) -> datetime:
        return schedule_deadline(wait, pod, snapshot) if snapshot.no_capacity else wait.deadline

    monkeypatch.setattr(NodesWait, "_late", out_of_stock)
    monkeypatch.setattr(PodWait, "_schedule_deadline", deadline)


@pytest.fixture(scope="module")
def env(gpu_sandbox: Sandbox) -> Iterator[None]:
    """This process as an Airflow on the shared sandbox."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in gpu_sandbox.env().items():
            patch.setenv(name, value)
        patch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
        yield
