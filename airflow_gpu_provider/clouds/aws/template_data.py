"""What the launch template of a pool's node group says: EC2's RequestLaunchTemplateData, and how a version differs.

Pure data: no call is made here. Only groups that ask for what EKS takes in a template alone have one;
fast_start=True is one such wish, and means another thing for each EC2 type.
"""

from __future__ import annotations

import binascii
import hashlib
import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_gpu_provider.clouds.aws.instance_types import Fabric
from airflow_gpu_provider.clouds.aws.machine_types import instance_type
from airflow_gpu_provider.clouds.aws.pool import IMAGE_VOLUME, EksGpuPool
from airflow_gpu_provider.clouds.aws.rules import DEFAULT_DISK_GIB, has_local_disk
from airflow_gpu_provider.clouds.aws.user_data import API_VERSION, as_data, as_text, from_text
from airflow_gpu_provider.clouds.group_checks import Difference
from airflow_gpu_provider.pools import Candidate

THROUGHPUT = 600
"""MiB a second: what nodeadm's FastImagePull asks of a disk (awslabs/amazon-eks-ami, "Fast image pull")."""

_SMALLEST = 4
"""vCPUs below which nodeadm leaves FastImagePull off (UseSOCISnapshotter in nodeadm/internal/containerd/config.go);
images of before that was lowered to 4 leave it off below 8."""

_ON_LOCAL_DISKS = {"instance": {"localStorage": {"strategy": "RAID0"}}}
"""The kubelet's and containerd's files on the machine's own disks, which nodeadm does on every size."""

_IN_PARALLEL = {"featureGates": {"FastImagePull": True}}
"""Images pulled and unpacked in parallel."""


def uses_local_disks(pool: EksGpuPool, name: str) -> bool:
    """Return True if a fast start of EC2 type `name` is on the machine's own disks; otherwise its volume is faster."""
    return has_local_disk(name) and pool.ami_type.startswith("AL2023_")


def started_fast(pool: EksGpuPool, name: str) -> EksGpuPool:
    """Return the pool as its groups of EC2 type `name` are made; what the spec itself says of them counts."""
    if not pool.fast_start:
        return pool
    if not uses_local_disks(pool, name):
        return replace(pool, disk={"throughput": THROUGHPUT, **pool.disk})
    machine = instance_type(name)
    parallel = _IN_PARALLEL if machine is not None and machine.vcpus >= _SMALLEST else {}
    ours = {"apiVersion": API_VERSION, "kind": "NodeConfig", "spec": {**_ON_LOCAL_DISKS, **parallel}}
    own = {} if pool.user_data is None else as_data(pool.user_data, pool.ami_type)
    return replace(pool, user_data=_merged(ours, own))


def _merged(ours: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Return both, with the fields of objects that both have merged likewise; else the second counts."""
    found = {**ours, **own}
    for key in ours.keys() & own.keys():
        mine, given = ours[key], own[key]
        if isinstance(mine, Mapping) and isinstance(given, Mapping):
            found[key] = _merged(mine, given)
    return found


_ROOT_VOLUME = "/dev/xvda"
_LONGEST_NAME = 128  # botocore, LaunchTemplateName
# What EC2 adds to what a version was made with (botocore, LaunchTemplateInstanceMetadataOptions).
_EC2_S_OWN = ("State",)


def template_data(
    pool: EksGpuPool,
    candidate: Candidate,
    *,
    has_one: bool = False,
    fabric: Fabric | None = None,
    made_in: str = "",
) -> dict[str, Any] | None:
    """Return what a group's launch template of ours is to say; None where the group needs none.

    No subnet, role, image or market is in it, but for a Capacity Block's: EKS takes these from the group alone
    ("Customize managed nodes with launch templates" in its user guide). Security groups are not, either, and EKS then
    adds the cluster's; only interfaces of our own have to name it.

    Args:
        has_one: The group was made with one. EKS takes it from no group, so it then says what EKS itself would.
        fabric: The nodes' network, where it is not one plain interface.
        made_in: The placement group of the candidate's reservation; EC2 launches into it from that group alone.
    """
    if pool.manage != "full" or not (has_one or pool.own_template_fields or candidate.reservation):
        return None
    pool = started_fast(pool, candidate.instance_type)
    data: dict[str, Any] = {"MetadataOptions": _metadata(pool), **_reserved(candidate)}
    if volume := _volume(pool):
        data["BlockDeviceMappings"] = [volume]
    if pool.user_data is not None:
        data["UserData"] = b64encode(as_text(pool.user_data, pool.ami_type).encode()).decode()
    if fabric:
        data["NetworkInterfaces"] = fabric.interfaces(candidate.instance_type)
    # A block's machines are close together by themselves, and a reservation is of one placement group, or of none.
    own = template_name(pool, candidate.group) if fabric and not candidate.reservation else ""
    if made_in or own:
        data["Placement"] = {"GroupName": made_in or own}
    return data


def _reserved(candidate: Candidate) -> dict[str, Any]:
    """Return what targets the candidate's reservation.

    A Capacity Block's template has the type too, and its market; that of an on-demand reservation must not (EKS user
    guide, "Create a managed node group with Capacity Blocks"; awslabs/awsome-distributed-ai#1263).
    """
    if not candidate.reservation:
        return {}
    target = {"CapacityReservationTarget": {"CapacityReservationId": candidate.reservation}}
    if candidate.market != "CAPACITY_BLOCK":
        return {"CapacityReservationSpecification": target}
    market = {"MarketType": "capacity-block"}
    return {
        "CapacityReservationSpecification": target,
        "InstanceMarketOptions": market,
        "InstanceType": candidate.instance_type,
    }


def _volume(pool: EksGpuPool) -> dict[str, Any] | None:
    """Return the volume of images and pods; None for Bottlerocket's as it is in the image.

    EC2 deletes a volume with its instance only if it is the root one, or told to.
    """
    ebs: dict[str, Any] = {"VolumeType": "gp3", "DeleteOnTermination": True}
    disk = pool.disk
    asked = {"VolumeSize": disk.get("size"), "Throughput": disk.get("throughput"), "Iops": disk.get("iops")}
    given = {name: value for name, value in asked.items() if value is not None}
    if pool.has_image_volume:
        volume = {"DeviceName": IMAGE_VOLUME, "Ebs": {**ebs, "VolumeSize": DEFAULT_DISK_GIB, **given}}
        return volume if given else None
    return {"DeviceName": _ROOT_VOLUME, "Ebs": {**ebs, "VolumeSize": DEFAULT_DISK_GIB, **given}}


def _metadata(pool: EksGpuPool) -> dict[str, Any]:
    """Return the instance metadata options that EKS gives a group without a template of one's own.

    The hop limit is 1 with Amazon Linux 2023, so that a pod does not get the node's role ("Upgrade from Amazon Linux 2
    to Amazon Linux 2023" in EKS's user guide).
    """
    return {"HttpTokens": "required", "HttpPutResponseHopLimit": 1 if pool.ami_type.startswith("AL2023_") else 2}


def template_name(pool: EksGpuPool, group: str) -> str:
    """Return the name of a group's template, which is unique in the account's region, where clusters are too."""
    name = f"{pool.cluster_name}/{group}"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(pool.cluster_name.encode()).hexdigest()[:8]
    return f"{pool.cluster_name[: _LONGEST_NAME - len(group) - len(digest) - 2]}-{digest}/{group}"


def mark(data: Mapping[str, Any]) -> str:
    """Return what tells a version that says just this from others: its description.

    EC2 shows a version with fields that it was not made with, and defaults of its own.
    """
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
    return f"airflow-gpu-provider {digest}"


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Difference]:
    """Compare a version, as DescribeLaunchTemplateVersions shows it, with what its group's template is to say.

    The difference is corrected by a new version, and that by UpdateNodegroupVersion.
    """
    if found.get("VersionDescription") == mark(wanted):
        return []
    there, wants = dict(_fields(found.get("LaunchTemplateData", {}))), dict(_fields(wanted))
    names = [name for name in dict.fromkeys((*wants, *there)) if there.get(name) != wants.get(name)]
    differing = [_difference(name, there.get(name), wants.get(name)) for name in names]
    return differing or [_difference("launch template", f"version {found.get('VersionNumber')}", "a new version")]


def described(data: Mapping[str, Any]) -> str:
    """Return what a template says, for people."""
    return ", ".join(f"{name} {value}" for name, value in _fields(data))


def _difference(name: str, found: Any, wanted: Any) -> Difference:
    return Difference(field=name, found=str(found), wanted=str(wanted), update={})


def _fields(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the single values of a template's data with their paths; a volume by its device, user data by its fields.

    What is a container's defaults, and false or empty, is as if it were not there.
    """
    if isinstance(value, Mapping):
        for key in sorted(value):
            if key == "UserData":
                yield from _of_user_data(value[key])
            elif key == "NetworkInterfaces":
                yield from _of_interfaces(value[key])
            elif key not in _EC2_S_OWN:
                yield from _fields(value[key], key if at in _TRANSPARENT else f"{at}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            named = each.get("DeviceName") if isinstance(each, Mapping) else None
            if named:
                rest = each.get("Ebs") or {}
                yield from ((f"{named} {name}", found) for name, found in _fields(rest))
            else:
                yield from _fields(each, f"{at}[{number}]")
    elif value not in (None, False, ""):
        yield at, value


_TRANSPARENT = ("MetadataOptions",)


def _of_interfaces(interfaces: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield them by their kind and security groups: a machine may have 33."""
    kinds = Counter((str(each.get("InterfaceType")), *each.get("Groups", ())) for each in interfaces)
    yield "NetworkInterfaces", ", ".join(f"{count} {' in '.join(kind)}" for kind, count in kinds.items())


def _of_user_data(encoded: str) -> Iterator[tuple[str, Any]]:
    try:
        text = b64decode(encoded, validate=True).decode()
        yield from ((f"UserData {name}", value) for name, value in _fields(from_text(text)))
    except (binascii.Error, ValueError):
        yield "UserData", hashlib.sha256(str(encoded).encode()).hexdigest()[:8]
