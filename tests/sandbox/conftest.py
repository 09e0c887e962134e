"""The provider against a sandbox: quick looks, and waits that end as a test needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import pytest
from botocore.client import ClientCreator
from botocore.loaders import JSONFileLoader, Loader
from google.auth.crypt import RSASigner
from kubernetes import client, config

from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.errors import GpuError, OutOfStock, error_types
from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot, PodWait
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually
from tests.sandboxes import (
    binary,
    control_plane,
    gke_sandbox,
    gpu_sandbox,
    gpu_sandbox_settings,
    no_empty_node_groups,
)
from tests.sharing_out import ByFile, in_order

__all__ = ["binary", "control_plane", "gke_sandbox", "gpu_sandbox", "gpu_sandbox_settings", "no_empty_node_groups"]

# To read a service account's key is to check it for 50 ms; in an Airflow each task does so once, here each operator.
RSASigner.from_string = cache(RSASigner.from_string)  # type: ignore[method-assign]

# Each boto3 session looks for all services, parses the models of its own for 50 ms each, and makes classes of them for
# 20 ms; in an Airflow a task has one session, here each operator.
_load_file = JSONFileLoader.load_file
_model_at = cache(lambda path: _load_file(JSONFileLoader(), path))
JSONFileLoader.load_file = lambda self, path: _model_at(path)
_list_services = Loader.list_available_services
_services_of = cache(lambda type_name: _list_services(Loader(), type_name))
Loader.list_available_services = lambda self, type_name: _services_of(type_name)
_make_class = ClientCreator._create_client_class
_classes: dict[str, type] = {}


def _class_of(creator: ClientCreator, service: str, model: Any) -> type:
    return _classes.get(service) or _classes.setdefault(service, _make_class(creator, service, model))


ClientCreator._create_client_class = _class_of


# The platforms' tests hardly wait, and have one process each: begun late, they run on one core while the other idles.
LONGEST_FIRST = (
    "test_accept.py",
    "test_platform_eks.py",
    "test_platform_gke.py",
    "test_gpu_cli.py",
    "test_scale_only.py",
    "test_ensure.py",
    "test_capacity_blocks.py",
    "test_scarce_capacity.py",
    "test_refusals.py",
    "test_pod_without_block.py",
    "test_doctor.py",
    "test_gpu_use.py",
    "test_pod_ends.py",
    "test_drop_in.py",
    "test_gang_queue.py",
    "test_bill_after_losses.py",
    "test_howto_s4.py",
    "test_preemption.py",
    "test_gang.py",
    "test_gpu_pod.py",
    "test_gang_losses.py",
    "test_live_logs.py",
    "test_provisioners.py",
    "test_gpu_pod_machines.py",
    "test_rbac.py",
    "test_autoscaler_mode.py",
    "test_reconcile.py",
    "test_workload.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_configure(config: pytest.Config) -> None:
    # By itself pytest-xdist begins with the files of the most tests.
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    in_order(items, LONGEST_FIRST)


@pytest.fixture(scope="session", autouse=True)
def quick_looks() -> Iterator[None]:
    """What takes minutes in a cloud takes a second here: who waits for it looks again sooner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_gpu_provider.operators.delete._POLL_SECONDS", 0.3)
        patch.setattr("airflow_gpu_provider.scaling.wait.retry._EVERY", 1.0)
        patch.setattr("airflow_gpu_provider.scaling.end.janitor._POLL_SECONDS", 0.5)
        yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait bears what it would bear for some minutes: what is missing stays missing."""
    for cls in error_types():
        if cls.tolerated_for is not None:
            monkeypatch.setattr(cls, "tolerated_for", timedelta(0))


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


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triggers send their events at once: there is no scheduler here to be patient for."""
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)


@pytest.fixture
def api_client(env: None) -> client.ApiClient:
    return config.new_client_from_config(os.environ["KUBECONFIG"])


@pytest.fixture
def batch(api_client: client.ApiClient) -> client.BatchV1Api:
    return client.BatchV1Api(api_client)


@pytest.fixture
def api(batch: client.BatchV1Api) -> Iterator[client.CoreV1Api]:
    """The cluster, as its administrator; what a test left is deleted."""
    core = client.CoreV1Api(batch.api_client)
    yield core
    batch.delete_collection_namespaced_job("default", propagation_policy="Background")
    core.delete_collection_namespaced_pod("default", grace_period_seconds=1)
    eventually(lambda: not core.list_namespaced_pod("default").items)
