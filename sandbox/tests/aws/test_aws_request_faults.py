"""Throttling and 5xx by rate, in each service's own error format; counted calls; one account at a time."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpu_sandbox.aws import AwsCloud
from gpu_sandbox.faults import Faults
from tests.sandbox.aws_account import ACCOUNT_ID, CLUSTER, LAUNCH, Account, Recorder

CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("eks", "list_clusters", {}),
    ("autoscaling", "describe_auto_scaling_groups", {}),
    ("ec2", "describe_instances", {}),
    ("sts", "get_caller_identity", {}),
    ("service-quotas", "list_service_quotas", {"ServiceCode": "ec2"}),
]


def failure(account: Account, service: str, call: str, arguments: dict[str, Any]) -> tuple[str, int]:
    with pytest.raises(ClientError) as error:
        getattr(account.client(service), call)(**arguments)
    response = error.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


@pytest.mark.parametrize(
    ("call", "code"),
    list(
        zip(
            CALLS,
            ["ThrottlingException", "Throttling", "RequestLimitExceeded", "Throttling", "ThrottlingException"],
            strict=True,
        )
    ),
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_throttling_is_in_the_services_own_words(account: Account, call: tuple[Any, ...], code: str) -> None:
    account.faults.set_throttle_rate(1.0)
    assert failure(account, *call)[0] == code

    account.faults.clear()
    getattr(account.client(call[0]), call[1])(**call[2])


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0])
def test_errors_are_server_errors(account: Account, call: tuple[Any, ...]) -> None:
    account.faults.set_error_rate(1.0, service=call[0])
    code, status = failure(account, *call)

    assert status >= 500
    assert code


def test_a_limit_of_calls_is_a_bucket_that_fills_with_the_cloud_s_time(account: Account) -> None:
    """ "Request throttling for the Amazon EC2 API" """
    account.faults.limit_calls("eks:ListClusters", per_second=0.5, burst=2)
    eks = account.client("eks")
    for _ in range(2):
        eks.list_clusters()
    assert failure(account, "eks", "list_clusters", {})[0] == "ThrottlingException"
    eks.describe_cluster(name=CLUSTER)
    account.advance(2)
    eks.list_clusters()
    assert failure(account, "eks", "list_clusters", {})[0] == "ThrottlingException"
    account.advance(60)
    for _ in range(2):
        eks.list_clusters()
    assert failure(account, "eks", "list_clusters", {})[0] == "ThrottlingException"
    account.faults.limit_calls("eks", per_second=1, burst=1)
    eks.describe_cluster(name=CLUSTER)
    assert failure(account, "eks", "describe_cluster", {"name": CLUSTER})[0] == "ThrottlingException"


def test_rates_are_by_service(account: Account) -> None:
    account.faults.set_error_rate(1.0, service="eks")
    account.client("sts").get_caller_identity()
    with pytest.raises(ClientError):
        account.eks.list_clusters()


def test_a_rate_is_a_share(account: Account) -> None:
    account.faults.set_throttle_rate(0.5, service="eks")
    outcomes = []
    for _ in range(60):
        try:
            account.eks.list_clusters()
            outcomes.append(True)
        except ClientError:
            outcomes.append(False)

    assert 10 <= outcomes.count(True) <= 50


def test_botocore_retries_what_is_throttled(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    for name, value in account.cloud.env().items():
        monkeypatch.setenv(name, value)
    account.faults.set_throttle_rate(0.4, service="eks")
    client = boto3.Session().client("eks")
    for _ in range(5):
        assert client.list_clusters()["clusters"] == [CLUSTER]


def test_calls_are_counted_by_operation(account: Account) -> None:
    before = account.cloud.calls
    account.node_group()
    account.asg.describe_auto_scaling_groups()
    account.client("service-quotas").list_service_quotas(ServiceCode="ec2")
    account.ec2.describe_instances()
    made = account.cloud.calls - before

    assert made["eks:CreateNodegroup"] == 1
    assert made["eks:DescribeNodegroup"] >= 1
    assert made["autoscaling:DescribeAutoScalingGroups"] == 1
    assert made["servicequotas:ListServiceQuotas"] == 1
    assert made["ec2:DescribeInstances"] == 1


def test_another_region_is_empty(account: Account) -> None:
    import boto3

    key = account.cloud.access_key
    elsewhere = boto3.Session(key.access_key_id, key.secret_access_key, region_name="eu-central-1")
    assert elsewhere.client("eks", endpoint_url=account.cloud.endpoint_url).list_clusters()["clusters"] == []


@pytest.mark.against_schema
def test_an_unfinished_operation_says_so_at_once(account: Account) -> None:
    with pytest.raises(ClientError) as error:
        account.eks.list_access_entries(clusterName=CLUSTER)
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 501


def test_one_after_the_other_starts_empty(account: Account) -> None:
    account.node_group()
    following = AwsCloud(account_id=ACCOUNT_ID, faults=Faults(), clock=account.clock, events=Recorder())
    with pytest.raises(RuntimeError, match=ACCOUNT_ID):
        following.start()

    account.cloud.stop()
    following.start()
    try:
        again = Account(following, account.clock, Recorder(), Faults(), account.network)
        assert again.eks.list_clusters()["clusters"] == []
        assert again.asg.describe_auto_scaling_groups()["AutoScalingGroups"] == []
    finally:
        following.stop()
        following.stop()


def test_accounts_run_side_by_side(account: Account) -> None:
    other = AwsCloud(account_id="111122223333", faults=Faults(), clock=account.clock, events=Recorder())
    other.start()
    try:
        neighbour = Account(other, account.clock, Recorder(), Faults(), account.network)
        account.node_group()

        assert neighbour.client("sts").get_caller_identity()["Account"] == "111122223333"
        assert neighbour.eks.list_clusters()["clusters"] == []
        assert account.eks.list_clusters()["clusters"] == [CLUSTER]
        with pytest.raises(ClientError):
            neighbour.client("eks", account.cloud.access_key).list_clusters()
    finally:
        other.stop()
    assert account.status() == "ACTIVE"


def test_what_a_listener_raises_is_told_and_does_not_stop_aws(account: Account) -> None:
    def raising(_: object) -> None:
        raise LookupError("the listener's own trouble")

    asg = account.node_group()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(account.events, "instance_launched", raising)
        account.resize(asg, 2)
        with pytest.raises(ExceptionGroup) as told:
            account.advance(LAUNCH)
    assert [repr(each) for each in told.value.exceptions] == ['LookupError("the listener\'s own trouble")'] * 2
    account.grow(asg, 3)
    assert account.events.kinds() == ["launched"]
