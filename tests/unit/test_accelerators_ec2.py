"""EC2's types in the catalogue agree with what DescribeInstanceTypes says: moto has its answers."""

from __future__ import annotations

from typing import Any

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from airflow_gpu_provider.accelerators import arch_of, instance_type, instance_types

_ARCHS = {"x86_64": "amd64", "arm64": "arm64"}
_RETIRED = {"p2.xlarge", "p2.8xlarge", "p2.16xlarge", "p3.2xlarge", "p3.8xlarge", "p3.16xlarge"}
_NOT_IN_EACH_REGION = {"p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"}


def described(name: str) -> tuple[str, int, int, float, str]:
    """The GPU's name, GPUs that pods can ask for, vCPUs, GiB and processors."""
    found: dict[str, Any] = INSTANCE_TYPES[name]
    (gpu,) = found["GpuInfo"]["Gpus"]
    (arch,) = found["ProcessorInfo"]["SupportedArchitectures"]
    memory = found["MemoryInfo"]["SizeInMiB"] / 1024
    return gpu["Name"], gpu["LogicalGpuCount"], found["VCpuInfo"]["DefaultVCpus"], memory, _ARCHS[arch]


@pytest.mark.parametrize("name", [each for each in instance_types() if each in INSTANCE_TYPES])
def test_the_catalogue_says_what_ec2_says(name: str) -> None:
    ours = instance_type(name)
    assert ours is not None
    gpu, *theirs = described(name)
    assert [ours.gpus, ours.vcpus, ours.memory_gib, ours.arch] == theirs
    assert ours.gpu.name.startswith(gpu.replace("Server ", "").replace(" ", "-").upper())


@pytest.mark.parametrize("name", [each for each in instance_types() if each in INSTANCE_TYPES])
def test_a_gpu_has_the_memory_that_ec2_says(name: str) -> None:
    """EC2 tells what the driver has of it, and the catalogue what it is sold with."""
    ours, (gpu,) = instance_type(name), INSTANCE_TYPES[name]["GpuInfo"]["Gpus"]
    assert ours is not None
    assert 0.92 * ours.gpu.memory_gib <= gpu["MemoryInfo"]["SizeInMiB"] / 1024 < ours.gpu.memory_gib + 1


def test_what_ec2_has_is_compared() -> None:
    assert {each for each in instance_types() if each not in INSTANCE_TYPES} <= _RETIRED | _NOT_IN_EACH_REGION


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("g5g.xlarge", "arm64"),
        ("p6e-gb200.36xlarge", "arm64"),
        ("p6e-gb300.36xlarge", "arm64"),
        ("g9g.xlarge", "arm64"),
        ("g7e.2xlarge", "amd64"),
        ("p6-b300.48xlarge", "amd64"),
        ("g9.xlarge", None),
    ],
)
def test_processors_are_known_by_the_family_where_the_type_is_newer(name: str, arch: str | None) -> None:
    assert arch_of(name) == arch
