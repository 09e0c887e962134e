"""EFA's device plugin for one pool, whose pods ask for vpc.amazonaws.com/efa: what hands that out already, and ours.

EKS's images bring the driver and no plugin ("Manage EFA devices on Amazon EKS" in EKS's user guide).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.addons.detection import PLUGIN_FOLDER, Server, check_servers, daemon_sets_on
from airflow_gpu_provider.addons.device_plugin import daemon_set
from airflow_gpu_provider.cluster.rest import label_selector, list_items
from airflow_gpu_provider.pools.efa import EFA_RESOURCE
from airflow_gpu_provider.pools.workload_placement import tolerations_of

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from airflow_gpu_provider.pools import GpuPool

# As in aws/eks-charts, stable/aws-efa-k8s-device-plugin, which pulls from this one registry in all regions of AWS.
IMAGE = "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin:v0.5.22-eksbuild.9"
_NAME = {"app.kubernetes.io/name": "aws-efa-k8s-device-plugin"}
_MOUNTS = {"device-plugins": PLUGIN_FOLDER, "infiniband": "/dev/infiniband"}


def is_wanted(pool: GpuPool) -> bool:
    """Return True if the pool's nodes have EFA interfaces."""
    return pool.kind == "eks" and getattr(pool, "network", None) == "efa"


def plugin_name(pool: GpuPool) -> str:
    """Return the name of our DaemonSet for a pool."""
    return f"aws-efa-k8s-device-plugin-{pool.name}"


def manifest(pool: GpuPool, *, namespace: str, image: str | None = None) -> dict[str, Any]:
    """Return the DaemonSet for the nodes of one pool, for server-side apply."""
    container = {
        "name": "aws-efa-k8s-device-plugin",
        "image": image or IMAGE,
        "resources": {"requests": {"cpu": "10m", "memory": "20Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in _MOUNTS.items()],
    }
    pod_spec = {
        "priorityClassName": "system-node-critical",
        "automountServiceAccountToken": False,
        "hostNetwork": True,
        "nodeSelector": dict(pool.node_selector),
        "tolerations": [*tolerations_of(pool), {"key": "CriticalAddonsOnly", "operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in _MOUNTS.items()],
    }
    return daemon_set(pool, plugin_name(pool), namespace, _NAME, pod_spec)


def look(api: ApiClient, pool: GpuPool) -> Server | None:
    """Return what hands out the interfaces of a pool's nodes already; None where our plugin is wanted.

    Raises:
        DevicePluginConflict: A DRA driver does, or whether a plugin does is not known before there is a node.
    """
    sets = list_items(api, "/apis/apps/v1/daemonsets", resource="daemonsets")
    nodes = list_items(api, "/api/v1/nodes", resource="nodes", labelSelector=label_selector(pool.node_selector))
    return served_by(pool, list(sets), list(nodes))


def served_by(pool: GpuPool, daemon_sets: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> Server | None:
    """Decide `look` from plain data."""
    others = [each for each in daemon_sets if each["metadata"]["name"] != plugin_name(pool)]
    found = daemon_sets_on(pool, others, nodes, {"device plugin": "efa-k8s-device-plugin", "DRA driver": "dranet"})
    check_servers(
        pool,
        found,
        hands_out=f"EFA interfaces as resource claims, not as {EFA_RESOURCE}",
        or_else="leave network out and give pods resourceClaims",
    )
    return found[0] if found else None
