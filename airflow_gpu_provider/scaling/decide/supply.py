"""The state of each machine of a pool: usable, coming, broken or taken; and whether it may be released."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.cluster.pods import Pod
from airflow_gpu_provider.platforms.base import Machine
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot, is_overdue

READY_WITHIN = timedelta(minutes=15)
"""How long a machine may take to join, and a node to become Ready, before it counts as broken.

cluster-autoscaler's own provision timeout. In an EKS managed node group such a machine is billed for about 15 minutes
more, in which EKS tries to drain it (containers-roadmap#1990).
"""

SLOW = timedelta(minutes=3)
"""Most GPU machines are Ready by then."""

State = Literal["usable", "coming", "broken", "taken"]


@dataclass(frozen=True, kw_only=True)
class MachineStatus:
    """One machine that exists and is not terminating, as a decision sees it.

    Attributes:
        node: Its node, once it has joined.
        state: usable: new pods can run there (a cordon of this package is about to be undone or completed, and does
            not count). coming: it is booting, or its node is briefly not Ready. broken: it has a broken GPU, or has
            not become usable in time. taken: it was cordoned externally, cluster-autoscaler is about to remove it, or
            it is in another pool.
        holders: The pods for which it must stay.
        overdue: The pods that still run there although their run's time has passed.
        is_ending: What is reserved for it ends: the cloud takes it, and it is emptied before that.
    """

    machine: Machine
    node: Node | None
    state: State
    holders: tuple[Pod, ...] = ()
    overdue: tuple[Pod, ...] = ()
    is_ending: bool = False

    @property
    def counts(self) -> bool:
        """Whether it serves demand, now or soon. A machine that only overdue pods use does not, nor one that ends."""
        return not self.is_ending and self.state in ("usable", "coming") and (bool(self.holders) or not self.overdue)

    @property
    def is_there(self) -> bool:
        """Whether the cloud has given it."""
        return self.machine.state != "requested"

    @property
    def may_go(self) -> bool:
        """Whether it may be removed, if it is not needed."""
        return not self.holders and self.state != "taken"

    @property
    def is_new(self) -> bool:
        """Whether its node joined without the pool's labels, and is in no pool yet."""
        return self.node is not None and not self.node.labelled and not self.node.other_pool

    @property
    def coming_since(self) -> datetime | None:
        """Since when it has been starting; None if it is not starting, or if unknown."""
        if self.state != "coming":
            return None
        return self.machine.launched_at if self.node is None else _not_ready_since(self.node)

    def lacks_for_long(self, now: datetime) -> bool:
        """Return True if its provisioner says that it lacks something, although it had the time to have it."""
        return self.is_there and bool(self.machine.lacks) and self.since is not None and now - self.since > SLOW

    @property
    def since(self) -> datetime | None:
        """When it was launched, as far as is known."""
        return self.machine.launched_at or (self.node.created_at if self.node else None)

    def __str__(self) -> str:
        name = f"node {self.node.name}" if self.node else f"machine {self.machine.id} (no node in the pool)"
        return f"{name} of {self.machine.group}"


def supply(snapshot: PoolSnapshot) -> tuple[MachineStatus, ...]:
    """Return the pool's live machines, group by group."""
    nodes = {node.machine: node for node in snapshot.nodes}
    pods: dict[str, list[Pod]] = {}
    for pod in snapshot.pods:
        if pod.node and pod.holds_node(snapshot.now):
            pods.setdefault(pod.node, []).append(pod)
    found = []
    for group in snapshot.groups:
        is_ending = group.reserved is not None and group.reserved.has_ended
        for machine in group.live:
            node = nodes.get(machine.id)
            on_node = pods.get(node.name, ()) if node else ()
            overdue = tuple(pod for pod in on_node if is_overdue(snapshot, pod))
            found.append(
                MachineStatus(
                    machine=machine,
                    node=node,
                    state=_state(snapshot.now, machine, node),
                    holders=tuple(pod for pod in on_node if pod not in overdue),
                    overdue=overdue,
                    is_ending=is_ending,
                )
            )
    return tuple(found)


def usable_nodes(snapshot: PoolSnapshot) -> tuple[Node, ...]:
    """Return the nodes that new pods can run on and whose machines stay."""
    return tuple(each.node for each in supply(snapshot) if each.node and each.node.usable and each.counts)


def _state(now: datetime, machine: Machine, node: Node | None) -> State:
    if node is None:
        is_late = machine.launched_at is not None and now - machine.launched_at > READY_WITHIN
        return "broken" if is_late else "coming"
    if node.autoscaler_deleting or node.other_pool or (node.cordoned and not node.cordon_mark):
        return "taken"
    if node.bad_gpu:
        return "broken"
    if node.ready:
        return "usable"
    return "broken" if now - _not_ready_since(node) > READY_WITHIN else "coming"


def _not_ready_since(node: Node) -> datetime:
    return node.ready_changed_at or node.created_at
