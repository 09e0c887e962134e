"""What IAM is asked about a launch: each resource that a machine is made of, and whether the launch template has it.

A value in the request overrides the template's, and then ec2:IsLaunchTemplateResource is false of the resource that it
names ("Example policies to control access the Amazon EC2 API", launch templates). What names no resource, such as a
type or user data, is taken to be of the instance. Where the documents are silent it is false here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Parameters = Mapping[str, Any]

LAUNCHED = ("image", "instance", "network-interface", "security-group", "subnet", "volume")
"""The types of resource that RunInstances is asked about, each time."""
_MORE = ("capacity-reservation", "key-pair", "placement-group")
_WITHOUT_ACCOUNT = ("image",)
# "RunInstances" in EC2's API reference: parameters by the type of resource that they name; those that change nothing.
_NAMED_BY = {
    "BlockDeviceMappings": "volume",
    "ImageId": "image",
    "KeyName": "key-pair",
    "NetworkInterfaces": "network-interface",
    "SecurityGroupIds": "security-group",
    "SecurityGroups": "security-group",
    "SubnetId": "subnet",
}
_NEUTRAL = {"ClientToken", "DryRun", "LaunchTemplate", "MaxCount", "MinCount"}
_MADE = ("instance", "network-interface", "volume")
"""What comes to be with the launch, whether it is named or not."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A resource of a launch. `context` has EC2's condition keys for it."""

    arn: str
    context: Mapping[str, str]


def launched(request: Parameters, *, template: Parameters, template_arn: str, place: str, owner: str) -> list[Launched]:
    """Return what a launch is asked about.

    Args:
        request: RunInstances' parameters.
        template: The data of the launch template's version; empty without one.
        template_arn: Its ARN; empty without one.
        place: The ARN of anything in the account's EC2, up to the type of resource.
        owner: ec2:Owner of the image.
    """
    by_request, by_template = set(_named(request)), set(_named(template))
    found = []
    for kind in (*LAUNCHED, *(one for one in _MORE if one in by_request | by_template)):
        context = {"ec2:Owner": owner} if kind == "image" else {}
        if template_arn:
            is_from_it = kind not in by_request and (kind in by_template or kind in _MADE)
            context |= {"ec2:LaunchTemplate": template_arn, "ec2:IsLaunchTemplateResource": str(is_from_it).lower()}
        root = f"{place.rpartition(':')[0]}:" if kind in _WITHOUT_ACCOUNT else place
        found.append(Launched(arn=f"{root}:{kind}/*", context=context))
    return found


def as_eks_asks(template: Parameters) -> dict[str, Any]:
    """Return RunInstances' parameters in EKS's check of a node group's launch template, as far as they can be known.

    A template of a node group names no subnet, and need not name image and security groups (EKS's user guide,
    "Customize managed nodes with launch templates"): EKS then has to. Type and user data are not of the request: in a
    decoded refusal of such a check the instance was the template's.
    """
    has_groups = "security-group" in _named(template)
    return {
        "SubnetId": "subnet-of-the-group",
        **({} if template.get("ImageId") else {"ImageId": "ami-of-eks"}),
        **({} if has_groups else {"SecurityGroupIds": ["sg-of-the-cluster"]}),
    }


def _named(data: Parameters) -> Iterator[str]:
    for name, value in data.items():
        if not value or name in _NEUTRAL:
            continue
        yield _NAMED_BY.get(name, "instance")
        if name == "NetworkInterfaces":
            yield from ("subnet" for each in value if each.get("SubnetId"))
            yield from ("security-group" for each in value if each.get("Groups"))
    if (data.get("Placement") or {}).get("GroupName"):
        yield "placement-group"
    target = (data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    if target.get("CapacityReservationId"):
        yield "capacity-reservation"
