"""What the autoscaler sees of a group of machines, whichever cloud has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Literal, Protocol

from gpu_sandbox.nodes.spec import TaintLike

Resources = Mapping[str, Decimal]


@dataclass(frozen=True, kw_only=True)
class NodeTemplate:
    """What a group's next node would be."""

    labels: Mapping[str, str]
    taints: Sequence[TaintLike]
    allocatable: Resources


@dataclass(frozen=True, kw_only=True)
class FailedLaunch:
    """Why the cloud gives a group no more machines, in cluster-autoscaler's words."""

    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class SharedLimit:
    """How many nodes the groups of one pool may have together."""

    pool: str
    max_size: int


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """A group as the cloud showed it.

    `machines` are the last parts of their nodes' providerIDs; `options` are cluster-autoscaler's, set for this
    group alone (`scaledownunneededtime`: `10m0s`); `shared` is what it shares a limit with, and that limit; a `queued`
    one has nodes only by ProvisioningRequests.
    """

    name: str
    min_size: int
    max_size: int
    target: int
    machines: frozenset[str]
    template: NodeTemplate
    failed: FailedLaunch | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    shared: SharedLimit | None = None
    queued: bool = False

    def without(self, machine: str) -> NodeGroup:
        return replace(self, target=self.target - 1, machines=self.machines - {machine})


@dataclass(frozen=True, kw_only=True)
class ResizeRequest:
    """Nodes that come all at once. `error` is why the last attempt failed."""

    state: Literal["ACCEPTED", "PROVISIONING", "SUCCEEDED", "FAILED", "CANCELLED"]
    error: FailedLaunch | None = None


class ResizeRequests(Protocol):
    """Those of Compute Engine, which the nodes of `queued` groups come by."""

    def all(self) -> Mapping[str, ResizeRequest]:
        """By name."""

    def create(self, name: str, *, group: str, nodes: int, run_seconds: float) -> FailedLaunch | None:
        """Have a group grow by so many nodes, all at once; why it is refused. ValueError if there is no such group."""

    def withdraw(self, name: str) -> None:
        """Cancel it if it waits, and delete it."""


class NodeGroups(Protocol):
    """The groups of one cluster that the autoscaler is to take care of, and what it may do to them."""

    similar_despite: frozenset[str]
    """Labels that two groups of one kind may differ in."""

    @property
    def resize_requests(self) -> ResizeRequests | None:
        """None where no group can be `queued`."""

    def look(self) -> list[NodeGroup]:
        """All of them, by name."""

    def set_size(self, name: str, size: int) -> None:
        """ValueError if the cloud refuses."""

    def give_up_missing(self, name: str) -> int:
        """Stop asking for machines that the cloud does not have; returns the size that is left."""

    def delete(self, name: str, machine: str) -> None:
        """End exactly this machine and lower the size by it. ValueError if the cloud refuses."""
