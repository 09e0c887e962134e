"""What is too large for a container's environment is refused, exactly where Linux refuses it."""

from __future__ import annotations

import subprocess
from contextlib import nullcontext
from typing import Any

import pytest
from kubernetes.client import models as k8s

from airflow_gpu_provider import GpuPodOperator
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.training.place.pod_placement import LARGEST, check_environment
from tests.unit.training.test_pod_placement import a_pool

FITS, TOO_LARGE = "x" * (LARGEST - len("A=\0")), "x" * (LARGEST - len("A=\0") + 1)


@pytest.mark.parametrize(("value", "fits"), [(FITS, True), (TOO_LARGE, False)])
def test_limit_is_that_of_this_machine(value: str, fits: bool) -> None:
    variable = k8s.V1EnvVar(name="A", value=value)
    words = [value + "A="]  # as long as the variable
    with nullcontext() if fits else pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["/bin/true"], env={"A": value}, check=True)
    for arguments in ({"env": [variable]}, {"command": words}, {"args": words}):
        with nullcontext() if fits else pytest.raises(PoolSpecError, match="of container side: 128 KiB"):
            check_environment([k8s.V1Container(name="side", **arguments)])


def test_letters_count_in_bytes_and_sources_by_reference_do_not() -> None:
    by_reference = k8s.V1EnvVar(name="B", value_from=k8s.V1EnvVarSource())
    check_environment([k8s.V1Container(name="base", env=[by_reference], args=["é" * 60_000])])
    with pytest.raises(PoolSpecError, match="An argument of container base"):
        check_environment([k8s.V1Container(name="base", args=["é" * 70_000])])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"env_vars": {"ROWS": TOO_LARGE}}, "The environment variable ROWS: 128 KiB"),
        (
            {"env_vars": [k8s.V1EnvVar(name="ROWS", value=TOO_LARGE)]},
            "The environment variable ROWS: 128 KiB",
        ),
        ({"arguments": ["--rows", TOO_LARGE * 2]}, "Task train: An argument: 256 KiB"),
        ({"cmds": ["sh", "-c", TOO_LARGE * 2]}, "Task train: An argument: 256 KiB"),
    ],
)
def test_it_is_seen_when_the_dag_is_parsed(arguments: dict[str, Any], says: str) -> None:
    for make in (GpuPodOperator, GpuPodOperator.partial):
        with pytest.raises(PoolSpecError, match=says):
            make(task_id="train", gpu_pool=a_pool(), **arguments)
