"""The faults of one sandbox: what is set to fail, and the queries of its parts about it.

One `Faults` object is shared by all parts of a running sandbox. The Python API, `gpu-sandbox fault` and the
control API all change it; AWS, the nodes and the boot of instances read it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from gpu_sandbox.call_limits import CallLimits
from gpu_sandbox.clock import Clock
from gpu_sandbox.scaled_time import ScaledTime

Market = Literal["on-demand", "spot"]
ANY_SERVICE = "*"
_SWITCHES = frozenset({"device_plugin_never_ready", "driver_never_ready", "autoscaler_dead"})
_NUMBERS = frozenset({"boot_seconds", "token_seconds", "deadline_speed", "lease_conflict_rate"})


@dataclass(frozen=True, kw_only=True)
class Stockout:
    """Capacity that the cloud does not have; a field that is None stands for any.

    `instance_type` is a machine type; in Google Cloud it may be an accelerator's, too. With a `code` the launch fails
    for another reason, such as EC2's InsufficientFreeAddressesInSubnet or Compute Engine's IP_SPACE_EXHAUSTED. `left`
    machines of each group can be had, in Google Cloud alone. `placed`: only where a launch names a placement group, by
    which EC2 has to find the room near other machines ("Placement groups" of its user guide).
    """

    zone: str | None = None
    instance_type: str | None = None
    market: Market | None = None
    code: str | None = None
    left: int = 0
    placed: bool = False

    def covers(self, *, zone: str, instance_type: str, market: str, placed: bool = False) -> bool:
        where = self.zone in (None, zone) and self.instance_type in (None, instance_type)
        return where and self.market in (None, market) and (placed or not self.placed)


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """What the simulated `nvidia-smi` shows of GPUs: a hang is 100 % at little more than the draw of idle ones.

    `utilization` is in percent, `power` in W of 72 W, `memory` in MiB; the defaults are an idle GPU's, 16 W and 1 MiB.
    `node` and `pod` are names or patterns of them ("train-*"), by default any.
    """

    utilization: int
    power: float = 16.0
    memory: int = 1
    node: str = "*"
    pod: str = "*"

    def __post_init__(self) -> None:
        if not 0 <= self.utilization <= 100 or not 0 <= self.power < float("inf") or self.memory < 0:
            raise ValueError(f"a GPU is used by 0 to 100 %, with a draw and a memory of at least 0; not {self}")


class Faults:
    """What is failing now. Thread-safe; every answer is about the moment of the call.

    `seed` makes the drawn errors of a run repeatable.
    """

    device_plugin_never_ready: bool
    driver_never_ready: bool
    """Whether NVIDIA's driver is missing on all nodes, whoever installs it; device plugins then find no GPU."""
    autoscaler_dead: bool
    """Whether the cluster's autoscaler does nothing, so its status goes stale."""

    def __init__(self, *, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._seed = seed
        self._deadline_time = ScaledTime()
        self._clock: Clock | None = None
        self._reset()

    def _reset(self) -> None:
        self._random = random.Random(self._seed)
        self._stockouts: tuple[Stockout, ...] = ()
        self._boot_seconds: float | None = None
        self.device_plugin_never_ready = False
        self.driver_never_ready = False
        self.autoscaler_dead = False
        self._token_seconds: float | None = None
        self._deadline_speed: float | None = None
        self._deadline_time.speed = 1.0
        self._lease_conflict_rate = 0.0
        self._error_rates: dict[str, float] = {}
        self._throttle_rates: dict[str, float] = {}
        self._quotas: dict[str, float] = {}
        self._gpu_uses: tuple[GpuUse, ...] = ()
        self._call_limits = CallLimits()
        if self._clock is not None:
            self._call_limits.follow(self._clock)

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
    def token_seconds(self) -> float | None:
        """How long after its creation the cloud's bearer token is refused; None: EKS's 15 minutes, Google's hour.

        Token holders are not told: its stated expiry is later. The API server continues to accept a token that it has
        just seen for up to 20 seconds.
        """
        return self._token_seconds

    @token_seconds.setter
    def token_seconds(self, seconds: float | None) -> None:
        if seconds is not None and not 0 <= seconds < float("inf"):
            raise ValueError(f"token_seconds is a number of seconds, at least 0, or None; not {seconds!r}")
        self._token_seconds = seconds

    @property
    def deadline_speed(self) -> float | None:
        """How many times faster the cloud's own deadlines come, from now on; None: the sandbox's own time.

        These are scheduled actions of Auto Scaling groups, and max_run_duration of GKE's machines.
        """
        return self._deadline_speed

    @deadline_speed.setter
    def deadline_speed(self, speed: float | None) -> None:
        self._deadline_time.speed = 1.0 if speed is None else speed
        self._deadline_speed = speed

    def follow(self, clock: Clock) -> None:
        """Those deadlines come, and limits of calls fill, by this clock from now on: their cloud's."""
        self._deadline_time.follow(clock)
        with self._lock:
            self._clock = clock
            self._call_limits.follow(clock)

    def deadline_seconds(self) -> float:
        """The count by which those deadlines come, in seconds; only differences are meaningful."""
        return self._deadline_time.seconds()

    def deadline_reached(self, seconds: float) -> bool:
        """As `Clock.reached`, of a moment in `deadline_seconds`."""
        return self._deadline_time.reached(seconds)

    @property
    def lease_conflict_rate(self) -> float:
        """Share of changes of Leases after which another writer changes the Lease too, at once."""
        return self._lease_conflict_rate

    @lease_conflict_rate.setter
    def lease_conflict_rate(self, rate: float) -> None:
        self._lease_conflict_rate = _share(rate)

    def draw_lease_conflict(self) -> bool:
        """Whether another writer changes this Lease now."""
        with self._lock:
            return self._drawn(self._lease_conflict_rate)

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
        """Limits that replace the account's own, by the quota's name or code in the cloud."""
        with self._lock:
            return dict(self._quotas)

    def quota(self, name: str) -> float | None:
        """The limit that now replaces the account's own; None if none was declared."""
        with self._lock:
            return self._quotas.get(name)

    def set_quota(self, name: str, limit: float) -> None:
        """Have a quota (EC2's `L-DB2E81BA`, in vCPUs; Compute Engine's `NVIDIA_L4_GPUS`) be so small until `clear`."""
        if not 0 <= limit < float("inf"):
            raise ValueError(f"a quota's limit is a number, at least 0; not {limit!r}")
        with self._lock:
            self._quotas[name] = limit

    def out_of_stock(
        self, *, zone: str, instance_type: str, market: str, number: int = 1, placement_group: str = ""
    ) -> bool:
        """Whether the cloud has no such capacity now, for a group's `number`th machine, or in a placement group."""
        found = self._of(zone=zone, instance_type=instance_type, market=market, placed=bool(placement_group))
        return any(stockout.code is None and stockout.left < number for stockout in found)

    def launch_error(self, *, zone: str, instance_type: str, market: str) -> str | None:
        """The code with which such a launch now fails for a reason other than capacity; None if it does not."""
        found = self._of(zone=zone, instance_type=instance_type, market=market)
        return next((stockout.code for stockout in found if stockout.code), None)

    def _of(self, **launch: Any) -> list[Stockout]:
        return [stockout for stockout in self._stockouts if stockout.covers(**launch)]

    def draw_throttle(self, service: str, api: str = "") -> bool:
        """Whether this one call to `service` is to be throttled; each call is a new draw.

        `api` is its name by which calls may be limited, `eks:DescribeNodegroup`.
        """
        with self._lock:
            return self._draw(self._throttle_rates, service) or not self._call_limits.take(api or service)

    def limit_calls(self, api: str, *, per_second: float, burst: float) -> None:
        """Throttle calls of an API (`eks:DescribeNodegroup`) or service (`eks`) beyond this rate, until `clear`."""
        with self._lock:
            self._call_limits.set(api, per_second=per_second, burst=burst)

    def draw_error(self, service: str) -> bool:
        """Whether this one call to `service` is to fail with a 5xx; each call is a new draw."""
        with self._lock:
            return self._draw(self._error_rates, service)

    def _draw(self, rates: Mapping[str, float], service: str) -> bool:
        return self._drawn(rates.get(service, rates.get(ANY_SERVICE, 0.0)))

    def _drawn(self, rate: float) -> bool:
        return rate > 0 and self._random.random() < rate

    def add(self, stockout: Stockout) -> None:
        """Declare a stock-out; declaring the same one twice changes nothing."""
        with self._lock:
            if stockout not in self._stockouts:
                self._stockouts = (*self._stockouts, stockout)

    @property
    def gpu_uses(self) -> list[GpuUse]:
        """What the simulated nvidia-smi shows; of several that are meant for a GPU, the last one."""
        return list(self._gpu_uses)

    def show(self, use: GpuUse) -> None:
        """Have the simulated nvidia-smi show this use of GPUs from now on."""
        with self._lock:
            others = (each for each in self._gpu_uses if (each.node, each.pod) != (use.node, use.pod))
            self._gpu_uses = (*others, use)

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
        rate = _share(rate)
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
        """Return plain data, which another sandbox's `apply` accepts unchanged."""
        with self._lock:
            return {
                "stockouts": [asdict(stockout) for stockout in self._stockouts],
                "boot_seconds": self._boot_seconds,
                "device_plugin_never_ready": self.device_plugin_never_ready,
                "driver_never_ready": self.driver_never_ready,
                "autoscaler_dead": self.autoscaler_dead,
                "token_seconds": self._token_seconds,
                "deadline_speed": self._deadline_speed,
                "lease_conflict_rate": self._lease_conflict_rate,
                "error_rates": dict(self._error_rates),
                "throttle_rates": dict(self._throttle_rates),
                "quotas": dict(self._quotas),
                "call_limits": self._call_limits.describe(),
                "gpu_uses": [asdict(use) for use in self._gpu_uses],
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
        for name in _SWITCHES & changes.keys():
            setattr(self, name, bool(changes[name]))
        for name in _NUMBERS & changes.keys():
            setattr(self, name, changes[name])
        for service, rate in changes.get("error_rates", {}).items():
            self.set_error_rate(rate, service=service)
        for service, rate in changes.get("throttle_rates", {}).items():
            self.set_throttle_rate(rate, service=service)
        for name, limit in changes.get("quotas", {}).items():
            self.set_quota(name, limit)
        for api, limit in changes.get("call_limits", {}).items():
            self.limit_calls(api, **limit)
        for use in changes.get("gpu_uses", ()):
            self.show(GpuUse(**use))


def _share(rate: float) -> float:
    if not 0 <= rate <= 1:
        raise ValueError(f"a rate is a share between 0 and 1; not {rate!r}")
    return rate


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
