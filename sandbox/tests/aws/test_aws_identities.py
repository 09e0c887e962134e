"""Who may call, and EKS's bearer tokens, made by the code that users run."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from gpu_sandbox.aws import AccessKey, identities
from tests.sandbox.aws_account import ACCOUNT_ID, CLUSTER, Account


def session(account: Account, key: AccessKey | None = None, token: str | None = None) -> boto3.Session:
    key = key or account.cloud.access_key
    return boto3.Session(
        key.access_key_id, key.secret_access_key, aws_session_token=token, region_name=account.cloud.region
    )


def token_for(account: Account, who: boto3.Session, *, cluster: str = CLUSTER, expires: int = 60) -> str:
    """As Airflow's EksHook and the AWS CLI make it."""
    from botocore.signers import RequestSigner

    client = who.client("sts", endpoint_url=account.cloud.endpoint_url)
    signer = RequestSigner(
        client.meta.service_model.service_id, "us-west-2", "sts", "v4", who.get_credentials(), who.events
    )
    url = signer.generate_presigned_url(
        {
            "method": "GET",
            "url": f"{account.cloud.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
            "body": {},
            "headers": {"x-k8s-aws-id": cluster},
            "context": {},
        },
        region_name="us-west-2",
        expires_in=expires,
        operation_name="",
    )
    return "k8s-aws-v1." + urlsafe_b64encode(url.encode()).decode().rstrip("=")


def tampered(token: str, old: str, new: str) -> str:
    encoded = token.removeprefix("k8s-aws-v1.")
    url = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    assert old in url
    return "k8s-aws-v1." + urlsafe_b64encode(url.replace(old, new).encode()).decode().rstrip("=")


def test_a_token_says_who_made_it(account: Account) -> None:
    admin = account.cloud.identify(token_for(account, session(account)))
    other_key = account.cloud.add_identity("airflow")
    other = account.cloud.identify(token_for(account, session(account, other_key)))

    assert admin is not None
    assert admin.arn == account.cloud.access_key.arn
    assert admin.account_id == ACCOUNT_ID
    assert other is not None
    assert other.arn == other_key.arn == f"arn:aws:iam::{ACCOUNT_ID}:user/airflow"


def test_airflows_own_token_is_accepted(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.amazon.aws.utils.eks_get_token import fetch_access_token_for_cluster

    for name, value in account.cloud.env().items():
        monkeypatch.setenv(name, value)
    sts_url = f"{account.cloud.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15"
    token = fetch_access_token_for_cluster(CLUSTER, sts_url, region_name="us-west-2")

    assert account.cloud.identify(token) is not None


def test_a_token_for_another_cluster_is_refused(account: Account) -> None:
    assert account.cloud.identify(token_for(account, session(account), cluster="another")) is None


def test_a_token_signed_with_a_wrong_secret_is_refused(account: Account) -> None:
    key = account.cloud.access_key
    forged = AccessKey(access_key_id=key.access_key_id, secret_access_key="guess", arn=key.arn)
    unknown = AccessKey(access_key_id="AKIAIOSFODNN7EXAMPLE", secret_access_key="guess", arn=key.arn)

    assert account.cloud.identify(token_for(account, session(account, forged))) is None
    assert account.cloud.identify(token_for(account, session(account, unknown))) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Action=GetCallerIdentity", "Action=GetSessionToken"),
        ("X-Amz-Expires=60", "X-Amz-Expires=900"),
        ("127.0.0.1", "127.0.0.2"),
        ("&X-Amz-Expires=60", "&X-Amz-Expires=60&extra=1"),
        ("x-k8s-aws-id", "x-other-header"),
        ("us-west-2%2Fsts", "us-west-2%2Fs3"),
    ],
)
def test_a_tampered_token_is_refused(account: Account, old: str, new: str) -> None:
    token = token_for(account, session(account))
    assert account.cloud.identify(token) is not None
    assert account.cloud.identify(tampered(token, old, new)) is None


@pytest.mark.parametrize(
    "junk", ["", "k8s-aws-v1.", "k8s-aws-v1.!!!", "k8s-aws-v1.aGVsbG8", "Bearer x", "k8s-aws-v1.8J-Y"]
)
def test_junk_is_refused(account: Account, junk: str) -> None:
    assert account.cloud.identify(junk) is None


def test_a_token_lives_fifteen_minutes(account: Account) -> None:
    token = token_for(account, session(account))
    made = datetime.now(UTC)

    def at(moment: datetime) -> bool:
        who = identities.identify(
            token,
            identities=account.cloud._identities,
            cluster_names=[CLUSTER],
            hosts={account.cloud.endpoint_url.removeprefix("http://")},
            now=moment,
        )
        return who is not None

    assert at(made + timedelta(minutes=14, seconds=50))
    assert not at(made + timedelta(minutes=15, seconds=1))
    assert not at(made - timedelta(minutes=10))


def test_a_url_that_would_live_longer_is_refused(account: Account) -> None:
    assert account.cloud.identify(token_for(account, session(account), expires=3600)) is None


def test_a_role_can_be_assumed_and_makes_tokens(account: Account) -> None:
    sts = account.client("sts")
    role = account.network.node_role_arn
    given = sts.assume_role(RoleArn=role, RoleSessionName="night")["Credentials"]
    key = AccessKey(access_key_id=given["AccessKeyId"], secret_access_key=given["SecretAccessKey"], arn=role)
    assumed = session(account, key, given["SessionToken"])
    who = account.cloud.identify(token_for(account, assumed))

    assert who is not None
    assert who.arn == f"arn:aws:sts::{ACCOUNT_ID}:assumed-role/{CLUSTER}-node/night"
    called = assumed.client("sts", endpoint_url=account.cloud.endpoint_url).get_caller_identity()
    assert called["Arn"] == who.arn
    without_session_token = session(account, key)
    assert account.cloud.identify(token_for(account, without_session_token)) is None
    with pytest.raises(ClientError, match="InvalidClientTokenId"):
        without_session_token.client("sts", endpoint_url=account.cloud.endpoint_url).get_caller_identity()


def test_a_role_that_does_not_exist_cannot_be_assumed(account: Account) -> None:
    with pytest.raises(ClientError) as error:
        account.client("sts").assume_role(RoleArn=f"arn:aws:iam::{ACCOUNT_ID}:role/nope", RoleSessionName="night")
    assert error.value.response["Error"]["Code"] == "AccessDenied"


def test_the_caller_is_known_by_key(account: Account) -> None:
    key = account.cloud.add_identity("someone")
    assert account.client("sts", key).get_caller_identity()["Arn"] == key.arn


@pytest.mark.parametrize(
    ("service", "call", "code", "for_a_wrong_secret"),
    [
        ("eks", "list_clusters", "UnrecognizedClientException", "InvalidSignatureException"),
        ("ec2", "describe_instances", "AuthFailure", "SignatureDoesNotMatch"),
        ("autoscaling", "describe_auto_scaling_groups", "InvalidClientTokenId", "SignatureDoesNotMatch"),
        ("sts", "get_caller_identity", "InvalidClientTokenId", "SignatureDoesNotMatch"),
    ],
)
def test_unknown_keys_and_wrong_secrets_are_rejected(
    account: Account, service: str, call: str, code: str, for_a_wrong_secret: str
) -> None:
    key = account.cloud.access_key
    unknown = AccessKey(access_key_id="AKIAIOSFODNN7EXAMPLE", secret_access_key="x", arn=key.arn)
    wrong = AccessKey(access_key_id=key.access_key_id, secret_access_key="x", arn=key.arn)

    with pytest.raises(ClientError) as error:
        getattr(account.client(service, unknown), call)()
    assert error.value.response["Error"]["Code"] == code
    with pytest.raises(ClientError) as error:
        getattr(account.client(service, wrong), call)()
    assert error.value.response["Error"]["Code"] == for_a_wrong_secret


def test_a_key_made_inactive_stops_working(account: Account) -> None:
    key = account.cloud.add_identity("leaver")
    account.client("iam").update_access_key(UserName="leaver", AccessKeyId=key.access_key_id, Status="Inactive")
    with pytest.raises(ClientError):
        account.client("sts", key).get_caller_identity()


def test_checking_a_token_is_quick(account: Account) -> None:
    tokens = [token_for(account, session(account)) for _ in range(20)]
    began = time.thread_time()
    assert all(account.cloud.identify(token) for token in tokens)
    assert (time.thread_time() - began) / len(tokens) < 0.05


DESCRIBE_ONLY = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*:Describe*", "Resource": "*"}}


@pytest.mark.parametrize(
    ("service", "call", "arguments", "code"),
    [
        ("eks", "list_clusters", {}, "AccessDeniedException"),
        ("autoscaling", "suspend_processes", {"AutoScalingGroupName": "any"}, "AccessDenied"),
        ("ec2", "terminate_instances", {"InstanceIds": ["i-1"]}, "UnauthorizedOperation"),
        ("service-quotas", "list_services", {}, "AccessDeniedException"),
        (
            "sts",
            "assume_role",
            {"RoleArn": f"arn:aws:iam::{ACCOUNT_ID}:role/any", "RoleSessionName": "any"},
            "AccessDenied",
        ),
    ],
)
def test_a_policy_is_all_that_its_user_may_do(
    account: Account, service: str, call: str, arguments: dict[str, Any], code: str
) -> None:
    who = session(account, account.cloud.add_identity("reader", policy=DESCRIBE_ONLY))
    client = who.client(service, endpoint_url=account.cloud.endpoint_url)
    with pytest.raises(ClientError, match=f"perform: .*:{client.meta.method_to_api_mapping[call]} ") as refused:
        getattr(client, call)(**arguments)
    assert refused.value.response["Error"]["Code"] == code
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403

    assert who.client("sts", endpoint_url=account.cloud.endpoint_url).get_caller_identity()["Account"] == ACCOUNT_ID
    assert who.client("eks", endpoint_url=account.cloud.endpoint_url).describe_cluster(name=CLUSTER)["cluster"]


def test_a_role_has_its_own_policies_and_a_refusal_wins(account: Account) -> None:
    iam, sts = account.client("iam"), account.client("sts")
    role = iam.create_role(RoleName="scaler", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    allowed = iam.create_policy(PolicyName="reads", PolicyDocument=json.dumps(DESCRIBE_ONLY))["Policy"]["Arn"]
    iam.attach_role_policy(RoleName="scaler", PolicyArn=allowed)
    keys = sts.assume_role(RoleArn=role, RoleSessionName="airflow")["Credentials"]
    as_role = boto3.Session(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], "us-west-2")
    eks = as_role.client("eks", endpoint_url=account.cloud.endpoint_url)
    eks.describe_cluster(name=CLUSTER)
    with pytest.raises(ClientError, match="assumed-role/scaler/airflow is not authorized to perform: eks:ListClusters"):
        eks.list_clusters()

    refusal = {"Effect": "Deny", "Action": ["eks:DescribeCluster"], "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [refusal]})
    iam.put_role_policy(RoleName="scaler", PolicyName="not-that", PolicyDocument=document)
    with pytest.raises(ClientError, match="eks:DescribeCluster"):
        eks.describe_cluster(name=CLUSTER)


def test_the_policy_simulator_says_what_would_be_refused(account: Account) -> None:
    """Of a user and of a role, and only to whoever may ask."""
    key = account.cloud.add_identity("reader", policy=DESCRIBE_ONLY)
    iam = account.client("iam")
    role = iam.create_role(RoleName="scaler", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    iam.put_role_policy(RoleName="scaler", PolicyName="reads", PolicyDocument=json.dumps(DESCRIBE_ONLY))
    actions, cluster = ["eks:DescribeCluster", "eks:CreateNodegroup"], "arn:aws:eks:us-west-2:1:cluster/k8s-ml"
    for arn in (key.arn, role):
        pages = iam.get_paginator("simulate_principal_policy").paginate(
            PolicySourceArn=arn,
            ActionNames=actions,
            ResourceArns=[cluster],
            ContextEntries=[{"ContextKeyName": "aws:x", "ContextKeyValues": ["y"], "ContextKeyType": "string"}],
        )
        results = [(r["EvalActionName"], r["EvalDecision"]) for page in pages for r in page["EvaluationResults"]]
        assert results == [("eks:DescribeCluster", "allowed"), ("eks:CreateNodegroup", "implicitDeny")]
    with pytest.raises(ClientError, match="NoSuchEntity"):
        iam.simulate_principal_policy(PolicySourceArn=f"{role}-not", ActionNames=actions)

    as_reader = session(account, key).client("iam", endpoint_url=account.cloud.endpoint_url)
    with pytest.raises(ClientError, match="not authorized to perform: iam:SimulatePrincipalPolicy"):
        as_reader.simulate_principal_policy(PolicySourceArn=key.arn, ActionNames=actions)
