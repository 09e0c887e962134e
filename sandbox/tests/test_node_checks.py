"""A process node passes the checks that a real kubelet passes, and tells the same stories (`sandbox/tests/kubelet`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_sandbox.nodes import NodeSpec
from gpu_sandbox.sandbox import Sandbox
from sandbox.tests.node_checks.checks import GPUS, NodeChecks

NODE = "process-1"


class TestProcessNode(NodeChecks):
    @pytest.fixture(scope="class")
    @classmethod
    def kubeconfig(cls, gpu_sandbox: Sandbox) -> Path:
        return gpu_sandbox.kubeconfig

    @pytest.fixture(scope="class")
    @classmethod
    def node(cls, gpu_sandbox: Sandbox) -> Iterator[str]:
        gpu_sandbox.agent.add_node(NodeSpec(name=NODE, gpus=GPUS))
        yield NODE
        gpu_sandbox.agent.remove_node(NODE)
