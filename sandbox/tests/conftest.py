"""The sandbox's own tests: one control plane for each file, and one sandbox for each worker."""

from __future__ import annotations

from typing import Any

import pytest

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

LONGEST_FIRST = ("process_nodes", "test_autoscaler.py", "test_control_plane.py", "test_cli.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """The files of process_nodes share a cluster."""
    return ByFile(config, log, folders={"process_nodes"})


def pytest_configure(config: pytest.Config) -> None:
    # By itself pytest-xdist begins with the files of the most tests.
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    in_order(items, LONGEST_FIRST)
