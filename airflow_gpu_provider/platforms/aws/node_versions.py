"""What the nodes of a node group are made from - Kubernetes, image, launch template - and how to make them from newer.

EKS makes a group from the newest of that day, and changes it by UpdateNodegroupVersion alone, which replaces the
group's machines. A group that stays behind keeps the cluster itself from being upgraded (botocore,
UpdateClusterVersion).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_gpu_provider.errors import CloudError, PermissionDenied, QuotaExceeded
from airflow_gpu_provider.platforms.aws.clients import AwsService
from airflow_gpu_provider.platforms.aws.launch_templates import wanted_version
from airflow_gpu_provider.platforms.aws.spec import UPDATE_STRATEGY, is_of_template, launch_template
from airflow_gpu_provider.platforms.base import Change
from airflow_gpu_provider.platforms.group_checks import Difference
from airflow_gpu_provider.pools import EksGpuPool

# EKS user guide, "Retrieve recommended Amazon Linux AMI IDs", and "... Bottlerocket AMI IDs".
_AMAZON_LINUX = "/aws/service/eks/optimized-ami/{kubernetes}/%s/recommended/release_version"
_BOTTLEROCKET = "/aws/service/bottlerocket/aws-k8s-{kubernetes}-%s/latest/image_version"
_RELEASES = {
    "AL2023_x86_64_NVIDIA": _AMAZON_LINUX % "amazon-linux-2023/x86_64/nvidia",
    "AL2023_ARM_64_NVIDIA": _AMAZON_LINUX % "amazon-linux-2023/arm64/nvidia",
    "AL2_x86_64_GPU": _AMAZON_LINUX % "amazon-linux-2-gpu",
    "BOTTLEROCKET_x86_64_NVIDIA": _BOTTLEROCKET % "nvidia/x86_64",
    "BOTTLEROCKET_ARM_64_NVIDIA": _BOTTLEROCKET % "nvidia/arm64",
    "BOTTLEROCKET_x86_64_NVIDIA_FIPS": _BOTTLEROCKET % "nvidia-fips/x86_64",
    "BOTTLEROCKET_ARM_64_NVIDIA_FIPS": _BOTTLEROCKET % "nvidia-fips/arm64",
}
"""The parameters of Parameter Store that hold the newest releases, by ami_type."""
_CANNOT = "is DEGRADED, and EKS cannot update it"
_NO_OTHER = "EKS takes no other for a group that is there"


@dataclass(frozen=True, kw_only=True)
class Newest:
    """What EKS would make a new group from today.

    Attributes:
        kubernetes: The cluster's version, like "1.36".
        releases: Of the image, by ami_type; those that could be read.
        template: The number of the version of the pool's launch template; None where there is none, or it may not be
            read.
        own: In what the launch templates of ours that groups were made from differ from what they are to say, by group.
        unread: Why something could not be read, for people.
    """

    kubernetes: str
    releases: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    own: Mapping[str, Sequence[Difference]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


def read_newest(
    pool: EksGpuPool, kubernetes: str, groups: Iterable[Mapping[str, Any]], *, ssm: AwsService, ec2: AwsService
) -> Newest:
    """Read what such groups (DescribeNodegroup's answers) would be made from; one call for each kind of image."""
    releases, unread = dict[str, str](), list[str]()
    groups = tuple(groups)
    for ami_type in dict.fromkeys(str(group.get("amiType")) for group in groups):
        if ami_type not in _RELEASES:
            continue
        try:
            answer = ssm.call("get_parameter", Name=_RELEASES[ami_type].format(kubernetes=kubernetes))
            releases[ami_type] = str(answer["Parameter"]["Value"])
        except PermissionDenied as error:
            denied = f"{error.details.get('action', 'ssm:GetParameter')} is not allowed"
            unread.append(f"node groups are not compared with the newest image of {ami_type}: {denied}")
        except (CloudError, QuotaExceeded) as error:
            unread.append(f"node groups are not compared with the newest image of {ami_type}: {error.what}")
    template = wanted_version(ec2, pool) if pool.launch_template and groups else None
    return Newest(kubernetes=kubernetes, releases=releases, template=template, unread=tuple(unread))


def behind(pool: EksGpuPool, group: Mapping[str, Any], newest: Newest) -> list[Difference]:
    """Return in what a group's nodes are not what new ones would be. Pure.

    An image that is the template's own follows the template alone: EKS accepts no version with it.
    """
    kubernetes, release = str(group.get("version")), str(group.get("releaseVersion"))
    newest_release = newest.releases.get(str(group.get("amiType")))
    found = []
    if not _has_own_image(group) and _is_older(group, newest.kubernetes):
        found.append(_difference("Kubernetes", kubernetes, newest.kubernetes, version=newest.kubernetes))
    if newest_release and _numbers(newest_release) > _numbers(release):
        found.append(_difference("image release", release, newest_release, releaseVersion=newest_release))
    template = _template(pool, group, newest)
    if template and template != group["launchTemplate"]["version"]:
        number = str(group["launchTemplate"]["version"])
        found.append(_difference("launch template version", number, template))
    return [*found, *newest.own.get(str(group["nodegroupName"]), ())]


def update_request(pool: EksGpuPool, group: Mapping[str, Any], newest: Newest) -> dict[str, Any]:
    """Return UpdateNodegroupVersion's parameters for what is behind; {} where nothing is. Pure.

    The version of the template is always named where there is one: EKS would take the default one. Of a template of
    ours it is the present one, and its next has still to be made.
    """
    differences = behind(pool, group, newest)
    if not differences:
        return {}
    request: dict[str, Any] = {"clusterName": pool.cluster_name, "nodegroupName": group["nodegroupName"]}
    if not _has_own_image(group):
        request["version"] = max(newest.kubernetes, str(group.get("version")), key=_numbers)
    for difference in differences:
        request.update(difference.update or {})
    if found := group.get("launchTemplate"):
        number = _template(pool, group, newest) or found["version"]
        request["launchTemplate"] = {"id": found["id"], "version": number}
        if pool.launch_template and is_of_template(group, pool.launch_template):
            request["launchTemplate"] = {**launch_template(pool.launch_template), "version": number}
    return request


def changes(
    pool: EksGpuPool, groups: Iterable[Mapping[str, Any]], newest: Newest, failed: Mapping[str, str]
) -> tuple[Change, ...]:
    """Return what Ensure would bring up to date: these groups have no machines, and `failed` is why EKS once could not.

    EKS updates no group that is DEGRADED (aws/containers-roadmap#2204): one that keeps the cluster from being upgraded,
    or whose launch template is another now, is recreated; another waits for a launch that works. Pure.
    """
    found = []
    for group in groups:
        differences, name = behind(pool, group, newest), str(group["nodegroupName"])
        detail = "; ".join(map(str, differences))
        if group["status"] == "ACTIVE" and lacks_template(group, newest):
            found.append(Change(action="upgrade", group=name, detail=f"{detail}; {_NO_OTHER}: recreated"))
        elif group["status"] == "ACTIVE" and differences:
            last = f"; EKS could not, the last time: {failed[name]}" if name in failed else ""
            found.append(Change(action="upgrade", group=name, detail=f"{detail}{last}"))
        elif group["status"] == "DEGRADED" and name in newest.own:
            found.append(Change(action="update", group=name, detail=f"{_CANNOT}; {detail}: recreated"))
        elif is_to_be_recreated(group, newest.kubernetes):
            detail = f"{_CANNOT}: recreated from Kubernetes {newest.kubernetes}"
            found.append(Change(action="update", group=name, detail=detail))
    return tuple(found)


def notes(
    pool: EksGpuPool, groups: Iterable[Mapping[str, Any]], newest: Newest, with_machines: Collection[str]
) -> tuple[str, ...]:
    """Return which groups stay behind for now, and what to do about it; those `with_machines`, by name. Pure."""
    found = []
    for group in groups:
        name, differences = str(group["nodegroupName"]), behind(pool, group, newest)
        if differences and name in with_machines:
            stays = f"{name} has machines, and stays as it is until it has none: {'; '.join(map(str, differences))}"
            command = (
                f". At once, by draining them: aws eks update-nodegroup-version --cluster-name {pool.cluster_name}"
                f" --nodegroup-name {name}{_arguments(update_request(pool, group, newest))}"
            )
            if lacks_template(group, newest):
                found.append(f"{stays}. {_NO_OTHER}: when its runs have ended, the next one recreates it")
            else:
                found.append(stays if name in newest.own else stays + command)
        if _has_own_image(group) and _is_older(group, newest.kubernetes):
            found.append(
                f"{name} has Kubernetes {group.get('version')} and the cluster {newest.kubernetes}: create a launch"
                " template version with an image for that, and name it in the pool's launch_template"
            )
    return tuple(found)


def is_to_be_recreated(group: Mapping[str, Any], kubernetes: str) -> bool:
    """Return True if a group keeps the cluster from being upgraded, and EKS does not update it: a DEGRADED one."""
    return group["status"] == "DEGRADED" and not _has_own_image(group) and _is_older(group, kubernetes)


def lacks_template(group: Mapping[str, Any], newest: Newest) -> bool:
    """Return True if the launch template of ours that a group was made from is gone.

    EKS updates the group to no other: "the launch template ID or name must match" (botocore, UpdateNodegroupVersion).
    """
    return any(each.update is None for each in newest.own.get(str(group["nodegroupName"]), ()))


def can_be_updated(group: Mapping[str, Any]) -> bool:
    """Return True if an update of a group without machines launches none.

    By the default strategy EKS adds machines first, and its user guide makes no exception for a group without any
    ("Understand each phase of node updates").
    """
    return group["status"] == "ACTIVE" and (group.get("updateConfig") or {}).get("updateStrategy") == UPDATE_STRATEGY


def _has_own_image(group: Mapping[str, Any]) -> bool:
    return group.get("amiType") == "CUSTOM"


def _is_older(group: Mapping[str, Any], kubernetes: str) -> bool:
    return _numbers(kubernetes) > _numbers(str(group.get("version")))


def _arguments(request: Mapping[str, Any]) -> str:
    names = {"version": "kubernetes-version", "releaseVersion": "release-version"}
    given = [f" --{option} {request[name]}" for name, option in names.items() if name in request]
    template = ",".join(f"{key}={value}" for key, value in request.get("launchTemplate", {}).items())
    return "".join((*given, f" --launch-template {template}" if template else ""))


def _template(pool: EksGpuPool, group: Mapping[str, Any], newest: Newest) -> str | None:
    """Return the number of the version that is wanted; None where it is unknown, or the group has another template."""
    is_of = bool(pool.launch_template) and is_of_template(group, str(pool.launch_template))
    return newest.template if is_of else None


def _difference(name: str, found: str, wanted: str, **update: str) -> Difference:
    return Difference(field=name, found=found, wanted=wanted, update=update)


def _numbers(text: str) -> tuple[int, ...]:
    """Return "1.36", "1.36.3-20260827" or "1.64.0-7c4f0d2b" as numbers, to compare; a hash tells no order."""
    version, _, build = text.partition("-")
    numbers = [*version.split("."), *([build] if len(build) == len("20260827") else [])]
    return tuple(int(each) for each in numbers if each.isdigit())
