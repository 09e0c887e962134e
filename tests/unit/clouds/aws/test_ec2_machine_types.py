"""EC2's types in the catalogue agree with the sandbox's rows, which are DescribeInstanceTypes' by way of moto."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.clouds.aws.machine_types import arch_of, instance_type, instance_types
from gpu_sandbox.aws.instance_types import InstanceTypeCatalogue

EC2 = InstanceTypeCatalogue("us-west-2")
_ARCHS = {"x86_64": "amd64", "arm64": "arm64"}


@pytest.mark.parametrize("name", instance_types())
def test_a_type_is_what_ec2_describes(name: str) -> None:
    ours, gpus = instance_type(name), EC2.nvidia_gpus(name)
    assert ours is not None
    assert gpus is not None
    (arch,) = EC2.architectures(name)
    found = (ours.gpus, ours.vcpus, ours.memory_gib, ours.arch, ours.gpu.product)
    assert found == (gpus.count, EC2.vcpus(name), EC2.memory_bytes(name) / 2**30, _ARCHS[arch], gpus.product)


@pytest.mark.parametrize("name", instance_types())
def test_a_gpu_has_the_memory_that_ec2_describes(name: str) -> None:
    """EC2 has what the driver has of it, and the catalogue what it is sold with."""
    ours, gpus = instance_type(name), EC2.nvidia_gpus(name)
    assert ours is not None
    assert gpus is not None
    assert 0.92 * ours.gpu.memory_gib <= gpus.memory_mib / 1024 < ours.gpu.memory_gib + 1


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
