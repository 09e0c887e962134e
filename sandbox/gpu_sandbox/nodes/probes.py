"""Startup, liveness and readiness probes, and the handlers (exec, httpGet, tcpSocket, sleep) they share with hooks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from gpu_sandbox.nodes.errors import ContainerStartError

if TYPE_CHECKING:
    from gpu_sandbox.nodes.container import ContainerRunner


@dataclass(frozen=True)
class Outcome:
    """How a handler went, and what it said."""

    passed: bool
    output: str = ""


async def watch(runner: ContainerRunner) -> None:
    """Run a container's probes until cancelled: startup first, then liveness and readiness side by side."""
    container = runner.container
    startup = container.get("startupProbe")
    if startup and not await _startup(startup, runner):
        return
    async with asyncio.TaskGroup() as group:
        if liveness := container.get("livenessProbe"):
            group.create_task(_liveness(liveness, runner))
        if readiness := container.get("readinessProbe"):
            group.create_task(_readiness(readiness, runner))


async def attempt(handler: Mapping[str, Any], runner: ContainerRunner, *, timeout: float | None) -> Outcome:
    """Carry a handler out once."""
    try:
        async with asyncio.timeout(timeout):
            return await _handle(handler, runner)
    except TimeoutError:
        return Outcome(False, f"command timed out: timed out after {timeout:g}s" if timeout else "timed out")


async def _handle(handler: Mapping[str, Any], runner: ContainerRunner) -> Outcome:
    if "exec" in handler:
        return await _exec(list(handler["exec"]["command"]), runner)
    if "httpGet" in handler:
        return await _http_get(handler["httpGet"], runner)
    if "tcpSocket" in handler:
        return await _tcp(handler["tcpSocket"], runner)
    if "sleep" in handler:
        await asyncio.sleep(handler["sleep"]["seconds"])
        return Outcome(True)
    return Outcome(False, f"process nodes have no handler of this kind: {', '.join(handler)}")


async def _exec(argv: list[str], runner: ContainerRunner) -> Outcome:
    read_end, write_end = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb"))
    try:
        try:
            process = await runner.exec(argv, (null, write_end, write_end), tty=False)
        finally:
            os.close(write_end)
            os.close(null)
        try:
            code = await asyncio.shield(process.exit_code)
        except asyncio.CancelledError:
            process.signal(9)
            raise
        output = await reader.read(10240)
        return Outcome(code == 0, output.decode(errors="replace"))
    except ContainerStartError as error:
        return Outcome(False, str(error))
    finally:
        transport.close()


async def _http_get(request: Mapping[str, Any], runner: ContainerRunner) -> Outcome:
    scheme = (request.get("scheme") or "HTTP").lower()
    host = request.get("host") or runner.probe_address()
    port = _port(request["port"], runner)
    url = f"{scheme}://{host}:{port}{request.get('path') or '/'}"
    headers = {h["name"]: h["value"] for h in request.get("httpHeaders") or ()}
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers, ssl=False, allow_redirects=False) as response,
        ):
            if 200 <= response.status < 400:
                return Outcome(True)
            return Outcome(False, f"HTTP probe failed with statuscode: {response.status}")
    except aiohttp.ClientError as error:
        return Outcome(False, f'Get "{url}": {error}')


async def _tcp(socket: Mapping[str, Any], runner: ContainerRunner) -> Outcome:
    try:
        _, writer = await asyncio.open_connection(
            socket.get("host") or runner.probe_address(), _port(socket["port"], runner)
        )
    except OSError as error:
        return Outcome(False, str(error))
    writer.close()
    return Outcome(True)


def _port(port: int | str, runner: ContainerRunner) -> int:
    for named in runner.container.get("ports") or ():
        if named.get("name") == port:
            return int(named["containerPort"])
    return int(port)


async def _startup(probe: Mapping[str, Any], runner: ContainerRunner) -> bool:
    await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
    failures = 0
    while True:
        outcome = await _attempt(probe, runner)
        if outcome.passed:
            runner.probed(started=True)
            return True
        failures += 1
        runner.unhealthy("Startup", outcome.output)
        if failures >= (probe.get("failureThreshold") or 3):
            await runner.restart(f"Container {runner.name} failed startup probe")
            return False
        await asyncio.sleep(probe.get("periodSeconds") or 10)


async def _liveness(probe: Mapping[str, Any], runner: ContainerRunner) -> None:
    await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
    failures = 0
    while True:
        outcome = await _attempt(probe, runner)
        failures = 0 if outcome.passed else failures + 1
        if not outcome.passed:
            runner.unhealthy("Liveness", outcome.output)
        if failures >= (probe.get("failureThreshold") or 3):
            await runner.restart(f"Container {runner.name} failed liveness probe")
            return
        await asyncio.sleep(probe.get("periodSeconds") or 10)


async def _readiness(probe: Mapping[str, Any], runner: ContainerRunner) -> None:
    await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
    passed = failed = 0
    while True:
        outcome = await _attempt(probe, runner)
        passed, failed = (passed + 1, 0) if outcome.passed else (0, failed + 1)
        if not outcome.passed:
            runner.unhealthy("Readiness", outcome.output)
        if passed >= (probe.get("successThreshold") or 1):
            runner.probed(ready=True)
        if failed >= (probe.get("failureThreshold") or 3):
            runner.probed(ready=False)
        await asyncio.sleep(probe.get("periodSeconds") or 10)


async def _attempt(probe: Mapping[str, Any], runner: ContainerRunner) -> Outcome:
    return await attempt(probe, runner, timeout=float(probe.get("timeoutSeconds") or 1))
