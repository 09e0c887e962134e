"""What Google Cloud says went wrong, as this package's errors. The one place where google.api_core's errors end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from airflow_gpu_provider.clouds.google.launch_errors import is_out_of_stock, names_nothing, of_reservation
from airflow_gpu_provider.cluster.api.connection_errors import failure_in_words, unlogged
from airflow_gpu_provider.errors import (
    CloudError,
    CredentialsError,
    GpuError,
    OutOfStock,
    PermissionDenied,
    QuotaExceeded,
    RequestRejected,
    ServiceDisabled,
)

_PERMISSION = re.compile(r"""required ["']([a-z]+\.[A-Za-z.]+)["']""", re.IGNORECASE)
_PASSING = (
    api.TooManyRequests,
    api.InternalServerError,
    api.BadGateway,
    api.ServiceUnavailable,
    api.GatewayTimeout,
    requests.ConnectionError,
    requests.Timeout,
)
# Limits of calls for each minute, and of operations at one time: they pass, though Compute Engine answers 403 too.
_THROTTLED = (
    "rateLimitExceeded",
    "userRateLimitExceeded",
    "RATE_LIMIT_EXCEEDED",
    "concurrentOperationsQuotaExceeded",
    "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED",
)
_RATE_TEXT = re.compile(r"limit '[^']*\bper ([a-z]+ )*(minute|second|[0-9]+ seconds)\b|[Rr]ate [Ll]imit [Ee]xceeded")
_REJECTED = ("INVALID_ARGUMENT", "OUT_OF_RANGE", "UNIMPLEMENTED")
_QUOTA = ("GCE_QUOTA_EXCEEDED", "QUOTA_EXCEEDED", "QUOTA_LIMIT", "quotaExceeded", "dailyLimitExceeded")
_QUOTA_TEXT = re.compile(r"[Qq]uota '[A-Z0-9_]+' exceeded|[Ii]nsufficient (regional|project) quota")


@dataclass(frozen=True, kw_only=True)
class _Refusal:
    """A 403 that no permission would change. `signs` are reasons and words of which an answer has one."""

    signs: tuple[str, ...]
    because: str
    fix: str
    type: type[PermissionDenied] = PermissionDenied


# Reasons are those of google/api/error_reason.proto; the words are for answers that give no reason.
_REFUSALS = (
    _Refusal(
        signs=("SERVICE_DISABLED", "accessNotConfigured", "it is disabled. Enable it"),
        because="its API is not enabled in the project",
        fix="Enable it (gcloud services enable); it takes some minutes until that holds everywhere.",
        type=ServiceDisabled,
    ),
    _Refusal(
        signs=("BILLING_DISABLED", "requires billing to be enabled"),
        because="the project has no billing account",
        fix="Link one to the project (gcloud billing projects link).",
        type=ServiceDisabled,
    ),
    _Refusal(
        signs=("SECURITY_POLICY_VIOLATED", "vpcServiceControlsUniqueIdentifier"),
        because="a VPC Service Controls perimeter does not let it through from where this runs",
        fix="Have its administrator admit Airflow's network or account by an ingress rule; the identifier above finds "
        "the entry in the audit log.",
    ),
    _Refusal(
        signs=("ACCESS_TOKEN_SCOPE_INSUFFICIENT", "insufficient authentication scopes"),
        because="the token was issued for other OAuth scopes, whatever roles its account has",
        fix="Have https://www.googleapis.com/auth/cloud-platform among the connection's scopes, or among those of the "
        "machine whose account it is.",
    ),
)
_QUOTA_NAME = re.compile(r"[Qq]uota '([A-Z0-9_]+)'")


def is_worth_a_retry(error: Exception) -> bool:
    """Return True if a call that Google's libraries say failed so may work some seconds later.

    Compute Engine tells its limits of calls, and of operations at one time, by a 403.
    """
    if isinstance(error, api.Forbidden):
        return is_throttled(f"{error.message} {_reasons(error)}")
    return isinstance(error, _PASSING)


@contextmanager
def mapped_errors(*, call: str, connection: str) -> Iterator[None]:
    """Raise what Google's libraries raise inside as an error of ours, the original chained.

    `call` is the permission that the call takes ("container.clusters.get"), `connection` says where the credentials
    come from, for the messages. An answer of Google's keeps its status in `details["status"]`; see `answers.has_code`.
    """
    try:
        with unlogged("urllib3.connectionpool"):  # of its own retries, with the whole address
            yield
    except api.RetryError as error:
        cause = error.cause
        raise (
            _from_answer(cause, call, connection)
            if isinstance(cause, api.GoogleAPICallError)
            else _silent(cause or error, call)
        ) from error
    except api.GoogleAPICallError as error:
        raise _from_answer(error, call, connection) from error
    except auth.GoogleAuthError as error:
        raise _silent(error, call) if _may_pass(error) else _no_credentials(error, connection) from error
    except (requests.RequestException, api.GoogleAPIError) as error:
        raise _silent(error, call) from error


def error_of_operation(code: str, message: str, *, doing: str) -> GpuError:
    """Return the typed error for an operation that is done and has an error; `doing` is what it was to do."""
    details = {"status": code, "message": message}
    if names_nothing(message):
        return _nothing_of_that_name(doing, message, details)
    if of_reservation(message):
        return OutOfStock(
            f"Google Cloud has too few free machines in the reservation to {doing}: {message}",
            "Try again when others have ended, have the reservation grow, or name another one.",
            **details,
        )
    if is_out_of_stock(f"{code} {message}"):
        return OutOfStock(
            f"Google Cloud has no capacity to {doing}: {message}",
            "Add node_locations, machine_types or capacity_types to the pool, or try again later.",
            **details,
        )
    if is_throttled(f"{code} {message}"):
        return _throttled(doing, f"{code}: {message}", details)
    if is_over_quota(f"{code} {message}"):
        return QuotaExceeded(
            f"A quota of the project is too small to {doing}: {message}",
            "Request a higher quota in the Google Cloud console.",
            **details,
        )
    return CloudError(f"Google Cloud could not {doing}: {message or code}", **details)


def is_throttled(text: str) -> bool:
    """Return True if Google Cloud's words mean too many calls, or operations, at one time."""
    return any(words in text for words in _THROTTLED) or _RATE_TEXT.search(text) is not None


def is_over_quota(text: str) -> bool:
    """Return True if Google Cloud's words mean that a quota of the project is used up."""
    return not is_throttled(text) and (any(w in text for w in _QUOTA) or _QUOTA_TEXT.search(text) is not None)


def quota_name(text: str) -> str | None:
    """Return the quota that Google Cloud's words name."""
    match = _QUOTA_NAME.search(text)
    return match[1] if match else None


def _from_answer(error: api.GoogleAPICallError, call: str, connection: str) -> GpuError:
    status, message = _status(error), _first_line(_body(error).get("message") or error.message)
    answer, reasons = f"{status}: {message}", _reasons(error)
    details = {"status": status, "message": message, "reasons": reasons, "call": call}
    text = f"{answer} {reasons}"
    if status == "UNAUTHENTICATED":
        return CredentialsError(
            f"Google Cloud does not accept the credentials of {connection} ({answer}).",
            "Put valid ones into it, which are read at the next try; and check the worker's clock.",
            **details,
        )
    if is_throttled(text):
        return _throttled(call, answer, details)
    if is_over_quota(text):
        return QuotaExceeded(
            f"{call} is over a quota of the project ({answer}).",
            "Request a higher quota in the Google Cloud console.",
            **details,
        )
    for refusal in _REFUSALS:
        if int(error.code or 0) == HTTPStatus.FORBIDDEN and any(sign in text for sign in refusal.signs):
            return refusal.type(f"Google Cloud refused {call}: {refusal.because} ({answer}).", refusal.fix, **details)
    if status == "PERMISSION_DENIED":
        match = _PERMISSION.search(message)
        permission = match[1] if match else call
        return PermissionDenied(
            f"Google Cloud refused {permission} ({answer}).",
            f"Grant {permission} to the service account of {connection}; docs/iam-gke.md has the whole role.",
            permission=permission,
            **details,
        )
    if is_out_of_stock(answer) or names_nothing(message):
        return error_of_operation(status, message, doing=f"do {call}")
    if status == "RESOURCE_EXHAUSTED":
        return _throttled(call, answer, details)
    if status in _REJECTED:
        return RequestRejected(
            f"Google Cloud rejected {call} as invalid ({answer}).", "Correct what the message names.", **details
        )
    return CloudError(f"{call} failed ({answer}).", **details)


def _nothing_of_that_name(doing: str, message: str, details: Mapping[str, Any]) -> RequestRejected:
    return RequestRejected(
        f"Google Cloud cannot {doing}: what it names is not there ({message}).",
        "Correct the name, or its project and zone, in the pool's spec, or create it.",
        **details,
    )


def _throttled(call: str, answer: str, details: Mapping[str, Any]) -> CloudError:
    return CloudError(
        f"Google Cloud throttled {call}, all retries included ({answer}).",
        "Try again later, or spread the DAGs that start together.",
        **details,
    )


def _reasons(error: api.GoogleAPICallError) -> str:
    """Return an answer's reasons, apart from its status: `errors[].reason`, and of an ErrorInfo."""
    body = _body(error)
    each = [*(body.get("errors") or ()), *(body.get("details") or ())]
    # Before google-api-core 2.37 asking an answer of REST for it fails; there the details have it.
    of_grpc = getattr(error, "reason", None)
    return " ".join([*(str(e.get("reason", "")) for e in each if isinstance(e, Mapping)), str(of_grpc or "")])


def _status(error: api.GoogleAPICallError) -> str:
    """Return the canonical code: of the body where there is one, for HTTP's 400 and 409 have several."""
    body = _body(error)
    if status := body.get("status"):
        return str(status)
    reasons = [str(each.get("reason")) for each in body.get("errors", []) if isinstance(each, Mapping)]
    if "failedPrecondition" in reasons:
        return "FAILED_PRECONDITION"
    by_code = {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        403: "PERMISSION_DENIED",
        404: "NOT_FOUND",
        409: "ALREADY_EXISTS",
        412: "FAILED_PRECONDITION",
        429: "RESOURCE_EXHAUSTED",
    }
    return by_code.get(int(error.code or 0), f"HTTP_{int(error.code or 0)}")


def _body(error: api.GoogleAPICallError) -> Mapping[str, Any]:
    response = getattr(error, "response", None)
    if response is None or not hasattr(response, "json"):
        return {}
    try:
        body = response.json()
    except ValueError:
        return {}
    found = body.get("error", {}) if isinstance(body, Mapping) else {}
    return found if isinstance(found, Mapping) else {}


# RFC 6749's errors of a token server that fails itself, and Google's own; google.auth keeps no status.
_TOKEN_SERVER_FAILS = re.compile(
    r"\b(server_error|temporarily_unavailable|internal_failure|UNAVAILABLE|INTERNAL|DEADLINE_EXCEEDED)\b"
    r"|\"code\": ?5\d\d\b"
)


def _may_pass(error: auth.GoogleAuthError) -> bool:
    """Return True if nothing was decided on the credentials: no answer, or a server's own failure."""
    is_silent = isinstance(error, auth.TransportError | auth.TimeoutError | auth.ResponseError)
    return is_silent or error.retryable or _TOKEN_SERVER_FAILS.search(str(error)) is not None


def _no_credentials(error: auth.GoogleAuthError, connection: str) -> CredentialsError:
    if isinstance(error, auth.OAuthError):
        return CredentialsError(
            f"Google Cloud does not accept the token of {connection} ({_first_line(failure_in_words(error))}).",
            "See that its credential configuration names a workload identity pool and provider that exist, and that"
            " the token that it exchanges is renewed; and check the worker's clock.",
        )
    fix = "Put a service account's key into the connection, or give the worker a service account."
    if "iam.serviceAccounts.getAccessToken" in str(error):
        fix = (
            "Grant its identity iam.serviceAccounts.getAccessToken on the service account that it impersonates"
            " (roles/iam.serviceAccountTokenCreator, or roles/iam.workloadIdentityUser for a federated one)."
        )
    return CredentialsError(f"{connection} provides no Google Cloud credentials: {_first_line(error)}.", fix)


def _silent(error: Exception, call: str) -> CloudError:
    return CloudError(
        f"Google Cloud did not answer {call}: {_first_line(failure_in_words(error))}.",
        "Check that the worker reaches the endpoint.",
    )


def _first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0].rstrip(".")
