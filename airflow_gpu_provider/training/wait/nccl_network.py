"""Whether NCCL talks over plain TCP although the machines have a faster network: from a line of its log. Pure.

NCCL prints these lines at NCCL_DEBUG=INFO: src/init.cc ("Using network %s") and src/transport/net.cc ("via NET/%s").
"""

from __future__ import annotations

import re

from airflow_gpu_provider.pools.efa import EFA_INTERFACES

_ON_SOCKETS = re.compile(r"NCCL INFO (?:Using network Socket\b|Channel \S+ .* via NET/Socket)")

_GPUDIRECT = {
    "a3-highgpu-8g": "GPUDirect-TCPX",
    "a3-megagpu-8g": "GPUDirect-TCPXO",
    "a3-ultragpu-8g": "GPUDirect RDMA",
    "a4-highgpu-8g": "GPUDirect RDMA",
}
"""What NCCL can use on Google's machines, each with a plugin of its own: GKE's pages "Maximize GPU network bandwidth in
Standard mode clusters" and "AI-optimized GKE cluster"."""


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
