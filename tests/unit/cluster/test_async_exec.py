"""What a command in a container writes, over the API server's WebSocket: whole, or none where it is not sure to be."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.async_api import LONGEST_OUTPUT, AsyncApi, OutputTooLong
from airflow_gpu_provider.errors import ClusterUnreachable

POD = "api/v1/namespaces/ml/pods/train-x"
STDOUT, STDERR, STATUS = b"\x01", b"\x02", b"\x03"
SUCCESS = STATUS + json.dumps({"status": "Success"}).encode()
FAILURE = STATUS + json.dumps({"status": "Failure", "message": "exit code 1"}).encode()


@asynccontextmanager
async def exec_that_sends(*messages: bytes, asked: Callable[[web.Request], None] = print) -> AsyncIterator[AsyncApi]:
    async def serve(request: web.Request) -> web.StreamResponse:
        asked(request)
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        for message in messages:
            await socket.send_bytes(message)
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get(f"/{POD}/exec", serve)
    async with TestServer(app) as server:
        api = AsyncApi(ClusterAccess(server=str(server.make_url("/")), token=lambda: "token"))
        yield api
        await api.close()


async def test_output_is_put_together() -> None:
    requests: list[web.Request] = []
    messages = (STDOUT, STDOUT + b'{"loss"', STDERR + b"a warning", STDOUT + b": 0.1}\n", SUCCESS)
    async with exec_that_sends(*messages, asked=requests.append) as api:
        assert await api.output(POD, container="side", command=["cat", "it"], within=10) == b'{"loss": 0.1}\n'
    (request,) = requests
    assert request.query.getall("command") == ["cat", "it"]
    assert request.query["container"] == "side"
    assert request.headers["Authorization"] == "Bearer token"


@pytest.mark.parametrize("messages", [(STDOUT + b"half", FAILURE), (STDOUT + b"half",)], ids=["failed", "cut off"])
async def test_output_that_may_not_be_whole_is_none(messages: tuple[bytes, ...]) -> None:
    async with exec_that_sends(*messages) as api:
        assert await api.output(POD, container="side", command=["cat"], within=10) is None


async def test_refusal_is_an_error() -> None:
    async with exec_that_sends() as api:
        with pytest.raises(ClusterUnreachable, match="404"):
            await api.output("api/v1/namespaces/ml/pods/another", container="side", command=["cat"], within=10)


async def test_a_program_that_prints_without_end_is_left() -> None:
    """As `nvidia-smi` in an image where that is `yes`: the triggerer, which all DAGs share, keeps 64 KiB of it."""
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        with suppress(ConnectionError):
            while True:
                await socket.send_bytes(STDOUT + b"1, 2\n" * 6400)
                sent += 32_000
        return socket

    app = web.Application()
    app.router.add_get(f"/{POD}/exec", flood)
    async with TestServer(app) as server:
        api = AsyncApi(ClusterAccess(server=str(server.make_url("/")), token=lambda: "token"))
        with pytest.raises(OutputTooLong, match="nvidia-smi in pod train-x wrote more than 64 KiB"):
            await api.output(POD, container="side", command=["nvidia-smi"], within=60)
        await api.close()
    assert sent >= LONGEST_OUTPUT
