"""Calls to Amazon EKS about managed node groups, and LastLook: what a process last saw of a pool's groups.

By it the next look asks only about what may have changed. A pool may have dozens of groups, and each process that waits
for it looks every few seconds. EKS and EC2 Auto Scaling limit the calls of the whole account, and cluster-autoscaler
keeps what it reads of node groups for the same reason (kubernetes/autoscaler#3968). Auto Scaling groups are read all at
once, in one call: the rest follows from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from airflow_gpu_provider.clouds.answers import has_code, message_of, refusals_of, unless_answered
from airflow_gpu_provider.clouds.aws.clients import AwsService
from airflow_gpu_provider.clouds.aws.group_state import OVER
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.aws.refused_groups import WRONG, RefusedGroups
from airflow_gpu_provider.clouds.aws.spec import GONE_SOON, POOL_TAG, UPDATE_TAG, GroupSpec
from airflow_gpu_provider.clouds.base import Report
from airflow_gpu_provider.cluster.api.threads import in_parallel
from airflow_gpu_provider.errors import (
    CloudError,
    ClusterNotFound,
    ClusterUnreachable,
    PermissionDenied,
    PoolSpecError,
    QuotaExceeded,
)

_BROKEN = ("CREATE_FAILED", *GONE_SOON)


class NodeGroups:
    """The managed node groups of one pool's cluster. Every method makes fresh calls; `examples` are read once.

    Attributes:
        last_look: What was last seen of them; those that are written to are forgotten.
        refused: Those that EKS refused to create.
    """

    def __init__(self, eks: AwsService, pool: EksGpuPool) -> None:
        self._eks = eks
        self._pool = pool
        self.last_look = LastLook()
        self.refused = RefusedGroups(pool)

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
            template: The launch template of ours that it is made from: id and version.

        Raises:
            QuotaExceeded: The cluster has as many groups as EKS allows: ResourceLimitExceededException.
            CloudError: EKS refuses it, maybe for now: see `RefusedGroups.judge`.
        """
        name = spec.candidate.group
        try:
            self._eks.call("create_nodegroup", **spec.create_request(template))
        except CloudError as error:
            if has_code(error, *WRONG):
                raise self.refused.error(name, error, self.cluster()["status"]) from error
            if not has_code(error, "ResourceInUseException"):
                raise
            report(f"{name} exists already, or is being created by another run")
            return
        report(f"creating {name}: {spec.candidate}, size {spec.min_size}, at most {self._pool.max_nodes}")

    def update(self, spec: GroupSpec, group: Mapping[str, Any], report: Report) -> None:
        """Bring the mutable fields and the tags in line; where EKS updates nothing now, the next run does.

        Raises:
            PoolSpecError: EKS refuses what the spec asks for.
        """
        name = spec.candidate.group
        self.last_look.forget(name)
        request = spec.update_request(group)
        try:
            if request:
                self._eks.call("update_nodegroup_config", **request)
        except CloudError as error:
            if why := self._why_not_now(error):
                report(f"{name} {why}; the next run applies the spec")
                return
            with refusals_of("EKS", self._pool, f"update {name}", *WRONG):
                raise
        # The tags come last: until then the group still says that it has the old spec.
        tags = spec.missing_tags(group)
        if tags:
            self._eks.call("tag_resource", resourceArn=group["nodegroupArn"], tags=tags)
        report(f"updating {name}")

    def _why_not_now(self, error: CloudError) -> str:
        """Return what keeps EKS from an update that it has refused; empty where that may be the spec."""
        if has_code(error, "ResourceInUseException"):
            return "is already being updated"
        busy = has_code(error, "InvalidRequestException") and (status := self.cluster()["status"]) != "ACTIVE"
        return f"cannot be updated while the cluster is {status}" if busy else ""

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
        return list(self._eks.items("list_nodegroups", "nodegroups", clusterName=self._pool.cluster_name))


def is_owned(group: Mapping[str, Any], pool: EksGpuPool) -> bool:
    """Return True if this package created the group for this pool."""
    return bool(group.get("tags", {}).get(POOL_TAG) == pool.name)


def asg_name(group: Mapping[str, Any]) -> str | None:
    """Return the Auto Scaling group behind a node group; None while EKS has not made it."""
    asgs = (group.get("resources") or {}).get("autoScalingGroups") or []
    return str(asgs[0]["name"]) if asgs else None


# -- what was last seen of groups --------------------------------------------------------------------------------

Answer = Mapping[str, Any]

TURN = timedelta(minutes=1)
"""After so long a node group, and what it launched, may be read again though its Auto Scaling group is as it was."""
TURNS = 2
"""How many have their turn in one look, less those that have changed."""
SHOWN_WITHIN = timedelta(seconds=15)
"""How old an answer may be: what is read so soon after a change is read once more."""
_OLD = timedelta(minutes=10)
_STABLE = ("ACTIVE", "DEGRADED", "CREATE_FAILED")


@dataclass(frozen=True, kw_only=True)
class _Described:
    """A node group as DescribeNodegroup had it; its Auto Scaling group then, and when it is due again."""

    group: Answer
    asg: Answer | None
    due_at: datetime


@dataclass(frozen=True, kw_only=True)
class _Read:
    """Activities of an Auto Scaling group, as it was before they were read, and since when it is like that."""

    activities: Sequence[Answer]
    asg: Answer
    at: datetime
    since: datetime | None


class LastLook:
    """Of one process, at one pool. `now` is AWS's time throughout."""

    def __init__(self) -> None:
        self._groups: dict[str, _Described] = {}
        self._activities: dict[str, _Read] = {}

    # -- node groups -----------------------------------------------------------------------------------------

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Return those of the node groups that exist, the most preferred first, which are not known yet.

        What is gone is forgotten.
        """
        names = tuple(names)
        self._groups = {name: self._groups[name] for name in names if name in self._groups}
        return [name for name in names if name not in self._groups]

    def groups(self) -> dict[str, Answer]:
        return {name: seen.group for name, seen in self._groups.items()}

    def changed(self, asgs: Mapping[str, Answer]) -> list[str]:
        """Return the node groups whose Auto Scaling groups, by their names, are not as they were."""
        return [name for name, seen in self._groups.items() if seen.asg is not None and asgs.get(name) != seen.asg]

    def due(self, now: datetime, *, changed: Collection[str], busy: Collection[str]) -> list[str]:
        """Return the node groups whose turn it is: on their way to another state, or described a while ago.

        The most preferred one that is on its way has a turn in each look. The more are read anyway, as they have
        `changed` or are `busy`, the fewer of those that are not on their way have one.
        """
        waiting = [name for name, seen in self._groups.items() if name not in changed and now >= seen.due_at]
        coming = [name for name in waiting if self._groups[name].group["status"] not in _STABLE]
        coming = [*coming[:1], *self._oldest_first(coming[1:])][:TURNS]
        settled = self._oldest_first(name for name in waiting if self._groups[name].group["status"] in _STABLE)
        room = max(TURNS - len({*changed, *busy, *coming}), 0 if changed or coming else 1)
        return [*coming, *settled[:room]]

    def _oldest_first(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda name: self._groups[name].due_at)

    def describe(self, name: str, group: Answer | None, asg: Answer | None, now: datetime) -> None:
        """Keep DescribeNodegroup's answer; `asg` is its Auto Scaling group, None where that is not known yet.

        Of one whose Auto Scaling group has just changed the answer may be of before.
        """
        if group is None:
            self._groups.pop(name, None)
            return
        before = self._groups.get(name)
        has_changed = before is not None and before.asg is not None and before.asg != asg
        is_settled = group["status"] in _STABLE and not has_changed
        self._groups[name] = _Described(group=group, asg=asg, due_at=now + TURN if is_settled else now)

    def note(self, asgs: Mapping[str, Answer]) -> None:
        """Keep the Auto Scaling groups of node groups that were described before those were known."""
        for name, seen in self._groups.items():
            if seen.asg is None and name in asgs:
                self._groups[name] = replace(seen, asg=asgs[name])

    def forget(self, name: str) -> None:
        """Have a node group described again: it was written to."""
        self._groups.pop(name, None)

    # -- activities ------------------------------------------------------------------------------------------

    def may_have_more(self, name: str, asg: Answer, now: datetime) -> bool:
        """Return True if there may be activities of an Auto Scaling group that were not read.

        There are none of one that has all the instances that it wants, and is as it was when they were read; but that
        another process tried it in between, and gave up, shows in nothing else: each has its turn.
        """
        read = self._activities.get(name)
        if read is None or read.asg != asg or not _is_at_rest(asg):
            return True
        is_under_way = any(activity["StatusCode"] not in OVER for activity in read.activities)
        may_be_old = read.since is not None and read.at - read.since < SHOWN_WITHIN
        return is_under_way or may_be_old or now - read.at >= _OLD

    def was_sized(self, name: str) -> None:
        """Have the activities of an Auto Scaling group read again, whose size this process has set.

        Another process may give up before the next look what came of it, and the group is as it was.
        """
        self._activities.pop(name, None)

    def activities(self, name: str) -> Sequence[Answer]:
        """Return the activities that were last read of an Auto Scaling group, the newest first."""
        read = self._activities.get(name)
        return read.activities if read else ()

    def read(self, name: str, activities: Sequence[Answer], asg: Answer, now: datetime) -> None:
        """Keep activities; `asg` is the group as it was before they were read."""
        before = self._activities.get(name)
        is_as_before = before is None or before.asg == asg
        since = (before.since if before else None) if is_as_before else now
        self._activities[name] = _Read(activities=activities, asg=asg, at=now, since=since)


def _is_at_rest(asg: Answer) -> bool:
    instances = asg.get("Instances", [])
    in_service = sum(instance["LifecycleState"] == "InService" for instance in instances)
    return bool(len(instances) == in_service == int(asg.get("DesiredCapacity", 0)))
