"""ProvisionedPlatform: nodes that Karpenter, EKS Auto Mode, GKE or cluster-autoscaler brings for pods.

Nothing is written: not to nodes, which Autopilot would refuse, and not to what the provisioner is configured by. The
pool's nodes are those with the labels that its pods select. First comes, pure, what became of the machines that
Karpenter asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.clouds import ec2_launches
from airflow_gpu_provider.clouds.base import FailureKind, Group, LaunchFailure, Machine, MachineState, Plan, Report
from airflow_gpu_provider.clouds.kubernetes.platform import ExternalMachinesPlatform
from airflow_gpu_provider.clouds.kubernetes.pool import COMPUTE_CLASS, COMPUTE_CLASS_LABEL, PROVISIONERS
from airflow_gpu_provider.cluster.api.autoscaler import check_running, read_compute_class
from airflow_gpu_provider.cluster.api.clock import ServerClock
from airflow_gpu_provider.cluster.api.karpenter_objects import list_launches, list_node_claims, list_node_pools
from airflow_gpu_provider.cluster.api.nodes import list_nodes
from airflow_gpu_provider.cluster.model.autoscaler_status import ComputeClass
from airflow_gpu_provider.cluster.model.karpenter import NO_CAPACITY, Launch, NodeClaim, NodePool
from airflow_gpu_provider.cluster.model.node import INSTANCE_TYPE_LABEL, ZONE_LABEL, Node
from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound
from airflow_gpu_provider.errors import NoProvisioner
from airflow_gpu_provider.pools.candidates import Candidate, Market

# The AWS provider calls a quota, too, a want of capacity, with EC2's codes in the message (its pkg/errors/errors.go:
# unfulfillableCapacityErrorCodes); other refusals are the reasons of claims' conditions (ToReasonMessage there).
_REFUSED = (
    "SpotSLRCreationFailed",
    "AMIAuthorizationFailure",
    "AMINotFound",
    "InstanceProfileNameInvalid",
    "SecurityGroupSubnetVPCMismatch",
    "FreeTierIneligible",
)
_MAY_BE_THE_ZONE = ("InsufficientFreeAddressesInSubnet", "Unsupported")
_MARKETS: Mapping[str, Market] = {"spot": "SPOT", "true": "SPOT"}
_MARKET_LABELS = ("karpenter.sh/capacity-type", "cloud.google.com/gke-spot")


def failure_kind(reason: str, message: str) -> FailureKind:
    """Return what a failed launch means; see `LaunchFailure`."""
    if any(code in f"{reason}: {message}" for code in _REFUSED):
        return "refused"
    of_ec2 = message if reason == NO_CAPACITY else f"{reason}: {message}"
    kind = ec2_launches.failure_kind(of_ec2)
    is_unknown = kind == "other" and not any(code in message for code in _MAY_BE_THE_ZONE)
    return "out_of_stock" if is_unknown and reason == NO_CAPACITY else kind


def failures(launches: Iterable[Launch], claims: Iterable[NodeClaim]) -> tuple[LaunchFailure, ...]:
    """Return the failed launches that events tell of, and those that are refused now, oldest first."""
    failed = [
        LaunchFailure(at=each.at, message=each.message, kind=failure_kind(each.reason, each.message))
        for each in launches
        if each.reason
    ]
    refused = [
        LaunchFailure(at=claim.created_at, message=claim.problem, kind=failure_kind("", claim.problem))
        for claim in claims
        if claim.problem
    ]
    return tuple(sorted((*failed, *refused), key=lambda each: each.at))


def newest_failure(found: Sequence[LaunchFailure], worked: Collection[datetime]) -> LaunchFailure | None:
    """Return the newest launch, if it failed, with those that failed before it since one `worked`."""
    last = max(worked, default=None)
    return LaunchFailure.newest([each for each in found if last is None or each.at > last])


def machine_of(claim: NodeClaim, group: str) -> Machine:
    state: MachineState = "running" if claim.node else "pending"
    if claim.deleting:
        state = "terminating"
    elif claim.launched_at is None:
        state = "requested"
    return Machine(
        id=claim.machine,
        group=group,
        state=state,
        launched_at=claim.launched_at or claim.created_at,
        lacks=lacks_of(claim),
        market=market_of(claim.labels),
        drains=claim.deleting and claim.launched_at is not None and not claim.ended,
    )


def lacks_of(claim: NodeClaim) -> str:
    """Return what a claim lacks before pods can use it, in Karpenter's words; empty where it says nothing."""
    return f"NodeClaim {claim.name}: {claim.lacks}" if claim.lacks else ""


def market_of(labels: Mapping[str, str]) -> Market | None:
    """Return how a machine with these labels is bought; None where they do not say it."""
    market = next((labels[name] for name in _MARKET_LABELS if name in labels), None)
    return None if market is None else _MARKETS.get(market, "ON_DEMAND")


def place_of(labelled: Iterable[Mapping[str, str]], otherwise: Candidate) -> Candidate:
    """Return where a group's machines come from, by the labels of those that are there."""
    labelled = tuple(labelled)
    zones, types = (
        {labels[name] for labels in labelled if name in labels} for name in (ZONE_LABEL, INSTANCE_TYPE_LABEL)
    )
    markets = {market for labels in labelled if (market := market_of(labels))}
    return replace(
        otherwise,
        zone=", ".join(sorted(zones)),
        instance_type=", ".join(sorted(types)),
        market=markets.pop() if len(markets) == 1 else otherwise.market,
    )


class ProvisionedPlatform(ExternalMachinesPlatform):
    """A pool whose nodes come when pods ask for them: one group that always exists, and nothing to apply."""

    @property
    def _provisioner(self) -> str:
        return self._pool.provisioner or ""

    @property
    def _who(self) -> str:
        return PROVISIONERS[self._provisioner].name

    def plan(self, nodes: int) -> Plan:
        """Check that the provisioner can bring such nodes; there is never anything to change.

        Raises:
            NoProvisioner: It has no NodePool or ComputeClass in the cluster, or none that would bring such nodes.
            AutoscalerNotRunning: cluster-autoscaler does not report.
        """
        by, notes = self._who, tuple[str, ...]()
        if self._provisioner == "cluster-autoscaler":
            check_running(self._api, self._pool.name, ServerClock(self._api).now())
        if self._pool.has_karpenter:
            usable = self._usable_node_pools()
            by += f" (NodePool {', '.join(pool.name for pool in usable)})"
            notes = (*_troubles(usable), *self._limits(usable, nodes), *_stays(usable))
        if self._provisioner == COMPUTE_CLASS:
            compute_class = self._usable_compute_class()
            by, notes = f"{by} (ComputeClass {compute_class.name})", _short_of(compute_class)
        labels = ", ".join(f"{key}={value}" for key, value in self._pool.node_selector.items())
        brought = f"{by} provisions nodes with {labels} when pods request them"
        return Plan(pool=self._pool.name, brought=(brought,), notes=notes)

    def apply(self, plan: Plan, report: Report, over_quota: Collection[str] = ()) -> None:
        """Do nothing: a plan has no changes."""

    def delete(self, report: Report) -> None:
        """Do nothing: nothing was created."""
        report(f"nodes of pool {self._pool.name} are {self._who}'s, and left to it")

    def observe(self) -> tuple[Group, ...]:
        """Return the one group: nodes with the pool's labels, and machines that are on their way to become such."""
        nodes = list_nodes(self._api, self._pool.node_selector)
        if self._provisioner == COMPUTE_CLASS:
            return (replace(self._provided(nodes, ()), issues=self._of_compute_class()),)
        if not self._pool.has_karpenter:
            return (self._provided(nodes, ()),)
        claims = self._node_claims()
        group, pools = self._provided(nodes, claims), self._own(list_node_pools(self._api) or ())
        usable = [pool for pool in pools if not self._refusal(pool)]
        launches = [each for each in list_launches(self._api) if any(each.is_of(pool.name) for pool in usable)]
        failed = failures(launches, claims)
        worked = [
            *(each.at for each in launches if not each.reason),
            *(claim.launched_at for claim in claims if claim.launched_at),
            *(node.created_at for node in nodes),
        ]
        return (
            replace(
                group,
                failures=failed,
                launch_failure=newest_failure(failed, worked),
                issues=_troubles(usable)
                if usable
                else (f"no NodePool would provision nodes ({self._why_none(pools)})",),
            ),
        )

    def _provided(self, nodes: Sequence[Node], claims: Sequence[NodeClaim]) -> Group:
        """Return the group of these nodes, and of the machines that are to become such."""
        name = self._pool.name
        machines = {
            node.machine: Machine(
                id=node.machine,
                group=name,
                state="running",
                launched_at=node.created_at,
                market=market_of(node.labels),
            )
            for node in nodes
        }
        machines |= {claim.machine: machine_of(claim, name) for claim in claims}
        group = self._group(machines)
        labels = [*(node.labels for node in nodes), *(claim.labels for claim in claims)]
        return replace(group, candidate=place_of(labels, group.candidate), provisioner=self._who)

    # -- GKE's ComputeClasses ------------------------------------------------------------------------------------

    @property
    def _compute_class(self) -> str:
        return self._pool.node_selector[COMPUTE_CLASS_LABEL]

    def _usable_compute_class(self) -> ComputeClass:
        found = read_compute_class(self._api, self._compute_class)
        if found and not found.refused:
            return found
        if found:
            what, fix = f"GKE adds no nodes by ComputeClass {found.name}: {found.refused}", "Correct it"
        else:
            what, fix = f"the cluster has no ComputeClass {self._compute_class}", "Create it"
        raise NoProvisioner(
            f"Pool {self._pool.name}: {what.removesuffix('.')}.",
            f"{fix} (`kubectl describe computeclass`), or name another one in the pool's node_selector_labels;"
            ' a cluster in Autopilot mode wants provisioner="autopilot".',
            pool=self._pool.name,
            compute_class=self._compute_class,
        )

    def _of_compute_class(self) -> tuple[str, ...]:
        """Return what keeps GKE from adding a node by the pool's ComputeClass now."""
        found = read_compute_class(self._api, self._compute_class)
        if found is None:
            return (f"ComputeClass {self._compute_class} does not exist any more",)
        return (f"ComputeClass {found.name}: {found.refused}",) if found.refused else _short_of(found)

    # -- Karpenter's and Auto Mode's NodePools -----------------------------------------------------------------

    def _usable_node_pools(self) -> list[NodePool]:
        found = self._node_pools()
        usable = [pool for pool in found if not self._refusal(pool)]
        if not usable:
            raise NoProvisioner(
                f"Pool {self._pool.name}: no NodePool of {self._who} would provision its nodes"
                f" ({self._why_none(found)}).",
                self._how_to_have_one(found),
                pool=self._pool.name,
            )
        return usable

    def _node_pools(self) -> list[NodePool]:
        found = list_node_pools(self._api) or ()
        if own := self._own(found):
            return own
        others = ", ".join(pool.name for pool in found)
        raise NoProvisioner(
            f"Pool {self._pool.name}: {self._who} has no NodePool (karpenter.sh/v1) in the cluster"
            f"{f'; {others} is of another kind' if others else ''}.",
            'Install it, or set provisioner="karpenter" or "auto-mode", whichever the cluster has.',
            pool=self._pool.name,
        )

    def _own(self, pools: Iterable[NodePool]) -> list[NodePool]:
        """Return those of its own kind."""
        wants_auto_mode = self._provisioner == "auto-mode"
        return [pool for pool in pools if pool.is_auto_mode == wants_auto_mode]

    def _refusal(self, pool: NodePool) -> str:
        return pool.refuses(self._pool.node_selector, self._pool.parsed_taints)

    def _node_claims(self) -> tuple[NodeClaim, ...]:
        try:
            return list_node_claims(self._api, self._pool.node_selector)
        except ObjectNotFound:
            return ()  # the provisioner was removed after Ensure had seen it: its machines are what is left as nodes

    def _how_to_have_one(self, pools: Sequence[NodePool]) -> str:
        selector, tolerated = self._pool.node_selector, self._pool.parsed_taints
        ignored = [pool.name for pool in pools if pool.ignored and not pool.mismatch(selector, tolerated)]
        if ignored:
            why = " ".join(pool.ignored for pool in pools if pool.name in ignored)
            if "it is static" in why:
                return "Take replicas out of that NodePool, or select another by node_selector_labels."
            if "no controller" in why:
                return f"Start {self._who}: no controller has looked at NodePool {', '.join(ignored)}."
            return f"Make NodePool {', '.join(ignored)} Ready again: see `kubectl describe nodepool`."
        return (
            "Create a NodePool with GPU instance types, these labels and taints, or correct the pool's"
            " node_selector_labels and taints."
        )

    def _why_none(self, pools: Sequence[NodePool]) -> str:
        return "; ".join(f"{pool.name}: {self._refusal(pool)}" for pool in pools) or "there is none any more"

    def _limits(self, usable: Sequence[NodePool], nodes: int) -> Iterator[str]:
        """Yield that the NodePools' limits allow fewer GPUs than so many nodes have."""
        allowed = [pool.gpus_allowed for pool in usable if pool.gpus_allowed is not None]
        wanted = nodes * (self._pool.gpus_per_node or 1)
        if len(allowed) == len(usable) and 0 < sum(allowed) < wanted:
            names = ", ".join(pool.name for pool in usable)
            yield f"the limits of NodePool {names} allow {sum(allowed)} {GPU_RESOURCE}; {nodes} nodes have {wanted}"


def _short_of(compute_class: ComputeClass) -> tuple[str, ...]:
    """Return which priorities of a ComputeClass bring no node now, and whether none does."""
    name = f"ComputeClass {compute_class.name}"
    none_left = (f"no priority of {name} brings nodes now",) if compute_class.is_out else ()
    return (*(f"{name}, {each}" for each in compute_class.refused_priorities), *none_left)


def _troubles(pools: Sequence[NodePool]) -> tuple[str, ...]:
    """Return what keeps NodePools from bringing another node, although they could."""
    full = (f"NodePool {pool.name} has no room in its limits ({pool.used_up})" for pool in pools if pool.used_up)
    sick = (
        f"machines of NodePool {pool.name} do not launch or register ({pool.unhealthy})"
        for pool in pools
        if pool.unhealthy
    )
    return (*full, *sick)


def _stays(pools: Sequence[NodePool]) -> Iterator[str]:
    for pool in pools:
        if not pool.consolidates:
            yield (
                f"NodePool {pool.name} removes no idle node (consolidateAfter: Never): idle nodes cost money until"
                " their NodeClaims are deleted"
            )
