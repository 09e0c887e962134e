"""AWS's and botocore's errors as this package's. The one place where botocore's errors end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from botocore import exceptions as boto

from airflow_gpu_provider.cluster.connection_errors import in_words
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
    "InvalidClientTokenId",
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
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.ProfileNotFound,
    boto.NoAuthTokenError,
    boto.TokenRetrievalError,
    boto.SSOError,
    boto.InvalidConfigError,
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
            f"AWS ({service}) did not answer: {in_words(error)}.",
            "Check that the worker reaches the endpoint, and that the region is right.",
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
    details = {"code": code, "message": message, "operation": error.operation_name}
    call = f"{service}:{error.operation_name}"
    reason = f"{code}: {message}" if message else code
    action = _refused_action(code, message, call)
    if action:
        return PermissionDenied(
            f"AWS refused {action} ({reason}).",
            f"Allow {action} to the identity of {connection}; docs/iam.md has the whole policy.",
            action=action,
            **details,
        )
    if code in _BAD_CREDENTIALS:
        return CredentialsError(
            f"AWS does not accept the credentials of {connection} ({reason}).",
            "Put valid ones into it, which are read at the next try; and check the worker's clock.",
            **details,
        )
    if code in _QUOTA:
        return QuotaExceeded(
            f"{call} is over a limit of the AWS account ({reason}).",
            "Request a higher limit in Service Quotas.",
            **details,
        )
    if code in _THROTTLED:
        return CloudError(
            f"AWS throttled {call}, all retries included ({reason}).",
            "Try again later, or spread the DAGs that start together.",
            **details,
        )
    if code == "ResourceNotFoundException" and "cluster" in message.lower():
        return ClusterNotFound(
            f"AWS has no such cluster ({message}).",
            f"Check cluster_name and region, and that {connection} belongs to the cluster's account.",
            **details,
        )
    if code in _REJECTED:
        return RequestRejected(
            f"AWS rejected {call} as invalid ({reason}).", "Correct what the message names.", **details
        )
    return CloudError(f"{call} failed ({reason}).", **details)


def _refused_action(code: str, message: str, call: str) -> str | None:
    """Return the IAM action that is missing, if that is what AWS says."""
    if code in _DENIED:
        return match[1] if (match := _ACTION.search(message)) else call
    if match := _MISSING_PERMISSION.search(message):
        return match[1]
    return "ec2:RunInstances" if _LAUNCH_TEMPLATE_DENIED in message else None
