"""Which node conditions and marks speak against a node's GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_gpu_provider.cluster.gpu_health import BAD_GPU, why_bad
from airflow_gpu_provider.cluster.nodes import Node


def a_node(*conditions: tuple[str, str], mark: str | None = None, boot: str = "b1") -> dict[str, Any]:
    said = [{"type": kind, "status": status, "reason": "R"} for kind, status in conditions]
    return {
        "metadata": {
            "name": "n1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {BAD_GPU: mark} if mark else {},
        },
        "status": {"conditions": said, "nodeInfo": {"bootID": boot}},
    }


MARK = json.dumps({"at": "2026-01-01T02:00:00Z", "boot": "b1", "why": "Xid 79"})


@pytest.mark.parametrize(
    ("condition", "is_bad"),
    [
        (("AcceleratedHardwareReady", "False"), True),
        (("AcceleratedHardwareReady", "True"), False),
        (("AcceleratedHardwareReady", "Unknown"), False),
        (("GpuUnhealthy", "True"), True),
        (("GpuUnhealthy", "False"), False),
        (("GPUMissing", "True"), True),
        (("NVLinkStatusInactive", "True"), True),
        (("GpuDriverInstalled", "True"), False),
        (("Ready", "False"), False),
        (("MemoryPressure", "True"), False),
    ],
)
def test_conditions(condition: tuple[str, str], is_bad: bool) -> None:
    assert bool(why_bad(a_node(condition))) is is_bad


def test_a_mark_holds_for_one_boot() -> None:
    assert why_bad(a_node(mark=MARK)) == "Xid 79"
    assert why_bad(a_node(mark=MARK, boot="b2")) == ""


def test_a_persons_own_mark_counts() -> None:
    assert BAD_GPU in why_bad(a_node(mark="since Tuesday"))


def test_node_with_a_broken_gpu_is_not_usable() -> None:
    nodes = [Node.parse(a_node(("Ready", "True"), mark=mark)) for mark in (None, MARK)]
    assert [node.usable for node in nodes] == [True, False]
