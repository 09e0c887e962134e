"""How requests come to the fake API server: as the Kubernetes client sends them, or AsyncApi."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from email.utils import format_datetime
from types import TracebackType
from typing import Any

import aiohttp
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import ProtocolError

from airflow_gpu_provider.cluster.api.access import ClusterAccess, Credentials, Shown
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.api.clock import Clock, ServerTime, SystemClock
from tests.fakes.api_server import ApiServer, Refused
from tests.fakes.objects import Raw
from tests.fakes.watches import Watch


class FakeApiClient:
    """Stands where an ApiClient is expected.

    Args:
        server: What it asks.
        latency: Seconds from a request to its answer.
        clock: Where they pass.
    """

    def __init__(self, server: ApiServer, *, latency: float = 0.0, clock: Clock | None = None) -> None:
        self.server = server
        self._latency = latency
        self._clock = clock or SystemClock()

    def call_api(
        self,
        path: str,
        method: str,
        *,
        query_params: Iterable[tuple[str, str]] = (),
        header_params: Raw | None = None,
        body: Any = None,
        _return_http_data_only: bool = True,
        **_: Any,
    ) -> Any:
        if self._latency:
            self._clock.sleep(self._latency)
        try:
            content_type = (header_params or {}).get("Content-Type", "")
            answer = self.server.answer(method, path, dict(query_params), body, content_type)
        except Refused as refused:
            raise _as_exception(refused) from refused
        return answer if _return_http_data_only else (answer, 200, _headers(self.server))


def _as_exception(refused: Refused) -> Exception:
    if not refused.status:
        return ProtocolError(str(refused))
    error = ApiException(status=refused.status, reason=refused.body["reason"])
    error.body = json.dumps(refused.body)
    return error


class FakeAsyncApi(AsyncApi):
    """AsyncApi with nothing replaced but what is sent and comes back. Watches are silent as long as nothing happens."""

    def __init__(self, server: ApiServer, access: ClusterAccess | None = None) -> None:
        self.server = server
        self._access = access or ClusterAccess(server="https://fake")
        self._way: dict[str, Any] = {}
        self._credentials = Credentials(self._access)
        self._credentials.get()  # in this thread: the first request need not make them in another
        self._credentials_lock = asyncio.Lock()
        self._clock = SystemClock()
        self._time = ServerTime(self._clock)
        self._time_lock = asyncio.Lock()

    async def close(self) -> None:
        """Nothing is open."""

    async def _send_as(
        self, shown: Shown, method: str, path: str, headers: dict[str, str], options: dict[str, Any]
    ) -> Any:
        await asyncio.sleep(0)
        query, sent = options["params"], self._clock.monotonic()
        try:
            if self.server.token not in ("", shown.token):
                raise Refused(401, "Unauthorized", "Unauthorized")
            if query.get("watch"):
                return _Response(200, watch=self.server.watch(path, query))
            body = self.server.answer(method, path, query, options["json"], headers.get("Content-Type", ""))
            response = _Response(200, body)
        except Refused as refused:
            if not refused.status:
                raise aiohttp.ClientConnectionError(str(refused)) from refused
            response = _Response(refused.status, refused.body)
        self._time.take(_headers(self.server)["Date"], sent)
        return response


class _Response:
    """What AsyncApi reads of an aiohttp.ClientResponse."""

    def __init__(self, status: int, body: Any = None, watch: Watch | None = None) -> None:
        self.status = status
        self.reason = ""
        self.headers: dict[str, str] = {}
        self.content = self
        self._body = body
        self._watch = watch

    async def __aenter__(self) -> _Response:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    async def json(self, **_: Any) -> Any:
        return self._body

    async def read(self) -> None:
        """Nothing is left to be read."""

    async def iter_any(self) -> AsyncIterator[bytes]:
        assert self._watch is not None
        async for event in self._watch.events():
            yield json.dumps(event).encode() + b"\n"


def _headers(server: ApiServer) -> dict[str, str]:
    """Return what tells a client the server's time: in whole seconds, as HTTP has it."""
    return {"Date": format_datetime(server.now(), usegmt=True)}
