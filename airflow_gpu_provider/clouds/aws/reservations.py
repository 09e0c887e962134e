"""EC2's Capacity Reservations and Capacity Blocks: how they are read, what each lets a group have at a moment, and what
a node group of this package's says of its own.

The fields and states are botocore's `CapacityReservation`, the rest is of EC2's user guide: "Capacity Blocks for ML",
"Use Capacity Reservations". Nothing is bought here, changed, or cancelled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from airflow_gpu_provider.clouds.answers import Reserved, has_code
from airflow_gpu_provider.clouds.aws.clients import AwsService
from airflow_gpu_provider.clouds.base import Group
from airflow_gpu_provider.cluster.api.threads import in_parallel
from airflow_gpu_provider.errors import CloudError
from airflow_gpu_provider.pools.candidates import Market

RESERVATION_TAG = "airflow-gpu-provider/reservation"
"""Of which reservation a group is, and the type of its machines: "cr-0a1b2c3d p5.48xlarge"."""

ENDED_BEFORE = timedelta(minutes=30)
"""How long before the end of a block EC2 begins to end its instances: "Capacity Blocks for ML"."""

ENDED_BEFORE_OF_ULTRASERVERS = timedelta(minutes=60)
"""The same for the types of UltraServers."""

TO_EMPTY = timedelta(minutes=10)
"""How long before that a block's machines are emptied, so that trainings save their checkpoints."""

SHORTEST = timedelta(minutes=15)
"""A machine that would have to be empty sooner is not launched: it could hardly start its pods."""

BEGINS_WITHIN = timedelta(minutes=10)
"""How long beyond its start EC2 may take to show a reservation as active; "View the state of a Capacity Reservation"
has five minutes for a new one."""

_PLATFORM, _TENANCY = "Linux/UNIX", "default"
"""What EKS's nodes are."""

_NOT_FOUND = ("InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed")
_TO_COME = ("pending", "payment-pending", "assessing", "delayed", "scheduled")
"""The states from which a reservation may become active."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """One reservation as EC2 describes it; `free` is how many more instances it takes now.

    `placement_group` is the one that it was made in, by name, `is_launchable` False while EC2 launches nothing into it.
    """

    id: str
    is_block: bool
    instance_type: str
    zone: str
    state: str
    total: int
    free: int
    start: datetime | None = None
    end: datetime | None = None
    platform: str = _PLATFORM
    tenancy: str = _TENANCY
    interruptible: bool = False
    placement_group: str = ""
    is_launchable: bool = True

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read DescribeCapacityReservations' words for it."""
        return cls(
            id=raw["CapacityReservationId"],
            is_block=raw.get("ReservationType") == "capacity-block",
            instance_type=raw.get("InstanceType", ""),
            zone=raw.get("AvailabilityZone", ""),
            state=raw.get("State", ""),
            total=int(raw.get("TotalInstanceCount", 0)),
            free=int(raw.get("AvailableInstanceCount", 0)),
            start=_utc(raw.get("StartDate")),
            end=_utc(raw.get("EndDate")),
            platform=raw.get("InstancePlatform") or _PLATFORM,
            tenancy=raw.get("Tenancy") or _TENANCY,
            interruptible=bool(raw.get("Interruptible")),
            placement_group=str(raw.get("PlacementGroupArn") or "").rpartition("placement-group/")[2],
            is_launchable=raw.get("LaunchStatus") != "unlaunchable",
        )

    @property
    def mismatch(self) -> str:
        """Why it takes no node of an EKS group, whatever the group's type and zone, for people; empty where it does.

        "You can only launch an instance into a Capacity Reservation that has matching attributes (instance type,
        platform, Availability Zone, and tenancy)" (EC2 user guide, "Launch instances into an existing Capacity
        Reservation"); an interruptible one takes a market that no managed node group has.
        """
        if self.platform != _PLATFORM:
            return f"its platform is {self.platform}, and nodes are {_PLATFORM}"
        if self.tenancy != _TENANCY:
            return f"its tenancy is {self.tenancy}, and nodes have the default one"
        return "it is interruptible, and node groups have no such market" if self.interruptible else ""

    @property
    def market(self) -> Market:
        """What its machines are on: those of a block are paid for ahead, those of another cost what on demand does."""
        return "CAPACITY_BLOCK" if self.is_block else "RESERVED"

    @property
    def ends_at(self) -> datetime | None:
        """From when on its machines have to be empty; None for an on-demand one, whose instances outlive it."""
        if not self.is_block or self.end is None:
            return None
        is_ultraserver = self.instance_type.startswith("p6e-")
        return self.end - TO_EMPTY - (ENDED_BEFORE_OF_ULTRASERVERS if is_ultraserver else ENDED_BEFORE)

    def reserved(self, now: datetime) -> Reserved:
        """Return what it lets a group have now."""
        why_not, opens_at, is_over = self._state(now)
        return Reserved(
            id=self.id,
            began_at=self.start if self.start is not None and now >= self.start else None,
            opens_at=opens_at,
            ends_at=self.ends_at,
            has_ended=self.ends_at is not None and now >= self.ends_at,
            why_not=f"{self.id} {why_not}" if why_not else "",
            is_over=is_over,
        )

    def _state(self, now: datetime) -> tuple[str, datetime | None, bool]:
        """Return why it gives no machine, when it begins to, and whether it never does again."""
        if self.end is not None and now >= self.end:
            return f"ended at {_clock(self.end)}", None, True
        if self.ends_at is not None and now >= self.ends_at - SHORTEST:
            return (
                f"ends at {_clock(self.end)}, and its machines are emptied from {_clock(self.ends_at)} on",
                None,
                True,
            )
        if self.state == "active":
            if not self.is_launchable:
                return "is active, and EC2 launches nothing into it now (LaunchStatus unlaunchable)", None, False
            return (f"is full: 0 of {self.total} free" if self.free < 1 else ""), None, False
        if self.state == "scheduled" and self.start is not None and now < self.start + BEGINS_WITHIN:
            return f"begins at {_clock(self.start)}", self.start, False
        return f"is {self.state}", None, self.state not in _TO_COME

    def __str__(self) -> str:
        kind = "Capacity Block" if self.is_block else "On-Demand Capacity Reservation"
        begin = f", from {_clock(self.start)}" if self.start and self.state == "scheduled" else ""
        end = f", until {_clock(self.end)}" if self.end else ""
        what = f"{self.total} {self.instance_type} in {self.zone}, {self.free} free"
        return f"{self.id} ({kind}, {what}, {self.state}{begin}{end})"


def read(ec2: AwsService, ids: Collection[str]) -> dict[str, Reservation]:
    """Return reservations by id; those that EC2 does not know (any more) are left out.

    Raises:
        PermissionDenied: ec2:DescribeCapacityReservations is not allowed.
    """
    try:
        return _read(ec2, ids) if ids else {}
    except CloudError as error:  # one unknown id fails the call for all
        if not has_code(error, *_NOT_FOUND):
            raise
        if len(ids) == 1:
            return {}
    return {
        id_: each for found in in_parallel(lambda id_: read(ec2, [id_]), sorted(ids)) for id_, each in found.items()
    }


def _read(ec2: AwsService, ids: Collection[str]) -> dict[str, Reservation]:
    found = ec2.items("describe_capacity_reservations", "CapacityReservations", CapacityReservationIds=sorted(ids))
    return {each.id: each for each in map(Reservation.parse, found)}


def target_of(template: Mapping[str, Any]) -> str:
    """Return which reservation a launch template's data targets; empty for none."""
    specification = template.get("CapacityReservationSpecification") or {}
    return str((specification.get("CapacityReservationTarget") or {}).get("CapacityReservationId") or "")


def judge(
    groups: Iterable[Group], targets: Mapping[str, str], found: Mapping[str, Reservation], now: datetime
) -> tuple[Group, ...]:
    """Return groups with what their reservations let them have now; `targets` are those by group. Pure."""
    return tuple(_judged(each, targets[each.name], found, now) if each.name in targets else each for each in groups)


def notes(ids: Iterable[str], found: Mapping[str, Reservation], now: datetime) -> tuple[str, ...]:
    """Return what a plan says of reservations: what each is, and why it gives no machine."""
    lines = []
    for id_ in dict.fromkeys(ids):
        each = found.get(id_)
        lines.append(": ".join(filter(None, [str(each or ""), reserved(id_, found, now).why_not])))
    return tuple(lines)


def reserved(id_: str, found: Mapping[str, Reservation], now: datetime) -> Reserved:
    """Return what a reservation lets a group have now; one that EC2 does not know lets it have nothing."""
    if reservation := found.get(id_):
        return reservation.reserved(now)
    return Reserved(id=id_, why_not=f"EC2 has no Capacity Reservation {id_} (any more)", is_over=True)


def _judged(group: Group, id_: str, found: Mapping[str, Reservation], now: datetime) -> Group:
    what = reserved(id_, found, now)
    room = 0 if what.why_not else found[id_].free
    most = 0 if what.has_ended else len(group.live) + room
    return replace(group, reserved=what, max_size=min(group.max_size, most))


def _utc(at: datetime | None) -> datetime | None:
    return at.astimezone(UTC) if at else None


def _clock(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%MZ}" if at else "an unknown time"


def types_of(group: Mapping[str, Any]) -> list[str]:
    """Return the machine types of a group of ours; those of a Capacity Block's are in its template, and its tag."""
    _, _, reserved = group.get("tags", {}).get(RESERVATION_TAG, "").partition(" ")
    return list(group.get("instanceTypes") or filter(None, [reserved]))


def reservation_of(group: Mapping[str, Any]) -> str:
    """Return of which reservation a group of ours is; empty for none."""
    return str(group.get("tags", {}).get(RESERVATION_TAG, "").partition(" ")[0])


def market_of(group: Mapping[str, Any]) -> Market:
    found: Market = group.get("capacityType") or "ON_DEMAND"
    return "RESERVED" if found == "ON_DEMAND" and reservation_of(group) else found
