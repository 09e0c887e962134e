"""A group on EKS that others own, read from AWS's answers: its machine types, market, taints and limits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_gpu_provider.clouds.aws.machine_types import gpus_of_type
from airflow_gpu_provider.clouds.aws.pool import GPU_FAMILY
from airflow_gpu_provider.clouds.aws.reservations import target_of
from airflow_gpu_provider.clouds.aws.spec import POOL_TAG, issues
from airflow_gpu_provider.clouds.group_checks import NamedGroup
from airflow_gpu_provider.pools import Candidate, Taint
from airflow_gpu_provider.pools.candidates import Market
from airflow_gpu_provider.pools.values import taints_from_cloud

TEMPLATE_TAINT = "k8s.io/cluster-autoscaler/node-template/taint/"
"""The tag by which an Auto Scaling group tells cluster-autoscaler a taint of its nodes, as value:Effect."""


_MARKETS: Mapping[str, Market] = {
    "spot": "SPOT",
    "capacity-block": "CAPACITY_BLOCK",
    "interruptible-capacity-reservation": "INTERRUPTIBLE_CAPACITY_RESERVATION",
}
"""By a launch template's MarketType (botocore, ec2). What is reserved counts against no quota of running instances."""


def read_group(
    name: str, asg: Mapping[str, Any], node_group: Mapping[str, Any] | None, template: Mapping[str, Any]
) -> NamedGroup:
    """Return a group as it is described.

    Args:
        name: As the pool names it.
        asg: DescribeAutoScalingGroups' answer.
        node_group: DescribeNodegroup's answer; None for a self-managed group.
        template: The data of its launch template; empty where that is not known.
    """
    types = machine_types(asg, node_group, template)
    return NamedGroup(
        name=name,
        candidate=candidate(name, asg, node_group, template),
        types=types,
        types_without_gpus=tuple(each for each in types if not _has_gpus(each)),
        taints=tuple(_taints(asg, node_group)),
        min_size=int(asg["MinSize"]),
        max_size=int(asg["MaxSize"]),
        made_for=(node_group or {}).get("tags", {}).get(POOL_TAG, ""),
        warnings=tuple(_warnings(asg, node_group)),
    )


def candidate(
    name: str, asg: Mapping[str, Any], node_group: Mapping[str, Any] | None, template: Mapping[str, Any]
) -> Candidate:
    types = machine_types(asg, node_group, template)
    market: Market = node_group.get("capacityType", "ON_DEMAND") if node_group else _market(asg, template)
    if market == "ON_DEMAND" and target_of(template):
        market = "RESERVED"
    zones = sorted(asg.get("AvailabilityZones", []))
    return Candidate(group=name, zone=", ".join(zones), instance_type=types[0] if types else "", market=market)


def machine_types(
    asg: Mapping[str, Any], node_group: Mapping[str, Any] | None, template: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the types that a group's machines may have, in its own order; () where it chooses by attributes."""
    listed = (node_group or {}).get("instanceTypes") or _overrides(asg)
    from_template = [template["InstanceType"]] if template.get("InstanceType") else []
    return tuple(dict.fromkeys(listed or from_template))


def template_of(asg: Mapping[str, Any]) -> dict[str, str] | None:
    """Return which launch template a group's instances are made from, in EKS's words: id or name, and version."""
    mixed = asg.get("MixedInstancesPolicy") or {}
    found = (mixed.get("LaunchTemplate") or {}).get("LaunchTemplateSpecification") or asg.get("LaunchTemplate")
    words = {"id": "LaunchTemplateId", "name": "LaunchTemplateName", "version": "Version"}
    return {ours: str(found[theirs]) for ours, theirs in words.items() if found.get(theirs)} if found else None


def _overrides(asg: Mapping[str, Any]) -> list[str]:
    template = (asg.get("MixedInstancesPolicy") or {}).get("LaunchTemplate") or {}
    return [each["InstanceType"] for each in template.get("Overrides") or () if each.get("InstanceType")]


def _market(asg: Mapping[str, Any], template: Mapping[str, Any]) -> Market:
    """Return the market of a self-managed group; one that mixes on-demand and spot counts as on-demand."""
    mixed = asg.get("MixedInstancesPolicy")
    if mixed:
        split = mixed.get("InstancesDistribution") or {}
        all_spot = not split.get("OnDemandBaseCapacity") and split.get("OnDemandPercentageAboveBaseCapacity") == 0
        return "SPOT" if all_spot else "ON_DEMAND"
    options = template.get("InstanceMarketOptions") or {}
    return _MARKETS.get(options.get("MarketType", ""), "ON_DEMAND")


def _has_gpus(instance_type: str) -> bool:
    return bool(gpus_of_type(instance_type) or GPU_FAMILY.match(instance_type))


def _taints(asg: Mapping[str, Any], node_group: Mapping[str, Any] | None) -> Iterable[Taint]:
    yield from taints_from_cloud((node_group or {}).get("taints") or ())
    for tag in asg.get("Tags") or () if node_group is None else ():
        if tag["Key"].startswith(TEMPLATE_TAINT):
            value, _, effect = tag["Value"].rpartition(":")
            yield Taint(key=tag["Key"].removeprefix(TEMPLATE_TAINT), value=value, effect=effect)


def _warnings(asg: Mapping[str, Any], node_group: Mapping[str, Any] | None) -> Iterable[str]:
    suspended = {process["ProcessName"] for process in asg.get("SuspendedProcesses") or ()}
    zones = asg.get("AvailabilityZones") or ()
    if len(zones) > 1 and "AZRebalance" not in suspended:
        yield (
            f"it is in {len(zones)} zones, and AWS ends machines with running pods to keep them even"
            " (aws/containers-roadmap#1453); one group for each zone is safe"
        )
    if node_group is None and (operator := asg.get("Operator")):
        yield f"{operator} operates it, and EC2 Auto Scaling takes changes of its size from no other (AccessDenied)"
    if "Launch" in suspended:
        yield "its launches are suspended, so it cannot grow"
    if asg.get("NewInstancesProtectedFromScaleIn"):
        yield "its machines are protected from scale-in, so the switch cannot take them when Airflow is gone"
    if node_group and node_group["status"] not in ("ACTIVE", "UPDATING"):
        why: Sequence[str] = issues(node_group)
        yield f"it is {node_group['status']}" + (f" ({'; '.join(why)})" if why else "")
