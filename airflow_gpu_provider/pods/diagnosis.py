"""What a failed pod died of, where its last lines or its node tell more than an exit code. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_gpu_provider.accelerators import GPUS
from airflow_gpu_provider.errors import BadGpu, DriverMissing, GpuOutOfMemory, PodFailed
from airflow_gpu_provider.pods.last_words import last_word
from airflow_gpu_provider.pools import GpuPool

_SHOWN = 10


def diagnosed(error: PodFailed, lines: Sequence[str], *, pool: GpuPool, node: str, bad_gpu: str) -> PodFailed:
    """Return the failure with its last lines, and with the type that they or the node's state give it.

    Args:
        error: How the pod ended, by its exit code.
        lines: The last lines of its log.
        pool: Where it ran; what is known of its GPUs goes into the message.
        node: The node that it ran on.
        bad_gpu: Why that node's GPUs are not to be trusted, or empty.
    """
    details = {**error.details, "node": node, "last_lines": [*lines[-_SHOWN:]]} if lines else error.details
    word = last_word([error.what, *lines], exit_code=error.details.get("exit_code"))
    what = error.what.rstrip(".")
    if word and word.cause == "gpu memory":
        return GpuOutOfMemory(
            f"{what}: it ran out of GPU memory{_gpu_memory(pool)} ({word.line}).",
            "Lower the batch size, use mixed precision, or take a pool with more memory on each GPU.",
            **details,
        )
    if bad_gpu or (word and word.cause == "gpu"):
        why = word.line if word and word.cause == "gpu" else bad_gpu
        return BadGpu(
            f"{what}: a GPU of node {node} is broken ({why}).",
            "Retry the task: the next try goes to another node.",
            **details,
        )
    if word:
        return DriverMissing(
            f"{what}: it found no usable NVIDIA driver on node {node} ({word.line}).",
            "Compare the CUDA version of the image with the node's driver, and look at the pool's driver pods.",
            **details,
        )
    if not lines:
        return error
    return PodFailed(error.what, "\n".join(["Its last lines:", *lines[-_SHOWN:]]), **details)


def _gpu_memory(pool: GpuPool) -> str:
    known = [f"{name} with {GPUS[name].memory_gib} GiB" for name in pool.gpu_products if name in GPUS]
    return f"; pool {pool.name} has {' or '.join(known)} each" if known else ""
