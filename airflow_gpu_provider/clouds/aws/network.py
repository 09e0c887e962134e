"""Where a cluster can have GPU nodes: a subnet for each zone, and the instance types that EC2 offers there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from airflow_gpu_provider.clouds.answers import has_code, message_of
from airflow_gpu_provider.clouds.aws.clients import AwsService
from airflow_gpu_provider.clouds.aws.instance_types import Fabric
from airflow_gpu_provider.clouds.aws.launch_templates import template_data
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.errors import CloudError, PermissionDenied, PoolSpecError

WayOut = Literal["private", "public", "none", "without address"]
"""How a machine in a subnet reaches the endpoint and the registries, the best first: by a route to a NAT or transit
gateway; by an internet gateway, with an address of its own; not at all; by an internet gateway, without an address.

A node needs a way out, or VPC endpoints that take its place ("View Amazon EKS networking requirements for VPC and
subnets" and "Deploy private clusters with limited internet access" in EKS's user guide). In the last kind EKS makes no
node group: Ec2SubnetInvalidConfiguration.
"""

_RANKS: tuple[WayOut, ...] = ("private", "public", "none", "without address")
_EVERYWHERE = {"0.0.0.0/0", "::/0"}
_ADDRESSES_OF_A_NODE = 4
"""Its own, the device plugin's pod, a training pod and one to spare; the CNI plugin takes more where there are more."""


@dataclass(frozen=True, kw_only=True)
class Subnet:
    """One subnet that nodes may be put into.

    Attributes:
        free: Addresses that are free in it.
        has_nodes: Another node group of the cluster is in it.
        named: The pool names it, so that it is taken as it stands.
        lacks_ipv6: The cluster gives pods IPv6 addresses, and machines in the subnet have none: EKS makes no node group
            there (botocore's eks, NodegroupIssueCode Ec2SubnetMissingIpv6Assignment).
    """

    id: str
    zone: str
    free: int = 0
    way_out: WayOut = "private"
    has_nodes: bool = False
    named: bool = False
    lacks_ipv6: bool = False

    @property
    def is_usable(self) -> bool:
        """True if nodes there join without anything else in the VPC."""
        return self.way_out in ("private", "public") and not self.lacks_ipv6


def zone_subnets(
    ec2: AwsService,
    pool: EksGpuPool,
    *,
    of_nodes: Collection[str],
    of_cluster: Collection[str],
    has_ipv6_pods: bool = False,
) -> dict[str, Subnet]:
    """Return one subnet for each zone of the pool, in order of preference.

    Of the pool's own subnets the first named in a zone is taken. Without any it is one in which other node groups are;
    the cluster's own, which may be meant for its control plane alone, only in zones where no other node group is.
    Zones are in the pool's order, or by name.

    Args:
        of_nodes: Subnets of the cluster's other node groups.
        of_cluster: Subnets that the cluster itself names.
        has_ipv6_pods: The cluster's IP family is IPv6.

    Raises:
        PoolSpecError: A zone that the pool names has no subnet, or a subnet does not exist.
    """
    if pool.subnets:
        chosen: dict[str, Subnet] = {}
        for raw in _named(ec2, pool):
            zone = raw["AvailabilityZone"]
            chosen.setdefault(zone, Subnet(id=raw["SubnetId"], zone=zone, named=True))
    else:
        chosen = choose(_defaults(ec2, of_nodes, of_cluster, has_ipv6_pods=has_ipv6_pods), pool)
    missing = [zone for zone in pool.zones if zone not in chosen]
    if missing:
        whose = "its subnets" if pool.subnets else f"the subnets of cluster {pool.cluster_name}"
        raise PoolSpecError(
            f"Pool {pool.name}: none of {whose} is in {', '.join(missing)}.",
            f"Choose zones among {', '.join(sorted(chosen)) or 'those of the subnets'}, or name subnets there.",
            zones=missing,
        )
    return {zone: chosen[zone] for zone in pool.zones or sorted(chosen)}


def choose(subnets: Iterable[Subnet], pool: EksGpuPool) -> dict[str, Subnet]:
    """Return the best subnet of each zone; of zones that are not named, only those whose nodes join. Pure."""
    by_zone: dict[str, list[Subnet]] = {}
    for subnet in subnets:
        by_zone.setdefault(subnet.zone, []).append(subnet)
    best = {zone: min(each, key=lambda subnet: _order(subnet, pool)) for zone, each in by_zone.items()}
    usable = {zone: subnet for zone, subnet in best.items() if subnet.is_usable or subnet.has_nodes}
    return usable if usable and not pool.zones else best


def subnet_notes(subnets: Iterable[Subnet], pool: EksGpuPool) -> tuple[str, ...]:
    """Return what to know of the subnets that were chosen. Pure."""
    chosen = [subnet for subnet in subnets if not subnet.named]
    own = [subnet for subnet in chosen if not subnet.has_nodes]
    without_address = [subnet for subnet in chosen if subnet.way_out == "without address"]
    findings = {
        "no other node group is in the zone, and a subnet of the cluster's own is used: it may be meant for its control"
        " plane alone; subnets= names others": own,
        "no route leads out of the VPC, so that nodes join only where VPC endpoints take its place; subnets= names"
        " others": [subnet for subnet in own if subnet.way_out == "none"],
        "public, and machines get no public address: EKS refuses a node group there (Ec2SubnetInvalidConfiguration);"
        " subnets= names others": [] if pool.launch_template else without_address,
        "the cluster's pods have IPv6 addresses, and machines there get none: EKS refuses the node group"
        " (Ec2SubnetMissingIpv6Assignment). Enable IPv6 assignment on the subnet, or set subnets=": [
            subnet for subnet in chosen if subnet.lacks_ipv6
        ],
    }
    free = (
        f"{subnet.id} in {subnet.zone} has {subnet.free} free addresses, and {_needed(pool)} are wanted for"
        f" {pool.max_nodes} nodes"
        for subnet in chosen
        if subnet.free < _needed(pool)
    )
    return (*(f"{_listed(those)}: {what}" for what, those in findings.items() if those), *free)


def check_subnets(fabric: Fabric, subnets: Sequence[Subnet], pool: EksGpuPool) -> None:
    """Refuse public subnets: with several interfaces EC2 gives a machine no public address, and it never joins. Pure.

    EC2's user guide, "Public IPv4 addresses and network interfaces".

    Raises:
        PoolSpecError: As said.
    """
    public = [subnet.id for subnet in subnets if subnet.way_out == "public"]
    several = [name for name, has in fabric.cards.items() if has.cards > 1]
    if public and several:
        raise PoolSpecError(
            f'Pool {pool.name}: network="efa" gives {", ".join(several)} several network interfaces, and EC2 such'
            f" machines no public address, without which none joins from {', '.join(public)}.",
            "Name private subnets, whose way out is a NAT gateway.",
            subnets=public,
        )


def _order(subnet: Subnet, pool: EksGpuPool) -> tuple[bool, bool, bool, int]:
    """Return a key that sorts the best subnet of a zone first."""
    has_few = subnet.free < _needed(pool)
    return not subnet.has_nodes, not subnet.is_usable, has_few, _RANKS.index(subnet.way_out)


def _needed(pool: EksGpuPool) -> int:
    return pool.max_nodes * _ADDRESSES_OF_A_NODE


def _listed(subnets: Iterable[Subnet]) -> str:
    return ", ".join(f"{subnet.id} in {subnet.zone}" for subnet in subnets)


def _defaults(
    ec2: AwsService, of_nodes: Collection[str], of_cluster: Collection[str], *, has_ipv6_pods: bool
) -> list[Subnet]:
    """Return the subnets that a pool without any of its own may use; by a filter, for some may be gone."""
    ids = sorted({*of_nodes, *of_cluster})
    found = list(ec2.items("describe_subnets", "Subnets", Filters=[{"Name": "subnet-id", "Values": ids}]))
    vpcs = sorted({raw["VpcId"] for raw in found})
    tables = list(ec2.items("describe_route_tables", "RouteTables", Filters=[{"Name": "vpc-id", "Values": vpcs}]))
    return [
        Subnet(
            id=raw["SubnetId"],
            zone=raw["AvailabilityZone"],
            free=int(raw["AvailableIpAddressCount"]),
            way_out=way_out(raw, tables),
            has_nodes=raw["SubnetId"] in of_nodes,
            lacks_ipv6=has_ipv6_pods and not raw.get("AssignIpv6AddressOnCreation"),
        )
        for raw in sorted(found, key=lambda raw: str(raw["SubnetId"]))
    ]


def way_out(subnet: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> WayOut:
    """Return how a machine in a subnet reaches the outside, by the route table in force there. Pure.

    That is the table associated with the subnet, or else the VPC's main one. Whether machines get public addresses says
    nothing of the routes: a public subnet may give none. EKS takes a subnet for public by an internet gateway for IPv6
    alone, too, and insists on public IPv4 addresses there (aws/containers-roadmap#2444, eksctl-io/eksctl#6200).
    """
    associated = [(table, each) for table in tables for each in table.get("Associations", ())]
    own = [table for table, each in associated if each.get("SubnetId") == subnet["SubnetId"]]
    main = [table for table, each in associated if each.get("Main") and table.get("VpcId") == subnet["VpcId"]]
    routes = [
        route
        for table in (own or main)
        for route in table.get("Routes", ())
        if route.get("State", "active") == "active"
        and {route.get("DestinationCidrBlock"), route.get("DestinationIpv6CidrBlock")} & _EVERYWHERE
    ]
    if not routes:
        return "none"
    if not any(str(route.get("GatewayId", "")).startswith("igw-") for route in routes):
        return "private"
    return "public" if subnet.get("MapPublicIpOnLaunch") else "without address"


def offered_types(ec2: AwsService, pool: EksGpuPool, zones: Collection[str]) -> set[tuple[str, str]]:
    """Return the (zone, instance type) pairs of the pool that EC2 offers."""
    offerings = ec2.items(
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[
            {"Name": "instance-type", "Values": list(pool.instance_types)},
            {"Name": "location", "Values": sorted(zones)},
        ],
    )
    return {(offering["Location"], offering["InstanceType"]) for offering in offerings}


def _named(ec2: AwsService, pool: EksGpuPool) -> list[Mapping[str, Any]]:
    """Return the pool's own subnets, in its order."""
    try:
        found = list(ec2.items("describe_subnets", "Subnets", SubnetIds=list(pool.subnets)))
    except CloudError as error:
        if not has_code(error, "InvalidSubnetID.NotFound", "InvalidSubnetId.Malformed"):
            raise
        raise PoolSpecError(
            f"Pool {pool.name}: {message_of(error)}.", f"Correct the pool's subnets; its region is {pool.region}."
        ) from error
    return sorted(found, key=lambda subnet: pool.subnets.index(subnet["SubnetId"]))


# -- whether pods on the nodes reach those on the cluster's other nodes, CoreDNS say: their security groups -----

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
