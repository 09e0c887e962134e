"""What a pod's GPUs did, from nvidia-smi samples; and for how long they are idle, or busy near the draw of idle ones.

`utilization.gpu` is the share of the last sample period (between 1/6 s and 1 s: nvmlUtilization_t in NVIDIA's NVML
reference) in which a kernel ran on the GPU, so the mean of samples is the share of time in which the GPUs computed.
A value that a GPU does not report is a word in brackets, like "[N/A]", "[Not Supported]" or "[Unknown Error]"; for a
GPU in MIG mode, this includes its utilization. It stays unknown. Pure.

A collective that waits for another rank spins in a kernel: nvidia-smi shows 100 % use, at the draw of an idle GPU
(NVIDIA/nccl#968: some 70 W). Measured on an H200 of 700 W: 80 W without a program, 123 W with one at 0 % use, 123 to
126 W where a kernel spins on one to all of its multiprocessors, 689 W in a product of matrices. One reading says
nothing: `power.draw` is an average over a second from Ampere on, but the present value on GA100 (nvidia-smi
--help-query-gpu), and the sensors of A100 and H100 see a quarter of the time (arXiv 2312.02741). So each sample in a
row has to say so, of each GPU of each pod, and each pod has to have several.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil
from statistics import median_low
from typing import Any

from airflow_gpu_provider.scaling.wait.records import Record
from airflow_gpu_provider.times import format_seconds

Rank = int | str
"""Identifies a pod among those of one object: its rank in a gang, otherwise its name within its kind."""

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
"""At most this share of its power limit is a draw near idle."""
NEAR_IDLE = 1.3
"""At most so many times its draw at 0 % use is near idle: what matters for a small GPU, which idles at a third."""
LEAST_SAMPLES = 3
"""So many samples of a pod at least count, whatever the window is."""
_IDLE_SAMPLES = 3
_JITTER = 0.01  # of the time between samples
_IDLE_KEPT = 15
_COLUMNS = 4
_MOST_LINES = 256
_NUMBER = re.compile(r"\s{0,9}[0-9]{1,9}(?:\.[0-9]{0,9})?\s{0,9}")
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
    """Parse the output of a query; None if it has no line for a GPU. An image may run any program by that name."""
    cells = [line.split(",") for line in text.split("\n")[:_MOST_LINES]]
    rows = [[_number(cell) for cell in row] for row in cells if len(row) == _COLUMNS]
    gpus = tuple(
        Reading(
            percent=None if percent is None else min(percent, 100.0), memory_mib=memory, power_w=power, limit_w=limit
        )
        for percent, memory, power, limit in rows
    )
    return Sample(gpus) if gpus else None


def _number(cell: str) -> float | None:
    return float(cell) if _NUMBER.fullmatch(cell) else None


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

    rank: Rank = 0
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

    def plus(self, sample: Sample, rank: Rank = 0) -> GpuUse:
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

    def to_json(self, *, has_hung: bool = False) -> dict[str, Any]:
        """Return it for XCom; how much they computed is not known of a training that has hung."""
        mean = None if has_hung else self.mean
        return {
            **super().to_json(),
            "computed_fraction": None if mean is None else round(mean / 100, 3),
            "gpus": [use.to_json() for use in self.gpus],
        }

    def in_words(self, *, has_hung: bool = False) -> str:
        """Return it as a human-readable line."""
        mean = self.mean
        computed = "it is unknown how much the GPUs computed"
        if mean is not None and has_hung:
            computed = f"the GPUs were busy {mean:.0f} % of the time{self._apart()}, which in a hang is no work"
        elif mean is not None:
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


class Spinning:
    """For how long all GPUs of all pods have been busy at a draw near idle, from samples of one pod after another.

    Args:
        every: Seconds from one sample to the next. Each stands for the time around it, half before and half after.
    """

    def __init__(self, every: float) -> None:
        self._every = every
        self._idle: defaultdict[tuple[Rank, int], deque[float]] = defaultdict(lambda: deque(maxlen=_IDLE_KEPT))
        self._since: float | None = None
        self._samples: Counter[Rank] = Counter()
        self._latest: dict[Rank, Sample] = {}
        self.seconds = 0.0
        self.is_unknown = False
        """A GPU does not report its use or power, as in MIG mode or of a vGPU: then nothing can be told."""

    def restart(self) -> None:
        """Begin again: a pod has started, for which the others may have waited."""
        self._since, self.seconds = None, 0.0
        self._samples.clear()
        self._latest.clear()

    def take(self, rank: Rank, sample: Sample | None, at: float) -> None:
        """Take a rank's sample, at a monotonic time in seconds; None: it was not answered."""
        spins = [self._spins((rank, gpu), seen) for gpu, seen in enumerate(sample.gpus)] if sample else [False]
        self.is_unknown = None in spins
        if sample is None or not all(spins):
            self.restart()
            return
        self._since = at if self._since is None else self._since
        self._samples[rank] += 1
        self._latest[rank] = sample
        self.seconds = at - self._since + self._every

    def lasts(self, seconds: float | None, ranks: Collection[Rank]) -> bool:
        """Return True if it has lasted this long, in each sample of each of these; None is never."""
        seen_enough = all(self._samples[rank] >= LEAST_SAMPLES for rank in ranks)
        if seconds is None or self._since is None:
            return False
        return seen_enough and self.seconds + _JITTER * self._every >= seconds

    def pods_to_ask(self, pods: int, seconds: float) -> int:
        """Return how many of its pods to sample at once, so that all have enough samples in a window of this length."""
        if self._since is None:
            return 1
        return max(1, min(pods, ceil(LEAST_SAMPLES * pods * self._every / seconds)))

    def _spins(self, gpu: tuple[Rank, int], seen: Reading) -> bool | None:
        """Return whether one GPU is busy at a draw near idle; None if it does not say."""
        if seen.percent is None or seen.power_w is None:
            return None
        if seen.percent == 0:
            self._idle[gpu].append(seen.power_w)
        if seen.percent < BUSY:
            return False
        near = self._near_idle(gpu, seen.limit_w)
        return None if near is None else seen.power_w < near

    def _near_idle(self, gpu: tuple[Rank, int], limit_w: float | None) -> float | None:
        """Return below how many watts it is near idle. The median: a sensor that averages lags behind the work."""
        idle = self._idle[gpu]
        near = [NEAR_IDLE * median_low(idle)] if len(idle) >= _IDLE_SAMPLES else []
        return max((*near, *([] if limit_w is None else [OF_LIMIT * limit_w])), default=None)

    # -- words -----------------------------------------------------------------------------------------------

    @property
    def in_words(self) -> str:
        """For how long, and at which draw, as the end of a sentence."""
        return f"busy for {format_seconds(timedelta(seconds=self.seconds))} {self.draw}"

    @property
    def draw(self) -> str:
        """At which draw they are busy, as the end of a sentence."""
        watts = [seen.power_w for sample in self._latest.values() for seen in sample.gpus if seen.power_w is not None]
        low, high = min(watts, default=0.0), max(watts, default=0.0)
        draw = f"{high:.0f} W" if round(low) == round(high) else f"{low:.0f} to {high:.0f} W"
        limits = {seen.limit_w for sample in self._latest.values() for seen in sample.gpus if seen.limit_w is not None}
        of_limit = f" of {max(limits):.0f} W" if limits else ""
        return f"at a draw near that of idle ones ({draw}{of_limit} each)"

    @property
    def details(self) -> list[dict[str, Any]]:
        """What each GPU reported last, for an error: GPUS_KEPT of them at most."""
        each = [
            {
                "rank": rank,
                "gpu": gpu,
                "percent": seen.percent,
                "power_w": seen.power_w,
                "power_limit_w": seen.limit_w,
            }
            for rank, sample in self._latest.items()
            for gpu, seen in enumerate(sample.gpus)
        ]
        return each[:GPUS_KEPT]
