"""What an Auto Scaling group's answers mean."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.loaders import Loader

from airflow_gpu_provider.clouds.aws.autoscaling import _size_of_existing
from airflow_gpu_provider.clouds.aws.group_state import (
    OVER,
    ending_cause,
    failures,
    instance_end,
    is_launching,
    last_end,
    launch_failure,
    machine_state,
    machines,
)
from airflow_gpu_provider.clouds.base import Machine, MachineEnd
from airflow_gpu_provider.clouds.ec2_launches import failure_kind

START = datetime(2026, 1, 1, tzinfo=UTC)
STOCK_OUTS = [
    "Could not launch On-Demand Instances. InsufficientInstanceCapacity - We currently do not have sufficient"
    " g6.xlarge capacity in the Availability Zone you requested (us-west-2a). Launching EC2 instance failed.",
    "We currently do not have sufficient p5.48xlarge capacity in the Availability Zone you requested (us-west-2a).",
    "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to your request"
    " configuration. Please adjust your request and try again. Launching EC2 instance failed.",
    "There is no Spot capacity available that matches your request. Launching EC2 instance failed.",
    "InsufficientHostCapacity - There is not enough capacity on the host.",
    "The requested Availability Zone is no longer supported. Launching EC2 instance failed.",
    "InsufficientVolumeCapacity - There is not enough capacity to fulfill your EBS volume request.",
    "fleet error(s), InvalidParameterValue: no; InsufficientInstanceCapacity: We currently do not have",
    "Your requested instance type (g6.xlarge) is not supported in your requested Availability Zone (us-west-2d).",
]
QUOTAS = [
    "Could not launch On-Demand Instances. VcpuLimitExceeded - You have requested more vCPU capacity than your"
    " current vCPU limit of 0 allows for the instance bucket that the specified instance type belongs to.",
    "Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot instance count exceeded.",
    "You have requested more vCPU capacity than your current vCPU limit of 8 allows for the instance bucket that the"
    " specified instance type belongs to. Launching EC2 instance failed.",
    "Instance became unhealthy while waiting for instance to be in InService state. Termination Reason:"
    " Client.VolumeLimitExceeded: Volume limit exceeded",
    "Could not launch On-Demand Instances. MaxIOPSLimitExceeded - You have exceeded your maximum io2 IOPS limit",
    "You have requested more instances (3) than your current instance limit of 2 allows for the specified instance"
    " type. Launching EC2 instance failed.",
    "Your quota allows for 0 more running instance(s). You requested at least 1. Launching EC2 instance failed.",
]
OTHERS = [
    "Could not launch On-Demand Instances. RequestLimitExceeded - Request limit exceeded. Launching failed.",
    "Value (eks-1) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name.",
    "Invalid IamInstanceProfile: eks-0123. Launching EC2 instance failed.",
    "Could not launch On-Demand Instances. InvalidFleetConfiguration - The fleet configuration contains duplicates",
    "Could not launch On-Demand Instances. PendingVerification - Your request is being validated.",
    "Could not launch On-Demand Instances. InvalidParameterValue - The Capacity Block is not active yet.",
    "InvalidNetworkInterface.InUse - The network interface is in use.",
    "Server.InternalError: Internal error on launch",
    "Access denied when attempting to assume role",
    "There are not enough free addresses in subnet 'subnet-0a' to satisfy the requested number of instances. Launching"
    " EC2 instance failed.",
    "Could not launch On-Demand Instances. Unsupported - The requested configuration is currently not supported. Please"
    " check the documentation for supported configurations. Launching EC2 instance failed.",
]
REFUSED = [
    "The image id '[ami-1]' does not exist. Launching EC2 instance failed.",
    "Could not launch Spot Instances. UnauthorizedOperation - You are not authorized to perform this operation."
    " Encoded authorization failure message: 3o4q. Launching EC2 instance failed.",
    "Could not launch Spot Instances. AuthFailure.ServiceLinkedRoleCreationNotPermitted - The provided credentials do"
    " not have permission to create the service-linked role for EC2 Spot Instances..",
    "InvalidBlockDeviceMapping - Volume of size 20GB is smaller than snapshot 'snap-0554', expect size>= 50GB.",
    "Volume of size 20GB is smaller than snapshot 'snap-0554', expect size>= 50GB. Launching EC2 instance failed.",
    "The architecture 'arm64' of the specified instance type does not match the architecture 'x86_64' of the AMI.",
    "InvalidParameterCombination - Network interfaces and an instance-level subnet ID may not be specified on the same",
    "OptInRequired - In order to use this AWS Marketplace product you need to accept terms and subscribe.",
    "Could not launch On-Demand Instances. Blocked - Your account is currently blocked. Contact aws-verification.",
    "InvalidAMIID.Unavailable - The image ID 'ami-1' is no longer available",
    "creating instance, with fleet error(s), InvalidBlockDeviceMapping: Volume of size 2GB is smaller than snapshot"
    " 'snap-0554', expect size>= 4GB; UnfulfillableCapacity: Unable to fulfill capacity due to your configuration.",
    "Client.InternalError: Client error on launch",
    "InvalidCapacityReservationId.NotFound - The capacity reservation 'cr-1' does not exist",
    "The security group 'sg-1' does not exist. Launching EC2 instance failed.",
]


def activity(minute: int, status: str, *, what: str = "Launching a new EC2 instance", **fields: Any) -> dict[str, Any]:
    start = START + timedelta(minutes=minute)
    over = {"EndTime": start + timedelta(seconds=5)} if status in OVER else {}
    return {"Description": what, "StatusCode": status, "StartTime": start, **over, **fields}


@pytest.mark.parametrize("message", STOCK_OUTS)
def test_stock_outs(message: str) -> None:
    assert failure_kind(message) == "out_of_stock"


@pytest.mark.parametrize("message", QUOTAS)
def test_limits_of_the_account(message: str) -> None:
    assert failure_kind(message) == "quota"


@pytest.mark.parametrize("message", REFUSED)
def test_launches_that_would_be_refused_again(message: str) -> None:
    assert failure_kind(message) == "refused"


def test_the_code_is_the_reason_in_short() -> None:
    failed = launch_failure([activity(1, "Failed", StatusMessage=OTHERS[-1])])
    assert failed
    assert failed.reason == "Unsupported"


@pytest.mark.parametrize("message", OTHERS)
def test_other_failures(message: str) -> None:
    assert failure_kind(message) == "other"


def test_every_lifecycle_state_of_the_api_has_a_meaning() -> None:
    model = Loader().load_service_model("autoscaling", "service-2")
    states = {state: machine_state(state) for state in model["shapes"]["LifecycleState"]["enum"]}
    assert {state for state, meaning in states.items() if meaning == "pending"} == {
        "Pending",
        "Pending:Wait",
        "Pending:Proceed",
        "Quarantined",
    }
    assert {"InService", "Standby", "EnteringStandby"} <= {s for s, meaning in states.items() if meaning == "running"}
    assert all(states[s] == "terminating" for s in states if "Terminat" in s or "Detach" in s)


def test_the_newest_launch_that_is_over_decides() -> None:
    failed = activity(1, "Failed", StatusMessage=STOCK_OUTS[0])
    failure = launch_failure([failed])
    assert failure
    assert (failure.at, failure.message) == (START + timedelta(minutes=1, seconds=5), STOCK_OUTS[0])
    assert launch_failure([activity(2, "Successful"), failed]) is None
    assert launch_failure([activity(2, "InProgress"), activity(0, "Successful"), failed]) == failure
    assert launch_failure([activity(2, "Successful", what="Terminating EC2 instance: i-0a"), failed]) == failure
    assert launch_failure([]) is None


def test_a_cancelled_launch_has_failed_where_it_says_why() -> None:
    """Else it was cancelled by who set the group's size: that is nothing against the zone."""
    why = (
        "Instance became unhealthy while waiting for instance to be in InService state. Termination Reason: "
        + OTHERS[1]
    )
    cancelled = activity(2, "Cancelled", StatusMessage=why)
    failed = activity(1, "Failed", StatusMessage=STOCK_OUTS[0])
    failure = launch_failure([cancelled, failed])
    assert failure
    assert (failure.message, failure.earlier) == (why, (START + timedelta(minutes=1, seconds=5),))
    assert len(failures([cancelled, failed])) == 2
    assert launch_failure([activity(2, "Cancelled")]) is None
    assert launch_failure([activity(2, "Cancelled"), failed]) == launch_failure([failed])


def test_a_machine_has_ended_when_it_no_longer_drains() -> None:
    end = "Terminating EC2 instance: i-0a"
    draining = activity(3, "MidTerminatingLifecycleAction", what=end)
    ended = [activity(minute, "Successful", what=end) for minute in (2, 1)]
    assert last_end([draining, *ended]) == START + timedelta(minutes=2, seconds=5)
    assert last_end([draining, activity(4, "Successful")]) is None


def test_failures_in_a_row_are_remembered_back_to_the_last_launch_that_worked() -> None:
    def failed(minute: int, message: str) -> dict[str, Any]:
        return activity(minute, "Failed", StatusMessage=message)

    activities = [
        failed(1, STOCK_OUTS[0]),
        activity(2, "Successful"),
        failed(3, STOCK_OUTS[0]),
        failed(4, OTHERS[0]),
        failed(5, QUOTAS[0]),
    ]
    failure = launch_failure(activities[::-1], "L-DB2E81BA")
    assert failure
    assert (failure.kind, failure.quota, failure.reason) == ("quota", "L-DB2E81BA", "VcpuLimitExceeded")
    assert failure.earlier == tuple(START + timedelta(minutes=each, seconds=5) for each in (3, 4))
    assert [each.kind for each in failures(activities)] == ["out_of_stock", "out_of_stock", "other", "quota"]


def test_a_launch_is_under_way_until_its_instance_shows_or_ends() -> None:
    named = activity(1, "InProgress", what="Launching a new EC2 instance: i-0abc")
    machine = Machine(id="i-0abc", group="g", state="pending")
    ended = activity(2, "InProgress", what="Terminating EC2 instance: i-0abc")
    assert is_launching([activity(1, "PreInService")], [])
    assert is_launching([named], [])
    assert not is_launching([named], [machine])
    assert not is_launching([ended, named], [])
    assert not is_launching([activity(1, "Cancelled"), activity(0, "Failed")], [])


@pytest.mark.parametrize(
    ("state", "code", "end"),
    [
        ("running", None, None),
        ("pending", None, None),
        (
            "shutting-down",
            "Server.SpotInstanceTermination",
            MachineEnd(
                why="EC2: shutting-down, Server.SpotInstanceTermination: Spot instance termination", taken_back=True
            ),
        ),
        (
            "stopped",
            "Server.SpotInstanceShutdown",
            MachineEnd(why="EC2: stopped, Server.SpotInstanceShutdown: Spot instance termination", taken_back=True),
        ),
        (
            "terminated",
            "Client.UserInitiatedShutdown",
            MachineEnd(why="EC2: terminated, Client.UserInitiatedShutdown: Spot instance termination"),
        ),
        ("terminated", None, MachineEnd(why="EC2: terminated, no reason given")),
    ],
)
def test_only_what_ec2_took_as_spot_was_taken_back(state: str, code: str | None, end: MachineEnd | None) -> None:
    reason = {"StateReason": {"Code": code, "Message": f"{code}: Spot instance termination"}} if code else {}
    assert instance_end({"InstanceId": "i-0a", "State": {"Name": state}, **reason}) == end


def test_cause_of_an_instances_end_is_its_own_and_the_newest() -> None:
    cause = "At 2026-01-01T00:05:00Z an instance was taken out of service in response to an EC2 instance rebalance."
    ours = activity(5, "MidTerminatingLifecycleAction", what="Terminating EC2 instance: i-0a", Cause=cause)
    other = activity(6, "Successful", what="Terminating EC2 instance: i-0b", Cause="another")
    launch = activity(0, "Successful", what="Launching a new EC2 instance: i-0a", Cause="it was wanted")
    assert ending_cause("i-0a", [other, ours, launch]) == cause.rstrip(".")
    assert ending_cause("i-0a", [other, launch]) == ""


def test_a_machine_that_has_just_left_its_group_is_on_its_way_out() -> None:
    activities = [
        activity(2, "InProgress", what="Terminating EC2 instance: i-0a"),
        activity(1, "Successful", what="Terminating EC2 instance: i-0b"),
    ]
    assert [(each.id, each.state) for each in machines("g", {"Instances": []}, activities)] == [("i-0a", "terminating")]


def test_machines_carry_the_moment_of_their_launch() -> None:
    asg = {"Instances": [{"InstanceId": "i-0a", "LifecycleState": "InService"}]}
    launch = activity(3, "Successful", what="Launching a new EC2 instance: i-0a")
    (machine,) = machines("g", asg, [launch])
    assert machine == Machine(id="i-0a", group="g", state="running", launched_at=START + timedelta(minutes=3))


@pytest.mark.parametrize(
    ("states", "desired", "minimum", "suspended", "size"),
    [
        (["InService"], 3, 0, True, 1),
        (["InService", "Pending"], 3, 0, True, 2),
        (["InService", "Terminating:Wait"], 3, 0, True, 1),
        ([], 1, 0, True, 0),
        (["InService"], 1, 0, True, None),
        (["InService"] * 2, 1, 0, True, None),
        ([], 2, 1, True, 1),
        (["InService"], 3, 0, False, None),
    ],
)
def test_the_size_of_what_exists(
    states: list[str], desired: int, minimum: int, suspended: bool, size: int | None
) -> None:
    asg = {
        "DesiredCapacity": desired,
        "MinSize": minimum,
        "Instances": [{"InstanceId": f"i-{n}", "LifecycleState": state} for n, state in enumerate(states)],
        "SuspendedProcesses": [{"ProcessName": "Launch"}] if suspended else [],
    }
    assert _size_of_existing(asg, []) == size
    assert _size_of_existing(asg, [activity(0, "InProgress")]) is None
