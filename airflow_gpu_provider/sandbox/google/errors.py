"""An API error in Google's form, as every part of the Google side raises it."""

from __future__ import annotations

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
        self, status: str, message: str, *, reason: str | None = None, details: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason or _REASONS[status]
        self.details = list(details)

    @property
    def http_status(self) -> HTTPStatus:
        return _HTTP[self.status]

    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {
            "code": int(self.http_status),
            "message": self.message,
            "status": self.status,
            "errors": [{"message": self.message, "domain": "global", "reason": self.reason}],
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


def error_info(reason: str, **metadata: str) -> dict[str, Any]:
    """A google.rpc.ErrorInfo of Google Cloud's own domain."""
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "googleapis.com",
        "metadata": metadata,
    }
