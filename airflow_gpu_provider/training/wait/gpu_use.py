"""What a pod's GPUs did, from nvidia-smi samples. Pure.

`utilization.gpu` is the share of the last sample period (between 1/6 s and 1 s: nvmlUtilization_t in NVIDIA's NVML
reference) in which a kernel ran on the GPU, so the mean of samples is the share of time in which the GPUs computed.
A value that a GPU does not report is a word in brackets, like "[N/A]", "[Not Supported]" or "[Unknown Error]"; for a
GPU in MIG mode, this includes its utilization. It stays unknown.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from airflow_gpu_provider.scaling.wait.records import Record
from airflow_gpu_provider.scaling.wait.wait_loop import format_seconds

QUERY = (
    "nvidia-smi",
    "--query-gpu=utilization.gpu,memory.used,power.draw,power.limit",
    "--format=csv,noheader,nounits",
)
"""Prints a line for each GPU of the container: percent, MiB, watts, and the most watts that it may draw."""
QUERY_ON_GKE = ("env", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64", f"/usr/local/nvidia/bin/{QUERY[0]}", *QUERY[1:])
"""The same where GKE mounts NVIDIA's programs and libraries, for images whose PATH does not have that folder.

GKE's device plugin mounts it there and sets no variable in a container: docs/gke.md.
"""

GPUS_KEPT = 64
"""Of how many GPUs a run keeps what each one did: it travels in a trigger's event, and in XCom."""
BUSY = 95.0
"""From how many percent on a GPU counts as busy throughout."""
OF_LIMIT = 0.35
"""At most this share of its power limit is a draw near idle: see `hang`."""
_COLUMNS = 4
_DIFFER = 10.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one GPU reported at one moment; None is unknown."""

    percent: float | None
    memory_mib: float | None
    power_w: float | None
    limit_w: float | None


@dataclass(frozen=True)
class Sample:
    """What a container's GPUs reported at one moment, in the order of their indices."""

    gpus: tuple[Reading, ...]

    @property
    def percent(self) -> float | None:
        """The mean of the GPUs that report it."""
        reported = [gpu.percent for gpu in self.gpus if gpu.percent is not None]
        return sum(reported) / len(reported) if reported else None

    @property
    def is_idle(self) -> bool | None:
        """Whether all report that they did not compute; unknown if one does not report it and none computed."""
        reported = [gpu.percent for gpu in self.gpus if gpu.percent is not None]
        return False if any(reported) else (True if len(reported) == len(self.gpus) else None)

    @property
    def memory_mib(self) -> float | None:
        """The most that one of them has in use."""
        return max((gpu.memory_mib for gpu in self.gpus if gpu.memory_mib is not None), default=None)

    @property
    def power_w(self) -> float | None:
        """For all GPUs together."""
        watts = [gpu.power_w for gpu in self.gpus if gpu.power_w is not None]
        return sum(watts) if len(watts) == len(self.gpus) else None


def parse(text: str) -> Sample | None:
    """Parse the output of a query; None if it has no line for a GPU."""
    rows = [[_number(cell) for cell in row] for row in csv.reader(text.splitlines()) if len(row) == _COLUMNS]
    gpus = tuple(
        Reading(
            percent=None if percent is None else min(percent, 100.0), memory_mib=memory, power_w=power, limit_w=limit
        )
        for percent, memory, power, limit in rows
    )
    return Sample(gpus) if gpus else None


def _number(cell: str) -> float | None:
    cell = cell.strip()
    return float(cell) if cell.isascii() and cell.replace(".", "", 1).isdigit() else None


@dataclass(frozen=True, kw_only=True)
class _Sums(Record):
    """Samples, summed up.

    Attributes:
        samples: How many report utilization.
        percents, highest: The sum and the maximum of the reported values.
        memory_mib_max: The most memory that one GPU had in use; None if no sample reports it.
        watts, power_samples: The sum of the power, and how many samples report it.
    """

    samples: int = 0
    percents: float = 0.0
    highest: float = 0.0
    memory_mib_max: float | None = None
    watts: float = 0.0
    power_samples: int = 0

    def _and(self, seen: Sample | Reading) -> dict[str, Any]:
        """Return the sums with one more sample."""
        memory = [mib for mib in (self.memory_mib_max, seen.memory_mib) if mib is not None]
        return {
            "samples": self.samples + (seen.percent is not None),
            "percents": self.percents + (seen.percent or 0.0),
            "highest": max(self.highest, seen.percent or 0.0),
            "memory_mib_max": max(memory, default=None),
            "watts": self.watts + (seen.power_w or 0.0),
            "power_samples": self.power_samples + (seen.power_w is not None),
        }

    @property
    def mean(self) -> float | None:
        """The utilization in percent; None if no sample reports it."""
        return self.percents / self.samples if self.samples else None

    def to_json(self) -> dict[str, Any]:
        """Return it for XCom (docs/xcom.md): unknown values are None."""
        mean = self.mean
        return {
            "samples": self.samples,
            "mean": None if mean is None else round(mean, 1),
            "max": round(self.highest, 1) if self.samples else None,
            "memory_mib_max": None if self.memory_mib_max is None else round(self.memory_mib_max),
            "power_w_mean": round(self.watts / self.power_samples, 1) if self.power_samples else None,
        }


@dataclass(frozen=True, kw_only=True)
class UseOfOne(_Sums):
    """What one GPU did: `gpu` is its index in the pod of that rank, `limit_w` the most that it may draw."""

    rank: int | str = 0
    gpu: int = 0
    limit_w: float | None = None

    def plus(self, seen: Reading) -> UseOfOne:
        """Return it with one more sample."""
        return replace(self, **self._and(seen), limit_w=self.limit_w if seen.limit_w is None else seen.limit_w)

    def to_json(self) -> dict[str, Any]:
        summed = super().to_json()
        return {"rank": self.rank, "gpu": self.gpu, **summed, "power_limit_w": self.limit_w, "spun": self._spun(summed)}

    def _spun(self, summed: Mapping[str, Any]) -> bool | None:
        """Whether it was busy throughout at a draw near idle, as one that waits for another rank; None: not known."""
        mean, power = summed["mean"], summed["power_w_mean"]
        if mean is None or power is None or self.limit_w is None:
            return None
        return bool(mean >= BUSY and power < OF_LIMIT * self.limit_w)


@dataclass(frozen=True, kw_only=True)
class GpuUse(_Sums):
    """What all of them did: a sample is the mean of a pod's GPUs, and its power that of all of them.

    Attributes:
        gpus: What each GPU did: the first GPUS_KEPT of them.
    """

    gpus: tuple[UseOfOne, ...] = ()

    def plus(self, sample: Sample, rank: int | str = 0) -> GpuUse:
        """Return it with one more sample, of that rank's pod."""
        each = {(use.rank, use.gpu): use for use in self.gpus}
        for gpu, seen in enumerate(sample.gpus):
            if (rank, gpu) in each or len(each) < GPUS_KEPT:
                each[rank, gpu] = each.get((rank, gpu), UseOfOne(rank=rank, gpu=gpu)).plus(seen)
        in_order = sorted(each.values(), key=lambda use: (str(use.rank).zfill(8), use.gpu))
        return replace(self, **self._and(sample), gpus=tuple(in_order))

    @property
    def is_known(self) -> bool:
        """Whether any sample reports a value."""
        return bool(self.samples or self.power_samples or self.memory_mib_max is not None)

    def to_json(self) -> dict[str, Any]:
        mean = self.mean
        return {
            **super().to_json(),
            "computed_fraction": None if mean is None else round(mean / 100, 3),
            "gpus": [use.to_json() for use in self.gpus],
        }

    def in_words(self) -> str:
        """Return it as a human-readable line."""
        mean = self.mean
        computed = "it is unknown how much the GPUs computed"
        if mean is not None:
            computed = f"the GPUs computed {mean:.0f} % of the time{self._apart()}"
        if self.memory_mib_max is not None:
            computed += f", with at most {_size(self.memory_mib_max)} of a GPU's memory in use"
        return f"{computed} ({self.samples} sample{'s' if self.samples != 1 else ''})"

    def _apart(self) -> str:
        """Return between what their own shares are, where they differ: one of them may do nothing."""
        means = [use.mean for use in self.gpus if use.mean is not None]
        if not means or max(means) - min(means) < _DIFFER:
            return ""
        return f", each between {min(means):.0f} and {max(means):.0f} %"


def _size(mib: float) -> str:
    return f"{mib / 1024:.3g} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


@dataclass(frozen=True, kw_only=True)
class GpuWatching(Record):
    """What to do about GPUs that do not compute: after how many seconds to warn, and to end the pod; None for never."""

    warn_seconds: float | None = None
    end_seconds: float | None = None


class Idleness:
    """For how long a pod's GPUs have been idle, from consecutive samples; an unknown one resets it."""

    def __init__(self) -> None:
        self._since: float | None = None
        self.seconds = 0.0

    def take(self, is_idle: bool | None, at: float) -> None:
        """Take a sample, at a monotonic time in seconds."""
        if not is_idle:
            self._since = None
        elif self._since is None:
            self._since = at
        self.seconds = 0.0 if self._since is None else at - self._since

    def lasts(self, seconds: float | None) -> bool:
        """Return True if it has lasted this long; None is never."""
        return seconds is not None and self._since is not None and self.seconds >= seconds

    @property
    def in_words(self) -> str:
        return format_seconds(timedelta(seconds=self.seconds))
