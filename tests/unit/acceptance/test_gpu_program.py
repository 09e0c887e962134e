"""The pod's program says what is missing; how it adds on a GPU is tried where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from airflow_gpu_provider.acceptance import gpu_program


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A folder that is all of PATH: what an image has."""
    for name in ("sh", "base64", "grep", "tee", "head"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    return tmp_path


def put(image: Path, name: str, script: str) -> None:
    (image / name).write_text(f"#!/bin/sh\n{script}\n")
    (image / name).chmod(0o755)


def run(image: Path) -> subprocess.CompletedProcess[str]:
    command = [str(image / "sh"), *gpu_program.COMMAND[1:]]
    return subprocess.run(
        command, env={"PATH": str(image), "TMPDIR": str(image)}, capture_output=True, text=True, check=False, cwd=image
    )


def test_without_nvidia_smi_it_says_so(image: Path) -> None:
    done = run(image)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (10, "nvidia-smi failed")


def test_an_image_with_nothing_that_adds_is_told(image: Path) -> None:
    put(image, "nvidia-smi", "echo NVIDIA-SMI")
    done = run(image)
    assert done.returncode == 11
    assert "The image has nothing that adds on a GPU" in done.stdout


def test_what_fails_to_add_is_followed_by_the_next(image: Path) -> None:
    put(image, "nvidia-smi", "echo NVIDIA-SMI")
    put(image, "vectorAdd", "echo 'Failed to allocate device vector A'; exit 1")
    put(image, "python3", 'echo "python3 runs $1"; exit 1')
    put(image, "nvcc", 'echo "nvcc runs"; exit 1')
    done = run(image)
    assert done.returncode == 11
    said = done.stdout.splitlines()
    assert [said.index(line) for line in (f"python3 runs {image}/add.py", "nvcc runs")] == [3, 4]


def test_the_python_program_compiles_and_its_kernel_ends_as_the_driver_wants() -> None:
    compile(gpu_program._PYTHON, "add.py", "exec")
    kernel = gpu_program._PYTHON.partition("PTX = ")[2].partition("\nN = ")[0]
    assert eval(kernel).endswith(b"}\n\0")
