"""What the nodes of a node group are made from - Kubernetes, image, launch template - and how to make them from newer.

EKS makes a group from the newest of that day, and changes it by UpdateNodegroupVersion alone, which replaces the
group's machines. A group that stays behind keeps the cluster itself from being upgraded (botocore,
UpdateClusterVersion).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_gpu_provider.clouds.aws import node_releases
from airflow_gpu_provider.clouds.aws.clients import AwsService
from airflow_gpu_provider.clouds.aws.launch_templates import wanted_version
from airflow_gpu_provider.clouds.aws.node_releases import fits, held, numbers
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.aws.spec import UPDATE_STRATEGY, is_of_template, launch_template
from airflow_gpu_provider.clouds.base import GroupChange
from airflow_gpu_provider.clouds.group_checks import Difference
from airflow_gpu_provider.errors import CloudError, PermissionDenied, QuotaExceeded

_CANNOT = "is DEGRADED, and EKS cannot update it"
_NO_OTHER = "EKS takes no other for a group that is there"
_NOT_BACK = "EKS takes no group back to an earlier release"


@dataclass(frozen=True, kw_only=True)
class Newest:
    """What EKS would make a new group from today.

    Attributes:
        kubernetes: The cluster's version, like "1.36".
        releases: The release that the image is to have, by ami_type; where EKS is to take its newest, there is none.
        coming: The newest release where that is too young, by ami_type, and from when on groups get it.
        template: The number of the version of the pool's launch template; None where there is none, or it may not be
            read.
        own: In what the launch templates of ours that groups were made from differ from what they are to say, by group.
        unread: Why something could not be read, for people.
    """

    kubernetes: str
    releases: Mapping[str, str] = field(default_factory=dict)
    coming: Mapping[str, tuple[str, datetime]] = field(default_factory=dict)
    template: str | None = None
    own: Mapping[str, Sequence[Difference]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


def read_newest(
    pool: EksGpuPool, kubernetes: str, groups: Iterable[Mapping[str, Any]], *, ssm: AwsService, ec2: AwsService
) -> Newest:
    """Read what such groups (DescribeNodegroup's answers) would be made from; few calls for each kind of image."""
    releases, coming, unread = dict[str, str](), dict[str, tuple[str, datetime]](), list[str]()
    groups = tuple(groups)
    for ami_type in dict.fromkeys(str(group.get("amiType")) for group in groups):
        if ami_type not in node_releases.PARAMETERS:
            continue
        if release := node_releases.held(pool, ami_type, kubernetes):
            releases[ami_type] = release
            continue
        try:
            found = node_releases.read(ssm, ami_type, kubernetes)
        except PermissionDenied as error:
            denied = f"{error.details.get('action', 'ssm:GetParameter')} is not allowed"
            unread.append(f"node groups are not compared with the newest image of {ami_type}: {denied}")
        except (CloudError, QuotaExceeded) as error:
            unread.append(f"node groups are not compared with the newest image of {ami_type}: {error.what}")
        else:
            if found.adopted:
                releases[ami_type] = found.adopted
            if found.adopted != found.newest:
                coming[ami_type] = found.newest, found.adopted_at
    template = wanted_version(ec2, pool) if pool.launch_template and groups else None
    return Newest(kubernetes=kubernetes, releases=releases, coming=coming, template=template, unread=tuple(unread))


def behind(pool: EksGpuPool, group: Mapping[str, Any], newest: Newest) -> list[Difference]:
    """Return in what a group's nodes are not what new ones would be. Pure.

    An image that is the template's own follows the template alone: EKS accepts no version with it.
    """
    kubernetes, release = str(group.get("version")), str(group.get("releaseVersion"))
    ami_type = str(group.get("amiType"))
    wanted = newest.releases.get(ami_type)
    found = []
    if not _has_own_image(group) and _is_older(group, newest.kubernetes):
        found.append(_difference("Kubernetes", kubernetes, newest.kubernetes, version=newest.kubernetes))
    if wanted and numbers(wanted) > numbers(release):
        found.append(_difference("image release", release, wanted, releaseVersion=wanted))
    elif wanted and numbers(wanted) < numbers(release) and wanted == held(pool, ami_type, newest.kubernetes):
        found.append(Difference(field="image release", found=release, wanted=wanted))
    template = _template(pool, group, newest)
    if template and template != group["launchTemplate"]["version"]:
        number = str(group["launchTemplate"]["version"])
        found.append(_difference("launch template version", number, template))
    return [*found, *newest.own.get(str(group["nodegroupName"]), ())]


def update_request(pool: EksGpuPool, group: Mapping[str, Any], newest: Newest) -> dict[str, Any]:
    """Return UpdateNodegroupVersion's parameters for what is behind; {} where nothing is. Pure.

    The version of the template is always named where there is one: EKS would take the default one. Of a template of
    ours it is the present one, and its next has still to be made. So is the image's release: EKS would take the newest.
    """
    differences = behind(pool, group, newest)
    if not differences:
        return {}
    request: dict[str, Any] = {"clusterName": pool.cluster_name, "nodegroupName": group["nodegroupName"]}
    if not _has_own_image(group):
        request["version"] = max(newest.kubernetes, str(group.get("version")), key=numbers)
        if str(group.get("amiType")) in {*newest.releases, *newest.coming} and not _is_older(group, newest.kubernetes):
            request["releaseVersion"] = str(group.get("releaseVersion"))
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
) -> tuple[GroupChange, ...]:
    """Return what Ensure would bring up to date: these groups have no machines, and `failed` is why EKS once could not.

    EKS updates no group that is DEGRADED (aws/containers-roadmap#2204): one that keeps the cluster from being upgraded,
    or whose launch template is another now, is recreated; another waits for a launch that works. Pure.
    """
    found = []
    for group in groups:
        differences, name = behind(pool, group, newest), str(group["nodegroupName"])
        detail = "; ".join(map(str, differences))
        if group["status"] == "ACTIVE" and (why := why_recreated(pool, group, newest)):
            found.append(GroupChange(action="upgrade", group=name, detail=f"{detail}; {why}: recreated"))
        elif group["status"] == "ACTIVE" and differences:
            last = f"; EKS could not, the last time: {failed[name]}" if name in failed else ""
            found.append(GroupChange(action="upgrade", group=name, detail=f"{detail}{last}"))
        elif group["status"] == "DEGRADED" and name in newest.own:
            found.append(GroupChange(action="update", group=name, detail=f"{_CANNOT}; {detail}: recreated"))
        elif is_to_be_recreated(group, newest.kubernetes):
            detail = f"{_CANNOT}: recreated from Kubernetes {newest.kubernetes}"
            found.append(GroupChange(action="update", group=name, detail=detail))
    return tuple(found)


def notes(
    pool: EksGpuPool, groups: Iterable[Mapping[str, Any]], newest: Newest, with_machines: Collection[str]
) -> tuple[str, ...]:
    """Return which groups stay behind for now, and what to do about it; those `with_machines`, by name. Pure."""
    groups = tuple(groups)
    found = [
        f"image release {release} is new, and groups of {ami_type} get it from {at:%Y-%m-%d} on, or by ami_release"
        for ami_type, (release, at) in newest.coming.items()
        if any(ami_type == each.get("amiType") and numbers(release) > _release(each) for each in groups)
    ]
    if not fits(pool, newest.kubernetes):
        found.append(
            f"ami_release {pool.ami_release} is an image for another Kubernetes than the cluster's {newest.kubernetes},"
            " and holds nothing: name one for that, or none"
        )
    for group in groups:
        name, differences = str(group["nodegroupName"]), behind(pool, group, newest)
        if differences and name in with_machines:
            stays = f"{name} has machines, and stays as it is until it has none: {'; '.join(map(str, differences))}"
            command = (
                f". At once, by draining them: aws eks update-nodegroup-version --cluster-name {pool.cluster_name}"
                f" --nodegroup-name {name}{_arguments(update_request(pool, group, newest))}"
            )
            if why := why_recreated(pool, group, newest):
                found.append(f"{stays}. {why}: when its runs have ended, the next one recreates it")
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


def why_recreated(pool: EksGpuPool, group: Mapping[str, Any], newest: Newest) -> str:
    """Return why no update brings a group to what it is to be made from; empty where one does.

    "The launch template ID or name must match" that of its creation, and "you cannot roll back a node group to an
    earlier Kubernetes version or AMI version" (botocore, UpdateNodegroupVersion).
    """
    fixed = [each.field for each in behind(pool, group, newest) if each.update is None]
    if not fixed:
        return ""
    return _NOT_BACK if fixed == ["image release"] else _NO_OTHER


def fixed_in_words(pool: EksGpuPool, group: Mapping[str, Any], newest: Newest) -> str:
    """Return what of a group no update brings to what it is to be made from. Pure."""
    fixed = [each for each in behind(pool, group, newest) if each.update is None]
    gone = f"its launch template {(group.get('launchTemplate') or {}).get('name')} is gone"
    return "; ".join(gone if each.found == "gone" else str(each) for each in fixed)


def can_be_updated(group: Mapping[str, Any]) -> bool:
    """Return True if an update of a group without machines launches none.

    By the default strategy EKS adds machines first, and its user guide makes no exception for a group without any
    ("Understand each phase of node updates").
    """
    return group["status"] == "ACTIVE" and (group.get("updateConfig") or {}).get("updateStrategy") == UPDATE_STRATEGY


def _has_own_image(group: Mapping[str, Any]) -> bool:
    return group.get("amiType") == "CUSTOM"


def _release(group: Mapping[str, Any]) -> tuple[int, ...]:
    return numbers(str(group.get("releaseVersion")))


def _is_older(group: Mapping[str, Any], kubernetes: str) -> bool:
    return numbers(kubernetes) > numbers(str(group.get("version")))


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
