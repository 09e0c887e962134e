"""Platform: the questions that every cloud answers about a pool, and the plain data that they answer with."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Literal

from airflow_gpu_provider.money.prices import too_dear_lines

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.answers import GroupUpdate, Refusals, Reserved
    from airflow_gpu_provider.cluster.api.access import ClusterAccess
    from airflow_gpu_provider.money.prices import ListPrices, TooDear
    from airflow_gpu_provider.pools import Candidate, GpuPool
    from airflow_gpu_provider.pools.candidates import Market

Report = Callable[[str], None]
"""Takes one line for the task's log."""

MachineState = Literal["requested", "pending", "running", "terminating"]
FailureKind = Literal["out_of_stock", "quota", "refused", "other"]
GroupStatus = Literal["creating", "active", "updating", "upgrading", "degraded", "failed", "deleting"]

# InsufficientInstanceCapacity, VcpuLimitExceeded; ZONE_RESOURCE_POOL_EXHAUSTED; "Unsupported - The requested ..."
_CODE = re.compile(r"\b(?:[A-Z][a-z]+){2,}\b|\b[A-Z]+(?:_[A-Z]+)+\b|\b[A-Z][a-z]+(?= - )")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine of a group, whether or not its node has joined the cluster.

    Attributes:
        id: The last part of its node's providerID (an EC2 instance id, a Compute Engine instance name).
        state: "requested": a provisioner has asked for it, and the cloud has not given it. "pending": it is booting.
        lacks: What it lacks before pods can use it, in its provisioner's words; empty where that says nothing.
        market: Where its group has machines of several; None: the group's.
        drains: It is terminating, and runs, and costs, until its provisioner has drained its node.
    """

    id: str
    group: str
    state: MachineState
    launched_at: datetime | None = None
    lacks: str = ""
    market: Market | None = None
    drains: bool = False


@dataclass(frozen=True, kw_only=True)
class MachineEnd:
    """A machine that has ended or is about to, as the cloud tells it.

    Attributes:
        why: The cloud's words.
        taken_back: The cloud itself took it, as spot, while it ran: what was on it did not end by itself.
    """

    why: str
    taken_back: bool = False


@dataclass(frozen=True, kw_only=True)
class MachineLife:
    """When a machine of a pool ran, by the cloud's own word.

    Attributes:
        id: As `Machine.id`. A cloud may give a name again: each machine that had it has a life of its own.
        group: Its group; empty where that does not exist any more.
        node: Its node's name, where the cloud tells it.
        launched_at: None where the cloud no longer says it.
        ended_at: When it stopped to run; None while it runs.
    """

    id: str
    group: str
    node: str = ""
    launched_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchFailure:
    """A failed launch of a group: when, why, and in the cloud's words.

    Attributes:
        kind: "out_of_stock": the cloud has no such machine there now. "quota": the account may not have more of them.
            "refused": it refuses the same again until something changes, such as a permission. "other": it
            may be this zone's or this moment's affair.
        quota: The quota's name or code, where it is known.
        earlier: When the launches before it failed, the oldest first; since the last one that worked, as far back as
            the cloud remembers.
    """

    at: datetime
    message: str
    kind: FailureKind = "other"
    quota: str | None = None
    earlier: tuple[datetime, ...] = ()

    @classmethod
    def newest(cls, in_a_row: Sequence[LaunchFailure]) -> LaunchFailure | None:
        """Return the last of failures, which come the oldest first, as one that remembers the others."""
        return replace(in_a_row[-1], earlier=tuple(each.at for each in in_a_row[:-1])) if in_a_row else None

    @property
    def out_of_stock(self) -> bool:
        return self.kind == "out_of_stock"

    @property
    def reason(self) -> str:
        """The cloud's error code where the message has one, else its first sentence."""
        match = _CODE.search(self.message)
        return match[0] if match else self.message.split(". ")[0].rstrip(".")


@dataclass(frozen=True, kw_only=True)
class MachineLoss:
    """A machine that its cloud took back while it ran, or that failed within half an hour of its start.

    Machines that a person or this package has ended are no losses, nor are those whose reservation has ended.

    Attributes:
        at: When the cloud began to end it.
        machine: As `Machine.id`.
        why: The cloud's words.
    """

    at: datetime
    machine: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """What the cloud says of one node group, now.

    Attributes:
        candidate: Where its machines come from.
        desired: The size that the cloud works towards.
        machines: Those that exist, terminating ones too.
        switch_at: When the cloud sets the group to zero by itself; None where no switch is set.
        has_switch: Whether the cloud has a setting for that. Where it cannot, machines have a lifetime of their own.
        launch_failure: The newest launch, if it failed; None once a later one worked.
        failures: All failed launches that the cloud remembers, the oldest first.
        losses: The machines that it has lost, as far back as the cloud remembers, the oldest first.
        last_end: When a machine of it last ended and left its quota to others, by the cloud's own word; None where the
            cloud does not tell it, or where nothing depends on it: no launch of the pool is over a quota.
        launching: A launch is under way that has no machine to show yet.
        issues: The cloud's health issues, in its words.
        keeps: Machines that the cloud keeps even without demand: the group's minimum size.
        autoscaler_name: What an autoscaler calls the group in its reports and events.
        stale_tags: The tags that are not as autoscalers and the bill need them to know the group, for people.
        when_idle: What becomes of machines without demand. Those that others add are kept, or kept and cordoned.
        provisioner: What adds machines when pods request them, and removes idle ones; empty where nothing does.
        owned: This package created it. Another is left as it was found, but for its size.
        update: What an "updating" group waits for; None where the cloud does not tell it.
        left_suspended: A process of this package suspended its launches for a moment, and died over it.
        reserved: The reservation that its machines are of, where they are of one.
    """

    name: str
    candidate: Candidate
    status: GroupStatus
    desired: int
    max_size: int
    machines: tuple[Machine, ...] = ()
    switch_at: datetime | None = None
    has_switch: bool = True
    launch_failure: LaunchFailure | None = None
    failures: tuple[LaunchFailure, ...] = ()
    losses: tuple[MachineLoss, ...] = ()
    last_end: datetime | None = None
    launching: bool = False
    issues: tuple[str, ...] = ()
    keeps: int = 0
    autoscaler_name: str = ""
    stale_tags: tuple[str, ...] = ()
    when_idle: Literal["remove", "keep", "cordon"] = "remove"
    provisioner: str = ""
    owned: bool = True
    update: GroupUpdate | None = None
    left_suspended: bool = False
    reserved: Reserved | None = None

    @property
    def live(self) -> tuple[Machine, ...]:
        """The machines that exist and are not on their way out."""
        return tuple(machine for machine in self.machines if machine.state != "terminating")

    @property
    def has_room(self) -> bool:
        """Whether it may have more machines."""
        return len(self.live) < self.max_size

    @property
    def unfilled(self) -> int:
        """Machines that are asked for and do not exist."""
        return max(0, self.desired - len(self.live))


@dataclass(frozen=True, kw_only=True)
class GroupChange:
    """One thing that a run would do to a group: `apply`, or `Platform.upgrade`. `detail` is for people."""

    action: Literal["create", "update", "upgrade", "delete"]
    group: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What would change, the cloud's side only; sizes are decided later, under the pool's lock.

    `grow` says how many nodes would be added and where, for people; it is no promise. `brought` says who else brings
    them. `notes` say what the pool cannot use, and why; `unread` what could not be compared, and why, which is no
    matter of a run. `prices` are those of the candidates, for people, and `too_dear` the candidates that cost too much.
    `groups` are those that it was made from, as `Platform.observe` returns them, and `listed` what the cloud listed for
    the candidates: both None where the plan takes none. `order` are the groups of a pool with reservations as they were
    at `read_at`, those to be created too, the most preferred first.
    """

    pool: str
    changes: tuple[GroupChange, ...] = ()
    grow: tuple[str, ...] = ()
    brought: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    prices: tuple[str, ...] = ()
    too_dear: tuple[TooDear, ...] = ()
    groups: tuple[Group, ...] | None = None
    listed: ListPrices | None = None
    order: tuple[Group, ...] = ()
    read_at: datetime | None = None

    @property
    def is_empty(self) -> bool:
        """Whether a second run would change nothing."""
        return not self.changes and not self.grow

    def lines(self) -> list[str]:
        """Return the plan as people read it, a line each."""
        notes = [f"  $ {line}" for line in self.prices]
        notes += [f"  ! {note}" for note in (*self.brought, *too_dear_lines(self.too_dear), *self.notes)]
        if self.is_empty:
            return [f"Plan for {self.pool}: no changes.", *notes]
        signs = {"create": "+", "delete": "-"}
        rows = [f"  {signs.get(c.action, '~')} {c.group}: {c.detail}" for c in self.changes]
        return [f"Plan for {self.pool}:", *rows, *(f"  ^ {line}" for line in self.grow), *notes]


class Platform(ABC):
    """One pool on one cloud.

    Every method makes fresh calls; nothing is cached between them but clients, what cannot change (subnets, the
    cluster's endpoint), and for `observe` what shows to be as it was. All raise errors of
    `airflow_gpu_provider.errors`, never a cloud SDK's own.

    Attributes:
        releases_at_once: How many machines `release` removes in about the time of one. Default None: as many as
            requests are made at a time.
    """

    releases_at_once: int | None = None

    @abstractmethod
    def cluster_access(self) -> ClusterAccess:
        """Return how to reach the cluster's API server, with tokens that are renewed in-process."""

    def account(self) -> str:
        """Return, for people, which account and cluster this is, and as whom they are spoken to.

        Raises:
            ConnectionNotFound, CredentialsError: The pool's Airflow connection is missing or holds no credentials.
        """
        return self.cluster_access().server

    def refusals(self) -> Refusals | None:
        """Ask the cloud whether it would let a run change what it changes; nothing is tried.

        Default None: the pool changes nothing in a cloud.
        """
        return None

    @abstractmethod
    def plan(self, nodes: int) -> Plan:
        """Say what `apply` would change so that the pool can have `nodes` nodes. No side effect.

        Raises:
            PoolDrift: Another writer's spec is on a group.
        """

    def list_prices(self) -> ListPrices | None:
        """Return what the cloud lists for the pool's candidates; None if the pool does not ask for it.

        Whatever the cloud answers, and if it does not answer, nothing is raised, and nobody waits for long: what is not
        known has its reason there.
        """
        return None

    def groups_over_quota(self, nodes: int, report: Report, plan: Plan | None = None) -> frozenset[str]:
        """Return the groups whose quota has too little room for what the pool lacks to `nodes` nodes.

        Nodes that take the place of the pool's own machines on their way out are not compared: those make room.
        `report` takes a line about each such quota, and one where the account may not read quotas. What a `plan` has
        just read is not read again. Default: none; there are no quotas.

        Raises:
            QuotaExceeded: Nothing is left; the message has the quota's name, limit, use and need.
        """
        return frozenset()

    @abstractmethod
    def apply(self, plan: Plan, report: Report, over_quota: Collection[str] = ()) -> None:
        """Start what the plan says: groups are created at size 0. Returns before the cloud is done; see `observe`.

        Args:
            over_quota: Groups that are not created, as they could not grow: what `groups_over_quota` returned.
        """

    def upgrade(self, report: Report, check: Callable[[], None]) -> tuple[str, ...]:
        """Start what a plan calls "upgrade", for groups without machines; return those "upgrading" from now on.

        The caller holds the pool's lock, so that no machine comes meanwhile; `check` says before each write whether it
        still does. Default: there is nothing.
        """
        return ()

    @abstractmethod
    def observe(self) -> tuple[Group, ...]:
        """Return the pool's groups that exist, in candidate order."""

    def schedule_scale_to_zero(self, groups: Collection[str], at: datetime) -> None:  # noqa: B027
        """Make the cloud set these groups to zero at `at` by itself, in place of an earlier time for it.

        Default: nothing is scheduled, as no group has such a switch (`Group.has_switch`).
        """

    def cancel_scale_to_zero(self, groups: Collection[str]) -> None:  # noqa: B027
        """Take the switch off; fine where there is none. Default: there is none."""

    def update_autoscaler_tags(self, groups: Collection[str]) -> None:  # noqa: B027
        """Put the tags of these groups right (`Group.stale_tags`). Default: there is nothing."""

    def resume_launches(self, groups: Collection[str]) -> None:  # noqa: B027
        """End the suspensions that a dead process has left (`Group.left_suspended`). Default: there are none."""

    @abstractmethod
    def grow(self, sizes: Mapping[str, int]) -> None:
        """Set these groups to these absolute sizes. The caller holds the pool's lock, and only ever grows."""

    @abstractmethod
    def release(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        """Remove exactly these machines, those that never joined the cluster too, each shrinking its group by one.

        Returns those that the cloud does not end yet, their launch being under way as a rule; a later look does.
        """

    def machine_end(self, machine: str) -> MachineEnd | None:
        """Return why a machine of the pool (`Machine.id`) has ended or is about to; None where it is not.

        Default: None, for clouds whose nodes tell their pods' end themselves.
        """
        return None

    def lives(
        self, groups: Sequence[Group], since: datetime, known: Collection[str] = ()
    ) -> tuple[MachineLife, ...] | None:
        """Return when machines of these groups ran after `since`, those too that no task saw.

        `known` machines (`Machine.id`) are asked for by name, as clouds forget soon, and are told of whatever their
        group, which may be deleted (`MachineLife.group` is empty then). Default None: no cloud could tell.
        """
        return None

    @abstractmethod
    def shrink_unfilled(self, groups: Collection[str]) -> dict[str, int]:
        """Set these groups to the machines that exist, so that the cloud stops trying for more.

        A group with a launch under way is left: no machine that exists may be taken for it. Returns the new sizes.
        """

    def cluster_autoscaler(self, *, flags: Sequence[str], image: str | None, role_arn: str | None) -> str:
        """Return cluster-autoscaler's manifest for the pool's cluster: only where the pool `takes_cluster_autoscaler`.

        The arguments are those of `addons.cluster_autoscaler.manifest_for`.
        """
        raise NotImplementedError

    @abstractmethod
    def delete(self, report: Report) -> None:
        """Delete the groups that this package created."""

    def delete_remains(self, report: Report) -> None:  # noqa: B027
        """Delete what this package created beside groups that are gone now. Default: there is nothing."""


def platform_for(pool: GpuPool, *, owner: str = "") -> Platform:
    """Return the platform of a (rendered) pool, which `GpuPool.platform_path` names; its cloud SDK is imported now.

    Args:
        owner: Who writes groups that this package creates: "installation/dag id".
    """
    platform: Platform = resolve_name(pool.platform_path)(pool, owner=owner)
    return platform
