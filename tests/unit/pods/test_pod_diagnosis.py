"""The type that a failure gets from its last lines and its node."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.errors import BadGpu, DriverMissing, GpuOutOfMemory, PodFailed
from airflow_gpu_provider.pods.diagnosis import diagnosed
from tests.unit.pods.test_pod_placement import a_pool

FAILED = PodFailed("Pod train-x: container base ended with exit code 1.", "", pod="train-x", exit_code=1)


def diagnosis(*lines: str, bad_gpu: str = "", error: PodFailed = FAILED) -> PodFailed:
    return diagnosed(error, lines, pool=a_pool(), node="n1", bad_gpu=bad_gpu)


def test_gpu_memory_names_what_the_pool_has() -> None:
    error = diagnosis("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB")
    assert type(error) is GpuOutOfMemory
    assert "L4 with 24 GiB" in error.what
    assert not error.retryable
    assert error.details["exit_code"] == 1


def test_an_engine_without_room_for_its_cache_gets_advice_of_its_own() -> None:
    error = diagnosis("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`")
    assert type(error) is GpuOutOfMemory
    assert "L4 with 24 GiB" in error.what
    assert "max_model_len" in error.fix
    assert "batch" not in error.fix


def test_driver() -> None:
    error = diagnosis("CUDA driver version is insufficient for CUDA runtime version")
    assert type(error) is DriverMissing
    assert "n1" in error.what


def test_nvidia_smi_that_the_runtime_did_not_find() -> None:
    what = 'Pod x: container base ended with exit code 127: exec: "nvidia-smi": executable file not found in $PATH.'
    assert type(diagnosis(error=PodFailed(what, "", exit_code=127))) is DriverMissing


@pytest.mark.parametrize("lines", [["CUDA error: uncorrectable ECC error encountered"], ["exit"], []])
def test_bad_gpu_by_log_or_by_node(lines: list[str]) -> None:
    error = diagnosis(*lines, bad_gpu="" if lines[:1] and "ECC" in lines[0] else "GpuUnhealthy=True")
    assert type(error) is BadGpu
    assert error.retryable
    assert "n1" in error.what


def test_memory_is_the_programs_even_on_a_bad_node() -> None:
    assert type(diagnosis("CUDA out of memory", bad_gpu="GpuUnhealthy=True")) is GpuOutOfMemory


def test_other_failures_keep_their_last_ten_lines() -> None:
    error = diagnosis(*(f"line {number}" for number in range(100)))
    assert type(error) is PodFailed
    assert error.details["last_lines"] == [f"line {number}" for number in range(90, 100)]
    assert diagnosis() is FAILED


def test_a_line_shows_what_a_terminal_would() -> None:
    error = diagnosis("\r".join(f"{at}%|####" for at in range(9000)), "KeyError: 'label'")
    assert str(error).endswith("Its last lines:\n8999%|####\nKeyError: 'label'")


def test_the_error_that_ended_the_program_decides() -> None:
    survived = ["torch.OutOfMemoryError: CUDA out of memory.", "skipping the batch", "step 7 loss 2.1"]
    later = ["Traceback (most recent call last):", '  File "train.py", line 1, in save', "ConnectionError: S3 is away"]
    assert type(diagnosis(*survived, *later)) is PodFailed
    assert diagnosis(*survived, *later).retryable
