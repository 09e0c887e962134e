"""Which EC2 types have disks of their own, on which images are there sooner than on a network volume. Pure."""

from __future__ import annotations

from airflow_gpu_provider.accelerators import instance_type

_WITHOUT = ("p2", "p3", "g5g")
"""The families of the catalogue that have none (DescribeInstanceTypes, InstanceStorageInfo)."""


def has_local_disk(name: str) -> bool:
    """Return True if machines of EC2 type `name` have local NVMe; False for a type that the catalogue does not know."""
    return instance_type(name) is not None and name.partition(".")[0] not in _WITHOUT
