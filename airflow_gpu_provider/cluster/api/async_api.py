"""AsyncApi: raw calls to one cluster's API server from an event loop, JSON in and out.

aiohttp and not the generated client, because a watch's lines are wanted as they come, and model classes would hold
up the loop. Every failure leaves here as one of `airflow_gpu_provider.errors`, but for two that are part of the
protocol: `Expired` (410) for a watch, and None or False for what does not exist.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from http.client import responses
from typing import Any

import aiohttp

from airflow_gpu_provider.cluster.api.access import ClusterAccess, Credentials, Shown
from airflow_gpu_provider.cluster.api.clock import Clock, ServerTime, SystemClock
from airflow_gpu_provider.cluster.api.rest import MERGE_PATCH, STRICT, USER_AGENT
from airflow_gpu_provider.cluster.api.threads import in_thread
from airflow_gpu_provider.cluster.model.pod_log import LineSplitter
from airflow_gpu_provider.cluster.model.refusals import ObjectChanged, refusal
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError

READ_TIMEOUT = 30.0
_BUFFER = 2 * 2**20  # etcd's largest object is 1.5 MiB
_LOG_BUFFER = 2**16
_EXEC = ("v5.channel.k8s.io", "v4.channel.k8s.io")  # each message of an exec begins with its channel's number
_STDOUT, _STATUS = 1, 3
LONGEST_OUTPUT = 2**16
"""Bytes of a command's output: this process is shared by all DAGs, and a container's program may print without end."""
_CLOSE_WITHIN = 0.5
_SSL = re.compile(r" ssl:(<[^>]*>|\S+)")  # what aiohttp calls the settings of a connection
_MERGE_PATCH = {"Content-Type": MERGE_PATCH}
_VERBS = {"GET": "get", "DELETE": "delete", "PATCH": "patch"}


class Expired(Exception):
    """No watch goes on from this resource version (410), or in this API version (404): list again."""


class OutputTooLong(GpuError):
    """A command in a container wrote more than is wanted of it."""


class AsyncApi:
    """One connection pool to one API server. Close it with `close()`."""

    def __init__(self, access: ClusterAccess, local: Clock | None = None) -> None:
        self._access = access
        self._way = _way_of(access)
        self._credentials = Credentials(access)
        self._credentials_lock = asyncio.Lock()
        self._clock = local or SystemClock()
        self._time = ServerTime(self._clock)
        self._time_lock = asyncio.Lock()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(sock_connect=5, sock_read=READ_TIMEOUT),
            headers={"User-Agent": USER_AGENT},
            read_bufsize=_BUFFER,
            trust_env=True,
        )

    async def close(self) -> None:
        await self._session.close()

    async def now(self) -> datetime:
        """Return the server's time, as its last answer told it (see `clock.ServerTime`).

        It is asked where it has never answered, or this machine's clock was set since. Where it does not answer, a wait
        goes on without it: by the seconds counted since its last answer, or by this machine's clock.
        """
        async with self._time_lock:
            if not self._time.holds():
                self._time.count_on()
                with suppress(GpuError):
                    await self.get("version")
        return self._clock.now() + self._time.ahead

    async def get(self, path: str, **params: str) -> Any | None:
        """Return the JSON at `path`, or None where there is nothing (404).

        Raises:
            Expired: A list's `continue` is too old.
        """
        async with self._request("GET", path, params=params) as response:
            return None if response.status == 404 else await response.json(content_type=None)

    async def text(self, path: str, **params: str) -> str | None:
        """Return the text at `path` (a container's log), or None where there is none (400, 404)."""
        async with self._request("GET", path, params=params, fine=(400, 404)) as response:
            return await response.text(errors="replace") if response.status == 200 else None

    async def delete(self, path: str, *, uid: str, grace_period_seconds: int | None = None) -> bool:
        """Delete one object and what it owns: a Job's pods, say; False where it is gone, or is another one."""
        options: dict[str, Any] = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        async with self._request("DELETE", path, body=options, fine=(404, 409)) as response:
            return response.status < 300

    async def annotate(self, path: str, *, uid: str, annotations: Mapping[str, str | None]) -> bool:
        """Set annotations of one object, or take those off that are None; False where it is gone, or is another one."""
        return await self.patch(path, {"metadata": {"uid": uid, "annotations": annotations}})

    async def patch(self, path: str, body: dict[str, Any]) -> bool:
        """Change one object by a merge patch; False where it is gone, or is another one than the patch's uid says."""
        request = self._request("PATCH", path, params=STRICT, body=body, fine=(404, 409), headers=_MERGE_PATCH)
        try:
            async with request as response:
                return response.status < 300
        except ObjectChanged:
            return False

    async def follow(self, path: str, *, silence: float, **params: str) -> AsyncGenerator[list[bytes], None]:
        """Yield a container's log as it grows, in bunches of whole lines, until it ends or is silent.

        What comes after the last line end is left out: it may be the beginning of a longer line. Reading slowly slows
        the server down. Where there is no log yet, or no pod any more (400, 404), nothing is yielded.

        Args:
            silence: Seconds without a byte after which it ends, as for `watch`.
        """
        timeout = aiohttp.ClientTimeout(sock_connect=5, sock_read=silence)
        parameters = {**params, "follow": "true"}
        async with self._request(
            "GET", path, params=parameters, fine=(400, 404), timeout=timeout, read_bufsize=_LOG_BUFFER
        ) as response:
            if response.status != 200:
                return
            splitter = LineSplitter()
            with suppress(TimeoutError):
                async for chunk in response.content.iter_any():
                    if lines := splitter.feed(chunk):
                        yield lines

    async def watch(
        self, path: str, *, silence: float, on_open: Callable[[], None] | None = None, **params: str
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield a watch's events until the server ends it, or is silent.

        Args:
            silence: Seconds without a byte after which the watch ends: nothing happened, or the connection is dead.
            on_open: Called when the server has accepted the watch; it may be long until something happens.

        Raises:
            Expired: `resourceVersion` is too old, or the server does not have the collection any more.
        """
        timeout = aiohttp.ClientTimeout(sock_connect=5, sock_read=silence)
        async with self._request("GET", path, params={**params, "watch": "true"}, timeout=timeout) as response:
            if response.status == 404:
                raise Expired
            if on_open is not None:
                on_open()
            with suppress(TimeoutError):
                async for line in _lines(response.content):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        _raise_watch_error(event["object"])
                    yield event

    async def output(self, path: str, *, container: str, command: Sequence[str], within: float) -> bytes | None:
        """Return what a command in a container writes to its stdout; None where it fails.

        Args:
            within: Seconds after which it is given up.

        Raises:
            OutputTooLong: It writes more than LONGEST_OUTPUT bytes; the connection is closed.
        """
        params = [("container", container), ("stdout", "true"), *(("command", word) for word in command)]
        written, status = bytearray(), {}
        try:
            async with asyncio.timeout(within), _closing(await self._opened(f"{path}/exec", params)) as socket:
                async for message in socket:
                    channel, data = message.data[0], message.data[1:]
                    if channel == _STDOUT:
                        written += data
                        if len(written) > LONGEST_OUTPUT:
                            raise _too_long(path, command)
                    elif channel == _STATUS:
                        status = json.loads(data)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, TypeError, LookupError) as error:
            if getattr(error, "status", None) == 401:
                raise refusal(401, {"message": "Unauthorized"}, "create", "pods/exec") from error
            raise ClusterUnreachable(
                f"No command could be run in {path.rpartition('/')[2]}: {_in_words(error)}.",
                "Check that pods/exec is granted, and that the node answers.",
            ) from error
        return bytes(written) if status.get("status") == "Success" else None

    async def _opened(self, path: str, params: list[tuple[str, str]]) -> aiohttp.ClientWebSocketResponse:
        """Return a WebSocket; where it is refused, one that is opened with new credentials."""
        shown = await self._shown()
        try:
            return await self._opened_as(shown, path, params)
        except aiohttp.WSServerHandshakeError as error:
            new = await self._shown_after(shown) if error.status == 401 else None
            if new is None:
                raise
        return await self._opened_as(new, path, params)

    async def _opened_as(
        self, shown: Shown, path: str, params: list[tuple[str, str]]
    ) -> aiohttp.ClientWebSocketResponse:
        options: dict[str, Any] = {"params": params, "protocols": _EXEC, "headers": _headers_of(shown), **self._way}
        socket: aiohttp.ClientWebSocketResponse = await self._session.ws_connect(self._url(path), **options)
        return socket

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        body: Any = None,
        fine: tuple[int, ...] = (404,),
        timeout: aiohttp.ClientTimeout | None = None,
        headers: dict[str, str] | None = None,
        **options: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        options |= {"params": params or {}, "json": body}
        if timeout is not None:
            options["timeout"] = timeout
        try:
            async with await self._send(method, path, headers or {}, options) as response:
                if response.status >= 300 and response.status not in fine:
                    raise await _error_of(response, method, path)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError, json.JSONDecodeError) as error:
            raise ClusterUnreachable(
                f"The API server {self._access.server} did not answer {method} {path}: {_in_words(error)}.",
                "Check that the server can be reached from where Airflow runs.",
            ) from error

    async def _send(
        self, method: str, path: str, headers: dict[str, str], options: dict[str, Any]
    ) -> aiohttp.ClientResponse:
        """Return the answer; where it is a refusal, that to a request with new credentials."""
        shown = await self._shown()
        response = await self._send_as(shown, method, path, headers, options)
        if response.status != 401:
            return response
        await response.read()  # what it says is still wanted where there are no others
        new = await self._shown_after(shown)
        return response if new is None else await self._send_as(new, method, path, headers, options)

    async def _send_as(
        self, shown: Shown, method: str, path: str, headers: dict[str, str], options: dict[str, Any]
    ) -> aiohttp.ClientResponse:
        sent = self._clock.monotonic()
        response = await self._session.request(
            method, self._url(path), headers=headers | _headers_of(shown), **self._way, **options
        )
        self._time.take(response.headers.get("Date"), sent)
        return response

    def _url(self, path: str) -> str:
        return f"{self._access.server.rstrip('/')}/{path}"

    async def _shown(self) -> Shown:
        """Return the credentials of the next request; a thread makes them, which may ask a cloud, or Airflow."""
        if shown := self._credentials.fresh:
            return shown
        async with self._credentials_lock:
            shown = self._credentials.fresh
            return self._use(await in_thread(self._credentials.get) if shown is None else shown)

    async def _shown_after(self, refused: Shown) -> Shown | None:
        """Return the credentials to show after a refusal, as Credentials.after does; they are found in a thread."""
        async with self._credentials_lock:
            known = self._credentials.fresh
            new = await in_thread(self._credentials.after, refused) if known in (refused, None) else known
        return new and self._use(new)

    def _use(self, shown: Shown) -> Shown:
        if shown.access != self._access:
            self._way = _way_of(shown.access)  # no connection that began with another certificate is used again
        self._access = shown.access
        return shown


def _way_of(access: ClusterAccess) -> dict[str, Any]:
    """Return the arguments of a request that say how its connection is made."""
    way = {"ssl": access.ssl_context(), "server_hostname": access.tls_server_name, "proxy": access.proxy_url}
    return {name: value for name, value in way.items() if value}


def _headers_of(shown: Shown) -> dict[str, str]:
    return {"Authorization": shown.header} if shown.header else {}


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines of any length; aiohttp's own iterator refuses those that are longer than its buffer."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


def _raise_watch_error(status: dict[str, Any]) -> None:
    if status.get("code") == 410:
        raise Expired
    raise ClusterUnreachable(f"The API server ended a watch: {status.get('message')}.", "It is taken up again.")


async def _error_of(response: aiohttp.ClientResponse, method: str, path: str) -> Exception:
    if response.status == 410:
        return Expired()
    try:
        body = await response.json(content_type=None)
    except json.JSONDecodeError:
        body = None
    if not isinstance(body, dict) or not body.get("message"):
        body = {"message": response.reason or ""}
    wait = response.headers.get("Retry-After", "")
    error = refusal(response.status, body, _VERBS[method], resource_of(path))
    if wait.isdigit():
        error.details["retry_after"] = int(wait)
    return error


def resource_of(path: str) -> str:
    """Return the resource that a path is of, in RBAC's words: "pods", "pods/log"; an API group's path as it is."""
    parts = path.partition("?")[0].strip("/").split("/")
    before = 2 if parts[0] == "api" else 3 if parts[0] == "apis" else len(parts)
    group, parts = parts[:before], parts[before:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "/".join([*parts[:1], *parts[2:3]] or group)


@asynccontextmanager
async def _closing(socket: aiohttp.ClientWebSocketResponse) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Close the socket within _CLOSE_WITHIN seconds: aiohttp's own close reads for as long as anything comes."""
    try:
        yield socket
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_WITHIN):
                await socket.close()


def _too_long(path: str, command: Sequence[str]) -> OutputTooLong:
    return OutputTooLong(
        f"{command[0]} in pod {path.rpartition('/')[2]} wrote more than {LONGEST_OUTPUT // 1024} KiB.",
        "Check what the image runs under this name.",
    )


def _in_words(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientResponseError):  # its own words have the whole URL
        return f"the answer was {error.status} {responses.get(error.status, '')}".rstrip()
    return _SSL.sub("", str(error)) or type(error).__name__
