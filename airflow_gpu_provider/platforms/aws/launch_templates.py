"""EC2 launch templates: what nodes are made from, and whether the one that a pool names will do; and placement groups.

A placement group has the name of its node group's launch template, which names it, and tags by which it is found when a
killed process has left it. It costs nothing, and its machines are near each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow_gpu_provider.errors import CloudError, PermissionDenied, PoolDrift, PoolSpecError
from airflow_gpu_provider.platforms.answers import has_code, message_of, unless_answered
from airflow_gpu_provider.platforms.aws.clients import AwsService, tags_of
from airflow_gpu_provider.platforms.aws.spec import (
    CLUSTER_TAG,
    GROUP_TAG,
    POOL_TAG,
    launch_template,
    template_is_pinned,
)
from airflow_gpu_provider.platforms.base import Report
from airflow_gpu_provider.pools import EksGpuPool
from airflow_gpu_provider.pools.eks import IMAGE_VOLUME

_NOT_FOUND = (  # "Error codes for the Amazon EC2 API"
    "InvalidLaunchTemplateId.Malformed",
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateId.VersionNotFound",
    "InvalidLaunchTemplateName.MalformedException",
    "InvalidLaunchTemplateName.NotFoundException",
)
# botocore's eks, LaunchTemplateSpecification: what a template of a node group must not have.
_NEVER_TAKEN: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "an IamInstanceProfile": lambda data: bool(data.get("IamInstanceProfile")),
    "a subnet": lambda data: any(each.get("SubnetId") for each in data.get("NetworkInterfaces") or ()),
    "a request for spot instances": lambda data: (data.get("InstanceMarketOptions") or {}).get("MarketType") == "spot",
    "HibernationOptions": lambda data: bool((data.get("HibernationOptions") or {}).get("Configured")),
}


def check(ec2: AwsService, pool: EksGpuPool) -> tuple[str, ...]:
    """Ask EC2 for the launch template of a pool that has one. Returns what to know of it.

    Raises:
        PoolSpecError: There is no such template or no such version of it, or it does not go with the pool.
    """
    if not pool.launch_template:
        return ()
    try:
        data = _read(ec2, launch_template(pool.launch_template))["LaunchTemplateData"]
    except PermissionDenied:
        return (
            f"launch template {pool.launch_template} is not checked: ec2:DescribeLaunchTemplateVersions is not allowed",
        )
    except CloudError as error:
        if not has_code(error, *_NOT_FOUND):
            raise
        raise PoolSpecError(
            f"Pool {pool.name}: EC2 has no launch template {pool.launch_template} in {pool.region}:"
            f" {message_of(error).rstrip('.')}.",
            "Correct the pool's launch_template, or create that template or version.",
            launch_template=pool.launch_template,
        ) from error
    check_fits(data, pool)
    return disk_notes(pool, data)


def disk_notes(pool: EksGpuPool, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what to know of Bottlerocket's volume for images where the pool's template leaves it as it is. Pure."""
    volumes = {each.get("DeviceName") for each in data.get("BlockDeviceMappings", ())}
    if not pool.has_image_volume or IMAGE_VOLUME in volumes:
        return ()
    return (
        f"with ami_type {pool.ami_type} images and pods have 20 GiB on {IMAGE_VOLUME}, whatever the root volume's size:"
        f" {'enlarge that volume in the launch template' if pool.launch_template else 'set disk_size'}"
        " (docs/node-images.md)",
    )


def check_fits(data: Mapping[str, Any], pool: EksGpuPool) -> None:
    """Refuse a template that says what the pool says, or lacks what the pool leaves to it. Pure.

    EKS makes no group of the first kind ("Customize managed nodes with launch templates" in its user guide). Without an
    image from anywhere it takes the default one, which has no driver.

    Raises:
        PoolSpecError: As said.
    """
    if data.get("InstanceType"):
        why = f"it names an instance type, {data['InstanceType']}, and so does the pool"
        fix = "Take the type out of the template: the pool has a node group for each of its instance_types."
    elif data.get("ImageId") and pool.ami_type != "CUSTOM":
        why = f"it names an image, {data['ImageId']}, and the pool has ami_type {pool.ami_type}"
        fix = 'Set ami_type="CUSTOM", or take the image out of the template.'
    elif pool.ami_type == "CUSTOM" and not data.get("ImageId"):
        why = "it names no image, and EKS would take one without NVIDIA's driver for ami_type CUSTOM"
        fix = "Put the image into the template, or leave ami_type out."
    elif never := [name for name, says in _NEVER_TAKEN.items() if says(data)]:
        why = f"it has {' and '.join(never)}, and EKS takes no template with that"
        fix = "Take it out of the template: the node group has a role, subnets and capacity type of its own."
    else:
        return
    raise PoolSpecError(
        f"Pool {pool.name}: launch template {pool.launch_template} does not go with it: {why}.",
        fix,
        launch_template=pool.launch_template,
    )


def wanted_version(ec2: AwsService, pool: EksGpuPool) -> str | None:
    """Return the number of the version of its launch template that a pool names; None where it may not be read.

    $Latest, $Default and no version mean what they mean today.
    """
    reference = launch_template(pool.launch_template or "")
    if template_is_pinned(reference):
        return reference["version"]
    try:
        return str(_read(ec2, reference)["VersionNumber"])
    except (CloudError, PermissionDenied):
        return None


def template_data(ec2: AwsService, reference: Mapping[str, str]) -> Mapping[str, Any]:
    """Return what a launch template says; {} where it is gone or may not be read.

    Args:
        ec2: The service.
        reference: In EKS's words: "id" or "name", and "version" where it is not the default one.
    """
    try:
        data: Mapping[str, Any] = _read(ec2, reference)["LaunchTemplateData"]
        return data
    except (CloudError, PermissionDenied):
        return {}


def _read(ec2: AwsService, reference: Mapping[str, str]) -> Mapping[str, Any]:
    by = {"LaunchTemplateId": reference["id"]} if "id" in reference else {"LaunchTemplateName": reference["name"]}
    versions = [reference.get("version") or "$Default"]
    answer = ec2.call("describe_launch_template_versions", **by, Versions=versions)
    found: Mapping[str, Any] = answer["LaunchTemplateVersions"][0]
    return found


_TAKEN, _GONE = "InvalidPlacementGroup.Duplicate", "InvalidPlacementGroup.Unknown"  # "Error codes" of the EC2 API


class PlacementGroups:
    """The placement groups of one pool's node groups. Every method makes fresh calls."""

    def __init__(self, ec2: AwsService, pool: EksGpuPool) -> None:
        self._ec2 = ec2
        self._pool = pool

    def ensure(self, name: str, tags: Mapping[str, str], report: Report) -> None:
        """Make a placement group of this name where there is none.

        Raises:
            PoolDrift: Somebody else has one.
        """
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        for found in self._described({"group-name": name}):
            if tags_of(found).get(POOL_TAG) == self._pool.name:
                return
            raise PoolDrift(
                f"EC2 has a placement group {name} that this package did not make for pool {self._pool.name}.",
                "Delete that placement group, or give the pool another name.",
                placement_group=name,
            )
        with unless_answered(_TAKEN):  # by another run, just now
            self._ec2.call(
                "create_placement_group",
                GroupName=name,
                Strategy="cluster",
                TagSpecifications=[{"ResourceType": "placement-group", "Tags": listed}],
            )
            report(f"created placement group {name}")

    def delete_all_but(self, groups: Collection[str], report: Report) -> None:
        """Delete the pool's placement groups whose node groups are not among these; fine if one is gone.

        Raises:
            CloudError: Machines of it are not gone yet: InvalidPlacementGroup.InUse.
        """
        wanted = {f"tag:{POOL_TAG}": self._pool.name, f"tag:{CLUSTER_TAG}": self._pool.cluster_name}
        try:
            found = self._described(wanted)
        except PermissionDenied:
            return  # who may not list them never made one
        for each in found:
            if tags_of(each).get(GROUP_TAG) not in groups:
                with unless_answered(_GONE):
                    self._ec2.call("delete_placement_group", GroupName=each["GroupName"])
                    report(f"deleted placement group {each['GroupName']}")

    def _described(self, filters: Mapping[str, str]) -> list[Mapping[str, Any]]:
        listed = [{"Name": name, "Values": [value]} for name, value in filters.items()]
        found = self._ec2.call("describe_placement_groups", Filters=listed)["PlacementGroups"]
        return [each for each in found if each.get("State") != "deleted"]
