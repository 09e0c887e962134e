"""Whether pods on a pool's nodes reach those on the cluster's other nodes, CoreDNS say: their security groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from airflow_gpu_provider.errors import CloudError, PermissionDenied
from airflow_gpu_provider.platforms.aws.clients import AwsService
from airflow_gpu_provider.platforms.aws.launch_templates import template_data

_DNS_PORT = 53


def security_notes(ec2: AwsService, neighbours: Iterable[Mapping[str, Any]], cluster_group: str) -> tuple[str, ...]:
    """Return what to know where other groups' nodes may not let in DNS queries of nodes without a launch template.

    Those carry the cluster security group alone. A group whose launch template names security groups carries just these
    ("Customize managed nodes with launch templates" in EKS's user guide); terraform-aws-eks's let in port 53 from their
    own kind only. Nodes are Ready then, and nothing on them resolves a name.

    Args:
        ec2: The service. What the identity may not read there is not judged.
        neighbours: The cluster's other node groups, as DescribeNodegroup shows them.
        cluster_group: The cluster security group's id.
    """
    closed = []
    for group in neighbours:
        if reference := group.get("launchTemplate"):
            carried = security_groups(template_data(ec2, reference))
            if carried and cluster_group not in carried and not admits_dns(_described(ec2, carried), cluster_group):
                closed.append(f"{group['nodegroupName']} ({', '.join(carried)})")
    if not closed:
        return ()
    return (
        f"nodes of {', '.join(closed)} have security groups of their own, which let in no DNS from the cluster security"
        f" group {cluster_group}, the only one that the pool's nodes have: where CoreDNS runs there, nothing on a GPU"
        " node resolves a name; launch_template= names a template with both groups",
    )


def security_groups(template: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the security groups that a launch template's data names. Pure."""
    of_interfaces = [interface.get("Groups", ()) for interface in template.get("NetworkInterfaces", ())]
    return tuple(dict.fromkeys(chain(template.get("SecurityGroupIds", ()), *of_interfaces)))


def admits_dns(groups: Sequence[Mapping[str, Any]], source: str) -> bool:
    """Return True if one of the groups lets UDP port 53 in from `source`, another group's id. Pure.

    A rule for addresses counts, whatever they are: which of them are nodes' is not known here. Without a description
    nothing is held against them.
    """
    rules = [rule for group in groups for rule in group.get("IpPermissions", ()) if _covers_dns(rule)]
    by_group = {pair.get("GroupId") for rule in rules for pair in rule.get("UserIdGroupPairs", ())}
    by_address = any(rule.get(kind) for rule in rules for kind in ("IpRanges", "Ipv6Ranges", "PrefixListIds"))
    return not groups or by_address or source in by_group


def _covers_dns(rule: Mapping[str, Any]) -> bool:
    if rule.get("IpProtocol") == "-1":
        return True
    return rule.get("IpProtocol") in ("udp", "17") and rule.get("FromPort", 0) <= _DNS_PORT <= rule.get("ToPort", 65535)


def _described(ec2: AwsService, groups: Sequence[str]) -> list[Mapping[str, Any]]:
    try:
        return list(ec2.items("describe_security_groups", "SecurityGroups", GroupIds=list(groups)))
    except (CloudError, PermissionDenied):
        return []
