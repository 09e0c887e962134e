"""The kubelet's HTTPS port, one for all nodes: container logs and exec, as the API server asks for them."""

from __future__ import annotations

import datetime
import logging
import ssl
from contextlib import aclosing

import trustme
from aiohttp import web

from gpu_sandbox.nodes import clock, exec_session
from gpu_sandbox.nodes.container import ContainerRunner
from gpu_sandbox.nodes.container_log import ContainerLog, LogOptions
from gpu_sandbox.nodes.pods import Pods

log = logging.getLogger(__name__)

_ADDRESS = "127.0.0.1"


class KubeletServer:
    """Serves /containerLogs and /exec on a loopback port.

    Only callers with a certificate of the authority (PEM) are served: for anybody else it would be a way to run
    commands as this user.
    """

    def __init__(self, pods: Pods, *, authority: str) -> None:
        self._pods = pods
        self._context = _tls(authority)
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        app.router.add_get("/exec/{namespace}/{pod}/{uid}/{container}", self._exec)
        app.router.add_post("/exec/{namespace}/{pod}/{container}", self._only_websocket)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)

    async def start(self) -> int:
        """Listen on a free port, and return it."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, _ADDRESS, 0, ssl_context=self._context)
        await site.start()
        port: int = self._runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        """Hang up on everybody."""
        await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _only_websocket(self, request: web.Request) -> web.Response:
        protocol = request.headers.get("Upgrade", "no upgrade")
        return web.Response(status=400, text=f"process nodes serve exec over websocket only, got {protocol}")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        runner = self._runner_of(request)
        container_log = _choose_log(runner, request)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        async with aclosing(container_log.read(_log_options(request))) as pieces:
            async for piece in pieces:
                await response.write(piece)
        await response.write_eof()
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        return await exec_session.serve(request, self._runner_of(request))

    def _runner_of(self, request: web.Request) -> ContainerRunner:
        place = request.match_info
        worker = self._pods.find(place["namespace"], place["pod"])
        if worker is None:
            raise web.HTTPNotFound(text=f'pod "{place["pod"]}" not found')
        runner = worker.runner(place["container"])
        if runner is None:
            raise web.HTTPBadRequest(text=f"container {place['container']} is not valid for pod {place['pod']}")
        return runner


def _choose_log(runner: ContainerRunner, request: web.Request) -> ContainerLog:
    pod = request.match_info["pod"]
    running = runner.process is not None
    if request.query.get("previous") in ("true", "1"):
        waits = "waiting" in runner.record.state
        ended = runner.logs if waits else runner.logs[:-1]
        if not ended:
            text = f'previous terminated container "{runner.name}" in pod "{pod}" not found'
            raise web.HTTPBadRequest(text=text)
        return ended[-1]
    if not runner.logs and not running:
        reason = runner.record.state.get("waiting", {}).get("reason", "ContainerCreating")
        text = f'container "{runner.name}" in pod "{pod}" is waiting to start: {reason}'
        raise web.HTTPBadRequest(text=text)
    return runner.logs[-1]


def _log_options(request: web.Request) -> LogOptions:
    query = request.query
    since = None
    if "sinceSeconds" in query:
        since = clock.now() - datetime.timedelta(seconds=int(query["sinceSeconds"]))
    elif "sinceTime" in query:
        since = clock.parse(query["sinceTime"])
    return LogOptions(
        follow=query.get("follow") in ("true", "1"),
        timestamps=query.get("timestamps") in ("true", "1"),
        tail_lines=int(query["tailLines"]) if "tailLines" in query else None,
        since=since,
        limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
    )


def _tls(authority: str) -> ssl.SSLContext:
    """A certificate of our own making, as a kubelet's without a serving certificate from the cluster."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(_ADDRESS, common_name="gpu-sandbox-node").configure_cert(context)
    context.load_verify_locations(cadata=authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context
