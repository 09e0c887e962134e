"""What counts against EC2's quotas of running instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from botocore.session import get_session

from airflow_gpu_provider.clouds.aws.quota import read_quotas
from airflow_gpu_provider.pools import Candidate

ON_DEMAND, SPOT = "L-DB2E81BA", "L-3819A6DF"
CANDIDATES = [
    Candidate(group="train", zone="us-west-2a", instance_type="g6.xlarge", market=market)
    for market in ("ON_DEMAND", "SPOT")
]


class Account:
    """An account in which one machine of each kind runs; it has a quota of eight vCPUs of each."""

    def __init__(self, *lifecycles: str | None) -> None:
        self._lifecycles = lifecycles

    def call(self, _: str, **asked: str) -> Mapping[str, Any]:
        return {"Quota": {"QuotaName": asked["QuotaCode"], "Value": 8.0}}

    def items(self, call: str, _: str, **asked: Any) -> Iterator[Mapping[str, Any]]:
        if call == "describe_instances":  # an account may have thousands of others
            assert {"Name": "instance-type", "Values": ["g*", "p*", "vt*"]} in asked["Filters"]
        machines = ({"InstanceType": "g6.xlarge", "InstanceLifecycle": each} for each in self._lifecycles)
        yield {"Instances": [{name: value for name, value in each.items() if value} for each in machines]}


@pytest.mark.parametrize(
    ("lifecycle", "counts"),
    [
        (None, ON_DEMAND),
        ("scheduled", ON_DEMAND),
        ("spot", SPOT),
        ("capacity-block", ""),
        ("interruptible-capacity-reservation", ""),
    ],
)
def test_reserved_machines_count_against_no_quota_of_running_ones(lifecycle: str | None, counts: str) -> None:
    account: Any = Account(lifecycle)
    quotas, _ = read_quotas(account, account, CANDIDATES)
    assert {code: quota.used for code, quota in quotas.items()} == {
        code: 4 if code == counts else 0 for code in (ON_DEMAND, SPOT)
    }


def test_every_lifecycle_of_the_api_has_its_place() -> None:
    """An older botocore has fewer."""
    known = get_session().get_service_model("ec2").shape_for("InstanceLifecycleType").enum
    assert {"spot"} < set(known) <= {"spot", "scheduled", "capacity-block", "interruptible-capacity-reservation"}
