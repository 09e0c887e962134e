"""Machines of EKS' groups go one by one: what AWS does not end yet keeps none of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_gpu_provider.clouds.aws.autoscaling import AutoScaling
from airflow_gpu_provider.clouds.aws.owned_platform import OwnedEksPlatform
from airflow_gpu_provider.clouds.base import Machine
from airflow_gpu_provider.errors import CloudError
from tests.unit.scaling.pools import pool


class Service:
    """Auto Scaling: instances by their life-cycle states, each ended only while it is in service."""

    def __init__(self, **states: str) -> None:
        self._states = states
        self.ended: set[str] = set()

    def call(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        if operation == "describe_auto_scaling_instances":
            states = [{"LifecycleState": self._states[each]} for each in arguments["InstanceIds"]]
            return {"AutoScalingInstances": states}
        assert operation == "terminate_instance_in_auto_scaling_group"
        if self._states[arguments["InstanceId"]] != "InService":
            raise CloudError("Scaling activity 1 is in progress.", code="ScalingActivityInProgress")
        self.ended.add(arguments["InstanceId"])
        return {}


@pytest.mark.parametrize("busy", ["Pending", "Pending:Wait", "Pending:Proceed", "EnteringStandby"])
def test_a_machine_that_aws_does_not_end_yet_keeps_none_of_the_others(busy: str) -> None:
    service: Any = Service(i1=busy, i2="InService", i3="Terminating:Wait", i4="InService")
    platform = OwnedEksPlatform(pool(), owner="tests")
    platform._eks.__dict__["scaling"] = AutoScaling(service)
    machines = [Machine(id=f"i{number}", group="g", state="running") for number in (1, 2, 3, 4)]
    assert platform.release(machines) == (machines[0],)
    assert service.ended == {"i2", "i4"}
