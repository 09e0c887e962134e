"""What AWS lists of pools of one EKS cluster: by the names of their groups, and by the tags that EKS itself sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from airflow_gpu_provider.clouds.aws.clients import AwsClients, instances, tags_of
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.remains import Listed, listed

_NAMED = 50
"""How much of a long cluster's name a launch template's has at least."""
_EKS_GROUP, _EKS_CLUSTER, _ASG = "eks:nodegroup-name", "eks:cluster-name", "aws:autoscaling:groupName"


def remains(*names: str, pool: EksGpuPool) -> list[Listed]:
    """Return what the account has, in the region and of the cluster of a pool, of pools with these names."""
    account = _Account(pool, tuple(f"{name}-" for name in names))
    return [
        listed("node groups, by EKS", account.node_groups),
        listed("Auto Scaling groups, by EC2 Auto Scaling", account.auto_scaling_groups),
        listed("scheduled actions, by EC2 Auto Scaling", account.scheduled_actions),
        listed("instances, by EC2", account.instances),
        listed("launch templates, by EC2", account.launch_templates),
        listed("placement groups, by EC2", account.placement_groups),
    ]


class _Account:
    """`prefixes` begin the names of the pools' groups."""

    def __init__(self, pool: EksGpuPool, prefixes: tuple[str, ...]) -> None:
        self._cluster = pool.cluster_name
        self._prefixes = prefixes
        self._asg_prefixes = tuple(f"eks-{prefix}" for prefix in prefixes)
        self._clients = AwsClients(conn_id=pool.aws_conn_id, region=pool.region)

    def node_groups(self) -> Iterator[str]:
        names = self._clients.eks.items("list_nodegroups", "nodegroups", clusterName=self._cluster)
        return (name for name in names if name.startswith(self._prefixes))

    def auto_scaling_groups(self) -> Iterator[str]:
        for group in self._clients.autoscaling.items("describe_auto_scaling_groups", "AutoScalingGroups"):
            name, tags = group["AutoScalingGroupName"], tags_of(group)
            is_theirs = name.startswith(self._asg_prefixes) or tags.get(_EKS_GROUP, "").startswith(self._prefixes)
            if self._is_of_cluster(tags) and is_theirs:
                yield f"{name}: {len(group['Instances'])} instances, {group.get('Status', 'active')}"

    def scheduled_actions(self) -> Iterator[str]:
        actions = self._clients.autoscaling.items("describe_scheduled_actions", "ScheduledUpdateGroupActions")
        return (
            f"{each['ScheduledActionName']} of {each['AutoScalingGroupName']}"
            for each in actions
            if each["AutoScalingGroupName"].startswith(self._asg_prefixes)
        )

    def instances(self) -> Iterator[str]:
        # A filter's value may hold "*": DescribeInstances in EC2's API reference.
        filters = [
            {"Name": f"tag:{_ASG}", "Values": [f"{prefix}*" for prefix in self._asg_prefixes]},
            {"Name": "instance-state-name", "Values": ["pending", "running", "shutting-down", "stopping", "stopped"]},
        ]
        for each in instances(self._clients.ec2, Filters=filters):
            if self._is_of_cluster(tags_of(each)):
                yield f"{each['InstanceId']} ({each['InstanceType']}, {each['State']['Name']})"

    def launch_templates(self) -> Iterator[str]:
        found = self._clients.ec2.items("describe_launch_templates", "LaunchTemplates")
        return self._of_groups(each["LaunchTemplateName"] for each in found)

    def placement_groups(self) -> Iterator[str]:
        found = self._clients.ec2.call("describe_placement_groups")["PlacementGroups"]
        return self._of_groups(each["GroupName"] for each in found if each.get("State") != "deleted")

    def _is_of_cluster(self, tags: Mapping[str, str]) -> bool:
        return tags.get(_EKS_CLUSTER, self._cluster) == self._cluster

    def _of_groups(self, names: Iterable[str]) -> Iterator[str]:
        """Yield those names that are a cluster's and a node group's of these pools, as template_name makes them."""
        for name in names:
            cluster, _, group = name.partition("/")
            if cluster[:_NAMED] == self._cluster[:_NAMED] and group.startswith(self._prefixes):
                yield name
