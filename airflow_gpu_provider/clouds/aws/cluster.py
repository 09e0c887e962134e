"""EksCluster: a pool's EKS cluster, its clients, and what the Auto Scaling groups behind its groups have and do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from airflow_gpu_provider.clouds.aws.autoscaler_tags import tag_change
from airflow_gpu_provider.clouds.aws.autoscaling import AutoScaling, SuspensionMarks
from airflow_gpu_provider.clouds.aws.clients import AwsClients, instances
from airflow_gpu_provider.clouds.aws.group_state import (
    ends_to_explain,
    failures,
    has_machines,
    is_launching,
    last_end,
    launch_failure,
    losses,
    machines,
)
from airflow_gpu_provider.clouds.aws.launch_templates import OwnedTemplates
from airflow_gpu_provider.clouds.aws.node_groups import NodeGroups, asg_name
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.aws.quota import quota_code
from airflow_gpu_provider.clouds.aws.spec import issues
from airflow_gpu_provider.clouds.base import Group, GroupStatus
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.threads import in_parallel
from airflow_gpu_provider.errors import GroupNotFound
from airflow_gpu_provider.pools import Candidate

_STATUS: dict[str, GroupStatus] = {
    "CREATING": "creating",
    "ACTIVE": "active",
    "UPDATING": "updating",
    "DEGRADED": "degraded",
    "CREATE_FAILED": "failed",
    "DELETE_FAILED": "failed",
    "DELETING": "deleting",
}
"""What EKS's word for a node group's state means for the pool."""


@dataclass(frozen=True, kw_only=True)
class AsgState:
    """One Auto Scaling group: DescribeAutoScalingGroups' answer, which is empty where AWS does not show it (yet).

    Attributes:
        end_codes: Why instances ended, as EC2's code, by id: of those whose end the activities do not explain.
    """

    asg: Mapping[str, Any] = field(default_factory=dict)
    activities: Sequence[Mapping[str, Any]] = ()
    switch_at: datetime | None = None
    left_suspended: bool = False
    end_codes: Mapping[str, str] = field(default_factory=dict)


class EksCluster:
    """The cluster of one pool. Nothing is cached but clients, what cannot change, and for `look` what it last saw.

    Args:
        marks: Returns where suspended launches are marked. Default: in the Auto Scaling groups' tags.
    """

    def __init__(self, pool: EksGpuPool, marks: Callable[[ClusterAccess], SuspensionMarks] | None = None) -> None:
        self.pool = pool
        self.clients = AwsClients(conn_id=pool.aws_conn_id, region=pool.region)
        self._marks = marks
        self._behind: Mapping[str, str] = {}
        """The Auto Scaling groups behind node groups, as last read: EKS may not know a new one at the next call."""
        self._end_codes: dict[str, str] = {}

    @property
    def access(self) -> ClusterAccess:
        """How to reach the API server, with tokens that are renewed in-process."""

        def again() -> ClusterAccess:
            self.clients.read_connection_again()
            return access

        access = ClusterAccess(
            server=self.description["endpoint"],
            ca_data=self.description["certificateAuthority"]["data"],
            token=lambda: self.clients.cluster_token(self.pool.cluster_name),
            again=again,
        )
        return access

    @cached_property
    def description(self) -> Mapping[str, Any]:
        """DescribeCluster's answer."""
        return self.groups.cluster()

    @cached_property
    def groups(self) -> NodeGroups:
        return NodeGroups(self.clients.eks, self.pool)

    @cached_property
    def templates(self) -> OwnedTemplates:
        return OwnedTemplates(self.clients.ec2, self.pool)

    @cached_property
    def scaling(self) -> AutoScaling:
        return AutoScaling(self.clients.autoscaling, self._marks(self.access) if self._marks else None)

    def asgs_of(self, groups: Collection[str]) -> dict[str, str]:
        """Return the Auto Scaling groups behind groups, by group, in the order given.

        Raises:
            GroupNotFound: A group does not exist, or has no Auto Scaling group.
        """
        names = list(groups)
        found = dict(zip(names, in_parallel(self.find_asg, names), strict=True))
        if lacking := [group for group, asg in found.items() if asg is None]:
            states = "; ".join(f"node group {group} {self._why_no_asg(group)}" for group in lacking)
            what = f"Pool {self.pool.name}: {states}."
            raise GroupNotFound(what, "Run EnsureGpuPoolOperator again.", groups=lacking)
        return {group: asg for group, asg in found.items() if asg}

    def find_asg(self, group: str) -> str | None:
        """Return the Auto Scaling group behind a group; None where there is none."""
        if group in self.pool.asg_names:
            return group
        if known := self._behind.get(group):
            return known
        raw = self.groups.describe(group)
        return asg_name(raw) if raw else None

    def _why_no_asg(self, group: str) -> str:
        raw = self.groups.describe(group)
        return f"is {raw['status']} and has no Auto Scaling group" if raw else "does not exist"

    def look(
        self, names: Collection[str], besides: Collection[str] = ()
    ) -> tuple[dict[str, Mapping[str, Any]], dict[str, AsgState]]:
        """Return node groups, and what there is of Auto Scaling groups, those behind them and those `besides`, by name.

        `names` are in the order of preference. Node groups and activities are read again only where they may have
        changed: see `LastLook`.
        """
        last = self.groups.last_look
        self._describe(last.unknown(names), {})
        groups = last.groups()
        asgs = self.scaling.groups({*filter(None, map(asg_name, groups.values())), *besides})
        behind = {name: asgs[asg] for name, raw in groups.items() if (asg := asg_name(raw)) and asg in asgs}
        last.note(behind)
        changed, now = last.changed(behind), self.scaling.now()
        busy = {name for name, asg in behind.items() if self._may_have_more(asg, now)}
        turns = last.due(now, changed=changed, busy=busy)
        self._describe([*changed, *turns], behind)
        groups = last.groups()
        self._note(groups)
        its_turn = {found for name in turns if (found := asg_name(groups.get(name, {})))}
        wanted = {*filter(None, map(asg_name, groups.values())), *besides}
        return groups, self._read_asgs(wanted, asgs, its_turn)

    def states_behind(self, groups: Mapping[str, Mapping[str, Any]]) -> dict[str, AsgState]:
        """Return what there is of the Auto Scaling groups behind node groups (DescribeNodegroup's answers), by name."""
        self._note(groups)
        names = [*self._behind.values()]
        return self._read_asgs(names, self.scaling.groups(names), names)

    def _note(self, groups: Mapping[str, Mapping[str, Any]]) -> None:
        self._behind = {name: asg for name, raw in groups.items() if (asg := asg_name(raw))}

    def grow(self, asg: str, size: int) -> None:
        """Set an Auto Scaling group to a size; the next look reads its activities."""
        self.scaling.grow(asg, size)
        self.groups.last_look.was_sized(asg)

    def _describe(self, names: Collection[str], asgs: Mapping[str, Mapping[str, Any]]) -> None:
        for name, raw in zip(names, in_parallel(self.groups.describe, names), strict=True):
            self.groups.last_look.describe(name, raw, asgs.get(name), self.scaling.now())

    def _may_have_more(self, asg: Mapping[str, Any], now: datetime) -> bool:
        return self.groups.last_look.may_have_more(asg["AutoScalingGroupName"], asg, now)

    def _read_asgs(
        self, names: Collection[str], asgs: Mapping[str, Mapping[str, Any]], its_turn: Collection[str]
    ) -> dict[str, AsgState]:
        """Return what there is of Auto Scaling groups that were just read, with activities that may be of before."""
        last, now = self.groups.last_look, self.scaling.now()
        again = [name for name in names if name in its_turn or name not in asgs or self._may_have_more(asgs[name], now)]
        # Activities before instances: a launch is then seen in the one or in the other.
        for name, activities in self.scaling.activities(again).items():
            last.read(name, activities, asgs.get(name, {}), now)
        asgs = {name: asg for name, asg in asgs.items() if name not in again} | self.scaling.groups(again)
        switches = self.scaling.switches() if names else {}
        suspended = self.scaling.left_suspended(asgs.values())
        self._explain_ends({found for name in names for found in ends_to_explain(last.activities(name), now)})
        return {
            name: AsgState(
                asg=asgs.get(name, {}),
                activities=last.activities(name),
                switch_at=switches.get(name),
                left_suspended=name in suspended,
                end_codes=self._end_codes,
            )
            for name in names
        }

    def _explain_ends(self, ids: Collection[str]) -> None:
        """Ask EC2 once why these instances have ended; it forgets them within the hour."""
        if asked := sorted({*ids} - self._end_codes.keys()):
            # By a filter: an instance that EC2 has forgotten is an error by its id.
            found = instances(self.clients.ec2, Filters=[{"Name": "instance-id", "Values": asked}])
            codes = {each["InstanceId"]: (each.get("StateReason") or {}).get("Code", "") for each in found}
            self._end_codes.update(dict.fromkeys(asked, "") | codes)

    def write_autoscaler_tags(self, asg: str, instance_type: str) -> None:
        """Put the tags right by which cluster-autoscaler and the bill know a group; nothing where it is not there."""
        found = self.scaling.groups([asg]).get(asg)
        if found:
            change = tag_change(self.pool, instance_type, found)
            self.scaling.put_tags(asg, change.put, for_instances=change.put_for_bill)
            self.scaling.remove_tags(asg, change.remove)


def group_of(candidate: Candidate, node_group: Mapping[str, Any] | None, state: AsgState) -> Group:
    """Return what AWS says of a group; `node_group` is None for a self-managed Auto Scaling group."""
    asg, activities = state.asg, state.activities
    members = machines(candidate.group, asg, activities)
    quota = quota_code(candidate.instance_type, candidate.market)
    return Group(
        name=candidate.group,
        candidate=candidate,
        status=_status(node_group, asg),
        desired=int(asg.get("DesiredCapacity", 0)),
        max_size=int(asg["MaxSize"] if asg or node_group is None else node_group["scalingConfig"]["maxSize"]),
        machines=members,
        switch_at=state.switch_at,
        keeps=int(asg.get("MinSize", 0)),
        autoscaler_name=asg.get("AutoScalingGroupName", ""),
        launch_failure=launch_failure(activities, quota),
        failures=failures(activities, quota),
        losses=losses(activities, candidate.market, state.end_codes),
        last_end=last_end(activities),
        launching=is_launching(activities, members),
        issues=issues(node_group) if node_group else (),
        left_suspended=state.left_suspended,
    )


def _status(node_group: Mapping[str, Any] | None, asg: Mapping[str, Any]) -> GroupStatus:
    if node_group is None:
        return "deleting" if asg.get("Status") else "active"
    is_empty = not has_machines(asg)
    return "upgrading" if node_group["status"] == "UPDATING" and is_empty else _STATUS[node_group["status"]]
