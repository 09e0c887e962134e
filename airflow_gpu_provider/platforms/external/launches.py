"""What became of the machines that Karpenter asked for, as groups tell it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from airflow_gpu_provider.cluster.karpenter import NO_CAPACITY, Launch, NodeClaim
from airflow_gpu_provider.cluster.nodes import INSTANCE_TYPE_LABEL, ZONE_LABEL
from airflow_gpu_provider.platforms.base import FailureKind, LaunchFailure, Machine, MachineState
from airflow_gpu_provider.pools.candidates import Candidate, Market

# The AWS provider calls a quota, too, a want of capacity, with EC2's codes in the message (its pkg/errors/errors.go:
# unfulfillableCapacityErrorCodes); other refusals are the reasons of claims' conditions (ToReasonMessage there).
_KINDS: Mapping[FailureKind, Sequence[str]] = {
    "out_of_stock": ("InsufficientInstanceCapacity", "UnfulfillableCapacity", "ReservationCapacityExceeded"),
    "quota": (
        "VcpuLimitExceeded",
        "VCPULimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "SpotQuotaExceeded",
        "MaxFleetCountExceeded",
        "FleetQuotaExceeded",
    ),
    "refused": (
        "ServiceLinkedRoleCreationNotPermitted",
        "SpotSLRCreationFailed",
        "Unauthorized",
        "AMIAuthorizationFailure",
        "AMINotFound",
        "InvalidAMIID",
        "InstanceProfileNameInvalid",
        "SecurityGroupSubnetVPCMismatch",
        "UserDataSizeLimitExceeded",
        "FreeTierIneligible",
    ),
    "other": ("InsufficientFreeAddressesInSubnet", "Unsupported"),
}
_MARKETS: Mapping[str, Market] = {"spot": "SPOT", "true": "SPOT"}
_MARKET_LABELS = ("karpenter.sh/capacity-type", "cloud.google.com/gke-spot")


def failure_kind(reason: str, message: str) -> FailureKind:
    """Return what a failed launch means; see `LaunchFailure`."""
    text = f"{reason}: {message}"
    found = (kind for kind, codes in _KINDS.items() if any(code in text for code in codes))
    return next(found, "out_of_stock" if reason == NO_CAPACITY else "other")


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
    in_a_row = [each for each in found if last is None or each.at > last]
    return replace(in_a_row[-1], earlier=tuple(each.at for each in in_a_row[:-1])) if in_a_row else None


def machine_of(claim: NodeClaim, group: str) -> Machine:
    """Return the machine that a claim is for."""
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
