"""Calls to Amazon EKS about managed node groups: read, create, update, delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from airflow_gpu_provider.errors import (
    CloudError,
    ClusterNotFound,
    ClusterUnreachable,
    PermissionDenied,
    PoolSpecError,
    QuotaExceeded,
)
from airflow_gpu_provider.platforms.answers import has_code, message_of, refusals_of, unless_answered
from airflow_gpu_provider.platforms.aws.clients import AwsService, in_parallel
from airflow_gpu_provider.platforms.aws.last_look import LastLook
from airflow_gpu_provider.platforms.aws.spec import GONE_SOON, POOL_TAG, UPDATE_TAG, GroupSpec
from airflow_gpu_provider.platforms.base import Report
from airflow_gpu_provider.pools import EksGpuPool

_BROKEN = ("CREATE_FAILED", *GONE_SOON)
_REFUSED = ("InvalidParameterException", "InvalidRequestException")


class NodeGroups:
    """The managed node groups of one pool's cluster. Every method makes fresh calls; `examples` are read once.

    Attributes:
        last_look: What was last seen of them; those that are written to are forgotten.
    """

    def __init__(self, eks: AwsService, pool: EksGpuPool) -> None:
        self._eks = eks
        self._pool = pool
        self.last_look = LastLook()

    def cluster(self) -> Mapping[str, Any]:
        """Return DescribeCluster's answer.

        Raises:
            ClusterNotFound: There is no such cluster.
            ClusterUnreachable: It has no endpoint yet.
        """
        pool = self._pool
        try:
            found: Mapping[str, Any] = self._eks.call("describe_cluster", name=pool.cluster_name)["cluster"]
        except (CloudError, ClusterNotFound) as error:
            if not has_code(error, "ResourceNotFoundException"):
                raise
            raise ClusterNotFound(
                f"There is no EKS cluster {pool.cluster_name} in {pool.region}.",
                "Check cluster_name and region, and the account of the Airflow connection.",
                **error.details,
            ) from error
        if not found.get("endpoint"):
            raise ClusterUnreachable(
                f"The EKS cluster {pool.cluster_name} has no endpoint: it is {found.get('status')}.",
                "Wait until it is ACTIVE.",
            )
        return found

    def read(self, names: Iterable[str] | None = None) -> dict[str, Mapping[str, Any]]:
        """Return the groups whose name begins with the pool's, by name: ours, and those that may be in the way.

        `names` are all those of the cluster, where they are known.
        """
        names = self.of_pool(names)
        return {group["nodegroupName"]: group for group in in_parallel(self.describe, names) if group}

    def of_pool(self, names: Iterable[str] | None = None) -> list[str]:
        """Return the names that begin with the pool's; of those given, or of all of the cluster."""
        all_of_them = self.names() if names is None else names
        return [name for name in all_of_them if name.startswith(f"{self._pool.name}-")]

    def owned(self) -> dict[str, Mapping[str, Any]]:
        """Return those of `read` that this package created for the pool, today's spec or an earlier one's."""
        return {name: group for name, group in self.read().items() if is_owned(group, self._pool)}

    def describe(self, name: str) -> Mapping[str, Any] | None:
        """Return DescribeNodegroup's answer, or None where there is no such group."""
        with unless_answered("ResourceNotFoundException"):
            answer = self._eks.call("describe_nodegroup", clusterName=self._pool.cluster_name, nodegroupName=name)
            group: Mapping[str, Any] = answer["nodegroup"]
            return group
        return None

    @cached_property
    def examples(self) -> tuple[Mapping[str, Any], ...]:
        """The cluster's node groups that work, by name: what a spec leaves open is taken from them."""
        found = in_parallel(self.describe, sorted(self.names()))
        return tuple(group for group in found if group and group["status"] not in _BROKEN)

    @property
    def neighbours(self) -> tuple[Mapping[str, Any], ...]:
        """Those of `examples` that others made, who knew the network."""
        return tuple(group for group in self.examples if not group.get("tags", {}).get(POOL_TAG))

    def node_role(self) -> str:
        """Return the role for new nodes: the pool's, or that of the cluster's other node groups.

        A Windows group's is left out: aws-auth or an access entry lets its nodes in as such alone.

        Raises:
            PoolSpecError: The pool names none, and the cluster has no node group to take it from.
        """
        if self._pool.node_role:
            return self._pool.node_role
        roles = [group["nodeRole"] for group in self.examples if not str(group.get("amiType")).startswith("WINDOWS")]
        if roles:
            return str(roles[0])
        raise PoolSpecError(
            f"Pool {self._pool.name}: node_role is not set, and cluster {self._pool.cluster_name} has no Linux node"
            " group whose role could be used.",
            "Set node_role to the ARN of an EKS node role.",
        )

    def create(self, spec: GroupSpec, report: Report, template: Mapping[str, str] | None = None) -> None:
        """Start to create a group of its minimum size; fine if another run creates it just now.

        Args:
            spec: The group's.
            report: Takes a line about it.
            template: The launch template of ours that it is made from: id and version.

        Raises:
            QuotaExceeded: The cluster has as many groups as EKS allows: ResourceLimitExceededException.
            PoolSpecError: EKS refuses what the spec asks for.
        """
        name = spec.candidate.group
        with unless_answered("ResourceInUseException"), refusals_of("EKS", self._pool, f"create {name}", *_REFUSED):
            self._eks.call("create_nodegroup", **spec.create_request(template))
            report(f"creating {name}: {spec.candidate}, size {spec.min_size}, at most {self._pool.max_nodes}")
            return
        report(f"{name} exists already, or is being created by another run")

    def update(self, spec: GroupSpec, group: Mapping[str, Any], report: Report) -> None:
        """Bring the mutable fields and the tags in line; a group that is being updated is left for the next run."""
        name = spec.candidate.group
        self.last_look.forget(name)
        request = spec.update_request(group)
        try:
            with refusals_of("EKS", self._pool, f"update {name}", *_REFUSED):
                if request:
                    self._eks.call("update_nodegroup_config", **request)
        except CloudError as error:
            if not has_code(error, "ResourceInUseException"):
                raise
            report(f"{name} is already being updated; the next run applies the spec")
            return
        # The tags come last: until then the group still says that it has the old spec.
        tags = spec.missing_tags(group)
        if tags:
            self._eks.call("tag_resource", resourceArn=group["nodegroupArn"], tags=tags)
        report(f"updating {name}")

    def upgrade(self, group: Mapping[str, Any], request: Mapping[str, Any], report: Report) -> bool:
        """Start UpdateNodegroupVersion; return False where EKS refuses it, or the account may not.

        The group is left as it is then, and serves as before.
        """
        name = group["nodegroupName"]
        self.last_look.forget(name)
        try:
            answer = self._eks.call("update_nodegroup_version", **request)
        except (CloudError, PermissionDenied, QuotaExceeded) as error:
            report(f"{name} cannot be upgraded: {error.what}")
            return False
        report(f"upgrading {name}")
        with suppress(CloudError, PermissionDenied):
            tag = {UPDATE_TAG: answer["update"]["id"]}
            self._eks.call("tag_resource", resourceArn=group["nodegroupArn"], tags=tag)
        return True

    def failed_upgrade(self, group: Mapping[str, Any]) -> str:
        """Return why EKS could not do the last update of a group that `upgrade` began; empty where it could."""
        update_id = group.get("tags", {}).get(UPDATE_TAG)
        if not update_id:
            return ""
        which = {"name": self._pool.cluster_name, "nodegroupName": group["nodegroupName"], "updateId": update_id}
        try:
            update = self._eks.call("describe_update", **which)["update"]
        except (CloudError, PermissionDenied, ClusterNotFound):
            return ""  # EKS forgets updates, and whether one failed is no reason to fail
        if update["status"] != "Failed":
            return ""
        reasons = (
            f"{each.get('errorCode')}: {each.get('errorMessage', '')}".strip() for each in update.get("errors", ())
        )
        return "; ".join(reasons) or "no reason given"

    def delete(self, name: str, report: Report) -> None:
        """Start to delete a group; fine if it is gone or being deleted."""
        self.last_look.forget(name)
        try:
            self._eks.call("delete_nodegroup", clusterName=self._pool.cluster_name, nodegroupName=name)
        except CloudError as error:
            if has_code(error, "ResourceNotFoundException"):
                return
            if has_code(error, "ResourceInUseException"):
                report(f"{name} cannot be deleted yet: {message_of(error)}")
                return
            raise
        report(f"deleting {name}")

    def names(self) -> list[str]:
        """Return the names of all node groups of the cluster."""
        return list(self._eks.items("list_nodegroups", "nodegroups", clusterName=self._pool.cluster_name))


def is_owned(group: Mapping[str, Any], pool: EksGpuPool) -> bool:
    """Return True if this package created the group for this pool."""
    return bool(group.get("tags", {}).get(POOL_TAG) == pool.name)


def asg_name(group: Mapping[str, Any]) -> str | None:
    """Return the Auto Scaling group behind a node group; None while EKS has not made it."""
    asgs = (group.get("resources") or {}).get("autoScalingGroups") or []
    return str(asgs[0]["name"]) if asgs else None
