"""Sandboxes and control planes for tests of the provider and of the sandbox: a conftest.py imports what it has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
