"""The agent's side of the zygote: start processes in containers, signal them, learn how they ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_sandbox.nodes import zygote
from gpu_sandbox.nodes.errors import ContainerStartError, NamespacesForbidden, NodeAgentError


@dataclass(eq=False)
class Process:
    """A process in a container; ``host_pid`` is what this machine's ps shows."""

    pid: int
    host_pid: int
    pidfd: int
    exit_code: asyncio.Future[int] = field(repr=False)

    def signal(self, number: int) -> None:
        """Send a signal; one that has ended already is no error."""
        if self.exit_code.done():
            return
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return  # it has just ended: its exit code is on the way

    @property
    def running(self) -> bool:
        """Whether it has not ended yet, as far as we were told."""
        return not self.exit_code.done()


def fork_zygote() -> tuple[socket.socket, bool]:
    """Fork the zygote. To be called before this process has threads or an event loop.

    Returns the line to it, and whether it had to make a user namespace.

    Raises NamespacesForbidden where the kernel does not let us isolate pods.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent_pid = os.getpid()
    if os.fork() == 0:
        ours.close()
        os.close(0)
        zygote.supervise(theirs, agent_pid)
    theirs.close()
    hello = ours.recv(zygote.PACKET)
    answer = json.loads(hello) if hello else {"failed": "the first process in the new namespaces died"}
    if "failed" in answer:
        raise NamespacesForbidden(answer["failed"])
    return ours, bool(answer["in_user_namespace"])


class Launcher:
    """Requests to the zygote, from the agent's event loop."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._replies: dict[int, asyncio.Future[tuple[dict[str, Any], list[int]]]] = {}
        self._processes: dict[int, Process] = {}
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._next_id = 0
        self.lost: asyncio.Future[None] = self._loop.create_future()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)

    def close(self) -> None:
        """Hang up: the zygote ends, and all containers with it."""
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()

    async def start(self, spec: Mapping[str, Any], stdio: Sequence[int]) -> Process:
        """Start a container's first process; returns when its program runs.

        Raises ContainerStartError with the reason when it could not be started.
        """
        return await self._spawn({"op": "start"}, spec, stdio)

    async def exec(self, target: Process, spec: Mapping[str, Any], stdio: Sequence[int]) -> Process:
        """Start another process inside the container of target."""
        return await self._spawn({"op": "exec", "target": target.pid}, spec, stdio)

    async def mount_tmpfs(self, path: str, options: str) -> None:
        """Mount a tmpfs that containers started from now on see at path."""
        await self._request({"op": "tmpfs", "path": path, "options": options}, [])

    async def unmount(self, path: str) -> None:
        """Undo mount_tmpfs."""
        await self._request({"op": "unmount", "path": path}, [])

    async def _spawn(self, request: dict[str, Any], spec: Mapping[str, Any], stdio: Sequence[int]) -> Process:
        memory = os.memfd_create("container")
        try:
            os.write(memory, json.dumps(spec).encode())
            reply, (_, problem) = await self._request(request, [memory, *stdio])
        finally:
            os.close(memory)
        text = await self._read_all(problem)
        if text:
            raise ContainerStartError(text)
        process: Process = reply["process"]
        return process

    async def _request(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        self._next_id += 1
        reply = self._loop.create_future()
        self._replies[self._next_id] = reply
        # Ours may be closed by the caller while the packet still waits to be sent.
        packet = (json.dumps({"id": self._next_id, **request}).encode(), [os.dup(fd) for fd in fds])
        self._outgoing.append(packet)
        self._flush()
        answer, received = await asyncio.shield(reply)
        if "error" in answer:
            raise ContainerStartError(answer["error"])
        return answer, received

    def _flush(self) -> None:
        while self._outgoing:
            data, fds = self._outgoing[0]
            try:
                socket.send_fds(self._sock, [data], fds)
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._flush)
                return
            except OSError:
                self._hang_up()
                return
            self._outgoing.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, zygote.PACKET, 4)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self._hang_up()
                return
            self._dispatch(json.loads(data), fds)

    def _dispatch(self, message: dict[str, Any], fds: list[int]) -> None:
        if "exited" in message:
            self._ended(message["exited"], message["status"])
            return
        if "pid" in message:
            pid = message["pid"]
            host_pid = _pid_behind(fds[0])
            process = Process(pid, host_pid, fds[0], self._loop.create_future())
            self._processes[pid] = message["process"] = process
        self._replies.pop(message["id"]).set_result((message, fds))

    def _ended(self, pid: int, status: int) -> None:
        process = self._processes.pop(pid)
        # As a shell and every container runtime says it: 128 + n for a process that signal n ended.
        process.exit_code.set_result(status if status >= 0 else 128 - status)
        os.close(process.pidfd)

    def _hang_up(self) -> None:
        if self.lost.done():
            return
        self._loop.remove_reader(self._sock)
        self.lost.set_result(None)
        for reply in self._replies.values():
            reply.set_exception(NodeAgentError("the process that starts containers is gone"))

    async def _read_all(self, fd: int) -> str:
        reader = asyncio.StreamReader()
        transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb")
        )
        try:
            return (await reader.read()).decode(errors="replace")
        finally:
            transport.close()


def _pid_behind(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        for line in file:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    raise NodeAgentError(f"/proc/self/fdinfo/{pidfd} names no process")
