"""Whether an image's pull was a large part of a training's start, and what would have made it shorter. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow_gpu_provider.platforms.aws.fast_start import has_local_disk
from airflow_gpu_provider.pools import EksGpuPool, GkeGpuPool, GpuPool
from airflow_gpu_provider.scaling.wait.waits import format_seconds

WORTH_A_MINUTE, WORTH_A_SHARE = 60.0, 0.2
"""Told is a pull of a minute that was at least this share of the time to the container's start."""

_BEFORE = ("waited for a node", "start")


def slow_pull(phases: Sequence[Mapping[str, Any]], pool: GpuPool) -> str:
    """Return what to tell of the slowest pull of an attempt; empty where it was not long.

    Args:
        phases: The attempt's, as `pod_wait.timeline` has them.
        pool: Its (rendered) spec.
    """
    pulls = [each for each in phases if "image" in each]
    seconds = sum(each["seconds"] for each in pulls)
    whole = seconds + sum(each["seconds"] for each in phases if each["phase"] in _BEFORE)
    if seconds < WORTH_A_MINUTE or seconds < WORTH_A_SHARE * whole:
        return ""
    slowest = max(pulls, key=lambda each: float(each["seconds"]))
    took = f"the pull of {slowest['image']} took {_words(slowest['seconds'])} of {_words(whole)} to the start"
    return f"{took}: {'; '.join(remedies(pool))} (docs/fast-start.md)"


def remedies(pool: GpuPool) -> list[str]:
    """Return what makes a pull shorter for the pool, or hides it."""
    found = ["gpu_nodes(prefetch=[...]) begins it when the node joins"]
    if isinstance(pool, GkeGpuPool) and not pool.image_streaming and pool.manage == "full":
        found.append("image_streaming=True starts containers before their images are all there")
    if isinstance(pool, EksGpuPool) and not pool.fast_start:
        disks = [name for name in pool.instance_types if has_local_disk(name)]
        have = f"{', '.join(disks)} {'have' if len(disks) > 1 else 'has'} a local NVMe" if disks else ""
        by = "fast_start=True makes images go to a faster disk" if pool.manage == "full" else ""
        found += filter(None, [", ".join(filter(None, (by, have)))])
    return found


def _words(seconds: float) -> str:
    return format_seconds(timedelta(seconds=seconds))
