"""AWS on one machine: moto in process, with the life cycles of EKS node groups and Auto Scaling completed."""

from __future__ import annotations

from gpu_sandbox.aws.access import PolicyUse
from gpu_sandbox.aws.cloud import AwsCloud
from gpu_sandbox.aws.interface import (
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
