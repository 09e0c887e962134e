"""Calls to Amazon EC2 about the launch templates that this package makes for a pool's node groups.

A template has the name of its group, and tags by which it is found when a killed process has left it. It is made before
its group, after the placement group that it may name; it gets a version for each change, and is deleted once its group
is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from airflow_gpu_provider.errors import CloudError, PermissionDenied, PoolDrift
from airflow_gpu_provider.platforms.answers import has_code, refusals_of, unless_answered
from airflow_gpu_provider.platforms.aws.clients import AwsService, in_parallel, tags_of
from airflow_gpu_provider.platforms.aws.launch_templates import PlacementGroups
from airflow_gpu_provider.platforms.aws.spec import CLUSTER_TAG, GROUP_TAG, POOL_TAG, GroupSpec
from airflow_gpu_provider.platforms.aws.template_data import differences, mark, template_name
from airflow_gpu_provider.platforms.base import Report
from airflow_gpu_provider.platforms.owned_groups import Difference
from airflow_gpu_provider.pools import EksGpuPool

_TAKEN = "InvalidLaunchTemplateName.AlreadyExistsException"
_GONE = ("InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException")
_REFUSED = (  # "Error codes for the Amazon EC2 API"
    "InvalidBlockDeviceMapping",
    "InvalidParameterCombination",
    "InvalidParameterValue",
    "InvalidUserData.Malformed",
)


class OwnedTemplates:
    """The launch templates of one pool's node groups. Every method makes fresh calls."""

    def __init__(self, ec2: AwsService, pool: EksGpuPool) -> None:
        self._ec2 = ec2
        self._pool = pool
        self._placement_groups = PlacementGroups(ec2, pool)

    def ensure(self, spec: GroupSpec, report: Report, group: Mapping[str, Any] | None = None) -> dict[str, str] | None:
        """Return the version that a group is to be made from, in EKS's words; it is made where there is none.

        Args:
            spec: The group's.
            report: Takes a line about what is made.
            group: The group, where it exists.

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
        if "Placement" in data:
            self._placement_groups.ensure(name, self._tags(spec), report)
        found = self._find(name)
        if found is None:
            with unless_answered(_TAKEN):  # by another run, just now
                answer = self._ec2.call("create_launch_template", **self._request(spec, name, data))
                report(f"created launch template {name}")
                return {"id": answer["LaunchTemplate"]["LaunchTemplateId"], "version": "1"}
            found = self._find(name)
        if found is None:
            raise CloudError(f"EC2 has a launch template {name}, and does not show it yet.", "Try again.")
        which = {"LaunchTemplateId": found["LaunchTemplateId"]}
        newest = self._version(found["LaunchTemplateId"], "$Latest")
        if newest.get("VersionDescription") != mark(data):
            made = {"VersionDescription": mark(data), "LaunchTemplateData": data}
            newest = self._ec2.call("create_launch_template_version", **which, **made)["LaunchTemplateVersion"]
            report(f"created version {newest['VersionNumber']} of launch template {name}")
        return {"id": found["LaunchTemplateId"], "version": str(newest["VersionNumber"])}

    def _find(self, name: str) -> Mapping[str, Any] | None:
        """Return the template of this name; by a filter, which is no error where there is none."""
        filters = [{"Name": "launch-template-name", "Values": [name]}]
        found = next(self._ec2.items("describe_launch_templates", "LaunchTemplates", Filters=filters), None)
        if found is not None and tags_of(found).get(POOL_TAG) != self._pool.name:
            raise PoolDrift(
                f"EC2 has a launch template {name} that this package did not make for pool {self._pool.name}.",
                "Delete that template, or give the pool another name.",
                launch_template=name,
            )
        return found

    def _version(self, template: str, version: str) -> Mapping[str, Any]:
        which = {"LaunchTemplateId": template, "Versions": [version]}
        found: Mapping[str, Any] = self._ec2.call("describe_launch_template_versions", **which)[
            "LaunchTemplateVersions"
        ][0]
        return found

    def _request(self, spec: GroupSpec, name: str, data: Mapping[str, Any]) -> dict[str, Any]:
        listed = [{"Key": key, "Value": value} for key, value in self._tags(spec).items()]
        return {
            "LaunchTemplateName": name,
            "VersionDescription": mark(data),
            "LaunchTemplateData": data,
            "TagSpecifications": [{"ResourceType": "launch-template", "Tags": listed}],
        }

    def _tags(self, spec: GroupSpec) -> dict[str, str]:
        ours = {POOL_TAG: self._pool.name, CLUSTER_TAG: self._pool.cluster_name, GROUP_TAG: spec.candidate.group}
        return {**self._pool.tags, **ours}

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
            found = self._version(template["id"], str(template["version"]))
        except CloudError as error:
            if has_code(error, *_GONE):
                return [Difference(field="launch template", found="gone", wanted=template["name"])]
            if not has_code(error, "InvalidLaunchTemplateId.VersionNotFound"):
                raise
            return [Difference(field="launch template version", found="gone", wanted="a new one", update={})]
        return differences(found, wanted or {})

    def delete_all_but(self, groups: Collection[str], report: Report) -> None:
        """Delete the pool's templates, and placement groups, whose groups are not among these; fine if one is gone."""
        for template in self._owned():
            if tags_of(template).get(GROUP_TAG) not in groups:
                with unless_answered(*_GONE):
                    self._ec2.call("delete_launch_template", LaunchTemplateId=template["LaunchTemplateId"])
                    report(f"deleted launch template {template['LaunchTemplateName']}")
        self._placement_groups.delete_all_but(groups, report)

    def _owned(self) -> Iterator[Mapping[str, Any]]:
        """Yield the pool's templates; none where the account may not list them, and so never made one."""
        wanted = {POOL_TAG: self._pool.name, CLUSTER_TAG: self._pool.cluster_name}
        filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in wanted.items()]
        try:
            yield from self._ec2.items("describe_launch_templates", "LaunchTemplates", Filters=filters)
        except PermissionDenied:
            return
