"""Why a pod failed, if its last log lines or its node say more than an exit code. Pure.

Sources for what its lines say about the GPU or the driver: the texts of torch, CuPy, JAX, TensorFlow and the CUDA
runtime and driver API for these errors; the XIDs from NVIDIA's "XID Errors" catalogue, less those that a program causes
itself (13, 31, 43, 45, 68: which the device plugin does not count against a GPU either).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from airflow_gpu_provider.accelerators import GPUS
from airflow_gpu_provider.cluster.pod_log import lines_of, shown
from airflow_gpu_provider.errors import BadGpu, DriverMissing, GpuOutOfMemory, PodFailed
from airflow_gpu_provider.pods.log_end import last_error
from airflow_gpu_provider.pools import GpuPool

Cause = Literal["gpu memory", "driver", "gpu"]

BAD_XIDS = frozenset({48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 143})

_COMMAND_NOT_FOUND = 127

_OF_GPU = re.compile(r"\b(?:CUDA|NCCL|GPU)", re.IGNORECASE)
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+)")
_TEXTS: dict[Cause, tuple[str, ...]] = {
    "gpu memory": (
        r"CUDA out of memory",
        r"CUDA error: out of memory",
        r"torch(\.cuda)?\.OutOfMemoryError",
        r"cudaErrorMemoryAllocation",
        r"CUDA_ERROR_OUT_OF_MEMORY",
        r"cupy.*OutOfMemoryError",
        r"RESOURCE_EXHAUSTED: Out of memory",
        r"ResourceExhaustedError.*OOM when allocating",
    ),
    "driver": (
        r"CUDA driver version is insufficient",
        r"no CUDA-capable device is detected",
        r"Found no NVIDIA driver on your system",
        r"NVIDIA driver on your system is too old",
        r"NVIDIA-SMI has failed",
        r"Driver/library version mismatch",
        r"libcuda\.so(\.1)?: cannot open shared object file",
        r"cudaErrorInsufficientDriver",
        r"cudaErrorNoDevice",
        r"CUDA_ERROR_NO_DEVICE",
        r"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    ),
    "gpu": (
        r"uncorrectable (double[- ]bit )?ECC error",
        r"cudaErrorECCUncorrectable",
        r"CUDA_ERROR_ECC_UNCORRECTABLE",
        r"uncorrectable NVLink error",
        r"GPU has fallen off the bus",
        r"GPU is lost",
    ),
}
_SIGNS = {cause: re.compile("|".join(texts), re.IGNORECASE) for cause, texts in _TEXTS.items()}
_NO_NVIDIA_SMI = re.compile(r"nvidia-smi: (command )?not found|exec: \"nvidia-smi\"", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class LastWord:
    """The line that says why a container failed."""

    cause: Cause
    line: str


def last_word(lines: Sequence[str], *, exit_code: int | None = None) -> LastWord | None:
    """Return the line of the program's last error that names the GPU or its driver as the cause, or None.

    A missing nvidia-smi is a cause only if the shell's exit code says that a missing command ended the container. What
    the kernel said of the GPU counts wherever it is, if the last error is one of CUDA's: that does not say more.
    """
    told = last_error(lines)
    for line in told:
        if cause := _cause(line, exit_code):
            return LastWord(cause=cause, line=line.strip())
    if any(_OF_GPU.search(line) for line in told):
        return next(
            (LastWord(cause="gpu", line=shown(line).strip()) for line in lines[::-1] if _is_bad_xid(line)), None
        )
    return None


def _cause(line: str, exit_code: int | None) -> Cause | None:
    if _XID.search(line):
        return "gpu" if _is_bad_xid(line) else None
    if exit_code == _COMMAND_NOT_FOUND and _NO_NVIDIA_SMI.search(line):
        return "driver"
    return next((cause for cause, sign in _SIGNS.items() if sign.search(line)), None)


def _is_bad_xid(line: str) -> bool:
    return not BAD_XIDS.isdisjoint(int(number) for number in _XID.findall(line))


_SHOWN = 10


def diagnosed(error: PodFailed, lines: Sequence[str], *, pool: GpuPool, node: str, bad_gpu: str) -> PodFailed:
    """Return the failure with its last log lines, and with the type that these or the node's state imply.

    Args:
        error: How the pod ended, by its exit code.
        lines: The last lines of its log.
        pool: Where it ran; what is known about its GPUs goes into the message.
        node: The node that it ran on.
        bad_gpu: Why that node's GPUs cannot be trusted; empty if they can.
    """
    last = [shown(line) for line in lines[-_SHOWN:]]
    details = {**error.details, "node": node, "last_lines": last} if lines else error.details
    exit_code = error.details.get("exit_code")
    word = last_word(lines, exit_code=exit_code) or last_word(lines_of(error.what), exit_code=exit_code)
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
    return PodFailed(error.what, "\n".join(["Its last lines:", *last]), **details)


def _gpu_memory(pool: GpuPool) -> str:
    known = [f"{name} with {GPUS[name].memory_gib} GiB" for name in pool.gpu_products if name in GPUS]
    return f"; pool {pool.name} has {' or '.join(known)} each" if known else ""
