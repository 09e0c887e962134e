"""The judge of AWS's answers, by botocore's models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from botocore.model import OperationModel
from moto.core.utils import get_service_model

from gpu_sandbox.schemas.aws import judge_answer, wrong_in_answer, wrong_in_error
from gpu_sandbox.schemas.findings import FOLDER_VARIABLE, FindingsFolder

GROUP = {"nodegroupName": "gpu", "status": "ACTIVE", "createdAt": 1.5e9, "scalingConfig": {"minSize": 0}}
ASG = """
<AutoScalingGroups><member><AutoScalingGroupName>a</AutoScalingGroupName><MinSize>{min}</MinSize><MaxSize>1</MaxSize>
<DesiredCapacity>0</DesiredCapacity><DefaultCooldown>300</DefaultCooldown><AvailabilityZones><member>z</member>
</AvailabilityZones><HealthCheckType>EC2</HealthCheckType><CreatedTime>2026-01-01T00:00:00Z</CreatedTime>{more}</member>
</AutoScalingGroups>
"""
INSTANCES = """
<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>1</requestId><reservationSet><item>
<instancesSet><item><instanceId>i-1</instanceId>{more}</item></instancesSet></item></reservationSet>
</DescribeInstancesResponse>
"""


def operation(service: str, name: str) -> OperationModel:
    found: OperationModel = get_service_model(service).operation_model(name)
    return found


def wrong_with_group(**change: Any) -> list[str]:
    body = json.dumps({"nodegroup": GROUP | change}).encode()
    return list(wrong_in_answer(operation("eks", "DescribeNodegroup"), body))


def wrong_with_asg(*, minimum: str = "0", more: str = "") -> list[str]:
    result = ASG.format(min=minimum, more=more)
    body = f"""<DescribeAutoScalingGroupsResponse><DescribeAutoScalingGroupsResult>{result}
    </DescribeAutoScalingGroupsResult><ResponseMetadata/></DescribeAutoScalingGroupsResponse>"""
    return list(wrong_in_answer(operation("autoscaling", "DescribeAutoScalingGroups"), body.encode()))


def wrong_with_instance(more: str) -> list[str]:
    return list(wrong_in_answer(operation("ec2", "DescribeInstances"), INSTANCES.format(more=more).encode()))


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, []),
        ({"health": None}, []),
        ({"colour": "red"}, ["answer.nodegroup.colour is unknown"]),
        ({"status": "FINE"}, ["answer.nodegroup.status is 'FINE', which is none of its values"]),
        ({"scalingConfig": {"minSize": "0"}}, ["answer.nodegroup.scalingConfig.minSize is '0', no integer"]),
        ({"subnets": "s-1"}, ["answer.nodegroup.subnets is 's-1', no list"]),
        ({"labels": {"a": 1}}, ["answer.nodegroup.labels.a is 1, no string"]),
        ({"createdAt": "yesterday"}, ["answer.nodegroup.createdAt is 'yesterday', no timestamp"]),
    ],
)
def test_what_is_wrong_in_json(change: dict[str, Any], wrong: list[str]) -> None:
    assert wrong_with_group(**change) == wrong


def test_what_is_wrong_in_the_query_protocols_xml() -> None:
    where = "answer.AutoScalingGroups[0]"
    assert wrong_with_asg() == []
    assert wrong_with_asg(minimum="none") == [f"{where}.MinSize is 'none', no integer"]
    assert wrong_with_asg(more="<Colour>red</Colour>") == [f"{where}.Colour is unknown"]
    assert wrong_with_asg(more="<MaxSize>2</MaxSize>") == [f"{where}.MaxSize is there twice"]
    assert wrong_with_asg(more="<Instances><item/></Instances>") == [
        f"{where}.Instances has item, its members are named member"
    ]
    assert f"{where}.Instances[0].InstanceId is missing" in wrong_with_asg(
        more="<Instances><member><LifecycleState>InService</LifecycleState></member></Instances>"
    )
    assert f"{where}.Instances[0].LifecycleState is 'Fine', which is none of its values" in wrong_with_asg(
        more="<Instances><member><LifecycleState>Fine</LifecycleState></member></Instances>"
    )
    nothing = b"<DescribeAutoScalingGroupsResponse><ResponseMetadata/></DescribeAutoScalingGroupsResponse>"
    assert list(wrong_in_answer(operation("autoscaling", "DescribeAutoScalingGroups"), nothing)) == [
        "answer.DescribeAutoScalingGroupsResult is missing"
    ]


def test_what_is_wrong_in_ec2s_xml() -> None:
    where = "answer.reservationSet[0].instancesSet[0]"
    assert wrong_with_instance("<instanceType>g6.xlarge</instanceType><ebsOptimized>false</ebsOptimized>") == []
    assert wrong_with_instance("<InstanceType>g6.xlarge</InstanceType>") == [f"{where}.InstanceType is unknown"]
    assert wrong_with_instance("<ebsOptimized>False</ebsOptimized>") == [f"{where}.ebsOptimized is 'False', no boolean"]
    assert wrong_with_instance("<launchTime>now</launchTime>") == [f"{where}.launchTime is 'now', no timestamp"]


def test_a_status_that_aws_was_seen_to_answer_is_right_though_its_model_lacks_it() -> None:
    body = b"""<DescribeScalingActivitiesResponse><DescribeScalingActivitiesResult><Activities><member>
    <ActivityId>1</ActivityId><AutoScalingGroupName>a</AutoScalingGroupName><Cause>c</Cause>
    <StartTime>2026-01-01T00:00:00Z</StartTime><StatusCode>MidTerminatingLifecycleAction</StatusCode>
    </member></Activities></DescribeScalingActivitiesResult></DescribeScalingActivitiesResponse>"""
    assert list(wrong_in_answer(operation("autoscaling", "DescribeScalingActivities"), body)) == []


@pytest.mark.parametrize(
    ("service", "name", "status", "code", "wrong"),
    [
        ("eks", "DescribeNodegroup", 404, "ResourceNotFoundException", []),
        ("eks", "CreateNodegroup", 404, "ResourceNotFoundException", []),
        (
            "eks",
            "DescribeNodegroup",
            400,
            "ResourceNotFoundException",
            ["error ResourceNotFoundException has HTTP status 404, not 400"],
        ),
        ("eks", "DescribeNodegroup", 409, "Gone", ["Gone is none of the operation's errors"]),
        ("eks", "DescribeNodegroup", 429, "ThrottlingException", []),
        ("service-quotas", "GetServiceQuota", 400, "NoSuchResourceException", []),
        ("autoscaling", "UpdateAutoScalingGroup", 400, "ScalingActivityInProgress", []),
        ("autoscaling", "UpdateAutoScalingGroup", 400, "Busy", ["Busy is none of the operation's errors"]),
        ("ec2", "DescribeInstances", 400, "InvalidInstanceID.NotFound", []),
        ("ec2", "DescribeInstances", 400, "InvalidInstance", ["InvalidInstance is none of the operation's errors"]),
    ],
)
def test_errors(service: str, name: str, status: int, code: str, wrong: list[str]) -> None:
    described = operation(service, name)
    if "json" in described.service_model.metadata["protocol"]:
        headers, body = {}, json.dumps({"__type": f"com.amazon#{code}", "message": "m"})
    else:
        headers, body = {}, f"<R><Errors><Error><Code>{code}</Code></Error></Errors></R>"
    assert list(wrong_in_error(described, status, headers, body.encode())) == wrong


def test_an_operation_that_a_service_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    judge_answer("eks", "DescribeNodeGroup", 200, {}, b"{}")
    judge_answer("eks", "ListAccessEntries", 501, {}, b"{}")
    judge_answer("made-up", "X", 200, {}, b"{}")
    assert [str(each) for each in FindingsFolder(tmp_path).new_violations()] == [
        "AWS answer of eks:DescribeNodeGroup: eks has no such operation",
        "AWS request of eks:ListAccessEntries: the sandbox lacks this operation",
    ]
