"""EC2's placement groups, which moto does not have: made, described, deleted, and named by launch templates.

By "Placement groups" of EC2's user guide: a name is unique in the region, one with instances is not deleted, and a
launch into one that is not there fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.moto_api._internal import mock_random

from gpu_sandbox.aws.launch_templates import LaunchTemplates

if TYPE_CHECKING:
    from gpu_sandbox.aws.ec2 import Ec2Backend


class PlacementGroupError(EC2ClientError):
    def __init__(self, code: str, name: str) -> None:
        said = {
            "Duplicate": "already exists",
            "InUse": "is in use and may not be deleted",
            "Unknown": "is unknown",
        }
        super().__init__(f"InvalidPlacementGroup.{code}", f"The Placement Group '{name}' {said[code]}.")


@dataclass(kw_only=True)
class PlacementGroup:
    """One of them; `instances` are the ids of all that were launched into it."""

    name: str
    strategy: str
    tags: dict[str, str]
    id: str = field(default_factory=lambda: f"pg-{mock_random.get_random_hex(17)}")
    instances: set[str] = field(default_factory=set)


class PlacementGroups(LaunchTemplates):
    """EC2's API of them."""

    def create_placement_group(self) -> ActionResult:
        name = str(self._get_param("GroupName"))
        self.error_on_dryrun()
        if name in self._groups:
            raise PlacementGroupError("Duplicate", name)
        tags = self._parse_tag_specification().get("placement-group", {})
        strategy = str(self._get_param("Strategy") or "cluster")
        made = self._groups[name] = PlacementGroup(name=name, strategy=strategy, tags=tags)
        return ActionResult({"PlacementGroup": self._shown(made)})

    def describe_placement_groups(self) -> ActionResult:
        self.error_on_dryrun()
        names, filters = self._get_param("GroupNames", []), self._filters_from_querystring()
        for name in names:
            if name not in self._groups:
                raise PlacementGroupError("Unknown", name)
        found = [each for each in self._groups.values() if not names or each.name in names]
        shown = [self._shown(each) for each in found if all(_has(each, name, list(of)) for name, of in filters.items())]
        return ActionResult({"PlacementGroups": shown})

    def delete_placement_group(self) -> ActionResult:
        name = str(self._get_param("GroupName"))
        self.error_on_dryrun()
        if name not in self._groups:
            raise PlacementGroupError("Unknown", name)
        there = {each.id for each in self.ec2_backend.all_instances() if each.state != "terminated"}
        if there & self._groups[name].instances:
            raise PlacementGroupError("InUse", name)
        del self._groups[name]
        return ActionResult({})

    @property
    def _groups(self) -> dict[str, PlacementGroup]:
        return cast("Ec2Backend", self.ec2_backend).placement_groups

    def _shown(self, group: PlacementGroup) -> dict[str, Any]:
        place = f"arn:{self.partition}:ec2:{self.region}:{self.current_account}"
        return {
            "GroupName": group.name,
            "State": "available",
            "Strategy": group.strategy,
            "GroupId": group.id,
            "Tags": [{"Key": key, "Value": value} for key, value in group.tags.items()],
            "GroupArn": f"{place}:placement-group/{group.name}",
        }


def _has(group: PlacementGroup, name: str, values: list[str]) -> bool:
    if name.startswith("tag:"):
        return group.tags.get(name.removeprefix("tag:")) in values
    found = {"group-name": group.name, "strategy": group.strategy, "state": "available"}
    if name not in found:
        raise NotImplementedError(f"the sandbox does not filter placement groups by {name}")
    return found[name] in values
