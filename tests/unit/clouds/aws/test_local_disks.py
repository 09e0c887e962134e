"""Which types have local disks agrees with what DescribeInstanceTypes says: moto has its answers."""

from __future__ import annotations

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from airflow_gpu_provider.clouds.aws.machine_types import instance_types
from airflow_gpu_provider.clouds.aws.rules import has_local_disk


@pytest.mark.parametrize("name", [each for each in instance_types() if each in INSTANCE_TYPES])
def test_a_type_has_the_disk_that_ec2_says(name: str) -> None:
    assert has_local_disk(name) == bool(INSTANCE_TYPES[name].get("InstanceStorageInfo"))


def test_a_type_that_is_not_known_is_not_promised_a_disk() -> None:
    assert not has_local_disk("g99.xlarge")
