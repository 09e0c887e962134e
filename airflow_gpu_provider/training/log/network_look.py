"""NetworkLook: tells once that a gang trains over TCP on machines that have a faster network. Never an error.

NCCL prints these lines at NCCL_DEBUG=INFO: src/init.cc ("Using network %s") and src/transport/net.cc ("via NET/%s").
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import suppress

from airflow_gpu_provider.cluster.async_api import AsyncApi
from airflow_gpu_provider.cluster.nodes import INSTANCE_TYPE_LABEL
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pools.efa import EFA_INTERFACES
from airflow_gpu_provider.training.log.trigger_log import Log

_ANSWERED_WITHIN = 5.0

_ON_SOCKETS = re.compile(r"NCCL INFO (?:Using network Socket\b|Channel \S+ .* via NET/Socket)")

_GPUDIRECT = {
    "a3-highgpu-8g": "GPUDirect-TCPX",
    "a3-megagpu-8g": "GPUDirect-TCPXO",
    "a3-ultragpu-8g": "GPUDirect RDMA",
    "a4-highgpu-8g": "GPUDirect RDMA",
}
"""What NCCL can use on Google's machines, each with a plugin of its own: GKE's pages "Maximize GPU network bandwidth in
Standard mode clusters" and "AI-optimized GKE cluster"."""


class NetworkLook:
    """Reads the type of one node, when the first line says that NCCL uses sockets.

    Args:
        api: The cluster.
        log: The task's log.
        warning: What was logged already, by who followed the log before.

    Attributes:
        warning: What was logged; empty if there was nothing to warn of.
    """

    def __init__(self, api: AsyncApi, log: Log, warning: str) -> None:
        self._api = api
        self._log = log
        self._judging: asyncio.Task[None] | None = None
        self.warning = warning

    def hear(self, line: str, node: str) -> None:
        """Take a line that a rank on that node has printed."""
        if self._judging is None and not self.warning and node and is_on_sockets(line):
            self._judging = asyncio.create_task(self._judge(node))

    async def end(self) -> None:
        """Wait for a judgement that is under way."""
        if self._judging is not None:
            await asyncio.wait({self._judging}, timeout=_ANSWERED_WITHIN)
            self._judging.cancel()

    async def _judge(self, node: str) -> None:
        with suppress(GpuError):
            raw = await self._api.get(f"api/v1/nodes/{node}") or {}
            labels = raw.get("metadata", {}).get("labels") or {}
            if warning := on_sockets_in_words(labels.get(INSTANCE_TYPE_LABEL, "")):
                self.warning = warning
                self._log(logging.WARNING, "%s", warning)


def is_on_sockets(line: str) -> bool:
    """Return True for the line by which NCCL says that it goes over TCP."""
    return "NCCL INFO" in line and _ON_SOCKETS.search(line) is not None


def faster_than_sockets(instance_type: str) -> str:
    """Return the network that machines of that type have for NCCL besides TCP, in words; empty if they have none."""
    if interfaces := EFA_INTERFACES.get(instance_type):
        return f"up to {interfaces} EFA interface{'s' * (interfaces > 1)}"
    return _GPUDIRECT.get(instance_type, "")


def on_sockets_in_words(instance_type: str) -> str:
    """Return what to tell about a gang whose NCCL goes over TCP; empty where its machines have nothing better."""
    faster = faster_than_sockets(instance_type)
    if not faster:
        return ""
    return (
        f"NCCL uses NET/Socket, which is TCP over one network interface, and {instance_type} has {faster}: the GPUs"
        " wait for the network, and look busy. docs/multi-node.md says what it takes to use it."
    )
