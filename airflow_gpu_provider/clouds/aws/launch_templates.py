"""EC2 launch templates: whether the one that a pool names will do, and those that this package makes for node groups.

One of ours has the name of its group, and tags by which it is found when a killed process has left it. It is made
before its group, after the placement group that it may name, which has its name and such tags too; it gets a version
for each change, and is deleted once its group is gone. A placement group costs nothing, and its machines are near each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from airflow_gpu_provider.clouds.answers import has_code, message_of, refusals_of, unless_answered
from airflow_gpu_provider.clouds.aws.clients import AwsService, tags_of
from airflow_gpu_provider.clouds.aws.pool import IMAGE_VOLUME, EksGpuPool
from airflow_gpu_provider.clouds.aws.spec import (
    CLUSTER_TAG,
    GROUP_TAG,
    POOL_TAG,
    GroupSpec,
    launch_template,
    template_is_pinned,
)
from airflow_gpu_provider.clouds.aws.template_data import differences, mark, template_name
from airflow_gpu_provider.clouds.base import Report
from airflow_gpu_provider.clouds.group_checks import Difference
from airflow_gpu_provider.cluster.api.threads import in_parallel
from airflow_gpu_provider.errors import CloudError, PermissionDenied, PoolDrift, PoolSpecError

_NOT_FOUND = (  # "Error codes for the Amazon EC2 API"
    "InvalidLaunchTemplateId.Malformed",
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateId.VersionNotFound",
    "InvalidLaunchTemplateName.MalformedException",
    "InvalidLaunchTemplateName.NotFoundException",
)
# What a template of a node group must not have: botocore's eks, LaunchTemplateSpecification; EKS's user guide,
# "Customize managed nodes with launch templates", which names the shutdown behaviour besides.
_NEVER_TAKEN: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "an IamInstanceProfile": lambda data: bool(data.get("IamInstanceProfile")),
    "a subnet": lambda data: any(each.get("SubnetId") for each in data.get("NetworkInterfaces") or ()),
    "a request for spot instances": lambda data: (data.get("InstanceMarketOptions") or {}).get("MarketType") == "spot",
    "HibernationOptions": lambda data: bool((data.get("HibernationOptions") or {}).get("Configured")),
    "an InstanceInitiatedShutdownBehavior": lambda data: bool(data.get("InstanceInitiatedShutdownBehavior")),
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
    larger = "enlarge that volume in the launch template" if pool.launch_template else "set the size of the pool's disk"
    return (
        f"with ami_type {pool.ami_type} images and pods have 20 GiB on {IMAGE_VOLUME}, whatever the root volume's size:"
        f" {larger} (docs/node-images.md)",
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


# -- the launch templates, and placement groups, that this package makes ---------------------------------------

# "Error codes for the Amazon EC2 API"
_TAKEN = ("InvalidLaunchTemplateName.AlreadyExistsException", "InvalidPlacementGroup.Duplicate")
_GONE = (
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidPlacementGroup.Unknown",
)
_REFUSED = (
    "InvalidBlockDeviceMapping",
    "InvalidParameterCombination",
    "InvalidParameterValue",
    "InvalidUserData.Malformed",
)


class OwnedTemplates:
    """The launch templates of one pool's node groups, and their placement groups. Every method makes fresh calls."""

    def __init__(self, ec2: AwsService, pool: EksGpuPool) -> None:
        self._ec2 = ec2
        self._pool = pool

    def ensure(self, spec: GroupSpec, report: Report, group: Mapping[str, Any] | None = None) -> dict[str, str] | None:
        """Return the version that a group is to be made from, in EKS's words; it is made where there is none.

        Returns:
            Its id and number; None where the group needs no template of ours.

        Raises:
            PoolDrift: Somebody else has a template of that name.
            PoolSpecError: EC2 refuses what it is to say.
        """
        data = spec.template_data(group)
        if data is None:
            return None
        with refusals_of("EC2", self._pool, f"make the launch template of {spec.candidate.group}", *_REFUSED):
            return self._make(spec, data, report)

    def _make(self, spec: GroupSpec, data: Mapping[str, Any], report: Report) -> dict[str, str]:
        name = template_name(self._pool, spec.candidate.group)
        ours = {POOL_TAG: self._pool.name, CLUSTER_TAG: self._pool.cluster_name, GROUP_TAG: spec.candidate.group}
        tags = [{"Key": key, "Value": value} for key, value in {**self._pool.tags, **ours}.items()]
        if data.get("Placement") == {"GroupName": name}:  # another is the reservation's
            self._ensure_placement_group(name, tags, report)
        found, content = self._find(name), {"VersionDescription": mark(data), "LaunchTemplateData": data}
        if found is None:
            with unless_answered(*_TAKEN):  # by another run, just now
                tagged = [{"ResourceType": "launch-template", "Tags": tags}]
                answer = self._ec2.call(
                    "create_launch_template", LaunchTemplateName=name, TagSpecifications=tagged, **content
                )
                report(f"created launch template {name}")
                return {"id": answer["LaunchTemplate"]["LaunchTemplateId"], "version": "1"}
            found = self._find(name)
        if found is None:
            raise CloudError(f"EC2 has a launch template {name}, and does not show it yet.", "Try again.")
        reference = {"id": found["LaunchTemplateId"]}
        newest = _read(self._ec2, {**reference, "version": "$Latest"})
        if newest.get("VersionDescription") != mark(data):
            answer = self._ec2.call("create_launch_template_version", LaunchTemplateId=reference["id"], **content)
            newest = answer["LaunchTemplateVersion"]
            report(f"created version {newest['VersionNumber']} of launch template {name}")
        return {**reference, "version": str(newest["VersionNumber"])}

    def _find(self, name: str) -> Mapping[str, Any] | None:
        """Return the template of this name; by a filter, which is no error where there is none."""
        found = next(self._templates({"launch-template-name": name}), None)
        if found is not None and tags_of(found).get(POOL_TAG) != self._pool.name:
            raise PoolDrift(
                f"EC2 has a launch template {name} that this package did not make for pool {self._pool.name}.",
                "Delete that template, or give the pool another name.",
                launch_template=name,
            )
        return found

    def _ensure_placement_group(self, name: str, tags: Collection[Mapping[str, str]], report: Report) -> None:
        found = next(self._placement_groups({"group-name": name}), None)
        if found is None:
            with unless_answered(*_TAKEN):  # by another run, just now
                tagged = [{"ResourceType": "placement-group", "Tags": tags}]
                self._ec2.call("create_placement_group", GroupName=name, Strategy="cluster", TagSpecifications=tagged)
                report(f"created placement group {name}")
        elif tags_of(found).get(POOL_TAG) != self._pool.name:
            raise PoolDrift(
                f"EC2 has a placement group {name} that this package did not make for pool {self._pool.name}.",
                "Delete that placement group, or give the pool another name.",
                placement_group=name,
            )

    def compare(
        self, specs: Iterable[GroupSpec], groups: Iterable[Mapping[str, Any]]
    ) -> tuple[dict[str, list[Difference]], tuple[str, ...]]:
        """Return `differences` of those groups that have a spec, and why they are unknown, if so."""
        named = {str(group["nodegroupName"]): group for group in groups}
        try:
            pairs = [(spec, named[spec.candidate.group]) for spec in specs if spec.candidate.group in named]
            return self.differences(pairs), ()
        except PermissionDenied as error:
            return {}, (f"launch templates are not compared: {error.details.get('action', error.what)} is not allowed",)

    def differences(self, specs: Collection[tuple[GroupSpec, Mapping[str, Any]]]) -> dict[str, list[Difference]]:
        """Return in what groups with a template of ours were made from another, by group; those alike are left out.

        What no update corrects is a template that is gone: EKS updates a group to no other than it was made from.

        Raises:
            PermissionDenied: ec2:DescribeLaunchTemplateVersions is not allowed.
        """
        with_ours = [(spec, group) for spec, group in specs if spec.has_own_template(group)]
        found = in_parallel(lambda each: self._differences(*each), with_ours)
        return {spec.candidate.group: each for (spec, _), each in zip(with_ours, found, strict=True) if each}

    def _differences(self, spec: GroupSpec, group: Mapping[str, Any]) -> list[Difference]:
        template, wanted = group["launchTemplate"], spec.template_data(group)
        try:
            found = _read(self._ec2, {"id": template["id"], "version": str(template["version"])})
        except CloudError as error:
            if has_code(error, *_GONE):
                return [Difference(field="launch template", found="gone", wanted=template["name"])]
            if not has_code(error, "InvalidLaunchTemplateId.VersionNotFound"):
                raise
            return [Difference(field="launch template version", found="gone", wanted="a new one", update={})]
        return differences(found, wanted or {})

    def delete_all_but(self, groups: Collection[str], report: Report) -> None:
        """Delete the pool's templates, and placement groups, whose groups are not among these; fine if one is gone.

        Raises:
            CloudError: Machines of a placement group are not gone yet: InvalidPlacementGroup.InUse.
        """
        for each in self._remains(self._templates, groups):
            with unless_answered(*_GONE):
                self._ec2.call("delete_launch_template", LaunchTemplateId=each["LaunchTemplateId"])
                report(f"deleted launch template {each['LaunchTemplateName']}")
        for each in self._remains(self._placement_groups, groups):
            with unless_answered(*_GONE):
                self._ec2.call("delete_placement_group", GroupName=each["GroupName"])
                report(f"deleted placement group {each['GroupName']}")

    def _remains(
        self, read: Callable[[Mapping[str, str]], Iterator[Mapping[str, Any]]], groups: Collection[str]
    ) -> list[Mapping[str, Any]]:
        """Return what is the pool's, and not of these groups; who may not list such things never made one."""
        try:
            found = [*read({f"tag:{POOL_TAG}": self._pool.name, f"tag:{CLUSTER_TAG}": self._pool.cluster_name})]
        except PermissionDenied:
            return []
        return [each for each in found if tags_of(each).get(GROUP_TAG) not in groups]

    def _templates(self, filters: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        return self._ec2.items("describe_launch_templates", "LaunchTemplates", Filters=_listed(filters))

    def _placement_groups(self, filters: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        found = self._ec2.call("describe_placement_groups", Filters=_listed(filters))["PlacementGroups"]
        return (each for each in found if each.get("State") != "deleted")


def _listed(filters: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"Name": name, "Values": [value]} for name, value in filters.items()]
