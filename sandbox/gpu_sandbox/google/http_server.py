"""The HTTP side: loopback, JSON, bearer tokens, faults; every error in Google's form."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from gpu_sandbox.clock import Clock
from gpu_sandbox.faults import Faults
from gpu_sandbox.google.errors import GoogleApiError, scopes_insufficient, throttled
from gpu_sandbox.google.identities import Identities, InvalidGrant
from gpu_sandbox.google.interface import Identity
from gpu_sandbox.google.permissions import Permissions
from gpu_sandbox.schemas.google import judge_call

TOKEN_PATH = "/token"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One API call: who makes it, and what stands in the path, in the query and in the body."""

    caller: Identity
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Route:
    """`operation` is `service:Method`, as it is counted and as faults name the service."""

    operation: str
    method: str
    pattern: re.Pattern[str]
    answer: Callable[[Call], Any]
    is_held: Callable[[Call], bool] | None = None
    """Of a call that waits for something: whether it still does."""

    @property
    def service(self) -> str:
        return self.operation.partition(":")[0]

    @property
    def starts_an_operation(self) -> bool:
        return self.method != "GET" and not self.operation.partition(":")[2].startswith(("List", "Wait"))


def route(operation: str, method: str, template: str, answer: Callable[[Call], Any]) -> Route:
    """A route whose template has `{names}` for single parts of the path."""
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/:]+)", re.escape(template))
    return Route(operation=operation, method=method, pattern=re.compile(pattern), answer=answer)


@dataclass(kw_only=True)
class Api:
    """All routes behind one lock. `after_call` runs after each call that may have changed something."""

    routes: Sequence[Route]
    identities: Identities
    permissions: Permissions
    faults: Faults
    lock: AbstractContextManager[Any]
    after_call: Callable[[], None]
    clock: Clock
    longest_hold: float = 0.0
    """Seconds after which a call that waits is answered."""
    reading: Callable[[str], AbstractContextManager[Any]] = lambda operation: nullcontext()
    """Held while a call of that operation is answered."""
    refusals: dict[str, GoogleApiError] = field(default_factory=dict)
    """What every call to a service is answered."""
    calls: Counter[str] = field(default_factory=Counter)
    called_at: dict[str, float] = field(default_factory=dict)
    """When each operation was last called, in seconds since the epoch."""

    def answer(self, method: str, target: str, content: bytes, authorization: str) -> tuple[HTTPStatus, Any]:
        """HTTP status and body."""
        split = urlsplit(target)
        if split.path == TOKEN_PATH and method == "POST":
            return self._issue_token(content)
        try:
            return HTTPStatus.OK, self._call(method, split.path, split.query, content, authorization)
        except GoogleApiError as error:
            return error.http_status, error.body()
        except Exception as error:  # noqa: BLE001 - the caller must get an answer, whatever it is
            _log.exception("%s %s failed", method, target)
            wrapped = GoogleApiError("INTERNAL", f"the sandbox failed: {error!r}")
            return wrapped.http_status, wrapped.body()

    def _issue_token(self, content: bytes) -> tuple[HTTPStatus, Any]:
        try:
            with self.lock:
                return HTTPStatus.OK, self.identities.exchange(dict(parse_qsl(content.decode())))
        except InvalidGrant as error:
            return HTTPStatus.BAD_REQUEST, {"error": error.code, "error_description": str(error)}

    def _call(self, method: str, path: str, query: str, content: bytes, authorization: str) -> Any:
        bearer = self.identities.identify(authorization.removeprefix("Bearer "))
        if bearer is None:
            raise GoogleApiError(
                "UNAUTHENTICATED", "Request had invalid authentication credentials. Expected OAuth 2 access token."
            )
        found, parts = self._find(method, path)
        if not bearer.may_call(found.service):
            raise scopes_insufficient(found.service)
        caller = bearer.identity
        if refusal := self.refusals.get(found.service):
            raise refusal
        self.permissions.check(caller, found.operation, _resource(path))
        self._draw_faults(found)
        try:
            body = json.loads(content) if content else {}
        except ValueError as error:
            raise GoogleApiError("INVALID_ARGUMENT", f"Invalid JSON payload received. {error}") from error
        call = Call(caller=caller, path=parts, query=dict(parse_qsl(query)), body=body)
        if found.is_held is not None:
            self._hold(found.is_held, call)
        with self.lock:
            self.calls[found.operation] += 1
            self.called_at[found.operation] = self.clock.now()
            with self.reading(found.operation):
                answer = found.answer(call)
        if method != "GET":
            self.after_call()
        return answer

    def _hold(self, is_held: Callable[[Call], bool], call: Call) -> None:
        def goes_on() -> bool:
            with self.lock:
                return is_held(call)

        self.clock.hold(goes_on, seconds=self.longest_hold)

    def _find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        for one in self.routes:
            if one.method == method and (match := one.pattern.fullmatch(path)):
                return one, {name: unquote(value) for name, value in match.groupdict().items()}
        raise GoogleApiError("NOT_FOUND", f"The sandbox's Google Cloud has no {method} {path}")

    def _draw_faults(self, found: Route) -> None:
        if self.faults.draw_throttle(found.service):
            raise throttled(found.service, writes=found.starts_an_operation)
        if self.faults.draw_error(found.service):
            raise GoogleApiError("UNAVAILABLE", "The service is currently unavailable.")


def _resource(path: str) -> str:
    return f"projects/{path.partition('/projects/')[2]}"


class ApiServer:
    """Serves an `Api` on a free loopback port, known before it is started."""

    def __init__(self, clock: Clock) -> None:
        self._api: Api | None = None
        this = self

        class Handler(_Handler):
            def api(self) -> Api:
                assert this._api is not None
                return this._api

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string(int(clock.now()))

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # A kept-alive connection must not keep stop() waiting.
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="sandbox-google", daemon=True
        )

    def start(self, api: Api) -> None:
        self._api = api
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body in one write: in two, Nagle's algorithm and delayed ACKs add 40 ms to each call.
    wbufsize = -1
    timeout = 60

    def api(self) -> Api:
        raise NotImplementedError

    def _handle(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, body = self.api().answer(self.command, self.path, content, self.headers.get("Authorization", ""))
        if self.path != TOKEN_PATH:
            # Before it is sent: the caller's test would end otherwise.
            judge_call(self.command, self.path, content, status, body)
        payload = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)
        self.wfile.flush()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the callers say what happened."""
