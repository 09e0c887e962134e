"""One real control plane for the tests of this folder; the fixtures for whole sandboxes are the product's own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.auth.crypt import RSASigner

from airflow_gpu_provider.errors import error_types
from gpu_sandbox.aws import AwsTimings
from gpu_sandbox.aws.node_group_rules import NODE_GROUP_QUOTA
from gpu_sandbox.build import control_plane_binary
from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.demo import training_image
from gpu_sandbox.google import GoogleTimings
from gpu_sandbox.nodes import Image
from gpu_sandbox.sandbox import Sandbox

# To read a service account's key is to check it for 50 ms; in an Airflow each task does so once, here each operator.
RSASigner.from_string = cache(RSASigner.from_string)  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def binary() -> Path:
    return control_plane_binary(print)


@pytest.fixture(scope="session")
def control_plane(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Shared: tests leave it running, and clean up the objects that they make."""
    control_plane = ControlPlane(binary=binary, data_dir=tmp_path_factory.mktemp("control-plane"))
    control_plane.start()
    yield control_plane
    control_plane.stop()


@pytest.fixture(scope="session")
def gke_sandbox() -> Iterator[Sandbox]:
    """A GKE that is quicker than the product's own, beside `gpu_sandbox`; tests share it, and end their faults."""
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
def gpu_sandbox(gpu_sandbox: Sandbox) -> Sandbox:
    """The product's own, with a raised quota: tests leave their node groups."""
    gpu_sandbox.aws.set_quota(NODE_GROUP_QUOTA, 500)
    return gpu_sandbox


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait bears what it would bear for some minutes: what is missing stays missing."""
    for cls in error_types():
        if cls.borne_for is not None:
            monkeypatch.setattr(cls, "borne_for", timedelta(0))


@pytest.fixture(scope="module")
def env(gpu_sandbox: Sandbox) -> Iterator[None]:
    """This process as an Airflow on the shared sandbox."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in gpu_sandbox.env().items():
            patch.setenv(name, value)
        patch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
        yield
