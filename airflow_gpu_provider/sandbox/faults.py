"""The faults of one sandbox: what is told to fail, and the questions that its parts ask about it.

One `Faults` object is shared by all parts of a running sandbox. The Python API, `gpu-sandbox fault` and the
control API all change it; AWS, the nodes and the boot of instances read it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Market = Literal["on-demand", "spot"]
ANY_SERVICE = "*"


@dataclass(frozen=True, kw_only=True)
class Stockout:
    """Capacity that the cloud does not have; a field that is None stands for any.

    `instance_type` is a machine type; in Google Cloud it may be an accelerator's, too.
    """

    zone: str | None = None
    instance_type: str | None = None
    market: Market | None = None

    def covers(self, *, zone: str, instance_type: str, market: str) -> bool:
        return (
            self.zone in (None, zone) and self.instance_type in (None, instance_type) and self.market in (None, market)
        )


class Faults:
    """What is failing now. Thread-safe; every answer is about the moment of the call.

    `seed` makes the drawn errors of a run repeatable.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._seed = seed
        self._reset()

    def _reset(self) -> None:
        self._random = random.Random(self._seed)
        self._stockouts: tuple[Stockout, ...] = ()
        self._boot_seconds: float | None = None
        self._device_plugin_never_ready = False
        self._autoscaler_dead = False
        self._error_rates: dict[str, float] = {}
        self._throttle_rates: dict[str, float] = {}
        self._quotas: dict[str, float] = {}

    @property
    def stockouts(self) -> list[Stockout]:
        return list(self._stockouts)

    @property
    def boot_seconds(self) -> float | None:
        """Seconds from an instance's launch to its Node; None means the sandbox's own default."""
        return self._boot_seconds

    @boot_seconds.setter
    def boot_seconds(self, seconds: float | None) -> None:
        if seconds is not None and not 0 <= seconds < float("inf"):
            raise ValueError(f"boot_seconds is a number of seconds, at least 0, or None; not {seconds!r}")
        self._boot_seconds = seconds

    @property
    def device_plugin_never_ready(self) -> bool:
        return self._device_plugin_never_ready

    @device_plugin_never_ready.setter
    def device_plugin_never_ready(self, never_ready: bool) -> None:
        self._device_plugin_never_ready = never_ready

    @property
    def autoscaler_dead(self) -> bool:
        """Whether the cluster's autoscaler does nothing, its status growing old."""
        return self._autoscaler_dead

    @autoscaler_dead.setter
    def autoscaler_dead(self, dead: bool) -> None:
        self._autoscaler_dead = dead

    @property
    def error_rates(self) -> dict[str, float]:
        """Share of calls answered with a 5xx, by AWS service (`eks`, `autoscaling`, ...) or `*` for all."""
        with self._lock:
            return dict(self._error_rates)

    @property
    def throttle_rates(self) -> dict[str, float]:
        """Share of calls answered with a ThrottlingException, by AWS service or `*` for all."""
        with self._lock:
            return dict(self._throttle_rates)

    @property
    def quotas(self) -> dict[str, float]:
        """Limits that stand for the account's own, by the quota's name or code in the cloud."""
        with self._lock:
            return dict(self._quotas)

    def quota(self, name: str) -> float | None:
        """The limit that stands for the account's own now; None where none was declared."""
        with self._lock:
            return self._quotas.get(name)

    def set_quota(self, name: str, limit: float) -> None:
        """Have a quota (EC2's `L-DB2E81BA`, in vCPUs; Compute Engine's `NVIDIA_L4_GPUS`) be so small until `clear`."""
        if not 0 <= limit < float("inf"):
            raise ValueError(f"a quota's limit is a number, at least 0; not {limit!r}")
        with self._lock:
            self._quotas[name] = limit

    def out_of_stock(self, *, zone: str, instance_type: str, market: str) -> bool:
        """Whether the cloud has no such capacity now."""
        return any(
            stockout.covers(zone=zone, instance_type=instance_type, market=market) for stockout in self._stockouts
        )

    def draw_throttle(self, service: str) -> bool:
        """Whether this one call to `service` is to be throttled; each call is a new draw."""
        with self._lock:
            return self._draw(self._throttle_rates, service)

    def draw_error(self, service: str) -> bool:
        """Whether this one call to `service` is to fail with a 5xx; each call is a new draw."""
        with self._lock:
            return self._draw(self._error_rates, service)

    def _draw(self, rates: Mapping[str, float], service: str) -> bool:
        rate = rates.get(service, rates.get(ANY_SERVICE, 0.0))
        return rate > 0 and self._random.random() < rate

    def add(self, stockout: Stockout) -> None:
        """Declare a stock-out; declaring the same one twice changes nothing."""
        with self._lock:
            if stockout not in self._stockouts:
                self._stockouts = (*self._stockouts, stockout)

    def remove(self, stockout: Stockout) -> None:
        """End one stock-out. ValueError if it was never declared."""
        with self._lock:
            if stockout not in self._stockouts:
                raise ValueError(f"{stockout} is not declared; declared: {list(self._stockouts)}")
            self._stockouts = tuple(other for other in self._stockouts if other != stockout)

    def set_error_rate(self, rate: float, *, service: str = ANY_SERVICE) -> None:
        """Fail this share (0 to 1) of the calls to `service` with a 5xx; 0 ends it."""
        self._set_rate(self._error_rates, rate, service)

    def set_throttle_rate(self, rate: float, *, service: str = ANY_SERVICE) -> None:
        """Throttle this share (0 to 1) of the calls to `service`; 0 ends it."""
        self._set_rate(self._throttle_rates, rate, service)

    def _set_rate(self, rates: dict[str, float], rate: float, service: str) -> None:
        if not 0 <= rate <= 1:
            raise ValueError(f"a rate is a share between 0 and 1; not {rate!r}")
        with self._lock:
            if rate == 0 and (service == ANY_SERVICE or ANY_SERVICE not in rates):
                rates.pop(service, None)
            else:
                rates[service] = rate

    def clear(self) -> None:
        """End every fault, and start the draws from the seed again."""
        with self._lock:
            self._reset()

    # As JSON, for the CLI, the control API and the live view

    def describe(self) -> dict[str, Any]:
        """Plain data; `apply` of another sandbox's takes it as it is."""
        with self._lock:
            return {
                "stockouts": [asdict(stockout) for stockout in self._stockouts],
                "boot_seconds": self._boot_seconds,
                "device_plugin_never_ready": self._device_plugin_never_ready,
                "autoscaler_dead": self._autoscaler_dead,
                "error_rates": dict(self._error_rates),
                "throttle_rates": dict(self._throttle_rates),
                "quotas": dict(self._quotas),
            }

    def apply(self, changes: Mapping[str, Any]) -> None:
        """Take changes in `describe()`'s form. Keys left out stay as they are; stock-outs and rates are added
        to those there. Checks everything before it changes anything. ValueError names what is wrong."""
        stockouts = _stockouts(changes.get("stockouts", ()))
        trial = Faults()
        trial._merge(changes, stockouts)
        unknown = changes.keys() - trial.describe().keys()
        if unknown:
            raise ValueError(f"unknown faults {sorted(unknown)}; known: {sorted(trial.describe())}")
        self._merge(changes, stockouts)

    def _merge(self, changes: Mapping[str, Any], stockouts: Iterable[Stockout]) -> None:
        for stockout in stockouts:
            self.add(stockout)
        if "boot_seconds" in changes:
            self.boot_seconds = changes["boot_seconds"]
        if "device_plugin_never_ready" in changes:
            self.device_plugin_never_ready = bool(changes["device_plugin_never_ready"])
        if "autoscaler_dead" in changes:
            self.autoscaler_dead = bool(changes["autoscaler_dead"])
        for service, rate in changes.get("error_rates", {}).items():
            self.set_error_rate(rate, service=service)
        for service, rate in changes.get("throttle_rates", {}).items():
            self.set_throttle_rate(rate, service=service)
        for name, limit in changes.get("quotas", {}).items():
            self.set_quota(name, limit)


def _stockouts(described: Iterable[Mapping[str, Any]]) -> list[Stockout]:
    known = {field.name for field in fields(Stockout)}
    stockouts = []
    for one in described:
        if unknown := one.keys() - known:
            raise ValueError(f"a stock-out has {sorted(known)}; not {sorted(unknown)}")
        if one.get("market") not in (None, "on-demand", "spot"):
            raise ValueError(f"a market is 'on-demand' or 'spot'; not {one['market']!r}")
        stockouts.append(Stockout(**one))
    return stockouts
