"""One sandbox with Kueue, JobSet and Kubeflow Trainer: their controllers take CPU for as long as they run."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from gpu_sandbox.aws import AwsTimings
from gpu_sandbox.demo_trainings import training_image
from gpu_sandbox.engines import ENGINES
from gpu_sandbox.sandbox import Sandbox


@pytest.fixture(scope="package")
def engines_sandbox() -> Iterator[Sandbox]:
    """One from the first file of this folder to its last, beside `gpu_sandbox`; it ends the controllers' processes."""
    timings = AwsTimings(stale=0.0)
    with Sandbox(
        cluster_name="engines",
        account_id="555555555555",
        engines=tuple(ENGINES),
        images=(training_image(),),
        timings=timings,
        progress=print,
    ) as sandbox:
        processes = engine_processes()
        yield sandbox
    assert [name for name, process in processes.items() if process.is_running()] == []


def engine_processes() -> dict[str, psutil.Process]:
    """This process' engines, by name."""
    lines = {process: process.cmdline()[1:2] for process in psutil.Process().children()}
    return {line[0]: process for process, line in lines.items() if line and line[0] in ENGINES}
