"""Instances of an Auto Scaling group that end once another has replaced them: zone and spot rebalancing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_sandbox.aws.groups import Member


@dataclass(kw_only=True)
class Replacement:
    """One that is under way.

    Attributes:
        zone: Where the new instance has to be; None for anywhere.
    """

    old: Member
    launch_cause: str
    end_cause: str
    zone: str | None = None
    new: Member | None = None


def uneven(members: Iterable[Member], zones: Sequence[str]) -> tuple[Member, str] | None:
    """An instance of the fullest zone that may go, and the emptiest zone; None if they differ by one at most."""
    in_zone: Counter[str] = Counter({zone: 0 for zone in zones})
    movable: dict[str, Member] = {}
    for member in members:
        zone = member.availability_zone or ""
        in_zone[zone] += 1
        if not member.protected_from_scale_in:
            movable[zone] = member
    fullest, emptiest = max(in_zone, key=lambda z: in_zone[z]), min(in_zone, key=lambda z: in_zone[z])
    if in_zone[fullest] - in_zone[emptiest] <= 1 or fullest not in movable:
        return None
    return movable[fullest], emptiest
