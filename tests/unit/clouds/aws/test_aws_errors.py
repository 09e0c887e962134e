"""Each error of botocore and AWS ends as one of ours."""

from __future__ import annotations

import inspect

import pytest
from botocore import exceptions as boto

from airflow_gpu_provider.clouds.answers import has_code, message_of
from airflow_gpu_provider.clouds.aws.errors import mapped_errors
from airflow_gpu_provider.errors import (
    CloudError,
    ClusterNotFound,
    CredentialsError,
    GpuError,
    PermissionDenied,
    QuotaExceeded,
    RequestRejected,
)


def raised(error: Exception, service: str = "eks") -> GpuError:
    with pytest.raises(GpuError) as caught, mapped_errors(service=service, connection="connection 'aws_default'"):
        raise error
    assert caught.value.__cause__ is error
    return caught.value


def answer(code: str, message: str = "no reason", operation: str = "CreateNodegroup") -> GpuError:
    return raised(boto.ClientError({"Error": {"Code": code, "Message": message}}, operation))


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("AccessDenied", PermissionDenied),
        ("AccessDeniedException", PermissionDenied),
        ("UnauthorizedOperation", PermissionDenied),
        ("ExpiredToken", CredentialsError),
        ("ExpiredTokenException", CredentialsError),
        ("UnrecognizedClientException", CredentialsError),
        ("InvalidClientTokenId", CredentialsError),
        ("AuthFailure", CredentialsError),
        ("SignatureDoesNotMatch", CredentialsError),
        ("ResourceLimitExceededException", QuotaExceeded),
        ("LimitExceeded", QuotaExceeded),
        ("VcpuLimitExceeded", QuotaExceeded),
        ("Throttling", CloudError),
        ("ThrottlingException", CloudError),
        ("RequestLimitExceeded", CloudError),
        ("ServerException", CloudError),
        ("ServiceUnavailable", CloudError),
        ("InternalFailure", CloudError),
        ("ResourceInUseException", CloudError),
        ("SomethingNew", CloudError),
        ("ValidationError", RequestRejected),
        ("InvalidParameterException", RequestRejected),
        ("InvalidParameterValue", RequestRejected),
        ("MissingParameter", RequestRejected),
    ],
)
def test_answers_of_aws(code: str, wanted: type[GpuError]) -> None:
    error = answer(code)
    assert type(error) is wanted
    assert has_code(error, code)
    assert message_of(error) == "no reason"
    assert code in str(error)


def test_a_refusal_names_the_action() -> None:
    assert answer("AccessDeniedException", "no").details["action"] == "eks:CreateNodegroup"
    said = "User: arn:aws:iam::1:user/x is not authorized to perform: iam:PassRole on resource: arn:aws:iam::1:role/n"
    error = answer("AccessDeniedException", said)
    assert error.details["action"] == "iam:PassRole"
    assert "Allow iam:PassRole to the identity of connection 'aws_default'" in str(error)


@pytest.mark.parametrize(
    ("said", "action"),
    [
        (
            "Failed to validate if SLR: AWSServiceRoleForAmazonEKSNodegroup already exists due to missing permissions"
            " for 'iam:GetRole'",
            "iam:GetRole",
        ),
        (
            "You are not authorized to launch instances with this launch template. Encoded authorization failure"
            " message: SAh2n",
            "ec2:RunInstances",
        ),
    ],
)
def test_a_refusal_that_eks_tells_as_an_invalid_request(said: str, action: str) -> None:
    error = answer("InvalidRequestException", said)
    assert type(error) is PermissionDenied
    assert error.details["action"] == action


WEB = "AssumeRoleWithWebIdentity"


@pytest.mark.parametrize(
    ("operation", "code", "message", "kind", "says"),
    [
        (WEB, "InvalidIdentityToken", "No OpenIDConnect provider found", CredentialsError, "IAM OIDC provider"),
        (WEB, "IDPRejectedClaim", "not allowed", CredentialsError, "IAM OIDC provider"),
        (WEB, "ExpiredTokenException", "Token expired", CredentialsError, "clock"),
        (WEB, "RegionDisabledException", "STS is not activated", CredentialsError, "Activate STS in that region"),
        (WEB, "IDPCommunicationError", "no answer", CloudError, "sts:AssumeRoleWithWebIdentity failed"),
        (WEB, "ValidationError", "Value at 'roleArn' failed", CredentialsError, "Correct the role"),
        (WEB, "AccessDenied", f"Not authorized to perform sts:{WEB}", PermissionDenied, "trust policy"),
        ("AssumeRole", "AccessDenied", "User: arn:aws:iam::1:user/x is not authorized to perform: sts:AssumeRole on",
         PermissionDenied, "trust policy admit the worker's identity by sts:AssumeRole;"),
        ("GetRoleCredentials", "UnauthorizedException", "Session token not found", CredentialsError, "log in again"),
        ("GetRoleCredentials", "ForbiddenException", "No access", CredentialsError, "sso:GetRoleCredentials"),
        ("CreateToken", "InvalidGrantException", "gone", CredentialsError, "Put valid ones"),
        ("GetSessionToken", "Throttling", "slow down", CloudError, "sts:GetSessionToken"),
    ],
)  # fmt: skip
def test_credentials_that_are_refused_by_their_own_call(
    operation: str, code: str, message: str, kind: type[GpuError], says: str
) -> None:
    error = answer(code, message, operation)
    assert type(error) is kind
    assert says in str(error)
    assert "eks:" not in str(error)
    assert "docs/iam.md" not in str(error)


def test_a_missing_cluster_and_a_missing_group() -> None:
    code = "ResourceNotFoundException"
    assert type(answer(code, "No cluster found for name: k8s-ml.")) is ClusterNotFound
    assert type(answer(code, "No node group found for name: train.")) is CloudError


def test_a_request_that_botocore_does_not_send() -> None:
    assert type(raised(boto.ParamValidationError(report="Missing clusterName"))) is RequestRejected


@pytest.mark.parametrize(
    "error",
    [
        boto.NoCredentialsError(),
        boto.PartialCredentialsError(provider="env", cred_var="x"),
        boto.ProfileNotFound(profile="x"),
        boto.UnauthorizedSSOTokenError(),
        boto.CredentialRetrievalError(provider="x", error_msg="y"),
        boto.ConfigParseError(path="/home/airflow/.aws/config"),
        boto.UnknownCredentialError(name="x"),
        FileNotFoundError(2, "No such file or directory", "/var/run/secrets/eks.amazonaws.com/token"),
    ],
)
def test_no_credentials(error: Exception) -> None:
    assert type(raised(error)) is CredentialsError


@pytest.mark.parametrize(
    "error",
    [
        boto.EndpointConnectionError(endpoint_url="https://eks"),
        boto.ConnectTimeoutError(endpoint_url="https://eks"),
        boto.ReadTimeoutError(endpoint_url="https://eks"),
        boto.SSLError(endpoint_url="https://eks", error="x"),
        boto.ConnectionClosedError(endpoint_url="https://eks"),
    ],
)
def test_no_answer(error: Exception) -> None:
    mapped = raised(error)
    assert type(mapped) is CloudError
    assert "did not answer" in str(mapped)


def test_whatever_botocore_raises_ends_as_ours() -> None:
    classes = [cls for _, cls in inspect.getmembers(boto, inspect.isclass) if issubclass(cls, boto.BotoCoreError)]
    assert len(classes) > 50
    for cls in classes:
        assert isinstance(raised(cls.__new__(cls)), GpuError)


def test_errors_of_ours_pass_unchanged() -> None:
    with pytest.raises(QuotaExceeded, match="as it was"), mapped_errors(service="eks", connection="x"):
        raise QuotaExceeded("as it was")
