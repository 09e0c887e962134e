"""EC2's refusals, as Auto Scaling's activities and Karpenter's claims have them, have a meaning for the package."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.clouds.ec2_launches import failure_kind
from airflow_gpu_provider.clouds.kubernetes import provisioned
from gpu_sandbox.aws.ec2_refusals import WORDS, words_of
from gpu_sandbox.karpenter import Refusal

PASSING = {"InsufficientFreeAddressesInSubnet", "PendingVerification", "Unsupported"}
"""Another zone or type, or time, helps."""
UNTOLD = {"Blocked", "InvalidBlockDeviceMapping", "OptInRequired"}
"""Of which Karpenter's claims have neither the code nor the words."""


@pytest.mark.parametrize("code", WORDS)
def test_of_auto_scaling(code: str) -> None:
    words = words_of(code, subnet="subnet-0a")
    message = f"Could not launch Spot Instances. {code} - {words} Launching EC2 instance failed."
    assert failure_kind(message) == ("other" if code in PASSING else "refused")


@pytest.mark.parametrize("code", WORDS)
def test_of_karpenter(code: str) -> None:
    refusal = Refusal.of_ec2(code)
    if refusal.kind == "InsufficientCapacity":
        assert code in refusal.message
        return
    kind = provisioned.failure_kind(refusal.reason, refusal.message)
    assert kind == ("other" if code in PASSING | UNTOLD else "refused")
