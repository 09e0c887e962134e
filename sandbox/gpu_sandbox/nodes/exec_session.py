"""One exec: the remote-command protocol over WebSocket (v5 and v4 channels) on one side, a process on the other."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import struct
import termios
from typing import Any

from aiohttp import WSMsgType, web

from gpu_sandbox.nodes.container import ContainerRunner
from gpu_sandbox.nodes.errors import ContainerStartError
from gpu_sandbox.nodes.launcher import Process

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_CHUNK = 32768


async def serve(request: web.Request, runner: ContainerRunner) -> web.WebSocketResponse:
    """Answer an exec request to its end."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0)
    await socket.prepare(request)
    query = request.query
    session = _Session(
        socket,
        tty=query.get("tty") in ("1", "true"),
        stdin=query.get("input", query.get("stdin")) in ("1", "true"),
    )
    await session.run(runner, query.getall("command", []))
    await socket.close()
    return socket


class _Session:
    def __init__(self, socket: web.WebSocketResponse, *, tty: bool, stdin: bool) -> None:
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._tty = tty
        self._input: int | None = None
        self._outputs: dict[int, int] = {}
        self._children: list[int] = []
        self._open(stdin=stdin)

    def _open(self, *, stdin: bool) -> None:
        if self._tty:
            master, slave = os.openpty()
            self._input = master
            self._outputs = {_STDOUT: master}
            self._children = [slave, slave, slave]
            return
        if stdin:
            child_in, self._input = os.pipe()
        else:
            child_in = os.open(os.devnull, os.O_RDONLY)
        out, child_out = os.pipe()
        err, child_err = os.pipe()
        self._outputs = {_STDOUT: out, _STDERR: err}
        self._children = [child_in, child_out, child_err]

    async def run(self, runner: ContainerRunner, argv: list[str]) -> None:
        try:
            first, second, third = self._children
            process = await runner.exec(argv, (first, second, third), tty=self._tty)
        except ContainerStartError as error:
            self._close_all()
            await self._finish(_internal_error(str(error)))
            return
        for fd in set(self._children):
            os.close(fd)
        self._children = []
        incoming = asyncio.create_task(self._receive(process))
        outgoing = [asyncio.create_task(self._send(channel, fd)) for channel, fd in self._outputs.items()]
        try:
            code = await asyncio.shield(process.exit_code)
            await asyncio.wait(outgoing, timeout=5.0)
            await self._finish(_status(code))
        finally:
            for task in (incoming, *outgoing):
                task.cancel()
            await asyncio.wait([incoming, *outgoing])
            process.signal(signal.SIGKILL)
            self._close_all()

    async def _finish(self, status: dict[str, Any]) -> None:
        if not self._socket.closed:
            await self._socket.send_bytes(bytes([_STATUS]) + json.dumps(status).encode())

    async def _receive(self, process: Process) -> None:
        async for message in self._socket:
            if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                continue
            data = message.data.encode() if message.type == WSMsgType.TEXT else message.data
            if not data:
                continue
            channel, rest = data[0], data[1:]
            if channel == _STDIN:
                await self._feed(rest)
            elif channel == _RESIZE and self._tty and self._input is not None:
                size = json.loads(rest)
                packed = struct.pack("HHHH", size.get("Height", 0), size.get("Width", 0), 0, 0)
                fcntl.ioctl(self._input, termios.TIOCSWINSZ, packed)
            elif channel == _CLOSE and rest[:1] == bytes([_STDIN]):
                self._close_input()
        # The client hung up: what it ran ends too, its terminal or its pipes being gone.
        process.signal(signal.SIGHUP if self._tty else signal.SIGKILL)

    async def _feed(self, data: bytes) -> None:
        while data and self._input is not None:
            try:
                written = await self._loop.run_in_executor(None, os.write, self._input, data)
            except OSError:
                return  # it does not read any more
            data = data[written:]

    async def _send(self, channel: int, fd: int) -> None:
        os.set_blocking(fd, False)
        while data := await self._read(fd):
            if self._socket.closed:
                return
            await self._socket.send_bytes(bytes([channel]) + data)

    async def _read(self, fd: int) -> bytes:
        while True:
            try:
                return os.read(fd, _CHUNK)
            except BlockingIOError:
                await self._readable(fd)
            except OSError:
                return b""  # a terminal whose last user has gone

    async def _readable(self, fd: int) -> None:
        ready = self._loop.create_future()
        self._loop.add_reader(fd, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            self._loop.remove_reader(fd)

    def _close_input(self) -> None:
        if self._input is not None and not self._tty:
            os.close(self._input)
            self._input = None

    def _close_all(self) -> None:
        self._close_input()
        for fd in {*self._outputs.values(), *self._children}:
            os.close(fd)
        self._outputs, self._children = {}, []


def _status(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _internal_error(text: str) -> dict[str, Any]:
    message = f"Internal error occurred: error executing command in container: {text}"
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "InternalError",
        "message": message,
        "details": {"causes": [{"message": text}]},
        "code": 500,
    }
