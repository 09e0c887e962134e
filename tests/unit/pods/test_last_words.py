"""The texts by which libraries and drivers say that the GPU, its memory or its driver ended a program."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.pods.diagnosis import last_word

TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 21.96 GiB "
    "of which 9.06 MiB is free."
)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (TORCH, "gpu memory"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "gpu memory"),
        ("RuntimeError: CUDA error: out of memory", "gpu memory"),
        ("cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory", "gpu memory"),
        ("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes", "gpu memory"),
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to", "gpu memory"),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", "driver"),
        ("cudaErrorNoDevice: no CUDA-capable device is detected", "driver"),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", "driver"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "driver"),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver"),
        ("NVRM: Xid (PCI:0000:00:1e): 79, pid=1234, GPU has fallen off the bus.", "gpu"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu"),
        ("NVRM: Xid (PCI:0000:00:1e): 48, pid='<unknown>', DBE", "gpu"),
    ],
)
def test_words(line: str, cause: str) -> None:
    word = last_word(["Traceback (most recent call last):", line, "terminating"])
    assert word is not None
    assert (word.cause, word.line) == (cause, line)


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "NVRM: Xid (PCI:0000:00:1e): 13, pid=1234, Graphics Exception",
        "NVRM: Xid (PCI:0000:00:1e): 31, pid=1234, MMU Fault",
        "MemoryError: Unable to allocate 8.00 GiB for an array",
        "ValueError: no such data set",
    ],
)
def test_a_programs_own_fault(line: str) -> None:
    assert last_word([line]) is None


def test_the_last_cause_counts() -> None:
    word = last_word([TORCH, "trying again with half the batch", "CUDA error: uncorrectable ECC error encountered"])
    assert word is not None
    assert word.cause == "gpu"


@pytest.mark.parametrize(
    ("last", "is_cause"),
    [("RuntimeError: CUDA error: unspecified launch failure", True), ("KeyError: 'label'", False)],
)
def test_what_the_kernel_said_explains_an_error_of_cuda(last: str, is_cause: bool) -> None:
    xid = "NVRM: Xid (PCI:0000:00:1e): 79, pid=1234, GPU has fallen off the bus."
    word = last_word([xid, "Traceback (most recent call last):", '  File "train.py", line 1', last])
    assert (word is not None and word.line == xid) is is_cause


@pytest.mark.parametrize(("exit_code", "is_cause"), [(127, True), (1, False)])
def test_missing_nvidia_smi_is_a_cause_only_if_it_ended_the_container(exit_code: int, is_cause: bool) -> None:
    assert (last_word(["sh: 1: nvidia-smi: not found"], exit_code=exit_code) is not None) is is_cause
