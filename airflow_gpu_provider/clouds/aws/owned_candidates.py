"""OwnedCandidates: where node groups of this package's can be: subnets, what EC2 offers there, and what is reserved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from airflow_gpu_provider.clouds.aws import reservations
from airflow_gpu_provider.clouds.aws.cluster import EksCluster
from airflow_gpu_provider.clouds.aws.network import Subnet, offered_types, zone_subnets
from airflow_gpu_provider.clouds.aws.reservations import Reservation
from airflow_gpu_provider.clouds.base import Group
from airflow_gpu_provider.clouds.group_checks import Offers, compare_offers
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import Candidate


@dataclass(frozen=True, kw_only=True)
class ReservedNow:
    """The reservations of a pool that EC2 knew at a moment of its own time. Pure."""

    ids: tuple[str, ...]
    found: Mapping[str, Reservation]
    at: datetime

    @property
    def notes(self) -> tuple[str, ...]:
        """What a plan says of them."""
        return reservations.notes(self.ids, self.found, self.at)

    def judge(self, groups: Iterable[Group]) -> tuple[Group, ...]:
        """Return groups with what their reservations let them have."""
        groups = tuple(groups)
        targets = {each.name: of for each in groups if (of := each.candidate.reservation)}
        return reservations.judge(groups, targets, self.found, self.at)

    def order(self, candidates: Iterable[Candidate], there: Iterable[Group]) -> tuple[Group, ...]:
        """Return the candidates' groups, judged, those to be created too; none without reservations."""
        if not self.ids:
            return ()
        by_name = {group.name: group for group in there}
        return self.judge(
            by_name.get(each.group) or Group(name=each.group, candidate=each, status="creating", desired=0, max_size=0)
            for each in candidates
        )

    def is_over(self, candidate: Candidate) -> bool:
        """Return True if a candidate's reservation never gives a machine again."""
        of = candidate.reservation
        return bool(of) and reservations.reserved(of, self.found, self.at).is_over

    def open(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the candidates that can have machines now; all where none can."""
        candidates = [*candidates]
        closed = [
            each
            for each in candidates
            if each.reservation and reservations.reserved(each.reservation, self.found, self.at).why_not
        ]
        return [each for each in candidates if each not in closed] or candidates


class OwnedCandidates:
    """The candidates of a pool whose node groups this package makes."""

    def __init__(self, eks: EksCluster) -> None:
        self._eks = eks
        self._pool = eks.pool

    @cached_property
    def subnets(self) -> dict[str, Subnet]:
        if self._pool.subnets:
            return zone_subnets(self._eks.clients.ec2, self._pool, of_nodes=(), of_cluster=())
        return zone_subnets(
            self._eks.clients.ec2,
            self._pool,
            of_nodes={subnet for group in self._eks.groups.neighbours for subnet in group.get("subnets", ())},
            of_cluster=self._eks.description["resourcesVpcConfig"]["subnetIds"],
            has_ipv6_pods=self._eks.description.get("kubernetesNetworkConfig", {}).get("ipFamily") == "ipv6",
        )

    @cached_property
    def _offers(self) -> Offers:
        if self._pool.capacity_types == ("RESERVED",):
            return Offers(candidates=(), notes=())
        offered = offered_types(self._eks.clients.ec2, self._pool, self.subnets)
        return compare_offers(self._pool, self._pool.candidates(self.subnets), offered, cloud="EC2")

    @cached_property
    def _known(self) -> Mapping[str, Reservation]:
        """The reservations as first read: their types and zones do not change."""
        return self.reserved_now().found

    def reserved_now(self) -> ReservedNow:
        if not self._pool.reservations:
            return ReservedNow(ids=(), found={}, at=datetime.min.replace(tzinfo=UTC))
        ec2 = self._eks.clients.ec2
        found = reservations.read(ec2, self._pool.reservations)
        return ReservedNow(ids=tuple(self._pool.reservations), found=found, at=ec2.now())

    def all(self) -> tuple[Candidate, ...]:
        """Return the candidates, the most preferred first.

        Raises:
            PoolSpecError: EC2 offers none of the pool's types in its zones, or all is to be reserved and nothing is.
        """
        by_market = {"RESERVED": [*self._reserved()]}
        for each in self._offers.candidates:
            by_market.setdefault(each.market, []).append(each)
        found = tuple(each for market in self._pool.capacity_types for each in by_market.get(market, ()))
        if not found:
            raise PoolSpecError(
                f"Pool {self._pool.name}: none of its reservations is of its types and zones"
                f" ({'; '.join(self._misfits()) or 'EC2 knows none of them'}).",
                'Name others in reservations, or add "ON_DEMAND" or "SPOT" to capacity_types.',
            )
        return found

    def useful(self, reserved: ReservedNow, groups: Collection[str]) -> list[Candidate]:
        """Return the candidates but for reservations that are over, where there is no group of them yet."""
        return [each for each in self.all() if each.group in groups or not reserved.is_over(each)]

    def _reserved(self) -> list[Candidate]:
        named = (self._known[id_] for id_ in self._pool.reservations if id_ in self._known)
        return [
            self._pool.reserved_candidate(each.id, each.zone, each.instance_type, each.market)
            for each in named
            if not self._why_not(each)
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the pool cannot use, and why."""
        return (*self._offers.notes, *self._misfits())

    def _misfits(self) -> list[str]:
        return [f"{each.id} is left out: {why}" for each in self._known.values() if (why := self._why_not(each))]

    def _why_not(self, reservation: Reservation) -> str:
        if reservation.instance_type not in self._pool.instance_types:
            return f"its type {reservation.instance_type} is not one of the pool's"
        if reservation.zone not in self.subnets:
            return f"the pool has no subnet in its zone {reservation.zone}"
        return reservation.mismatch

    def placement_group(self, candidate: Candidate) -> str:
        """Return the placement group in which a candidate's reservation was made; empty for none."""
        reservation = self._known.get(candidate.reservation) if candidate.reservation else None
        return reservation.placement_group if reservation else ""
