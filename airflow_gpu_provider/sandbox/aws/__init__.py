"""AWS on one machine: moto in process, with the life cycles of EKS node groups and Auto Scaling completed."""

from __future__ import annotations

from airflow_gpu_provider.sandbox.aws.access import PolicyUse
from airflow_gpu_provider.sandbox.aws.cloud import AwsCloud
from airflow_gpu_provider.sandbox.aws.interface import (
    AccessKey,
    AwsTimings,
    ClusterNetwork,
    Identity,
    Instance,
    ScalableGroup,
    Taint,
)

__all__ = [
    "AccessKey",
    "AwsCloud",
    "AwsTimings",
    "ClusterNetwork",
    "Identity",
    "Instance",
    "PolicyUse",
    "ScalableGroup",
    "Taint",
]
