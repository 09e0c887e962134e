"""An API error in Google's form, as every part of the Google side raises it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

_HTTP = {
    "INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    "FAILED_PRECONDITION": HTTPStatus.BAD_REQUEST,
    "UNAUTHENTICATED": HTTPStatus.UNAUTHORIZED,
    "PERMISSION_DENIED": HTTPStatus.FORBIDDEN,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "ALREADY_EXISTS": HTTPStatus.CONFLICT,
    "ABORTED": HTTPStatus.CONFLICT,
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "INTERNAL": HTTPStatus.INTERNAL_SERVER_ERROR,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
}
_REASONS = {
    "INVALID_ARGUMENT": "badRequest",
    "FAILED_PRECONDITION": "failedPrecondition",
    "UNAUTHENTICATED": "authError",
    "PERMISSION_DENIED": "forbidden",
    "NOT_FOUND": "notFound",
    "ALREADY_EXISTS": "alreadyExists",
    "ABORTED": "aborted",
    "RESOURCE_EXHAUSTED": "rateLimitExceeded",
    "INTERNAL": "backendError",
    "UNAVAILABLE": "backendError",
}


class GoogleApiError(Exception):
    """`status` is a canonical code (`NOT_FOUND`); `reason` the legacy one that Compute Engine's clients look at.

    `details` are further facts in the types of google/rpc/error_details.proto.
    """

    def __init__(
        self,
        status: str,
        message: str,
        *,
        reason: str | None = None,
        domain: str = "global",
        details: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason or _REASONS[status]
        self.domain = domain
        self.details = list(details)

    @property
    def http_status(self) -> HTTPStatus:
        return _HTTP[self.status]

    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {
            "code": int(self.http_status),
            "message": self.message,
            "status": self.status,
            "errors": [{"message": self.message, "domain": self.domain, "reason": self.reason}],
        }
        return {"error": error | ({"details": self.details} if self.details else {})}


def invalid(message: str) -> GoogleApiError:
    return GoogleApiError("INVALID_ARGUMENT", message)


def not_found(message: str) -> GoogleApiError:
    return GoogleApiError("NOT_FOUND", message)


def scopes_insufficient(service: str) -> GoogleApiError:
    """The answer to a token that was issued for other things, as google/api/error_reason.proto has it."""
    return GoogleApiError(
        "PERMISSION_DENIED",
        "Request had insufficient authentication scopes.",
        reason="insufficientPermissions",
        details=[error_info("ACCESS_TOKEN_SCOPE_INSUFFICIENT", service=f"{service}.googleapis.com")],
    )


def service_disabled(service: str, project_id: str) -> GoogleApiError:
    """The answer of an API that is not enabled in the project, as google/api/error_reason.proto has it."""
    return GoogleApiError(
        "PERMISSION_DENIED",
        f"The API {service}.googleapis.com has not been used in project {project_id} before or it is disabled. Enable "
        "it by visiting the console, then retry. If you enabled this API recently, wait a few minutes for the action "
        "to propagate to our systems and retry.",
        reason="accessNotConfigured",
        domain="usageLimits",
        details=[
            error_info("SERVICE_DISABLED", service=f"{service}.googleapis.com", consumer=f"projects/{project_id}")
        ],
    )


def outside_perimeter(service: str) -> GoogleApiError:
    """The answer to a call from outside a VPC Service Controls perimeter ("Retrieve errors"; cloudquery issue 1062)."""
    unique_id = secrets.token_urlsafe(40)
    violation = {"type": "VPC_SERVICE_CONTROLS", "description": unique_id}
    return GoogleApiError(
        "PERMISSION_DENIED",
        f"Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: {unique_id}",
        details=[
            {"@type": "type.googleapis.com/google.rpc.PreconditionFailure", "violations": [violation]},
            error_info("SECURITY_POLICY_VIOLATED", service=f"{service}.googleapis.com", uid=unique_id),
        ],
    )


def throttled(service: str, *, writes: bool) -> GoogleApiError:
    """The answer to too many calls in a minute or, on Compute Engine, to too many operations at one time.

    Compute Engine's are 403: podman issue 28212 has a whole answer of the latter, terraform-provider-google issue 8360
    the words of the former. Those of GKE are 429.
    """
    kind = "Queries" if writes else "Read requests"
    limit = (
        f"Quota exceeded for quota metric '{kind}' and limit '{kind} per minute' of service '{service}.googleapis.com' "
        "for consumer 'project_number:123456789012'."
    )
    if service != "compute":
        return GoogleApiError("RESOURCE_EXHAUSTED", limit)
    limited: dict[str, Any] = {"reason": "rateLimitExceeded", "domain": "usageLimits"}
    if not writes:
        return GoogleApiError("PERMISSION_DENIED", limit, **limited)
    info = error_info("CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", domain="compute.googleapis.com", containerType="PROJECT")
    return GoogleApiError("PERMISSION_DENIED", "Rate Limit Exceeded", details=[info], **limited)


def error_info(reason: str, *, domain: str = "googleapis.com", **metadata: str) -> dict[str, Any]:
    """A google.rpc.ErrorInfo."""
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": domain,
        "metadata": metadata,
    }
