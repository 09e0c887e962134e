"""Which of a pool's candidates its cloud offers machines for, and what is said of the other places. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Self

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import Candidate, EksGpuPool, GkeGpuPool


@dataclass(frozen=True, kw_only=True)
class Offers:
    """The candidates that can have machines, the most preferred first, and a line about each place that is left out."""

    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        pool: EksGpuPool | GkeGpuPool,
        zones: Collection[str],
        offered: Collection[tuple[str, str]],
        *,
        cloud: str,
        hardware: Callable[[str], str] = str,
    ) -> Self:
        """Compare a pool's candidates over `zones` with the zones and machine types that the cloud offers.

        `cloud` is what offers them, and `hardware` returns what a machine type is called, both for people.

        Raises:
            PoolSpecError: None is offered.
        """
        everywhere = pool.candidates(zones)
        candidates = tuple(c for c in everywhere if (c.zone, c.instance_type) in offered)
        if not candidates:
            types = dict.fromkeys(hardware(c.instance_type) for c in everywhere)
            raise PoolSpecError(
                f"Pool {pool.name}: {cloud} offers {' or '.join(types)} in none of {', '.join(zones)}.",
                "Choose other zones or machine types.",
            )
        left_out = dict.fromkeys((hardware(c.instance_type), c.zone) for c in everywhere if c not in candidates)
        notes = (f"{what} is left out in {zone}: {cloud} does not offer it there" for what, zone in left_out)
        return cls(candidates=candidates, notes=tuple(notes))
