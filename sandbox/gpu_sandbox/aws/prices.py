"""What machines cost here: a list price for each type, and spot prices that change with the sandbox's time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zlib import crc32

from gpu_sandbox.aws.instance_types import InstanceTypeCatalogue
from gpu_sandbox.clock import Clock

SPOT_CHANGES = timedelta(hours=6)
"""How often a spot price changes by itself."""
SPOT_HISTORY = timedelta(days=90)
"""How far back EC2 tells of them (DescribeSpotPriceHistory, StartTime)."""

_VCPU, _GIB, _GPU = 0.04, 0.004, 0.6  # USD an hour: about what G machines cost
_LEAST_SHARE, _SHARES = 0.3, 0.2  # of the list price


@dataclass(frozen=True, kw_only=True)
class SpotPrice:
    """The price in a zone from a moment on, in USD an hour."""

    instance_type: str
    zone: str
    usd: float
    since: datetime


class Prices:
    """Those of one region. They may be set while calls are answered."""

    def __init__(self, catalogue: InstanceTypeCatalogue, clock: Clock) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self._on_demand: dict[str, float] = {}
        self._spot: defaultdict[tuple[str, str], list[SpotPrice]] = defaultdict(list)

    def on_demand(self, instance_type: str) -> float:
        """The list price, in USD an hour. KeyError if the type is unknown."""
        of = self._catalogue
        parts = _VCPU * of.vcpus(instance_type), _GIB * of.memory_bytes(instance_type) / 2**30
        listed = round(sum(parts) + _GPU * of.gpus(instance_type), 4)
        return self._on_demand.get(instance_type, listed)

    def set_on_demand(self, instance_type: str, usd: float) -> None:
        """ValueError if the type is unknown."""
        self._check(instance_type)
        self._on_demand[instance_type] = usd

    def set_spot(self, instance_type: str, zone: str, usd: float) -> None:
        """Have this price in a zone from now on, for good. ValueError if the type is unknown."""
        self._check(instance_type)
        price = SpotPrice(instance_type=instance_type, zone=zone, usd=usd, since=self._clock.utc_now())
        self._spot[instance_type, zone].append(price)

    def spot(self, instance_type: str, zone: str, at: datetime) -> float:
        """The spot price at a moment, in USD an hour. KeyError if the type is unknown."""
        return next(self.spot_history(instance_type, zone, since=at, until=at)).usd

    def spot_history(self, instance_type: str, zone: str, *, since: datetime, until: datetime) -> Iterator[SpotPrice]:
        """The prices between two moments, the newest first; the last is the one that there was at the first moment."""
        said = self._spot[instance_type, zone]
        for price in reversed(said):
            if price.since <= until:
                yield price
                if price.since <= since:
                    return
        latest = min([until, *(price.since - timedelta(microseconds=1) for price in said[:1])])
        period = latest.timestamp() // SPOT_CHANGES.total_seconds()
        while True:
            began = datetime.fromtimestamp(period * SPOT_CHANGES.total_seconds(), UTC)
            share = _LEAST_SHARE + _SHARES * (crc32(f"{instance_type}/{zone}/{period:.0f}".encode()) % 1000) / 1000
            usd = round(self.on_demand(instance_type) * share, 4)
            yield SpotPrice(instance_type=instance_type, zone=zone, usd=usd, since=began)
            if began <= since:
                return
            period -= 1

    def _check(self, instance_type: str) -> None:
        if not self._catalogue.known(instance_type):
            raise ValueError(f"unknown instance type {instance_type!r}")
