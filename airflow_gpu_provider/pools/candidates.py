"""Where a pool can get machines, which of these places it prefers, and what would let it have more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from airflow_gpu_provider.pools.allowed import Allowed

if TYPE_CHECKING:
    from airflow_gpu_provider.pools.gpu_pool import GpuPool

Market = Literal["ON_DEMAND", "SPOT", "RESERVED", "CAPACITY_BLOCK", "INTERRUPTIBLE_CAPACITY_RESERVATION"]
"""The last three are reserved: RESERVED machines are billed as those on demand, those of a block are paid ahead."""

MARKETS: tuple[Market, ...] = get_args(Market)

PREEMPTIBLE: Final = "PREEMPTIBLE"
"""A spec's other word for SPOT: Compute Engine's older kind, at the same price, which ends after 24 hours and takes no
end of its own ("Preemptible VM instances"). Its machines are spot here."""


def markets_of(pool: GpuPool) -> tuple[Market, ...]:
    """Return the markets that a (rendered) spec names, in order of preference; empty where it names none."""
    named = getattr(pool, "capacity_types", ())
    return tuple(dict.fromkeys("SPOT" if name == PREEMPTIBLE else name for name in named))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One place where a pool can get machines: a node group in one zone, of one type, on one market."""

    group: str
    zone: str
    instance_type: str
    market: Market
    reservation: str = ""
    """The cloud's name of what its machines are reserved by; empty where they are not, or the group says so itself."""

    def __str__(self) -> str:
        return f"{self.machine} in {self.zone}" if self.zone else self.machine

    @property
    def is_of_one_zone(self) -> bool:
        """Return False for an external group over several zones: the cloud chooses in which of them a machine comes."""
        return "," not in self.zone

    @property
    def machine(self) -> str:
        """For people: its machine type and market, like "g6.xlarge on-demand"."""
        return f"{self.instance_type or 'machine'} {self.market.lower().replace('_', '-')}"


@dataclass(frozen=True, kw_only=True)
class Preferences:
    """What a pool's machines may be, each in order of preference; `zones` is empty where the spec names none.

    Which machines `reservations` are of, the cloud alone knows: candidates of the market RESERVED are not listed.
    """

    markets: Sequence[Market]
    types: Sequence[str]
    zones: Sequence[str]
    reservations: Sequence[str] = ()

    def candidates(self, zones: Iterable[str], group_name: Callable[[str, str, Market], str]) -> tuple[Candidate, ...]:
        """Return the candidates over `zones`, the most preferred first; zones vary first, then types, then markets.

        Args:
            group_name: Returns the group's name for a zone, a machine type and a market.
        """
        zones = tuple(zones)
        return tuple(
            Candidate(group=group_name(zone, name, market), zone=zone, instance_type=name, market=market)
            for market in self.markets
            if market != "RESERVED"
            for name in self.types
            for zone in zones
        )

    def include(self, candidate: Candidate) -> bool:
        """Return True if the spec still wants machines there; a group of an earlier spec may be elsewhere."""
        is_zone_wanted = not self.zones or candidate.zone in self.zones
        is_reserved = candidate.reservation in self.reservations if candidate.reservation else True
        is_market_wanted = _market(candidate) in self.markets and is_reserved
        return candidate.instance_type in self.types and is_market_wanted and is_zone_wanted

    def allowed(self, manage: str, labels: Mapping[str, str]) -> Allowed:
        """Return what they allow the nodes to be: the markets of external groups are the groups' own."""
        markets = self.markets if manage == "full" else ()
        return Allowed.of(types=self.types, markets=markets, zones=self.zones, labels=labels)

    def rank(self, candidate: Candidate) -> tuple[Any, ...]:
        """Return a key that sorts candidates in order of preference; what the spec does not name comes last."""
        return (
            _index(self.markets, _market(candidate)),
            _index(self.reservations, candidate.reservation),
            _index(self.types, candidate.instance_type),
            _index(self.zones, candidate.zone),
            candidate.zone,
        )


def _market(candidate: Candidate) -> str:
    """Return what a spec calls the market of a candidate: all that is reserved is RESERVED."""
    return "RESERVED" if candidate.reservation else candidate.market


def _index(order: Sequence[str], value: str) -> int:
    return order.index(value) if value in order else len(order)


# -- the advice of errors about machines that lack, in the words of the pool's own spec ---------------------------

_OF_NODE_POOLS = (
    "Allow its NodePool more: other types, zones or capacity types in its requirements, higher limits;"
    " or add a NodePool with the same labels"
)
_OF_PROVISIONERS = {
    "karpenter": _OF_NODE_POOLS,
    "auto-mode": _OF_NODE_POOLS,
    "autopilot": "Select GPUs that more machines have, or another zone or capacity, by node_selector_labels",
    "compute-class": "Give its ComputeClass more priorities: other machine types, zones, reservations or spot",
    "cluster-autoscaler": "Add groups to cluster-autoscaler whose nodes have these labels, or a higher maximum size",
}
_OF_RESERVATIONS = "Enlarge the reservation that reservation_affinity names, or free machines of it"
_OF_SPECS = {
    "eks": "Add zones, instance_types or capacity_types to the pool",
    "gke": "Add node_locations, machine_types or capacity_types to the pool",
    "kubernetes": "Add nodes to the pool",
}
_OF_OTHERS_GROUPS = {
    "eks": "Name more groups in the pool's node_groups or asg_names",
    "gke": "Name more of the cluster's node pools in the pool's node_pools",
}


def how_to_widen(pool: GpuPool) -> str:
    """Return what to do so that more machines can be the pool's: the beginning of a sentence."""
    provisioner = getattr(pool, "provisioner", None)
    if provisioner:
        return _OF_PROVISIONERS[provisioner]
    if getattr(pool, "is_reserved", False):
        return _OF_RESERVATIONS
    return (_OF_OTHERS_GROUPS if pool.manage == "scale" else _OF_SPECS)[pool.kind]
