"""What EC2's instance types mean for a pool: their networks, EFA above all, how to get them, and their GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.clouds.aws.machine_types import EFA_INTERFACES, instance_type
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.errors import CloudError, PermissionDenied, PoolSpecError

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.aws.clients import AwsService


@dataclass(frozen=True, kw_only=True)
class Cards:
    """What DescribeInstanceTypes says of a type's network: how many cards it has, and how many EFA interfaces."""

    cards: int
    efa: int


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The network of a pool's nodes.

    Attributes:
        cards: By instance type.
        security_group: The cluster's, which its nodes have.
    """

    cards: Mapping[str, Cards]
    security_group: str

    def interfaces(self, instance_type: str) -> list[dict[str, Any]]:
        """Return the interfaces for a launch template, as EC2's user guide recommends them.

        "Maximize network bandwidth on Amazon EC2 instances with multiple network cards": the first one is an ordinary
        one, and each card has an EFA-only interface, which takes no address; the first card too, if it has EFA. With
        one card, one interface is both.
        """
        has = self.cards[instance_type]
        if has.cards == 1:
            return [self._interface(0, 0, "efa")]
        first = 0 if has.efa >= has.cards else 1
        numbers = range(first, first + has.efa)
        return [
            self._interface(0, 0, "interface"),
            *(self._interface(card, 0 if card else 1, "efa-only") for card in numbers),
        ]

    def _interface(self, card: int, device: int, kind: str) -> dict[str, Any]:
        return {
            "NetworkCardIndex": card,
            "DeviceIndex": device,
            "InterfaceType": kind,
            "Groups": [self.security_group],
            "DeleteOnTermination": True,
        }


def read_fabric(ec2: AwsService, pool: EksGpuPool, cluster: Mapping[str, Any]) -> Fabric | None:
    """Read what the nodes' network is made of; None where the pool asks for none.

    Types that the region lacks are left out, by a filter: EC2 refuses their names (InvalidInstanceType; scylladb/
    scylla-cluster-tests#12419). That they are not offered is said where candidates are compared.

    Raises:
        PoolSpecError: A type has no EFA interface, or the cluster security group does not let EFA pass.
    """
    if pool.network != "efa":
        return None
    named = [{"Name": "instance-type", "Values": list(pool.instance_types)}]
    types = ec2.items("describe_instance_types", "InstanceTypes", Filters=named)
    cards = {each["InstanceType"]: _cards(each["NetworkInfo"]) for each in types}
    if without := [name for name, has in cards.items() if not has.efa]:
        raise PoolSpecError(
            f'Pool {pool.name}: network="efa", and EC2 says that {", ".join(without)} has no EFA interface.',
            "Choose other instance types.",
        )
    group = str(cluster["resourcesVpcConfig"]["clusterSecurityGroupId"])
    (described,) = ec2.call("describe_security_groups", GroupIds=[group])["SecurityGroups"]
    check_security_group(described, pool)
    return Fabric(cards=cards, security_group=group)


def _cards(network: Mapping[str, Any]) -> Cards:
    return Cards(
        cards=int(network.get("MaximumNetworkCards", 1)),
        efa=int((network.get("EfaInfo") or {}).get("MaximumEfaInterfaces", 0)),
    )


def check_security_group(group: Mapping[str, Any], pool: EksGpuPool) -> None:
    """Refuse a security group that does not admit all traffic from and to itself: EFA's is held to no address. Pure.

    EC2's user guide, "Get started with EFA". EKS makes the cluster security group with both rules today; one of an
    older cluster lacks the outward one ("View Amazon EKS security group requirements for clusters").

    Raises:
        PoolSpecError: As said.
    """
    rules = {"ingress": group.get("IpPermissions", ()), "egress": group.get("IpPermissionsEgress", ())}
    lacking = [way for way, found in rules.items() if not _admits_itself(found, group["GroupId"])]
    if not lacking:
        return
    where = {"ingress": "in from", "egress": "out to"}
    commands = [
        f"aws ec2 authorize-security-group-{way} --group-id {group['GroupId']} --protocol all --source-group"
        f" {group['GroupId']}"
        for way in lacking
    ]
    raise PoolSpecError(
        f"Pool {pool.name}: the cluster security group {group['GroupId']} does not let all traffic"
        f" {' and '.join(where[way] for way in lacking)} itself, and EFA needs that.",
        f"Add the rule: {'; '.join(commands)}",
        security_group=group["GroupId"],
    )


def _admits_itself(rules: Iterable[Mapping[str, Any]], group: str) -> bool:
    return any(
        rule.get("IpProtocol") == "-1"
        and any(pair.get("GroupId") == group for pair in rule.get("UserIdGroupPairs", ()))
        for rule in rules
    )


def require_visible_gpus(ec2: AwsService, pool: EksGpuPool, types: Iterable[str]) -> None:
    """Refuse types for which no tag tells cluster-autoscaler how many GPUs a node has, and EC2 tells it none.

    Such a type has parts of GPUs: its Count is 0, as intended (aws/aws-cli#9659), and its LogicalGpuCount is not.

    Args:
        pool: One that cluster-autoscaler scales; of another nothing is asked.
        types: Those of its groups without that tag: of types in the catalogue this package writes it.

    Raises:
        PoolSpecError: There are such types.
    """
    unknown = sorted({name for name in types if name and instance_type(name) is None})
    if not unknown or not pool.is_autoscaled:
        return
    try:
        described = list(ec2.items("describe_instance_types", "InstanceTypes", InstanceTypes=unknown))
    except (CloudError, PermissionDenied):  # whether EC2 has such types at all is judged elsewhere
        return
    if unseen := [each["InstanceType"] for each in described if not _whole_gpus(each)]:
        raise PoolSpecError(
            f"Pool {pool.name}: EC2 reports no whole GPU for {', '.join(unseen)}, so cluster-autoscaler would add no"
            " node for a pod that requests one.",
            'Use scaling="direct"; or manage="scale" with groups whose tag'
            " k8s.io/cluster-autoscaler/node-template/resources/nvidia.com/gpu has their number.",
            pool=pool.name,
            instance_types=unseen,
        )


def _whole_gpus(described: Mapping[str, Any]) -> int:
    gpus = (described.get("GpuInfo") or {}).get("Gpus") or ()
    return sum(int(each.get("Count") or 0) for each in gpus)


_BLOCK_FAMILIES = re.compile(r"p5en?\.|p6")
"""The types that EC2 gives away mostly ahead of time ("Capacity Blocks for ML", supported instance types)."""


def type_notes(pool: EksGpuPool) -> tuple[str, ...]:
    """Return the notes for a pool whose groups this package makes. A template of one's own may say otherwise."""
    return () if pool.launch_template else (*_reservation_notes(pool), *_network_notes(pool))


def _reservation_notes(pool: EksGpuPool) -> list[str]:
    rare = [name for name in pool.instance_types if _BLOCK_FAMILIES.match(name)]
    if not rare or "ON_DEMAND" not in pool.capacity_types or pool.reservations:
        return []
    return [
        f"{', '.join(rare)} are rarely available on demand: reserve a Capacity Block, and name it in reservations"
        " (docs/reservations.md), or have an open capacity reservation in the pool's zones"
    ]


def _network_notes(pool: EksGpuPool) -> list[str]:
    """Nodes of a managed group have one plain network interface, unless a template says otherwise."""
    those = {name: count for name in pool.instance_types if (count := EFA_INTERFACES.get(name))}
    if not those or pool.max_nodes < 2 or pool.network:
        return []
    listed = ", ".join(f"{name} ({count})" for name, count in those.items())
    return [
        f"nodes have none of the EFA interfaces of {listed}, so that a training on several of them talks over TCP:"
        ' set network="efa" (docs/multi-node.md)'
    ]
