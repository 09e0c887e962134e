"""Instance types whose GPUs cluster-autoscaler does not see: EC2 counts a part of a GPU as none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_gpu_provider.accelerators import instance_type
from airflow_gpu_provider.errors import CloudError, PermissionDenied, PoolSpecError
from airflow_gpu_provider.platforms.aws.clients import AwsService
from airflow_gpu_provider.pools import EksGpuPool


def check(ec2: AwsService, pool: EksGpuPool, types: Iterable[str]) -> None:
    """Refuse types for which no tag tells cluster-autoscaler how many GPUs a node has, and EC2 tells it none.

    Such a type has parts of GPUs: its Count is 0, as intended (aws/aws-cli#9659), and its LogicalGpuCount is not.

    Args:
        ec2: The service.
        pool: One that cluster-autoscaler scales; of another nothing is asked.
        types: Those of its groups without that tag: of types in the catalogue this package writes it.

    Raises:
        PoolSpecError: There are such types.
    """
    unknown = sorted({name for name in types if name and instance_type(name) is None})
    if not unknown or not pool.is_autoscaled:
        return
    try:
        described = list(ec2.items("describe_instance_types", "InstanceTypes", InstanceTypes=unknown))
    except (CloudError, PermissionDenied):  # whether EC2 has such types at all is judged elsewhere
        return
    if unseen := [each["InstanceType"] for each in described if not _whole_gpus(each)]:
        raise PoolSpecError(
            f"Pool {pool.name}: EC2 reports no whole GPU for {', '.join(unseen)}, so cluster-autoscaler would add no"
            " node for a pod that requests one.",
            'Use scaling="direct"; or manage="scale" with groups whose tag'
            " k8s.io/cluster-autoscaler/node-template/resources/nvidia.com/gpu has their number.",
            pool=pool.name,
            instance_types=unseen,
        )


def _whole_gpus(described: Mapping[str, Any]) -> int:
    gpus = (described.get("GpuInfo") or {}).get("Gpus") or ()
    return sum(int(each.get("Count") or 0) for each in gpus)
