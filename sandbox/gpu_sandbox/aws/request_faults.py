"""Errors that AWS answers instead of working: throttling, 5xx and bad credentials, in each service's own format."""

from __future__ import annotations

import json
from dataclasses import dataclass
from uuid import uuid4

from botocore.model import ServiceModel
from moto.core.utils import get_service_model

from gpu_sandbox.faults import Faults

Answer = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True, kw_only=True)
class AwsError:
    """An error by code; `status` is HTTP's."""

    status: int
    code: str
    message: str


_UNKNOWN_KEY = "The security token included in the request is invalid."
_THROTTLED: dict[str, AwsError] = {
    "ec2": AwsError(status=503, code="RequestLimitExceeded", message="Request limit exceeded."),
    "autoscaling": AwsError(status=400, code="Throttling", message="Rate exceeded"),
    "sts": AwsError(status=400, code="Throttling", message="Rate exceeded"),
    "iam": AwsError(status=400, code="Throttling", message="Rate exceeded"),
}
_ANY_THROTTLED = AwsError(status=429, code="ThrottlingException", message="Rate exceeded")
_FAILED: dict[str, AwsError] = {
    "eks": AwsError(status=500, code="ServerException", message="An internal error has occurred"),
    "ec2": AwsError(status=500, code="InternalError", message="An internal error has occurred"),
}
_ANY_FAILED = AwsError(status=500, code="InternalFailure", message="An internal error has occurred")
_REJECTED: dict[str, AwsError] = {
    "ec2": AwsError(
        status=401,
        code="AuthFailure",
        message="AWS was not able to validate the provided access credentials",
    ),
    "autoscaling": AwsError(status=403, code="InvalidClientTokenId", message=_UNKNOWN_KEY),
    "sts": AwsError(status=403, code="InvalidClientTokenId", message=_UNKNOWN_KEY),
    "iam": AwsError(status=403, code="InvalidClientTokenId", message=_UNKNOWN_KEY),
}
_ANY_REJECTED = AwsError(status=403, code="UnrecognizedClientException", message=_UNKNOWN_KEY)
UNSIGNED = AwsError(status=403, code="MissingAuthenticationToken", message="Request is missing Authentication Token")
_BAD_SIGNATURE = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key "
    "and signing method. Consult the service documentation for details."
)
_EXPIRED = "The security token included in the request is expired"


def drawn(faults: Faults, service: str, action: str) -> AwsError | None:
    """The fault that this one call (of `eks:DescribeNodegroup`, say) meets, if any."""
    if faults.draw_error(service):
        return _FAILED.get(service, _ANY_FAILED)
    if faults.draw_throttle(service, action):
        return _THROTTLED.get(service, _ANY_THROTTLED)
    return None


def rejected(service: str) -> AwsError:
    """What the service says of an access key that it does not know."""
    return _REJECTED.get(service, _ANY_REJECTED)


def bad_signature(service: str) -> AwsError:
    """What the service says of a signature by another secret."""
    code = "InvalidSignatureException" if "json" in _protocol(service) else "SignatureDoesNotMatch"
    return AwsError(status=403, code=code, message=_BAD_SIGNATURE)


def expired(service: str) -> AwsError:
    """What the service says of a session that is over."""
    code = {"ec2": "RequestExpired", "query": "ExpiredToken"}.get(_protocol(service), "ExpiredTokenException")
    return AwsError(status=403, code=code, message=_EXPIRED)


def answer(error: AwsError, service: str) -> Answer:
    """The error as this service would send it."""
    protocol = _protocol(service)
    request_id = str(uuid4())
    headers = {"x-amzn-RequestId": request_id}
    if protocol == "ec2":
        text = (
            f"<Response><Errors><Error><Code>{error.code}</Code><Message>{error.message}</Message></Error>"
            f"</Errors><RequestID>{request_id}</RequestID></Response>"
        )
        return error.status, headers | {"Content-Type": "text/xml"}, text.encode()
    if protocol == "query":
        kind = "Sender" if error.status < 500 else "Receiver"
        text = (
            f"<ErrorResponse><Error><Type>{kind}</Type><Code>{error.code}</Code>"
            f"<Message>{error.message}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
        )
        return error.status, headers | {"Content-Type": "text/xml"}, text.encode()
    body = json.dumps({"__type": error.code, "message": error.message}).encode()
    return error.status, headers | {"Content-Type": "application/json", "x-amzn-ErrorType": error.code}, body


def _protocol(service: str) -> str:
    model: ServiceModel = get_service_model(service)
    return str(model.metadata["protocol"])
