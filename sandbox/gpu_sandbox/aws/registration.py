"""What an instance registers with at the Kubernetes cluster: labels and taints, as EKS's AMIs set them."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moto.ec2.models.instances import Instance as Ec2Instance

from gpu_sandbox.aws.ec2 import market_of
from gpu_sandbox.aws.interface import Instance, Taint

_CLUSTER_TAG = "kubernetes.io/cluster/"
_KUBELET_FLAG = re.compile(r"--(node-labels|register-with-taints)=([^\s\"']+)")
_KUBERNETES, _KUBELETS = ("kubernetes.io", "k8s.io"), ("kubelet.kubernetes.io", "node.kubernetes.io")
_EFFECTS = {
    "NO_SCHEDULE": "NoSchedule",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
    "NO_EXECUTE": "NoExecute",
}


@dataclass(frozen=True, kw_only=True)
class Registration:
    """Which cluster a group's instances join, and as what.

    Where a managed group's launch template names the AMI (`ami_type` is CUSTOM), EKS adds nothing to its user data: the
    kubelet registers with the flags that are in it, and EKS gives the node the group's labels and taints later (EKS
    user guide, "Customize managed nodes with launch templates"; aws/containers-roadmap#1962).
    """

    cluster_name: str | None = None
    nodegroup: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ami_type: str | None = None
    disk_gib: int | None = None
    disk_mib_per_second: float | None = None
    efa_interfaces: int = 0


def kubernetes_taint(taint: Mapping[str, str]) -> Taint:
    """A node group's taint in Kubernetes' spelling. KeyError if the effect is none of EKS's."""
    return Taint(key=taint["key"], value=taint.get("value") or "", effect=_EFFECTS[taint["effect"]])


def self_managed_registration(*, tags: Mapping[str, str], user_data: object) -> Registration:
    """Of a group that its user made: the cluster by its tag, the rest from the kubelet flags in the user data."""
    cluster = next((key.removeprefix(_CLUSTER_TAG) for key in tags if key.startswith(_CLUSTER_TAG)), None)
    labels: dict[str, str] = {}
    taints: list[Taint] = []
    for flag, value in _KUBELET_FLAG.findall(_text(user_data)):
        for item in value.split(","):
            if flag == "node-labels":
                key, _, label = item.partition("=")
                labels[key] = label
            else:
                taint, _, effect = item.rpartition(":")
                key, _, taint_value = taint.partition("=")
                taints.append(Taint(key=key, value=taint_value, effect=effect))
    return Registration(cluster_name=cluster, labels=labels, taints=tuple(taints))


def _text(user_data: object) -> str:
    if user_data is None:
        return ""
    return b64decode(str(user_data)).decode(errors="replace")


def kubelet_starts(labels: Mapping[str, str]) -> bool:
    """Return True if a kubelet takes these labels: one that is told to set others of Kubernetes' domains ends at once.

    "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels" (kubernetes, cmd/kubelet/app/options;
    aws/containers-roadmap#2465). Its own, as topology.kubernetes.io/zone, are not among them.
    """
    return not any(
        _within(key.rpartition("/")[0], _KUBERNETES) and not _within(key.rpartition("/")[0], _KUBELETS)
        for key in labels
    )


def _within(domain: str, domains: tuple[str, ...]) -> bool:
    return any(domain == each or domain.endswith(f".{each}") for each in domains)


def describe_instance(
    instance: Ec2Instance, *, registration: Registration, own: Registration, asg_name: str, region: str
) -> Instance:
    """The instance as the rest of the sandbox sees it; `own` is what its user data says."""
    whole = _describe(instance, registration=registration, asg_name=asg_name, region=region)
    if registration.ami_type != "CUSTOM":
        return whole
    bare = replace(registration, nodegroup=own.nodegroup, labels=own.labels, taints=own.taints)
    return replace(whole, joins_as=_describe(instance, registration=bare, asg_name=asg_name, region=region))


def _describe(instance: Ec2Instance, *, registration: Registration, asg_name: str, region: str) -> Instance:
    zone, market = instance.availability_zone or "", market_of(instance)
    labels = {
        "kubernetes.io/hostname": instance.private_dns_name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": instance.instance_type,
        "topology.kubernetes.io/region": region,
        "topology.kubernetes.io/zone": zone,
    }
    if registration.nodegroup:
        labels["eks.amazonaws.com/nodegroup"] = registration.nodegroup
        labels["eks.amazonaws.com/capacityType"] = market.upper().replace("-", "_")
        labels["eks.amazonaws.com/nodegroup-image"] = instance.image_id
    return Instance(
        instance_id=instance.id,
        private_ip=instance.private_ip or "",
        private_dns_name=instance.private_dns_name,
        zone=zone,
        region=region,
        instance_type=instance.instance_type,
        market=market,
        asg_name=asg_name,
        nodegroup=registration.nodegroup,
        cluster_name=registration.cluster_name,
        labels=labels | dict(registration.labels),
        taints=registration.taints,
        ami_type=registration.ami_type,
        disk_gib=registration.disk_gib,
        disk_mib_per_second=registration.disk_mib_per_second,
        efa_interfaces=registration.efa_interfaces,
    )
