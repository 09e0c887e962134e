"""What lets a pool have more machines, in the words of its own spec: the advice of errors about machines that lack."""

from __future__ import annotations

from airflow_gpu_provider.pools.gpu_pool import GpuPool

_OF_NODE_POOLS = (
    "Allow its NodePool more: other types, zones or capacity types in its requirements, higher limits;"
    " or add a NodePool with the same labels"
)
_OF_PROVISIONERS = {
    "karpenter": _OF_NODE_POOLS,
    "auto-mode": _OF_NODE_POOLS,
    "autopilot": "Select GPUs that more machines have, or another zone or capacity, by node_selector_labels",
    "compute-class": "Give its ComputeClass more priorities: other machine types, zones, reservations or spot",
    "cluster-autoscaler": "Add groups to cluster-autoscaler whose nodes have these labels, or a higher maximum size",
}
_OF_SPECS = {
    "eks": "Add zones, instance_types or capacity_types to the pool",
    "gke": "Add node_locations, machine_types or capacity_types to the pool",
    "kubernetes": "Add nodes to the pool",
}
_OF_OTHERS_GROUPS = {
    "eks": "Name more groups in the pool's node_groups or asg_names",
    "gke": "Name more of the cluster's node pools in the pool's node_pools",
}


def how_to_widen(pool: GpuPool) -> str:
    """Return what to do so that more machines can be the pool's: the beginning of a sentence."""
    provisioner = getattr(pool, "provisioner", None)
    if provisioner:
        return _OF_PROVISIONERS[provisioner]
    return (_OF_OTHERS_GROUPS if pool.manage == "scale" else _OF_SPECS)[pool.kind]
