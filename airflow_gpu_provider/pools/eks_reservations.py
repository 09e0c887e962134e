"""What an EksGpuPool says of capacity reservations, and what of it cannot work. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_gpu_provider.pools.eks import EksGpuPool

_ID = re.compile(r"cr-[0-9a-f]{8,17}")


def problems(pool: EksGpuPool) -> Iterator[tuple[str, str]]:
    """Yield what cannot work of a rendered pool, each with its fix."""
    named, is_market = pool.reservations, "RESERVED" in pool.capacity_types
    if wrong := [name for name in named if not _ID.fullmatch(name)]:
        yield (
            f"reservations: {', '.join(wrong)} is no Capacity Reservation's id",
            "Ids begin with cr-; a Capacity Block has one too (aws ec2 describe-capacity-reservations).",
        )
    if len(set(named)) < len(named):
        yield f"reservations names one twice: {', '.join(named)}", "Name each once."
    if is_market and not named:
        yield 'capacity_types has "RESERVED", and reservations names none', 'Name them, like "cr-0a1b2c3d4e5f67890".'
    if named and not is_market:
        yield 'reservations needs "RESERVED" in capacity_types', 'Put it where it is preferred: before "ON_DEMAND".'
    if named and pool.launch_template:
        what = "reservations and launch_template exclude each other: each reservation's group has a template of its own"
        yield what, "Give one or the other."
    if named and pool.is_autoscaled:
        yield (
            'reservations needs scaling="direct": cluster-autoscaler knows no begin and no end of them',
            "Leave it out.",
        )
