"""The tags of an Auto Scaling group: by them cluster-autoscaler knows its nodes, and the bill its pool. Pure.

The contract is cluster-autoscaler's own, in cloudprovider/aws/README.md: two tags by which it finds the group, and a
template of its nodes, for an empty group has none to look at. The tags serve without eks:DescribeNodegroup too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.clouds.aws import machine_types
from airflow_gpu_provider.clouds.aws.pool import ACCELERATOR_LABEL, EksGpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL

DISCOVERY = "k8s.io/cluster-autoscaler"
ENABLED = f"{DISCOVERY}/enabled"
TEMPLATE = f"{DISCOVERY}/node-template"
_GPUS = f"{TEMPLATE}/resources/{GPU_RESOURCE}"


@dataclass(frozen=True, kw_only=True)
class TagChange:
    """What has to change in a group's tags: new values by key, and keys that go. Instances get those for the bill."""

    put: Mapping[str, str] = field(default_factory=dict)
    put_for_bill: Mapping[str, str] = field(default_factory=dict)
    remove: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """Each change for people, like `+key=value` or `-key`."""
        put = {**self.put, **self.put_for_bill}
        return (*(f"+{key}={value}" for key, value in put.items()), *(f"-{key}" for key in self.remove))


def reported(words: Iterable[str]) -> list[str]:
    """Return those of a TagChange's words that a plan reports.

    Not those of the bill's tags, nor of EKS's own offer of each new group to autoscalers: they are corrected silently.
    """
    return [each for each in words if each[1:].startswith(DISCOVERY) and each != f"-{ENABLED}"]


def wanted_tags(pool: EksGpuPool, instance_type: str) -> dict[str, str]:
    """Return the tags of a group with this instance type; none where this package sets its size."""
    if not pool.is_autoscaled:
        return {}
    labels = node_labels(pool, instance_type)
    machine = machine_types.instance_type(instance_type)
    return {
        ENABLED: "true",
        f"{DISCOVERY}/{pool.cluster_name}": "owned",
        **{f"{TEMPLATE}/label/{key}": value for key, value in labels.items()},
        **{f"{TEMPLATE}/taint/{taint.key}": f"{taint.value}:{taint.effect}" for taint in pool.parsed_taints},
        # Of a type that is not in the catalogue, cluster-autoscaler asks EC2.
        **({_GPUS: str(machine.gpus)} if machine else {}),
        **{f"{TEMPLATE}/autoscaling-options/{key}": value for key, value in pool.autoscaling_options.items()},
    }


def node_labels(pool: EksGpuPool, instance_type: str) -> dict[str, str]:
    """Return the labels of nodes of this type; one that only cluster-autoscaler needs is there for it alone."""
    accelerator = pool.accelerator_of(instance_type) if pool.is_autoscaled else None
    return {**pool.labels, **({ACCELERATOR_LABEL: accelerator} if accelerator else {})}


def tag_change(pool: EksGpuPool, instance_type: str, asg: Mapping[str, Any]) -> TagChange:
    """Compare DescribeAutoScalingGroups' answer with what it should be.

    For the bill, EC2 instances get the pool's name and its `tags`: EKS does not hand on those of a node group.

    A template that is not wanted goes. So does the tag by which EKS lets a cluster-autoscaler find each group that it
    makes, where this package sets the sizes: two that size one group undo each other's work.
    """
    found = {tag["Key"]: tag.get("Value", "") for tag in asg.get("Tags", ())}
    wanted = wanted_tags(pool, instance_type)
    return TagChange(
        put=_lacking(found, wanted),
        put_for_bill=_lacking(found, {**pool.tags, POOL_LABEL: pool.name}),
        remove=tuple(
            sorted(key for key in found if key not in wanted and (key == ENABLED or key.startswith(f"{TEMPLATE}/")))
        ),
    )


def _lacking(found: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in wanted.items() if found.get(key) != value}


def missing_tags(pool: EksGpuPool, instance_type: str, asg: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags that an external group lacks. Discovery tags work with any value."""
    found = {tag["Key"] for tag in asg.get("Tags", ())}
    put = tag_change(pool, instance_type, asg).put
    return {key: value for key, value in put.items() if key.startswith(f"{TEMPLATE}/") or key not in found}


def offered_notes(pool: EksGpuPool, asgs: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what to know of external groups, by name, that a cluster-autoscaler may size besides this package.

    EKS puts the tag on each managed node group, whether or not there is one ("Simplify node lifecycle with
    managed node groups", EKS user guide).
    """
    names = [name for name, asg in asgs.items() if any(tag["Key"] == ENABLED for tag in asg.get("Tags", ()))]
    if pool.is_autoscaled or not names:
        return ()
    return (
        f"{', '.join(names)}: by the tag {ENABLED} a cluster-autoscaler, if the cluster has one, may remove idle nodes"
        " before their pods come; others then come for them (docs/groups-of-others.md)",
    )


def has_gpus_tag(asg: Mapping[str, Any]) -> bool:
    """Return True if a tag tells cluster-autoscaler how many GPUs a node of the group has."""
    return any(tag["Key"] == _GPUS for tag in asg.get("Tags", ()))


def tag_command(asg_name: str, tags: Mapping[str, str], region: str) -> str:
    """Return the shell command with which an administrator puts these tags on a group."""
    texts = (
        f"ResourceId={asg_name},ResourceType=auto-scaling-group,Key={key},Value={value},PropagateAtLaunch=false"
        for key, value in tags.items()
    )
    return f"aws autoscaling create-or-update-tags --region {region} --tags {' '.join(map(shlex.quote, texts))}"
