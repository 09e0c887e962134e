"""Auto Scaling groups as cluster-autoscaler sees them: found by discovery tags, with nodes as their tags describe them.

What a group is from zero comes from its tags, and for a managed node group from EKS's DescribeNodegroup: nothing else
is known of it before it has had a node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

from gpu_sandbox.autoscaler.groups import FailedLaunch, NodeGroup, NodeTemplate
from gpu_sandbox.aws import AwsCloud, ScalableGroup
from gpu_sandbox.nodes import quantities
from gpu_sandbox.nodes.spec import Taint

ENABLED_TAG = "k8s.io/cluster-autoscaler/enabled"
_TEMPLATE = "k8s.io/cluster-autoscaler/node-template/"
_TAINT_VALUE = re.compile(r"(?P<value>[^:]*):(?P<effect>NoSchedule|NoExecute|PreferNoSchedule)")
_MAX_PODS = 110
_CANNOT = FailedLaunch(
    code="placeholder-cannot-be-fulfilled",
    message="AWS cannot provision any more instances for this node group",
)
# Of cluster-autoscaler's AWS provider; the last stands for --balancing-ignore-label=nodegroup-name, without which
# managed node groups at size 0 are never alike.
_SIMILAR_DESPITE = frozenset(
    {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "topology.ebs.csi.aws.com/zone",
        "topology.k8s.aws/zone-id",
        "eks.amazonaws.com/nodegroup",
        "alpha.eksctl.io/nodegroup-name",
        "alpha.eksctl.io/instance-id",
        "nodegroup-name",
    }
)


class AwsNodeGroups:
    """Implements `NodeGroups`."""

    similar_despite = _SIMILAR_DESPITE
    resize_requests = None

    def __init__(self, aws: AwsCloud, *, cluster_name: str) -> None:
        self._aws = aws
        self._discovery_tags = {ENABLED_TAG, f"k8s.io/cluster-autoscaler/{cluster_name}"}
        self._resized_at: dict[str, datetime] = {}

    def look(self) -> list[NodeGroup]:
        return [
            self._node_group(group)
            for group in self._aws.scalable_groups()
            if self._discovery_tags <= group.tags.keys()
        ]

    def set_size(self, name: str, size: int) -> None:
        self._resized_at[name] = self._aws.clock.utc_now()
        self._aws.set_desired_capacity(name, size)

    def give_up_missing(self, name: str) -> int:
        group = next((each for each in self._aws.scalable_groups() if each.name == name), None)
        if group is None:
            return 0
        size = max(len(group.instance_ids), group.min_size)
        self.set_size(name, size)
        return size

    def delete(self, name: str, machine: str) -> None:
        self._aws.terminate_in_group(machine)

    def _node_group(self, group: ScalableGroup) -> NodeGroup:
        return NodeGroup(
            name=group.name,
            min_size=group.min_size,
            max_size=group.max_size,
            target=group.desired,
            machines=frozenset(group.instance_ids),
            template=template_of(group),
            failed=_CANNOT if self._cannot_grow(group) else None,
            options=_tagged(group.tags, "autoscaling-options/"),
        )

    def _cannot_grow(self, group: ScalableGroup) -> bool:
        """Whether a launch has failed since the size was last set, and instances are missing."""
        failed_at, resized_at = group.launch_failed_at, self._resized_at.get(group.name)
        return (
            group.desired > len(group.instance_ids)
            and failed_at is not None
            and (resized_at is None or failed_at > resized_at)
        )


def template_of(group: ScalableGroup) -> NodeTemplate:
    """The node that cluster-autoscaler expects of a group that has had none. Several zones count as the first."""
    eks_tags = {key.removeprefix("eks:"): value for key, value in group.tags.items() if key.startswith("eks:")}
    labels = {
        "kubernetes.io/arch": group.architecture,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": group.instance_type,
        "topology.kubernetes.io/region": group.zones[0][:-1],
        "topology.kubernetes.io/zone": group.zones[0],
        "topology.ebs.csi.aws.com/zone": group.zones[0],
        **eks_tags,
        **_tagged(group.tags, "label/"),
        **group.node_labels,
    }
    allocatable = {
        "pods": Decimal(_MAX_PODS),
        "cpu": Decimal(group.vcpus),
        "memory": Decimal(group.memory_bytes),
        "nvidia.com/gpu": Decimal(group.gpus),
    }
    return NodeTemplate(
        labels=labels,
        taints=(*_taints(group.tags), *group.node_taints),
        allocatable=allocatable | _resources(group.tags),
    )


def _tagged(tags: Mapping[str, str], kind: str) -> dict[str, str]:
    prefix = f"{_TEMPLATE}{kind}"
    return {key.removeprefix(prefix): value for key, value in tags.items() if key.startswith(prefix) and key != prefix}


def _taints(tags: Mapping[str, str]) -> list[Taint]:
    """Tags whose value is not `value:Effect` are passed over without a word."""
    found = [(key, _TAINT_VALUE.fullmatch(value)) for key, value in _tagged(tags, "taint/").items()]
    return [Taint(key=key, value=match["value"], effect=match["effect"]) for key, match in found if match]


def _resources(tags: Mapping[str, str]) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for name, value in _tagged(tags, "resources/").items():
        try:
            found[name] = quantities.parse(value)
        except ValueError:
            continue  # as cluster-autoscaler does
    return found
