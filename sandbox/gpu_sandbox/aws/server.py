"""AWS's endpoint: one WSGI application on loopback that routes each signed call to its service."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import urlsplit

from moto.core.request import environ_key_for_header
from moto.core.responses import BaseResponse
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import BaseWSGIServer, make_server

from gpu_sandbox.aws import pricing_api, request_faults
from gpu_sandbox.aws.access import AccessControl
from gpu_sandbox.aws.api_calls import WsgiRequest, operation_of, parameters_of
from gpu_sandbox.aws.conditions import UnsupportedPolicy
from gpu_sandbox.aws.identities import Identities
from gpu_sandbox.aws.request_faults import Answer
from gpu_sandbox.aws.signatures import ALGORITHM, Scope, SignedRequest
from gpu_sandbox.clock import Clock
from gpu_sandbox.faults import Faults

log = logging.getLogger(__name__)
Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WsgiApplication = Callable[[Environ, StartResponse], Iterable[bytes]]
# Signing names that are not the names of botocore's models
_SERVICES = {"servicequotas": "service-quotas"}
# Has one endpoint for all regions, and calls are signed for us-east-1.
_GLOBAL = {"iam"}
# Has endpoints in these regions alone, for all.
_ELSEWHERE = {"pricing": pricing_api.REGIONS}
_AUTHORIZATION = re.compile(
    rf"{ALGORITHM} Credential=(?P<scope>[^,]+), *SignedHeaders=(?P<headers>[^,]+), *Signature=(?P<signature>\w+)"
)


class _QuietHandler(MotoRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """A line per call would drown the sandbox's own output."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request, and who signed it."""

    service: str
    scope: Scope
    request: SignedRequest
    signature: str


def signed_call(environ: Environ) -> Call | None:
    """The call of a request signed by its Authorization header; None if it has none."""
    match = _AUTHORIZATION.fullmatch(environ.get("HTTP_AUTHORIZATION", ""))
    scope = Scope.parse(match["scope"]) if match else None
    if match is None or scope is None:
        return None
    raw_path = str(environ.get("RAW_URI") or environ.get("REQUEST_URI") or environ.get("PATH_INFO", "/"))
    signed_headers = match["headers"].split(";")
    request = SignedRequest(
        method=environ["REQUEST_METHOD"],
        path=urlsplit(raw_path).path,
        query=environ.get("QUERY_STRING", ""),
        headers={name: str(environ.get(environ_key_for_header(name), "")) for name in signed_headers},
        body_hash=hashlib.sha256(environ["wsgi.input"].getvalue()).hexdigest(),
        timestamp=environ.get("HTTP_X_AMZ_DATE", ""),
        scope=scope,
    )
    service = _SERVICES.get(scope.service, scope.service)
    return Call(service=service, scope=scope, request=request, signature=match["signature"])


class AwsApi:
    """The WSGI application. Calls are taken one at a time, under AWS's lock."""

    def __init__(
        self,
        *,
        services: Mapping[str, Callable[[], BaseResponse]],
        region: str,
        lock: threading.RLock,
        faults: Faults,
        identities: Identities,
        access: AccessControl,
        after_call: Callable[[], None],
        clock: Clock,
    ) -> None:
        """`services` makes a response for one call, by signing name; every other service is plain moto's."""
        self.calls: Counter[str] = Counter()
        """Calls by operation, `eks:DescribeNodegroup`; refused and failed ones too."""
        self.called_at: dict[str, float] = {}
        """When each was last called, in seconds since the epoch."""
        self._services = services
        self._region = region
        self._lock = lock
        self._faults = faults
        self._identities = identities
        self._access = access
        self._after_call = after_call
        self._clock = clock
        self._rest_of_aws = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        call = signed_call(environ)
        if call is None:
            return _send(request_faults.answer(request_faults.UNSIGNED, "sts"), start_response)
        with self._lock:
            action = f"{call.scope.service}:{operation_of(environ, call.service)}"
            self.calls[action] += 1
            self.called_at[action] = self._clock.now()
            try:
                refusal = self._refusal(call, action, environ)
            except UnsupportedPolicy as error:
                log.error("the sandbox's AWS cannot tell whether %s is allowed: %s", action, error)
                unknown = request_faults.AwsError(status=501, code="NotImplemented", message=str(error))
                return _send(request_faults.answer(unknown, call.service), start_response)
            if refusal is not None:
                return _send(request_faults.answer(refusal, call.service), start_response)
            regions = _ELSEWHERE.get(call.service, {self._region})
            here = call.scope.region in regions or call.service in _GLOBAL
            make = self._services.get(call.service) if here else None
            if make is None:
                return cast(Iterable[bytes], self._rest_of_aws(environ, start_response))
            answer = self._call(make(), WsgiRequest(environ))
        self._after_call()
        return _send(answer, start_response)

    def _refusal(self, call: Call, action: str, environ: Environ) -> request_faults.AwsError | None:
        known = self._identities.find(call.scope.access_key_id)
        token = call.request.headers.get("x-amz-security-token")
        if known is None or token != known.credentials.token:
            return request_faults.rejected(call.service)
        # As its holder counts, by the machine's clock: botocore renews what is about to expire.
        if known.expires is not None and datetime.now(UTC) >= known.expires:
            return request_faults.expired(call.service)
        if not call.request.matches(call.signature, known.credentials.secret_key):
            return request_faults.bad_signature(call.service)
        operation = action.partition(":")[2]
        denied = self._access.refusal(
            known.identity.arn, action, lambda: parameters_of(environ, call.service, operation)
        )
        return denied or request_faults.drawn(self._faults, call.service, action)

    def _call(self, response: BaseResponse, request: WsgiRequest) -> Answer:
        try:
            status, headers, body = response._dispatch(request)
        except NotImplementedError as error:
            return 501, {"Content-Type": "application/json"}, _failure(error)
        except Exception as error:
            log.exception("the sandbox's AWS failed on %s %s", request.method, request.path)
            return 500, {"Content-Type": "application/json"}, _failure(error)
        sent = {key: str(value) for key, value in headers.items() if key.lower() != "status"}
        return int(status), sent, body if isinstance(body, bytes) else str(body).encode()


def _failure(error: Exception) -> bytes:
    code = "NotImplemented" if isinstance(error, NotImplementedError) else "InternalFailure"
    return json.dumps({"__type": code, "message": f"{type(error).__name__}: {error}"}).encode()


_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 409: "Conflict"}


def _send(answer: Answer, start_response: StartResponse) -> Iterable[bytes]:
    status, headers, body = answer
    lower = {key.lower() for key in headers}
    if "content-length" not in lower:
        headers = headers | {"Content-Length": str(len(body))}
    start_response(f"{status} {_REASONS.get(status, 'Status')}", list(headers.items()))
    return [body]


class AwsServer:
    """The endpoint's thread, on a free port of 127.0.0.1."""

    def __init__(self, api: WsgiApplication, clock: Clock) -> None:
        class Handler(_QuietHandler):
            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string(int(clock.now()))

        self._server: BaseWSGIServer = make_server("127.0.0.1", 0, api, threaded=True, request_handler=Handler)
        self._thread = threading.Thread(target=self._serve, name="aws-endpoint", daemon=True)

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        self._thread.start()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
