"""What a node's disk for images writes."""

from __future__ import annotations

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from gpu_sandbox.aws.node_images import ebs_mib, image_disk_mib


@pytest.mark.parametrize(("instance_type", "mib"), [("g4dn.xlarge", 417), ("g6.xlarge", 596), ("p5.48xlarge", 600)])
def test_a_volume_writes_no_more_than_the_machine_has_for_ebs(instance_type: str, mib: int) -> None:
    """3500 Mbit/s of a g4dn.xlarge are 417 MiB/s (Karpenter's list of instance types)."""
    fast = {"BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"Throughput": 600}}]}
    ebs = ebs_mib(INSTANCE_TYPES[instance_type])
    assert image_disk_mib("AL2023_x86_64_NVIDIA", fast, has_local_disk=False, ebs=ebs) == pytest.approx(mib, abs=1)
