"""What a sandbox needs from a managed Kubernetes and its cloud, EKS or GKE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from gpu_sandbox.authenticator import Identity
    from gpu_sandbox.autoscaler import NodeGroups
    from gpu_sandbox.clock import Clock
    from gpu_sandbox.control_plane import ControlPlane
    from gpu_sandbox.faults import Faults
    from gpu_sandbox.machines import Machines
    from gpu_sandbox.nodes import Image, NodeSpec
    from gpu_sandbox.pace import Pace

Platform = Literal["eks", "gke"]
SYSTEM_NODE = "sandbox-system"


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """What a cluster of either platform is given; no region, zones or timings: the platform's, or the pace's."""

    name: str
    region: str | None
    zones: Sequence[str] | None
    faults: Faults
    timings: Any
    pace: Pace
    seed: int
    clock: Clock


class ManagedCluster(Protocol):
    """An EKS or GKE cluster, with its account. No cloud library is imported before `start`."""

    region: str

    @property
    def zones(self) -> Sequence[str]: ...

    @property
    def admission_plugins(self) -> Sequence[str]:
        """Those of the API server that this platform enables."""

    @property
    def critical_pods_need_quota(self) -> bool:
        """Whether pods of Kubernetes' own priority classes need a ResourceQuota in their namespace."""

    @property
    def shuts_down_at_notice(self) -> bool:
        """Whether kubelets end their pods when a spot instance has its notice."""

    @property
    def drains_only_ready_nodes(self) -> bool:
        """Whether a drain of a node that is not Ready goes on until the cloud gives it up, pods or not."""

    def start(self, *, control_plane: ControlPlane, machines: Machines) -> None:
        """Start the cloud, with the cluster in it. The control plane may still be starting."""

    def stop(self) -> None: ...

    def identify(self, token: str) -> Identity | None:
        """Return the identity behind this token. RuntimeError before the cloud has started."""

    def node_joined(self, instance_id: str) -> None: ...

    def complete_drain(self, instance_id: str) -> None: ...

    def interrupt_spot(self, instance: Any) -> None:
        """Give a spot instance its notice. ValueError if it does not run."""

    def recommend_rebalance(self, instance: Any) -> None:
        """Report a spot instance as at risk. ValueError if it does not run, or the cloud has no such report."""

    def upgrade_nodes(self, group: str) -> bool:
        """Upgrade a group's nodes as the cloud does by itself; False if it leaves the group alone.

        ValueError if there is no such group, or the cloud upgrades none by itself.
        """

    def node_spec(self, instance: Any, *, version: str) -> NodeSpec:
        """What an instance's kubelet would register."""

    def system_node(self, *, version: str) -> NodeSpec:
        """The Node without GPUs that always exists."""

    def images(self) -> Sequence[Image]:
        """The platform's own image references and what they run."""

    def groups(self) -> list[dict[str, Any]]:
        """Its groups of machines: name, nodegroup, desired, max, and instances with instance_id and state."""

    def objects(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """What the platform's clusters have from the start, each with the path of its collection."""

    def node_groups(self) -> NodeGroups:
        """The groups that an autoscaler in the cluster manages."""

    def env(self) -> dict[str, str]:
        """The variables by which clients reach this cloud, without those for the cluster itself."""
