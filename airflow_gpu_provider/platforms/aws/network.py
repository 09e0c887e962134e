"""Where a cluster can have GPU nodes: a subnet for each zone, and the instance types that EC2 offers there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_gpu_provider.errors import CloudError, PoolSpecError
from airflow_gpu_provider.platforms.aws.clients import AwsService
from airflow_gpu_provider.platforms.aws.errors import has_code, message_of
from airflow_gpu_provider.pools import EksGpuPool

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
    """

    id: str
    zone: str
    free: int = 0
    way_out: WayOut = "private"
    has_nodes: bool = False
    named: bool = False

    @property
    def is_usable(self) -> bool:
        """True if nodes there join without anything else in the VPC."""
        return self.way_out in ("private", "public")


def zone_subnets(
    ec2: AwsService, pool: EksGpuPool, *, of_nodes: Collection[str], of_cluster: Collection[str]
) -> dict[str, Subnet]:
    """Return one subnet for each zone of the pool, in order of preference.

    Of the pool's own subnets the first named in a zone is taken. Without any it is one in which other node groups are;
    the cluster's own, which may be meant for its control plane alone, only in zones where no other node group is.
    Zones are in the pool's order, or by name.

    Args:
        ec2: The service.
        pool: The rendered spec.
        of_nodes: Subnets of the cluster's other node groups.
        of_cluster: Subnets that the cluster itself names.

    Raises:
        PoolSpecError: A zone that the pool names has no subnet, or a subnet does not exist.
    """
    if pool.subnets:
        chosen: dict[str, Subnet] = {}
        for raw in _named(ec2, pool):
            zone = raw["AvailabilityZone"]
            chosen.setdefault(zone, Subnet(id=raw["SubnetId"], zone=zone, named=True))
    else:
        chosen = choose(_defaults(ec2, of_nodes, of_cluster), pool)
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
    """Return the best subnet of each zone; of zones that nobody named, those alone whose nodes would join. Pure."""
    by_zone: dict[str, list[Subnet]] = {}
    for subnet in subnets:
        by_zone.setdefault(subnet.zone, []).append(subnet)
    best = {zone: min(each, key=lambda subnet: _order(subnet, pool)) for zone, each in by_zone.items()}
    usable = {zone: subnet for zone, subnet in best.items() if subnet.is_usable or subnet.has_nodes}
    return usable if usable and not pool.zones else best


def subnet_notes(subnets: Iterable[Subnet], pool: EksGpuPool) -> tuple[str, ...]:
    """Return what to know of the subnets that were chosen. Pure."""
    chosen = [subnet for subnet in subnets if not subnet.named]
    notes = []
    own = [subnet for subnet in chosen if not subnet.has_nodes]
    if own:
        notes.append(
            f"{_listed(own)}: no other node group is in the zone, and a subnet of the cluster's own is used: it may be"
            " meant for its control plane alone; subnets= names others"
        )
    dead_ends = [subnet for subnet in own if subnet.way_out == "none"]
    if dead_ends:
        notes.append(
            f"{_listed(dead_ends)}: no route leads out of the VPC, so that nodes join only where VPC endpoints take its"
            " place; subnets= names others"
        )
    without = [subnet for subnet in chosen if subnet.way_out == "without address"]
    if without and not pool.launch_template:
        notes.append(
            f"{_listed(without)}: public, and machines get no public address, so that EKS makes no node group there"
            " (Ec2SubnetInvalidConfiguration); subnets= names others"
        )
    notes += [
        f"{subnet.id} in {subnet.zone} has {subnet.free} free addresses, and {_needed(pool)} are wanted for"
        f" {pool.max_nodes} nodes"
        for subnet in chosen
        if subnet.free < _needed(pool)
    ]
    return tuple(notes)


def _order(subnet: Subnet, pool: EksGpuPool) -> tuple[bool, bool, bool, int]:
    """Return a key that sorts the best subnet of a zone first."""
    has_few = subnet.free < _needed(pool)
    return not subnet.has_nodes, not subnet.is_usable, has_few, _RANKS.index(subnet.way_out)


def _needed(pool: EksGpuPool) -> int:
    return pool.max_nodes * _ADDRESSES_OF_A_NODE


def _listed(subnets: Iterable[Subnet]) -> str:
    return ", ".join(f"{subnet.id} in {subnet.zone}" for subnet in subnets)


def _defaults(ec2: AwsService, of_nodes: Collection[str], of_cluster: Collection[str]) -> list[Subnet]:
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
        )
        for raw in sorted(found, key=lambda raw: str(raw["SubnetId"]))
    ]


def way_out(subnet: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> WayOut:
    """Return how a machine in a subnet reaches the outside, by the route table in force there. Pure.

    That is the table associated with the subnet, or else the VPC's main one. Whether machines get public addresses says
    nothing of the routes: a public subnet may give none.
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
