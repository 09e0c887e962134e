"""What a container's last lines of log say about a failure that is the GPU's or the driver's, not the program's. Pure.

Sources: the texts of torch, CuPy, JAX, TensorFlow and the CUDA runtime and driver API for these errors; the XIDs by
NVIDIA's "XID Errors" catalogue, less those that a program causes itself (13, 31, 43, 45, 68: the ones that the device
plugin does not hold against a GPU either).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Cause = Literal["gpu memory", "driver", "gpu"]

BAD_XIDS = frozenset({48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 143})

_COMMAND_NOT_FOUND = 127

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
    """The line that tells why a container failed."""

    cause: Cause
    line: str


def last_word(lines: Sequence[str], *, exit_code: int | None = None) -> LastWord | None:
    """Return the last line that names the GPU or its driver as the cause, or None.

    The last one, because what a program met and got over comes before what ended it. A missing nvidia-smi is a cause
    only where the shell's exit code says that a missing command ended the container.
    """
    for line in reversed(lines):
        if cause := _cause(line, exit_code):
            return LastWord(cause=cause, line=line.strip())
    return None


def _cause(line: str, exit_code: int | None) -> Cause | None:
    if xids := [int(number) for number in _XID.findall(line)]:
        return "gpu" if _is_bad(xids) else None
    if exit_code == _COMMAND_NOT_FOUND and _NO_NVIDIA_SMI.search(line):
        return "driver"
    return next((cause for cause, sign in _SIGNS.items() if sign.search(line)), None)


def _is_bad(xids: Iterable[int]) -> bool:
    return not BAD_XIDS.isdisjoint(xids)
