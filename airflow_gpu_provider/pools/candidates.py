"""Where a pool can get machines, and which of these places it prefers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from airflow_gpu_provider.pools.allowed import Allowed

Market = Literal["ON_DEMAND", "SPOT", "RESERVED", "CAPACITY_BLOCK", "INTERRUPTIBLE_CAPACITY_RESERVATION"]
"""The last three are reserved: RESERVED machines are billed as those on demand, those of a block are paid ahead."""

MARKETS: tuple[Market, ...] = get_args(Market)


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
