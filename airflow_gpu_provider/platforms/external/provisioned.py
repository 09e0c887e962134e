"""ProvisionedPlatform: nodes that Karpenter, EKS Auto Mode, GKE Autopilot or cluster-autoscaler brings for pods.

Nothing is written: not to nodes, which Autopilot would refuse, and not to what the provisioner is configured by. The
pool's nodes are those with the labels that its pods select.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.autoscaler_status import check_running
from airflow_gpu_provider.cluster.clock import ServerClock
from airflow_gpu_provider.cluster.karpenter import (
    FailedLaunch,
    NodeClaim,
    NodePool,
    list_failed_launches,
    list_node_claims,
    list_node_pools,
)
from airflow_gpu_provider.errors import NoProvisioner
from airflow_gpu_provider.platforms.base import Group, LaunchFailure, Machine, MachineState, Plan, Say
from airflow_gpu_provider.platforms.external.platform import ExternalMachinesPlatform

NAMES = {
    "karpenter": "Karpenter",
    "auto-mode": "EKS Auto Mode",
    "autopilot": "GKE Autopilot",
    "cluster-autoscaler": "cluster-autoscaler",
}
_WITH_NODE_POOLS = ("karpenter", "auto-mode")


class ProvisionedPlatform(ExternalMachinesPlatform):
    """A pool whose nodes come when pods ask for them: one group that always exists, and nothing to apply."""

    @property
    def _provisioner(self) -> str:
        return self._pool.provisioner or ""

    @property
    def _who(self) -> str:
        return NAMES[self._provisioner]

    def plan(self, nodes: int) -> Plan:
        """Check that the provisioner can bring such nodes; there is never anything to change.

        Raises:
            NoProvisioner: It has no NodePool in the cluster, or none that would bring such nodes.
            AutoscalerNotRunning: cluster-autoscaler does not report.
        """
        by = self._who
        if self._provisioner == "cluster-autoscaler":
            check_running(self._api, self._pool.name, ServerClock(self._api).now())
        if self._provisioner in _WITH_NODE_POOLS:
            by += f" (NodePool {', '.join(pool.name for pool in self._usable_node_pools())})"
        labels = ", ".join(f"{key}={value}" for key, value in self._pool.node_selector.items())
        return Plan(pool=self._pool.name, notes=(f"{by} brings nodes with {labels} when pods ask for them",))

    def apply(self, plan: Plan, say: Say, over_quota: Collection[str] = ()) -> None:
        """Do nothing: a plan has no changes."""

    def delete(self, say: Say) -> None:
        """Do nothing: nothing was created."""
        say(f"nodes of pool {self._pool.name} are {self._who}'s, and left to it")

    def observe(self) -> tuple[Group, ...]:
        """Return the one group: nodes with the pool's labels, and machines that are on their way to become such."""
        machines, failure = self._machines(), None
        if self._provisioner in _WITH_NODE_POOLS:
            claims = self._node_claims()
            machines |= {claim.machine: _machine(claim, self._pool.name) for claim in claims}
            failure = self._launch_failure(claims)
        return (replace(self._group(machines), provisioner=self._who, launch_failure=failure),)

    # -- Karpenter's and Auto Mode's NodePools -----------------------------------------------------------------

    def _usable_node_pools(self) -> list[NodePool]:
        found = self._node_pools()
        refusals = {pool.name: self._refusal(pool) for pool in found}
        usable = [pool for pool in found if not refusals[pool.name]]
        if not usable:
            why = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
            raise NoProvisioner(
                f"Pool {self._pool.name}: no NodePool of {self._who} would bring its nodes ({why}).",
                "Make a NodePool with GPU instance types, these labels and taints, or correct the pool's"
                " node_selector_labels and taints.",
                pool=self._pool.name,
            )
        return usable

    def _node_pools(self) -> list[NodePool]:
        found = list_node_pools(self._api) or ()
        wants_auto_mode = self._provisioner == "auto-mode"
        own = [pool for pool in found if pool.is_auto_mode == wants_auto_mode]
        if own:
            return own
        others = ", ".join(pool.name for pool in found)
        raise NoProvisioner(
            f"Pool {self._pool.name}: {self._who} has no NodePool (karpenter.sh/v1) in the cluster"
            f"{f'; {others} is of another kind' if others else ''}.",
            'Install it, or say provisioner="karpenter" or "auto-mode", whichever brings nodes there.',
            pool=self._pool.name,
        )

    def _refusal(self, pool: NodePool) -> str:
        return pool.refuses(self._pool.node_selector, self._pool.parsed_taints)

    def _node_claims(self) -> tuple[NodeClaim, ...]:
        try:
            return list_node_claims(self._api, self._pool.node_selector)
        except ObjectNotFound:
            return ()  # the provisioner was removed after Ensure had seen it: its machines are what is left as nodes

    def _launch_failure(self, claims: tuple[NodeClaim, ...]) -> LaunchFailure | None:
        """Return the newest failed launch, unless a later one worked."""
        stuck = [
            FailedLaunch(claim=claim.name, at=claim.created_at, message=claim.problem, out_of_stock=False)
            for claim in claims
            if claim.problem
        ]
        names = [pool.name for pool in list_node_pools(self._api) or () if not self._refusal(pool)]
        told = [each for each in list_failed_launches(self._api) if any(each.is_of(name) for name in names)]
        newest = max((*told, *stuck), key=lambda each: each.at, default=None)
        if newest is None or any(claim.launched_at and claim.launched_at > newest.at for claim in claims):
            return None
        message = f"NodeClaim {newest.claim}: {newest.message}"
        return LaunchFailure(at=newest.at, message=message, kind="out_of_stock" if newest.out_of_stock else "other")


def _machine(claim: NodeClaim, group: str) -> Machine:
    state: MachineState = "running" if claim.has_node else "pending"
    if claim.deleting:
        state = "terminating"
    return Machine(id=claim.machine, group=group, state=state, launched_at=claim.launched_at or claim.created_at)
