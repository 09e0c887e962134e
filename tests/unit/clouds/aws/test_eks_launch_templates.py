"""Which launch templates go with a pool."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.clouds.aws.launch_templates import check_fits, disk_notes
from airflow_gpu_provider.errors import PoolSpecError
from tests.unit.clouds.aws.test_eks_spec import spec


@pytest.mark.parametrize(
    ("ami_type", "data", "said"),
    [
        ("AL2023_x86_64_NVIDIA", {"UserData": ""}, None),
        ("AL2023_x86_64_NVIDIA", {"InstanceType": "g6.xlarge"}, "names an instance type, g6.xlarge"),
        ("AL2023_x86_64_NVIDIA", {"ImageId": "ami-1"}, "names an image, ami-1, and the pool has ami_type AL2023"),
        ("CUSTOM", {"ImageId": "ami-1"}, None),
        ("CUSTOM", {"ImageId": "ami-1", "InstanceType": "g6.xlarge"}, "names an instance type"),
        ("CUSTOM", {"UserData": ""}, "names no image"),
        (
            "AL2023_x86_64_NVIDIA",
            {"IamInstanceProfile": {"Name": "nodes"}},
            "has an IamInstanceProfile, and EKS takes no",
        ),
        ("AL2023_x86_64_NVIDIA", {"InstanceMarketOptions": {"MarketType": "spot"}}, "has a request for spot instances"),
        ("AL2023_x86_64_NVIDIA", {"InstanceMarketOptions": {"MarketType": "capacity-block"}}, None),
        ("AL2023_x86_64_NVIDIA", {"HibernationOptions": {"Configured": True}}, "has HibernationOptions"),
        ("AL2023_x86_64_NVIDIA", {"HibernationOptions": {"Configured": False}}, None),
        (
            "AL2023_x86_64_NVIDIA",
            {"InstanceInitiatedShutdownBehavior": "terminate"},
            "has an InstanceInitiatedShutdownBehavior, and EKS takes no",
        ),
        ("AL2023_x86_64_NVIDIA", {"NetworkInterfaces": [{"DeviceIndex": 0, "SubnetId": "subnet-1"}]}, "has a subnet"),
        ("AL2023_x86_64_NVIDIA", {"NetworkInterfaces": [{"DeviceIndex": 0, "InterfaceType": "efa"}]}, None),
    ],
)
def test_a_template_and_its_pool_say_everything_once(ami_type: str, data: dict[str, Any], said: str | None) -> None:
    pool = spec(ami_type=ami_type, launch_template="gpu:2").pool
    if said is None:
        check_fits(data, pool)
        return
    with pytest.raises(PoolSpecError, match=f"Pool train: launch template gpu:2 does not go with it: it {said}"):
        check_fits(data, pool)


@pytest.mark.parametrize(
    ("ami_type", "devices", "is_small"),
    [
        ("AL2023_x86_64_NVIDIA", [], False),
        ("BOTTLEROCKET_x86_64_NVIDIA", [], True),
        ("BOTTLEROCKET_x86_64_NVIDIA", ["/dev/xvda"], True),
        ("BOTTLEROCKET_ARM_64_NVIDIA_FIPS", ["/dev/xvda", "/dev/xvdb"], False),
    ],
)
def test_bottlerocket_has_20_gib_for_images_unless_a_template_says_otherwise(
    ami_type: str, devices: list[str], is_small: bool
) -> None:
    types = ["g5g.xlarge"] if "ARM_64" in ami_type else ["g6.xlarge"]
    data = {"BlockDeviceMappings": [{"DeviceName": device, "Ebs": {"VolumeSize": 200}} for device in devices]}
    notes = disk_notes(spec(ami_type=ami_type, instance_types=types).pool, data)
    assert ["20 GiB on /dev/xvdb" in note for note in notes] == [True] * is_small
