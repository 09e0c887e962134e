"""The network of nodes with EFA: interfaces as EC2 recommends them, a security group that lets EFA pass, subnets."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator
from moto.ec2.models.instance_types import INSTANCE_TYPES

from airflow_gpu_provider.clouds.aws.instance_types import (
    Cards,
    Fabric,
    check_security_group,
    read_fabric,
)
from airflow_gpu_provider.clouds.aws.launch_templates import check_fits
from airflow_gpu_provider.clouds.aws.machine_types import EFA_INTERFACES
from airflow_gpu_provider.clouds.aws.network import Subnet, check_subnets
from airflow_gpu_provider.clouds.aws.rules import interfaces_of_a_pod
from airflow_gpu_provider.clouds.aws.template_data import described, template_data
from airflow_gpu_provider.errors import PoolSpecError
from tests.unit.clouds.aws.test_eks_pool import pool

SHAPE = get_session().get_service_model("ec2").shape_for("RequestLaunchTemplateData")
CLUSTER = {"resourcesVpcConfig": {"clusterSecurityGroupId": "sg-1"}}
ITSELF = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1"}]}
EVERYWHERE = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
GROUP = {"GroupId": "sg-1", "IpPermissions": [ITSELF], "IpPermissionsEgress": [EVERYWHERE, ITSELF]}


class Ec2:
    """EC2, as far as types and one security group go."""

    def call(self, method: str, **asked: Any) -> dict[str, Any]:
        if method == "describe_security_groups":
            return {"SecurityGroups": [GROUP]}
        raise AssertionError(method)

    def items(self, method: str, key: str, *, Filters: list[dict[str, Any]]) -> list[dict[str, Any]]:  # AWS's name
        (named,) = Filters
        return [{"InstanceType": name, **INSTANCE_TYPES[name]} for name in named["Values"] if name in INSTANCE_TYPES]


def fabric(**types: tuple[int, int]) -> Fabric:
    cards = {name: Cards(cards=cards, efa=efa) for name, (cards, efa) in types.items()}
    return Fabric(cards=cards, security_group="sg-1")


@pytest.mark.parametrize("name", [each for each in EFA_INTERFACES if each in INSTANCE_TYPES])
def test_each_type_has_all_that_ec2_says_it_has(name: str) -> None:
    arm = {"ami_type": "AL2023_ARM_64_NVIDIA"} if "arm64" in INSTANCE_TYPES[name]["ProcessorInfo"] else {}
    spec = pool(instance_types=[name], network="efa", **arm)
    found = read_fabric(Ec2(), spec, CLUSTER)  # type: ignore[arg-type]
    data = template_data(spec, spec.candidates(["us-west-2a"])[0], fabric=found)
    assert data is not None
    assert not ParamValidator().validate(data, SHAPE).has_errors()
    check_fits(data, spec)
    interfaces = data["NetworkInterfaces"]
    assert len({(each["NetworkCardIndex"], each["DeviceIndex"]) for each in interfaces}) == len(interfaces)
    with_efa = [each for each in interfaces if each["InterfaceType"].startswith("efa")]
    assert len(with_efa) == EFA_INTERFACES[name] == interfaces_of_a_pod(spec.node_sizes, spec.gpus_per_node or 1)
    assert {each["NetworkCardIndex"] for each in interfaces} <= set(range(found.cards[name].cards if found else 0))
    assert (interfaces[0]["NetworkCardIndex"], interfaces[0]["DeviceIndex"]) == (0, 0)
    assert interfaces[0]["InterfaceType"] != "efa-only", "the primary one has an address"
    assert all(each["Groups"] == ["sg-1"] and each["DeleteOnTermination"] for each in interfaces)
    assert data["Placement"] == {"GroupName": f"k8s-ml/{spec.candidates(['us-west-2a'])[0].group}"}


@pytest.mark.parametrize(
    ("cards", "efa", "wanted"),
    [
        (1, 1, [(0, 0, "efa")]),
        (2, 2, [(0, 0, "interface"), (0, 1, "efa-only"), (1, 0, "efa-only")]),
        (3, 2, [(0, 0, "interface"), (1, 0, "efa-only"), (2, 0, "efa-only")]),  # p6-b300's first card has none
    ],
)
def test_interfaces(cards: int, efa: int, wanted: list[tuple[int, int, str]]) -> None:
    made = fabric(x=(cards, efa)).interfaces("x")
    assert [(each["NetworkCardIndex"], each["DeviceIndex"], each["InterfaceType"]) for each in made] == wanted


def test_a_plan_counts_them() -> None:
    spec = pool(instance_types=["p5.48xlarge"], network="efa")
    made = fabric(**{"p5.48xlarge": (32, 32)})
    data = template_data(spec, spec.candidates(["us-west-2a"])[0], fabric=made)
    assert data is not None
    assert "NetworkInterfaces 1 interface in sg-1, 32 efa-only in sg-1" in described(data)


def test_other_pools_read_nothing() -> None:
    assert read_fabric(None, pool(), CLUSTER) is None  # type: ignore[arg-type]


def test_the_cluster_s_default_security_group_lets_efa_pass() -> None:
    check_security_group(GROUP, pool())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"IpPermissionsEgress": [EVERYWHERE]}, "all traffic out to itself"),
        ({"IpPermissions": [{**ITSELF, "IpProtocol": "tcp"}]}, "all traffic in from itself"),
        ({"IpPermissions": [], "IpPermissionsEgress": []}, "in from and out to itself"),
    ],
)
def test_one_that_does_not_is_refused_with_the_command_that_mends_it(change: dict[str, Any], says: str) -> None:
    with pytest.raises(PoolSpecError) as caught:
        check_security_group({**GROUP, **change}, pool())
    assert says in str(caught.value)
    assert "aws ec2 authorize-security-group-" in caught.value.fix
    assert "--group-id sg-1 --protocol all --source-group sg-1" in caught.value.fix


def test_machines_with_several_interfaces_are_for_private_subnets() -> None:
    public, private = Subnet(id="subnet-1", zone="a", way_out="public"), Subnet(id="subnet-2", zone="b")
    check_subnets(fabric(x=(1, 1)), [public], pool())
    check_subnets(fabric(x=(4, 4)), [private], pool())
    with pytest.raises(PoolSpecError, match="no public address, without which none joins from subnet-1"):
        check_subnets(fabric(x=(4, 4)), [public, private], pool())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"network": "EFA"}, "network='EFA' must be \"efa\""),
        ({"network": "efa"}, "g6.xlarge has no EFA interface"),
        ({"network": "efa", "instance_types": ["g6.8xlarge"], "ami_type": "AL2_x86_64_GPU"}, "bring no EFA driver"),
        ({"network": "efa", "instance_types": ["g6.8xlarge"], "scaling": "autoscaler"}, "cluster-autoscaler"),
        ({"network": "efa", "instance_types": ["g6.8xlarge"], "launch_template": "mine"}, "exclude each other"),
    ],
)
def test_pools_that_cannot_have_it(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(PoolSpecError) as caught:
        pool(**fields)
    assert says in str(caught.value)


def test_a_pod_asks_for_what_each_of_the_pool_s_types_has() -> None:
    both = pool(instance_types=["p5.48xlarge", "p4d.24xlarge"], network="efa")
    assert [interfaces_of_a_pod(both.node_sizes, gpus) for gpus in (8, 4, 1)] == [4, 2, 1]
    largest = pool(instance_types=["p5.48xlarge"], network="efa")
    assert [interfaces_of_a_pod(largest.node_sizes, gpus) for gpus in (8, 4)] == [32, 16]
    assert pool(instance_types=["p5.48xlarge"]).fabric_of(8) is None
