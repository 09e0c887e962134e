"""What EksGpuPool(fast_start=True) means for the groups of one EC2 type: how images are there sooner. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_gpu_provider.accelerators import instance_type
from airflow_gpu_provider.pools import EksGpuPool
from airflow_gpu_provider.pools.node_user_data import API_VERSION, as_data

THROUGHPUT = 600
"""MiB a second: what nodeadm's FastImagePull asks of a disk (awslabs/amazon-eks-ami, "Fast image pull")."""

_SMALLEST = 8
"""vCPUs: that of a 2xlarge, below which nodeadm leaves FastImagePull off."""

_ON_LOCAL_DISKS = {
    "apiVersion": API_VERSION,
    "kind": "NodeConfig",
    "spec": {"instance": {"localStorage": {"strategy": "RAID0"}}, "featureGates": {"FastImagePull": True}},
}
"""The kubelet's and containerd's files on the machine's own disks, and images pulled and unpacked in parallel."""

_WITHOUT_DISKS = ("p2", "p3", "g5g")
"""The families of the catalogue without disks of their own (DescribeInstanceTypes, InstanceStorageInfo)."""


def has_local_disk(name: str) -> bool:
    """Return True if machines of EC2 type `name` have local NVMe; False for a type that the catalogue does not know."""
    return instance_type(name) is not None and name.partition(".")[0] not in _WITHOUT_DISKS


def uses_local_disks(pool: EksGpuPool, name: str) -> bool:
    """Return True if a fast start of EC2 type `name` is on the machine's own disks; otherwise its volume is faster."""
    machine = instance_type(name)
    is_large = machine is not None and machine.vcpus >= _SMALLEST
    return is_large and has_local_disk(name) and pool.ami_type.startswith("AL2023_")


def started_fast(pool: EksGpuPool, name: str) -> EksGpuPool:
    """Return the pool as its groups of EC2 type `name` are made; what the spec itself says of them counts."""
    if not pool.fast_start:
        return pool
    if not uses_local_disks(pool, name):
        return replace(pool, disk_throughput=pool.disk_throughput or THROUGHPUT)
    own = {} if pool.user_data is None else as_data(pool.user_data, pool.ami_type)
    return replace(pool, user_data=_merged(_ON_LOCAL_DISKS, own))


def _merged(ours: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Return both, with the fields of objects that both have merged likewise; else the second counts."""
    found = {**ours, **own}
    for key in ours.keys() & own.keys():
        mine, given = ours[key], own[key]
        if isinstance(mine, Mapping) and isinstance(given, Mapping):
            found[key] = _merged(mine, given)
    return found
