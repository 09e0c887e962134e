"""UpdateNodegroupVersion: what EKS refuses, and how it replaces a group's machines by those of another version.

After "Understand each phase of node updates" of EKS's user guide. It does not say that a group without machines is
spared the scale-up phase of the default strategy, so here it is not; the minimal one never has more than were wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from moto.moto_api._internal import mock_random

from gpu_sandbox.aws.activities import at
from gpu_sandbox.aws.groups import AutoScalingGroup
from gpu_sandbox.aws.interface import AwsTimings
from gpu_sandbox.aws.node_group_creation import NodeGroupCreation
from gpu_sandbox.aws.node_group_rules import minor, refuse
from gpu_sandbox.aws.node_groups import NodeGroup, Update
from gpu_sandbox.aws.node_releases import NodeReleases
from gpu_sandbox.clock import Clock

_CONSTRAINTS = "a user request update of AutoScalingGroup constraints"


@dataclass(kw_only=True)
class VersionUpdate(Update):
    """An update under way.

    Attributes:
        version: Kubernetes'.
        release: Of the image.
        launch_template: The user's, by id, name and number; None where there is none.
        old: The instances to be replaced.
        surplus: By how many the group is larger meanwhile.
    """

    version: str
    release: str
    launch_template: dict[str, str] | None
    old: set[str]
    surplus: int = 0
    type: str = "VersionUpdate"
    errors: list[dict[str, Any]] = field(default_factory=list)


class VersionUpdates:
    """EKS's part in them. Used under the cloud's lock."""

    def __init__(
        self, *, creation: NodeGroupCreation, releases: NodeReleases, timings: AwsTimings, clock: Clock
    ) -> None:
        self._creation = creation
        self._releases = releases
        self._timings = timings
        self._clock = clock

    def begin(self, group: NodeGroup, asg: AutoScalingGroup, request: Mapping[str, Any]) -> VersionUpdate:
        """InvalidParameterException for what EKS refuses.

        `request` has version, releaseVersion and launchTemplate, as far as they are given.
        """
        now = self._clock.utc_now()
        template = self._template(group, request.get("launchTemplate"))
        version = self._version(group, template, request.get("version"))
        update = VersionUpdate(
            id=str(mock_random.uuid4()),
            params=[],
            created_at=now,
            done_at=now + timedelta(seconds=self._timings.nodegroup_version_update),
            version=version,
            release=self._release(group, template, version, request.get("releaseVersion")),
            launch_template=template,
            old={member.instance.id for member in asg.members},
        )
        names = {"Version": version, "ReleaseVersion": update.release}
        if template:
            names |= {"LaunchTemplateName": template["name"], "LaunchTemplateVersion": template["version"]}
        update.params = [{"type": name, "value": value} for name, value in names.items()]
        self._creation.use_version(group, asg, template)
        asg.register_as(group.registration())
        if (group.update_config or {}).get("updateStrategy") != "MINIMAL":
            zones = len(group.subnets)
            update.surplus = max(2 * zones, int((group.update_config or {}).get("maxUnavailable") or 1))
            asg.max_size = int(asg.max_size or 0) + update.surplus
            asg.resize(
                asg.size + update.surplus, now=now, cause="a user request update of AutoScalingGroup constraints"
            )
        group.updates[update.id] = update
        group.status = "UPDATING"
        return update

    def _template(self, group: NodeGroup, asked: Mapping[str, str] | None) -> dict[str, str] | None:
        own: dict[str, str] | None = group.launch_template
        if not asked:
            return own
        if not own:
            raise refuse("You cannot specify a launch template for a node group that was not created with one.")
        if "id" in asked and "name" in asked:
            raise refuse("Either provide launch template ID or launch template name in the request.")
        if any(asked[key] != own[key] for key in ("id", "name") if key in asked):
            raise refuse("You cannot change the launch template of a node group.")
        return self._creation.resolved(asked)

    def _version(self, group: NodeGroup, template: Mapping[str, str] | None, asked: str | None) -> str:
        of_cluster = str(group.cluster.version)
        if asked and self._image_of(template):
            raise refuse("You cannot specify a version when the launch template specifies an AMI.")
        wanted = asked or of_cluster
        if minor(wanted) > minor(of_cluster):
            raise refuse(f"Node group version {wanted} is newer than the cluster's, {of_cluster}.")
        if minor(wanted) < minor(str(group.version)):
            raise refuse(f"Requested version {wanted} is older than the node group's, {group.version}.")
        return wanted

    def _release(self, group: NodeGroup, template: Mapping[str, str] | None, version: str, asked: str | None) -> str:
        if image := self._image_of(template):
            if asked:
                raise refuse("You cannot specify a releaseVersion when the launch template specifies an AMI.")
            return image
        newest = self._releases.newest(group.ami_type, version)
        if asked and not self._releases.has(group.ami_type, version, asked):
            raise refuse(f"Requested release version {asked} is not valid for kubernetes version {version}.")
        if asked and asked < group.release_version and version == group.version:
            raise refuse(f"Requested release version {asked} is older than {group.release_version}.")
        return asked or newest

    def _image_of(self, template: Mapping[str, str] | None) -> str:
        return str(self._creation.launch_template_data(template).get("ImageId") or "") if template else ""

    def advance(self, update: VersionUpdate, group: NodeGroup, asg: AutoScalingGroup | None) -> None:
        """The clock: replace another machine, or end the update."""
        now = self._clock.utc_now()
        if asg is None or update.status != "InProgress":
            return
        if issues := self._creation.role_issues(group):
            self._give_back(update, asg, now)
            update.status = "Failed"
            update.errors = [{"errorCode": "AccessDenied", "errorMessage": each["message"]} for each in issues]
            return
        left = [member for member in asg.members if member.instance.id in update.old]
        if left:
            if all(member.counts for member in left) and (not update.surplus or asg.satisfied):
                self._replace(asg, left[0].instance.id, now)
            return
        if not asg.satisfied or asg.unjoined() or not self._clock.reached(update.done_at):
            return
        if update.surplus:
            self._give_back(update, asg, now)
            return
        update.status = "Successful"
        group.version, group.release_version, group.launch_template = (
            update.version,
            update.release,
            update.launch_template,
        )
        group.modified_at = now

    def _replace(self, asg: AutoScalingGroup, instance_id: str, now: datetime) -> None:
        member = asg.find(instance_id)
        if member is not None:
            cause = f"{at(now)} instance {instance_id} was taken out of service in response to a user request."
            asg.terminate(member, now=now, cause=cause)

    def _give_back(self, update: VersionUpdate, asg: AutoScalingGroup, now: datetime) -> None:
        """The scale down phase."""
        if update.surplus:
            asg.resize(max(0, asg.size - update.surplus), now=now, cause=_CONSTRAINTS)
            asg.max_size = int(asg.max_size or 0) - update.surplus
            update.surplus = 0
