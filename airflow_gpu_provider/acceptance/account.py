"""What an acceptance does on the account besides running operators: it lends a group, and lists what is left.

A group that is lent is as one that others own: it loses this package's mark for a night, and gets it back. The mark
stays, and is empty meanwhile: the documented role may change a group by its mark, and give a mark to any.

What is left is what the cloud's own lists have, not what this package has written down, or would find. They are taken
whole and searched by name and by the cloud's own tags, so that a thing whose tag of ours is missing is found too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_gpu_provider.acceptance.pools import CloudPool
from airflow_gpu_provider.cluster.leases import LEASES
from airflow_gpu_provider.cluster.rest import ApiClient, list_items
from airflow_gpu_provider.errors import CloudError, GpuError
from airflow_gpu_provider.platforms.base import Report
from airflow_gpu_provider.pools import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL

_LOOKS = 3
_LOOK_SECONDS = 2.0
_SHOWN_WITHIN = 120.0

_NAMED = 50
"""How much of a long cluster's name a launch template's has at least."""
_EKS_GROUP, _EKS_CLUSTER, _ASG = "eks:nodegroup-name", "eks:cluster-name", "aws:autoscaling:groupName"


def lend(pool: CloudPool, group: str, echo: Report) -> None:
    """Take this package's mark off a group of the pool."""
    _mark(_account([pool]), group, "", echo)


def take_back(pool: CloudPool, echo: Report) -> None:
    """Put the mark back on each group of the pool that was lent, by this process or one before it."""
    account = _account([pool])
    for group in [name for name, mark in account.marks().items() if mark == ""]:
        _mark(account, group, pool.name, echo)


def _mark(account: _Eks | _Gke, group: str, mark: str, echo: Report) -> None:
    """Put a mark on a group, and wait until the cloud shows it several times in a row.

    A read may be seconds old, and an accurate one be followed by one that is not ("Eventual consistency" in EC2's
    developer guide): the night that comes next would take the group for whose it was.
    """
    account.mark(group, mark, echo)
    deadline, in_a_row = time.monotonic() + _SHOWN_WITHIN, 0
    while True:
        in_a_row = in_a_row + 1 if account.marks().get(group) == mark else 0
        if in_a_row == _LOOKS:
            return
        if time.monotonic() > deadline:
            raise CloudError(
                f"Group {group} does not show the mark {mark!r} that was set {_SHOWN_WITHIN:.0f} s ago.",
                "Check what else changes the group's tags or labels, and run the acceptance again.",
                group=group,
            )
        time.sleep(_LOOK_SECONDS)


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
    return [_listed(what, look) for what, look in _account(pools).lists().items()]


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


def _account(pools: Sequence[CloudPool]) -> _Eks | _Gke:
    first, prefixes = pools[0], tuple(f"{pool.name}-" for pool in pools)
    return _Eks(first, prefixes) if isinstance(first, EksGpuPool) else _Gke(first, prefixes)


class _Eks:
    """Marks are tags of managed node groups; `prefixes` begin the names of the pools' groups."""

    def __init__(self, pool: EksGpuPool, prefixes: tuple[str, ...]) -> None:
        from airflow_gpu_provider.platforms.aws.cluster import EksCluster

        self._pool = pool
        self._prefixes = prefixes
        self._asg_prefixes = tuple(f"eks-{prefix}" for prefix in prefixes)
        self._eks = EksCluster(pool)
        self._clients = self._eks.clients

    def marks(self) -> dict[str, str | None]:
        """Return the mark of each group that may be the pool's, by name; None where it has none."""
        from airflow_gpu_provider.platforms.aws.spec import POOL_TAG

        return {name: (raw.get("tags") or {}).get(POOL_TAG) for name, raw in self._eks.groups.read().items()}

    def mark(self, group: str, mark: str, echo: Report) -> None:
        from airflow_gpu_provider.platforms.aws.spec import POOL_TAG

        arn = self._eks.groups.read()[group]["nodegroupArn"]
        self._clients.eks.call("tag_resource", resourceArn=arn, tags={POOL_TAG: mark})

    def lists(self) -> dict[str, Callable[[], Iterator[str]]]:
        return {
            "node groups, by EKS": self._node_groups,
            "Auto Scaling groups, by EC2 Auto Scaling": self._auto_scaling_groups,
            "scheduled actions, by EC2 Auto Scaling": self._scheduled_actions,
            "instances, by EC2": self._instances,
            "launch templates, by EC2": self._launch_templates,
            "placement groups, by EC2": self._placement_groups,
        }

    def _node_groups(self) -> Iterator[str]:
        names = self._clients.eks.items("list_nodegroups", "nodegroups", clusterName=self._pool.cluster_name)
        return (name for name in names if name.startswith(self._prefixes))

    def _auto_scaling_groups(self) -> Iterator[str]:
        for group in self._clients.autoscaling.items("describe_auto_scaling_groups", "AutoScalingGroups"):
            tags = {tag["Key"]: tag["Value"] for tag in group.get("Tags", ())}
            name, node_group = group["AutoScalingGroupName"], tags.get(_EKS_GROUP, "")
            is_theirs = name.startswith(self._asg_prefixes) or node_group.startswith(self._prefixes)
            if self._is_of_cluster(tags) and is_theirs:
                yield f"{name}: {len(group['Instances'])} instances, {group.get('Status', 'active')}"

    def _scheduled_actions(self) -> Iterator[str]:
        actions = self._clients.autoscaling.items("describe_scheduled_actions", "ScheduledUpdateGroupActions")
        return (
            f"{each['ScheduledActionName']} of {each['AutoScalingGroupName']}"
            for each in actions
            if each["AutoScalingGroupName"].startswith(self._asg_prefixes)
        )

    def _instances(self) -> Iterator[str]:
        # A filter's value may hold "*": DescribeInstances in EC2's API reference.
        filters = [
            {"Name": f"tag:{_ASG}", "Values": [f"{prefix}*" for prefix in self._asg_prefixes]},
            {"Name": "instance-state-name", "Values": ["pending", "running", "shutting-down", "stopping", "stopped"]},
        ]
        for reservation in self._clients.ec2.items("describe_instances", "Reservations", Filters=filters):
            for instance in reservation["Instances"]:
                if self._is_of_cluster({tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}):
                    yield f"{instance['InstanceId']} ({instance['InstanceType']}, {instance['State']['Name']})"

    def _is_of_cluster(self, tags: Mapping[str, str]) -> bool:
        return tags.get(_EKS_CLUSTER, self._pool.cluster_name) == self._pool.cluster_name

    def _launch_templates(self) -> Iterator[str]:
        found = self._clients.ec2.items("describe_launch_templates", "LaunchTemplates")
        return self._of_groups(each["LaunchTemplateName"] for each in found)

    def _placement_groups(self) -> Iterator[str]:
        found = self._clients.ec2.call("describe_placement_groups")["PlacementGroups"]
        return self._of_groups(each["GroupName"] for each in found if each.get("State") != "deleted")

    def _of_groups(self, names: Iterable[str]) -> Iterator[str]:
        """Yield those names that are a cluster's and a node group's of these pools, as template_name makes them."""
        for name in names:
            cluster, _, group = name.partition("/")
            if cluster[:_NAMED] == self._pool.cluster_name[:_NAMED] and group.startswith(self._prefixes):
                yield name


class _Gke:
    """Marks are resource labels of node pools; `prefixes` begin the names of the pools' node pools."""

    def __init__(self, pool: GkeGpuPool, prefixes: tuple[str, ...]) -> None:
        from airflow_gpu_provider.platforms.google.cluster import GkeCluster

        self._pool = pool
        self._prefixes = prefixes
        self._gke = GkeCluster(pool)

    def marks(self) -> dict[str, str | None]:
        from airflow_gpu_provider.platforms.google.spec import POOL_LABEL

        return {name: labels.get(POOL_LABEL) for name, labels in self._labels().items()}

    def mark(self, group: str, mark: str, echo: Report) -> None:
        from airflow_gpu_provider.platforms.google.node_pools import Step
        from airflow_gpu_provider.platforms.google.spec import POOL_LABEL

        change = {"resource_labels": {"labels": {**self._labels()[group], POOL_LABEL: mark}}}
        step = Step(group=group, doing=f"mark {group}", start=lambda: self._gke.node_pools.update(group, change))
        for error in self._gke.operations.run([step], echo).values():
            raise error

    def _labels(self) -> dict[str, Mapping[str, str]]:
        from airflow_gpu_provider.platforms.google.spec import labels_of

        return {name: labels_of(raw) for name, raw in self._their_node_pools()}

    def _their_node_pools(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        found = self._gke.node_pools.read()
        return ((name, raw) for name, raw in found.items() if name.startswith(self._prefixes))

    def lists(self) -> dict[str, Callable[[], Iterator[str]]]:
        return {
            "node pools, by GKE": self._node_pools,
            "managed instance groups, by Compute Engine": self._instance_groups,
            "instances, by Compute Engine": self._instances,
        }

    def _node_pools(self) -> Iterator[str]:
        return (f"{name}: {each.get('status')}" for name, each in self._their_node_pools())

    def _instance_groups(self) -> Iterator[str]:
        for each in self._in_zones("instanceGroupManagers", "compute.instanceGroupManagers.list"):
            if self._is_of_them(each["name"]):
                yield f"{each['name']}: {each.get('targetSize', 0)} instances"

    def _instances(self) -> Iterator[str]:
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
