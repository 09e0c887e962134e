"""A cluster's VPC as terraform-aws-eks's examples make it, and what a machine in one of its subnets reaches.

In each zone there are three subnets: a private one, whose way out is a NAT gateway, for nodes; a public one, which
gives machines no public address; and one without a way out, for the control plane's network interfaces alone. That is
what `subnet_ids`, `enable_nat_gateway` and `control_plane_subnet_ids` of the module's examples come to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from moto.ec2.models import EC2Backend
from moto.ec2.models.route_tables import Route
from moto.ec2.models.subnets import Subnet

_VPC = IPv4Network("10.64.0.0/16")
_FOR_NODES = list(_VPC.subnets(new_prefix=20))
_SMALL = list(_FOR_NODES.pop().subnets(new_prefix=24))
_EVERYWHERE = ("0.0.0.0/0", "::/0")


@dataclass(frozen=True, kw_only=True)
class Vpc:
    """A VPC with its subnets by zone."""

    id: str
    private: dict[str, str]
    public: dict[str, str]
    control_plane: dict[str, str]


def create_vpc(ec2: EC2Backend, zones: Sequence[str]) -> Vpc:
    """Create it with all that its routes need. At most eight zones."""
    vpc_id = ec2.create_vpc(str(_VPC)).id
    large, small = iter(_FOR_NODES), iter(_SMALL)

    def subnets(blocks: Iterator[IPv4Network]) -> dict[str, str]:
        return {zone: ec2.create_subnet(vpc_id, str(next(blocks)), availability_zone=zone).id for zone in zones}

    vpc = Vpc(id=vpc_id, private=subnets(large), public=subnets(small), control_plane=subnets(small))
    internet = ec2.create_internet_gateway()
    ec2.attach_internet_gateway(internet.id, vpc_id)
    nat = ec2.create_nat_gateway(vpc.public[zones[0]], "")
    outward = ec2.create_route_table(vpc_id), ec2.create_route_table(vpc_id)
    ec2.create_route(outward[0].id, _EVERYWHERE[0], gateway_id=internet.id)
    ec2.create_route(outward[1].id, _EVERYWHERE[0], nat_gateway_id=nat.id)
    for table, those in zip(outward, (vpc.public, vpc.private), strict=True):
        for subnet in those.values():
            ec2.associate_route_table(table.id, subnet_id=subnet)
    return vpc


def lacks_addresses(ec2: EC2Backend, subnet_id: str) -> bool:
    """Return True if the subnet is public and gives machines no public address: EKS makes no node group there."""
    subnet: Subnet = ec2.get_subnet(subnet_id)
    route = _way_out(ec2, subnet)
    return route is not None and _is_internet(route) and not _gives_public_addresses(subnet)


def lacks_ipv6(ec2: EC2Backend, subnet_id: str) -> bool:
    """Return True if machines in the subnet get no IPv6 address: for IPv6 pods EKS makes no node group there."""
    return str(ec2.get_subnet(subnet_id).assign_ipv6_address_on_creation).lower() != "true"


def reaches_outside(ec2: EC2Backend, subnet_id: str) -> bool:
    """Return True if a machine there reaches the control plane's endpoint and the registries.

    It needs a route out of the VPC, and a public address where that is an internet gateway. Subnets of the region's
    default VPC have both.
    """
    subnet: Subnet = ec2.get_subnet(subnet_id)
    if str(subnet.default_for_az).lower() == "true":
        return True
    route = _way_out(ec2, subnet)
    return route is not None and (not _is_internet(route) or _gives_public_addresses(subnet))


def _way_out(ec2: EC2Backend, subnet: Subnet) -> Route | None:
    tables = ec2.describe_route_tables(filters={"vpc-id": [subnet.vpc_id]})
    own = [table for table in tables if subnet.id in table._associations.values()]
    main = [table for table in tables if table.main_association_id]
    routes = [route for table in (own or main)[:1] for route in table.routes]
    return next(
        (r for r in routes if r.destination_cidr_block in _EVERYWHERE or r.destination_ipv6_cidr_block in _EVERYWHERE),
        None,
    )


def _is_internet(route: Route) -> bool:
    return route.gateway is not None and str(route.gateway.id).startswith("igw-")


def _gives_public_addresses(subnet: Subnet) -> bool:
    return str(subnet.map_public_ip_on_launch).lower() == "true"
