"""Service quotas in vCPUs, and the instance types that EC2 knows and offers, through boto3."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.sandbox.aws_account import END, LAUNCH, TIMINGS, Account

G_ON_DEMAND, P_ON_DEMAND = "L-DB2E81BA", "L-417A185B"
P_SPOT, G_SPOT = "L-7212CCBC", "L-3819A6DF"


def test_quotas_are_listed_and_set(account: Account) -> None:
    quotas = account.client("service-quotas")
    listed = {q["QuotaCode"]: q for q in quotas.list_service_quotas(ServiceCode="ec2")["Quotas"]}

    assert {G_ON_DEMAND, P_ON_DEMAND, P_SPOT, G_SPOT} <= listed.keys()
    assert listed[G_ON_DEMAND]["QuotaName"] == "Running On-Demand G and VT instances"
    assert listed[G_ON_DEMAND]["Value"] == 256

    account.cloud.set_quota(G_ON_DEMAND, 8)
    found = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=G_ON_DEMAND)["Quota"]
    assert found["Value"] == 8
    default = quotas.get_aws_default_service_quota(ServiceCode="ec2", QuotaCode=G_ON_DEMAND)["Quota"]
    assert default["Value"] == 256


@pytest.mark.parametrize("asked", [{"ServiceCode": "ec2", "QuotaCode": "L-0"}, {"ServiceCode": "x", "QuotaCode": "y"}])
def test_unknown_quotas(account: Account, asked: dict[str, str]) -> None:
    with pytest.raises(ClientError) as error:
        account.client("service-quotas").get_service_quota(**asked)
    assert error.value.response["Error"]["Code"] == "NoSuchResourceException"


def test_a_launch_over_the_quota_fails_in_ec2s_words(account: Account) -> None:
    account.cloud.set_quota(G_ON_DEMAND, 4)
    asg = account.node_group()
    account.grow(asg, 1)
    account.resize(asg, 2)
    account.advance(LAUNCH)
    failures = account.failed(asg)

    assert failures[0]["StatusMessage"].startswith(
        "Could not launch On-Demand Instances. VcpuLimitExceeded - You have requested more vCPU capacity than your "
        "current vCPU limit of 4 allows"
    )
    account.cloud.set_quota(G_ON_DEMAND, 8)
    account.advance(TIMINGS.asg_retry)
    assert len(account.instances(asg)) == 2


def test_quotas_count_by_family_and_market(account: Account) -> None:
    account.cloud.set_quota(G_ON_DEMAND, 0)
    account.cloud.set_quota(P_SPOT, 0)
    spot = account.node_group("spot", capacityType="SPOT")
    account.grow(spot, 1)
    p_spot = account.node_group("p-spot", capacityType="SPOT", instanceTypes=["p3.2xlarge"])
    account.resize(p_spot, 1)
    account.advance(LAUNCH)

    failures = account.failed(p_spot)
    assert "MaxSpotInstanceCountExceeded" in failures[0]["StatusMessage"]


def test_what_is_gone_no_longer_counts(account: Account) -> None:
    account.cloud.set_quota(G_ON_DEMAND, 4)
    asg = account.node_group()
    account.grow(asg, 1)
    account.resize(asg, 0)
    account.advance(END)
    assert account.group(asg)["Instances"] == []

    account.grow(asg, 1)
    assert account.failed(asg) == []


@pytest.mark.parametrize(
    ("name", "vcpus", "gpus", "gpu"),
    [
        ("p3.2xlarge", 8, 1, "V100"),
        ("p3.16xlarge", 64, 8, "V100"),
        ("g4dn.xlarge", 4, 1, "T4"),
        ("g5.xlarge", 4, 1, "A10G"),
        ("g6.xlarge", 4, 1, "L4"),
        ("g6e.xlarge", 4, 1, "L40S"),
        ("p4d.24xlarge", 96, 8, "A100"),
        ("p5.48xlarge", 192, 8, "H100"),
    ],
)
def test_gpu_types_are_described(account: Account, name: str, vcpus: int, gpus: int, gpu: str) -> None:
    (described,) = account.ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"]

    assert described["InstanceType"] == name
    assert described["VCpuInfo"]["DefaultVCpus"] == vcpus
    assert (described["GpuInfo"]["Gpus"][0]["Count"], described["GpuInfo"]["Gpus"][0]["Name"]) == (gpus, gpu)
    assert described["MemoryInfo"]["SizeInMiB"] > 0


def test_unknown_types_are_refused(account: Account) -> None:
    with pytest.raises(ClientError) as error:
        account.ec2.describe_instance_types(InstanceTypes=["g6.xlarge", "g6.tiny"])
    assert error.value.response["Error"]["Code"] == "InvalidInstanceType"
    assert "g6.tiny" in error.value.response["Error"]["Message"]


def zones_with(account: Account, name: str, location: str = "availability-zone") -> list[str]:
    offerings: list[dict[str, Any]] = account.ec2.describe_instance_type_offerings(
        LocationType=location, Filters=[{"Name": "instance-type", "Values": [name]}]
    )["InstanceTypeOfferings"]
    return sorted(offering["Location"] for offering in offerings)


def test_offerings_by_zone_can_be_taken_away(account: Account) -> None:
    assert {"us-west-2a", "us-west-2b", "us-west-2c"} <= set(zones_with(account, "p3.2xlarge"))
    account.cloud.set_offered("p3.2xlarge", "us-west-2b", offered=False)

    assert "us-west-2b" not in zones_with(account, "p3.2xlarge")
    assert zones_with(account, "p3.2xlarge", "region") == ["us-west-2"]
    account.cloud.set_offered("p3.2xlarge", "us-west-2b", offered=True)
    assert "us-west-2b" in zones_with(account, "p3.2xlarge")


def test_only_known_types_can_be_taken_away(account: Account) -> None:
    with pytest.raises(ValueError, match=r"g6\.tiny"):
        account.cloud.set_offered("g6.tiny", "us-west-2a", offered=False)
    with pytest.raises(ValueError, match="L-0"):
        account.cloud.set_quota("L-0", 1)


def test_instances_are_found_by_what_their_type_is_like(account: Account) -> None:
    """A filter's values may have * and ? ("List and filter resources" in EC2's user guide)."""
    for instance_type in ("m5.large", "vt1.3xlarge", "g6.xlarge"):
        account.ec2.run_instances(ImageId="ami-1", MinCount=1, MaxCount=1, InstanceType=instance_type)

    def found(*values: str) -> set[str]:
        answer = account.ec2.describe_instances(Filters=[{"Name": "instance-type", "Values": list(values)}])
        return {each["InstanceType"] for one in answer["Reservations"] for each in one["Instances"]}

    assert found("g*", "vt*") == {"vt1.3xlarge", "g6.xlarge"}
    assert found("g6.?large", "m5.large") == {"g6.xlarge", "m5.large"}
    assert found("p*") == set()
