"""The names of pods as a kubelet and the cluster's DNS give them: hostnames, /etc/hosts, headless Services' records.

https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/ says which Pod and Service give which name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpu_sandbox.nodes.errors import NodeAgentError

CLUSTER_DOMAIN = "cluster.local"
_LONGEST_HOSTNAME = 63
_LONGEST_KERNEL_NAME = 64
_HEADER = "# Kubernetes-managed hosts file.\n"
_HOST_NETWORK_HEADER = "# Kubernetes-managed hosts file (host network).\n"
_LOCAL = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""
_ENDED = ("Succeeded", "Failed")


class NameTooLong(NodeAgentError):
    """A pod's FQDN is to be its kernel's node name, which has no room for it."""


def hostname(pod: Mapping[str, Any]) -> str:
    """The pod's hostname: what its spec says, or else its name, cut to what a hostname can hold."""
    spec = pod["spec"]
    name: str = spec.get("hostnameOverride") or spec.get("hostname") or pod["metadata"]["name"]
    return name if len(name) <= _LONGEST_HOSTNAME else name[:_LONGEST_HOSTNAME].rstrip("-.")


def domain(pod: Mapping[str, Any]) -> str:
    """The pod's domain in the cluster; empty without a subdomain."""
    spec = pod["spec"]
    if spec.get("hostnameOverride") or not spec.get("subdomain"):
        return ""
    return f"{spec['subdomain']}.{pod['metadata']['namespace']}.svc.{CLUSTER_DOMAIN}"


def kernel_name(pod: Mapping[str, Any], node_name: str) -> str:
    """What `hostname` prints in the pod. Raises NameTooLong."""
    if pod["spec"].get("hostNetwork"):
        return node_name
    name = hostname(pod)
    if not (pod["spec"].get("setHostnameAsFQDN") and domain(pod)):
        return name
    full = f"{name}.{domain(pod)}"
    if len(full) > _LONGEST_KERNEL_NAME:
        raise NameTooLong(
            f"failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long "
            f"({_LONGEST_KERNEL_NAME} characters is the max, {len(full)} characters requested)"
        )
    return full


def hosts_file(pod: Mapping[str, Any], pod_ip: str, machine_hosts: str) -> str:
    """The /etc/hosts that a kubelet gives to a pod's containers."""
    if pod["spec"].get("hostNetwork"):
        text = _HOST_NETWORK_HEADER + machine_hosts
    else:
        own = [f"{hostname(pod)}.{domain(pod)}"] if domain(pod) else []
        text = _HEADER + _LOCAL + "\t".join([pod_ip, *own, hostname(pod)]) + "\n"
    aliases = pod["spec"].get("hostAliases") or ()
    if aliases:
        text += "\n# Entries added by HostAliases.\n"
        text += "".join("\t".join([alias["ip"], *(alias.get("hostnames") or ())]) + "\n" for alias in aliases)
    return text


def asks_cluster_dns(pod: Mapping[str, Any]) -> bool:
    """Whether the pod's resolver is the cluster's: by default that of a pod with a network of its own."""
    policy = pod["spec"].get("dnsPolicy") or "ClusterFirst"
    return policy == "ClusterFirstWithHostNet" or (policy == "ClusterFirst" and not pod["spec"].get("hostNetwork"))


def records(
    services: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[str, str, list[str]]]:
    """What headless Services make resolvable: (namespace, address, names below the namespace's domain) of each pod.

    A pod has a name of its own if its subdomain is the Service's name; the Service's name stands for all its pods.
    """
    by_namespace: dict[str, list[Mapping[str, Any]]] = {}
    for pod in pods:
        by_namespace.setdefault(pod["metadata"]["namespace"], []).append(pod)
    for service in services:
        if not _is_headless(service):
            continue
        metadata, spec = service["metadata"], service["spec"]
        for pod in by_namespace.get(metadata["namespace"], ()):
            if _selects(spec["selector"], pod) and _is_endpoint(pod, even_unready=_publishes_unready(spec)):
                own = _own_name(pod, metadata["name"])
                yield metadata["namespace"], pod["status"]["podIP"], [*own, metadata["name"]]


def hosts_lines(found: Iterable[tuple[str, str, list[str]]], namespace: str) -> str:
    """Records as lines of /etc/hosts in a pod of `namespace`, which may leave the namespace out."""
    text = ""
    for home, address, names in found:
        for name in names:
            full = f"{name}.{home}.svc.{CLUSTER_DOMAIN}"
            short = [name] if home == namespace else []
            text += "\t".join([address, full, f"{name}.{home}.svc", f"{name}.{home}", *short]) + "\n"
    return text


def _is_headless(service: Mapping[str, Any]) -> bool:
    spec = service["spec"]
    return spec.get("clusterIP") == "None" and bool(spec.get("selector"))


def _selects(selector: Mapping[str, str], pod: Mapping[str, Any]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in selector.items())


def _publishes_unready(spec: Mapping[str, Any]) -> bool:
    return bool(spec.get("publishNotReadyAddresses"))


def _is_endpoint(pod: Mapping[str, Any], *, even_unready: bool) -> bool:
    """As the controller of EndpointSlices decides: a pod that ended is none, one that is being deleted is not ready."""
    status = pod.get("status") or {}
    if status.get("phase") in _ENDED or not status.get("podIP"):
        return False
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    return even_unready or (ready and not pod["metadata"].get("deletionTimestamp"))


def _own_name(pod: Mapping[str, Any], service: str) -> list[str]:
    spec = pod["spec"]
    return [f"{spec['hostname']}.{service}"] if spec.get("hostname") and spec.get("subdomain") == service else []
