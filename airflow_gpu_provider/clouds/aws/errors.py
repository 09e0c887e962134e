"""AWS's and botocore's errors as this package's. The one place where botocore's errors end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from botocore import exceptions as boto

from airflow_gpu_provider.cluster.api.connection_errors import failure_in_words
from airflow_gpu_provider.errors import (
    CloudError,
    ClusterNotFound,
    CredentialsError,
    GpuError,
    PermissionDenied,
    QuotaExceeded,
    RequestRejected,
)

_DENIED = {
    "AccessDenied",
    "AccessDeniedException",
    "AuthorizationError",
    "NotAuthorized",
    "UnauthorizedException",
    "UnauthorizedOperation",
}
_BAD_CREDENTIALS = {
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientException",
    "InvalidClientTokenId",
    "InvalidGrantException",
    "InvalidSignatureException",
    "InvalidToken",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "OptInRequired",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_QUOTA = {
    "InstanceLimitExceeded",
    "LimitExceeded",
    "LimitExceededException",
    "LimitExceededFault",
    "MaxSpotInstanceCountExceeded",
    "ResourceLimitExceeded",
    "ResourceLimitExceededException",
    "ServiceQuotaExceededException",
    "VcpuLimitExceeded",
}
_THROTTLED = {
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "TooManyRequestsException",
}
# The request itself is wrong. Other codes are tolerated: an unknown code may mean a transient failure.
_REJECTED = {
    "InvalidAction",
    "InvalidParameter",
    "InvalidParameterCombination",
    "InvalidParameterException",
    "InvalidParameterValue",
    "MalformedQueryString",
    "MissingParameter",
    "UnknownOperationException",
    "UnknownParameter",
    "ValidationError",
    "ValidationException",
}
# By these botocore gets the credentials of whatever call comes first, which then raises their errors: the services'
# models in botocore/data. Its reads of tokens and roles of the instance raise errors of their own.
_FOR_CREDENTIALS: Mapping[str, str] = {
    "AssumeRole": "sts",
    "AssumeRoleWithSAML": "sts",
    "AssumeRoleWithWebIdentity": "sts",
    "AssumeRoot": "sts",
    "GetFederationToken": "sts",
    "GetSessionToken": "sts",
    "GetRoleCredentials": "sso",
    "CreateToken": "sso-oidc",
    "CreateOAuth2Token": "signin",
}
# What only a new login, or another session or role in the connection, changes.
_NO_SESSION: Mapping[str, set[str]] = {
    "sso": {"UnauthorizedException", "ForbiddenException", "ResourceNotFoundException", "InvalidRequestException"},
    "sso-oidc": {"AccessDeniedException", "InvalidRequestException", "UnauthorizedClientException"},
    "signin": {"AccessDeniedException"},
}
_HOW_TO_BE_ACCEPTED = (
    (
        ("RegionDisabledException",),
        "Activate STS in that region in IAM's account settings, or have the connection use another region's endpoint.",
    ),
    (
        ("InvalidIdentityToken", "IDPRejectedClaim"),
        "See that the role's account has an IAM OIDC provider for the issuer of the worker's token, with its audience,"
        " and that the worker's token is renewed.",
    ),
)
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.ProfileNotFound,
    boto.NoAuthTokenError,
    boto.TokenRetrievalError,
    boto.SSOError,
    boto.InvalidConfigError,
    boto.ConfigNotFound,
    boto.ConfigParseError,
    boto.RefreshWithMFAUnsupportedError,
    boto.UnknownCredentialError,
    *([boto.LoginError] if hasattr(boto, "LoginError") else []),  # of `aws login`, from botocore 1.41
)
_ACTION = re.compile(r"perform: ([a-z0-9-]+:[A-Za-z]+)")
# EKS checks roles and launch templates in the caller's name, and tells of a refusal as an invalid request.
_MISSING_PERMISSION = re.compile(r"missing permissions for '([a-z0-9-]+:[A-Za-z]+)'")
_LAUNCH_TEMPLATE_DENIED = "not authorized to launch instances with this launch template"


@contextmanager
def mapped_errors(*, service: str, connection: str) -> Iterator[None]:
    """Raise what botocore raises inside as an error of ours, the original chained.

    `service` is IAM's prefix ("eks"), `connection` says where the credentials come from, for the messages.
    An answer of AWS keeps its code in `details["code"]`; see `answers.has_code`.
    """
    try:
        yield
    except boto.ClientError as error:
        raise _from_answer(error, service, connection) from error
    except _NO_CREDENTIALS as error:
        raise CredentialsError(
            f"{connection} provides no AWS credentials: {error}.",
            "Put an access key, a profile or a role into the connection, or give the worker a role.",
        ) from error
    except (boto.HTTPClientError, boto.ConnectionError) as error:
        raise CloudError(
            f"AWS ({service}) did not answer: {failure_in_words(error)}.",
            "Check that the worker reaches the endpoint, and that the region is right.",
        ) from error
    except OSError as error:  # botocore wraps those of connections, not that of a token's file
        raise CredentialsError(
            f"A file that {connection} names for AWS cannot be read: {error}.",
            "Correct AWS_WEB_IDENTITY_TOKEN_FILE, or the path in the profile; in a pod, its projected volume.",
        ) from error
    except boto.ParamValidationError as error:
        raise RequestRejected(
            f"The request to AWS ({service}) was not sent: {error}.", "Correct what the message names."
        ) from error
    except boto.BotoCoreError as error:
        raise CloudError(f"botocore could not call AWS ({service}): {error}.") from error


def _from_answer(error: boto.ClientError, service: str, connection: str) -> GpuError:
    answer = error.response.get("Error", {})
    code, message = str(answer.get("Code", "")), str(answer.get("Message", "")).strip()
    refused = _Refusal(
        code=code,
        message=message,
        operation=error.operation_name,
        getter=_FOR_CREDENTIALS.get(error.operation_name),
        service=service,
        connection=connection,
    )
    return _of_credentials(refused) or _of_the_call(refused)


@dataclass(frozen=True, kw_only=True)
class _Refusal:
    """What AWS answered to one call. `getter` is the service that gives credentials by it; None for other calls."""

    code: str
    message: str
    operation: str
    getter: str | None
    service: str
    connection: str

    @property
    def call(self) -> str:
        return f"{self.getter or self.service}:{self.operation}"

    @property
    def reason(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code

    @property
    def details(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "operation": self.operation}


def _of_credentials(refused: _Refusal) -> GpuError | None:
    """Return the error of a connection whose credentials AWS does not give or accept; None where it does."""
    code, call, reason, connection = refused.code, refused.call, refused.reason, refused.connection
    if refused.getter and code in _REJECTED | _NO_SESSION.get(refused.getter, set()):
        return CredentialsError(
            f"AWS gives {connection} no credentials: {call} is refused ({reason}).",
            "Correct the role or the session that it names, or log in again.",
            **refused.details,
        )
    if code in _DENIED and refused.operation.startswith("AssumeRole"):
        return PermissionDenied(
            f"The role that {connection} names does not let it in ({call}: {reason}).",
            f"Have the role's trust policy admit the worker's identity by {call}; one that is an IAM user's or role's"
            " needs that permission in its own policy, too.",
            action=call,
            **refused.details,
        )
    if fix := next((fix for codes, fix in _HOW_TO_BE_ACCEPTED if code.startswith(codes)), ""):
        return CredentialsError(f"STS does not accept the identity of {connection} ({reason}).", fix, **refused.details)
    if code in _BAD_CREDENTIALS:
        return CredentialsError(
            f"AWS does not accept the credentials of {connection} ({reason}).",
            "Put valid ones into it, which are read at the next try; and check the worker's clock.",
            **refused.details,
        )
    return None


def _of_the_call(refused: _Refusal) -> GpuError:
    code, message, call, reason = refused.code, refused.message, refused.call, refused.reason
    if action := _refused_action(code, message, call):
        return PermissionDenied(
            f"AWS refused {action} ({reason}).",
            f"Allow {action} to the identity of {refused.connection}; docs/iam.md has the whole policy.",
            action=action,
            **refused.details,
        )
    if code in _QUOTA:
        return QuotaExceeded(
            f"{call} is over a limit of the AWS account ({reason}).",
            "Request a higher limit in Service Quotas.",
            **refused.details,
        )
    if code in _THROTTLED:
        return CloudError(
            f"AWS throttled {call}, all retries included ({reason}).",
            "Try again later, or spread the DAGs that start together.",
            **refused.details,
        )
    if code == "ResourceNotFoundException" and "cluster" in message.lower():
        return ClusterNotFound(
            f"AWS has no such cluster ({message}).",
            f"Check cluster_name and region, and that {refused.connection} belongs to the cluster's account.",
            **refused.details,
        )
    if code in _REJECTED:
        return RequestRejected(
            f"AWS rejected {call} as invalid ({reason}).", "Correct what the message names.", **refused.details
        )
    return CloudError(f"{call} failed ({reason}).", **refused.details)


def _refused_action(code: str, message: str, call: str) -> str | None:
    """Return the IAM action that is missing, if that is what AWS says."""
    if code in _DENIED:
        return match[1] if (match := _ACTION.search(message)) else call
    if match := _MISSING_PERMISSION.search(message):
        return match[1]
    return "ec2:RunInstances" if _LAUNCH_TEMPLATE_DENIED in message else None
