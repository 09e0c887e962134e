"""Credentials of a cluster's clients: renewed when they are old, found again when they are refused, once for all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.client import ApiException, CoreV1Api
from kubernetes.stream import stream

from airflow_gpu_provider.cluster.api.access import TOKEN_MAX_AGE, ClusterAccess, Credentials
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.api.rest import call
from airflow_gpu_provider.errors import ConnectionNotFound, CredentialsError

PODS = "api/v1/namespaces/ml/pods"


class Connection:
    """An Airflow connection whose key is in each token; `rotate` puts another into it, which alone is accepted."""

    def __init__(self) -> None:
        self.key, self.accepted = "old", "old"
        self.looked_up: list[threading.Thread] = []
        self.tokens = 0
        self.refusals = 0

    def rotate(self) -> None:
        self.key = self.accepted = "new"

    def access(self, server: str = "https://host") -> ClusterAccess:
        self.looked_up.append(threading.current_thread())
        key = self.key

        def token() -> str:
            self.tokens += 1
            return f"{key}-{self.tokens}"

        return ClusterAccess(server=server, token=token, again=lambda: self.access(server))

    def accepts(self, header: str | None) -> bool:
        is_accepted = (header or "").startswith(f"Bearer {self.accepted}-")
        self.refusals += not is_accepted
        return is_accepted


@pytest.fixture
def connection() -> Connection:
    return Connection()


# -- what is shown ---------------------------------------------------------------------------------------------


def test_a_token_is_made_again_when_it_is_old(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("airflow_gpu_provider.cluster.api.access.time.monotonic", lambda: now[0])
    credentials = Credentials(connection.access())
    assert [credentials.get().token, credentials.get().token] == ["old-1", "old-1"]
    now[0] = TOKEN_MAX_AGE + 1
    assert credentials.fresh is None
    assert credentials.get().token == "old-2"
    assert len(connection.looked_up) == 1


def test_what_was_refused_is_found_again_once(connection: Connection) -> None:
    credentials = Credentials(connection.access())
    first = credentials.get()
    connection.rotate()
    new = credentials.after(first)
    assert new is not None
    assert new.header == "Bearer new-2"
    assert credentials.after(first) is new is credentials.get()
    assert len(connection.looked_up) == 2


def test_a_certificate_that_nobody_can_find_again_is_not_shown_twice() -> None:
    credentials = Credentials(ClusterAccess(server="https://host", client_certificate_data="Q0E="))
    assert credentials.after(credentials.get()) is None


def test_what_is_shown_stays_where_the_connection_cannot_be_read(connection: Connection) -> None:
    def gone() -> ClusterAccess:
        raise ConnectionNotFound.named("train", "aws_conn_id")

    credentials = Credentials(replace(connection.access(), again=gone))
    first = credentials.get()
    with pytest.raises(ConnectionNotFound):
        credentials.after(first)
    assert credentials.get() is first


# -- the client of workers -------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    connection: Connection


class _Answers(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def _answer(self) -> None:
        is_accepted = self.server.connection.accepts(self.headers["Authorization"])
        body = b'{"items": []}' if is_accepted else b'{"kind": "Status", "message": "Unauthorized", "code": 401}'
        self.send_response(200 if is_accepted else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(connection: Connection) -> Any:
    server = _Server(("127.0.0.1", 0), _Answers)
    server.connection = connection
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("verb", ["list", "create"])
def test_a_request_that_is_refused_is_made_again_with_the_rotated_key(
    connection: Connection, server: str, verb: str
) -> None:
    api = connection.access(server).api_client()
    list_pods(api)
    connection.rotate()
    body = {} if verb == "create" else None
    assert call(api, verb, f"/{PODS}", resource="pods", body=body) == {"items": []}
    assert (len(connection.looked_up), connection.refusals) == (2, 1)
    list_pods(api)
    assert (len(connection.looked_up), connection.refusals) == (2, 1), "it was found for all that follow"


def test_a_key_that_is_dead_in_the_connection_too_is_an_error(connection: Connection, server: str) -> None:
    connection.accepted = "another"
    with pytest.raises(CredentialsError, match="does not accept the credentials of the Airflow connection"):
        list_pods(connection.access(server).api_client())


def test_an_exec_that_is_refused_is_made_again_with_the_rotated_key(connection: Connection, server: str) -> None:
    """Its client for WebSockets hides the refusal behind an error of its own."""
    api = connection.access(server).api_client()
    list_pods(api)
    connection.rotate()
    with pytest.raises(ApiException, match=r"\(200\)"):  # this server speaks no WebSocket
        stream(CoreV1Api(api).connect_get_namespaced_pod_exec, "train", "ml", command=["cat"], stdout=True)
    assert (len(connection.looked_up), connection.refusals) == (2, 1)


def test_a_renewed_certificate_is_shown_by_the_requests_that_follow(server: str) -> None:
    renewed = ClusterAccess(server=server, token=lambda: "old-1", client_key_data="S0VZ")
    first = ClusterAccess(server="http://127.0.0.1:1", token=lambda: "older", again=lambda: renewed)
    api = first.api_client()
    pool = api.rest_client.pool_manager
    assert api._credentials.after(api._credentials.get())
    list_pods(api)
    assert api.rest_client.pool_manager is not pool


def list_pods(api: Any) -> None:
    call(api, "list", f"/{PODS}", resource="pods")


# -- the client of triggerers ----------------------------------------------------------------------------------


@asynccontextmanager
async def served(connection: Connection) -> AsyncIterator[AsyncApi]:
    async def answer(request: web.Request) -> web.StreamResponse:
        if not connection.accepts(request.headers.get("Authorization")):
            return web.json_response({"kind": "Status", "message": "Unauthorized", "code": 401}, status=401)
        if not request.path.endswith("/exec"):
            return web.json_response({"items": []})
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        await socket.send_bytes(b"\x01said")
        await socket.send_bytes(b'\x03{"status": "Success"}')
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        api = AsyncApi(connection.access(str(server.make_url("/"))))
        try:
            yield api
        finally:
            await api.close()


Request = Callable[[AsyncApi], Any]
REQUESTS: dict[str, Request] = {
    "get": lambda api: api.get(PODS),
    "exec": lambda api: api.output(f"{PODS}/train", container="base", command=["cat"], within=60),
}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_triggerers_request_is_made_again_with_the_rotated_key(connection: Connection, kind: str) -> None:
    async with served(connection) as api:
        first = await REQUESTS[kind](api)
        connection.rotate()
        assert await REQUESTS[kind](api) == first
        assert (len(connection.looked_up), connection.refusals) == (2, 1)


async def test_two_hundred_waits_that_are_refused_at_once_look_the_connection_up_once(connection: Connection) -> None:
    async with served(connection) as api:
        await api.get(PODS)
        connection.rotate()
        answers = await asyncio.gather(*(api.get(PODS) for _ in range(200)))
        assert answers == [{"items": []}] * 200
        assert len(connection.looked_up) == 2


async def test_no_connection_is_looked_up_in_the_event_loop(connection: Connection) -> None:
    async with served(connection) as api:
        connection.rotate()
        await api.get(PODS)
        assert connection.looked_up[1] is not threading.current_thread()


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_refusal_that_stays_says_what_it_is_without_a_url(connection: Connection, kind: str) -> None:
    async with served(connection) as api:
        connection.accepted = "another"
        with pytest.raises(CredentialsError) as refused:
            await REQUESTS[kind](api)
        assert "Unauthorized" in str(refused.value)
        assert "://" not in str(refused.value)


async def test_requests_go_on_while_one_that_was_refused_by_mistake_looks_the_connection_up(
    connection: Connection,
) -> None:
    """An API server whose webhook did not answer refuses what is good; Airflow may take its time as well."""
    may_answer = threading.Event()
    async with served(connection) as api:
        server = api._access.server
        again = lambda: may_answer.wait(60) and connection.access(server)  # noqa: E731
        api._credentials = Credentials(replace(connection.access(server), again=again))
        shown = await api._shown()
        refused = asyncio.create_task(api._shown_after(shown))
        await asyncio.sleep(0)
        assert await api.get(PODS) == {"items": []}
        may_answer.set()
        assert await refused
