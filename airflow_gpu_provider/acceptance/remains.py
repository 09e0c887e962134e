"""What of an acceptance is left, by the cloud's own lists: not by what this package has written down, or would find.

Lists are taken whole and searched by name and by the cloud's own tags, so that a thing whose tag of ours is missing is
found too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.leases import LEASES
from airflow_gpu_provider.cluster.rest import list_items
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pools import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kubernetes.client import ApiClient

    from airflow_gpu_provider.acceptance.pools import CloudPool
    from airflow_gpu_provider.platforms.aws.clients import AwsClients

_NAMED = 50
"""How much of a long cluster's name a launch template's has at least."""
_EKS_GROUP, _EKS_CLUSTER, _ASG = "eks:nodegroup-name", "eks:cluster-name", "aws:autoscaling:groupName"


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One list: what it is of, and what of the acceptance's is in it.

    Attributes:
        what: What was listed, and of whom it was asked.
        left: What is left, each with its state.
        unasked: Why there is no answer; empty where there is one.
        costs: It costs money, or keeps the next acceptance from a clean start.
    """

    what: str
    left: tuple[str, ...] = ()
    unasked: str = ""
    costs: bool = True

    def __str__(self) -> str:
        return f"{self.what}: unknown: {self.unasked}" if self.unasked else f"{self.what}: {', '.join(self.left)}"


def in_cloud(pools: Sequence[CloudPool]) -> list[Listed]:
    """Return what the cloud lists of pools of one cluster; a list that cannot be read has the reason."""
    first = pools[0]
    prefixes = tuple(f"{pool.name}-" for pool in pools)
    lists = _eks(first, prefixes) if isinstance(first, EksGpuPool) else _Gke(first, prefixes).lists()
    return [_listed(what, look) for what, look in lists.items()]


def in_cluster(api: ApiClient, pools: Sequence[CloudPool]) -> list[Listed]:
    """Return what the cluster's API server lists of these pools."""
    names = ",".join(pool.name for pool in pools)

    def by_label(path: str, resource: str) -> Callable[[], Iterator[str]]:
        selector = f"{POOL_LABEL} in ({names})"
        return lambda: (
            each["metadata"]["name"] for each in list_items(api, path, resource=resource, labelSelector=selector)
        )

    def plugins() -> Iterator[str]:
        for each in list_items(api, "/apis/apps/v1/daemonsets", resource="daemonsets"):
            name = each["metadata"]["name"]
            if any(name.endswith(f"-{pool.name}") for pool in pools):
                yield f"{each['metadata'].get('namespace')}/{name}"

    return [
        _listed("nodes, by the API server", by_label("/api/v1/nodes", "nodes")),
        _listed("leases (demand, locks, ledgers), by the API server", by_label(LEASES, "leases")),
        _listed("device plugins of these pools, by the API server", plugins, costs=False),
    ]


def _listed(what: str, look: Callable[[], Iterator[str]], *, costs: bool = True) -> Listed:
    try:
        return Listed(what=what, left=tuple(look()), costs=costs)
    except GpuError as error:
        return Listed(what=what, unasked=f"{type(error).__name__}: {error}", costs=costs)


# -- EKS -----------------------------------------------------------------------------------------------------


def _eks(pool: EksGpuPool, prefixes: tuple[str, ...]) -> dict[str, Callable[[], Iterator[str]]]:
    from airflow_gpu_provider.platforms.aws.cluster import EksCluster

    clients = EksCluster(pool).clients
    asg_prefixes = tuple(f"eks-{prefix}" for prefix in prefixes)

    def node_groups() -> Iterator[str]:
        names = clients.eks.items("list_nodegroups", "nodegroups", clusterName=pool.cluster_name)
        return (name for name in names if name.startswith(prefixes))

    def auto_scaling_groups() -> Iterator[str]:
        for group in clients.autoscaling.items("describe_auto_scaling_groups", "AutoScalingGroups"):
            tags = {tag["Key"]: tag["Value"] for tag in group.get("Tags", ())}
            is_of_cluster = tags.get(_EKS_CLUSTER, pool.cluster_name) == pool.cluster_name
            name = group["AutoScalingGroupName"]
            if is_of_cluster and (name.startswith(asg_prefixes) or tags.get(_EKS_GROUP, "").startswith(prefixes)):
                yield f"{name}: {len(group['Instances'])} instances, {group.get('Status', 'active')}"

    def scheduled_actions() -> Iterator[str]:
        actions = clients.autoscaling.items("describe_scheduled_actions", "ScheduledUpdateGroupActions")
        return (
            f"{each['ScheduledActionName']} of {each['AutoScalingGroupName']}"
            for each in actions
            if each["AutoScalingGroupName"].startswith(asg_prefixes)
        )

    def instances() -> Iterator[str]:
        # A filter's value may hold "*": DescribeInstances in EC2's API reference.
        filters = [
            {"Name": f"tag:{_ASG}", "Values": [f"{prefix}*" for prefix in asg_prefixes]},
            {"Name": "instance-state-name", "Values": ["pending", "running", "shutting-down", "stopping", "stopped"]},
        ]
        for reservation in clients.ec2.items("describe_instances", "Reservations", Filters=filters):
            for instance in reservation["Instances"]:
                tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
                if tags.get(_EKS_CLUSTER, pool.cluster_name) == pool.cluster_name:
                    yield f"{instance['InstanceId']} ({instance['InstanceType']}, {instance['State']['Name']})"

    return {
        "node groups, by EKS": node_groups,
        "Auto Scaling groups, by EC2 Auto Scaling": auto_scaling_groups,
        "scheduled actions, by EC2 Auto Scaling": scheduled_actions,
        "instances, by EC2": instances,
        "launch templates, by EC2": lambda: _of_groups(_template_names(clients), pool, prefixes),
        "placement groups, by EC2": lambda: _of_groups(_placement_names(clients), pool, prefixes),
    }


def _template_names(clients: AwsClients) -> Iterator[str]:
    return (each["LaunchTemplateName"] for each in clients.ec2.items("describe_launch_templates", "LaunchTemplates"))


def _placement_names(clients: AwsClients) -> Iterator[str]:
    found = clients.ec2.call("describe_placement_groups")["PlacementGroups"]
    return (each["GroupName"] for each in found if each.get("State") != "deleted")


def _of_groups(names: Iterable[str], pool: EksGpuPool, prefixes: tuple[str, ...]) -> Iterator[str]:
    """Yield those names that are a cluster's and a node group's of these pools, as template_name makes them."""
    for name in names:
        cluster, _, group = name.partition("/")
        if cluster[:_NAMED] == pool.cluster_name[:_NAMED] and group.startswith(prefixes):
            yield name


# -- GKE -----------------------------------------------------------------------------------------------------


class _Gke:
    """What Google Cloud lists of pools; `prefixes` begin the names of their node pools."""

    def __init__(self, pool: GkeGpuPool, prefixes: tuple[str, ...]) -> None:
        from airflow_gpu_provider.platforms.google.cluster import GkeCluster

        self._pool = pool
        self._prefixes = prefixes
        self._gke = GkeCluster(pool)

    def lists(self) -> dict[str, Callable[[], Iterator[str]]]:
        return {
            "node pools, by GKE": self._list_node_pools,
            "managed instance groups, by Compute Engine": self._list_instance_groups,
            "instances, by Compute Engine": self._list_instances,
        }

    def _list_node_pools(self) -> Iterator[str]:
        for name, each in self._gke.node_pools.read().items():
            if name.startswith(self._prefixes):
                yield f"{name}: {each.get('status')}"

    def _list_instance_groups(self) -> Iterator[str]:
        for each in self._in_zones("instanceGroupManagers", "compute.instanceGroupManagers.list"):
            if self._is_of_them(each["name"]):
                yield f"{each['name']}: {each.get('targetSize', 0)} instances"

    def _list_instances(self) -> Iterator[str]:
        for each in self._in_zones("instances", "compute.instances.list"):
            node_pool = (each.get("labels") or {}).get("goog-k8s-node-pool-name", "")
            if self._is_of_them(each["name"]) or node_pool.startswith(self._prefixes):
                yield f"{each['name']}: {each.get('status')}"

    def _in_zones(self, kind: str, permission: str) -> Iterator[dict[str, Any]]:
        for zone in self._pool.node_locations or self._gke.description["locations"]:
            path = f"projects/{self._pool.project_id}/zones/{zone}/{kind}"
            yield from self._gke.clients.compute.items(path, "items", permission=permission)

    def _is_of_them(self, name: str) -> bool:
        # GKE names them gke-<cluster>-<node pool>-<hash>, and cuts long names of both.
        begins = [prefix[:12].rstrip("-") for prefix in self._prefixes]
        return name.startswith("gke-") and any(f"-{begin}" in name for begin in begins)
