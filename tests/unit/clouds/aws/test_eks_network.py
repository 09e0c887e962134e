"""Which subnet a pool's nodes are put into where it names none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws.network import Subnet, choose, subnet_notes, way_out, zone_subnets

A, B = "us-west-2a", "us-west-2b"


def pool(**changes: Any) -> EksGpuPool:
    fields = {"name": "train", "cluster_name": "k8s-ml", "region": "us-west-2", "instance_types": ["g6.xlarge"]}
    return EksGpuPool(**({**fields, "max_nodes": 2} | changes))


def subnet(name: str, zone: str = A, **changes: Any) -> Subnet:
    return Subnet(id=name, zone=zone, **({"free": 4000} | changes))


def table(*routes: dict[str, str], subnets: tuple[str, ...] = (), main: bool = False) -> dict[str, Any]:
    associations: list[dict[str, Any]] = [{"SubnetId": name, "Main": False} for name in subnets]
    local = {"DestinationCidrBlock": "10.0.0.0/16", "GatewayId": "local", "State": "active"}
    return {
        "VpcId": "vpc-1",
        "Associations": [*associations, *([{"Main": True}] if main else [])],
        "Routes": [local, *routes],
    }


NAT = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-1", "State": "active"}
INTERNET = {"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1", "State": "active"}
ONLY_OUT = {"DestinationIpv6CidrBlock": "::/0", "EgressOnlyInternetGatewayId": "eigw-1", "State": "active"}
INTERNET_BY_IPV6 = {"DestinationIpv6CidrBlock": "::/0", "GatewayId": "igw-1", "State": "active"}
BLACK_HOLE = {**NAT, "State": "blackhole"}


@pytest.mark.parametrize(
    ("tables", "gives_addresses", "found"),
    [
        ([table(NAT, subnets=("s",))], False, "private"),
        ([table(ONLY_OUT, subnets=("s",))], False, "private"),
        ([table(INTERNET, subnets=("s",))], True, "public"),
        ([table(INTERNET, subnets=("s",))], False, "without address"),
        ([table(NAT, INTERNET_BY_IPV6, subnets=("s",))], False, "without address"),
        ([table(subnets=("s",)), table(NAT, main=True)], False, "none"),
        ([table(NAT, subnets=("other",)), table(INTERNET, main=True)], True, "public"),
        ([table(BLACK_HOLE, subnets=("s",))], True, "none"),
        ([{**table(NAT, main=True), "VpcId": "vpc-2"}], False, "none"),
    ],
)
def test_the_route_table_in_force_decides(tables: list[dict[str, Any]], gives_addresses: bool, found: str) -> None:
    described = {"SubnetId": "s", "VpcId": "vpc-1", "MapPublicIpOnLaunch": gives_addresses}
    assert way_out(described, tables) == found


def test_a_subnet_with_other_nodes_comes_before_the_cluster_s_own() -> None:
    own = subnet("control-plane", way_out="none")
    assert choose([own, subnet("of-nodes", has_nodes=True)], pool())[A].id == "of-nodes"
    assert choose([own, subnet("of-nodes", has_nodes=True, way_out="public", free=3)], pool())[A].id == "of-nodes"


def test_a_private_one_before_a_public_one_and_one_with_room_before_a_full_one() -> None:
    private, public = subnet("private"), subnet("public", way_out="public")
    assert choose([public, private], pool())[A] == private
    assert choose([public, subnet("full", free=7)], pool())[A] == public
    assert choose([subnet("dead-end", way_out="none"), subnet("refused", way_out="without address")], pool())[A].id == (
        "dead-end"
    )


class Ec2:
    """A VPC of two private subnets in one zone, of which one gives machines IPv6 addresses."""

    def items(self, call: str, _: str, **__: Any) -> list[dict[str, Any]]:
        if call == "describe_route_tables":
            return [table(NAT, main=True)]
        both = {"VpcId": "vpc-1", "AvailabilityZone": A, "AvailableIpAddressCount": 4000}
        return [{**both, "SubnetId": "a-4"}, {**both, "SubnetId": "b-6", "AssignIpv6AddressOnCreation": True}]


def test_a_cluster_of_ipv6_pods_has_its_nodes_where_they_get_such_an_address() -> None:
    ec2: Any = Ec2()
    of_cluster: dict[str, Any] = {"of_nodes": (), "of_cluster": ["a-4", "b-6"]}
    assert zone_subnets(ec2, pool(), **of_cluster)[A].id == "a-4"
    assert zone_subnets(ec2, pool(), **of_cluster, has_ipv6_pods=True)[A].id == "b-6"
    (note,) = subnet_notes([subnet("s", has_nodes=True, lacks_ipv6=True)], pool())
    assert "Ec2SubnetMissingIpv6Assignment" in note


def test_a_zone_in_which_no_node_would_join_is_left_out_unless_it_is_named() -> None:
    subnets = [subnet("of-nodes", has_nodes=True), subnet("own", B, way_out="none")]
    assert list(choose(subnets, pool())) == [A]
    assert set(choose(subnets, pool(zones=[A, B]))) == {A, B}
    assert set(choose([subnets[0], subnet("own", B)], pool())) == {A, B}


def test_a_private_cluster_s_zones_are_all_there() -> None:
    """Its VPC has endpoints in place of routes, and the plan says that it takes them."""
    dead_ends = [subnet("a", way_out="none"), subnet("b", B, way_out="none")]
    assert set(choose(dead_ends, pool())) == {A, B}
    told = subnet_notes(dead_ends, pool())
    assert len(told) == 2
    assert "VPC endpoints" in told[1]
    assert not subnet_notes([subnet("a", way_out="none", has_nodes=True)], pool())


def test_notes_are_of_what_was_not_asked_for() -> None:
    assert not subnet_notes([subnet("s", has_nodes=True)], pool())
    assert not subnet_notes([subnet("s", way_out="none", free=0, named=True)], pool())
    (few,) = subnet_notes([subnet("s", has_nodes=True, free=7)], pool())
    assert few == "s in us-west-2a has 7 free addresses, and 8 are wanted for 2 nodes"
    refused = subnet("s", has_nodes=True, way_out="without address")
    assert "Ec2SubnetInvalidConfiguration" in subnet_notes([refused], pool())[0]
    assert not subnet_notes([refused], pool(launch_template="nodes"))  # which may give its machines addresses


SUBNETS = st.builds(
    Subnet,
    id=st.uuids().map(str),
    zone=st.sampled_from([A, B]),
    free=st.integers(0, 20),
    way_out=st.sampled_from(["private", "public", "none", "without address"]),
    has_nodes=st.booleans(),
)


@given(st.lists(SUBNETS, min_size=1), st.booleans())
def test_a_choice_is_never_worse_than_another_of_its_zone(subnets: list[Subnet], names_zones: bool) -> None:
    chosen = choose(subnets, pool(zones=[A, B] if names_zones else []))
    assert chosen
    for zone, best in chosen.items():
        others = [each for each in subnets if each.zone == zone]
        assert best in others
        assert best.has_nodes or not any(each.has_nodes for each in others)
        alike = [each for each in others if each.has_nodes == best.has_nodes]
        assert best.is_usable or not any(each.is_usable for each in alike)
