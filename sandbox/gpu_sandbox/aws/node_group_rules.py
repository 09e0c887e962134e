"""What EKS accepts for a managed node group: pure checks, each raising InvalidParameterException."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from moto.eks.exceptions import EKSError, InvalidParameterException

from gpu_sandbox.aws.capacity_reservations import target_of
from gpu_sandbox.aws.instance_types import InstanceTypeCatalogue

AMI_TYPES = frozenset(
    {
        "AL2_x86_64",
        "AL2_x86_64_GPU",
        "AL2_ARM_64",
        "CUSTOM",
        "BOTTLEROCKET_ARM_64",
        "BOTTLEROCKET_x86_64",
        "BOTTLEROCKET_ARM_64_FIPS",
        "BOTTLEROCKET_x86_64_FIPS",
        "BOTTLEROCKET_ARM_64_NVIDIA",
        "BOTTLEROCKET_x86_64_NVIDIA",
        "BOTTLEROCKET_ARM_64_NVIDIA_FIPS",
        "BOTTLEROCKET_x86_64_NVIDIA_FIPS",
        "WINDOWS_CORE_2019_x86_64",
        "WINDOWS_FULL_2019_x86_64",
        "WINDOWS_CORE_2022_x86_64",
        "WINDOWS_FULL_2022_x86_64",
        "AL2023_x86_64_STANDARD",
        "AL2023_ARM_64_STANDARD",
        "AL2023_x86_64_NEURON",
        "AL2023_x86_64_NVIDIA",
        "AL2023_ARM_64_NVIDIA",
    }
)
LAST_WITH_AL2 = "1.32"
"""The last Kubernetes with AMIs of Amazon Linux 2: "EKS AL2 & AL2-Accelerated AMIs transition guide"."""
CAPACITY_TYPES = frozenset({"ON_DEMAND", "SPOT", "CAPACITY_BLOCK"})
TAINT_EFFECTS = frozenset({"NO_SCHEDULE", "NO_EXECUTE", "PREFER_NO_SCHEDULE"})
MAX_TAINTS = 50
NODE_GROUP_QUOTA, MAX_NODE_GROUPS = "L-6D54EA21", 30
"""In one cluster, by default: "Amazon EKS endpoints and quotas" of AWS's General Reference."""
_NAME = re.compile(r"[0-9A-Za-z][A-Za-z0-9\-_]*")
_LABEL_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_RESERVED_PREFIXES = ("kubernetes.io", "k8s.io", "eks.amazonaws.com")


class ResourceLimitExceeded(EKSError):
    """The error of EKS's API model for a limit; the message is the sandbox's own."""

    TYPE = "ResourceLimitExceededException"
    STATUS = 400


def refuse(message: str, **subject: str | None) -> InvalidParameterException:
    """The exception to raise; `subject` may name clusterName and nodegroupName."""
    return InvalidParameterException(
        clusterName=subject.get("clusterName"),
        nodegroupName=subject.get("nodegroupName"),
        fargateProfileName=None,
        addonName=None,
        message=message,
    )


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > 63:
        raise refuse(
            "The nodegroup name can contain only alphanumeric characters, hyphens and underscores, must start "
            "with an alphanumeric character and can't be longer than 63 characters",
            nodegroupName=name,
        )


def check_scaling(scaling: Mapping[str, int]) -> None:
    """0 <= minSize <= desiredSize <= maxSize, and maxSize >= 1."""
    min_size, max_size, desired = scaling["minSize"], scaling["maxSize"], scaling["desiredSize"]
    if max_size < 1:
        raise refuse("maxSize must be at least 1")
    if min_size < 0 or desired < 0:
        raise refuse("minSize and desiredSize must be at least 0")
    if min_size > max_size:
        raise refuse(f"Minimum capacity {min_size} can't be greater than maximum size {max_size}")
    if desired > max_size:
        raise refuse(f"desired capacity {desired} can't be greater than max size {max_size}")
    if desired < min_size:
        raise refuse(f"Minimum capacity {min_size} can't be greater than desired size {desired}")


def check_taints(taints: Sequence[Mapping[str, str]]) -> None:
    if len(taints) > MAX_TAINTS:
        raise refuse(f"Maximum of {MAX_TAINTS} taints allowed per nodegroup")
    for taint in taints:
        if taint.get("effect") not in TAINT_EFFECTS:
            raise refuse(f"Invalid taint effect: {taint.get('effect')}, valid: {sorted(TAINT_EFFECTS)}")
        if not _qualified(taint.get("key") or ""):
            raise refuse(f"Invalid taint key: {taint.get('key')}")
        if taint.get("value") and not _label_value(taint["value"]):
            raise refuse(f"Invalid taint value: {taint['value']}")


def check_labels(labels: Mapping[str, str]) -> None:
    for key, value in labels.items():
        if not _qualified(key):
            raise refuse(f"Label keys must be valid Kubernetes label keys: {key}")
        if not _label_value(value):
            raise refuse(f"Label values must be valid Kubernetes label values: {key}={value}")
        prefix, slash, _ = key.rpartition("/")
        if slash and prefix in _RESERVED_PREFIXES:
            raise refuse(f"Label cannot contain reserved prefixes {list(_RESERVED_PREFIXES)}: {key}")


def _qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _LABEL_PREFIX.fullmatch(prefix)):
        return False
    return len(name) <= 63 and bool(_LABEL_PART.fullmatch(name))


def _label_value(value: str) -> bool:
    return value == "" or (len(value) <= 63 and bool(_LABEL_PART.fullmatch(value)))


def check_instances(
    *,
    instance_types: Sequence[str],
    ami_type: str | None,
    capacity_type: str | None,
    disk_size: int | None,
    version: str,
    catalogue: InstanceTypeCatalogue,
) -> None:
    """`version` is that of the nodes' Kubernetes, like "1.36"."""
    if ami_type is not None and ami_type not in AMI_TYPES:
        raise refuse(f"amiType {ami_type} is not supported")
    if capacity_type is not None and capacity_type not in CAPACITY_TYPES:
        raise refuse(f"capacityType {capacity_type} is not supported")
    if len(instance_types) > 20:
        raise refuse("instanceTypes can't have more than 20 entries")
    unknown = [one for one in instance_types if not catalogue.known(one)]
    if unknown:
        raise refuse(f"The following supplied instance types do not exist: [{', '.join(unknown)}]")
    if disk_size is not None and not 1 <= disk_size <= 16384:
        raise refuse("diskSize must be between 1 and 16384 GiB")
    _check_ami_fits(ami_type, instance_types, catalogue)
    _check_ami_exists(ami_type, version)


def _check_ami_fits(ami_type: str | None, instance_types: Sequence[str], catalogue: InstanceTypeCatalogue) -> None:
    if ami_type is None or ami_type == "CUSTOM":
        return
    architecture = "arm64" if "ARM_64" in ami_type else "x86_64"
    misfits = [one for one in instance_types if architecture not in catalogue.architectures(one)]
    if misfits:
        raise refuse(f"{misfits} is not a valid instance type for requested amiType {ami_type}")


def _check_ami_exists(ami_type: str | None, version: str) -> None:
    """In the words of aws/aws-cdk#37012."""
    if ami_type is not None and ami_type.startswith("AL2_") and minor(version) > minor(LAST_WITH_AL2):
        raise refuse(f"AMI Type {ami_type} is only supported for kubernetes versions {LAST_WITH_AL2} or earlier")


def minor(version: str) -> tuple[int, ...]:
    """The version of Kubernetes as numbers, the patch left out."""
    return tuple(int(part) for part in version.split(".")[:2])


def check_launch_template(
    *, disk_size: int | None, remote_access: object, has_image: bool, ami_type: str | None
) -> None:
    """What a group with a launch template must leave to it."""
    if disk_size is not None:
        raise refuse("Disk size must be specified within the launch template.")
    if remote_access:
        raise refuse("Remote access configuration cannot be specified with a launch template.")
    if has_image and ami_type not in (None, "CUSTOM"):
        raise refuse("You cannot specify an amiType when the launch template specifies an AMI")


def check_template_data(data: Mapping[str, Any]) -> None:
    """By botocore's LaunchTemplateSpecification, and the prohibited settings of "Customize managed nodes with launch
    templates" in EKS's user guide, which has the shutdown behavior too. The message is the sandbox's own.
    """
    interfaces = data.get("NetworkInterfaces") or ()
    never = {
        "IamInstanceProfile": data.get("IamInstanceProfile"),
        "SubnetId": any(interface.get("SubnetId") for interface in interfaces),
        "RequestSpotInstances": (data.get("InstanceMarketOptions") or {}).get("MarketType") == "spot",
        "InstanceInitiatedShutdownBehavior": data.get("InstanceInitiatedShutdownBehavior"),
        "HibernationOptions": str((data.get("HibernationOptions") or {}).get("Configured")).lower() == "true",
    }
    if found := [name for name, there in never.items() if there]:
        raise refuse(f"The launch template can't include {', '.join(found)}")


def check_template_of_a_block(data: Mapping[str, Any]) -> None:
    """What a Capacity Block's template has to set: "Create a managed node group with Capacity Blocks for ML" in EKS's
    user guide. The message is the sandbox's own.
    """
    is_block = (data.get("InstanceMarketOptions") or {}).get("MarketType") == "capacity-block"
    there = {
        "MarketType capacity-block": is_block,
        "a CapacityReservationId": bool(target_of(data)),
        "an InstanceType": bool(data.get("InstanceType")),
    }
    if lacking := [name for name, is_there in there.items() if not is_there]:
        raise refuse(f"The launch template of a node group of a Capacity Block has to have {', '.join(lacking)}")


def check_cluster_version(cluster: str, *, present: str, wanted: str, groups: Mapping[str, str]) -> None:
    """Whether a cluster may go on to another version; `groups` are its node groups' versions, by name.

    Botocore's UpdateClusterVersion: "all of your node groups' Kubernetes versions must match the cluster's Kubernetes
    version in order to update the cluster". The words are of hashicorp/terraform-provider-aws#19478.
    """
    if minor(wanted)[0] != minor(present)[0] or minor(wanted)[1] != minor(present)[1] + 1:
        raise refuse(f"Unsupported Kubernetes minor version update from {present} to {wanted}", clusterName=cluster)
    behind = sorted(name for name, version in groups.items() if minor(version) != minor(present))
    if behind:
        names = ", ".join(behind)
        text = f"Nodegroups {names} must be updated to match cluster version {present} before updating cluster version"
        raise refuse(text, clusterName=cluster)


def check_update_config(update_config: Mapping[str, Any], *, max_size: int) -> None:
    if update_config.get("updateStrategy", "DEFAULT") not in ("DEFAULT", "MINIMAL"):
        raise refuse("updateStrategy must be one of [DEFAULT, MINIMAL]")
    unavailable = update_config.get("maxUnavailable")
    percentage = update_config.get("maxUnavailablePercentage")
    if unavailable is not None and percentage is not None:
        raise refuse("Only one of maxUnavailable and maxUnavailablePercentage can be specified")
    if unavailable is not None and not 1 <= unavailable <= max_size:
        raise refuse("max-unavailable must be within the range 1 and max size of the node group")
    if percentage is not None and not 1 <= percentage <= 100:
        raise refuse("maxUnavailablePercentage must be between 1 and 100")
