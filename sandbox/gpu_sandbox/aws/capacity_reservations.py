"""EC2's Capacity Reservations: on-demand ones and Capacity Blocks, whose states follow the clock. Nobody buys one here.

The fields and states are botocore's `CapacityReservation`. The rest is of EC2's user guide, "Capacity Blocks for ML",
"Launch instances using Capacity Blocks" and "Use Capacity Reservations":

- a launch has to target the reservation, in its zone and by its type; that of a block has MarketType capacity-block,
  and that of an on-demand one must not (awslabs/awsome-distributed-ai#1263);
- an instance takes one of the count until it is terminated, not until it shuts down;
- the instances of a block are ended from 30 minutes before it ends, those of an on-demand reservation run on;
- one that was made in a placement group takes launches into that group alone (awslabs/awsome-distributed-ai#1258), one
  of another platform or tenancy, or an interruptible one, none of a plain launch;
- neither counts against the quotas of running instances when it is launched: the reservation itself has.

Reservations that are open to launches which do not target them are not played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from moto.core.responses import ActionResult, BaseResponse
from moto.ec2.exceptions import EC2ClientError

from gpu_sandbox.clock import Clock

if TYPE_CHECKING:
    from moto.ec2.models.instances import Instance as Ec2Instance

Kind = Literal["default", "capacity-block"]
Refusal = tuple[str, str]

BLOCK_ENDS_BEFORE = timedelta(minutes=30)
"""How long before the end of a block EC2 begins to end its instances; for UltraServers it is twice as long."""

TAKEN_BY_BLOCK = "Server.CapacityBlockEnding: The Capacity Block of the instance is about to end"
"""Why an instance of a block ended. AWS documents no code for it: this one is the sandbox's own."""

_MARKETS: Mapping[Kind, str] = {"default": "on-demand", "capacity-block": "capacity-block"}
_FILTERS = {"state": "State", "instance-type": "InstanceType", "availability-zone": "AvailabilityZone"}


@dataclass(kw_only=True)
class CapacityReservation:
    """One reservation. `state` is that by the clock, unless `held` says another."""

    id: str
    kind: Kind
    instance_type: str
    zone: str
    total: int
    created: datetime
    start: datetime
    end: datetime | None = None
    held: str = ""
    also: Mapping[str, Any] = field(default_factory=dict)
    """More of botocore's fields, or others than those of a plain one."""

    def state(self, now: datetime) -> str:
        if self.held:
            return self.held
        if now < self.start:
            return "scheduled"
        return "active" if self.end is None or now < self.end else "expired"

    def takes(self, placement_group: str) -> bool:
        """Whether it takes a plain Linux machine that is launched into this placement group, or into none."""
        made_in = str(self.also.get("PlacementGroupArn", "")).rpartition("/")[2]
        plain = {"InstancePlatform": "Linux/UNIX", "Tenancy": "default", "Interruptible": False}
        is_plain = all(self.also.get(name, value) == value for name, value in plain.items())
        is_launchable = self.also.get("LaunchStatus") != "unlaunchable"
        return is_plain and is_launchable and (not made_in or made_in == placement_group)

    @property
    def instances_end_at(self) -> datetime | None:
        """When EC2 ends its instances, and launches no more; None for those of an on-demand one, which run on."""
        return self.end - BLOCK_ENDS_BEFORE if self.end and self.kind == "capacity-block" else None

    def describe(self, now: datetime, *, used: int, account_id: str, region: str) -> dict[str, Any]:
        """DescribeCapacityReservations' words for it."""
        state = self.state(now)
        return {
            "CapacityReservationId": self.id,
            "OwnerId": account_id,
            "CapacityReservationArn": f"arn:aws:ec2:{region}:{account_id}:capacity-reservation/{self.id}",
            "InstanceType": self.instance_type,
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": self.zone,
            "Tenancy": "default",
            "TotalInstanceCount": self.total,
            "AvailableInstanceCount": max(0, self.total - used) if state == "active" else 0,
            "EbsOptimized": True,
            "State": state,
            "StartDate": self.start,
            **({"EndDate": self.end} if self.end else {}),
            "EndDateType": "limited" if self.end else "unlimited",
            "InstanceMatchCriteria": "targeted",
            "CreateDate": self.created,
            "ReservationType": self.kind,
            "Tags": [],
            **self.also,
        }


class CapacityReservations:
    """Those of an account in one region. `instances` are the account's."""

    def __init__(self, instances: Callable[[], Iterable[Ec2Instance]], clock: Clock) -> None:
        self._instances = instances
        self._clock = clock
        self._by_id: dict[str, CapacityReservation] = {}

    def put(self, reservation: CapacityReservation) -> None:
        """Have it there from now on."""
        self._by_id[reservation.id] = reservation

    def hold(self, id_: str, state: str) -> None:
        """Put it into a state that the clock does not end. KeyError if there is none."""
        self._by_id[id_].held = state

    def find(self, id_: str) -> CapacityReservation | None:
        return self._by_id.get(id_)

    def all(self) -> list[CapacityReservation]:
        return list(self._by_id.values())

    def used(self, id_: str) -> int:
        return sum(instance.state != "terminated" for instance in self._of(id_))

    def refusal(
        self, id_: str, *, zone: str, instance_type: str, market: str, placement_group: str = ""
    ) -> Refusal | None:
        """Return why EC2 launches nothing into it: the error's code and message; None if it would.

        The message of one that is full is of scylladb/scylla-cluster-tests#8839, the others are the sandbox's own.
        """
        found = self.find(id_)
        if found is None:
            return "InvalidCapacityReservationId.NotFound", f"The Capacity Reservation ID '{id_}' does not exist."
        if market != _MARKETS[found.kind]:
            text = f"The market type of the request does not match that of Capacity Reservation {id_}: {found.kind}."
            return "InvalidParameterCombination", text
        state = found.state(self._clock.utc_now())
        if state != "active" or self._has_ended(found):
            until = f", until {found.end:%Y-%m-%d %H:%MZ}" if found.end else ""
            text = f"The Capacity Reservation {id_} takes no instances: it is {state}{until}."
            return "InvalidCapacityReservationState", text
        fits = (found.zone, found.instance_type) == (zone, instance_type) and found.takes(placement_group)
        if not fits or self.used(id_) >= found.total:
            return "ReservationCapacityExceeded", (
                "The requested reservation does not have sufficient compatible and available capacity for this request."
            )
        return None

    def ending(self) -> list[str]:
        """Return the instances that EC2 ends by now because their block is about to."""
        over = [each.id for each in self._by_id.values() if self._has_ended(each)]
        return [one.id for id_ in over for one in self._of(id_) if one.state in ("pending", "running")]

    def _has_ended(self, reservation: CapacityReservation) -> bool:
        at = reservation.instances_end_at
        return at is not None and self._clock.reached(at)

    def _of(self, id_: str) -> Iterator[Ec2Instance]:
        return (each for each in self._instances() if getattr(each, "capacity_reservation_id", None) == id_)


def target_of(launch_template_data: Mapping[str, Any]) -> str:
    """Return which reservation a launch template targets; empty for none."""
    specification = launch_template_data.get("CapacityReservationSpecification") or {}
    return str((specification.get("CapacityReservationTarget") or {}).get("CapacityReservationId") or "")


class DescribesReservations(BaseResponse):
    """DescribeCapacityReservations, of EC2's API."""

    def describe_capacity_reservations(self) -> ActionResult:
        ec2 = cast("Any", self).ec2_backend
        reservations, now = cast("CapacityReservations", ec2.capacity_reservations), ec2.clock.utc_now()
        wanted: list[str] = self._get_param("CapacityReservationIds", [])
        for id_ in wanted:
            if reservations.find(id_) is None:
                raise EC2ClientError(
                    "InvalidCapacityReservationId.NotFound", f"The Capacity Reservation ID '{id_}' does not exist."
                )
        filters: Mapping[str, Any] = cast("Any", self)._filters_from_querystring()
        described = [
            each.describe(now, used=reservations.used(each.id), account_id=ec2.account_id, region=ec2.region_name)
            for each in reservations.all()
            if not wanted or each.id in wanted
        ]
        fitting = [one for one in described if all(one[_FILTERS[name]] in values for name, values in filters.items())]
        return ActionResult({"CapacityReservations": fitting})
