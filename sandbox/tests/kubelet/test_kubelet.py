"""A real kubelet, with containerd: the checks that process nodes pass too, and the stories that both tell alike."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_gpu_provider import KubernetesGpuPool
from sandbox.tests.node_checks import stories
from sandbox.tests.node_checks.checks import NodeChecks


class TestKubelet(NodeChecks):
    @pytest.fixture(scope="class")
    @classmethod
    def told(cls, kubeconfig: Path, node: str, pool: KubernetesGpuPool) -> dict[str, dict[str, Any]]:
        told = stories.tell_all(kubeconfig, node)
        if os.environ.get("RECORD_KUBELET"):
            stories.record(told)
        return told
