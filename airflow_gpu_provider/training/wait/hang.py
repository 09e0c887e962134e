"""Whether a training hangs: it prints nothing, or its GPUs are busy at a draw near that of idle ones. Pure.

A collective that waits for another rank spins in a kernel: nvidia-smi shows 100 % use, at the draw of an idle GPU
(NVIDIA/nccl#968: some 70 W). One reading says nothing: `power.draw` is an average over a second from Ampere on, but
the present value on GA100 (nvidia-smi --help-query-gpu), and the sensors of A100 and H100 see a quarter of the time
(arXiv 2312.02741). So each sample in a row has to say so, of each GPU of each pod, and each pod has to have several.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from statistics import median_low
from typing import Any

from airflow_gpu_provider.scaling.wait.wait_loop import format_seconds
from airflow_gpu_provider.training.wait.first_failure import Rank
from airflow_gpu_provider.training.wait.gpu_use import BUSY, GPUS_KEPT, OF_LIMIT, Reading, Sample

NEAR_IDLE = 1.3
"""At most so many times its draw at 0 % use is near idle: what matters for a small GPU, which idles at a third."""
RAISE_HANG_TIMEOUT = "Raise hang_timeout if it may be silent for so long."
LEAST_SAMPLES = 3
"""So many samples of a pod at least count, whatever the window is."""
_IDLE_SAMPLES = 3
_JITTER = 0.01  # of the time between samples
_IDLE_KEPT = 15


@dataclass(frozen=True, kw_only=True)
class Silence:
    """For pods that are all followed: for how long none has printed anything, and each one's last line."""

    lasts: timedelta
    last_lines: Mapping[Rank, str]

    def since(self, started_at: datetime, now: datetime) -> timedelta:
        """Return for how long it has lasted since the container started, or the last one of a gang."""
        return min(self.lasts, now - started_at)

    @property
    def by_rank(self) -> dict[str, str]:
        """The last lines, the lowest rank's first, as an error's details have them."""
        return {str(rank): line for rank, line in sorted(self.last_lines.items(), key=lambda item: item[0])}


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
