"""Which launch templates go with a pool."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.platforms.aws.launch_templates import check_fits
from tests.unit.platforms.aws.test_eks_spec import spec


@pytest.mark.parametrize(
    ("ami_type", "data", "said"),
    [
        ("AL2023_x86_64_NVIDIA", {"UserData": ""}, None),
        ("AL2023_x86_64_NVIDIA", {"InstanceType": "g6.xlarge"}, "names an instance type, g6.xlarge"),
        ("AL2023_x86_64_NVIDIA", {"ImageId": "ami-1"}, "names an image, ami-1, and the pool has ami_type AL2023"),
        ("CUSTOM", {"ImageId": "ami-1"}, None),
        ("CUSTOM", {"ImageId": "ami-1", "InstanceType": "g6.xlarge"}, "names an instance type"),
        ("CUSTOM", {"UserData": ""}, "names no image"),
    ],
)
def test_a_template_and_its_pool_say_everything_once(ami_type: str, data: dict[str, Any], said: str | None) -> None:
    pool = spec(ami_type=ami_type, launch_template="gpu:2").pool
    if said is None:
        check_fits(data, pool)
        return
    with pytest.raises(PoolSpecError, match=f"Pool train: launch template gpu:2 does not go with it: it {said}"):
        check_fits(data, pool)
