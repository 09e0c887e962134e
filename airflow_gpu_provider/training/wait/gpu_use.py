"""What a pod's GPUs did, from nvidia-smi samples. Pure.

`utilization.gpu` is the share of the last sample period (between 1/6 s and 1 s: nvmlUtilization_t in NVIDIA's NVML
reference) in which a kernel ran on the GPU, so the mean of samples is the share of time in which the GPUs computed.
A value that a GPU does not report is a word in brackets, like "[N/A]", "[Not Supported]" or "[Unknown Error]"; for a
GPU in MIG mode, this includes its utilization. It stays unknown.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_gpu_provider.scaling.wait.records import Record
from airflow_gpu_provider.scaling.wait.waits import format_seconds

QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu,memory.used,power.draw", "--format=csv,noheader,nounits")
"""Prints a line for each GPU of the container: percent, MiB, watts."""
QUERY_ON_GKE = ("env", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64", f"/usr/local/nvidia/bin/{QUERY[0]}", *QUERY[1:])
"""The same where GKE mounts NVIDIA's programs and libraries, for images whose PATH does not have that folder.

GKE's device plugin mounts it there and sets no variable in a container: docs/gke.md.
"""

_COLUMNS = 3


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What a container's GPUs reported at one moment; None is unknown.

    Attributes:
        percent: The mean of the GPUs that report it.
        is_idle: All report that they did not compute; unknown if one does not report it and none computed.
        memory_mib: The most that one of them has in use.
        power_w: For all GPUs together.
    """

    percent: float | None
    is_idle: bool | None
    memory_mib: float | None
    power_w: float | None


def parse(text: str) -> Sample | None:
    """Parse the output of a query; None if it has no line for a GPU."""
    rows = [[_number(cell) for cell in row] for row in csv.reader(text.splitlines()) if len(row) == _COLUMNS]
    if not rows:
        return None
    computed, memory, power = ([row[i] for row in rows] for i in range(_COLUMNS))
    said = [min(percent, 100.0) for percent in computed if percent is not None]
    used = [mib for mib in memory if mib is not None]
    watts = [each for each in power if each is not None]
    return Sample(
        percent=sum(said) / len(said) if said else None,
        is_idle=False if any(said) else (True if len(said) == len(rows) else None),
        memory_mib=max(used, default=None),
        power_w=sum(watts) if len(watts) == len(rows) else None,
    )


def _number(cell: str) -> float | None:
    cell = cell.strip()
    return float(cell) if cell.isascii() and cell.replace(".", "", 1).isdigit() else None


@dataclass(frozen=True, kw_only=True)
class GpuUse(Record):
    """Samples, summed up.

    Attributes:
        samples: How many report utilization.
        percents, highest: The sum and the maximum of the reported values.
        memory_mib_max: The most memory that one GPU had in use; None if no sample reports it.
        watts, power_samples: The sum of the GPUs' power, and how many samples report it.
    """

    samples: int = 0
    percents: float = 0.0
    highest: float = 0.0
    memory_mib_max: float | None = None
    watts: float = 0.0
    power_samples: int = 0

    def plus(self, sample: Sample) -> GpuUse:
        """Return it with one more sample."""
        percent = sample.percent
        memory = [mib for mib in (self.memory_mib_max, sample.memory_mib) if mib is not None]
        return GpuUse(
            samples=self.samples + (percent is not None),
            percents=self.percents + (percent or 0.0),
            highest=max(self.highest, percent or 0.0),
            memory_mib_max=max(memory, default=None),
            watts=self.watts + (sample.power_w or 0.0),
            power_samples=self.power_samples + (sample.power_w is not None),
        )

    @property
    def is_known(self) -> bool:
        """Whether any sample reports a value."""
        return bool(self.samples or self.power_samples or self.memory_mib_max is not None)

    @property
    def mean(self) -> float | None:
        """The GPUs' utilization in percent; None if no sample reports it."""
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
            "computed_fraction": None if mean is None else round(mean / 100, 3),
        }

    def in_words(self) -> str:
        """Return it as a human-readable line."""
        mean = self.mean
        computed = "it is unknown how much the GPUs computed"
        if mean is not None:
            computed = f"the GPUs computed {mean:.0f} % of the time"
        if self.memory_mib_max is not None:
            computed += f", with at most {_size(self.memory_mib_max)} of a GPU's memory in use"
        return f"{computed} ({self.samples} sample{'s' if self.samples != 1 else ''})"


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
